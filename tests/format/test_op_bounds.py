"""Integer files: the first numbers that are not allowed, and which ops hand a bound on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn

from support.integers import INT32, Workbench

Make = Callable[[], bnn.Model]


def bconv(*, m: int = 100, n: int | None = None, o: int = 0, p: float = 0.0, **fields: Any) -> Make:
    """3 x 3, padded: 36 taps; M = m, N = n, O = o in channel 0, pad_value p."""

    def make() -> bnn.Model:
        b = Workbench()
        scale = np.full(4, m) if n is None else np.array([[m] * 4, [n] * 4])
        weight = b.model.add_bits(np.random.default_rng(1).integers(0, 2, (4, 3, 3, 4)) > 0)
        refs = b.constants(scale=scale, offset=np.array([o, 0, 0, 0]), shift=5)
        geometry: dict[str, Any] = {"window": (3, 3), "pad": (1, 1), **fields}
        return b.add("bconv", b.bits, (4, 4, 4), bits=True, weight=weight, pad_value=p, **refs, **geometry)

    return make


def mul(*, m: int, o: int, s: int) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        refs = b.constants(scale=m, offset=o, shift=s)
        return b.add("mul", b.stream, (4, 4, 4), bits=True, residual=b.stream, **refs)

    return make


def avgpool(m: int, o: int, s: int, shape: tuple[int, int, int] = (4, 3, 3), **fields: Any) -> Make:
    """2 x 2 by 2, 3 x 3 of them with a padding of 1: windows of one, two and four taps inside."""

    def make() -> bnn.Model:
        b = Workbench()
        refs = b.constants(scale=m, offset=o, shift=s)
        geometry: dict[str, Any] = {"window": (2, 2), "stride": (2, 2), "pad": (1, 1), **fields}
        return b.add("avgpool", b.stream, shape, bits=True, **refs, **geometry)

    return make


def gather(channels: list[int], rows: list[int], columns: list[int], p: float = 0.0, **fields: Any) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        weight = b.model.add_tensor(np.array([*channels, *rows, *columns]), "i32")
        shape = (len(channels), len(rows), len(columns))
        return b.add("gather", b.stream, shape, bits=True, weight=weight, pad_value=p, **fields)

    return make


def bilinear(rows: list[tuple[int, int]], columns: list[tuple[int, int]]) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        weight = b.model.add_tensor(np.array([n for pair in (*rows, *columns) for n in pair]), "i32")
        return b.add("bilinear", b.stream, (4, len(rows), len(columns)), bits=True, weight=weight)

    return make


def eltwise(act: str, clamp: tuple[float, float] = (0.0, 0.0), **numbers: Any) -> Make:
    """`numbers` are constants of the op."""

    def make() -> bnn.Model:
        b = Workbench()
        return b.add("eltwise", b.stream, (4, 4, 4), bits=True, act=act, clamp=clamp, **b.constants(**numbers))

    return make


def simple(kind: str, shape: tuple[int, int, int] = (4, 4, 4), bits: bool = True, **fields: Any) -> Make:
    """Any op on the stream; references by the names of the workbench."""

    def make() -> bnn.Model:
        b = Workbench()
        names = {key: getattr(b, value) for key, value in fields.items() if key in ("residual", "source")}
        plain = {key: value for key, value in fields.items() if key not in names}
        source = names.pop("source", b.stream)
        return b.add(kind, source, shape, bits=bits, **names, **plain)

    return make


def grouped(kind: str, per_group: int, out: int) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        shape = (out, 3, 3, per_group)
        if kind == "bconv":
            weight = b.model.add_bits(np.ones(shape, np.bool_))
            refs = b.constants(out, scale=300, offset=7, shift=1)
        else:
            weight = b.model.add_tensor(np.full(shape, 99), "i16")
            refs = b.constants(out, offset=7, shift=8)
        source = b.bits if kind == "bconv" else b.stream
        return b.add(kind, source, (out, 4, 4), bits=True, weight=weight, window=(3, 3), pad=(1, 1), **refs)

    return make


TOP = INT32 - 32768  # of what mul and avgpool bound


# The attack files have the other rules; these are rows of one that they do not have for integers.
REFUSED: dict[str, tuple[Make, str]] = {
    "bconv: (M + |N|) * K + |O| is 2^31": (bconv(m=32767, n=-32768, o=INT32 - 65535 * 36 + 1), "channel 0 may reach"),
    "bconv: half a padding takes one more": (bconv(m=100, o=INT32 - 3600, p=0.5), "channel 0 may reach"),
    "bconv: a padding of 2.5 counts as 3": (bconv(m=100, n=-7, o=INT32 - 107 * 36 * 3, p=2.5), "channel 0 may reach"),
    "bconv: ceil": (bconv(ceil=True), "ceil"),
    "mul: the first number": (mul(m=1, o=TOP - (1 << 30) + 1, s=0), "channel 0 may reach"),
    "mul: shifted": (mul(m=-3, o=-2 * (TOP - (3 << 29)) - 1, s=1), "channel 0 may reach"),
    "avgpool: the first number": (avgpool(16383, TOP - (16383 << 17) + 1, 0), "channel 0 may reach"),
    "avgpool: more than half": (avgpool(1, 0, 0, pad=(2, 1)), "half"),
    "maxpool: no tap inside": (simple("maxpool", (4, 1, 4), window=(2, 1), pad=(1, 0), dilation=(5, 1)), ""),
    "maxpool: exclude_pad": (simple("maxpool", exclude_pad=True), "exclude_pad"),
    "maxpool: one pixel added": (simple("maxpool", residual="spot"), ""),
    "gather: a row too far": (gather([0], [4], [0]), "row"),
    "gather: a channel before the first": (gather([-2], [0], [0]), "channel"),
    "bilinear: past the last column": (bilinear([(0, 0)], [(4, 0)]), "column"),
    "bilinear: before the first": (bilinear([(-1, 0)], [(0, 0)]), "row"),
    "bilinear: all of the next": (bilinear([(0, 1 << 30)], [(0, 0)]), "fraction"),
    "bilinear: less than nothing": (bilinear([(0, -1)], [(0, 0)]), "fraction"),
    "prelu: three rows": (eltwise(act="prelu", slope=np.zeros((3, 4), np.int64)), "slope"),
    "3 of 4 channels in a group": (grouped("bconv", 3, 4), ""),
    "3 channels from 2 groups": (grouped("conv", 2, 3), ""),
    "clamp: order": (eltwise(act="clamp", clamp=(5.0, 4.0)), "clamp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, words = REFUSED[name]
    model = make()
    with pytest.raises(bnn.FormatError, match=f"op 2 'it': .*{words}"):
        numerics.check(model)
    with pytest.raises(ValueError, match=r"op (2 )?'it': "):
        Engine(bnn.to_bytes(model))


HANDS_ON: dict[str, tuple[Callable[[Workbench], dict[str, Any]], bool]] = {
    "gather": (lambda b: {"weight": b.model.add_tensor(np.arange(12) % 4, "i32"), "pad_value": 10000.0}, True),
    "gather with too large a pad_value": (
        lambda b: {"weight": b.model.add_tensor(np.arange(12) % 4, "i32"), "pad_value": 20000.0},
        False,
    ),
    "gather with a residual": (
        lambda b: {"weight": b.model.add_tensor(np.arange(12) % 4, "i32"), "residual": b.stream},
        False,
    ),
    "concat": (lambda b: {"residual": b.stream}, True),
    "concat with step": (lambda b: {"residual": b.stream, "act": "step", "clamp": (-300.0, 300.0)}, True),
    "concat with a large step": (lambda b: {"residual": b.stream, "act": "step", "clamp": (-30000.0, 0.0)}, False),
    "maxpool with ceil": (lambda b: {"ceil": True}, True),
    "maxpool with a larger clamp": (lambda b: {"act": "clamp", "clamp": (2000.0, 30000.0)}, False),
    "channel_pad": (lambda b: {}, True),
    "avgpool": (lambda b: b.constants(scale=1, offset=0, shift=0), False),
    "eltwise": (lambda b: {}, False),
    "mul": (lambda b: {"residual": b.stream, **b.constants(scale=1, offset=0, shift=0)}, False),
}


@pytest.mark.parametrize("name", HANDS_ON)
def test_who_hands_a_bound_on(name: str) -> None:
    """After a clamp at 10 a convolution may have large weights, if what lies between leaves numbers as they are."""
    fields, allowed = HANDS_ON[name]
    b = Workbench(clamp=(-10, 10))
    kind = name.split()[0]
    channels = 8 if kind == "concat" else 4
    model = b.add(kind, b.stream, (channels, 4, 4), **fields(b))
    weight = model.add_tensor(np.full((1, 1, 1, channels), 32767 * 4 // channels), "i16")
    out = model.add_value("i16", 1, 4, 4)
    model.ops.append(
        bnn.Op("conv", "last", model.ops[2].out or 0, out=out, weight=weight, **b.constants(1, offset=0, shift=20))
    )  # type: ignore[arg-type]
    for load in (numerics.check, lambda m: Engine(bnn.to_bytes(m))):
        if allowed:
            load(model)
        else:
            with pytest.raises(ValueError, match=r"'last'.*32 bits"):
                load(model)
