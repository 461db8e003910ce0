"""A model's ops as rows of a table, for `ovsw-info` and `ovsw-export`."""

from __future__ import annotations

from dataclasses import dataclass

from ovsw.format import Model, Op

_BITS = {"bits": 1, "i8": 8, "i16": 16, "f32": 32}  # of weights; the i32 of gather and bilinear are none
_SECOND = ("mul", "concat")


@dataclass
class Layer:
    """One op: shapes are (channels, height, width), `second` is that of the other input of mul and concat, `bits` the
    width of its weights, `bytes` all it stores.
    """

    name: str
    op: str
    input: tuple[int, int, int]
    output: tuple[int, int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    bits: int | None
    bytes: int
    stores: str
    second: tuple[int, int, int] | None
    dilation: tuple[int, int]
    groups: int


def layers(model: Model) -> list[Layer]:
    """One row per op, in the order of execution."""
    return [_layer(model, op) for op in model.ops]


def _layer(model: Model, op: Op) -> Layer:
    outputs = [model.values[i] for i in (op.out, op.bits) if i is not None]
    if not outputs:
        raise ValueError(f"op '{op.name}' has no output")
    weight = None if op.weight is None else model.tensors[op.weight]
    convolves = weight is not None and op.kind in ("bconv", "conv")
    return Layer(
        name=op.name,
        op=op.kind,
        input=model.values[op.input].shape,
        output=outputs[0].shape,
        window=op.window,
        stride=op.stride,
        bits=None if weight is None else _BITS.get(weight.dtype),
        bytes=sum(model.tensors[i].array.nbytes for i in op.tensors),
        stores="+".join(v.kind for v in outputs),
        second=model.values[op.residual].shape if op.kind in _SECOND and op.residual is not None else None,
        dilation=op.dilation,
        groups=model.values[op.input].c // weight.shape[3] if weight is not None and convolves else 1,
    )
