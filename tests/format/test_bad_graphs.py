"""Well-formed files whose graphs make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.models import tiny_model

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
    "avgpool padding": (set_op(2, kind="avgpool"), "op 2 'pool': has padding, which avgpool does not take"),
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
