"""Affine: scale * x + offset per channel, which the op before takes in. Norm, a batch norm, becomes one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.add import Add
from ovsw.export.ops.node import Node, column

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Sinking, Tensor, Writer


@dataclass(eq=False, repr=False)
class Affine(Node):
    scale: np.ndarray
    offset: np.ndarray

    on_vectors = True

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * column(self.scale) + column(self.offset)

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        new = self._into_sum(inputs[0], folding)
        return new or affine(self.name, inputs[0], self.scale, self.offset, folding.is_compared(self))

    def _into_sum(self, x: Node, folding: Folding) -> Node | None:
        """(scale * x + offset + residual) + shift, with the shift moved into the offset: one op instead of two."""
        add = self.inputs[0]
        if not isinstance(x, Add) or len(folding.users[add]) != 1 or (self.scale != 1).any():
            return None
        before = add.inputs if add.inputs[0].shape == add.shape else add.inputs[::-1]
        for i, term in enumerate(x.inputs):
            if isinstance(term, Affine) and _is_private(before[i], folding):
                terms = list(x.inputs)
                terms[i] = affine(term.name, term, self.scale, self.offset)
                return replace(x, name=self.name, inputs=terms)
        return None

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        return writer.chain(self, writer.read(self.inputs[0], flat), self.scale, self.offset, flat)

    def notes(self) -> list[str]:
        parts = ["scale"] * bool((self.scale != 1).any()) + ["offset"] * bool(self.offset.any())
        if not parts:
            return ["changes nothing"]
        alike = all((values == values[0]).all() for values in (self.scale, self.offset))
        return [f"{', '.join(parts)} {'for all channels' if alike else 'per channel'}"]


@dataclass(eq=False, repr=False)
class Norm(Node):
    """Batch norm in eval mode."""

    weight: np.ndarray
    bias: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray
    eps: float

    on_vectors = True

    def scale_and_offset(self) -> tuple[np.ndarray, np.ndarray]:
        scale = self.weight / np.sqrt(self.running_var + self.eps)
        return scale, self.bias - scale * self.running_mean

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        return affine(self.name, inputs[0], *self.scale_and_offset())

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        x = writer.read(self.inputs[0], flat)
        eps = float(str(np.float32(self.eps)))
        if eps != self.eps:  # an attribute is a float32; without it as an affine
            return writer.chain(self, x, *self.scale_and_offset(), flat)
        numbers = [
            writer.real(f"{self.name}.{what}", getattr(self, what), -1)
            for what in ("weight", "bias", "running_mean", "running_var")
        ]
        return writer.op("BatchNormalization", self.name, x, *numbers, epsilon=eps)

    def notes(self) -> list[str]:
        return [f"batch norm, eps {self.eps:g}"]

    def problems(self, users: list[Node], zero_weights: str) -> list[str]:
        channels = self.running_var.size
        negative, zero = (int(bad.sum()) for bad in (self.running_var < 0, self.running_var + self.eps == 0))
        problems = []
        if negative:
            problems.append(f"{self.name}: running_var is negative in {negative} of {channels} channels")
        if zero:
            problems.append(f"{self.name}: running_var + eps is 0 in {zero} of {channels} channels")
        return problems

    def warnings(self, users: list[Node]) -> list[str]:
        """A channel that is exactly 0 before a sign: +1 here and in the paper, 0 in the paper's released code."""
        if any(isinstance(user, Add) for user in users):
            return []
        dead = int(((self.weight == 0) & (self.bias == 0)).sum())
        if not dead:
            return []
        return [f"{self.name}: {dead} channels are always 0 (weight and bias are 0); where binarised, they count as +1"]


def affine(name: str, x: Node, scale: np.ndarray, offset: np.ndarray, apart: bool = False) -> Affine:
    """scale * x + offset, joined with an affine that x may already be, if they are not to stay apart."""
    if isinstance(x, Affine) and not apart:
        return Affine(name, x.inputs, x.shape, scale * x.scale, scale * x.offset + offset)
    return Affine(name, [x], x.shape, scale, offset)


def biased(x: Node, bias: np.ndarray | None) -> Node:
    return x if bias is None else affine(x.name, x, np.ones_like(bias), bias)


def behind(node: Node, inputs: list[Node], scale: np.ndarray, offset: np.ndarray) -> Affine:
    """The node with these inputs, scaled afterwards."""
    return Affine(node.name, [replace(node, inputs=inputs)], node.shape, scale, offset)


def sink_through(node: Node, inputs: list[Node], sinking: Sinking) -> Node | None:
    """Moves an affine from before the node to after it: for nodes that average or copy values within a channel."""
    (x,) = sinking.affines(node, inputs)
    return None if x is None else behind(node, x.inputs, x.scale, x.offset)


def _is_private(node: Node, folding: Folding) -> bool:
    """Whether a node has only one reader; for a batch norm, the same must hold for what it reads."""
    while len(folding.users[node]) == 1 and isinstance(node, Norm):
        node = node.inputs[0]
    return len(folding.users[node]) == 1
