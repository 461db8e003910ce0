"""What came with format 1.2, in integer files: the last number that is allowed and the first that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn

from support.integers import INT32, Workbench
from support.second_reading import naive

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


def mul(*, m: int = 1, o: int = 0, s: int = 15, spot: bool = False) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        refs = b.constants(scale=m, offset=o, shift=s)
        return b.add("mul", b.stream, (4, 4, 4), bits=True, residual=b.spot if spot else b.stream, **refs)

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


def eltwise(source: str = "stream", residual: str | None = None, act: str = "none", **numbers: Any) -> Make:
    """`numbers` are constants of the op, but for `clamp`."""

    def make() -> bnn.Model:
        b = Workbench()
        fields: dict[str, Any] = {"clamp": numbers["clamp"]} if "clamp" in numbers else {}
        refs = b.constants(**{key: value for key, value in numbers.items() if key != "clamp"})
        if residual is not None:
            fields["residual"] = getattr(b, residual)
        at = getattr(b, source)
        return b.add("eltwise", at, b.model.values[at].shape, bits=True, act=act, **fields, **refs)

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


def to_float(**constants: Any) -> Make:
    def make() -> bnn.Model:
        b = Workbench()
        refs = b.constants(**constants)
        return b.add("to_float", b.stream, (4, 4, 4), **refs)

    return make


def grouped(
    kind: str, per_group: int, out: int, source: str = "stream", dilation: tuple[int, int] = (1, 1), p: float = 0.0
) -> Make:
    """With a pad_value also with a window scale."""

    def make() -> bnn.Model:
        b = Workbench()
        shape, rng = (out, 3, 3, per_group), np.random.default_rng(2)
        if kind == "bconv":
            weight = b.model.add_bits(rng.integers(0, 2, shape) > 0)
            both = np.array([[300] * out, np.arange(out) * 99 - 200])
            refs = b.constants(out, scale=both if p else both[0], offset=7, shift=1)
        else:
            weight = b.model.add_tensor(rng.integers(-99, 99, shape), "i16")
            refs = b.constants(out, offset=7, shift=8)
        pad: Any = (min(2, dilation[0]), min(2, dilation[1]))
        side = [4 + 2 * p - 2 * d for p, d in zip(pad, dilation)]
        fields = {**refs, "weight": weight, "window": (3, 3), "pad": pad, "dilation": dilation, "pad_value": p}
        at = b.bits if kind == "bconv" else getattr(b, source)
        return b.add(kind, at, (out, side[0], side[1]), bits=True, **fields)

    return make


TOP = INT32 - 32768  # of what mul and avgpool bound
ALLOWED: dict[str, Make] = {
    "bconv: (M + |N|) * K + |O|": bconv(m=32767, n=-32768, o=INT32 - 65535 * 36),
    "bconv: the same below zero": bconv(m=32767, n=32767, o=-(INT32 - 65534 * 36)),
    "bconv: a padding of -1": bconv(m=100, o=INT32 - 3600, p=-1.0),
    "bconv: half a padding": bconv(m=100, o=INT32 - 3600 - 1, p=0.5),
    "bconv: a padding of 2.5": bconv(m=100, n=-7, o=INT32 - 107 * 36 * 3 - 1, p=2.5),
    "bconv: a padding of 1024": bconv(m=30, n=-28, o=-(INT32 - 58 * 36 * 1024), p=-1024.0),
    "mul: the last number": mul(m=1, o=TOP - (1 << 30), s=0),
    "mul: the last number, shifted": mul(m=-3, o=-2 * (TOP - (3 << 29)), s=1),
    "mul: shift 47": mul(m=-32768, o=-7, s=47),
    "mul: one pixel": mul(m=-5, o=1 << 20, s=16, spot=True),
    "avgpool: padded": avgpool(4095, 12345, 8),
    "avgpool: without padding": avgpool(-4095, 12345, 8, exclude_pad=True),
    "avgpool: rounded up": avgpool(77, 3, 6, shape=(4, 2, 2), ceil=True, stride=(3, 3), pad=(0, 0)),
    "avgpool: windows of six and four": avgpool(
        1, 0, 2, shape=(4, 4, 4), window=(3, 3), stride=(1, 1), pad=(1, 1), exclude_pad=True
    ),
    "avgpool: the last number": avgpool(16383, TOP - (16383 << 17), 0),
    "gather: holes": gather([3, -1, 0], [0, -1, 3, 3], [2, -1], p=-32768.0),
    "gather: residual and act": gather([0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 1, 1], act="step", clamp=(5.0, -5.0)),
    "bilinear: the last row": bilinear([(3, 0), (2, (1 << 30) - 1), (2, 1)], [(0, 65535), (3, 0)]),
    "eltwise: one pixel added": eltwise(residual="spot"),
    "step: any levels": eltwise(act="step", clamp=(32767.0, -32768.0)),
    "prelu: two rows": eltwise(act="prelu", slope=np.array([[-32768] * 4, [32767, -32768, 0, 16384]])),
    "table": eltwise(act="table", slope=np.arange(257) * 255 - 32768),
    "table of extremes": eltwise(act="table", slope=np.where(np.arange(257) % 2, 32767, -32768)),
    "threshold": eltwise(threshold=np.array([-32768, -1, 1, 32767])),
    "concat": simple("concat", (8, 4, 4), residual="stream"),
    "to_float": to_float(scale=np.array([-0.1, 0.1, 1e-300, 1e30]), offset=np.array([0.5, -0.5, 1 / 3, 0.0])),
    "grouped bconv": grouped("bconv", 2, 6),
    "grouped bconv, padded, with a window scale": grouped("bconv", 2, 6, p=0.75),
    "depthwise bconv, dilated": grouped("bconv", 1, 4, dilation=(2, 1)),
    "grouped conv": grouped("conv", 2, 4),
    "depthwise conv, dilated": grouped("conv", 1, 8, dilation=(2, 2)),
    "grouped pixels": grouped("conv", 1, 4, source="pixels"),
}


def engine_outputs(model: bnn.Model, images: np.ndarray, isa: str) -> Any:
    return Engine(bnn.to_bytes(model), isa=isa).run(images)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_last_allowed_numbers(name: str, isa: str) -> None:
    model = ALLOWED[name]()
    images = np.random.default_rng(1).integers(0, 256, (2, 4, 4, 2), np.uint8)
    images[1, 1:] = 255
    values = numerics.simulate_values(model, images)
    for n, image in enumerate(images):
        for i, expected in naive(model, image).items():
            assert values[i][n].tolist() == np.array(expected).tolist(), i
    assert engine_outputs(model, images, isa).tobytes() == numerics.simulate(model, images).tobytes()


REFUSED: dict[str, tuple[Make, str]] = {
    "bconv: (M + |N|) * K + |O| is 2^31": (bconv(m=32767, n=-32768, o=INT32 - 65535 * 36 + 1), "channel 0 may reach"),
    "bconv: half a padding takes one more": (bconv(m=100, o=INT32 - 3600, p=0.5), "channel 0 may reach"),
    "bconv: a padding of 2.5 counts as 3": (bconv(m=100, n=-7, o=INT32 - 107 * 36 * 3, p=2.5), "channel 0 may reach"),
    "bconv: a padding of 1024": (bconv(m=30, n=-28, o=INT32 - 58 * 36 * 1024 + 1, p=1024.0), "channel 0 may reach"),
    "bconv: a padding of 1025": (bconv(p=1025.0), "pad_value"),
    "bconv: a padding of NaN": (bconv(p=float("nan")), "pad_value"),
    "bconv: a padding of infinity": (bconv(p=float("-inf")), "pad_value"),
    "bconv: negative M": (bconv(m=-1, n=1), "scale"),
    "bconv: padding as large as the window": (bconv(pad=(3, 3)), ""),
    "bconv: ceil": (bconv(ceil=True), "ceil"),
    "bconv: table": (bconv(act="table"), ""),
    "mul: the first number": (mul(m=1, o=TOP - (1 << 30) + 1, s=0), "channel 0 may reach"),
    "mul: shifted": (mul(m=-3, o=-2 * (TOP - (3 << 29)) - 1, s=1), "channel 0 may reach"),
    "mul: shift 48": (mul(s=48), "shift"),
    "mul: no second": (simple("mul"), ""),
    "mul: no constants": (simple("mul", residual="stream"), ""),
    "mul: bits": (simple("mul", residual="bits"), ""),
    "avgpool: the first number": (avgpool(16383, TOP - (16383 << 17) + 1, 0), "channel 0 may reach"),
    "avgpool: gaps": (avgpool(1, 0, 0, dilation=(2, 1)), ""),
    "avgpool: more than half": (avgpool(1, 0, 0, pad=(2, 1)), "half"),
    "maxpool: more than half": (simple("maxpool", (4, 5, 5), window=(3, 3), pad=(2, 2)), "half"),
    "maxpool: no tap inside": (simple("maxpool", (4, 1, 4), window=(2, 1), pad=(1, 0), dilation=(5, 1)), ""),
    "maxpool: exclude_pad": (simple("maxpool", exclude_pad=True), "exclude_pad"),
    "maxpool: one pixel added": (simple("maxpool", residual="spot"), ""),
    "eltwise: ceil": (simple("eltwise", ceil=True), ""),
    "eltwise: gaps": (simple("eltwise", dilation=(1, 2)), ""),
    "gather: a row too far": (gather([0], [4], [0]), "row"),
    "gather: a channel before the first": (gather([-2], [0], [0]), "channel"),
    "gather: half a number": (gather([0], [0], [0], p=0.5), "pad_value"),
    "gather: 17 bits": (gather([0], [0], [0], p=32768.0), "pad_value"),
    "gather: NaN": (gather([0], [0], [0], p=float("nan")), "pad_value"),
    "gather: no indices": (simple("gather"), ""),
    "bilinear: past the last row": (bilinear([(3, 1)], [(0, 0)]), "row"),
    "bilinear: past the last column": (bilinear([(0, 0)], [(4, 0)]), "column"),
    "bilinear: before the first": (bilinear([(-1, 0)], [(0, 0)]), "row"),
    "bilinear: all of the next": (bilinear([(0, 1 << 30)], [(0, 0)]), "fraction"),
    "bilinear: less than nothing": (bilinear([(0, -1)], [(0, 0)]), "fraction"),
    "step: half": (eltwise(act="step", clamp=(0.5, 1.0)), ""),
    "step: NaN": (eltwise(act="step", clamp=(float("nan"), 1.0)), ""),
    "step: 17 bits": (eltwise(act="step", clamp=(0.0, 32768.0)), ""),
    "sigmoid": (eltwise(act="sigmoid"), "sigmoid"),
    "table of 256": (eltwise(act="table", slope=np.arange(256)), "slope"),
    "no table": (eltwise(act="table"), "slope"),
    "prelu: three rows": (eltwise(act="prelu", slope=np.zeros((3, 4), np.int64)), "slope"),
    "threshold: shape": (eltwise(threshold=np.zeros(3, np.int64)), "threshold"),
    "threshold: f64": (eltwise(threshold=np.zeros(4)), "threshold"),
    "eltwise: scale": (eltwise(scale=1, offset=0, shift=0), ""),
    "concat: other rows": (simple("concat", (8, 4, 4), residual="spot"), ""),
    "concat: alone": (simple("concat"), ""),
    "concat: bits": (simple("concat", (8, 4, 4), residual="bits"), ""),
    "to_float: no offset": (to_float(scale=np.ones(4)), "offset"),
    "to_float: infinite": (to_float(scale=np.full(4, np.inf), offset=np.zeros(4)), "scale"),
    "softmax of integers": (simple("softmax", bits=False), ""),
    "3 of 4 channels in a group": (grouped("bconv", 3, 4), ""),
    "3 channels from 2 groups": (grouped("conv", 2, 3), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, words = REFUSED[name]
    model = make()
    with pytest.raises(bnn.FormatError, match=f"op 2 'it': .*{words}"):
        numerics.check(model)
    with pytest.raises(ValueError, match=r"op (2 )?'it': "):
        Engine(bnn.to_bytes(model))


def test_threshold_without_bits() -> None:
    b = Workbench()
    model = b.add("eltwise", b.stream, (4, 4, 4), **b.constants(threshold=3))
    for load in (numerics.check, lambda m: Engine(bnn.to_bytes(m))):
        with pytest.raises(ValueError, match=r"op 2 'it': .*threshold"):
            load(model)


@pytest.mark.parametrize("kind", ["softmax", "log_softmax", "to_float"])
@pytest.mark.parametrize("extra", ["bits", "activation", "residual"])
def test_what_writes_f32_has_nothing_else(kind: str, extra: str) -> None:
    b = Workbench()
    model = b.add("eltwise", b.stream, (4, 4, 4))
    source = b.stream if kind == "to_float" else model.output
    refs = b.constants(scale=np.ones(4), offset=np.zeros(4)) if kind == "to_float" else {}
    op = bnn.Op(kind, "last", source, out=model.add_value("f32", 4, 4, 4), **refs)  # type: ignore[arg-type]
    model.ops.append(op)
    model.output = op.out or 0
    numerics.check(model)
    Engine(bnn.to_bytes(model))
    if extra == "bits":
        op.bits = model.add_value("bits", 4, 4, 4)
    elif extra == "activation":
        op.act, op.clamp = "clamp", (-1.0, 1.0)
    else:
        op.residual = b.stream
    for load in (numerics.check, lambda m: Engine(bnn.to_bytes(m))):
        with pytest.raises(ValueError, match="op 4 'last': "):
            load(model)


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
