"""The chaos study: how far a deployed binary network is from the trained one, in answers, logits and signs.

The reference is the network in float64, with sign(0) = +1 as in every file. It is compared with float32, with the
exported files in the engine, and with float64 where the stream is rounded whenever it is stored: everywhere, or at one
place alone. The stream is written by the modules whose results binary convolutions read, and by the last Hardtanh.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.datasets import MemorySet
from ovsw.export import ExportError, ExportOptions, export
from ovsw.networks import NetworkSpec, network
from ovsw.nn import Shift, binary_layers, create
from ovsw.nn.checkpoint import CheckpointError, read, state_dict
from ovsw.train import augment
from ovsw.train.recipe import input_of, kept_recipe
from ovsw.util.progress import Progress

Rounding = Callable[[Tensor], Tensor]
BATCH = 100
FILES = {
    "integer file": ExportOptions(numerics="integer", zero_weights="plus"),
    "integer file, int8 stem": ExportOptions(numerics="integer", stem="int8", zero_weights="plus"),
    "integer file, int8 weights": ExportOptions(numerics="integer", weights="int8", zero_weights="plus"),
    "float file": ExportOptions(numerics="float", zero_weights="plus"),
}


def fixed_point(bits: int) -> Rounding:
    """Rounds to the nearest 16-bit number with `bits` bits after the point."""
    return lambda x: torch.clamp(torch.round(x * 2**bits), -(2**15), 2**15 - 1) / 2**bits


def through(dtype: torch.dtype) -> Rounding:
    """Rounds to the nearest number of a floating-point type."""
    return lambda x: x.to(dtype).to(x.dtype)


ROUNDINGS: dict[str, Rounding] = {
    "float32 stream": through(torch.float32),
    "float16 stream": through(torch.float16),
    "bfloat16 stream": through(torch.bfloat16),
    "Q15 stream": fixed_point(15),
    "Q14 stream": fixed_point(14),
    "Q13 stream": fixed_point(13),
}


class Watched:
    """A network in eval mode that can round its stream and records the signs that its binary layers read.

    A place is a call of a module, as modules may be called several times: ("layer1.0.nonlinear", 0) is the first.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, example: Tensor) -> None:
        self.model = copy.deepcopy(model).to(dtype).eval()
        self.layers = list(binary_layers(self.model))
        for layer in binary_layers(self.model).values():
            layer.zero = 1
        self.signs: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}
        self._rounding: Rounding | None = None
        self._where: Collection[tuple[str, int]] = ()
        self.places = _places(self.model, example.to(dtype))
        modules = dict(self.model.named_modules())
        for name in {name for name, _ in self.places}:
            modules[name].register_forward_hook(self._written(name))
        for name in self.layers:
            modules[name].register_forward_pre_hook(self._read(name))

    def _written(self, name: str) -> Callable[..., Tensor | None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1
            return self._rounding(output) if self._rounding is not None and (name, call) in self._where else None

        return hook

    def _read(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.signs[name] = inputs[0] >= 0

        return hook

    @torch.no_grad()
    def run(
        self, x: Tensor, rounding: Rounding | None = None, where: Collection[tuple[str, int]] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and signs by binary layer; the stream is rounded at these places, or at all of them."""
        self._calls, self.signs, self._rounding = {}, {}, rounding
        self._where = self.places if where is None else where
        return self.model(x).flatten(1), self.signs


@torch.no_grad()
def _places(model: nn.Module, x: Tensor) -> list[tuple[str, int]]:
    """Where the stream is written, in order: found by running the network once and following tensors."""
    calls: dict[str, int] = {}
    origin: dict[int, tuple[str, int]] = {}  # who made a tensor
    unshifted: dict[int, int] = {}  # a shift right before a sign is a threshold: what it reads is stored
    alive: list[Tensor] = []  # keeps the tensors alive, as an id is unique only among living objects
    places: list[tuple[str, int]] = []
    clamps: list[tuple[str, int]] = []

    def enter(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        stored = unshifted.get(id(inputs[0]), id(inputs[0]))
        if stored in origin:
            places.append(origin[stored])

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            call = calls.get(name, 0)
            calls[name] = call + 1
            if output is inputs[0]:
                return
            alive.extend((inputs[0], output))
            origin[id(output)] = (name, call)
            if isinstance(module, Shift):
                unshifted[id(output)] = id(inputs[0])
            if isinstance(module, nn.Hardtanh):
                clamps.append((name, call))

        return hook

    handles = [module.register_forward_pre_hook(enter) for module in binary_layers(model).values()]
    leaves = [(name, m) for name, m in model.named_modules() if not any(m.children())]
    handles += [module.register_forward_hook(leave(name)) for name, module in leaves]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not places:
        raise ValueError(f"{type(model).__name__} has no stream that binary convolutions read")
    return list(dict.fromkeys(places + clamps[-1:]))


@dataclass
class Comparison:
    """The differences between a variant and the reference, added up over batches of images."""

    images: int = 0
    correct: int = 0
    agree: int = 0
    distance: float = 0.0  # sum over images of the mean |difference| of logits
    largest: float = 0.0
    spread: float = 0.0  # sum over images of the standard deviation of the reference's logits
    signs: dict[str, list[int]] = field(default_factory=dict)  # by layer: different, all

    def add(self, logits: np.ndarray, reference: np.ndarray, labels: np.ndarray) -> None:
        answers, difference = logits.argmax(axis=1), np.abs(logits - reference)
        self.images += len(labels)
        self.correct += int((answers == labels).sum())
        self.agree += int((answers == reference.argmax(axis=1)).sum())
        self.distance += float(difference.mean(axis=1).sum())
        self.largest = max(self.largest, float(difference.max()))
        self.spread += float(reference.std(axis=1).sum())

    def add_signs(self, signs: dict[str, Tensor], reference: dict[str, Tensor]) -> None:
        for name, mine in signs.items():
            counts = self.signs.setdefault(name, [0, 0])
            counts[0] += int((mine != reference[name]).sum())
            counts[1] += mine.numel()

    def as_dict(self) -> dict[str, Any]:
        n = self.images
        answers = {"images": n, "accuracy": self.correct / n, "agreement": self.agree / n}
        answers["other_answers"] = n - self.agree
        logits = {"mean_distance": self.distance / n, "max_distance": self.largest, "logit_spread": self.spread / n}
        relative = {"relative_mean": self.distance / self.spread, "relative_max": self.largest * n / self.spread}
        shares = {name: different / total for name, (different, total) in self.signs.items()}
        return {**answers, **logits, **(relative if self.spread else {}), **({"signs": shares} if shares else {})}


@dataclass
class Images:
    """Test images: pixels (n, h, w, c) and labels."""

    pixels: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, split: MemorySet, count: int | None) -> Images:
        """At most `count` images, evenly spread over the set."""
        n = len(split) if count is None else min(count, len(split))
        chosen = np.arange(n) * len(split) // n
        pixels = np.ascontiguousarray(split.images.numpy()[chosen].transpose(0, 2, 3, 1))
        return cls(pixels, split.labels.numpy()[chosen])

    def batches(self) -> Iterator[Images]:
        for start in range(0, len(self.labels), BATCH):
            part = slice(start, start + BATCH)
            yield Images(self.pixels[part], self.labels[part])


def load_network(path: Path) -> tuple[nn.Module, NetworkSpec, int]:
    """The network of a checkpoint that names it, its facts and its number of classes. Raises CheckpointError."""
    checkpoint = read(path)
    state = state_dict(path, checkpoint)
    name = checkpoint.get("arch") if isinstance(checkpoint, dict) else None
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: has no key 'arch' that names its network; pass a checkpoint of ovsw-train")
    spec, recipe = network(name), kept_recipe(checkpoint)
    spec = spec if recipe is None else replace(spec, input=input_of(recipe))
    weight = state.get(f"{spec.classifier}.weight")
    if weight is None:
        raise CheckpointError(f"{path}: does not fit {spec.name}, it has no {spec.classifier}.weight")
    learned = any(key.endswith(".scaling_factor") for key in state)
    model = create(name, len(weight), learned_scale=learned)
    try:
        model.load_state_dict(state)
    except RuntimeError as e:
        raise CheckpointError(f"{path}: does not fit {spec.name}: {str(e).splitlines()[1].strip()}") from None
    return model, spec, len(weight)


def study(
    checkpoint: Path,
    split: MemorySet,
    files: dict[str, Path] | None = None,
    images: int | None = None,
    depth_images: int = 1000,
) -> dict[str, Any]:
    """All comparisons of a checkpoint, as chaos.json has them; `files` are further .bnn files to compare."""
    model, spec, _ = load_network(checkpoint)
    shown = Images.of(split, images)
    if tuple(shown.pixels.shape[1:]) != (spec.input.height, spec.input.width, spec.input.channels):
        raise ValueError(f"the images are of {shown.pixels.shape[1:]}, {spec.name} takes {spec.input.shape}")
    reference = Watched(model, torch.float64, _normalised(shown.pixels[:1], spec, torch.float64))
    single = Watched(model, torch.float32, _normalised(shown.pixels[:1], spec, torch.float32))
    fewer = Images.of(split, min(depth_images, len(shown.labels)))
    with Progress("ovsw-repro chaos") as progress:
        variants, refused = _everywhere(reference, single, shown, spec, checkpoint, files or {}, depth_images, progress)
        alone = _one_by_one(reference, fewer, spec, progress)
    return {
        "network": spec.name,
        "images": len(shown.labels),
        "depth_images": len(fewer.labels),
        "layers": reference.layers,
        "places": [f"{name}, call {call + 1}" for name, call in reference.places],
        "variants": {name: comparison.as_dict() for name, comparison in variants.items()},
        "refused": refused,
        "alone": {kind: [comparison.as_dict() for comparison in row] for kind, row in alone.items()},
    }


def _normalised(pixels: np.ndarray, spec: NetworkSpec, dtype: torch.dtype) -> Tensor:
    """Pixels as the network takes them: in float32 as training and evaluation do it, otherwise exactly."""
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    if dtype == torch.float32:
        return augment.normalise(planes, spec.input.mean, spec.input.std)
    mean, std = (torch.tensor(v, dtype=dtype).view(1, -1, 1, 1) for v in (spec.input.mean, spec.input.std))
    return (planes.to(dtype) / 255 - mean) / std


def _everywhere(
    reference: Watched,
    single: Watched,
    shown: Images,
    spec: NetworkSpec,
    checkpoint: Path,
    files: dict[str, Path],
    depth_images: int,
    progress: Progress,
) -> tuple[dict[str, Comparison], dict[str, str]]:
    """The reference against float32, roundings of the whole stream, and files, whose signs are simulated on fewer."""
    refused: dict[str, str] = {}
    engines: dict[str, Engine] = {}
    models: dict[str, bnn.Model] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(FILES.items()):
            target = Path(folder) / f"{number}.bnn"
            try:
                export(checkpoint, target, options)
            except ExportError as e:
                refused[name] = str(e).splitlines()[0]
                continue
            engines[name], models[name] = Engine(target), bnn.read(target)
    for name, path in files.items():
        engines[name], models[name] = Engine(path), bnn.read(path)
        if engines[name].num_classes != reference.run(_normalised(shown.pixels[:1], spec, torch.float64))[0].shape[1]:
            raise ValueError(
                f"{path}: has {engines[name].num_classes} classes, the checkpoint's network has another number"
            )
    comparisons = {name: Comparison() for name in ("float64 (judge)", "float32", *engines, *ROUNDINGS)}
    done = 0
    for batch in shown.batches():
        x, labels = _normalised(batch.pixels, spec, torch.float64), batch.labels
        logits, signs = reference.run(x)
        expected = logits.numpy()
        comparisons["float64 (judge)"].add(expected, expected, labels)
        variants = {"float32": single.run(_normalised(batch.pixels, spec, torch.float32))}
        variants.update((name, reference.run(x, rounding)) for name, rounding in ROUNDINGS.items())
        for name, (others, other_signs) in variants.items():
            comparisons[name].add(others.double().numpy(), expected, labels)
            comparisons[name].add_signs(other_signs, signs)
        for name, engine in engines.items():
            comparisons[name].add(engine.run(batch.pixels).astype(np.float64), expected, labels)
            if models[name].numerics == "integer" and done < depth_images:
                comparisons[name].add_signs(_simulated_signs(models[name], batch.pixels, reference.layers), signs)
        done += len(labels)
        progress("rounding everywhere, images", done, len(shown.labels))
    return comparisons, refused


def _simulated_signs(model: bnn.Model, pixels: np.ndarray, layers: list[str]) -> dict[str, Tensor]:
    """The signs that the binary convolutions of an integer file read, (n, c, h, w); the file's ops have their names."""
    values = numerics.simulate_values(model, pixels)
    inputs = {op.name: op.input for op in model.ops if op.kind == "bconv"}
    return {
        name: torch.from_numpy(np.ascontiguousarray(values[inputs[name]].transpose(0, 3, 1, 2)))
        for name in layers
        if name in inputs
    }


def _one_by_one(
    reference: Watched, shown: Images, spec: NetworkSpec, progress: Progress
) -> dict[str, list[Comparison]]:
    """For each rounding and each place: the stream is rounded there alone."""
    comparisons = {kind: [Comparison() for _ in reference.places] for kind in ROUNDINGS}
    for number, batch in enumerate(shown.batches(), 1):
        x = _normalised(batch.pixels, spec, torch.float64)
        logits, signs = reference.run(x)
        for kind, rounding in ROUNDINGS.items():
            for comparison, place in zip(comparisons[kind], reference.places):
                others, other_signs = reference.run(x, rounding, (place,))
                comparison.add(others.numpy(), logits.numpy(), batch.labels)
                comparison.add_signs(other_signs, signs)
        progress("rounding one place at a time, batches", number, -(-len(shown.labels) // BATCH))
    return comparisons
