"""The bounds of docs/numerics.md: the last number that is allowed and the first that is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn

from support.integers import INT32, Edit, set_kind, small
from support.second_reading import naive


def put(op: int, name: str, value: Any, index: int = 0) -> Edit:
    """Sets one element of a tensor."""

    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        array = tensor.array.copy()
        array.reshape(-1)[index] = value
        tensor.array = array

    return edit


def fill(op: int, name: str, value: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        tensor.array = np.full_like(tensor.array, value)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(m: bnn.Model) -> None:
        for e in edits:
            e(m)

    return edit


def set_op(op: int, **fields: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.ops[op] = dataclasses.replace(m.ops[op], **fields)

    return edit


def set_dtype(op: int, name: str, dtype: str) -> Edit:
    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        tensor.dtype, tensor.array = dtype, tensor.array.astype(bnn.DTYPES[dtype][1])

    return edit


def set_mean(value: float) -> Edit:
    return lambda m: setattr(m.tensors[m.mean], "array", np.full(2, value, "<f4"))


def drop(op: int, name: str) -> Edit:
    """Removes a tensor and the reference to it."""

    def edit(m: bnn.Model) -> None:
        gone = getattr(m.ops[op], name)
        setattr(m.ops[op], name, None)
        del m.tensors[gone]
        for o in m.ops:
            for field in ("weight", "scale", "offset", "slope", "shift"):
                ref = getattr(o, field)
                if ref is not None and ref > gone:
                    setattr(o, field, ref - 1)

    return edit


STEM_SUM = 18 * 32767  # of |weight|, all at the top
REFUSED: dict[str, tuple[Edit, str]] = {
    "bconv: M * K + |O| is 2^31": (put(1, "offset", INT32 - 9000 * 36 + 1), "op 1 'one': channel 0"),
    "bconv: the same below zero": (put(1, "offset", -(INT32 - 9000 * 36 + 1)), "op 1 'one': channel 0"),
    "bconv: negative M": (put(1, "scale", -1, 2), "op 1 'one'"),
    "bconv: shift 32": (put(1, "shift", 32), "op 1 'one'"),
    "stem: shift 32": (put(0, "shift", 32), "op 0 'stem'"),
    "stem: sum": (both(fill(0, "weight", 32767), put(0, "offset", INT32 - 255 * STEM_SUM)), "op 0 'stem'"),
    "stem: zero point": (both(fill(0, "weight", 9000), set_mean(-200.0)), "op 0 'stem'"),
    "mean over 256": (set_mean(257.0), "mean"),
    "conv: X * A + |O|": (both(fill(2, "weight", 32767), put(2, "offset", 65536)), "op 2 'short'"),
    "conv: shift 32": (put(2, "shift", 32), "op 2 'short'"),
    "residual: sum": (
        both(fill(2, "weight", 32000), fill(2, "shift", 0), put(3, "offset", 1 << 30), put(3, "shift", 0)),
        "op 3 'two': its sum with the residual",
    ),
    "avgpool: shift 48": (put(5, "shift", 48), "op 5 'mean'"),
    "avgpool: sum": (put(5, "shift", 1), "op 5 'mean'"),
    "linear: shift 48": (put(6, "shift", 48), "op 6 'fc'"),
    "linear: offset": (put(6, "offset", INT32 - 100), "op 6 'fc'"),
    "linear: scale 0": (put(6, "scale", 0.0), "op 6 'fc'"),
    "linear: scale NaN": (put(6, "scale", float("nan")), ""),
    "linear: activation": (set_op(6, act="clamp", clamp=(-1, 1)), "op 6 'fc'"),
    "clamp: half": (set_op(1, clamp=(-16384.5, 16384)), "op 1 'one'"),
    "clamp: 17 bits": (set_op(1, clamp=(-16384, 32768)), "op 1 'one'"),
    "clamp: NaN": (set_op(1, clamp=(float("nan"), 16384)), "op 1 'one'"),
    "clamp: order": (set_op(1, clamp=(5, 4)), "op 1 'one'"),
    "prelu without a slope": (set_op(1, act="prelu"), "op 1 'one'"),
    "pixels in a map": (set_kind(0, "i16"), "value 0"),
    "i32 with activation": (set_op(2, act="clamp", clamp=(-1, 1)), "op 2 'short'"),
    "i32 from bconv": (set_kind(3, "i32"), "op 1 'one'"),
    "i32 from the stem": (both(set_kind(1, "i32"), set_op(0, act="none")), "op 0 'stem'"),
    "i32 read by a pool": (set_op(4, input=5), "op 4 'pool'"),
    "f32 in the middle": (set_kind(6, "f32"), "op 3 'two'"),
    "logits as integers": (set_kind(9, "i16"), ""),
    "no shift": (drop(1, "shift"), "op 1 'one'"),
    "no scale": (drop(5, "scale"), "op 5 'mean'"),
    "no offset": (drop(0, "offset"), "op 0 'stem'"),
    "scale of i32": (set_dtype(1, "scale", "i32"), "op 1 'one'"),
    "offset of i16": (set_dtype(1, "offset", "i16"), "op 1 'one'"),
    "shift of i8": (set_dtype(1, "shift", "i8"), "op 1 'one'"),
    "weight of f32": (set_dtype(2, "weight", "f32"), "op 2 'short'"),
    "weight of u8": (set_dtype(0, "weight", "u8"), "op 0 'stem'"),
    "stem: 8 bits count 256-fold": (
        both(set_dtype(0, "weight", "i8"), put(0, "offset", INT32 - 50 * 255 * 99 * 18)),
        "op 0 'stem'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bounds_and_kinds(name: str) -> None:
    edit, words = REFUSED[name]
    model = small()
    edit(model)
    with pytest.raises(bnn.FormatError) as caught:
        numerics.check(model)
    assert words in str(caught.value)
    with pytest.raises(bnn.FormatError):
        numerics.simulate(model, np.zeros((1, 6, 6, 2), np.uint8))
    with pytest.raises(ValueError, match="the model: "):
        Engine(bnn.to_bytes(model))


def test_a_convolution_of_pixels_writes_no_i32() -> None:
    model = small()
    short = model.ops[2]
    weight = model.tensors[short.weight or 0]
    short.input, weight.shape = 0, (4, 1, 1, 2)
    weight.array = np.ascontiguousarray(weight.array[..., :2])
    with pytest.raises(bnn.FormatError, match="op 2 'short': conv cannot write an i32"):
        numerics.check(model)
    with pytest.raises(ValueError, match=r"op 2 'short': out \(value 5\) is i32 4x6x6, computed is i16 4x6x6"):
        Engine(bnn.to_bytes(model))


ALLOWED: dict[str, Edit] = {
    "as it is": lambda m: None,
    "bconv: the last number": put(1, "offset", INT32 - 9000 * 36),
    "bconv: the first number": put(1, "offset", -(INT32 - 9000 * 36)),
    "shift 31": both(put(0, "shift", 31), put(1, "shift", 31), put(2, "shift", 31)),
    "shift 47": both(put(5, "shift", 47), put(6, "shift", 47)),
    "shift 0": both(put(0, "shift", 0), put(1, "shift", 0), put(2, "shift", 0), put(6, "shift", 0)),
    "avgpool: negative M": both(fill(5, "scale", -32768), put(5, "offset", -7)),
    "stem: 8 bits": both(fill(0, "weight", -128), set_dtype(0, "weight", "i8")),
    "negative mean": set_mean(-3.0),
    "one-sided clamp": set_op(1, clamp=(5, 7)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_last_allowed_numbers(name: str, isa: str) -> None:
    model = small()
    ALLOWED[name](model)
    images = np.random.default_rng(1).integers(0, 256, (2, 6, 6, 2), np.uint8)
    images[1] = 255
    expected = numerics.simulate_values(model, images)
    for n in range(2):
        again = naive(model, images[n])
        assert all(expected[i][n].tolist() == np.array(again[i]).tolist() for i in expected)
    logits = Engine(bnn.to_bytes(model), isa=isa).run(images)
    assert logits.tolist() == expected[model.output].reshape(2, -1).tolist()


def test_a_clamp_can_make_values_larger() -> None:
    """What a pool with a clamp hands on is bounded by the clamp, not by what the pool reads."""
    model = small()
    model.ops[3].clamp = (-1, 1)  # the pool reads these
    model.ops[4].act, model.ops[4].clamp = "clamp", (20000, 30000)
    numerics.check(model)
    drop(5, "scale")(model)
    model.ops[5].kind = "conv"
    weight = model.add_tensor(np.full((4, 3, 3, 4), 3000), "i16")
    model.ops[5].weight = weight
    with pytest.raises(bnn.FormatError, match="op 5 'mean': channel 0 may reach"):
        numerics.check(model)
    with pytest.raises(ValueError, match="'mean': "):
        Engine(bnn.to_bytes(model))


@pytest.mark.parametrize("kind", ["maxpool", "channel_pad", "avgpool", "eltwise"])
def test_who_hands_a_bound_on(kind: str) -> None:
    """After a clamp at 10 a convolution may have large weights, through maxpool and channel_pad, and nothing else."""
    m = bnn.Model([], [], [], output=4, mean=0, std=1, numerics="integer")
    m.add_tensor(np.zeros(1))
    m.add_tensor(np.ones(1))
    for value, c in (("u8", 1), ("i16", 4), ("i16", 4), ("i16", 1), ("f32", 2)):
        m.add_value(value, c, 1, 1)

    def constants(channels: int) -> dict[str, int]:
        return {
            "offset": m.add_tensor(np.zeros(channels), "i32"),
            "shift": m.add_tensor(np.full(channels, 20 if channels == 1 else 0), "u8"),
        }

    first = m.add_tensor(np.ones((4, 1, 1, 1)), "i16")
    m.ops.append(bnn.Op("conv", "first", 0, out=1, weight=first, act="clamp", clamp=(-10, 10), **constants(4)))
    middle = {"scale": m.add_tensor(np.ones(4), "i16"), **constants(4)} if kind == "avgpool" else {}
    m.ops.append(bnn.Op(kind, "middle", 1, out=2, **middle))
    large = m.add_tensor(np.full((1, 1, 1, 4), 32767), "i16")
    m.ops.append(bnn.Op("conv", "last", 2, out=3, weight=large, **constants(1)))
    logits = {"scale": m.add_tensor(np.ones(1)), **constants(2)}
    m.ops.append(bnn.Op("linear", "logits", 3, out=4, weight=m.add_tensor(np.ones((2, 1)), "i16"), **logits))
    for load in (numerics.check, lambda model: Engine(bnn.to_bytes(model))):
        if kind in ("maxpool", "channel_pad"):
            load(m)
        else:
            with pytest.raises(ValueError, match=r"'last'.*32 bits"):
                load(m)
