"""The doors of the exporter, and the way behind them: a source is validated, built, proved, measured and written.

For an integer file a float model is built as well: it is what is written if the integers turn out to be wrong.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ovsw.commands.summary import Layer, layers
from ovsw.datasets import FolderSet, MemorySet
from ovsw.export import ir
from ovsw.export.accuracy import Accuracy, agreement, measure, open_images, other_answers
from ovsw.export.calibration import Calibration, calibration
from ovsw.export.errors import ExportError, NotIntegerError, VerifyError
from ovsw.export.frontend import checkpoint as checkpoint_file
from ovsw.export.frontend import pt2, python_file, torch_module
from ovsw.export.passes import build
from ovsw.export.source import Source
from ovsw.export.validate import validate
from ovsw.export.verify import (
    Candidate,
    IntegerCandidate,
    IntegerVerification,
    Verification,
    verify,
    verify_integer,
)
from ovsw.labels import BUILTIN, load_labels
from ovsw.networks import NORMALISATIONS, InputSpec
from ovsw.numerics import pixels
from ovsw.util.files import replace_file

ENOUGH = 16  # images without labels that tell whether the answers are the same


@dataclass
class ExportOptions:
    """What the command line can set; None means: as found in the checkpoint or usual for the network.

    `arch` and `input_size` are for checkpoints, `input` (channels, height, width) and `checkpoint` for FILE.py:NAME,
    `allow_unsafe` for `.pt2` programs, which a pickle reads that may run code. `mean` and `std` are numbers per
    channel, or the name of a normalisation in `ovsw.networks`. `labels` is a file, the name of a built-in list, "none",
    or the names. `numerics` is "auto" (integer where the network allows it), "integer" or "float". `weights` and `stem`
    are the widths of real weights in integer files, "int16" or "int8"; usual are those in whose arithmetic the
    checkpoint was trained, else int16. `calibration` are images for the scales of what is not clamped: a folder, uint8
    (n, height, width, channels) or normalised float32 (n, channels, height, width); usual are some of `images`, else
    synthetic ones.
    """

    arch: str | None = None
    input_size: int | None = None
    mean: str | Sequence[float] | None = None
    std: str | Sequence[float] | None = None
    labels: str | Sequence[str] | None = None
    numerics: str = "auto"
    weights: str | None = None
    stem: str | None = None
    zero_weights: str = "refuse"
    verify: int = 4
    images: str | None = None
    max_images: int | None = None
    calibration: str | np.ndarray | torch.Tensor | None = None
    force: bool = False
    input: tuple[int, int, int] | None = None
    checkpoint: str | None = None
    allow_unsafe: bool = False


@dataclass
class Report:
    """What was exported, for people (`ovsw-export`) and programs (`--json`).

    `input_size` is the longer side. `outputs` are the shapes of what the network returns. `verification` says how far
    what was exported is from PyTorch before it is rounded to integers. `not_integer` is the reason why a file that may
    be either is float. `calibrated` says what the scales of maps that are not clamped come from, if there are such.
    """

    output: str
    arch: str
    num_classes: int
    outputs: list[tuple[int, int, int]]
    input_size: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    learned_scale: bool
    numerics: str
    labels: int
    layers: list[Layer]
    bytes: int
    parameters: int
    verification: Verification | None
    integer_verification: IntegerVerification | None
    accuracy: Accuracy | None
    not_integer: str | None
    calibrated: str | None
    warnings: list[str]

    @property
    def fp32_bytes(self) -> int:
        return 4 * self.parameters

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fp32_bytes": self.fp32_bytes}


def export(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: ExportOptions | None = None,
) -> Report:
    """Exports a network to a `.bnn` file, or to a float ONNX model if that is called `.onnx`.

    `source` is a checkpoint, an `.onnx` file, a `.pt2` program, or FILE.py:NAME, whose code is then run. Raises
    ExportError or VerifyError and then leaves no file behind.
    """
    options = options or ExportOptions()
    check_target(output, options.force, source)
    return export_source(open_source(source, options), output, options)


def open_source(source: str | os.PathLike[str], options: ExportOptions) -> Source:
    """What a file holds, by its suffix; FILE.py:NAME is run."""
    path = Path(source)
    if python_file.is_python(os.fspath(source)):
        checkpoint = None if options.checkpoint is None else Path(options.checkpoint)
        found = python_file.source(os.fspath(source), options.input, checkpoint)
    elif options.checkpoint is not None or options.input is not None:
        raise ExportError(f"{path}: a checkpoint to load and --input are for networks given as FILE.py:NAME")
    elif path.suffix == ".onnx":
        _check_onnx(path)
        from ovsw.export.frontend import onnx_file

        found = onnx_file.source(path)
    elif path.suffix == ".pt2":
        found = pt2.source(path, options.allow_unsafe)
    else:
        found = checkpoint_file.source(path, options.arch, options.input_size)
    if found.asks_normalisation and options.mean is None:
        known = ", ".join(NORMALISATIONS)
        raise ExportError(
            f"{path}: how are its images normalised? --mean and --std take a number per channel or a name ({known}, or "
            "none for pixels scaled to 0..1)"
        )
    return found


def export_module(
    model: nn.Module | Callable[[torch.Tensor], Any],
    example_input: torch.Tensor | Sequence[int],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    mean: str | Sequence[float] | None = None,
    std: str | Sequence[float] | None = None,
    resize: int | None = None,
    labels: str | Sequence[str] | None = None,
    numerics: str = "auto",
    weights: str | None = None,
    stem: str | None = None,
    zero_weights: str = "refuse",
    verify: int = 4,
    images: str | None = None,
    max_images: int | None = None,
    calibration: str | np.ndarray | torch.Tensor | None = None,
    force: bool = False,
) -> Report:
    """Exports a binary network of your own, any module or function of a tensor, to a `.bnn` file (or `.onnx`).

        report = export_module(model, torch.zeros(1, 3, 32, 32), "m.bnn", mean="cifar10", std="cifar10")

    The model is run once, and what it computes of its input is recorded, in whatever way it is written. It is neither
    changed nor copied, and exported as it computes in eval mode, whatever mode it is in. It may return a tensor or
    several, vectors or maps.

    Args:
        example_input: an image (1, channels, height, width), of which only the shape counts, or that shape.
        name: how the file calls the network; default: the name of its class.
        mean, std: per channel, of pixels scaled to 0..1, as in training, or "imagenet", "cifar10" or "cifar100".
            Default: 0 and 1, so pixels are scaled to 0..1 and no further; the report warns of it.
        resize: what an image file's shorter side is scaled to before the centre is cut out; default: the input's size.
        labels: class names, a file of them, or "imagenet" or "cifar10"; default: none.
        calibration: images for the scales of integer maps that no clamp bounds: a folder, uint8 (n, height, width,
            channels), or normalised float32 (n, channels, height, width). Default: synthetic noise, with a warning.

    The other arguments are those of `ExportOptions`. Raises ExportError, which lists all that cannot be exported, or
    VerifyError, and then leaves no file behind.
    """
    options = ExportOptions(
        mean=mean,
        std=std,
        labels=labels,
        numerics=numerics,
        weights=weights,
        stem=stem,
        zero_weights=zero_weights,
        verify=verify,
        images=images,
        max_images=max_images,
        calibration=calibration,
        force=force,
    )
    check_target(output, force)
    channels, height, width = _image_shape(example_input)
    resize = max(height, width) if resize is None else resize
    spec = InputSpec(channels, height, width, (0.0,) * channels, (1.0,) * channels, resize)
    source = torch_module.source(model, spec, name or _name(model))
    if mean is None and std is None:
        source.warnings.append("no mean and std given: pixels are scaled to 0..1 and no further")
    return export_source(source, output, options)


def export_source(source: Source, output: str | os.PathLike[str], options: ExportOptions) -> Report:
    """The way from a source to a file, the same for all front ends."""
    check_target(output, options.force, source.path)
    return prepare(source, options, Path(output).suffix == ".onnx").write(Path(output))


def prepare(source: Source, options: ExportOptions, as_onnx: bool = False) -> Prepared:
    """Validates and builds what a source becomes. Raises ExportError, which lists all that cannot be exported."""
    _check_choices(options)
    warnings = source.warnings + validate(source.graph, options.zero_weights)
    images = None if options.images is None else open_images(Path(options.images), source.num_classes)
    spec = _input(source, options)
    names = _labels(source, spec)
    metadata = {**spec.metadata(source.name, source.num_classes, names), **_meaning(source.graph)}
    if (origin := _origin(source)) is not None:
        metadata["source"] = origin
    floats = Candidate(build(source.graph, spec.mean, spec.std, metadata))
    integer, reason = None, None
    if options.numerics != "float" and not as_onnx:
        if spec.labels in BUILTIN:
            metadata = {**metadata, "labels": spec.labels}
        given = calibration(options.calibration, images, spec)
        integer, reason = _integer(source, spec, metadata, options, given)
        warnings += integer.warnings if integer else []
    if not as_onnx:
        warnings += (integer or floats).memory_warnings()
    return Prepared(source, options, spec, images, len(names), floats, integer, reason, warnings)


@dataclass
class Prepared:
    """A network on its way to a file: proved, measured and written by `write`."""

    source: Source
    options: ExportOptions
    spec: InputSpec
    images: MemorySet | FolderSet | None
    labels: int
    floats: Candidate
    integer: IntegerCandidate | None
    not_integer: str | None
    warnings: list[str]

    @property
    def chosen(self) -> Candidate:
        return self.integer or self.floats

    def write(self, target: Path) -> Report:
        """Raises VerifyError if engine and original do not agree, and then writes nothing."""
        source, options, spec = self.source, self.options, self.spec
        verification, integer_verification = self._proved()
        accuracy = self._accuracy()
        if self.integer and accuracy and accuracy.is_lost(source.num_classes) and not _wants_integer(options):
            found = f"{accuracy.exported:.1%} of the images, PyTorch on {accuracy.pytorch:.1%}"
            self._give_up_integers(f"in integers it is right on {found}")
            verification, integer_verification = self._proved()
            accuracy = self._accuracy()
        integer = self.integer
        if integer and (warning := accuracy.warning() if accuracy else self._other_answers(integer)):
            self.warnings.append(f"{warning}; --numerics float keeps PyTorch's answers")
        size = self._store(target)
        return Report(
            output=str(target),
            arch=source.name,
            num_classes=source.num_classes,
            outputs=[node.shape for node in source.graph.outputs],
            input_size=max(spec.height, spec.width),
            input_shape=spec.shape,
            mean=spec.mean,
            std=spec.std,
            learned_scale=source.learned_scale,
            numerics=self.chosen.model.numerics,
            labels=self.labels,
            layers=layers(self.chosen.model),
            bytes=size,
            parameters=source.parameters,
            verification=verification,
            integer_verification=integer_verification,
            accuracy=accuracy,
            not_integer=self.not_integer,
            calibrated=integer.origin if integer else None,
            warnings=self.warnings,
        )

    def _accuracy(self) -> Accuracy | None:
        if self.images is None:
            return None
        return measure(self.source.reference, self.chosen.logits, self.images, self.spec, self.options.max_images)

    def _other_answers(self, integer: IntegerCandidate) -> str | None:
        """A warning, if enough images were given to tell and the answers are others."""
        given = integer.calibration
        if given.synthetic or len(given.images) < ENOUGH:
            return None
        images = pixels(
            given.images[: 2 * ENOUGH], np.asarray(self.spec.mean, np.float32), np.asarray(self.spec.std, np.float32)
        )
        return other_answers(agreement(self.source.reference, integer.logits, images, self.spec), len(images))

    def _give_up_integers(self, reason: str) -> None:
        self.integer, self.not_integer = None, reason
        self.warnings.append(f"this file is float: {reason}")

    def _proved(self) -> tuple[Verification, IntegerVerification | None]:
        """That the file computes what the network does. Where integers do not, and need not be, it becomes float."""
        source, options, spec = self.source, self.options, self.spec
        if self.integer is not None:
            try:
                return verify_integer(source, spec, self.integer, options.verify)
            except VerifyError as e:
                if _wants_integer(options):
                    raise
                self._give_up_integers(f"in integers {e}")
        return verify(source, spec, self.floats, options.verify), None

    def _store(self, target: Path) -> int:
        """Writes the file whole or not at all; returns its size."""
        if target.suffix == ".onnx":
            from ovsw.export import onnx_out

            about: dict[str, Any] = {"deployed": self.source.deployed, "learned_scale": self.source.learned_scale}
            if (origin := _origin(self.source)) is not None:
                about["source"] = origin
            return onnx_out.write(self.source.graph, target, self.spec, self.source.name, about)
        try:
            replace_file(target, self.chosen.data)
        except OSError as e:
            raise ExportError(f"{target}: cannot be written: {e.strerror or e}") from None
        return len(self.chosen.data)


def _integer(
    source: Source, spec: InputSpec, metadata: dict[str, Any], options: ExportOptions, given: Calibration
) -> tuple[IntegerCandidate | None, str | None]:
    """The network in integers, or why it has none."""
    widths = _widths(source, options)
    images = None if source.deployed else given.images  # one that was trained in its arithmetic has all its scales
    try:
        built = build(source.graph, spec.mean, spec.std, metadata, "integer", *widths, calibration=images)
    except NotIntegerError as e:
        if _wants_integer(options):
            raise ExportError(f"the network cannot be exported with --numerics integer: {e}") from None
        return None, str(e)
    candidate = IntegerCandidate(built, given)
    if built.measured and given.synthetic:
        candidate.warnings.append(
            f"the scales of {len(built.measured)} maps that are not clamped come from synthetic noise; --calibrate DIR "
            "measures them on images"
        )
    return candidate, None


def _wants_integer(options: ExportOptions) -> bool:
    """Whether a float file is not what was asked for."""
    return options.numerics == "integer" or options.weights == "int8" or options.stem is not None


def _origin(source: Source) -> str | None:
    """The file that the network comes from: of an ONNX file of ours that is the one it was made of."""
    return source.origin or (None if source.path is None else source.path.name)


def _meaning(graph: ir.Graph) -> dict[str, str]:
    """What the numbers of the output are, if they are no logits."""
    if not isinstance(graph.output, ir.Softmax):
        return {}
    return {"output": "log_probabilities" if graph.output.log else "probabilities"}


def check_target(output: str | os.PathLike[str], force: bool, source: str | os.PathLike[str] | None = None) -> None:
    """Raises ExportError if the file may not or cannot be written, before any work is done."""
    target, source = Path(output), None if source is None else Path(source)
    if not target.parent.is_dir():
        raise ExportError(f"{target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise ExportError(f"{target}: is a folder")
    if source is not None and source.exists() and target.exists() and target.samefile(source):
        raise ExportError(f"{target}: is the checkpoint itself")
    if target.is_file() and not force:  # a device or a pipe loses nothing
        raise ExportError(f"{target}: exists already; --force overwrites it")
    if target.suffix == ".onnx":
        _check_onnx(target)


def _check_onnx(path: Path) -> None:
    if importlib.util.find_spec("onnx") is None:
        raise ExportError(f"{path}: onnx is needed for such files: pip install 'ovsw[onnx]'")


def _check_choices(options: ExportOptions) -> None:
    choices = (
        ("numerics", options.numerics, ("auto", "integer", "float")),
        ("weights", options.weights, (None, "int16", "int8")),
        ("stem", options.stem, (None, "int16", "int8")),
        ("zero-weights", options.zero_weights, ("refuse", "plus")),
    )
    for what, value, known in choices:
        if value not in known:
            raise ExportError(f"--{what} is {value!r}; known are {', '.join(filter(None, known))}")
    if options.verify < 1:
        raise ExportError(f"--verify is {options.verify}; an export is compared with the original on 1 image at least")
    if options.numerics == "float" and (options.weights == "int8" or options.stem is not None):
        raise ExportError("--weights and --stem are for integer files, --numerics float has none")


def _widths(source: Source, options: ExportOptions) -> tuple[str, str]:
    """Of the real weights and the stem's: as asked for, as the network was trained, or 16 bits."""
    weights = options.weights or source.deployed.get("weights", "int16")
    trained = options.weights is None and "stem" in source.deployed
    return weights, options.stem or (source.deployed["stem"] if trained else weights)


def _image_shape(example: torch.Tensor | Sequence[int]) -> tuple[int, int, int]:
    if not isinstance(example, torch.Tensor) and not _is_shape(example):
        raise ExportError(
            f"example_input is a {type(example).__name__}, expected a tensor (1, channels, height, width) or that shape"
        )
    shape = tuple(example.shape) if isinstance(example, torch.Tensor) else tuple(example)
    if len(shape) != 4 or shape[0] != 1 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ExportError(f"example_input has the shape {shape}, expected (1, channels, height, width)")
    return shape[1:]


def _is_shape(example: Any) -> bool:
    return isinstance(example, Sequence) and all(isinstance(n, int) for n in example)


def _name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def _normalisation(what: str, given: str | Sequence[float] | None, usual: tuple[float, ...]) -> tuple[float, ...]:
    """Numbers per channel as they are given, or of the normalisation that is named."""
    if given is None:
        return usual
    if not isinstance(given, str):
        return tuple(map(float, given))
    if given == "none":
        return tuple(0.0 if what == "mean" else 1.0 for _ in usual)
    if given not in NORMALISATIONS:
        raise ExportError(f"--{what}: '{given}' is neither numbers nor one of {', '.join(NORMALISATIONS)}, none")
    mean, std = NORMALISATIONS[given]
    return mean if what == "mean" else std


def _input(source: Source, options: ExportOptions) -> InputSpec:
    """The source's input with what the options change of it."""
    spec = source.input
    mean = _normalisation("mean", options.mean, spec.mean)
    named = options.mean if isinstance(options.mean, str) else None  # a name tells both
    std = _normalisation("std", named if options.std is None else options.std, spec.std)
    for what, values in (("mean", mean), ("std", std)):
        if len(values) != spec.channels:
            raise ExportError(f"--{what} takes {spec.channels} numbers, one per channel, not {len(values)}")
    if not all(1e-30 < s < 1e30 for s in std) or not all(abs(m) < 1e30 for m in mean):
        raise ExportError("--mean takes finite numbers and --std positive ones, for pixels scaled to 0..1")
    labels = options.labels if options.labels is None or isinstance(options.labels, str) else tuple(options.labels)
    return replace(spec, mean=mean, std=std, labels=spec.labels if labels is None else labels)


def _labels(source: Source, spec: InputSpec) -> list[str]:
    if isinstance(spec.labels, str):
        try:
            return load_labels(spec.labels, source.num_classes)
        except (OSError, ValueError) as e:
            raise ExportError(f"--labels: {e}") from None
    if len(spec.labels) not in (0, source.num_classes):
        raise ExportError(f"--labels: {len(spec.labels)} names are given, the network has {source.num_classes} classes")
    return list(spec.labels)
