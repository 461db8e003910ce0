"""A model's ops as rows of a table, for `ovsw-info` and `ovsw-export`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    kernel: tuple[int, int]
    stride: tuple[int, int]
    bits: int | None
    bytes: int
    stores: str

    @property
    def shape_text(self) -> str:
        return "x".join(map(str, self.output))

    @property
    def bits_text(self) -> str:
        return "-" if self.bits is None else str(self.bits)


def layers(model: Model) -> list[Layer]:
    """One row per op, in the order of execution."""
    return [_layer(model, op) for op in model.ops]


def _layer(model: Model, op: Op) -> Layer:
    tensors = [model.tensors[i] for i in op.tensors]
    outputs = [model.values[i] for i in (op.out, op.bits) if i is not None]
    if not outputs:
        raise ValueError(f"op '{op.name}' has no output")
    return Layer(
        name=op.name,
        op=op.kind,
        input=model.values[op.input].shape,
        output=outputs[0].shape,
        kernel=op.kernel,
        stride=op.stride,
        bits=None if op.weight is None else _BITS[model.tensors[op.weight].dtype],
        bytes=sum(t.array.nbytes for t in tensors),
        stores="+".join(v.kind for v in outputs),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns in plain text; those numbered in `right` are right-aligned."""
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, cells[1:])])
