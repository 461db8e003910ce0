"""Integer models as files: version, records, kinds, labels by name."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.labels import load_labels

from support.integers import set_kind, small


def test_integer_files_are_1_1_and_survive_a_round_trip() -> None:
    for model in (small(), random_resnet("cresnet20", numerics="integer")):
        data = bnn.to_bytes(model)
        again = bnn.from_bytes(data)
        assert data[8:12] == bytes([1, 0, 1, 0])
        assert again.version == (1, 1)
        assert again.numerics == "integer"
        assert again.ops == model.ops
        assert again.values == model.values
        assert bnn.to_bytes(again) == data


def test_float_files_stay_1_0() -> None:
    model = random_resnet("cresnet20")
    data = bnn.to_bytes(model)
    assert data[8:12] == bytes([1, 0, 0, 0])
    assert bnn.from_bytes(data).version == (1, 0)
    model.metadata["labels"] = "cifar10"  # which a reader of 1.0 does not know
    assert bnn.to_bytes(model)[8:12] == bytes([1, 0, 1, 0])


def record(data: bytes, op: int) -> int:
    """Where an op's record starts."""
    n_values, n_tensors = np.frombuffer(data, "<u4", 2, 28)
    return int(64 + 16 * n_values + 40 * n_tensors + 80 * op)


def repaired(data: bytearray) -> bytes:
    data[12:16] = bnn.checksum(memoryview(data)).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("model", "op", "at", "number", "words"),
    [
        (small(), 4, 68, 0, "op 4 'pool': |tensor 0: is referred to 2 times"),
        (small(), 1, 68, 1000, "op 1 'one': shift refers to 1000"),
        (small(), 1, 68, bnn.NONE, "tensor|shift"),
        (small(), 1, 72, 1, r"tensor 0: is referred to 2 times|op 1 'one': threshold \(tensor 0\)"),
        (small(), 1, 72, 1000, "op 1 'one': threshold refers to 999"),
        (small(), 1, 76, 1 << 31, "op 1 'one': reserved bytes are not zero"),
        (random_resnet("cresnet20"), 1, 68, 1, "op 1 'layer1.0.conv1': reserved bytes are not zero"),
        (random_resnet("cresnet20"), 1, 68, bnn.NONE, "op 1 'layer1.0.conv1': reserved bytes are not zero"),
    ],
)
def test_shift_in_the_op_record(model: bnn.Model, op: int, at: int, number: int, words: str) -> None:
    data = bytearray(bnn.to_bytes(model))
    start = record(data, op) + at
    data[start : start + 4] = number.to_bytes(4, "little")
    with pytest.raises(bnn.FormatError, match=words):
        bnn.from_bytes(repaired(data))
    with pytest.raises(ValueError, match=words):
        _core.Engine(repaired(data), 1, "")


def test_integers_have_no_place_in_float_files() -> None:
    for edit in (set_kind(0, "u8"), set_kind(1, "i16"), set_kind(1, "i32")):
        model = random_resnet("cresnet20")
        edit(model)
        with pytest.raises(ValueError, match="the model: "):
            Engine(bnn.to_bytes(model))
    model = random_resnet("cresnet20")
    weight = model.tensors[model.ops[0].weight or 0]
    weight.dtype, weight.array = "i16", weight.array.astype("<i2")
    with pytest.raises(ValueError, match="op 0 'conv1'"):
        Engine(bnn.to_bytes(model))


def test_labels_by_name() -> None:
    def labels(value: object, count: int) -> list[str]:
        model = random_resnet("cresnet20", num_classes=count, numerics="integer")
        model.metadata["labels"] = value
        return Engine(bnn.to_bytes(model)).labels

    assert labels("imagenet", 1000) == load_labels("imagenet", 1000)
    assert labels("cifar10", 10) == load_labels("cifar10", 10)
    assert labels(["a", "b"], 2) == ["a", "b"]
    assert labels([], 7) == []
    for value, count in (("nowhere", 10), ("imagenet", 10), (["a"], 2), ([1, 2], 2), (None, 2), ("", 3)):
        with pytest.raises(ValueError, match=r"labels|names"):
            labels(value, count)
