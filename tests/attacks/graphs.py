"""Attacks on graphs (rules 15 to 20 of docs/format.md): well-formed files of numerics float whose ops do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn

from support.models import small_model

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
ATTACKS: dict[str, bnn.Model] = {
    "ops-reversed": edited(chain(), swapped),
    "reads-itself": chain(residual=2),
    "written-twice": edited(one("eltwise"), repeated),
    "input-written": edited(chain(out=0), lambda m: (m.values.pop(), setattr(m, "output", 1))),
    "out-is-bits": chain(bits=2),
    "never-written": all_values_read(),
    "output-bits": signs_out(),
    "input-bits": edited(one("eltwise"), lambda m: setattr(m.values[0], "kind", "bits")),
    "input-channels-1025": wide_input(),
    "bconv-of-f32": edited(binary(), lambda m: setattr(m.ops[1], "input", 0)),
    "pool-of-bits": after(binary(), "eltwise", input=1, residual=None),
    "residual-of-bits": edited(binary(), lambda m: setattr(m.ops[1], "residual", 1)),
    "out-kind": edited(chain(), lambda m: setattr(m.values[1], "kind", "bits")),
    **{f"out-{side}": edited(one("eltwise"), lambda m, s=side: setattr(m.values[1], s, 5)) for side in "chw"},
    "bits-kind": edited(one("eltwise"), lambda m: (setattr(m.ops[0], "bits", 1), setattr(m.ops[0], "out", None))),
    "no-output": edited(one("eltwise"), lambda m: setattr(m.ops[0], "out", None)),
    "gather-no-output": edited(one("gather", indices(*INDICES)), lambda m: setattr(m.ops[0], "out", None)),
    "residual-c": after(one("concat", residual=0, out=(8, 3, 3)), "eltwise"),
    "residual-pixel": after(pooled(3, 3), "maxpool"),
    "residual-row": after(pooled(3, 1), "eltwise"),
    "residual-column": after(pooled(1, 3), "eltwise"),
    "concat-rows": after(pooled(3, 1), "concat", (8, 3, 3)),
    "concat-columns": after(pooled(1, 3), "concat", (8, 3, 3)),
    "concat-alone": one("concat", out=(8, 3, 3)),
    "mul-alone": one("mul"),
    "bilinear-channels": one("bilinear", indices(*PAIRS), out=(5, 3, 3)),
    "to-float-in-float": one("to_float", {"scale": doubles(4), "offset": doubles(4)}),
    "conv-no-weight": one("conv"),
    "gather-no-weight": one("gather"),
    "pool-weight": one("maxpool", {"weight": ones(4)}),
    "weight-dtype": one("conv", {"weight": doubles(4, 1, 1, 4)}),
    "bconv-weight-dtype": edited(
        binary(), lambda m: m.tensors.__setitem__(2, bnn.Tensor("f32", (4, 3, 3, 4), np.ones((4, 3, 3, 4), "<f4")))
    ),
    "weight-rank": one("conv", {"weight": ones(4, 4)}),
    "weight-window": one("conv", {"weight": ones(4, 3, 1, 4)}),
    "linear-weight": linear(MAP, 35),
    "gather-dtype": one("gather", indices(*INDICES, dtype="f32")),
    "gather-length": one("gather", indices(*INDICES[:-1])),
    "bilinear-length": one("bilinear", indices(*PAIRS[:-2])),
    "scale-dtype": one("eltwise", {"scale": ones(4), "offset": doubles(4)}),
    "scale-length": one("eltwise", {"scale": doubles(3), "offset": doubles(4)}),
    "scale-rows": one("eltwise", {"scale": doubles(2, 4), "offset": doubles(4)}),
    "offset-rows": one("eltwise", {"scale": doubles(4), "offset": doubles(2, 4)}),
    "bconv-scale-rows": edited(
        binary(),
        lambda m: (
            setattr(m.ops[1], "scale", m.add_tensor(np.ones((3, 4)), "f64")),
            setattr(m.ops[1], "offset", m.add_tensor(np.ones(4), "f64")),
        ),
    ),
    "prelu-no-slope": one("eltwise", act="prelu"),
    "slope-rows": one("eltwise", {"slope": ones(3, 4)}, act="prelu"),
    "slope-no-prelu": one("eltwise", {"slope": ones(4)}),
    "threshold-no-bits": one("eltwise", {"threshold": ones(4)}),
    "threshold-dtype": edited(
        bits_of("eltwise"), lambda m: setattr(m.ops[0], "threshold", m.add_tensor(np.ones(4), "f64"))
    ),
    "softmax-scale": one("softmax", {"scale": doubles(4), "offset": doubles(4)}),
    "softmax-residual": one("softmax", residual=0),
    "softmax-bits": bits_of("softmax"),
    "log-softmax-clamp": one("log_softmax", act="clamp", clamp=(0.0, 1.0)),
    "scale-alone": one("eltwise", {"scale": doubles(4)}),
    "offset-alone": one("eltwise", {"offset": doubles(4)}),
    "table-in-float": one("eltwise", {"slope": (np.zeros(257), "i16")}, act="table"),
    "groups-of-3": one("conv", {"weight": ones(4, 1, 1, 3)}),
    "groups-out": one("conv", {"weight": ones(3, 1, 1, 2)}, out=(3, 3, 3)),
    "gather-channel": one("gather", indices(4, *INDICES[1:])),
    "gather-row": one("gather", indices(*INDICES[:4], -2, *INDICES[5:])),
    "gather-column": one("gather", indices(*INDICES[:-1], 3)),
    "bilinear-row": one("bilinear", indices(3, *PAIRS[1:])),
    "bilinear-row-negative": one("bilinear", indices(-1, *PAIRS[1:])),
    "bilinear-next-row": one("bilinear", indices(2, 1, *PAIRS[2:])),
    "bilinear-column": one("bilinear", indices(*PAIRS[:-2], 3, 0)),
    "bilinear-share": one("bilinear", indices(0, 1 << 30, *PAIRS[2:])),
    "bilinear-share-negative": one("bilinear", indices(*PAIRS[:-1], -1)),
    "window-0": one("maxpool", window=(0, 1)),
    "window-w-0": one("maxpool", window=(1, 0)),
    "window-256": one("maxpool", window=(256, 1)),
    "window-w-256": one("maxpool", window=(1, 256)),
    "stride-0": one("maxpool", stride=(0, 1)),
    "stride-w-0": one("maxpool", stride=(1, 0)),
    "conv-padding": one(*TAPS, window=(3, 3), pad=(3, 0), out=(4, 7, 1)),
    "conv-padding-w": one(*TAPS, window=(3, 3), pad=(0, 3), out=(4, 1, 7)),
    "pool-padding": one("avgpool", window=(3, 3), pad=(2, 0), out=(4, 5, 1)),
    "pool-padding-w": one("maxpool", window=(3, 3), pad=(0, 2), out=(4, 1, 5)),
    "window-covers": one("maxpool", window=(4, 1), ceil=True, stride=(2, 1), out=(4, 1, 3)),
    "window-covers-w": one("conv", {"weight": ones(4, 1, 2, 4)}, window=(1, 2), dilation=(1, 3), out=(4, 3, 1)),
    "pool-outside": one("maxpool", window=(2, 1), pad=(1, 0), dilation=(4, 1), out=(4, 1, 3)),
    "pool-outside-w": one("maxpool", window=(1, 2), pad=(0, 1), dilation=(1, 4), out=(4, 3, 1)),
    **{
        f"eltwise-{what}": one("eltwise", **{what: pair})
        for what, pair in (("window", (2, 1)), ("stride", (1, 2)), ("pad", (1, 0)), ("dilation", (1, 2)))
    },
    **{
        f"eltwise-{what}-2": one("eltwise", **{what: pair})
        for what, pair in (("window", (1, 2)), ("stride", (2, 1)), ("pad", (0, 1)), ("dilation", (2, 1)))
    },
    "avgpool-gaps": one("avgpool", dilation=(2, 1)),
    "bconv-ceil": binary(ceil=True),
    "maxpool-exclude-pad": one("maxpool", exclude_pad=True),
    "eltwise-channels": one("eltwise", channels=(1, 0), out=(5, 3, 3)),
    "eltwise-channels-after": one("eltwise", channels=(0, 1), out=(5, 3, 3)),
    "pad-value-nan": one("gather", indices(*INDICES), pad_value=NAN),
    "pad-value-inf": one("gather", indices(*INDICES), pad_value=INF),
    "pad-value-1025": binary(pad_value=1025.0),
    "pad-value-minus-1025": binary(pad_value=-1025.0),
    "clamp-reversed": one("eltwise", act="clamp", clamp=(1.0, -1.0)),
    "clamp-nan": one("eltwise", act="clamp", clamp=(NAN, 1.0)),
    "step-inf": one("eltwise", act="step", clamp=(-INF, 1.0)),
    "step-nan": one("eltwise", act="step", clamp=(0.0, NAN)),
    "mean-dtype": edited(one("eltwise"), lambda m: m.tensors.__setitem__(0, bnn.Tensor("f64", (4,), np.zeros(4)))),
    "mean-rank": edited(one("eltwise"), lambda m: setattr(m.tensors[0], "shape", (4, 1))),
    "std-length": edited(
        one("eltwise"), lambda m: m.tensors.__setitem__(1, bnn.Tensor("f32", (3,), np.ones(3, "<f4")))
    ),
    "std-0": negative_std(0.0),
    "std-inf": negative_std(INF),
    "mean-nan": edited(one("eltwise"), lambda m: setattr(m.tensors[0], "array", np.array([NAN, 0, 0, 0], "<f4"))),
    **{f"{key}-not-finite": not_finite(key) for key in ("scale", "offset", "slope")},
    "weight-nan": one("conv", {"weight": (np.full((4, 1, 1, 4), NAN), "f32")}),
    "tensor-unused": edited(one("eltwise"), lambda m: m.add_tensor(np.ones(4))),
    "tensor-twice": edited(one("eltwise", {"scale": doubles(4)}), lambda m: setattr(m.ops[0], "offset", 2)),
    "mean-is-std": edited(one("eltwise"), lambda m: (m.tensors.pop(0), setattr(m, "std", 0))),
    "features": linear((1, 17, 61681)),
    "taps": many_taps(),
}
