"""What real and binary convolutions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.node import Pair, Window, group_notes, window_notes

if TYPE_CHECKING:
    from ovsw.export.ops.types import bnn


class Convolution(Window):
    """What real and binary convolutions share: weights (out, in / groups, height, width)."""

    dilation: Pair

    @property
    def filters(self) -> np.ndarray:
        """Its weights, real or binary."""
        raise NotImplementedError

    @property
    def groups(self) -> int:
        return self.inputs[0].shape[0] // self.filters.shape[1]

    def channels_of_weights(self) -> np.ndarray:
        """The input channel that each weight of each output channel reads: (out, in / groups)."""
        out, size = self.filters.shape[:2]
        group = np.arange(out) // (out // self.groups)
        return group[:, None] * size + np.arange(size)

    def record(self, op: bnn.Op) -> None:
        super().record(op)
        op.dilation = self.dilation

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        assert op.weight is not None
        pads_with = op.pad_value if op.kind == "bconv" else None
        yield from window_notes(op.window, op.stride, op.pad, op.dilation, pads_with)
        channels, weight = model.values[op.input].c, model.tensors[op.weight]
        yield f"{channels}->{weight.shape[0]}"
        yield from group_notes(channels // weight.shape[3], channels)
        if op.scale is not None and len(model.tensors[op.scale].shape) == 2:
            yield "two levels of weights"

    def array_shape(self, what: str) -> tuple[int, ...]:
        if what != "weight":
            return self.shape[:1]
        channels, per_filter = self.inputs[0].shape[0], self.filters.shape[1] if self.filters.ndim > 1 else 0
        grouped = per_filter and channels % per_filter == 0 and self.shape[0] % (channels // per_filter) == 0
        return (self.shape[0], per_filter if grouped else channels, *self.window)
