"""One op alone, through the plan that an engine would make of it, on any kernel table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ovsw.numerics
from ovsw import _testing
from ovsw import format as bnn

from support import TABLES, evaluator

KINDS = {"bool": "bits", "uint8": "u8", "int16": "i16", "int32": "i32", "float32": "f32"}
Constants = Mapping[str, tuple[np.ndarray, str]]


def one_op(
    numerics: str,
    kind: str,
    x: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    constants: Constants | None = None,
    residual: np.ndarray | None = None,
    out: str | None = None,
    bits: bool = True,
    shape: tuple[int, int, int] | None = None,
    mean: Sequence[float] = (0.0,),
    channels: tuple[int, int] = (0, 0),
    **record: Any,
) -> tuple[bnn.Model, dict[int, np.ndarray]]:
    """A model of one op, and the maps that it reads by their values.

    Maps are (h, w, c): booleans are bits, uint8 are pixels. `weight` is as in the file, booleans for binary ones;
    `constants` are arrays with their dtypes in the file. The op writes a map of kind `out`, and `bits`. `shape` is that
    of the result, (h, w, c), where the op does not say it. `record` has the other fields of the op.
    """
    model = bnn.Model([], [], [], output=0, mean=0, std=1, numerics=numerics)
    maps: dict[int, np.ndarray] = {}

    def add_map(array: np.ndarray) -> int:
        h, w, c = array.shape
        index = model.add_value(KINDS[str(array.dtype)], c, h, w)
        maps[index] = array
        return index

    pixels = x.dtype == np.uint8 or (numerics == "float" and x.dtype == np.float32)
    if not pixels:  # a file has an input, whether the op reads it or not
        add_map(np.zeros((1, 1, 1), np.uint8 if numerics == "integer" else np.float32))
    source = add_map(x)
    model.output = add_map(np.zeros((1, 1, 1), np.float32))
    model.add_tensor(np.resize(mean, model.values[0].c))
    model.add_tensor(np.ones(model.values[0].c))
    op = bnn.Op(kind, "op", source, channels=channels, **record)
    if weight is not None:
        dtype = "f32" if np.issubdtype(weight.dtype, np.floating) else KINDS[str(weight.dtype)]
        op.weight = model.add_bits(weight) if dtype == "bits" else model.add_tensor(weight, dtype)
        op.window = (int(weight.shape[1]), int(weight.shape[2])) if weight.ndim == 4 else (1, 1)
    for name, (array, dtype) in (constants or {}).items():
        setattr(op, name, model.add_tensor(array, dtype))
    if residual is not None:
        op.residual = add_map(residual)
    h, w, c = shape or result_shape(op, x.shape, None if weight is None else len(weight))
    if kind == "concat" and residual is not None:
        c += residual.shape[2]
    if out is not None:
        op.out = model.add_value(out, c, h, w)
    if bits:
        op.bits = model.add_value("bits", c, h, w)
    model.ops.append(op)
    return model, maps


def run_op(
    isa: str, model: bnn.Model, maps: Mapping[int, np.ndarray], in_place: bool = False, split: int = 0
) -> dict[str, np.ndarray]:
    """What the op writes, as `out` and `bits` (booleans), (h, w, c)."""
    (op,) = model.ops
    packed = {i: bnn.pack_bits(m) if m.dtype == np.bool_ else np.ascontiguousarray(m) for i, m in maps.items()}
    written = _testing.run_ops(isa, bnn.to_bytes(model), packed, in_place, split)
    result = {} if op.out is None else {"out": written[op.out]}
    if op.bits is not None:
        c = model.values[op.bits].c
        words, tail = written[op.bits], c % 64
        assert not tail or not np.any(words[..., -1] >> np.uint64(tail)), "bits past the last channel"
        result["bits"] = bnn.unpack_bits(words, c)
    return result


def check_op(
    numerics: str,
    kind: str,
    x: np.ndarray,
    *,
    isas: Sequence[str] = TABLES,
    splits: Sequence[int] = (0,),
    writes: Sequence[str] = ("both",),
    in_place: bool = False,
    out: str = "",
    **op: Any,
) -> None:
    """Every table gives what the text says, by ovsw.numerics or support.evaluator: whole and split, the map, its bits
    or both.

    Real sums of float files may differ by rounding, but not from table to table, nor with the split.
    """
    out = out or ("f32" if numerics == "float" else "i16")
    expected: dict[str, np.ndarray] = {}
    near: np.ndarray | None = None
    for wanted in writes:
        model, maps = one_op(numerics, kind, x, out=None if wanted == "bits" else out, bits=wanted != "out", **op)
        if not expected:
            expected, near = (of_integers if numerics == "integer" else of_floats)(model, maps)
        for isa in isas:
            for split in splits:
                got = run_op(isa, model, maps, in_place, split)
                label = f"{isa}, {kind} {x.shape}, {split=}, {model.ops[0]}"
                if near is not None and "out" in got:
                    assert np.all(np.abs(got["out"] - expected["out"]) <= near), label
                    expected, near = {"out": got["out"], "bits": got["out"] >= 0}, None
                for name, array in got.items():
                    np.testing.assert_array_equal(array, expected[name], err_msg=f"{name} of {label}")


def of_integers(model: bnn.Model, maps: Mapping[int, np.ndarray]) -> tuple[dict[str, np.ndarray], None]:
    (op,) = model.ops
    wide = {i: m if m.dtype in (np.bool_, np.float32) else m.astype(np.int64) for i, m in maps.items()}
    residual = None if op.residual is None else wide[op.residual][None]
    out, bits = ovsw.numerics.run_op(model, op, wide[op.input][None], residual)
    return {"out": out[0], "bits": bits[0]}, None


def of_floats(model: bnn.Model, maps: Mapping[int, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """With how far real sums may be off: some units of float32 of all that is added up."""
    (op,) = model.ops
    x = maps[op.input]
    real = np.where(x, 1.0, -1.0) if x.dtype == np.bool_ else x.astype(np.float64)
    other = None if op.residual is None else maps[op.residual].astype(np.float64)
    sizes: list[float] = []
    t = evaluator.affine(model, op, real, other, lambda products: sizes.append(float(np.abs(products).sum())))
    out = evaluator.activation(model, op, t.astype(np.float32))
    threshold = 0 if op.threshold is None else model.tensors[op.threshold].array
    scale = 1.0 if op.scale is None else np.abs(model.tensors[op.scale].array)
    near = 5e-7 * (scale * np.reshape(sizes, t.shape) + np.abs(t)) if sizes else None
    return {"out": out, "bits": out >= threshold}, near


def result_shape(op: bnn.Op, shape: Sequence[int], out_c: int | None) -> tuple[int, int, int]:
    """Rows, columns and channels of what an op with a window writes, or one that keeps its input's map."""
    if op.kind == "linear":
        return 1, 1, out_c or 0
    sides = []
    for n, k, s, p, d in zip(shape, op.window, op.stride, op.pad, op.dilation):
        left = n + 2 * p - (k - 1) * d - 1
        count = (-(-left // s) if op.ceil else left // s) + 1
        sides.append(count - (op.ceil and (count - 1) * s >= n + p))
    return sides[0], sides[1], out_c or shape[2] + sum(op.channels)
