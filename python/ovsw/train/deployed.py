"""Training in the deployed arithmetic: a network whose forward is that of its integer file, to the last bit.

    deployed = Deployed(model, (1, 3, 32, 32), mean="cifar10", std="cifar10", weights="int8")
    freeze(model.train())  # batch norms keep their statistics from here on
    F.cross_entropy(deployed(x), y).backward()  # and optimizer.step(), as with model(x)

`export_module` with the same arguments then writes the file whose logits `deployed(x)` has. At every call the exporter
makes that file of the weights as they are now, and the engine runs it. The module runs, too, and wherever it has a
value that the file stores, it goes on with the file's: gradients are those of the module itself at these values, as
rounding is passed straight through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ovsw import format as bnn
from ovsw.engine import NO_LIMIT, Engine
from ovsw.export.calibration import calibration_images
from ovsw.export.errors import ExportError
from ovsw.export.frontend.modes import Watcher, module_hooks
from ovsw.export.frontend.recorder import main_result, op_name, record
from ovsw.export.frontend.torch_module import Network, Runner, opaque, unwrapped
from ovsw.export.frontend.values import Place, Places
from ovsw.export.ops.fused import Lowered
from ovsw.export.options import ExportOptions
from ovsw.export.passes import build
from ovsw.export.passes.zeros import ends_at_zero
from ovsw.export.pipeline import image_shape
from ovsw.export.source import plain_input
from ovsw.export.validate import validate
from ovsw.networks import InputSpec
from ovsw.nn.binary import BinaryLayer
from ovsw.train.augment import normalise

_Put = Callable[[Place, Tensor], None]
_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd
_SIGNED = 2.0**-10  # of a step: whole centres are moved by this where a value of exactly 0 would have no sign
_OTHER = 0.5  # of a map's spread: values that are further away on average are those of another function


def freeze(model: nn.Module) -> nn.Module:
    """Puts batch norms and dropouts of a model into eval mode and leaves the rest as it is; `train()` undoes it.

    Weights and biases of batch norms stay trainable.
    """
    for module in model.modules():
        if isinstance(module, (_NORMS, _DROPOUTS)):
            module.eval()
    return model


class Deployed:
    """Computes the outputs that a module's integer file will have, differentiably.

        deployed = Deployed(model, (1, 3, 32, 32), mean="cifar10", std="cifar10", stem="int8")
        logits = deployed(images)  # float32 (n, classes)

    Args:
        model: any module that `export_module` makes an integer file of, on any device. Its weights may change between
            calls.
        example_input, mean, std, weights, stem, stream, calibration: as for `export_module`. Instead of the first
            three, the `input` of a network in `ovsw.networks` will do.

    Raises ExportError, which lists what cannot be exported, if the module has no integer form; so does a call, should
    the weights grow out of all bounds.
    """

    def __init__(
        self,
        model: Network,
        example_input: Tensor | Sequence[int] | InputSpec,
        *,
        mean: str | Sequence[float] | None = None,
        std: str | Sequence[float] | None = None,
        weights: str | None = None,
        stem: str | None = None,
        stream: str = "auto",
        calibration: str | np.ndarray | Tensor | None = None,
    ) -> None:
        self.options = ExportOptions(mean=mean, std=std, weights=weights, stem=stem, stream=stream)
        self.options.check()
        spec = example_input if isinstance(example_input, InputSpec) else plain_input(*image_shape(example_input))
        self.spec = self.options.normalisation_of(spec)
        self.calibration = calibration_images(calibration, None, self.spec)
        self.model = unwrapped(model)
        self.modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        for name, parameter in self.model.named_parameters() if self.modules else ():
            if parameter.dtype != torch.float32:
                raise ExportError(f"{name} is {_kind(parameter)}, expected float32 weights")
        self.runner = Runner(self.model, type(self.model).__name__, self.spec.shape)
        self._trusted: dict[tuple[bool, ...], Places] = {}  # by which modules are in training mode
        self._file()

    def __call__(self, images: Tensor) -> Any:
        """The outputs for normalised float32 images (n, channels, height, width), or for uint8 pixels of that shape.

        Normalised values are rounded to pixels first. Raises ValueError if a batch norm or dropout is not frozen.
        """
        self._check(images)
        file = self._file()
        array = images.detach().cpu().numpy()
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if images.dtype == torch.uint8 else array
        if not torch.is_grad_enabled():
            return _packed(file.shaped(file.engine.run(array), images.device))
        x = normalise(images, self.spec.mean, self.spec.std) if images.dtype == torch.uint8 else images
        with torch.autocast(images.device.type, enabled=False):  # half precision does not hold the sums
            return self._differentiable(file, array, x)

    def _file(self) -> _File:
        """The file that an export would write now."""
        recorded = self.runner.recorded()
        for shape in recorded.shapes:
            if len(shape) < 2 or shape[0] != 1:
                raise ExportError(f"the network returns {shape} for one image, expected the images first: (1, ..)")
        validate(recorded.graph, zero_weights="plus")
        widths, stream = self.options.widths({}), self.options.stream
        spec, images = self.spec, self.calibration.images
        built = build(recorded.graph, spec.mean, spec.std, {}, "integer", *widths, images, stream, every_map=True)
        meanings = list(map(_Meaning, built.lowered))
        number = {op.fused.value: i for i, op in enumerate(built.lowered)}
        became = {place: built.graph.became.get(node) for place, node in recorded.nodes.items()}
        ops = {place: number[node] for place, node in became.items() if node in number}
        data, threads = bnn.to_bytes(built.model), torch.get_num_threads()
        engine = Engine(data, threads, memory_limit=NO_LIMIT, work_limit=NO_LIMIT)
        return _File(engine, meanings, recorded.shapes, ops, recorded.places)

    def _differentiable(self, file: _File, array: np.ndarray, x: Tensor) -> Any:
        """The module's results, with the file's values wherever it stores some.

        In training a module may compute something in another way than in eval mode, which is what the file has. Which
        operations are the same is found on one image, again whenever other modules are in training mode.
        """
        modes = tuple(module.training for module in self.modules)
        is_new = modes not in self._trusted
        if is_new:
            self._trusted[modes] = self._places(x[:1])
        same = self._trusted[modes]
        chosen: dict[int, Place] = {}
        for place, op in file.ops.items():
            if same.total(place) == file.places.total(place):
                chosen.setdefault(op, place)
        outputs, maps = file.engine.run_with_maps(array, list(chosen))
        exact = {place: (file.meanings[op], numbers) for (op, place), numbers in zip(chosen.items(), maps)}

        def put(place: Place, result: Tensor) -> None:
            if place not in exact or result.shape[0] != len(x):
                return
            meaning, numbers = exact[place]
            before = result.clone() if is_new else None
            meaning.put(numbers, result)
            if before is not None and float((before - result).abs().mean()) > _OTHER * float(result.std()) + 1e-3:
                self._trusted.pop(modes, None)
                where = " in ".join(part for part in place[:2][::-1] if part)
                raise ExportError(f"{where}: in training mode it computes something else than in eval mode")

        _, results = self._run(x, put)
        wanted = file.shaped(outputs, x.device)
        if [tuple(y.shape) for y in results] != [tuple(y.shape) for y in wanted]:
            got = ", ".join(str(tuple(y.shape)) for y in results)
            raise ExportError(f"the network returns {got} in training mode, which is something else than in eval mode")
        return _packed([_Replaced.apply(y, e) for y, e in zip(results, wanted)])  # type: ignore[no-untyped-call]

    def _places(self, image: Tensor) -> Places:
        """The places of a run in the modes that the modules are in now."""
        watching, _ = self._run(image, lambda place, result: None)
        if watching.drawn:  # which is right if the numbers are overwritten before they are used
            with torch.random.fork_rng(devices=[]):
                record(self.model, image, self.runner.names, opaque)
        return watching.places

    def _run(self, x: Tensor, put: _Put) -> tuple[_Watching, list[Tensor]]:
        """Runs the module and returns what it returns; `put` may overwrite results on the way."""
        watching = _Watching(self.runner.names, put)
        with module_hooks(watching.enter, watching.leave), watching:
            result = self.model(x)
        results = result if isinstance(result, (tuple, list)) else [result]
        return watching, [y for y in results if isinstance(y, Tensor)]

    def _check(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise ValueError(f"the images are a {type(images).__name__}, expected a tensor")
        if tuple(images.shape[1:]) != self.spec.shape or images.dtype not in (torch.float32, torch.uint8):
            shape = ", ".join(map(str, self.spec.shape))
            got = f"{_kind(images)} {tuple(images.shape)}"
            raise ValueError(f"the images are {got}, expected float32 or uint8 (n, {shape})")
        if images.dtype == torch.float32 and not torch.isfinite(images).all():
            raise ValueError("the images hold values that are not finite")
        for module, name in self.runner.names.items():
            if module.training and isinstance(module, _NORMS):
                raise ValueError(f"batch norm {name} still updates its statistics; ovsw.train.freeze(model) stops that")
            if module.training and isinstance(module, _DROPOUTS):
                raise ValueError(f"dropout {name} still drops; ovsw.train.freeze(model) stops that")


@dataclass
class _File:
    """An integer file that stores every map, and which op of it has the value of which place in the network."""

    engine: Engine
    meanings: list[_Meaning]  # of the ops' maps
    shapes: list[tuple[int, ...]]  # of the network's results for one image
    ops: dict[Place, int]
    places: Places

    def shaped(self, outputs: Any, device: torch.device) -> list[Tensor]:
        """The engine's outputs as the network's results."""
        arrays = outputs if isinstance(outputs, tuple) else (outputs,)
        return [torch.from_numpy(a).reshape(len(a), *shape[1:]).to(device) for a, shape in zip(arrays, self.shapes)]


class _Meaning:
    """What the numbers of an op's map stand for."""

    def __init__(self, op: Lowered) -> None:
        self.steps = op.steps
        self.only_signs = not op.fused.wants_map and op.kind == "i16"
        self.centre: Tensor | None = None  # of logits, which stand for themselves
        if op.centre is not None:
            zero = np.zeros(1)  # what an exact 0 is moved by: to the side on which the op's bits have it
            if not ends_at_zero(op.fused):
                strict = np.zeros(1, bool) if op.fused.sign is None else op.fused.sign.levels()[1]
                zero = np.where(strict, -_SIGNED, _SIGNED)
            centre = np.where(op.centre == np.rint(op.centre), op.centre + zero, op.centre)
            self.centre = torch.from_numpy(centre).float().view(1, -1, 1, 1)

    def put(self, numbers: np.ndarray, result: Tensor) -> None:
        """Puts the values of numbers (n, h, w, c) into a result whose elements have the same order as (n, c, h, w).

        Where the file reads signs alone, its numbers need not hold large values: there the result keeps its own.
        """
        x = torch.from_numpy(numbers).permute(0, 3, 1, 2).to(result.device)
        plain = result.is_contiguous() and result.dtype == torch.float32
        values = result.view(x.shape) if plain else result.to(torch.float32).reshape(x.shape).contiguous()
        large = self.only_signs and (numbers.max() == 32767 or numbers.min() == -32768)
        own = values.clone() if large else values
        values.copy_(x)
        if self.centre is not None:
            values.add_(self.centre.to(x.device)).mul_(1 / self.steps)
        if large:
            torch.where((x == 32767) | (x == -32768), own, values, out=values)
        if not plain:
            result.copy_(values.reshape(result.shape))


class _Watching(Watcher):  # type: ignore[no-untyped-call]
    """While it lasts, `put` gets every result of a network's operations and modules, with its place, and may overwrite
    it. It sees them below autograd, so gradients are those of the operations.
    """

    def __init__(self, names: dict[nn.Module, str], put: _Put) -> None:
        super().__init__()
        self.names, self.put = names, put
        self.places = Places()
        self.drawn = False  # random numbers
        self.levels = [_Level("", False, contextlib.ExitStack())]

    def enter(self, module: nn.Module, inputs: Any) -> None:
        level = self.levels[-1]
        whole = not level.muted and opaque(module) is not None
        without = contextlib.ExitStack()
        if whole and isinstance(module, BinaryLayer):
            without.enter_context(_disable_current_modes())  # its native kernels would be, too
        self.levels.append(_Level(self.names.get(module, level.path), level.muted or whole, without))

    def leave(self, module: nn.Module, inputs: Any, result: Any) -> None:
        level = self.levels.pop()
        level.without.close()
        if isinstance(result, Tensor) and not self.levels[-1].muted:
            with _disable_current_modes(), torch.no_grad():
                self.put(self.places.next(level.path), result.data)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        level, op = self.levels[-1], op_name(func)
        self.drawn |= torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **(kwargs or {}))
        first = None if level.muted else main_result(result)
        if not level.muted:
            place = self.places.next(level.path, op)
            if first is not None:
                self.put(place, first)
        return result


class _Level(NamedTuple):
    """A module that is being called. `muted`: the file has it as a whole, or one that it is in."""

    path: str
    muted: bool
    without: contextlib.ExitStack


class _Replaced(torch.autograd.Function):
    """Another value, with the gradient passed straight through."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, exact: Tensor) -> Tensor:
        return exact

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _packed(results: list[Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
