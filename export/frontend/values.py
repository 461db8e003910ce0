"""The parts of a recording: operations on the image, and rearrangements of their elements.

Every element that an operation computes has its own number. A tensor is known by the numbers of its elements, so views,
copies, slices, padding, concatenation and writes into a part of a tensor need no operations. A tensor is either the
result of one operation in its order (`Call`), or elements of several results in another order (`Arranged`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import torch

from ovsw.export import ir

if TYPE_CHECKING:
    from typing_extensions import TypeGuard  # Python 3.9 has none


@dataclass(frozen=True)
class Where:
    """Where an operation is in the user's code: its name in the graph, the module and its type, file and line."""

    name: str
    path: str = ""
    layer: str = ""
    line: str = ""

    def __str__(self) -> str:
        inside = f"in {self.path or 'the network'}" + (f" ({self.layer})" if self.layer else "")
        return f"{inside}, {self.line}" if self.line else inside


class Place(NamedTuple):
    """A result of a network: that of the `number`-th operation of this name in a module, or of a call of the module."""

    path: str
    op: str  # "": the module's own result
    number: int  # from 1


class Places:
    """Counts operations and calls while a network runs, so that every run of it gives a result the same place."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def next(self, path: str, op: str = "") -> Place:
        self.counts[path, op] += 1
        return Place(path, op, self.counts[path, op])

    def total(self, place: Place) -> int:
        """How many places there are that differ from this one only in their number."""
        return self.counts[place.path, place.op]


@dataclass(eq=False)
class Call:
    """One result of an operation. `args` are values, constant tensors and plain numbers; `start` is the number of its
    first element.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    where: Where
    start: int
    output: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def arg(self, i: int, name: str = "", default: Any = None) -> Any:
        return self.args[i] if i < len(self.args) else self.kwargs.get(name, default)


@dataclass(eq=False)
class Arranged:
    """Elements of other calls, by their numbers. `sources` are these calls in the order of their numbers."""

    index: np.ndarray
    sources: list[Call]
    where: Where
    _order: Any = field(default=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.index.shape

    def located(self) -> tuple[np.ndarray, np.ndarray]:
        """For every element which of the sources it is from, and its place there."""
        starts = np.array([source.start for source in self.sources])
        which = np.searchsorted(starts, self.index, side="right") - 1
        return which, self.index - starts[which]

    def order(self) -> np.ndarray | None:
        """The places of the elements in their source, if these are all elements of one call, each once."""
        if self._order is False:
            self._order = None
            if len(self.sources) == 1 and self.index.size == self.sources[0].size:
                places = (self.index - self.sources[0].start).reshape(-1)
                if (np.bincount(places, minlength=places.size) == 1).all():
                    self._order = places
        return self._order

    def whole(self) -> Call | None:
        """The call of which these are all elements in their order, in another shape."""
        order = self.order()
        same = order is not None and bool((order[:-1] < order[1:]).all())
        return self.sources[0] if same else None


Value = Union[Call, Arranged]


def numbers_of(value: Value) -> np.ndarray:
    """The numbers of a value's elements, in their order."""
    if isinstance(value, Arranged):
        return value.index.reshape(-1)
    return np.arange(value.start, value.start + value.size)


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ELEMENTWISE = names(
    """abs add sub rsub mul div neg sign sgn relu relu6 hardtanh clamp clamp_min clamp_max leaky_relu _prelu_kernel
    sigmoid tanh silu hardswish hardsigmoid gelu elu celu selu mish softplus erf erfc where masked_fill gt ge lt le eq
    ne round floor ceil trunc fix frac pow square sqrt rsqrt reciprocal exp expm1 log log1p log2 sin cos atan asin sinh
    maximum minimum fmax fmin heaviside logical_not logical_and logical_or logical_xor bitwise_not bitwise_and
    bitwise_or bitwise_xor rrelu_with_noise hardshrink softshrink threshold positive copysign"""
)


def same_call(index: np.ndarray, sources: list[Call]) -> Call | None:
    """The call of which these are the elements, in its shape."""
    call = sources[0]
    if len(sources) > 1 or call.shape != index.shape:
        return None
    return call if np.array_equal(index.reshape(-1), np.arange(call.start, call.start + call.size)) else None


def is_value(x: Any) -> TypeGuard[Value]:
    return isinstance(x, (Call, Arranged))


def frame(shape: tuple[int, ...]) -> ir.Shape:
    """A tensor of one image as a map: (1, C, H, W) without the batch, vectors as maps of one pixel, rows as H = 1.

    The order of the elements is the tensor's.
    """
    rest = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
    if len(rest) < 2:
        return (math.prod(rest), 1, 1)
    if len(rest) == 2:
        return (rest[0], 1, rest[1])
    return (math.prod(rest[:-2]), rest[-2], rest[-1])


def array(x: Any) -> np.ndarray:
    """A constant in float64."""
    if isinstance(x, torch.Tensor):
        return x.detach().to("cpu", torch.float64).contiguous().numpy()
    return np.asarray(x, np.float64)


def per_channel(x: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant that is broadcast to a tensor of `shape`: one number (1,), or one per channel (C,), or else None."""
    a = array(x)
    if a.size and (a == a.flat[0]).all():
        return a.reshape(-1)[:1]
    c, h, w = frame(shape)
    if a.ndim == len(shape) >= 2 and a.size == a.shape[1] == c == shape[1]:
        return a.reshape(-1)
    planes = np.broadcast_to(a, shape).reshape(c, h * w)
    return planes[:, 0].copy() if (planes == planes[:, :1]).all() else None


ZERO = Call("constant", (torch.zeros(()),), {}, (), Where("constant"), start=0)  # the first of every recording
