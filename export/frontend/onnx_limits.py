"""What reading an ONNX file may take: a file of a kilobyte can describe tensors of gigabytes and hours of work.

Everything is counted from shapes, before it is computed: a `Meter` sees each of torch's operations. Nodes of local
functions are counted before they are inlined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ovsw.export.frontend.modes import Watcher
from ovsw.export.frontend.values import names

ANYWAY = "; no_limits=True (--no-limits of the command) converts it anyway"
_MOST_NODES = 10_000
_DEEPEST = 100  # calls of functions within functions


class LimitError(ValueError):
    """A file would take more than a limit."""


@dataclass(frozen=True)
class Limits:
    """How much a file of `size` bytes may take, with its external data.

    Numbers of elements: `constants` of everything that is computed when the file is read, `weights` of what nodes take
    of it, counted at each node, `maps` of everything that is computed from one image. `work` is in multiply-adds.
    """

    constants: float
    weights: float
    maps: float
    work: float

    @classmethod
    def of(cls, size: int) -> Limits:
        return cls((1 << 23) + 8 * size, (1 << 22) + 2 * size, (10 << 20) + size, 5e9 + 1000 * size)

    @classmethod
    def none(cls) -> Limits:
        return cls(*[math.inf] * 4)


class Meter(Watcher):  # type: ignore[no-untyped-call]
    """Counts the elements that operations make and their work. Raises LimitError before one that is too much."""

    def __init__(self, what: str, elements: float, work: float) -> None:
        super().__init__()
        self.what, self.most_elements, self.most_work = what, elements, work
        self.elements, self.work = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(r.alias_info is not None for r in func._schema.returns):  # a view, or written in place
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        elements = _forecast(func, name, args)
        if elements is None:
            elements = _without_elements(func, args, kwargs)
        self.add(elements, elements * _work(name, args), elements * _copies(name, args))
        return func(*args, **kwargs)

    def add(self, elements: int, work: int = 0, copied: int = 0) -> None:
        """Counts elements and their work. A copy exists only meanwhile, in float64: a quarter of it is counted."""
        self.elements, self.work = self.elements + elements, self.work + work
        if self.elements + copied / 4 > self.most_elements:
            raise LimitError(f"{self.what} takes more than the limit of {self.most_elements:,.0f} numbers{ANYWAY}")
        if self.work > self.most_work:
            raise LimitError(f"{self.what} takes more than the limit of {self.most_work:,.0f} multiply-adds{ANYWAY}")


_LIKE_INPUT = names("clone _to_copy _softmax _log_softmax native_batch_norm sum mean amax amin prod")  # or smaller
_POOLS = ("avg_pool2d", "max_pool2d_with_indices")


def _forecast(func: Any, name: str, args: Sequence[Any]) -> int | None:
    """How many elements the result of a usual operation has, or at most has; None for other operations."""
    if torch.Tag.pointwise in func.tags:
        return math.prod(np.broadcast_shapes(*(t.shape for t in _tensors(args))))
    if name in _LIKE_INPUT:
        return max(t.numel() for t in _tensors(args))
    if name == "cat":
        return sum(t.numel() for t in args[0])
    if name in ("mm", "addmm", "bmm"):
        return math.prod(args[-2].shape[:-1]) * int(args[-1].shape[-1])
    if name == "index_select":
        return args[0].numel() // max(1, args[0].shape[args[1]]) * args[2].numel()
    if name == "convolution":
        x, weight, _, stride, pad = args[:5]
        return _windows(x, stride, pad, weight.shape[2:]) * len(x) * len(weight)
    if name in _POOLS and len(args[0].shape) == 4:
        stride, pad = args[2] if len(args) > 2 and args[2] else args[1], args[3] if len(args) > 3 else [0, 0]
        return _windows(args[0], stride, pad, [1, 1]) * math.prod(args[0].shape[:2])
    return None


def _windows(x: Tensor, stride: Sequence[int], pad: Sequence[int], window: Sequence[int]) -> int:
    """How many positions a window has at most."""
    sides = zip(x.shape[2:], *(each if len(each) > 1 else list(each) * 2 for each in (stride, pad)), window)
    return math.prod(max(0, n + 2 * p - k) // max(1, s) + 1 for n, s, p, k in sides)


def _without_elements(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """The same by running it on tensors that have only a shape. The first time this takes half a second."""
    kwargs = dict(kwargs)
    if any(a.name == "device" for a in func._schema.arguments):
        kwargs["device"] = "meta"
    try:
        return sum(t.numel() for t in _tensors(func(*tree_map(_shape_only, args), **tree_map(_shape_only, kwargs))))
    except Exception:  # what takes a number out of a tensor; or its arguments are wrong, which it says itself
        return 0


def _shape_only(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _tensors(x: Any) -> list[Tensor]:
    return [t for t in tree_flatten(x)[0] if isinstance(t, Tensor)]


def _work(name: str, args: Sequence[Any]) -> int:
    """Multiply-adds for each element of the result."""
    if name == "convolution":
        return math.prod(args[1].shape[1:])
    if name in ("mm", "addmm", "bmm"):
        return int(args[-1].shape[-2])
    return math.prod(args[1]) if name in _POOLS else 1


def _copies(name: str, args: Sequence[Any]) -> int:
    """In float64 a convolution copies each pixel's window: elements for each one of the result."""
    return math.prod(args[1].shape[1:]) // max(1, len(args[1])) if name == "convolution" else 0


# Nodes


def check_nodes(model: onnx.ModelProto, no_limits: bool = False) -> None:
    """Raises LimitError if there are too many nodes, once local functions are inlined, or these call themselves."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    every = [node for nodes in (model.graph.node, *(f.node for f in model.functions)) for node in nodes]
    longest = max((len(name) for node in every for name in (*node.input, *node.output)), default=0)
    known: dict[tuple[str, str, str], tuple[int, int]] = {}

    def size(nodes: Sequence[onnx.NodeProto], depth: int) -> tuple[int, int]:
        """How many nodes there will be, and how many bytes."""
        count = total = 0
        for node in _with_subgraphs(nodes):
            key = (node.domain, node.op_type, node.overload)
            if key in functions:
                if depth > _DEEPEST:
                    raise LimitError(f"its local function '{node.op_type}' calls itself, or calls go too deep")
                if key not in known:
                    known[key] = size(functions[key].node, depth + 1)
                more = known[key]
            else:
                more = max(1, len(node.input) // 4), node.ByteSize() + longest * (len(node.input) + len(node.output))
            count, total = count + more[0], total + more[1]
        return count, total

    count, total = size(model.graph.node, 0)
    if count > _MOST_NODES and not no_limits:
        raise LimitError(f"has {count:,} operations, the limit is {_MOST_NODES:,}{ANYWAY}")
    if functions and total > (1 << 24) + 2 * model.ByteSize() and not no_limits:
        raise LimitError(f"has {total:,} bytes once its local functions are inlined{ANYWAY}")


def _with_subgraphs(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for a in node.attribute:
            for graph in (*([a.g] if a.HasField("g") else ()), *a.graphs):
                yield from _with_subgraphs(graph.node)
