"""A model's ops as rows of a table, for `ovsw-info` and `ovsw-export`."""

from __future__ import annotations

from dataclasses import dataclass

from ovsw.format import Model, Op

_BITS = {"bits": 1, "i8": 8, "i16": 16, "f32": 32}


@dataclass
class Layer:
    """One op: shapes are (channels, height, width), `bits` is the width of its weights, `bytes` all it stores."""

    name: str
    op: str
    input: tuple[int, int, int]
    output: tuple[int, int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    bits: int | None
    bytes: int
    stores: str


def layers(model: Model) -> list[Layer]:
    """One row per op, in the order of execution."""
    return [_layer(model, op) for op in model.ops]


def _layer(model: Model, op: Op) -> Layer:
    outputs = [model.values[i] for i in (op.out, op.bits) if i is not None]
    if not outputs:
        raise ValueError(f"op '{op.name}' has no output")
    return Layer(
        name=op.name,
        op=op.kind,
        input=model.values[op.input].shape,
        output=outputs[0].shape,
        window=op.window,
        stride=op.stride,
        bits=None if op.weight is None else _BITS[model.tensors[op.weight].dtype],
        bytes=sum(model.tensors[i].array.nbytes for i in op.tensors),
        stores="+".join(v.kind for v in outputs),
    )
