"""The recorder: runs a network once on an image and notes the operations that depend on it.

It works below autograd, as a dispatch mode, so it sees every operation regardless of coding style. Operations on
weights alone are executed and become constants. The elements of a tensor are looked up by its storage (see `values`),
so nothing is recorded for views, `.data`, `detach`, copies or assignments to a part of a tensor.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

import ovsw
from ovsw.export.errors import ExportError
from ovsw.export.frontend.modes import Watcher, module_hooks
from ovsw.export.frontend.values import (
    ELEMENTWISE,
    ZERO,
    Arranged,
    Call,
    Place,
    Places,
    Value,
    Where,
    array,
    is_value,
    names,
    numbers_of,
    per_channel,
    same_call,
)

# Operations that only move elements, with the places of the arguments that hold elements. They are run on the numbers.
_MOVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        names("""clone _to_copy to contiguous lift_fresh alias detach index index_select gather take flip roll repeat
        repeat_interleave reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle im2col cat stack
        constant_pad_nd _unsafe_index index_fill zero view_copy tril triu _unsafe_view as_strided"""),
        (0,),
    ),
    **dict.fromkeys(names("slice_scatter select_scatter diagonal_scatter as_strided_scatter copy fill"), (0, 1)),
    "index_put": (0, 2),
    "_unsafe_index_put": (0, 2),
    "index_copy": (0, 3),
    "scatter": (0, 3),
    "masked_scatter": (0, 2),
    "masked_fill": (0, 2),
    "where": (1, 2),
}
_FILLS = {"constant_pad_nd": (2, "value"), "index_fill": (3, "value")}  # where a number fills

_SHAPE_ONLY = names("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided")
_READS_NUMBERS = {
    "_local_scalar_dense": "a number or a condition is taken from the image (.item(), float(), bool(), if, while)",
    "equal": "a condition is taken from the image (torch.equal)",
    "nonzero": "positions are taken from the image (nonzero, or a mask as an index that is read)",
    "masked_select": "a mask that depends on the image selects elements",
    "unique_consecutive": "the result's shape depends on the image (unique)",
    "_unique2": "the result's shape depends on the image (unique)",
    "bincount": "the result's shape depends on the image (bincount)",
}
_LEAVES_TORCH = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
_FOLDERS = (Path(torch.__file__).parent, Path(__file__).resolve().parents[1], Path(ovsw.__file__).parent / "train")
_LIBRARY = tuple(str(folder) + os.sep for folder in _FOLDERS)  # no code of users


@dataclass
class Recording:
    """What a network does with an image: all calls in their order, what it returns, and which values it had where."""

    calls: list[Call]
    outputs: list[Value]
    numbers: int  # of elements so far
    values: dict[Place, Value]
    places: Places


Layers = Callable[[nn.Module], Any]


def record(
    network: Callable[[Tensor], Any],
    image: Tensor,
    names: dict[nn.Module, str] | None = None,
    opaque: Layers = lambda module: None,
) -> Recording:
    """Runs `network` on `image` and records. `names` are the paths of modules.

    A module for which `opaque` returns something is recorded as one call "layer", whose arguments are that thing, the
    module and its inputs. Raises ExportError, which says where, if no single sequence of operations computes the result
    of every image.
    """
    recorder = Recorder(names or {}, opaque)
    with torch.no_grad(), recorder.hooks():
        image = image.clone()
        recorder.fresh("image", (), {}, image, Where(recorder.name("x")))
        with _Leaving(recorder), recorder:
            result = network(image)
    return Recording(recorder.calls, recorder.results(result), recorder.next, recorder.values, recorder.places)


@contextlib.contextmanager
def scope(path: str, layer: str = "") -> Iterator[None]:
    """Names what is recorded meanwhile, for front ends that interpret a program instead of calling modules."""
    recorder = Recorder.active
    if recorder is None:
        yield
        return
    recorder.modules.append(_Level(path, layer, True, len(recorder.calls)))
    try:
        yield
    finally:
        recorder.modules.pop()


@dataclass
class _Level:
    """A module that is being called. `muted`: it is opaque, or within one that is; `inputs` are an opaque one's."""

    path: str
    layer: str
    leaf: bool
    first: int  # of its calls
    known: Any = None
    muted: bool = False
    inputs: tuple[Any, ...] = ()


@dataclass
class _Storage:
    """The numbers of the elements in a storage. While a call has all of them in order, only the call is kept."""

    memory: torch.UntypedStorage  # kept alive, so that its address stays its own; tensors may move to another one
    width: int
    where: Where
    call: Call | None = None
    numbers: Tensor | None = None
    known: dict[tuple[Any, ...], Value | None] = field(default_factory=dict)  # values of views, until the next write

    @staticmethod
    def of(tensor: Tensor, where: Where, call: Call | None = None, numbers: Tensor | None = None) -> _Storage:
        return _Storage(tensor.untyped_storage(), tensor.element_size(), where, call, numbers)

    def writable(self) -> Tensor:
        self.known.clear()
        if self.numbers is None:
            assert self.call is not None
            self.numbers = torch.arange(self.call.start, self.call.start + self.call.size)
            self.call = None
        return self.numbers


class Recorder(Watcher):  # type: ignore[no-untyped-call]
    active: Recorder | None = None

    def __init__(self, names: dict[nn.Module, str], opaque: Layers) -> None:
        super().__init__()
        self.names, self.opaque = names, opaque
        self.calls: list[Call] = []
        self.modules: list[_Level] = []
        self.storages: dict[int, _Storage] = {}
        self.random: dict[int, tuple[torch.UntypedStorage, str]] = {}
        self.counts: Counter[str] = Counter()
        self.arranged: dict[tuple[Any, ...], Arranged] = {}
        self.twins: dict[tuple[Any, ...], Call] = {}
        self.next = ZERO.size
        self.calls.append(ZERO)
        self.places = Places()
        self.values: dict[Place, Value] = {}  # of all results that depend on the image

    # What is being called.

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        before, Recorder.active = Recorder.active, self
        try:
            with module_hooks(self.enter, self.leave):
                yield
        finally:
            Recorder.active = before

    @property
    def muted(self) -> bool:
        return bool(self.modules) and self.modules[-1].muted

    def enter(self, module: nn.Module, inputs: Any) -> None:
        path = self.names.get(module, self.modules[-1].path if self.modules else "")
        muted = self.muted
        known = None if muted else self.opaque(module)
        leaf = not any(True for _ in module.children())
        level = _Level(path, type(module).__name__, leaf, len(self.calls), known, muted)
        if known is not None:
            values = map(self.read, _tensors(inputs))
            level.inputs, level.muted = tuple(v for v in values if v is not None), True
        self.modules.append(level)

    def leave(self, module: nn.Module, inputs: Any, result: Any) -> None:
        level = self.modules.pop()
        if level.leaf and level.path:
            self.rename(level)
        if not isinstance(result, Tensor):
            return
        if level.known is not None and level.inputs:
            where = Where(level.path or level.layer, level.path, level.layer)
            self.fresh("layer", (level.known, module, *level.inputs), {}, result, where)
        if not self.muted:
            self.note(self.places.next(level.path), result)

    def rename(self, level: _Level) -> None:
        """If a layer has several operations, only the main one keeps the layer's name; the others get a suffix."""
        calls = self.calls[level.first :]
        if len({call.op for call in calls if call.op != "constant"}) > 1:
            for call in calls:
                if call.op not in _MAIN and call.where.name == level.path:
                    call.where = replace(call.where, name=f"{level.path}.{_NAMES.get(call.op, call.op.strip('_'))}")

    def where(self, op: str) -> Where:
        level = self.modules[-1] if self.modules else _Level("", "", False, 0)
        if level.path and (level.leaf or op in _MAIN):
            name = level.path if level.leaf else self.name(level.path)
        else:
            name = self.name(op)
        return Where(name, level.path, level.layer, _line())

    def name(self, op: str) -> str:
        """A unique name: that of the operation, with a number from the second one on."""
        plain = _NAMES.get(op, op.strip("_"))
        self.counts[plain] += 1
        return plain if self.counts[plain] == 1 else f"{plain}_{self.counts[plain] - 1}"

    def note(self, place: Place, result: Tensor) -> None:
        value = self.read(result)
        if value is not None:
            self.values[place] = value

    def refuse(self, what: str) -> ExportError:
        where = self.where("refused")
        return ExportError(f"the network cannot be recorded: {what}, {where}")

    # Numbers of elements.

    def numbered(self, size: int) -> int:
        start = self.next
        self.next += size
        return start

    def constant(self, value: Any) -> Call:
        tensor = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(float(value))
        start = self.numbered(tensor.numel())
        call = Call("constant", (tensor,), {}, tuple(tensor.shape), Where("constant"), start, dtype=tensor.dtype)
        self.calls.append(call)
        return call

    def fresh(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Tensor,
        where: Where,
        output: int = 0,
        shape: tuple[int, ...] | None = None,
        order: np.ndarray | None = None,
    ) -> None:
        """A new call, whose elements `result` holds from now on; by default in its shape and order."""
        shape = shape or tuple(result.shape)
        if op in ELEMENTWISE:
            padded = self.apart(args, result)
            if padded is not None:
                args, inside, places = padded
                call = self.call(op, args, kwargs, next(a.shape for a in args if is_value(a)), where, result.dtype)
                around = self.constant(result.reshape(-1)[torch.from_numpy(~inside)])
                numbers = np.empty(result.numel(), np.int64)
                numbers[inside], numbers[~inside] = call.start + places, around.start + np.arange(around.size)
                self.write(result, torch.from_numpy(numbers).view(result.shape), where)
                return
            args, shape, order = _in_order_of_source(args, shape)
        call = self.call(op, args, kwargs, shape, where, result.dtype, output)
        if order is None:
            self.write(result, torch.arange(call.start, call.start + call.size).view(result.shape), where, call)
        else:
            self.write(result, torch.from_numpy(call.start + order).view(result.shape), where)

    def call(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shape: tuple[int, ...],
        where: Where,
        dtype: torch.dtype = torch.float32,
        output: int = 0,
    ) -> Call:
        """A call, or the one before that computes the same."""
        key = _signature(op, args, kwargs, shape, output)
        if key is None or key not in self.twins:
            call = Call(op, args, kwargs, shape, where, self.numbered(math.prod(shape)), output, dtype)
            self.calls.append(call)
            if key is None:
                return call
            self.twins[key] = call
        return self.twins[key]

    def apart(self, args: tuple[Any, ...], result: Tensor) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray] | None:
        """Splits an elementwise operation on a map with constants around it, as the constants are computed already.

        Returns the arguments with the map alone, which elements of the result come from it, and their places in it.
        """
        values = [a for a in args if is_value(a)]
        if len(values) != 1 or not isinstance(values[0], Arranged) or values[0].shape != tuple(result.shape):
            return None
        if any(isinstance(a, Tensor) and a.numel() > 1 for a in args):
            return None
        sources = [s for s in values[0].sources if s.op != "constant"]
        if len(sources) != 1 or len(values[0].sources) == 1:
            return None
        index, source = values[0].index.reshape(-1), sources[0]
        inside = (index >= source.start) & (index < source.start + source.size)
        places = index[inside] - source.start
        if len(places) != source.size or (np.bincount(places, minlength=source.size) != 1).any():
            return None
        return tuple(source if a is values[0] else a for a in args), inside, places

    def write(self, tensor: Tensor, numbers: Tensor, where: Where, call: Call | None = None) -> None:
        """Notes that a tensor holds these elements; `call` is set if they are those of that call in their order."""
        if tensor.numel() == 0:
            return
        address, size = tensor.untyped_storage().data_ptr(), _elements(tensor)
        plain = tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.numel() == size
        if plain and call is not None:
            self.storages[address] = _Storage.of(tensor, where, call)
            return
        storage = self.storages.get(address)
        if storage is None:
            storage = _Storage.of(tensor, where, numbers=torch.full((size,), ZERO.start))
            self.storages[address] = storage
        storage.where = where
        _view(storage.writable(), tensor).copy_(numbers)

    def adopt(self, tensor: Tensor) -> None:
        """Numbers the elements of a constant before other elements are written into its storage."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self.storages and tensor.numel():
            everything = torch.as_strided(tensor.detach(), (_elements(tensor),), (1,), 0)
            call = self.constant(everything)
            self.storages[address] = _Storage.of(tensor, call.where, call)

    def read(self, tensor: Tensor) -> Value | None:
        """What a tensor holds, or None if that is constant."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        storage = self.storages.get(tensor.untyped_storage().data_ptr())
        if storage is None or tensor.numel() == 0:
            return None
        call = storage.call
        if call is not None and tensor.numel() == call.size and tensor.is_contiguous():
            if call.op == "constant":
                return None
            if tuple(tensor.shape) == call.shape:
                return call
        if tensor.element_size() != storage.width:
            raise self.refuse("a tensor of the image is read as numbers of another size (view(dtype))")
        geometry = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if geometry not in storage.known:
            storage.known[geometry] = self.arrangement(self.numbers(tensor).numpy(), storage.where)
        return storage.known[geometry]

    def numbers(self, tensor: Tensor) -> Tensor:
        """The numbers of a tensor's elements, in its shape; those of a constant if it is one."""
        storage = self.storages.get(tensor.untyped_storage().data_ptr())
        if storage is None or tensor.numel() == 0:
            return torch.from_numpy(numbers_of(self.constant(tensor))).view(tensor.shape)
        if storage.call is not None:
            return storage.call.start + _view(torch.arange(_elements(tensor)), tensor)
        assert storage.numbers is not None
        return _view(storage.numbers, tensor).clone()

    def arrangement(self, index: np.ndarray, where: Where) -> Value | None:
        starts = np.fromiter((call.start for call in self.calls), np.int64, len(self.calls))
        first, last = np.searchsorted(starts, [index.min(), index.max()], side="right") - 1
        inner = starts[first : last + 1]
        used = np.bincount(np.searchsorted(inner, index.reshape(-1), side="right") - 1) if first < last else np.ones(1)
        sources = [self.calls[first + i] for i in np.flatnonzero(used)]
        if all(call.op == "constant" for call in sources):
            return None
        call = same_call(index, sources)
        if call is not None:
            return call
        key = (index.shape, index.tobytes())
        return self.arranged.setdefault(key, Arranged(np.ascontiguousarray(index), sources, where))

    # Operations.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.muted:
            return func(*args, **kwargs)
        place = self.places.next(self.modules[-1].path if self.modules else "", op_name(func))
        tensors = list(_tensors(args, kwargs.values()))
        if not any(self.read(t) is not None for t in tensors):
            result = self.untraced(func, args, kwargs, tensors)
            for t in _written(func, args, kwargs):
                if isinstance(t, Tensor) and t.untyped_storage().data_ptr() in self.storages:  # beside traced elements
                    self.write(
                        t, torch.from_numpy(numbers_of(self.constant(t))).view(t.shape), self.where(op_name(func))
                    )
            return result
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # a composite operation, which inference mode does not split into its parts
                return func.decompose(*args, **kwargs)
        memory = {t.untyped_storage().data_ptr() for t in tensors}
        result = self.traced(func, args, kwargs, tensors)
        first = main_result(result)
        if first is not None and (
            place.op.endswith("_") or first.untyped_storage().data_ptr() not in memory
        ):  # no view
            self.note(place, first)
        return result

    def untraced(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Executes an operation that does not depend on the image; tracks random numbers until they are overwritten."""
        name = op_name(func)
        result = _defined(name, func(*args, **kwargs))
        drawn = _line() if torch.Tag.nondeterministic_seeded in func.tags else ""
        sources = tensors[1:] if name in ("copy_", "fill_", "zero_") else tensors
        marks = (self.random.get(t.untyped_storage().data_ptr()) for t in sources if _is_plain(t))
        drawn = drawn or next((mark[1] for mark in marks if mark is not None), "")
        if not drawn and not self.random:
            return result
        for tensor in (t for t in _tensors([result]) if _is_plain(t)):
            if drawn:
                self.random[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage(), drawn)
            elif tensor.numel() == _elements(tensor):
                self.random.pop(tensor.untyped_storage().data_ptr(), None)
        return result

    def traced(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        op = op_name(func).rstrip("_")
        if op in _SHAPE_ONLY:
            return _defined(op, func(*args, **kwargs))
        if op in _READS_NUMBERS:
            raise self.refuse(
                f"{_READS_NUMBERS[op]}; a file holds one sequence of operations for all images, so use torch.where"
            )
        if op == "index" and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]):
            raise self.refuse("a mask that depends on the image selects elements; torch.where keeps all of them")
        self.check_random(func, op, args, kwargs, tensors)
        written = [t for t in _written(func, args, kwargs) if isinstance(t, Tensor)]
        moved = self.moved(func, op, args, kwargs)
        values: dict[int, Any] = {}
        for t in tensors:
            if id(t) not in values and moved is None:
                value = self.read(t)
                values[id(t)] = t.detach().clone() if value is None else value
        for t in written:
            self.adopt(t)
        result = func(*args, **kwargs)
        results = [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, Tensor)]
        where = self.where(op)
        if moved is not None:
            for r, numbers in zip(written or results, moved):
                self.write(r, numbers.expand(r.shape), where)
            return result
        known = lambda a: values.get(id(a), a) if isinstance(a, Tensor) else a  # noqa: E731
        call_args, call_kwargs = tree_map(known, (args, kwargs))
        call_kwargs = {key: value for key, value in call_kwargs.items() if key != "out"}
        if op in _PRODUCTS and self.product(op, call_args, call_kwargs, results[0], where):
            return result
        op, call_args = _plain_form(op, tuple(call_args), results[0] if results else None)
        addresses = {t.untyped_storage().data_ptr() for t in written}
        for i, r in enumerate(results):
            address = r.untyped_storage().data_ptr()
            if r.numel() and (address in addresses or address not in self.storages):  # otherwise it is a view
                self.fresh(op, call_args, call_kwargs, r, where, i)
        return result

    def product(self, op: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor, where: Where) -> bool:
        """A product of matrices, one of them constant, as a layer on a vector, or on every pixel of a map."""
        layer = _as_layer(op, args, kwargs)
        if layer is None:
            return False
        x, weight, bias, flipped = layer  # x (inputs, pixels)
        outputs, pixels = len(weight), x.shape[1]
        if pixels == 1:
            value = self.arrangement(x.reshape(1, -1), where)
            self.fresh("linear", (value, weight, bias), {}, result, where, shape=(1, outputs))
            return True
        value = self.arrangement(x.reshape(1, len(x), 1, pixels), where)
        whole = value.whole() if isinstance(value, Arranged) else None
        if whole is not None and len(whole.shape) == 4 and whole.shape[1] == len(x):
            value = whole
        shape = (1, outputs, *(value.shape[2:] if value is not None else ()))
        order = np.arange(outputs * pixels)
        order = order if flipped else order.reshape(outputs, pixels).T.reshape(-1)
        self.fresh("pointwise", (value, weight, bias), {}, result, where, shape=shape, order=order)
        return True

    def moved(self, func: Any, op: str, args: Any, kwargs: Any) -> list[Tensor] | None:
        """The numbers of the result's elements if the operation only moves elements; None for other operations."""
        if op not in _MOVES or not self.only_moves(op, args, kwargs):
            return None
        args, kwargs = list(args), {k: v for k, v in kwargs.items() if k not in ("dtype", "device", "layout", "out")}
        if op in ("clone", "_to_copy", "to", "contiguous", "lift_fresh", "alias", "detach", "view_copy"):
            return [self.numbers(args[0])]
        if op == "copy":
            return [self.numbers(args[1])]
        if op == "as_strided":  # strides of a dense tensor; of others only what takes all their elements in order
            dense, numbers = args[0].is_contiguous(), self.numbers(args[0]).contiguous()
            return [numbers.as_strided(args[1], args[2]) if dense else numbers.reshape(args[1])]
        if op in ("fill", "zero"):
            return [torch.as_tensor(self.moving(args[1]) if op == "fill" else ZERO.start).long()]
        for place in (i for i in _MOVES[op] if i < len(args)):
            many = isinstance(args[place], (list, tuple))
            args[place] = [self.moving(t) for t in args[place]] if many else self.moving(args[place])
        fill = _FILLS.get(op)
        if fill is not None:
            value = args[fill[0]] if len(args) > fill[0] else kwargs.get(fill[1])
            number = float(self.constant(value or 0.0).start)
            args, kwargs = args[: fill[0]], {**{k: v for k, v in kwargs.items() if k != fill[1]}, fill[1]: number}
        functional = getattr(torch.ops.aten, op)
        result = functional(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else [result]
        return [r.to(torch.int64) for r in results]

    def only_moves(self, op: str, args: Any, kwargs: Any) -> bool:
        """Whether all that decides where elements go is constant."""
        data = _MOVES[op]
        others = [a for i, a in enumerate(args) if i not in data]
        if any(self.read(t) is not None for t in _tensors(others, kwargs.values())):
            return False
        if op == "as_strided":
            from_start = not (args[3] if len(args) > 3 else kwargs.get("storage_offset"))
            return from_start and (args[0].is_contiguous() or math.prod(args[1]) == args[0].numel())
        if op in ("_to_copy", "to", "copy"):
            source = args[1] if op == "copy" else args[0]
            target = args[0].dtype if op == "copy" else kwargs.get("dtype") or source.dtype
            return not source.dtype.is_floating_point or target.is_floating_point
        return op != "index_put" or not (len(args) > 3 and args[3])  # which adds instead

    def moving(self, x: Any) -> Tensor | float:
        """The numbers of the elements in float64, which every operation takes and which holds them exactly."""
        return self.numbers(x).double() if isinstance(x, Tensor) else float(self.constant(x).start)

    def check_random(self, func: Any, op: str, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        training = op != "rrelu_with_noise" or bool(args[4] if len(args) > 4 else kwargs.get("training", False))
        if torch.Tag.nondeterministic_seeded in func.tags and training:
            raise self.refuse(f"{op} is random, so the result for an image is not unique")
        for t in tensors[1:] if op == "copy" else tensors:
            mark = self.random.get(t.untyped_storage().data_ptr()) if _is_plain(t) else None
            if mark is not None:
                raise self.refuse(f"random numbers (drawn in {mark[1]}) are used, so the result is not unique")

    # Results.

    def results(self, result: Any) -> list[Value]:
        values = [self.result(r) for r in (result if isinstance(result, (tuple, list)) else [result])]
        if not values:
            raise ExportError("the network returns nothing")
        return values

    def result(self, x: Any) -> Value:
        if isinstance(x, dict):
            keys = ", ".join(repr(key) for key in list(x)[:6])
            raise ExportError(
                f"the network returns a dict with the keys {keys}; export what you need of it, such as "
                f"lambda x: model(x)[{next(iter(x), 'logits')!r}]"
            )
        if not isinstance(x, Tensor):
            raise ExportError(
                f"the network returns {type(x).__name__} where a tensor is expected; export a function that returns "
                "a tensor or a tuple of tensors, such as lambda x: model(x)[0]"
            )
        value = self.read(x)
        if value is None:
            raise ExportError("the network returns a tensor that does not depend on its input")
        return value


class _Leaving(TorchFunctionMode):
    """Refuses to convert values that depend on the image to numpy or Python, where they could not be recorded."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = func in _LEAVES_TORCH and isinstance(args[0], Tensor) and self.recorder.read(args[0]) is not None
        if leaves and not self.recorder.muted:
            raise self.recorder.refuse(f"Tensor.{func.__name__}() takes values of the image out of torch")
        return func(*args, **(kwargs or {}))


_NAMES = {
    "constant_pad_nd": "pad",
    "native_batch_norm": "batch_norm",
    "convolution": "conv2d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "max_pool2d_with_indices": "max_pool2d",
    "_prelu_kernel": "prelu",
    "rrelu_with_noise": "rrelu",
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
}
_FEW = 4096  # elements
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
_MAIN = ("linear", "pointwise", "convolution", "mm", "addmm", "bmm", "layer")


def op_name(func: Any) -> str:
    space, name = func._schema.name.split("::")
    return name if space == "aten" else f"{space}::{name}"


def main_result(result: Any) -> Tensor | None:
    """The only map that an operation returns, or the first, beside which others are statistics or positions."""
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    return first if isinstance(first, Tensor) and first.is_floating_point() else None


def _tensors(*parts: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in arguments or results of operations, and in lists of them."""
    for part in parts:
        for x in part:
            if isinstance(x, Tensor):
                yield x
            elif isinstance(x, (list, tuple)):
                yield from _tensors(x)
            elif isinstance(x, dict):
                yield from _tensors(x.values())


def _is_plain(t: Tensor) -> bool:
    return t.layout == torch.strided and t.device.type != "meta"


def _defined(op: str, result: Any) -> Any:
    """Memory that was asked for and not written yet holds zeros, so that all of it is the same constant."""
    return result.zero_() if "empty" in op and isinstance(result, Tensor) else result


def _elements(tensor: Tensor) -> int:
    """How many elements its storage has room for."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _view(flat: Tensor, like: Tensor) -> Tensor:
    return torch.as_strided(flat, like.shape, like.stride(), like.storage_offset())


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[i] if i < len(args) else kwargs.get(argument.name)


def _plain_form(op: str, args: tuple[Any, ...], result: Tensor | None) -> tuple[str, tuple[Any, ...]]:
    """`x[mask] = value` is a `where`, and conversions from real numbers are operations with names."""
    if op in ("index_put", "_unsafe_index_put") and len(args[1]) == 1 and is_value(args[1][0]):
        mask = args[1][0]
        value = args[2]
        if mask.shape == args[0].shape and (is_value(value) or value.numel() == 1):
            return "where", (mask, value, args[0])
    if op == "masked_fill":
        return "where", (args[1], args[2], args[0])
    if op in ("_to_copy", "to", "copy") and result is not None:
        source = args[1] if op == "copy" else args[0]
        return ("ne", (source, 0.0)) if result.dtype == torch.bool else ("trunc", (source,))
    return op, args


def _signature(op: str, args: Any, kwargs: Any, shape: tuple[int, ...], output: int) -> tuple[Any, ...] | None:
    """The same for operations that give the same result; None for those with weights, which are not compared."""
    parts: list[Any] = []
    for a in tree_flatten((args, sorted(kwargs.items())))[0]:
        if isinstance(a, Tensor):
            if a.numel() > _FEW:
                return None
            a = (tuple(a.shape), a.dtype, a.detach().cpu().numpy().tobytes())
        parts.append(a if not isinstance(a, float) else (a, math.copysign(1.0, a)))
    return (op, shape, output, *parts) if op not in ("layer", "image") else None


def _in_order_of_source(
    args: tuple[Any, ...], shape: tuple[int, ...]
) -> tuple[tuple[Any, ...], tuple[int, ...], np.ndarray | None]:
    """An elementwise operation on elements that all stand in the same other order: better done before they are moved.

    So a ReLU of a flattened map is the flattened ReLU of the map. Gives arguments and shape there, and the order of the
    result's elements; None for the order if nothing changes.
    """
    values = [a for a in args if is_value(a)]
    if all(isinstance(v, Call) for v in values) or any(v.shape != shape for v in values):
        return args, shape, None
    places = [np.arange(v.size) if isinstance(v, Call) else v.order() for v in values]
    sources = [v if isinstance(v, Call) else v.sources[0] for v in values]
    order, there = places[0], sources[0].shape
    if order is None or any(p is None or not np.array_equal(p, order) for p in places):
        return args, shape, None
    if any(s.shape != there for s in sources):
        return args, shape, None
    moved: list[Any] = []
    waiting = iter(sources)
    for a in args:
        if is_value(a):
            moved.append(next(waiting))
        elif isinstance(a, Tensor) and a.numel() > 1:
            flat = np.empty(math.prod(shape))
            flat[order] = np.broadcast_to(array(a), shape).reshape(-1)
            if per_channel(flat.reshape(there), there) is None and per_channel(a, shape) is not None:
                return args, shape, None
            moved.append(torch.from_numpy(flat.reshape(there)))
        else:
            moved.append(a)
    return tuple(moved), there, order


def _as_layer(
    op: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[np.ndarray, Tensor, Tensor | None, bool] | None:
    """A product as numbers of elements (inputs, pixels), weight (outputs, inputs), bias (outputs), and whether its
    result is (outputs, pixels) and not (pixels, outputs). None if both or neither of the factors are constant.
    """
    bias = None
    if op in ("addmm", "baddbmm", "addmv"):
        bias, args = args[0], args[1:]
    left, right = args[:2]
    if is_value(left) == is_value(right) or is_value(bias):
        return None
    if any(float(kwargs.get(key, 1)) != 1 for key in ("alpha", "beta")):
        return None
    flipped = is_value(right)
    constant, value = (left, right) if flipped else (right, left)
    index = numbers_of(value).reshape(value.shape)
    if constant.ndim == 3:
        if not bool((constant == constant[:1]).all()) or (flipped and len(index) > 1):
            return None
        constant, index = constant[0], index[0] if flipped else index.reshape(-1, index.shape[-1])
    if index.ndim == 1:  # a vector, on either side
        index, flipped = (index[:, None], True) if flipped else (index[None], False)
    if constant.ndim == 1:
        constant = constant[None] if flipped else constant[:, None]
    weight = constant if flipped else constant.t()
    x = index if flipped else index.T
    if bias is not None:
        if bias.numel() not in (1, len(weight)):
            return None
        bias = bias.reshape(-1).expand(len(weight))
    return x, weight, bias, flipped


def _line() -> str:
    """File and line of the user's code that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARY) and not file.startswith("<"):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
