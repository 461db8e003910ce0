"""What the loader refuses of format 1.2: every rule of an op once, in the words of the C++ side."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.ops import run_op

REAL = np.zeros((4, 5, 6), np.float32)
WHOLE = np.zeros((4, 5, 6), np.int16)
BITS = np.zeros((4, 5, 6), np.bool_)
ROWS = np.zeros((2, 6))


def bits(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.bool_)


def gather(channels: Any = (0,), rows: Any = (0,), columns: Any = (0,)) -> dict[str, Any]:
    return {
        "weight": np.array([*channels, *rows, *columns], np.int32),
        "shape": (len(rows), len(columns), len(channels)),
    }


def bilinear(rows: Any, columns: Any) -> dict[str, Any]:
    return {"weight": np.array([*rows, *columns], np.int32), "shape": (len(rows) // 2, len(columns) // 2, 6)}


def shifted(scale: int, offset: int, shift: int) -> dict[str, Any]:
    fill = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift, "u8")}
    return {name: (np.full(6, value), dtype) for name, (value, dtype) in fill.items()}


def binary(scale: int, window: int, offset: int, pad_value: float = 0.0) -> dict[str, Any]:
    constants = shifted(scale, offset, 0)
    constants["scale"] = (np.stack([np.full(6, scale), np.full(6, window)]), "i16")
    return {"weight": bits(6, 3, 3, 6), "pad": (1, 1), "pad_value": pad_value, "constants": constants}


# The largest offsets beside scales of 1000 and -1000 over 3 x 3 x 6 inputs, without and with a padding by 2.5
ROOM, PADDED_ROOM = 2**31 - 1 - 2000 * 54, 2**31 - 2 - 2000 * 54 * 3
FLOAT: list[tuple[str, np.ndarray, dict[str, Any], str]] = [
    ("bconv", BITS, {"weight": bits(6, 3, 3, 4)}, "weight (tensor 2) has shape 6x3x3x4, expected 6x3x3x6"),
    ("bconv", BITS, {"weight": bits(8, 3, 3, 2)}, "has 3 groups, which do not divide its 8 output channels"),
    ("bconv", BITS, {"weight": bits(6, 3, 3, 6), "pad_value": 1025.0}, "pad_value is 1025, allowed are -1024 to 1024"),
    ("bconv", BITS, {"weight": bits(6, 3, 3, 6), "pad_value": float("nan")}, "pad_value is nan"),
    ("bconv", BITS, {"weight": bits(6, 3, 3, 6), "dilation": (2, 1), "pad": (5, 0)}, "padding 5x0 is not smaller"),
    (
        "bconv",
        BITS,
        {"weight": bits(6, 3, 3, 6), "dilation": (2, 2), "shape": (1, 1, 6)},
        "window 5x5 is larger than the padded map",
    ),
    ("bconv", BITS, {"weight": bits(6, 3, 3, 6), "ceil": True}, "has the flag ceil, which bconv does not take"),
    ("bconv", BITS, {"weight": bits(6, 3, 3, 6), "constants": {"scale": (np.zeros((3, 6)), "f64")}}, "expected 2x6"),
    ("eltwise", REAL, {"constants": {"scale": (ROWS, "f64"), "offset": (ROWS[0], "f64")}}, "has shape 2x6, expected 6"),
    ("eltwise", REAL, {"dilation": (2, 1)}, "has dilation, which eltwise does not take"),
    ("avgpool", REAL, {"window": (2, 2), "dilation": (2, 2)}, "has dilation, which avgpool does not take"),
    ("avgpool", REAL, {"window": (3, 3), "pad": (2, 0)}, "is padded by more than half its window"),
    ("maxpool", REAL, {"window": (2, 2), "exclude_pad": True}, "has the flag exclude_pad, which maxpool does not take"),
    ("maxpool", REAL, {"window": (2, 2), "dilation": (5, 1), "pad": (1, 0)}, "taps all lie outside the map"),
    ("eltwise", REAL, {"residual": np.zeros((1, 5, 6), np.float32)}, "residual (value 2) is 6x1x5, the output 6x4x5"),
    ("maxpool", REAL, {"residual": np.zeros((1, 1, 6), np.float32)}, "residual (value 2) is 6x1x1, the output 6x4x5"),
    ("mul", REAL, {}, "residual, its second operand, is missing"),
    ("mul", REAL, {"residual": np.zeros((1, 1, 5), np.float32)}, "residual (value 2) is 5x1x1, the output 6x4x5"),
    ("concat", REAL, {}, "residual, its second operand, is missing"),
    ("concat", REAL, {"residual": np.zeros((4, 4, 6), np.float32)}, "residual (value 2) is 6x4x4, the input 6x4x5"),
    ("gather", REAL, gather(channels=(0, 6)), "takes channel 1 from channel 6, there are 6"),
    ("gather", REAL, gather(rows=(-2,)), "takes row 0 from row -2, there are 4"),
    ("gather", REAL, gather(columns=(0, 2**31 - 1)), "takes column 1 from column 2147483647, there are 5"),
    ("gather", REAL, {**gather(), "shape": (1, 1, 2)}, "weight (tensor 2) has shape 3, expected 4"),
    ("gather", REAL, {"shape": (1, 1, 1)}, "weight is missing"),
    ("gather", REAL, {**gather(), "pad_value": float("inf")}, "pad_value is inf"),
    ("gather", REAL, {**gather(), "out": None, "bits": False}, "has no output"),
    ("bilinear", REAL, bilinear((3, 1), (0, 0)), "takes row 0 from row 3 and the next, there are 4"),
    ("bilinear", REAL, bilinear((4, 0), (0, 0)), "takes row 0 from row 4, there are 4"),
    ("bilinear", REAL, bilinear((-1, 0), (0, 0)), "takes row 0 from row -1, there are 4"),
    ("bilinear", REAL, bilinear((0, 0), (0, 1 << 30)), "has a share of 1073741824 for column 0"),
    ("bilinear", REAL, bilinear((0, 0), (0, -1)), "has a share of -1 for column 0"),
    ("bilinear", REAL, {**bilinear((0, 0), (0, 0)), "shape": (1, 1, 5)}, "computed is f32 6x1x1"),
    ("softmax", REAL, {"bits": True}, "has a residual or bits, which softmax does not take"),
    ("softmax", REAL, {"residual": REAL, "bits": False}, "has a residual or bits, which softmax does not take"),
    ("log_softmax", REAL, {"act": "clamp", "bits": False}, "has an activation, which log_softmax does not take"),
    ("softmax", REAL, {"constants": {"offset": (ROWS[0], "f64")}, "bits": False}, "has a tensor as its offset"),
    ("to_float", REAL, {"bits": False}, "to_float is for integer numerics only"),
    ("eltwise", REAL, {"act": "table", "constants": {"slope": (np.zeros(257), "i16")}}, "float numerics do not take"),
    ("eltwise", REAL, {"act": "step", "clamp": (0.0, float("inf"))}, "steps from 0 to inf"),
    ("eltwise", REAL, {"act": "prelu", "constants": {"slope": (np.zeros((3, 6)), "f32")}}, "shape 3x6, expected 2x6"),
    ("eltwise", REAL, {"constants": {"threshold": (ROWS[0], "f64")}}, "threshold (tensor 2) has dtype 1, expected 0"),
    ("eltwise", REAL, {"constants": {"threshold": (ROWS[0], "f32")}, "bits": False}, "has a threshold without bits"),
]
INTEGER: list[tuple[str, np.ndarray, dict[str, Any], str]] = [
    ("bconv", BITS, binary(1000, -1000, ROOM + 1), "may leave 32 bits"),
    ("bconv", BITS, binary(1000, -1000, PADDED_ROOM + 1, 2.5), "may leave 32 bits"),
    ("bconv", BITS, binary(-1, 0, 0), "scale[0] is -1, expected 0 or more"),
    ("eltwise", WHOLE, {"act": "sigmoid"}, "has sigmoid, which integer numerics do not take"),
    ("eltwise", WHOLE, {"act": "step", "clamp": (0.5, 1.0)}, "steps from 0.5 to 1, expected whole numbers of 16 bits"),
    ("eltwise", WHOLE, {"act": "table", "constants": {"slope": (np.zeros(256), "i16")}}, "shape 256, expected 257"),
    ("conv", WHOLE, {"act": "table", "weight": np.zeros((6, 1, 1, 6), np.int16)}, "has a table, which conv does not"),
    ("mul", WHOLE, {"residual": WHOLE.astype(np.int32), "constants": shifted(1, 0, 0)}, "is i32, expected i16"),
    ("mul", WHOLE, {"residual": WHOLE, "constants": shifted(3, 0, 0)}, "channel 0 may leave 32 bits"),
    ("mul", WHOLE, {"residual": WHOLE, "constants": shifted(1, 0, 48)}, "shift[0] is 48, allowed are 0 to 47"),
    ("mul", WHOLE, {"residual": WHOLE}, "scale is missing"),
    ("concat", WHOLE, {"residual": WHOLE.astype(np.int32)}, "is i32, expected i16"),
    (
        "concat",
        WHOLE,
        {"residual": WHOLE, "constants": shifted(1, 0, 0)},
        "a tensor as its scale, which concat does not",
    ),
    ("gather", WHOLE, {**gather(), "pad_value": 0.5}, "pad_value is 0.5, expected a whole number of 16 bits"),
    ("gather", WHOLE, {**gather(), "pad_value": 32768.0}, "pad_value is 32768, expected a whole number of 16 bits"),
    ("gather", WHOLE, {**gather(), "constants": {"offset": (np.zeros(1), "i32")}}, "a tensor as its offset"),
    ("softmax", WHOLE, {"bits": False}, "input (value 1) is i16, expected f32"),
    ("to_float", WHOLE, {"bits": False, "out": "f32"}, "scale is missing"),
    (
        "to_float",
        WHOLE,
        {"out": "f32", "constants": dict.fromkeys(("scale", "offset"), (ROWS[0], "f64"))},
        "writes f32",
    ),
    ("eltwise", WHOLE, {"constants": {"threshold": (ROWS[0], "i32")}}, "threshold (tensor 2) has dtype 4, expected 3"),
]


@pytest.mark.parametrize(("kind", "x", "op", "message"), FLOAT)
def test_float_op(kind: str, x: np.ndarray, op: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run_op("portable", "float", kind, x, **{"out": "f32", **op})


@pytest.mark.parametrize(("kind", "x", "op", "message"), INTEGER)
def test_integer_op(kind: str, x: np.ndarray, op: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run_op("portable", "integer", kind, x, **op)


def test_the_largest_sums_are_taken() -> None:
    """The numbers next to those that are refused."""
    run_op("portable", "integer", "bconv", BITS, **binary(1000, -1000, ROOM))
    run_op("portable", "integer", "bconv", BITS, **binary(1000, -1000, PADDED_ROOM, 2.5))
    run_op("portable", "integer", "mul", WHOLE, residual=WHOLE, constants=shifted(1, 0, 0))


def two_outputs() -> bnn.Model:
    model = bnn.Model([], [], [], output=1, mean=0, std=1, more_outputs=[2])
    values = [model.add_value("f32", 3, 2, 2) for _ in range(3)]
    for value in (0.0, 1.0):
        model.add_tensor(np.full(3, value))
    model.ops = [bnn.Op("eltwise", "a", values[0], out=values[1]), bnn.Op("eltwise", "b", values[0], out=values[2])]
    return model


def test_outputs() -> None:
    for outputs, message in (
        ([1], "an output is named twice"),
        ([2, 2], "an output is named twice"),
        ([3], "a further output is value 3, there are 3"),
    ):
        model = two_outputs()
        model.more_outputs = outputs
        with pytest.raises(ValueError, match=message):
            Engine(bnn.to_bytes(model))
    model = two_outputs()
    model.ops[1].out, model.ops[1].bits = None, model.add_value("bits", 3, 2, 2)
    model.values.pop(2)
    model.ops[1].bits = 2
    with pytest.raises(ValueError, match=r"header field output \(value 2\) must be f32"):
        Engine(bnn.to_bytes(model))


@pytest.mark.parametrize(("at", "value", "message"), [
    (78, 4, "reserved bytes are not zero"),
    (79, 1, "reserved bytes are not zero"),
    (68, 1, "reserved bytes are not zero"),
    (72, 9, "threshold refers to 8, there are 2"),
])  # fmt: skip
def test_record_bytes(at: int, value: int, message: str) -> None:
    model = two_outputs()
    data = bytearray(bnn.to_bytes(model))
    begin = 68 + 16 * 3 + 40 * 2
    data[begin + at] = value
    data[12:16] = bnn.checksum(bytes(data)).to_bytes(4, "little")
    with pytest.raises(ValueError, match=message):
        Engine(bytes(data))
