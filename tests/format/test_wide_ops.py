"""Wide ops of integer files: the last numbers that are allowed and the first that are not, and what they compute.

`test_saved_graphs.py` compares the arithmetic with other readings of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.bounds import INT32, WIDE

from support.integers import Workbench

TOP = INT32 - 32768  # of what mul and avgpool bound
LOADERS: dict[str, Callable[[bnn.Model], Any]] = {
    "simulation": numerics.check,
    "engine": lambda model: Engine(bnn.to_bytes(model)),
}


class Wide(Workbench):
    """A workbench with constant maps of 32 bits, and ops that write any kind. The stream is within -16384..16384."""

    def constant(self, n: int, channels: int = 4, side: int = 4, source: int = 1) -> int:
        """An i32 that is n everywhere: its X is |n|. A conv of zeros writes it."""
        shape = (channels, 1, 1, self.model.values[source].c)
        refs: dict[str, Any] = self.constants(channels, offset=n, shift=0)
        weight = self.model.add_tensor(np.zeros(shape), "i16")
        return self.op("conv", source, shape=(channels, side, side), weight=weight, **refs)

    def op(
        self, kind: str, source: int, out: str = "i32", shape: tuple[int, int, int] = (4, 4, 4), **fields: Any
    ) -> int:
        """The value that the op writes, in `out` or, if this is bits, there."""
        m = self.model
        value = m.add_value(out, *shape)
        m.ops.append(
            bnn.Op(kind, f"{kind}{len(m.ops)}", source, **{"bits" if out == "bits" else "out": value}, **fields)
        )
        return value

    def tensor(self, n: int | list[int] | list[list[int]], dtype: str = "i32") -> int:
        """Numbers per channel, or one for all."""
        return self.model.add_tensor(np.full(4, n) if isinstance(n, int) else np.array(n), dtype)

    def ended(self) -> bnn.Model:
        """With an output; values that nothing reads are allowed."""
        ones: dict[str, Any] = self.constants(scale=np.ones(4), offset=np.zeros(4))
        self.model.output = self.op("to_float", self.stream, "f32", **ones)
        return self.model


def bconv(
    b: Wide, m: int, o: int = 0, n: int | None = None, dtype: str = "i32", p: float = 0.0, out: str = "i32"
) -> int:
    """36 taps and channels."""
    weight = b.model.add_bits(np.ones((4, 3, 3, 4), np.bool_))
    scale = b.tensor(m, dtype) if n is None else b.tensor([[m] * 4, [n] * 4], dtype)
    refs: dict[str, Any] = b.constants(offset=o, shift=0)
    return b.op("bconv", b.bits, out, weight=weight, window=(3, 3), pad=(1, 1), scale=scale, pad_value=p, **refs)


def gather(b: Wide, source: int, p: float, out: str = "i32", **fields: Any) -> int:
    weight = b.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, -1])
    return b.op("gather", source, out, weight=weight, pad_value=p, **fields)


def prelu(b: Wide, source: int, slope: int | list[list[int]], dtype: str = "i32", **fields: Any) -> int:
    return b.op("eltwise", source, act="prelu", slope=b.tensor(slope, dtype), **fields)


def scaled(b: Wide, kind: str, source: int, m: int, o: int, s: int, out: str = "i32") -> int:
    refs: dict[str, Any] = b.constants(scale=m, offset=o, shift=s)
    return b.op(kind, source, out, residual=b.stream if kind == "mul" else None, **refs)


def clamped(b: Wide, lo: float, hi: float, act: str = "clamp", out: str = "i32") -> int:
    return b.op("eltwise", b.constant(9), out, act=act, clamp=(lo, hi))


def real(b: Wide, kind: str, source: int) -> int:
    shape, result = ((4, 1, 1, 4), (4, 4, 4)) if kind == "conv" else ((4, 64), (4, 1, 1))
    refs: dict[str, Any] = b.constants(offset=0, shift=0)
    if kind == "linear":
        refs["scale"] = b.model.add_tensor(np.ones(1))
    weight = b.model.add_tensor(np.ones(shape), "i16")
    return b.op(kind, source, "i16" if kind == "conv" else "f32", result, weight=weight, **refs)


Make = Callable[[Wide], object]
# What is allowed, what is not any more, and a word of both refusals.
LIMITS: dict[str, tuple[Make, Make, str]] = {
    "sum of two": (
        lambda b: b.op("eltwise", b.constant(INT32 - 7), residual=b.constant(-7)),
        lambda b: b.op("eltwise", b.constant(INT32 - 7), residual=b.constant(-8)),
        "32 bits",
    ),
    "sum of two, stored in 16 bits": (
        lambda b: b.op("maxpool", b.constant(INT32 - 7), "i16", residual=b.constant(-7)),
        lambda b: b.op("maxpool", b.constant(INT32 - 7), "i16", residual=b.constant(-8)),
        "32 bits",
    ),
    "an i16 without a shift counts as 32768": (
        lambda b: b.op("eltwise", b.stream, residual=b.constant(TOP)),
        lambda b: b.op("eltwise", b.stream, residual=b.constant(TOP + 1)),
        "32 bits",
    ),
    "sum after a gather's pad_value": (
        lambda b: gather(b, b.constant(5), -WIDE, residual=b.constant(WIDE - 1)),
        lambda b: gather(b, b.constant(5), -WIDE, residual=b.constant(WIDE)),
        "32 bits",
    ),
    "prelu": (
        lambda b: prelu(b, b.constant(WIDE - 1), -(2**31)),
        lambda b: prelu(b, b.constant(WIDE), 0),
        "prelu",
    ),
    "prelu of a sum": (
        lambda b: prelu(b, b.constant(WIDE - 5), 0, residual=b.constant(4)),
        lambda b: prelu(b, b.constant(WIDE - 5), 0, residual=b.constant(5)),
        "prelu",
    ),
    "clamp_hi": (lambda b: clamped(b, 0, WIDE), lambda b: clamped(b, 0, WIDE + 128), "clamp"),
    "clamp_lo": (lambda b: clamped(b, -WIDE, 0), lambda b: clamped(b, -WIDE - 128, 0), "clamp"),
    "whole clamp": (lambda b: clamped(b, 0, 1), lambda b: clamped(b, 0, 1.5), "clamp"),
    "order of clamp": (lambda b: clamped(b, WIDE, WIDE), lambda b: clamped(b, WIDE, WIDE - 64), "clamp"),
    "levels": (lambda b: clamped(b, WIDE, -WIDE, "step"), lambda b: clamped(b, 0, WIDE + 128, "step"), "clamp|steps"),
    "clamp of an i16 that reads an i32": (
        lambda b: clamped(b, 0, 32767, out="i16"),
        lambda b: clamped(b, 0, 32768, out="i16"),
        "clamp",
    ),
    "pad_value": (
        lambda b: gather(b, b.constant(5), WIDE),
        lambda b: gather(b, b.constant(5), WIDE + 128),
        "pad_value",
    ),
    "pad_value of a narrow gather": (
        lambda b: gather(b, b.constant(5), -WIDE, "i16"),
        lambda b: gather(b, b.constant(5), -WIDE - 128, "i16"),
        "pad_value",
    ),
    "pad_value of a wide gather from i16": (
        lambda b: gather(b, b.stream, 32767),
        lambda b: gather(b, b.stream, 32768),
        "pad_value",
    ),
    "mean": (
        lambda b: scaled(b, "avgpool", b.constant(TOP), 1, 0, 0),
        lambda b: scaled(b, "avgpool", b.constant(TOP), 1, 1, 0),
        "channel 0 may (reach|overflow)",
    ),
    "product": (
        lambda b: scaled(b, "mul", b.constant(TOP), -1, 0, 15),
        lambda b: scaled(b, "mul", b.constant(TOP), -1, -1, 15),
        "channel 0 may (reach|overflow)",
    ),
    "the largest product": (
        lambda b: scaled(b, "mul", b.constant(INT32), -32768, -(2**31), 31),
        lambda b: scaled(b, "mul", b.constant(INT32), -32768, 0, 29),
        "channel 0 may (reach|overflow)",
    ),
    "shift of a mean": (
        lambda b: scaled(b, "avgpool", b.constant(9), 1, 0, 62, "i16"),
        lambda b: scaled(b, "avgpool", b.constant(9), 1, 0, 63, "i16"),
        "shift",
    ),
    "shift of a product": (
        lambda b: scaled(b, "mul", b.constant(9), 1, 0, 62),
        lambda b: scaled(b, "mul", b.constant(9), 1, 0, 63),
        "shift",
    ),
    "shift of a wide mean of i16": (
        lambda b: scaled(b, "avgpool", b.stream, 1, 0, 47),
        lambda b: scaled(b, "avgpool", b.stream, 1, 0, 48),
        "shift",
    ),
    "bconv": (
        lambda b: bconv(b, INT32 // 36, INT32 % 36),
        lambda b: bconv(b, INT32 // 36, INT32 % 36 + 1),
        "channel 0 may (reach|overflow)",
    ),
    "bconv with a window scale": (
        lambda b: bconv(b, 7, INT32 - 36 * 1000007, -1000000),
        lambda b: bconv(b, 7, INT32 - 36 * 1000007 + 1, -1000000),
        "channel 0 may (reach|overflow)",
    ),
    "bconv with products of more than 64 bits": (
        lambda b: bconv(b, 0, 0, 0, p=1024),
        lambda b: bconv(b, INT32, 0, -(2**31), p=1024),
        "channel 0 may (reach|overflow)",
    ),
    "scale of a bconv is not negative": (lambda b: bconv(b, 0), lambda b: bconv(b, -1), "scale"),
    "scale of a wide bconv": (lambda b: bconv(b, 1), lambda b: bconv(b, 1, dtype="i16"), "scale"),
    "scale of a narrow bconv": (
        lambda b: bconv(b, 1, dtype="i16", out="i16"),
        lambda b: bconv(b, 1, out="i16"),
        "scale",
    ),
    "slope": (lambda b: prelu(b, b.stream, 1), lambda b: prelu(b, b.stream, 1, "i16"), "slope"),
    "threshold": (
        lambda b: b.op("eltwise", b.stream, bits=b.model.add_value("bits", 4, 4, 4), threshold=b.tensor(1)),
        lambda b: b.op("eltwise", b.stream, bits=b.model.add_value("bits", 4, 4, 4), threshold=b.tensor(1, "i16")),
        "threshold",
    ),
    "threshold beside an i16": (
        lambda b: b.op(
            "eltwise", b.constant(1), "i16", bits=b.model.add_value("bits", 4, 4, 4), threshold=b.tensor(1, "i16")
        ),
        lambda b: b.op("eltwise", b.constant(1), "i16", bits=b.model.add_value("bits", 4, 4, 4), threshold=b.tensor(1)),
        "threshold",
    ),
    "a clamp before bits makes no difference": (
        lambda b: b.op("eltwise", b.stream, "bits", threshold=b.tensor(1), act="clamp", clamp=(0, 40000)),
        lambda b: b.op("eltwise", b.stream, "bits", threshold=b.tensor(1, "i16"), act="clamp", clamp=(0, 40000)),
        "clamp",
    ),
    "table": (
        lambda b: b.op("eltwise", b.constant(1), "i16", act="table", slope=b.tensor(list(range(257)), "i16")),
        lambda b: b.op("eltwise", b.constant(1), act="table", slope=b.tensor(list(range(257)), "i16")),
        "slope|table",
    ),
    "conv reads no i32": (lambda b: real(b, "conv", b.stream), lambda b: real(b, "conv", b.constant(1)), "i32"),
    "linear reads no i32": (lambda b: real(b, "linear", b.stream), lambda b: real(b, "linear", b.constant(1)), "i32"),
    "concat of i32 and i16": (
        lambda b: b.op("concat", b.constant(1), shape=(8, 4, 4), residual=b.constant(2)),
        lambda b: b.op("concat", b.constant(1), shape=(8, 4, 4), residual=b.stream),
        "residual",
    ),
    "concat of i16 and i32": (
        lambda b: b.op("concat", b.stream, shape=(8, 4, 4), residual=b.stream),
        lambda b: b.op("concat", b.stream, shape=(8, 4, 4), residual=b.constant(1)),
        "residual",
    ),
    "second input of mul": (
        lambda b: scaled(b, "mul", b.constant(9), 1, 0, 0),
        lambda b: b.op("mul", b.constant(9), residual=b.constant(9), **b.constants(scale=1, offset=0, shift=0)),
        "residual",
    ),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str, loader: str) -> None:
    inside, outside, words = LIMITS[name]
    for make in (inside, outside):
        b = Wide()
        make(b)
        model = b.ended()
        if make is inside:
            LOADERS[loader](model)
        else:
            with pytest.raises(ValueError, match=rf"op (\d+ )?'[a-z]+\d+': .*({words})"):
                LOADERS[loader](model)


ROWS = [[1 << 29] * 4, [3, 2, 1, 0]]
# X of a value that is the residual of a sum.
LARGEST: dict[str, tuple[Callable[[Wide], int], int]] = {
    "none": (lambda b: b.op("eltwise", b.constant(70000), residual=b.constant(-9)), 70009),
    "none of an i16": (lambda b: b.op("eltwise", b.stream), 32768),
    "pixels": (
        lambda b: b.op("conv", 0, weight=b.tensor([[[[1, 2]]]] * 4, "i16"), **b.constants(offset=5, shift=0)),
        255 * 3 + 255 + 1 + 5,  # z is 32640 and 16320: (32640 + 2 * 16320) / 256 = 255
    ),
    "clamp": (lambda b: clamped(b, -5, 90000), 90000),
    "step": (lambda b: clamped(b, -90000, 3, "step"), 90000),
    "prelu": (lambda b: prelu(b, b.constant(1000), -(1 << 29)), 1001),
    "steep prelu": (lambda b: prelu(b, b.constant(1000), -(2**31)), 2001),
    "prelu of two rows": (lambda b: prelu(b, b.constant(1001), ROWS), 501),
    "maxpool": (lambda b: b.op("maxpool", b.constant(70000)), 70000),
    "gather": (lambda b: gather(b, b.constant(70000), 5), 70000),
    "gather with a large pad_value": (lambda b: gather(b, b.constant(70000), -80000), 80000),
    "bilinear": (lambda b: b.op("bilinear", b.constant(-7), weight=b.tensor([0, 0, 1, 0, 2, 0, 3, 0] * 2)), 7),
    "avgpool": (lambda b: scaled(b, "avgpool", b.constant(70000), -3, 2, 1), 105000 + 65536 + 32768),
    "mul": (lambda b: scaled(b, "mul", b.constant(70000), 1, 0, 15), 70000 + 32768),
    "bconv": (lambda b: bconv(b, 70000, 5), 36 * 70000 + 5),
    "i16 of a large i32": (lambda b: b.op("maxpool", b.constant(70000), "i16"), 32768),
    "i16 of a small i32": (lambda b: b.op("maxpool", b.constant(-70), "i16"), 70),
    "i16 of a gather of an i32": (lambda b: gather(b, b.constant(9), 80000, "i16"), 32768),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", [*LARGEST, "concat"])
def test_the_largest_number_of_a_value(name: str, loader: str) -> None:
    for more in (0, 1):
        b = Wide()
        if name == "concat":
            both, most = b.op("concat", b.constant(5), shape=(8, 4, 4), residual=b.constant(-70000)), 70000
            b.op("eltwise", both, shape=(8, 4, 4), residual=b.constant(INT32 - most + more, 8))
        else:
            make, most = LARGEST[name]
            value = make(b)
            b.op("eltwise", b.constant(INT32 - most + more), residual=value)
        model = b.ended()
        if more:
            with pytest.raises(ValueError, match="32 bits"):
                LOADERS[loader](model)
        else:
            LOADERS[loader](model)


def computed(b: Wide, value: int) -> list[int]:
    """One pixel of a value."""
    images = np.zeros((1, b.side, b.side, 2), np.uint8)
    return [int(n) for n in numerics.simulate_values(b.ended(), images)[value][0, 0, 0]]


def test_prelu_rounds_halves_up() -> None:
    b = Wide()
    value = prelu(b, b.constant(-3), [[1 << 29, -(1 << 29), -(2**31), 1], [0, 0, 0, 0]])
    assert computed(b, value) == [-1, 2, 6, 0]
    b = Wide()
    value = prelu(b, b.constant(WIDE - 1), [[0] * 4, [INT32, -(2**31), 1 << 29, 1]])
    assert computed(b, value) == [2**31 - 3, -(2**31) + 2, 1 << 29, 1]


def test_thresholds_of_32_bits() -> None:
    b = Wide()
    value = b.op("eltwise", b.constant(70000), "bits", threshold=b.tensor([69999, 70000, 70001, -(2**31)]))
    assert computed(b, value) == [1, 1, 0, 1]


def test_an_i16_of_an_i32_is_clamped() -> None:
    for n, expected in ((70000, 32767), (-70000, -32768), (5, 5)):
        b = Wide()
        assert computed(b, b.op("maxpool", b.constant(n), "i16")) == [expected] * 4


@pytest.mark.parametrize("n", [INT32, -INT32])
def test_a_mean_whose_rounding_takes_more_than_64_bits(n: int) -> None:
    """2 * sum * N is over 2^63: 50000 of 50001 taps count."""
    m = bnn.Model([], [], [], output=0, mean=0, std=1, numerics="integer")
    for _ in range(2):
        m.add_tensor(np.ones(1))
    m.add_value("u8", 1, 1, 50000)
    m.add_value("i32", 1, 1, 50000)
    m.add_value("i32", 1, 1, 2)
    m.add_value("f32", 1, 1, 2)
    zeros = m.add_tensor(np.zeros((1, 1, 1, 1)), "i16")
    m.ops.append(bnn.Op("conv", "constant", 0, out=1, weight=zeros))
    m.ops.append(bnn.Op("avgpool", "mean", 1, out=2, window=(1, 50001), pad=(0, 1), exclude_pad=True))
    m.ops[1].scale = m.add_tensor(np.ones(1), "i16")
    for op, offset, shift in zip(m.ops, (n, 0), (0, 16)):
        op.offset, op.shift = m.add_tensor(np.array([offset]), "i32"), m.add_tensor(np.array([shift]), "u8")
    m.ops.append(bnn.Op("to_float", "end", 2, out=3))
    m.ops[2].scale, m.ops[2].offset = (m.add_tensor(np.array([x]), "f64") for x in (1.0, 0.0))
    m.output = 3
    image = np.zeros((1, 1, 50000, 1), np.uint8)
    # The conv has a bound of its own: |0 * 255| + 1 more than its offset.
    m.tensors[m.ops[0].offset or 0].array -= np.sign(n).astype("<i4")
    assert numerics.simulate_values(m, image)[2].ravel().tolist() == [(n - int(np.sign(n))) * 50001 >> 16] * 2
