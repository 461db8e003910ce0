"""Ops of a file on their way there: `Fused` says which nodes one op computes, `Lowered` adds its constants."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ovsw.export.ops.act import Act
from ovsw.export.ops.affine import Affine
from ovsw.export.ops.binary import Sign
from ovsw.export.ops.node import Node

Tensors = dict[str, tuple[str, np.ndarray]]  # by the names of `bnn.Op`, each with its element kind


@dataclass(eq=False)
class Fused:
    """One op of the file: act(scale * core(source) + offset + residual). Sources are nodes of the folded graph.

    `core` is None where there is nothing but the epilogue; one of two maps has its second one in `other`. `value` is
    the node whose value this op computes, `sign` the one whose bits it stores beside it.
    """

    core: Node | None
    source: Node
    value: Node
    affine: Affine | None = None
    residual: Node | None = None
    act: Act | None = None
    wants_map: bool = False
    sign: Sign | None = None
    other: Node | None = None

    @property
    def name(self) -> str:
        return (self.core or self.value).name

    @property
    def reads(self) -> list[Node]:
        return [node for node in (self.source, self.other, self.residual) if node is not None]

    @property
    def act_kind(self) -> str:
        """The kind of its activation; empty if it has none."""
        return "" if self.act is None else self.act.kind

    @property
    def summed(self) -> Node:
        """The node whose value the activation reads."""
        return self.value if self.act is None else self.act.inputs[0]

    @property
    def copies_input(self) -> bool:
        """Whether the op does not scale, so that integers keep their steps."""
        return self.core is None or self.core.copies_input

    @property
    def only_moves(self) -> bool:
        """Whether what is stored are numbers of the op's input."""
        return self.copies_input and self.act is None and self.residual is None

    def scale_and_offset(self) -> tuple[np.ndarray, np.ndarray]:
        """What each channel is multiplied by, and what is added to it."""
        if self.affine is not None:
            return self.affine.scale, self.affine.offset
        channels = self.value.shape[0]
        return np.ones(channels), np.zeros(channels)

    def scaled(self, largest: float) -> float:
        """The largest size that sums of at most `largest` in size can have after scaling."""
        if self.affine is None:
            return largest
        return float((np.abs(self.affine.scale) * largest + np.abs(self.affine.offset)).max())


@dataclass(eq=False)
class Lowered:
    """One op of the file with its constants. `kind` is the element kind of its map; bits are booleans, True for +1.

    In integer files a number n of its map stands for (n + centre) / steps, with a centre per channel; `sum_steps` are
    the steps of what its activation reads. `pad_value` is what a gather puts where there is nothing. `measured`: the
    steps come from images, what is stored may saturate.
    """

    fused: Fused
    kind: str = "f32"
    constants: Tensors = field(default_factory=dict)
    act: str = "none"
    clamp: tuple[float, float] = (0.0, 0.0)
    steps: float = 1.0
    sum_steps: float = 1.0
    centre: np.ndarray | None = None
    pad_value: float = 0.0
    measured: bool = False
