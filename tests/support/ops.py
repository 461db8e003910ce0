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
    mean: Sequence[float] = (0.0,),
    channels: tuple[int, int] = (0, 0),
    in_place: bool = False,
    split: int = 0,
    **record: Any,
) -> dict[str, np.ndarray]:
    """What the op writes, as `out` (of that element kind) and `bits` (booleans), (h, w, c).

    Maps are (h, w, c): booleans are bits, uint8 are pixels. `weight` is as in the file, booleans for binary ones;
    `constants` are arrays with their dtypes in the file. `record` has the other fields of the op.
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
        op.weight = tensor(weight, "f32" if numerics == "float" else KINDS[str(weight.dtype)])
        op.window = (int(weight.shape[1]), int(weight.shape[2])) if weight.ndim == 4 else (1, 1)
    for name, (array, dtype) in (constants or {}).items():
        setattr(op, name, model.add_tensor(array, dtype))
    if residual is not None:
        op.residual = give(residual)
    h, w, c = x.shape
    sides = zip((h, w), op.window, op.stride, op.pad)
    height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in sides) if kind != "linear" else (1, 1)
    shape = (c + sum(channels) if weight is None else len(weight), height, width)
    if out is not None:
        op.out = model.add_value(out, *shape)
    if bits:
        op.bits = model.add_value("bits", *shape)
    model.ops.append(op)
    written = _testing.run_ops(isa, bnn.to_bytes(model), given, in_place, split)
    result = {} if op.out is None else {"out": written[op.out]}
    if op.bits is not None:
        words, tail = written[op.bits], shape[0] % 64
        assert not tail or not np.any(words[..., -1] >> np.uint64(tail)), "bits past the last channel"
        result["bits"] = bnn.unpack_bits(words, shape[0])
    return result
