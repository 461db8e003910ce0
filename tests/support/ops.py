"""One op alone, through the plan that an engine would make of it, on any kernel table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ovsw import _testing
from ovsw import format as bnn

KINDS = {"bool": "bits", "uint8": "u8", "int16": "i16", "int32": "i32", "float32": "f32"}


def run_op(
    isa: str,
    numerics: str,
    kind: str,
    x: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    constants: Mapping[str, tuple[np.ndarray, str]] | None = None,
    residual: np.ndarray | None = None,
    out: str | None = "i16",
    bits: bool = True,
    shape: tuple[int, int, int] | None = None,
    mean: Sequence[float] = (0.0,),
    channels: tuple[int, int] = (0, 0),
    in_place: bool = False,
    split: int = 0,
    **record: Any,
) -> dict[str, np.ndarray]:
    """What the op writes, as `out` (of that element kind) and `bits` (booleans), (h, w, c).

    Maps are (h, w, c): booleans are bits, uint8 are pixels. `weight` is as in the file, booleans for binary ones;
    `constants` are arrays with their dtypes in the file. `shape` is that of the result, (h, w, c), where the op
    does not say it. `record` has the other fields of the op.
    """
    model = bnn.Model([], [], [], output=0, mean=0, std=1, numerics=numerics)
    given: dict[int, np.ndarray] = {}

    def give(array: np.ndarray) -> int:
        h, w, c = array.shape
        index = model.add_value(KINDS[str(array.dtype)], c, h, w)
        given[index] = bnn.pack_bits(array) if array.dtype == np.bool_ else np.ascontiguousarray(array)
        return index

    def tensor(array: np.ndarray, dtype: str) -> int:
        return model.add_bits(array) if array.dtype == np.bool_ else model.add_tensor(array, dtype)

    pixels = x.dtype == np.uint8 or (numerics == "float" and x.dtype == np.float32)
    source = give(x) if pixels else 0
    if not pixels:  # a file has an input, whether the op reads it or not
        give(np.zeros((1, 1, 1), np.uint8 if numerics == "integer" else np.float32))
        source = give(x)
    model.output = give(np.zeros((1, 1, 1), np.float32))
    model.add_tensor(np.resize(mean, model.values[0].c))
    model.add_tensor(np.ones(model.values[0].c))
    op = bnn.Op(kind, "op", source, channels=channels, **record)
    if weight is not None:
        real = np.issubdtype(weight.dtype, np.floating)
        op.weight = tensor(weight, "f32" if real else KINDS[str(weight.dtype)])
        op.window = (int(weight.shape[1]), int(weight.shape[2])) if weight.ndim == 4 else (1, 1)
    for name, (array, dtype) in (constants or {}).items():
        setattr(op, name, model.add_tensor(array, dtype))
    if residual is not None:
        op.residual = give(residual)
    h, w, c = shape or result_shape(op, x.shape, None if weight is None else len(weight))
    if kind == "concat" and residual is not None:
        c += residual.shape[2]
    if out is not None:
        op.out = model.add_value(out, c, h, w)
    if bits:
        op.bits = model.add_value("bits", c, h, w)
    model.ops.append(op)
    written = _testing.run_ops(isa, bnn.to_bytes(model), given, in_place, split)
    result = {} if op.out is None else {"out": written[op.out]}
    if op.bits is not None:
        words, tail = written[op.bits], c % 64
        assert not tail or not np.any(words[..., -1] >> np.uint64(tail)), "bits past the last channel"
        result["bits"] = bnn.unpack_bits(words, c)
    return result


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
