"""Well-formed files whose graphs make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.models import small_model, tiny_model

Edit = Callable[[bnn.Model], None]


def set_op(index: int, **fields: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        for name, value in fields.items():
            setattr(m.ops[index], name, value)

    return edit


def set_tensor(index: int, array: Any, dtype: str = "f32") -> Edit:
    def edit(m: bnn.Model) -> None:
        m.add_tensor(np.array(array), dtype)
        m.tensors[index] = m.tensors.pop()

    return edit


def set_value(index: int, kind: str, *shape: int) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.values[index] = bnn.Value(kind, *shape)

    return edit


def swap_ops(m: bnn.Model) -> None:
    m.ops[0], m.ops[1] = m.ops[1], m.ops[0]


def drop_op(m: bnn.Model) -> None:
    del m.ops[3]


def repeat_op(m: bnn.Model) -> None:
    m.ops.append(m.ops[3])


def set_output(index: int) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.output = index

    return edit


BAD_GRAPHS: dict[str, tuple[Edit, str]] = {
    "cycle of one": (set_op(1, residual=3), "op 1 'conv1': residual (value 3) is read before it is written"),
    "cycle of two": (set_op(1, residual=4), "op 1 'conv1': residual (value 4) is read before it is written"),
    "order": (swap_ops, "op 0 'conv1': input (value 2) is read before it is written"),
    "never written": (drop_op, "value 5 is never written"),
    "written twice": (repeat_op, "op 4 'fc': out (value 5) is written twice"),
    "input overwritten": (set_op(0, out=0), "op 0 'stem': out (value 0) is written twice"),
    "map and bits in one": (set_op(0, bits=1), "op 0 'stem': bits (value 1) is written twice"),
    "no output": (set_op(3, out=None), "op 3 'fc': has no output"),
    "bconv of a map": (set_op(1, input=1), "op 1 'conv1': input (value 1) is f32, expected bits"),
    "pool of bits": (set_op(2, input=2), "op 2 'pool': input (value 2) is bits, expected f32"),
    "residual of bits": (set_op(1, residual=2), "op 1 'conv1': residual (value 2) is bits, expected f32"),
    "bits in a map": (
        set_op(1, out=None, bits=3),
        "op 1 'conv1': bits (value 3) is f32 3x4x4, computed is bits 3x4x4",
    ),
    "map in bits": (
        set_value(3, "bits", 3, 4, 4),
        "op 1 'conv1': out (value 3) is bits 3x4x4, computed is f32 3x4x4",
    ),
    "output of bits": (set_output(2), "header field output (value 2) must be f32"),
    "input of bits": (set_value(0, "bits", 1, 4, 4), "value 0 (the input) must be f32"),
    "wrong shape": (set_value(4, "f32", 3, 2, 3), "op 2 'pool': out (value 4) is f32 3x2x3, computed is f32 3x2x2"),
    "residual shape": (set_op(1, residual=0), "op 1 'conv1': residual (value 0) is 1x4x4, the output 3x4x4"),
    "no weight": (set_op(0, weight=None), "op 0 'stem': weight is missing"),
    "weight dtype": (set_op(1, weight=2), "op 1 'conv1': weight (tensor 2) has dtype 0, expected 2"),
    "weight shape": (set_op(3, weight=2), "op 3 'fc': weight (tensor 2) has shape 3x3x3x1, expected 3x12"),
    "weight of a pool": (set_op(2, weight=2), "op 2 'pool': has a weight, which maxpool does not take"),
    "scale alone": (set_op(0, offset=None), "op 0 'stem': has only one of scale and offset"),
    "offset alone": (set_op(0, scale=None), "op 0 'stem': has only one of scale and offset"),
    "scale dtype": (set_op(0, scale=8), "op 0 'stem': scale (tensor 8) has dtype 0, expected 1"),
    "scale shape": (set_tensor(3, [1.0, 2.0], "f64"), "op 0 'stem': scale (tensor 3) has shape 2, expected 3"),
    "prelu without slope": (set_op(1, slope=None), "op 1 'conv1': slope is missing"),
    "slope without prelu": (set_op(1, act="none"), "op 1 'conv1': has a slope without prelu"),
    "clamp upside down": (set_op(0, clamp=(1.0, -1.0)), "op 0 'stem': clamps to [1, -1]"),
    "clamp from NaN": (set_op(0, clamp=(float("nan"), 1.0)), "op 0 'stem': clamps to ["),
    "clamp to NaN": (set_op(0, clamp=(0.0, float("nan"))), "op 0 'stem': clamps to ["),
    "window 0": (set_op(2, window=(0, 3)), "op 2 'pool': window is 0x3, allowed are 1 to 255"),
    "window 256": (set_op(2, window=(3, 256)), "op 2 'pool': window is 3x256, allowed are 1 to 255"),
    "window too large": (set_op(2, window=(7, 3)), "op 2 'pool': window 7x3 is larger than the padded map"),
    "stride 0": (set_op(2, stride=(2, 0)), "op 2 'pool': stride is 2x0"),
    "padding": (set_op(0, pad=(1, 3)), "op 0 'stem': padding 1x3 is not smaller than the window"),
    "maxpool padding": (set_op(2, pad=(2, 1)), "op 2 'pool': is padded by more than half its window"),
    "avgpool padding": (set_op(2, kind="avgpool", pad=(1, 2)), "op 2 'pool': is padded by more than half its window"),
    "window of linear": (set_op(3, pad=(0, 1)), "op 3 'fc': has a window, which linear does not take"),
    "channels of linear": (set_op(3, channels=(0, 1)), "op 3 'fc': has channels to pad, which linear does not take"),
    "mean shape": (set_tensor(0, [0.5, 0.5]), "header field mean (tensor 0) must hold one f32 for each of the 1 input"),
    "mean dtype": (set_tensor(0, [0.5], "f64"), "header field mean (tensor 0) must hold one f32"),
    "mean infinite": (set_tensor(0, [float("inf")]), "header field mean holds inf"),
    "std shape": (set_tensor(1, [[0.5]]), "header field std (tensor 1) must hold one f32"),
    "std 0": (set_tensor(1, [0.0]), "header field std holds 0, which is not positive"),
    "std negative": (set_tensor(1, [-1.0]), "header field std holds -1, which is not positive"),
    "std NaN": (set_tensor(1, [float("nan")]), "header field std holds nan"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs_are_refused(name: str) -> None:
    edit, message = BAD_GRAPHS[name]
    model = tiny_model()
    edit(model)
    with pytest.raises(ValueError, match=re.escape(message)):
        Engine(bnn.to_bytes(model))


# --- what came with 1.2 ----------------------------------------------------------------------------------------------


def one(kind: str, tensors: dict[str, tuple[Any, str]] | None = None, out: Any = (4, 3, 3), **fields: Any) -> bnn.Model:
    """One op on a 4 x 3 x 3 input; `tensors` are arrays with their dtypes, of booleans for bits."""
    m = small_model(kind, (4, 3, 3), **fields)
    m.values[1] = bnn.Value("f32", *out)
    for name, (array, dtype) in (tensors or {}).items():
        setattr(m.ops[0], name, m.add_tensor(np.asarray(array), dtype))
    return m


def binary(per_group: int = 4, out: int = 4, rows: int = 1, **fields: Any) -> bnn.Model:
    """Signs of the input, and a padded bconv of them."""
    m = small_model("eltwise", (4, 3, 3))
    m.ops[0].out, m.ops[0].bits = None, 1
    m.values[1] = bnn.Value("bits", 4, 3, 3)
    op = bnn.Op("bconv", "op", 1, window=(3, 3), pad=(1, 1), **fields)
    op.weight = m.add_bits(np.ones((out, 3, 3, per_group), np.bool_))
    op.scale = m.add_tensor(np.ones((rows, out) if rows > 1 else out), "f64")
    op.offset = m.add_tensor(np.ones(out), "f64")
    op.out = m.output = m.add_value("f32", out, 3, 3)
    m.ops.append(op)
    return m


def outputs(*more: int) -> bnn.Model:
    m = one("eltwise")
    m.ops[0].bits = m.add_value("bits", 4, 3, 3)
    m.more_outputs = list(more)
    return m


NAN, INF = float("nan"), float("inf")
INDICES = list(range(4)) + list(range(3)) * 2
PAIRS = [0, 0] * 6
GOOD: dict[str, bnn.Model] = {
    "bconv": binary(per_group=2, out=6, rows=2, pad_value=-1024.0),
    "mul": one("mul", residual=0),
    "concat": one("concat", residual=0, out=(8, 3, 3)),
    "gather": one("gather", {"weight": (INDICES, "i32")}, pad_value=1e30),
    "bilinear": one("bilinear", {"weight": (PAIRS, "i32")}),
    "softmax": one("softmax"),
    "avgpool": one("avgpool", window=(2, 2), pad=(1, 1), ceil=True, exclude_pad=True, out=(4, 4, 4)),
    "maxpool": one("maxpool", window=(2, 1), pad=(1, 0), dilation=(3, 1), out=(4, 2, 3)),
    "step": one("eltwise", act="step", clamp=(1.0, -1.0)),
    "outputs": outputs(0),
}
BAD: dict[str, bnn.Model] = {
    "bconv: 3 of 4 channels": binary(per_group=3),
    "bconv: 3 channels of 2 groups": binary(per_group=2, out=3),
    "bconv: three rows of scale": binary(rows=3),
    "bconv: pad_value too large": binary(pad_value=1024.5),
    "bconv: pad_value NaN": binary(pad_value=NAN),
    "bconv: pad_value infinite": binary(pad_value=-INF),
    "bconv: ceil": binary(ceil=True),
    "conv: two rows of scale": one(
        "conv",
        {"weight": (np.ones((4, 1, 1, 4)), "f32"), "scale": (np.ones((2, 4)), "f64"), "offset": (np.ones(4), "f64")},
    ),
    "mul: alone": one("mul"),
    "concat: alone": one("concat"),
    "concat: channels": one("concat", residual=0),
    "gather: no indices": one("gather"),
    "gather: f32": one("gather", {"weight": (INDICES, "f32")}),
    "gather: too few": one("gather", {"weight": (INDICES[:-1], "i32")}),
    "gather: too far": one("gather", {"weight": ([*INDICES[:-1], 3], "i32")}),
    "gather: before -1": one("gather", {"weight": ([-2, *INDICES[1:]], "i32")}),
    "gather: NaN": one("gather", {"weight": (INDICES, "i32")}, pad_value=NAN),
    "bilinear: too few": one("bilinear", {"weight": (PAIRS[2:], "i32")}),
    "bilinear: channels": one("bilinear", {"weight": (PAIRS, "i32")}, out=(5, 3, 3)),
    "bilinear: past the end": one("bilinear", {"weight": ([2, 1, *PAIRS[2:]], "i32")}),
    "bilinear: a whole step": one("bilinear", {"weight": ([0, 1 << 30, *PAIRS[2:]], "i32")}),
    "softmax: residual": one("softmax", residual=0),
    "softmax: activation": one("softmax", act="clamp", clamp=(0.0, 1.0)),
    "log_softmax: scale": one("log_softmax", {"scale": (np.ones(4), "f64"), "offset": (np.ones(4), "f64")}),
    "to_float": one("to_float", {"scale": (np.ones(4), "f64"), "offset": (np.ones(4), "f64")}),
    "table": one("eltwise", {"slope": (np.zeros(257), "i16")}, act="table"),
    "step: infinite": one("eltwise", act="step", clamp=(-INF, 1.0)),
    "step: NaN": one("eltwise", act="step", clamp=(0.0, NAN)),
    "threshold without bits": one("eltwise", {"threshold": (np.ones(4), "f32")}),
    "slope: three rows": one("eltwise", {"slope": (np.ones((3, 4)), "f32")}, act="prelu"),
    "avgpool: gaps": one("avgpool", dilation=(2, 1)),
    "avgpool: more than half": one("avgpool", window=(3, 3), pad=(2, 2), out=(4, 5, 5)),
    "maxpool: no tap inside": one("maxpool", window=(2, 1), pad=(1, 0), dilation=(4, 1), out=(4, 1, 3)),
    "maxpool: exclude_pad": one("maxpool", exclude_pad=True),
    "maxpool: window over the padded map": one("maxpool", window=(4, 1), ceil=True, stride=(2, 1), out=(4, 1, 3)),
    "eltwise: gaps": one("eltwise", dilation=(1, 2)),
    "eltwise: ceil": one("eltwise", ceil=True),
    "maxpool: one pixel": one("maxpool", window=(3, 3), residual=0, out=(4, 1, 1)),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_graphs_of_1_2(name: str) -> None:
    Engine(bnn.to_bytes(GOOD[name])).run(np.ones((4, 3, 3), np.float32))


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_of_1_2(name: str) -> None:
    with pytest.raises(ValueError, match=r"op [01] 'op': "):
        Engine(bnn.to_bytes(BAD[name]))


def test_all_outputs_are_f32() -> None:
    with pytest.raises(ValueError, match=r"output.*value 2"):
        Engine(bnn.to_bytes(outputs(0, 2)))
