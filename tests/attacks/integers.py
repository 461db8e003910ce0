"""Attacks on numerics integer (rule 21 of docs/format.md, all of docs/numerics.md): sums that could leave their bits,
and kinds, tensors and constants that integers do not have. Most files are a stem over 2 x 2 x 2 pixels, the op,
and to_float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ovsw import format as bnn

from attacks import Attack

R21 = "With numerics `integer`, everything that [numerics.md](numerics.md) bounds is within its bounds."
MEAN = "|mean[c]| <= 256."
KINDS = "`out` is `i16`, unless the text of the op says otherwise."
RESIDUAL = "`residual` is `i16` or `i32` and has the shape of the result;"
INPUT = "An input is `i16` where nothing else is said."
PIXELS = "No op but conv reads `u8`."
WHOLE = "`clamp_lo` and `clamp_hi` are whole numbers within -32768..32767."
SLOPE = "A prelu's `slope` (since format 1.2) is an `i16` tensor of shape [C'], in steps of 2^-14, or [2, C']"
TABLE = "The table t is the op's `slope`, an `i16` tensor of shape [257]."
NO_TABLE = "Ops with a `weight` (bconv, conv, linear, gather, bilinear) have no table."
NO_SIGMOID = "There is no sigmoid."
CONSTANTS = (
    "`scale` is an `i16` tensor, `offset` an `i32` tensor, `shift` a `u8` tensor, each of shape [C'] and present "
    "exactly where the op's formula has it (M, O and s below)."
)
BCONV, BCONV_SUM = "M >= 0, s <= 31.", "With K = window_h * window_w * C / g, every k has M * K + |O| <= 2^31 - 1."
PADDED = (
    "|p| <= 1024, and every k has (M + |N|) * K * max(1, ceil(|p|)) + |O| <= 2^31 - 1, or with a p that is no whole "
    "number, one less."
)
STEM_SHIFT = "the zero point in z. s <= 31."
STEM = (
    "Every k has 255 * A + B + |O| <= 2^31 - 1, where A is the sum of |weight| over all taps and channels and B that "
    "of |weight| * |z[c]|, divided by 256 and rounded up, plus 1."
)
CONV_SHIFT = "s <= 31. Every k has X * A + |O| <= 2^31 - 1"
CONV = "Every k has X * A + |O| <= 2^31 - 1, where X is the largest |x| that the op which wrote the input can store:"
WIDE = "`out` may be `i32`: then there is neither residual nor activation nor `bits`, and v = q."
LINEAR_SCALE = "`scale` is here an `f32` tensor of shape [1], finite and positive."
LINEAR_BARE = "There is neither residual nor activation nor `bits`. s <= 47."
LINEAR = "Every k has ((32768 * A) >> s) + 1 + |O| <= 2^31 - 1."
AVGPOOL_SHIFT = "Computed in 64 bits, s <= 47. N <= 65535, and every k has (32768 * N * |M| + |O|) / 2^s, rounded up"
AVGPOOL = "every k has (32768 * N * |M| + |O|) / 2^s, rounded up, <= 2^31 - 1 - 32768."
MUL_SHIFT, MUL = (
    "Computed in 64 bits, s <= 47.",
    "Every k has (2^30 * |M| + |O|) / 2^s, rounded up, <= 2^31 - 1 - 32768.",
)
MUL_KIND = "r is the element of `residual`, `i16`, of the input's shape or C x 1 x 1; nothing is added."
CONCAT_KIND = "r is the element of `residual`, `i16`; nothing is added."
GATHER = "`pad_value` is a whole number within -32768..32767."
SHARES = "row r + 1 or column s + 1 need not exist where f = 0, and must where f is not 0, also if G is."
SOFTMAX = "they read `f32`, from linear, to_float or one of themselves, and write `f32`."
TO_FLOAT = "`scale` and `offset` are `f64` tensors of shape [C'], and the op has both."
TO_FLOAT_BARE = "The result is `f32`. There is neither residual nor activation nor `bits`."
SUM = "|q| + |residual| <= 2^31 - 1."

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


def wide(offset: int) -> bnn.Model:
    """A conv that writes an i32, value 3, of at most `offset`."""
    m = stem()
    m.ops.append(bnn.Op("conv", "wide", 1, out=m.add_value("i32", *MAP)))
    give(m, m.ops[1], {"weight": (np.zeros((2, 1, 1, 2), int), "i16"), **sums(None, offset, 0)})
    return m


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


def attack(name: str, rule: str, change: str, model: bnn.Model) -> Attack:
    return Attack(f"integer-{name}", rule, change, lambda: bnn.to_bytes(model))


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
TABLE_OF = {"slope": (np.zeros(257, int), "i16")}
ATTACKS = [
    attack("mean", MEAN, "mean = 256.5", ended(stem(mean=256.5), 1)),
    attack("input-f32", R21, "value 0: kind = f32", retyped(ended(stem(), 1), 0, "f32")),
    attack("never-written", R21, "a value more", unwritten()),
    attack("std-length", R21, "std has 1 element", short_std()),
    attack("pool-of-pixels", PIXELS, "a maxpool reads the pixels", changed(one("maxpool"), input=0)),
    attack("eltwise-of-bits", INPUT, "an eltwise reads bits", changed(one("eltwise"), input=2)),
    attack("out-i32", KINDS, "a maxpool writes an i32", retyped(one("maxpool"), 3, "i32")),
    attack("out-f32", KINDS, "an eltwise writes f32", one("eltwise", kind_out="f32")),
    attack("stem-i32", WIDE, "a conv over pixels writes an i32", retyped(ended(stem(), 1), 1, "i32")),
    attack("residual-bits", RESIDUAL, "a residual of bits", one("eltwise", residual=2)),
    attack("clamp-part", WHOLE, "clamp_hi = 1.5", one("eltwise", act="clamp", clamp=(0.0, 1.5))),
    attack("clamp-lo-part", WHOLE, "clamp_lo = -0.5", one("eltwise", act="clamp", clamp=(-0.5, 1.0))),
    attack("clamp-32768", WHOLE, "clamp_hi = 32768", one("eltwise", act="clamp", clamp=(0.0, 32768.0))),
    attack("clamp-low", WHOLE, "clamp_lo = -32769", one("eltwise", act="clamp", clamp=(-32769.0, 0.0))),
    attack("step-part", WHOLE, "step: clamp_lo = 0.5", one("eltwise", act="step", clamp=(0.5, 1.0))),
    attack("slope-f32", SLOPE, "a slope of f32", one("eltwise", {"slope": (np.ones(2), "f32")}, act="prelu")),
    attack("slope-3", SLOPE, "a slope of 3 channels", one("eltwise", {"slope": (np.ones(3), "i16")}, act="prelu")),
    attack(
        "table-256", TABLE, "a table of 256 numbers", one("eltwise", {"slope": (np.zeros(256), "i16")}, act="table")
    ),
    attack(
        "table-conv",
        NO_TABLE,
        "a conv with a table",
        one("conv", {**sums(None, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i16"), **TABLE_OF}, act="table"),
    ),
    attack(
        "table-gather",
        NO_TABLE,
        "a gather with a table",
        one("gather", {"weight": (np.array((0, 1) * 3), "i32"), **TABLE_OF}, act="table"),
    ),
    attack(
        "table-bilinear",
        NO_TABLE,
        "a bilinear with a table",
        one("bilinear", {"weight": (np.array((0, 0, 1, 0) * 2), "i32"), **TABLE_OF}, act="table"),
    ),
    attack("sigmoid", NO_SIGMOID, "an eltwise with sigmoid", one("eltwise", act="sigmoid")),
    attack("scale-missing", CONSTANTS, "a bconv without a scale", without(binary(1, 0), "scale")),
    attack("offset-missing", CONSTANTS, "a conv without an offset", without(conv(1, 0), "offset")),
    attack("shift-missing", CONSTANTS, "a conv without a shift", without(conv(1, 0), "shift")),
    attack(
        "scale-conv",
        CONSTANTS,
        "a conv with a scale",
        one("conv", {**sums(1, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i16")}),
    ),
    attack("scale-maxpool", CONSTANTS, "a maxpool with a scale", one("maxpool", {"scale": (np.ones(2), "i16")})),
    attack("offset-eltwise", CONSTANTS, "an eltwise with an offset", one("eltwise", {"offset": (np.ones(2), "i32")})),
    attack(
        "shift-concat",
        CONSTANTS,
        "a concat with a shift",
        one("concat", {"shift": (np.ones(4), "u8")}, shape=(4, 2, 2), residual=1),
    ),
    attack(
        "scale-i32",
        CONSTANTS,
        "a scale of i32",
        one("mul", {**sums(1, 0, 0), "scale": (np.ones(2), "i32")}, residual=1),
    ),
    attack(
        "threshold-i32",
        "`threshold`, an `i16` tensor of shape [C'].",
        "a threshold of i32",
        with_bits(one("eltwise", {"threshold": (np.ones(2), "i32")})),
    ),
    attack(
        "weight-i32",
        "the weight an `i16` or `i8` tensor [C', window_h, window_w, C / g].",
        "weights of i32",
        one("conv", {**sums(None, 0, 0), "weight": (np.zeros((2, 1, 1, 2)), "i32")}),
    ),
    attack("bconv-scale", BCONV, "scale[1] = -1", binary(-1, 0)),
    attack("bconv-shift", BCONV, "shift[1] = 32", binary(1, 0, 32)),
    attack("bconv-sum", BCONV_SUM, "1000 * 18 + |offset| = 2^31", binary(1000, BINARY + 1)),
    attack("bconv-sum-negative", BCONV_SUM, "offset[1] = -2^31", binary(0, -(2**31))),
    attack("bconv-window-sum", PADDED, "2000 * 18 + |offset| = 2^31", binary(TWO, INT32 - 18 * 2000 + 1)),
    attack(
        "bconv-padded-sum",
        PADDED,
        "pad_value 2.5: 2000 * 18 * 3 + |offset| = 2^31 - 1",
        binary(TWO, PADDED_BINARY + 1, pad_value=2.5),
    ),
    attack("bconv-pad-value", PADDED, "pad_value = 1024.5", binary(1, 0, pad_value=1024.5)),
    attack("stem-shift", STEM_SHIFT, "shift[1] = 32", ended(stem(shift=32), 1)),
    attack("stem-sum", STEM, "255 + 1 + |offset| = 2^31", ended(stem(offset=INT32 - 256 + 1), 1)),
    attack(
        "stem-zero-point",
        STEM,
        "mean 1: 255 + 256 + |offset| = 2^31",
        ended(stem(mean=1.0, offset=INT32 - 255 - ZERO_POINT + 1), 1),
    ),
    attack(
        "stem-i8",
        STEM,
        "an i8 of 1: 255 * 256 + 1 + |offset| = 2^31",
        ended(stem(dtype="i8", offset=INT32 - 255 * 256), 1),
    ),
    attack("conv-shift", CONV_SHIFT, "shift[1] = 32", conv(1, 0, 32)),
    attack("conv-sum", CONV, "32768 + |offset| = 2^31", conv(1, INT32 - 32768 + 1)),
    attack(
        "conv-products",
        CONV,
        "32768 * (32768 + 32768) = 2^31",
        one("conv", {**sums(None, 0, 0), "weight": (np.full((2, 1, 1, 2), -32768), "i16")}),
    ),
    attack("conv-clamped", CONV, "X = 100: 100 + |offset| = 2^31", handed(INT32 - 99, "maxpool")),
    attack(
        "conv-gathered",
        "in a gather max(X, |`pad_value`|)",
        "pad_value 200: 200 + |offset| = 2^31",
        handed(INT32 - 199, "gather", -200.0),
    ),
    attack(
        "conv-not-handed",
        "32768 otherwise.",
        "an eltwise between: 32768 + |offset| > 2^31",
        handed(INT32 - 32767, "eltwise"),
    ),
    attack(
        "conv-of-a-sum",
        "with no activation, the X of their input for maxpool, channel_pad and gather without residual",
        "a maxpool with a residual: 32768 + |offset| > 2^31",
        handed(INT32 - 32767, "maxpool", residual=1),
    ),
    attack("wide-bits", WIDE, "an i32 and bits", with_bits(wide(0))),
    attack("wide-clamp", WIDE, "an i32 and a clamp", changed(wide(0), act="clamp", clamp=(0.0, 1.0))),
    attack("wide-residual", WIDE, "an i32 and a residual", changed(wide(0), residual=1)),
    attack("linear-scale-0", LINEAR_SCALE, "scale = 0", linear(1, 0, scale=0.0)),
    attack("linear-scale-nan", LINEAR_SCALE, "scale = NaN", linear(1, 0, scale=float("nan"))),
    attack(
        "linear-scales",
        LINEAR_SCALE,
        "a scale per class",
        one(
            "linear",
            {**sums(None, 0, 0), "weight": (np.zeros((2, 8)), "i16"), "scale": (np.ones(2), "f32")},
            "f32",
            (2, 1, 1),
        ),
    ),
    attack("linear-clamp", LINEAR_BARE, "a linear with a clamp", linear(1, 0, act="clamp", clamp=(0.0, 1.0))),
    attack("linear-bits", LINEAR_BARE, "a linear with bits", with_bits(linear(1, 0))),
    attack("linear-residual", LINEAR_BARE, "a linear with a residual", linear_residual()),
    attack("linear-shift", LINEAR_BARE, "shift[1] = 48", linear(1, 0, 48)),
    attack("linear-sum", LINEAR, "32768 + 1 + |offset| = 2^31", linear(1, INT32 - 32769 + 1)),
    attack("avgpool-shift", AVGPOOL_SHIFT, "shift[1] = 48", avgpool(1, 0, 48)),
    attack("avgpool-taps", AVGPOOL_SHIFT, "256 x 256 taps", large_pool(256, 256)),
    attack("avgpool-sum", AVGPOOL, "32768 + |offset| = 2^31 - 32768", avgpool(-1, INT32 - 65536 + 1)),
    attack("mul-shift", MUL_SHIFT, "shift[1] = 48", mul(1, 0, 48)),
    attack("mul-sum", MUL, "2^30 + |offset| = 2^31 - 32768", mul(-1, INT32 - 32768 - 2**30 + 1)),
    attack("mul-i32", MUL_KIND, "the second input of mul is i32", paired("mul")),
    attack("concat-i32", CONCAT_KIND, "the second input of concat is i32", paired("concat")),
    attack("pad-value-part", GATHER, "pad_value = 0.5", indexed("gather", pad_value=0.5)),
    attack("pad-value-32768", GATHER, "pad_value = 32768", indexed("gather", pad_value=32768.0)),
    attack(
        "bilinear-small-share", SHARES, "f = 1 behind the last row: G = 0", indexed("bilinear", 0, 0, 1, 1, 0, 0, 1, 0)
    ),
    attack("softmax-i16", SOFTMAX, "softmax reads i16", one("softmax", kind_out="f32")),
    attack("to-float-no-offset", TO_FLOAT, "to_float without an offset", without(one("eltwise"), "offset", -1)),
    attack("to-float-scale-f32", TO_FLOAT, "to_float with a scale of f32", narrow_scale()),
    attack("to-float-bits", TO_FLOAT_BARE, "to_float with bits", with_bits(one("eltwise"), -1)),
    attack("to-float-clamp", TO_FLOAT_BARE, "to_float with a clamp", logits_with(act="clamp", clamp=(0.0, 1.0))),
    attack("to-float-residual", TO_FLOAT_BARE, "to_float with a residual", logits_with(residual=1)),
    attack("sum-wide", SUM, "32768 + 2147450880 = 2^31", summed(INT32 - 32768 + 1)),
    attack("sum-clamped", SUM, "|q| + 100 = 2^31", added(INT32 - 100 + 1)),
]
