"""Attacks on graphs (rules 15 to 20 of docs/format.md): well-formed files of numerics float whose ops do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn

from attacks import Attack
from attacks.container import row
from support.models import small_model

R15 = "Ops are in order: what an op reads is value 0 or was written by an op before it."
R15B, R15C = "No value is written twice.", "Every value is written."
R16 = "Outputs are `f32`."
R16B = "Value 0 is `f32` with numerics `float` and `u8` with numerics `integer`."
R16C = "What an op reads and writes has the kind and the shape that [the op](#what-an-op-computes) gives it."
R17 = "An op has the tensors that its kind and activation take, with their dtype and shape, and no others."
R17B = "With numerics `float` it has both of `scale` and `offset` or none."
R17C = "Its activation is one that its kind and the numerics allow."
R17D = "Groups divide both numbers of channels."
R17E = "The indices of gather and bilinear are inside the input, and their fractions less than 2^30."
R18 = "Windows and strides are at least 1, and windows keep to the limits."
R18B = "Padding, dilation and what the window covers keep to the rules under [Windows](#windows)."
R18C = "Other ops have window 1, stride 1, padding 0 and no gaps; avgpool has no gaps either."
R18D = "`ceil` is set in maxpool and avgpool only, `exclude_pad` in avgpool only."
R18E = "Ops other than channel_pad have no channels to pad."
R18F = "`pad_value` is finite, and in a bconv at most 1024 in size."
R19, R19B = "For clamp, `clamp_lo` <= `clamp_hi`.", "For step, both are finite."
R19C = "So neither is NaN."
R20 = "`mean` and `std` are `f32` tensors with one element per input channel, and `std` is positive."
R20B, R20C = "All elements of `f32` and `f64` tensors are finite.", "Every tensor is referred to exactly once."
SMALLER = "The padding of bconv and conv is smaller than what the window covers: `pad` < e."
HALF = "That of the pools is at most half of the window: 2 * `pad` <= `window`."
COVERS = (
    "What the window covers is not larger than the padded map, also with `ceil`: e_h <= H + 2 * `pad_h`, "
    "e_w <= W + 2 * `pad_w`."
)
DILATED = (
    "Where a maxpool is padded its dilation is at most the side of the map: d_h <= H if `pad_h` > 0, d_w <= W if "
    "`pad_w` > 0."
)
BARE = (
    "softmax, log_softmax and to_float have neither `residual` nor `bits` nor an activation, and of them only to_float "
    "has `scale` and `offset`."
)

NAN, INF = float("nan"), float("inf")
MAP = (4, 3, 3)
INDICES, PAIRS = [*range(4), *range(3), *range(3)], [0, 0] * 6
Tensors = dict[str, tuple[Any, str]]


def one(kind: str, tensors: Tensors | None = None, out: Any = MAP, **fields: Any) -> bnn.Model:
    """One op on a 4 x 3 x 3 input; `tensors` are arrays with their dtypes."""
    m = small_model(kind, MAP, **fields)
    m.values[1] = bnn.Value("f32", *out)
    for name, (array, dtype) in (tensors or {}).items():
        ref = m.add_bits(np.asarray(array)) if dtype == "bits" else m.add_tensor(np.asarray(array), dtype)
        setattr(m.ops[0], name, ref)
    return m


def binary(per_group: int = 4, out: int = 4, window: tuple[int, int] = (3, 3), **fields: Any) -> bnn.Model:
    """Signs of the input, and a bconv of them."""
    m = one("eltwise")
    m.ops[0].out, m.ops[0].bits = None, 1
    m.values[1].kind = "bits"
    op = bnn.Op("bconv", "binary", 1, window=window, **{"pad": (1, 1), **fields})
    op.weight = m.add_bits(np.ones((out, *window, per_group), np.bool_))
    op.out = m.output = m.add_value("f32", out, 3, 3)
    m.ops.append(op)
    return m


def chain(**fields: Any) -> bnn.Model:
    """Two ops; `fields` are of the second."""
    m = one("eltwise")
    m.ops.append(bnn.Op("eltwise", "second", 1, **{"out": m.add_value("f32", *MAP), **fields}))
    m.output = 2
    return m


def after(model: bnn.Model, kind: str, shape: tuple[int, int, int] = MAP, **fields: Any) -> bnn.Model:
    """One op more; it reads the input and, as its residual, value 1."""
    model.ops.append(
        bnn.Op(kind, "second", **{"input": 0, "residual": 1, **fields}, out=model.add_value("f32", *shape))
    )
    return model


def pooled(rows: int, columns: int) -> bnn.Model:
    """An avgpool of so many rows and columns; value 1 is what is left."""
    return one("avgpool", window=(rows, columns), out=(4, 4 - rows, 4 - columns))


def ones(*shape: int) -> tuple[np.ndarray, str]:
    return np.ones(shape), "f32"


def doubles(*shape: int) -> tuple[np.ndarray, str]:
    return np.ones(shape), "f64"


def indices(*numbers: int, dtype: str = "i32") -> Tensors:
    return {"weight": (np.array(numbers), dtype)}


def edited(model: bnn.Model, edit: Callable[[bnn.Model], object]) -> bnn.Model:
    edit(model)
    return model


def attack(name: str, rule: str, change: str, model: bnn.Model) -> Attack:
    return Attack(name, rule, change, lambda: bnn.to_bytes(model))


def signs_out() -> bnn.Model:
    """An op that writes bits, the only output."""
    m = one("eltwise", out=MAP, bits=2)
    m.add_value("bits", *MAP)
    m.output = 2
    return m


def all_values_read() -> bnn.Model:
    m = one("eltwise")
    m.add_value("f32", *MAP)
    return m


def wide_input() -> bnn.Model:
    return small_model("eltwise", (1025, 1, 1))


def linear(features: tuple[int, int, int], weights: int = 1) -> bnn.Model:
    """A linear layer over the input. Beyond the limit of features its weight is not looked at, and is small."""
    m = small_model("linear", features)
    m.values[1] = bnn.Value("f32", 1, 1, 1)
    m.ops[0].weight = m.add_tensor(np.zeros((1, weights)))
    return m


def many_taps() -> bnn.Model:
    """255 x 255 x 15379 = 1000019475 taps; beyond the limit the weight is not looked at, and is small."""
    m = small_model("channel_pad", (1, 1, 1))
    m.ops[0].channels, m.values[1] = (0, 15378), bnn.Value("f32", 15379, 1, 1)
    m.ops.append(bnn.Op("conv", "wide", 1, out=m.add_value("f32", 1, 1, 1), window=(255, 255), pad=(127, 127)))
    m.ops[1].weight = m.add_tensor(np.zeros(1))
    m.output = 2
    return m


def bits_of(kind: str, **fields: Any) -> bnn.Model:
    m = one(kind, **fields)
    m.ops[0].bits = m.add_value("bits", *MAP)
    return m


def negative_std(value: float) -> bnn.Model:
    m = one("eltwise")
    m.tensors[1].array = np.array([1, 1, 1, value], "<f4")
    return m


def not_finite(key: str) -> bnn.Model:
    m = one("eltwise", {"scale": doubles(4), "offset": doubles(4), "slope": ones(4)}, act="prelu")
    array = m.tensors[getattr(m.ops[0], key)].array
    array[-1] = INF if key == "scale" else NAN
    return m


def swapped(m: bnn.Model) -> None:
    m.ops.reverse()


def repeated(m: bnn.Model) -> None:
    m.ops.append(m.ops[0])


TAPS = ("conv", {"weight": ones(4, 3, 3, 4)})
ATTACKS = [
    attack("ops-reversed", R15, "the second op comes first", edited(chain(), swapped)),
    attack("reads-itself", R15, "op 1: residual = its own out", chain(residual=2)),
    attack("written-twice", R15B, "the only op is there twice", edited(one("eltwise"), repeated)),
    attack(
        "input-written",
        R15B,
        "op 1: out = 0",
        edited(chain(out=0), lambda m: (m.values.pop(), setattr(m, "output", 1))),
    ),
    attack("out-is-bits", R15B, "op 1: bits = its out", chain(bits=2)),
    attack("never-written", R15C, "a value more", all_values_read()),
    attack("output-bits", R16, "output = a value of bits", signs_out()),
    attack(
        "input-bits",
        R16B,
        "value 0: kind = bits",
        edited(one("eltwise"), lambda m: setattr(m.values[0], "kind", "bits")),
    ),
    attack("input-channels-1025", row("input_channels"), "value 0: c = 1025", wide_input()),
    attack("bconv-of-f32", R16C, "a bconv reads f32", edited(binary(), lambda m: setattr(m.ops[1], "input", 0))),
    attack("pool-of-bits", R16C, "an eltwise reads bits", after(binary(), "eltwise", input=1, residual=None)),
    attack(
        "residual-of-bits", R16C, "a residual of bits", edited(binary(), lambda m: setattr(m.ops[1], "residual", 1))
    ),
    attack("out-kind", R16C, "out = a value of bits", edited(chain(), lambda m: setattr(m.values[1], "kind", "bits"))),
    *(
        attack(
            f"out-{side}",
            R16C,
            f"out: {side} = 5",
            edited(one("eltwise"), lambda m, s=side: setattr(m.values[1], s, 5)),
        )
        for side in "chw"
    ),
    attack(
        "bits-kind",
        R16C,
        "bits = a value of f32",
        edited(one("eltwise"), lambda m: (setattr(m.ops[0], "bits", 1), setattr(m.ops[0], "out", None))),
    ),
    attack(
        "no-output", R16C, "an op that writes nothing", edited(one("eltwise"), lambda m: setattr(m.ops[0], "out", None))
    ),
    attack(
        "gather-no-output",
        R16C,
        "a gather that writes nothing",
        edited(one("gather", indices(*INDICES)), lambda m: setattr(m.ops[0], "out", None)),
    ),
    attack("residual-c", R16C, "a residual of 8 x 3 x 3", after(one("concat", residual=0, out=(8, 3, 3)), "eltwise")),
    attack("residual-pixel", R16C, "a residual of one pixel, of a maxpool", after(pooled(3, 3), "maxpool")),
    attack("residual-row", R16C, "a residual of one row, of an eltwise", after(pooled(3, 1), "eltwise")),
    attack("residual-column", R16C, "a residual of one column, of an eltwise", after(pooled(1, 3), "eltwise")),
    attack("concat-rows", R16C, "concat of 3 rows and 1", after(pooled(3, 1), "concat", (8, 3, 3))),
    attack("concat-columns", R16C, "concat of 3 columns and 1", after(pooled(1, 3), "concat", (8, 3, 3))),
    attack("concat-alone", R16C, "concat without a second input", one("concat", out=(8, 3, 3))),
    attack("mul-alone", R16C, "mul without a second input", one("mul")),
    attack("bilinear-channels", R16C, "bilinear with other channels", one("bilinear", indices(*PAIRS), out=(5, 3, 3))),
    attack(
        "to-float-in-float",
        "With numerics `integer` only, see [numerics.md](numerics.md).",
        "to_float with numerics float",
        one("to_float", {"scale": doubles(4), "offset": doubles(4)}),
    ),
    attack("conv-no-weight", R17, "a conv without a weight", one("conv")),
    attack("gather-no-weight", R17, "a gather without indices", one("gather")),
    attack("pool-weight", R17, "a maxpool with a weight", one("maxpool", {"weight": ones(4)})),
    attack("weight-dtype", R17, "a conv with weights of f64", one("conv", {"weight": doubles(4, 1, 1, 4)})),
    attack(
        "bconv-weight-dtype",
        R17,
        "a bconv with weights of f32",
        edited(
            binary(), lambda m: m.tensors.__setitem__(2, bnn.Tensor("f32", (4, 3, 3, 4), np.ones((4, 3, 3, 4), "<f4")))
        ),
    ),
    attack("weight-rank", R17, "a conv with weights of rank 2", one("conv", {"weight": ones(4, 4)})),
    attack("weight-window", R17, "a 1 x 1 conv with 3 x 1 weights", one("conv", {"weight": ones(4, 3, 1, 4)})),
    attack("linear-weight", R17, "a linear of 36 features with 35 weights", linear(MAP, 35)),
    attack("gather-dtype", R17, "a gather with indices of f32", one("gather", indices(*INDICES, dtype="f32"))),
    attack("gather-length", R17, "a gather with 9 of 10 indices", one("gather", indices(*INDICES[:-1]))),
    attack("bilinear-length", R17, "a bilinear with 10 of 12 numbers", one("bilinear", indices(*PAIRS[:-2]))),
    attack("scale-dtype", R17, "a scale of f32", one("eltwise", {"scale": ones(4), "offset": doubles(4)})),
    attack("scale-length", R17, "a scale of 3 channels", one("eltwise", {"scale": doubles(3), "offset": doubles(4)})),
    attack(
        "scale-rows",
        R17,
        "an eltwise with two rows of scale",
        one("eltwise", {"scale": doubles(2, 4), "offset": doubles(4)}),
    ),
    attack(
        "offset-rows",
        R17,
        "an eltwise with two rows of offset",
        one("eltwise", {"scale": doubles(4), "offset": doubles(2, 4)}),
    ),
    attack(
        "bconv-scale-rows",
        R17,
        "a bconv with three rows of scale",
        edited(
            binary(),
            lambda m: (
                setattr(m.ops[1], "scale", m.add_tensor(np.ones((3, 4)), "f64")),
                setattr(m.ops[1], "offset", m.add_tensor(np.ones(4), "f64")),
            ),
        ),
    ),
    attack("prelu-no-slope", R17, "prelu without a slope", one("eltwise", act="prelu")),
    attack("slope-rows", R17, "prelu with three rows of slope", one("eltwise", {"slope": ones(3, 4)}, act="prelu")),
    attack(
        "slope-no-prelu",
        "`slope` is an `f32` tensor, and only prelu has it.",
        "a slope without prelu",
        one("eltwise", {"slope": ones(4)}),
    ),
    attack(
        "threshold-no-bits",
        "`threshold` is an `f32` tensor of shape [C'], which any op with `bits` may have, and no other.",
        "a threshold without bits",
        one("eltwise", {"threshold": ones(4)}),
    ),
    attack(
        "threshold-dtype",
        R17,
        "a threshold of f64",
        edited(bits_of("eltwise"), lambda m: setattr(m.ops[0], "threshold", m.add_tensor(np.ones(4), "f64"))),
    ),
    attack(
        "softmax-scale",
        BARE,
        "softmax with scale and offset",
        one("softmax", {"scale": doubles(4), "offset": doubles(4)}),
    ),
    attack("softmax-residual", BARE, "softmax with a residual", one("softmax", residual=0)),
    attack("softmax-bits", BARE, "softmax with bits", bits_of("softmax")),
    attack("log-softmax-clamp", BARE, "log_softmax with a clamp", one("log_softmax", act="clamp", clamp=(0.0, 1.0))),
    attack("scale-alone", R17B, "a scale without offset", one("eltwise", {"scale": doubles(4)})),
    attack("offset-alone", R17B, "an offset without scale", one("eltwise", {"offset": doubles(4)})),
    attack(
        "table-in-float",
        R17C,
        "a table with numerics float",
        one("eltwise", {"slope": (np.zeros(257), "i16")}, act="table"),
    ),
    attack("groups-of-3", R17D, "a conv of 4 channels with weights for 3", one("conv", {"weight": ones(4, 1, 1, 3)})),
    attack(
        "groups-out", R17D, "2 groups for 3 output channels", one("conv", {"weight": ones(3, 1, 1, 2)}, out=(3, 3, 3))
    ),
    attack("gather-channel", R17E, "channel 4 of 4", one("gather", indices(4, *INDICES[1:]))),
    attack("gather-row", R17E, "row -2", one("gather", indices(*INDICES[:4], -2, *INDICES[5:]))),
    attack("gather-column", R17E, "column 3 of 3", one("gather", indices(*INDICES[:-1], 3))),
    attack("bilinear-row", R17E, "row 3 of 3", one("bilinear", indices(3, *PAIRS[1:]))),
    attack("bilinear-row-negative", R17E, "row -1", one("bilinear", indices(-1, *PAIRS[1:]))),
    attack(
        "bilinear-next-row",
        "Otherwise both rows, or columns, are inside X.",
        "between row 2 of 3 and the next",
        one("bilinear", indices(2, 1, *PAIRS[2:])),
    ),
    attack("bilinear-column", R17E, "column 3 of 3", one("bilinear", indices(*PAIRS[:-2], 3, 0))),
    attack("bilinear-share", R17E, "a fraction of 2^30", one("bilinear", indices(0, 1 << 30, *PAIRS[2:]))),
    attack("bilinear-share-negative", R17E, "a fraction of -1", one("bilinear", indices(*PAIRS[:-1], -1))),
    attack("window-0", R18, "a maxpool of 0 x 1", one("maxpool", window=(0, 1))),
    attack("window-w-0", R18, "a maxpool of 1 x 0", one("maxpool", window=(1, 0))),
    attack("window-256", row("window"), "a maxpool of 256 x 1", one("maxpool", window=(256, 1))),
    attack("window-w-256", row("window"), "a maxpool of 1 x 256", one("maxpool", window=(1, 256))),
    attack("stride-0", R18, "a stride of 0 x 1", one("maxpool", stride=(0, 1))),
    attack("stride-w-0", R18, "a stride of 1 x 0", one("maxpool", stride=(1, 0))),
    attack(
        "conv-padding", SMALLER, "a 3 x 3 conv padded by 3 x 0", one(*TAPS, window=(3, 3), pad=(3, 0), out=(4, 7, 1))
    ),
    attack(
        "conv-padding-w", SMALLER, "a 3 x 3 conv padded by 0 x 3", one(*TAPS, window=(3, 3), pad=(0, 3), out=(4, 1, 7))
    ),
    attack(
        "pool-padding",
        HALF,
        "a 3 x 3 avgpool padded by 2 x 0",
        one("avgpool", window=(3, 3), pad=(2, 0), out=(4, 5, 1)),
    ),
    attack(
        "pool-padding-w",
        HALF,
        "a 3 x 3 maxpool padded by 0 x 2",
        one("maxpool", window=(3, 3), pad=(0, 2), out=(4, 1, 5)),
    ),
    attack(
        "window-covers",
        COVERS,
        "a 4 x 1 maxpool of 3 rows",
        one("maxpool", window=(4, 1), ceil=True, stride=(2, 1), out=(4, 1, 3)),
    ),
    attack(
        "window-covers-w",
        R18B,
        "2 taps with a dilation of 3 over 3 columns",
        one("conv", {"weight": ones(4, 1, 2, 4)}, window=(1, 2), dilation=(1, 3), out=(4, 3, 1)),
    ),
    attack(
        "pool-outside",
        DILATED,
        "2 taps, padding 1 and dilation 4 over 3 rows",
        one("maxpool", window=(2, 1), pad=(1, 0), dilation=(4, 1), out=(4, 1, 3)),
    ),
    attack(
        "pool-outside-w",
        DILATED,
        "2 taps, padding 1 and dilation 4 over 3 columns",
        one("maxpool", window=(1, 2), pad=(0, 1), dilation=(1, 4), out=(4, 3, 1)),
    ),
    *(
        attack(f"eltwise-{what}", R18C, f"an eltwise with {what} {pair}", one("eltwise", **{what: pair}))
        for what, pair in (("window", (2, 1)), ("stride", (1, 2)), ("pad", (1, 0)), ("dilation", (1, 2)))
    ),
    *(
        attack(f"eltwise-{what}-2", R18C, f"an eltwise with {what} {pair}", one("eltwise", **{what: pair}))
        for what, pair in (("window", (1, 2)), ("stride", (2, 1)), ("pad", (0, 1)), ("dilation", (2, 1)))
    ),
    attack("avgpool-gaps", R18C, "an avgpool with a dilation of 2 x 1", one("avgpool", dilation=(2, 1))),
    attack("bconv-ceil", R18D, "a bconv with ceil", binary(ceil=True)),
    attack("maxpool-exclude-pad", R18D, "a maxpool with exclude_pad", one("maxpool", exclude_pad=True)),
    attack(
        "eltwise-channels",
        R18E,
        "an eltwise that pads one channel before",
        one("eltwise", channels=(1, 0), out=(5, 3, 3)),
    ),
    attack(
        "eltwise-channels-after",
        R18E,
        "an eltwise that pads one channel after",
        one("eltwise", channels=(0, 1), out=(5, 3, 3)),
    ),
    attack("pad-value-nan", R18F, "a gather with a pad_value of NaN", one("gather", indices(*INDICES), pad_value=NAN)),
    attack(
        "pad-value-inf", R18F, "a gather with a pad_value of infinity", one("gather", indices(*INDICES), pad_value=INF)
    ),
    attack("pad-value-1025", R18F, "a bconv with a pad_value of 1025", binary(pad_value=1025.0)),
    attack("pad-value-minus-1025", R18F, "a bconv with a pad_value of -1025", binary(pad_value=-1025.0)),
    attack("clamp-reversed", R19, "clamp_lo = 1, clamp_hi = -1", one("eltwise", act="clamp", clamp=(1.0, -1.0))),
    attack("clamp-nan", R19C, "clamp_lo = NaN", one("eltwise", act="clamp", clamp=(NAN, 1.0))),
    attack("step-inf", R19B, "step: clamp_lo = -infinity", one("eltwise", act="step", clamp=(-INF, 1.0))),
    attack("step-nan", R19B, "step: clamp_hi = NaN", one("eltwise", act="step", clamp=(0.0, NAN))),
    attack(
        "mean-dtype",
        R20,
        "mean is f64",
        edited(one("eltwise"), lambda m: m.tensors.__setitem__(0, bnn.Tensor("f64", (4,), np.zeros(4)))),
    ),
    attack("mean-rank", R20, "mean is 4 x 1", edited(one("eltwise"), lambda m: setattr(m.tensors[0], "shape", (4, 1)))),
    attack(
        "std-length",
        R20,
        "std has 3 elements",
        edited(one("eltwise"), lambda m: m.tensors.__setitem__(1, bnn.Tensor("f32", (3,), np.ones(3, "<f4")))),
    ),
    attack("std-0", R20, "std[3] = 0", negative_std(0.0)),
    attack("std-inf", R20B, "std[3] = infinity", negative_std(INF)),
    attack(
        "mean-nan",
        R20B,
        "mean[0] = NaN",
        edited(one("eltwise"), lambda m: setattr(m.tensors[0], "array", np.array([NAN, 0, 0, 0], "<f4"))),
    ),
    *(
        attack(f"{key}-not-finite", R20B, f"the last {key} is not finite", not_finite(key))
        for key in ("scale", "offset", "slope")
    ),
    attack("weight-nan", R20B, "a weight is NaN", one("conv", {"weight": (np.full((4, 1, 1, 4), NAN), "f32")})),
    attack(
        "tensor-unused",
        R20C,
        "a tensor that nobody refers to",
        edited(one("eltwise"), lambda m: m.add_tensor(np.ones(4))),
    ),
    attack(
        "tensor-twice",
        R20C,
        "scale and offset are one tensor",
        edited(one("eltwise", {"scale": doubles(4)}), lambda m: setattr(m.ops[0], "offset", 2)),
    ),
    attack(
        "mean-is-std",
        R20C,
        "mean and std are one tensor",
        edited(one("eltwise"), lambda m: (m.tensors.pop(0), setattr(m, "std", 0))),
    ),
    attack("features", row("features"), "a linear of 17 x 61681 features", linear((1, 17, 61681))),
    attack("taps", row("taps"), "a conv of 255 x 255 x 15379 taps", many_taps()),
]
