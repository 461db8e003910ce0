"""Models written and read again, computed as specified, and files that are replaced whole or not at all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import format as bnn

from support.integers import set_kind, small
from support.models import same_model, small_model, tiny_model


@pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 70, 127, 128, 130])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 2)])
def test_pack_bits_is_the_naive_loop(n: int, lead: tuple[int, ...]) -> None:
    rng = random.Random(n)
    count = int(np.prod(lead))
    flat = [[rng.random() < 0.5 for _ in range(n)] for _ in range(count)]
    words = [[0] * -(-n // 64) for _ in flat]
    for r, c in itertools.product(range(count), range(n)):
        words[r][c // 64] |= flat[r][c] << c % 64
    positive = np.array(flat).reshape(*lead, n)
    packed = bnn.pack_bits(positive)
    assert packed.dtype == np.dtype("<u8")
    assert packed.reshape(count, -1).tolist() == words
    np.testing.assert_array_equal(bnn.unpack_bits(packed, n), positive)


def with_maps(*edits: Callable[[bnn.Model], None]) -> bnn.Model:
    """bits of a 4 x 4 x 4 input, an op on them and one on numbers, all of format 1.0, and then `edits`."""
    m = small_model(shape=(4, 4, 4))
    m.ops[0].bits = m.add_value("bits", 4, 4, 4)
    weight = m.add_bits(np.ones((4, 1, 1, 4), np.bool_))
    m.ops.append(bnn.Op("bconv", "binary", 2, out=m.add_value("f32", 4, 4, 4), weight=weight))
    m.ops.append(bnn.Op("avgpool", "pool", 3, out=m.add_value("f32", 4, 4, 4)))
    m.output = 4
    for edit in edits:
        edit(m)
    return m


def set_op(index: int, **fields: Any) -> Callable[[bnn.Model], None]:
    def edit(m: bnn.Model) -> None:
        for name, value in fields.items():
            setattr(m.ops[index], name, m.add_tensor(value) if isinstance(value, np.ndarray) else value)

    return edit


def set_scale(m: bnn.Model) -> None:
    m.ops[1].scale, m.ops[1].offset = m.add_tensor(np.ones((2, 4)), "f64"), m.add_tensor(np.ones(4), "f64")


def set_groups(m: bnn.Model) -> None:
    m.ops[1].weight = m.add_bits(np.ones((4, 1, 1, 2), np.bool_))
    del m.tensors[2]
    m.ops[1].weight -= 1


def spread(m: bnn.Model) -> None:
    m.ops[2].window = (4, 4)
    m.values[4] = bnn.Value("f32", 4, 1, 1)
    m.ops.append(bnn.Op("eltwise", "sum", 3, residual=4, out=m.add_value("f32", 4, 4, 4)))


NEW: dict[str, Callable[[bnn.Model], None]] = {
    "dilation of rows": set_op(1, dilation=(2, 1)),
    "dilation of columns": set_op(1, dilation=(1, 256)),
    "pad_value": set_op(1, pad_value=-1.0),
    "threshold": set_op(0, threshold=np.ones(4)),
    "ceil": set_op(2, ceil=True),
    "exclude_pad": set_op(2, exclude_pad=True),
    "padded mean": set_op(2, window=(2, 2), pad=(1, 0)),
    "step": set_op(2, act="step", clamp=(1.0, -0.5)),
    "sigmoid": set_op(2, act="sigmoid"),
    "two slopes": set_op(2, act="prelu", slope=np.ones((2, 4))),
    "window scale": set_scale,
    "groups": set_groups,
    "one pixel for all": spread,
    "two outputs": lambda m: m.more_outputs.append(1),
    "mul": set_op(2, kind="mul", residual=1),
    "concat": set_op(2, kind="concat", residual=1),
    "gather": set_op(2, kind="gather", pad_value=0.25),
    "softmax": set_op(2, kind="softmax"),
    "log_softmax": set_op(2, kind="log_softmax"),
}


@pytest.mark.parametrize("name", NEW)
def test_what_came_with_1_2(name: str) -> None:
    """Each field survives a round trip, says 1.2 and is not lost among the others; without it the file is 1.0."""
    model = with_maps(NEW[name])
    model.version = (1, 2)
    data = bnn.to_bytes(model)
    assert data[8:12] == bytes([1, 0, 2, 0])
    assert same_model(bnn.from_bytes(data), model)


def with_i32(*edits: Callable[[bnn.Model], None]) -> bnn.Model:
    """An i32 that a conv writes and a bconv adds, which 1.1 has; `edits` make it a file of 1.3."""
    m = small()
    for edit in edits:
        edit(m)
    return m


def set_integers(index: int, field: str) -> Callable[[bnn.Model], None]:
    return lambda m: setattr(m.ops[index], field, m.add_tensor(np.arange(4), "i32"))


WIDE: dict[str, Callable[[bnn.Model], None]] = {
    "an activation": set_op(2, act="clamp", clamp=(-1.0, 70000.0)),
    "bits": lambda m: setattr(m.ops[2], "bits", m.add_value("bits", 4, 6, 6)),
    "a residual": set_op(2, residual=3),
    "a bconv that writes it": set_kind(3, "i32"),
    "a conv over pixels that writes it": set_kind(1, "i32"),
    "a maxpool that reads it": set_kind(6, "i32"),
    "a threshold": set_integers(1, "threshold"),
    "a slope": set_integers(1, "slope"),
    "a scale": set_integers(1, "scale"),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_came_with_1_3(name: str) -> None:
    assert bnn.to_bytes(with_i32(WIDE[name]))[8:12] == bytes([1, 0, 3, 0])


def test_an_i32_without_more_is_of_1_1() -> None:
    assert bnn.to_bytes(with_i32())[8:12] == bytes([1, 0, 1, 0])


def test_without_it_the_file_is_1_0() -> None:
    model = with_maps()
    assert bnn.to_bytes(model)[8:12] == bytes([1, 0, 0, 0])
    model.metadata["labels"] = "cifar10"  # which a reader of 1.0 does not know
    assert bnn.to_bytes(model)[8:12] == bytes([1, 0, 1, 0])
    del model.metadata["labels"]
    model.ops[1].pad_value = -0.0  # no padding at all, and written as that
    assert bnn.to_bytes(model) == bnn.to_bytes(with_maps())


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_serialised_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")
    model = tiny_model()
    model.metadata["object"] = object()
    with pytest.raises(TypeError):
        bnn.write(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]
    assert path.read_bytes() == b"old"
