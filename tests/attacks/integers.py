"""Attacks on numerics integer (rule 21 of docs/format.md, all of docs/numerics.md): sums that could leave their bits,
and kinds, tensors and constants that integers do not have. Most files are a stem over 2 x 2 x 2 pixels, the op,
and to_float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ovsw import format as bnn

INT32 = 2**31 - 1
MAP = (2, 2, 2)
Tensors = dict[str, tuple[Any, str]]
STEM_OP, OP = 0, 1


def sums(scale: int | None, offset: int, shift: int, channels: int = 2) -> Tensors:
    """M, O and s; only the last channel has them, the others are harmless."""
    found: Tensors = {}
    for name, number, dtype in (("scale", scale, "i16"), ("offset", offset, "i32"), ("shift", shift, "u8")):
        if number is not None:
            found[name] = (np.array([0] * (channels - 1) + [number]), dtype)
    return found


def stem(mean: float = 0.0, weight: int = 1, offset: int = 0, shift: int = 0, dtype: str = "i16") -> bnn.Model:
    """A 1 x 1 convolution over pixels; value 1 is its map, value 2 their signs."""
    m = bnn.Model([bnn.Value("u8", *MAP)], [], [], output=0, mean=0, std=1, numerics="integer")
    m.add_tensor(np.full(2, mean))
    m.add_tensor(np.ones(2))
    m.ops.append(bnn.Op("conv", "stem", 0, out=m.add_value("i16", *MAP), bits=m.add_value("bits", *MAP)))
    weights = np.zeros((2, 1, 1, 2))
    weights[1, 0, 0, 1] = weight
    m.ops[0].weight = m.add_tensor(weights, dtype)
    give(m, m.ops[0], sums(None, offset, shift))
    return m


def give(m: bnn.Model, op: bnn.Op, tensors: Tensors) -> None:
    for name, (array, dtype) in tensors.items():
        ref = m.add_bits(np.asarray(array)) if dtype == "bits" else m.add_tensor(np.asarray(array), dtype)
        setattr(op, name, ref)


def ended(m: bnn.Model, value: int | None = None) -> bnn.Model:
    """With to_float as the last op."""
    value = len(m.values) - 1 if value is None else value
    shape = m.values[value].shape
    m.ops.append(bnn.Op("to_float", "logits", value, out=m.add_value("f32", *shape)))
    give(m, m.ops[-1], {"scale": (np.ones(shape[0]), "f64"), "offset": (np.zeros(shape[0]), "f64")})
    m.output = len(m.values) - 1
    return m


def one(kind: str, tensors: Tensors | None = None, kind_out: str = "i16", shape: Any = MAP, **fields: Any) -> bnn.Model:
    """The op between stem and to_float; it reads the stem's map, a bconv its signs."""
    m = stem(**fields.pop("first", {}))
    m.ops.append(bnn.Op(kind, "op", **{"input": 2 if kind == "bconv" else 1, **fields}))
    m.ops[OP].out = m.add_value(kind_out, *shape)
    give(m, m.ops[OP], tensors or {})
    if kind_out != "i16":
        m.output = len(m.values) - 1
        return m
    return ended(m)


def binary(scale: Any, offset: int, shift: int = 0, **fields: Any) -> bnn.Model:
    """A padded 3 x 3 bconv of two channels: K = 18."""
    tensors = {**sums(0, offset, shift), "weight": (np.ones((2, 3, 3, 2), np.bool_), "bits")}
    tensors["scale"] = (np.stack([np.zeros_like(scale), scale], -1), "i16")
    return one("bconv", tensors, window=(3, 3), pad=(1, 1), **fields)


def conv(weight: int, offset: int, shift: int = 0, **fields: Any) -> bnn.Model:
    weights = np.zeros((2, 1, 1, 2), int)
    weights[1, 0, 0, 1] = weight
    return one("conv", {**sums(None, offset, shift), "weight": (weights, "i16")}, **fields)


def linear(weight: int, offset: int, shift: int = 0, scale: float = 1.0, **fields: Any) -> bnn.Model:
    weights = np.zeros((2, 8), int)
    weights[1, 7] = weight
    tensors = {**sums(None, offset, shift), "weight": (weights, "i16"), "scale": (np.array([scale]), "f32")}
    return one("linear", tensors, "f32", (2, 1, 1), **fields)


def avgpool(scale: int, offset: int, shift: int = 0, **fields: Any) -> bnn.Model:
    return one("avgpool", sums(scale, offset, shift), **fields)


def large_pool(rows: int, columns: int) -> bnn.Model:
    """An avgpool of the whole of a large map."""
    m = stem()
    for value in m.values:
        value.h, value.w = rows, columns
    m.ops.append(bnn.Op("avgpool", "op", 1, out=m.add_value("i16", 2, 1, 1), window=(rows, columns)))
    give(m, m.ops[1], sums(0, 0, 0))
    return ended(m)


def mul(scale: int, offset: int, shift: int = 0, **fields: Any) -> bnn.Model:
    return one("mul", sums(scale, offset, shift), **{"residual": 1, **fields})


def wide(offset: int, tensors: Tensors | None = None, **fields: Any) -> bnn.Model:
    """A conv that writes an i32, value 3; its sums are at most `offset`."""
    m = stem()
    m.ops.append(bnn.Op("conv", "wide", 1, out=m.add_value("i32", *MAP), **fields))
    given = {"weight": (np.zeros((2, 1, 1, 2), int), "i16"), **sums(None, offset, 0), **(tensors or {})}
    give(m, m.ops[1], given)
    return m


def reading(
    kind: str, most: int, tensors: Tensors | None = None, kind_out: str = "i32", shape: Any = MAP, **fields: Any
) -> bnn.Model:
    """An op that reads an i32 of at most `most`, value 3, and writes value 4."""
    m = wide(most)
    m.ops.append(bnn.Op(kind, "op", 3, out=m.add_value(kind_out, *shape), **fields))
    give(m, m.ops[2], tensors or {})
    return m if kind_out == "f32" else ended(m)


def scaled(kind: str, scale: int, offset: int, shift: int, most: int, **fields: Any) -> bnn.Model:
    """An avgpool or mul of an i32."""
    return reading(kind, most, sums(scale, offset, shift), residual=1 if kind == "mul" else None, **fields)


def wide_binary(scale: Any, offset: int, dtype: str = "i32", **fields: Any) -> bnn.Model:
    """A bconv that writes an i32."""
    m = retyped(binary(np.zeros_like(scale), offset, **fields), 3, "i32")
    array = np.stack([np.zeros_like(scale), scale], -1).astype({"i16": "<i2", "i32": "<i4"}[dtype])
    m.tensors[m.ops[OP].scale or 0] = bnn.Tensor(dtype, array.shape, array)
    return m


def sum_of_prelu(slope: int, residual: int) -> bnn.Model:
    """A wide prelu of sums up to 2^30 - 1, and `residual` beside it."""
    m = wide(2**30 - 1, {"slope": (np.array([0, slope]), "i32")}, act="prelu")
    m.ops[0].act, m.ops[0].clamp = "clamp", (-float(residual), 0.0)
    m.ops.append(bnn.Op("eltwise", "sum", 3, residual=1, out=m.add_value("i32", *MAP)))
    return ended(m)


def summed(offset: int) -> bnn.Model:
    """An eltwise that adds an i32 of at most `offset`."""
    m = wide(offset)
    m.ops.append(bnn.Op("eltwise", "sum", 1, residual=3, out=m.add_value("i16", *MAP)))
    return ended(m)


def handed(offset: int, kind: str, pad: float = 0.0, **fields: Any) -> bnn.Model:
    """A stem that stores -100..99, `kind` that hands its map on, and a conv of the weight 1 over that."""
    m = stem()
    m.ops[0].act, m.ops[0].clamp = "clamp", (-100.0, 99.0)
    channels = {"channel_pad": 3, "concat": 4}.get(kind, 2)
    m.ops.append(bnn.Op(kind, "hands", 1, pad_value=pad, out=m.add_value("i16", channels, 2, 2), **fields))
    if kind == "gather":
        m.ops[1].weight = m.add_tensor(np.array([0, 1] * 3), "i32")
    m.ops.append(bnn.Op("conv", "reads", 3, out=m.add_value("i16", 2, 2, 2)))
    weights = np.zeros((2, 1, 1, channels), int)
    weights[1] = [[1] + [0] * (channels - 1)]
    give(m, m.ops[2], {"weight": (weights, "i16"), **sums(None, offset, 0)})
    return ended(m)


def added(offset: int) -> bnn.Model:
    """A conv with the |q| `offset` and a residual of -100..99."""
    m = stem()
    m.ops[0].act, m.ops[0].clamp = "clamp", (-100.0, 99.0)
    m.ops.append(bnn.Op("conv", "sum", 1, residual=1, out=m.add_value("i16", *MAP)))
    give(m, m.ops[1], {"weight": (np.zeros((2, 1, 1, 2), int), "i16"), **sums(None, offset, 0)})
    return ended(m)


def with_bits(m: bnn.Model, index: int = OP) -> bnn.Model:
    m.ops[index].bits = m.add_value("bits", *m.values[m.ops[index].out or 0].shape)
    return m


def changed(m: bnn.Model, index: int = OP, **fields: Any) -> bnn.Model:
    for name, value in fields.items():
        setattr(m.ops[index], name, value)
    return m


def retyped(m: bnn.Model, value: int, kind: str) -> bnn.Model:
    m.values[value].kind = kind
    return m


def indexed(kind: str, *numbers: int, **fields: Any) -> bnn.Model:
    return one(kind, {"weight": (np.array(numbers or (0, 1) * 3), "i32")}, **fields)


def without(m: bnn.Model, name: str, index: int = OP) -> bnn.Model:
    """Without one of an op's tensors, which is the last one of the file."""
    ref = getattr(m.ops[index], name)
    moved = len(m.tensors) - 1
    m.tensors[ref] = m.tensors[moved]
    m.tensors.pop()
    setattr(m.ops[index], name, None)
    for op in m.ops:
        for key in ("weight", "scale", "offset", "slope", "shift", "threshold"):
            if getattr(op, key) == moved:
                setattr(op, key, ref)
    return m


def logits_with(**fields: Any) -> bnn.Model:
    """The last op, to_float, with something more."""
    m = one("eltwise")
    for name, value in fields.items():
        setattr(m.ops[-1], name, value)
    return m


def paired(kind: str) -> bnn.Model:
    """Its second input is an i32."""
    m = wide(0)
    channels = 4 if kind == "concat" else 2
    m.ops.append(bnn.Op(kind, "op", 1, residual=3, out=m.add_value("i16", channels, 2, 2)))
    give(m, m.ops[2], {} if kind == "concat" else sums(1, 0, 0))
    return ended(m)


def linear_residual() -> bnn.Model:
    """Of a pixel that is there before it."""
    m = stem()
    m.ops.append(bnn.Op("maxpool", "pool", 1, window=(2, 2), out=m.add_value("i16", 2, 1, 1)))
    m.ops.append(bnn.Op("linear", "op", 1, residual=3, out=m.add_value("f32", 2, 1, 1)))
    give(m, m.ops[2], {**sums(None, 0, 0), "weight": (np.zeros((2, 8)), "i16"), "scale": (np.ones(1), "f32")})
    m.output = 4
    return m


def narrow_scale() -> bnn.Model:
    m = one("eltwise")
    ref = m.ops[-1].scale or 0
    m.tensors[ref] = bnn.Tensor("f32", (2,), np.ones(2, "<f4"))
    return m


def unwritten() -> bnn.Model:
    m = ended(stem(), 1)
    m.add_value("i16", *MAP)
    return m


def short_std() -> bnn.Model:
    m = ended(stem(), 1)
    m.tensors[1] = bnn.Tensor("f32", (1,), np.ones(1, "<f4"))
    return m


TWO = (1000, -1000)  # scale and window scale
BINARY, PADDED_BINARY = INT32 - 18 * 1000, INT32 - 1 - 18 * 2000 * 3  # the largest offsets beside 18 taps of these
ZERO_POINT = 1 + 65280 // 256  # of a mean of 1 and a weight of 1
WIDE = 2**30
INDICES: Tensors = {"weight": (np.array((0, 1) * 3), "i32")}
TABLE_OF: Tensors = {"slope": (np.zeros(257, int), "i16")}
ATTACKS: dict[str, bnn.Model] = {
    "mean": ended(stem(mean=256.5), 1),
    "input-f32": retyped(ended(stem(), 1), 0, "f32"),
    "never-written": unwritten(),
    "std-length": short_std(),
    "pool-of-pixels": changed(one("maxpool"), input=0),
    "eltwise-of-bits": changed(one("eltwise"), input=2),
    "out-f32": one("eltwise", kind_out="f32"),
    "residual-bits": one("eltwise", residual=2),
    "clamp-part": one("eltwise", act="clamp", clamp=(0.0, 1.5)),
    "clamp-lo-part": one("eltwise", act="clamp", clamp=(-0.5, 1.0)),
    "clamp-32768": one("eltwise", act="clamp", clamp=(0.0, 32768.0)),
    "clamp-low": one("eltwise", act="clamp", clamp=(-32769.0, 0.0)),
    "step-part": one("eltwise", act="step", clamp=(0.5, 1.0)),
    "slope-f32": one("eltwise", {"slope": (np.ones(2), "f32")}, act="prelu"),
    "slope-3": one("eltwise", {"slope": (np.ones(3), "i16")}, act="prelu"),
    "table-256": one("eltwise", {"slope": (np.zeros(256), "i16")}, act="table"),
    "table-conv": one("conv", {**sums(None, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i16"), **TABLE_OF}, act="table"),
    "table-gather": one("gather", {"weight": (np.array((0, 1) * 3), "i32"), **TABLE_OF}, act="table"),
    "round": one("round"),
    "table-bilinear": one("bilinear", {"weight": (np.array((0, 0, 1, 0) * 2), "i32"), **TABLE_OF}, act="table"),
    "sigmoid": one("eltwise", act="sigmoid"),
    "scale-missing": without(binary(1, 0), "scale"),
    "offset-missing": without(conv(1, 0), "offset"),
    "shift-missing": without(conv(1, 0), "shift"),
    "scale-conv": one("conv", {**sums(1, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i16")}),
    "scale-maxpool": one("maxpool", {"scale": (np.ones(2), "i16")}),
    "offset-eltwise": one("eltwise", {"offset": (np.ones(2), "i32")}),
    "shift-concat": one("concat", {"shift": (np.ones(4), "u8")}, shape=(4, 2, 2), residual=1),
    "scale-i32": one("mul", {**sums(1, 0, 0), "scale": (np.ones(2), "i32")}, residual=1),
    "threshold-i32": with_bits(one("eltwise", {"threshold": (np.ones(2), "i32")})),
    "weight-i32": one("conv", {**sums(None, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i32")}),
    "bconv-scale": binary(-1, 0),
    "bconv-shift": binary(1, 0, 32),
    "bconv-sum": binary(1000, BINARY + 1),
    "bconv-sum-negative": binary(0, -(2**31)),
    "bconv-window-sum": binary(TWO, INT32 - 18 * 2000 + 1),
    "bconv-padded-sum": binary(TWO, PADDED_BINARY + 1, pad_value=2.5),
    "bconv-pad-value": binary(1, 0, pad_value=1024.5),
    "stem-shift": ended(stem(shift=32), 1),
    "stem-sum": ended(stem(offset=INT32 - 256 + 1), 1),
    "stem-zero-point": ended(stem(mean=1.0, offset=INT32 - 255 - ZERO_POINT + 1), 1),
    "stem-i8": ended(stem(dtype="i8", offset=INT32 - 255 * 256), 1),
    "conv-shift": conv(1, 0, 32),
    "conv-sum": conv(1, INT32 - 32768 + 1),
    "conv-products": one("conv", {**sums(None, 0, 0), "weight": (np.full((2, 1, 1, 2), -32768), "i16")}),
    "conv-clamped": handed(INT32 - 99, "maxpool"),
    "conv-gathered": handed(INT32 - 199, "gather", -200.0),
    "conv-not-handed": handed(INT32 - 32767, "eltwise"),
    "conv-of-a-sum": handed(INT32 - 32767, "maxpool", residual=1),
    "conv-of-i32": reading("conv", 0, {**sums(None, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i16")}, window=(1, 1)),
    "linear-of-i32": reading(
        "linear",
        0,
        {**sums(None, 0, 0), "weight": (np.zeros((2, 8)), "i16"), "scale": (np.ones(1), "f32")},
        "f32",
        (2, 1, 1),
    ),
    "linear-i32": retyped(linear(1, 0), 3, "i32"),
    "to-float-i32": retyped(one("eltwise"), 4, "i32"),
    "wide-threshold-i16": with_bits(ended(wide(0, {"threshold": (np.ones(2), "i16")}))),
    "wide-clamp": ended(wide(0, act="clamp", clamp=(0.0, WIDE + 128.0))),
    "wide-clamp-low": ended(wide(0, act="clamp", clamp=(-WIDE - 128.0, 0.0))),
    "wide-clamp-part": ended(wide(0, act="clamp", clamp=(0.0, 0.5))),
    "wide-step": ended(wide(0, act="step", clamp=(WIDE + 128.0, 0.0))),
    "wide-table": reading("eltwise", 0, TABLE_OF, act="table"),
    "wide-slope-i16": ended(wide(0, {"slope": (np.ones(2), "i16")}, act="prelu")),
    "wide-prelu": ended(wide(WIDE, {"slope": (np.ones(2), "i32")}, act="prelu")),
    "wide-scale-i16": wide_binary(1, 0, "i16"),
    "wide-mul-scale-i32": reading("mul", 0, {**sums(1, 0, 0), "scale": (np.ones(2), "i32")}, residual=1),
    "wide-bconv-scale": wide_binary(-1, 0),
    "wide-bconv-sum": wide_binary(INT32 // 18, INT32 % 18 + 1),
    "wide-bconv-products": wide_binary((INT32, -INT32 - 1), 0, pad_value=1024.0),
    "linear-scale-0": linear(1, 0, scale=0.0),
    "linear-scale-nan": linear(1, 0, scale=float("nan")),
    "linear-scales": one(
        "linear",
        {**sums(None, 0, 0), "weight": (np.zeros((2, 8)), "i16"), "scale": (np.ones(2), "f32")},
        "f32",
        (2, 1, 1),
    ),
    "linear-clamp": linear(1, 0, act="clamp", clamp=(0.0, 1.0)),
    "linear-bits": with_bits(linear(1, 0)),
    "linear-residual": linear_residual(),
    "linear-shift": linear(1, 0, 48),
    "linear-sum": linear(1, INT32 - 32769 + 1),
    "avgpool-shift": avgpool(1, 0, 48),
    "avgpool-taps": large_pool(256, 256),
    "avgpool-sum": avgpool(-1, INT32 - 65536 + 1),
    "mul-shift": mul(1, 0, 48),
    "mul-sum": mul(-1, INT32 - 32768 - 2**30 + 1),
    "avgpool-of-i32-shift": scaled("avgpool", 1, 0, 63, 0),
    "avgpool-of-i32": scaled("avgpool", 2, 1, 1, INT32 - 65536 + 1),
    "mul-of-i32-shift": scaled("mul", 1, 0, 63, 0),
    "mul-of-i32": scaled("mul", 1, 1, 15, INT32 - 32770 + 1),
    "mul-i32": paired("mul"),
    "concat-i32": paired("concat"),
    "concat-of-i32-i16": reading("concat", 0, shape=(4, 2, 2), residual=1),
    "pad-value-part": indexed("gather", pad_value=0.5),
    "pad-value-32768": indexed("gather", pad_value=32768.0),
    "pad-value-of-i32": reading("gather", 0, INDICES, pad_value=WIDE + 128.0),
    "bilinear-small-share": indexed("bilinear", 0, 0, 1, 1, 0, 0, 1, 0),
    "softmax-i16": one("softmax", kind_out="f32"),
    "to-float-no-offset": without(one("eltwise"), "offset", -1),
    "to-float-scale-f32": narrow_scale(),
    "to-float-bits": with_bits(one("eltwise"), -1),
    "to-float-clamp": logits_with(act="clamp", clamp=(0.0, 1.0)),
    "to-float-residual": logits_with(residual=1),
    "sum-wide": summed(INT32 - 32768 + 1),
    "sum-clamped": added(INT32 - 100 + 1),
    "sum-of-i32": reading("eltwise", INT32 - 32768 + 1, residual=1),
    "sum-of-gathered": reading("gather", INT32 - WIDE + 1, INDICES, pad_value=-float(WIDE), residual=3),
    "sum-of-prelu": sum_of_prelu(-(2**31), 1),
}
