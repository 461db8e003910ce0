"""From a source to a file: it is read, validated, built, proved, measured and written.

For an integer file a float model is built as well: it is written instead if the integers turn out to be wrong.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ovsw.commands.summary import Layer, layers
from ovsw.datasets import FolderSet, MemorySet
from ovsw.export import ir
from ovsw.export.accuracy import Accuracy, Answers, agreement, measure, open_images
from ovsw.export.calibration import Calibration, calibration_images
from ovsw.export.errors import ExportError, NotIntegerError, VerifyError
from ovsw.export.frontend import checkpoint as checkpoint_file
from ovsw.export.frontend import pt2, python_file, torch_module
from ovsw.export.options import ExportOptions, check_target, is_onnx
from ovsw.export.passes import build
from ovsw.export.source import Source, plain_input
from ovsw.export.validate import validate
from ovsw.export.verify import (
    Candidate,
    IntegerCandidate,
    IntegerVerification,
    Verification,
    pixels_of,
    verify,
    verify_integer,
)
from ovsw.labels import BUILTIN
from ovsw.networks import NORMALISATIONS, InputSpec
from ovsw.util.files import replace_file

if TYPE_CHECKING:
    from ovsw.export.onnx_check import OnnxCheck  # which needs onnx

ENOUGH = 16  # images without labels that tell whether the answers are the same


@dataclass
class Report:
    """What was exported, for people (`ovsw-export`) and programs (`--json`).

    `input_size` is the longer side. `outputs` are the shapes of what the network returns. `verification` says how far
    what was exported is from PyTorch before it is rounded to integers. `not_integer` is the reason why a file that may
    be either is float. `answers` says how often an integer file has PyTorch's answer, if images without labels were
    given. `calibrated` says what the scales of maps that are not clamped come from, if there are such.
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
    answers: Answers | None
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
    """Exports a network to a `.bnn` file, or to a float ONNX model if the file is called `.onnx`.

    `source` is a checkpoint, an `.onnx` file, a `.pt2` program, or FILE.py:NAME, whose code is then run. Raises
    ExportError or VerifyError and then leaves no file behind.
    """
    report = run(source, output, options or ExportOptions())
    assert report is not None
    return report


def run(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None,
    options: ExportOptions,
    progress: Callable[[str], object] = lambda step: None,
    inspect: Callable[[Prepared], object] = lambda prepared: None,
) -> Report | None:
    """The whole export; without an `output` it ends before the result is verified and written.

    `progress` is called with a description of each step, `inspect` with the network before it is written.
    """
    target = None if output is None else check_target(output, options.force, source)
    progress(f"reading {source}")
    network = open_source(source, options)
    progress("building the file")
    prepared = prepare(network, options, target is not None and is_onnx(target))
    inspect(prepared)
    if target is None:
        return None
    progress("comparing the file with the original")
    return prepared.write(target)


class FrontEnd(NamedTuple):
    """A kind of source: how its name looks, how it is read, and which options only this kind has."""

    kind: str
    matches: Callable[[str], bool]
    read: Callable[[str, ExportOptions], Source]
    options: tuple[str, ...] = ()


def _read_python(text: str, options: ExportOptions) -> Source:
    weights = None if options.checkpoint is None else Path(options.checkpoint)
    return python_file.source(text, options.input, weights)


def _read_onnx(text: str, options: ExportOptions) -> Source:
    from ovsw.export.frontend import onnx_file

    return onnx_file.source(Path(text), options.no_limits)


FRONT_ENDS = (  # the first that matches
    FrontEnd("networks given as FILE.py:NAME", python_file.is_python, _read_python, ("checkpoint", "input")),
    FrontEnd("ONNX files", is_onnx, _read_onnx, ("no_limits",)),
    FrontEnd(
        "programs of torch.export",
        lambda text: text.endswith(".pt2"),
        lambda text, options: pt2.source(Path(text), options.allow_unsafe),
        ("allow_unsafe",),
    ),
    FrontEnd(
        "checkpoints",
        lambda text: True,
        lambda text, options: checkpoint_file.source(Path(text), options.arch, options.input_size),
        ("arch", "input_size"),
    ),
)


def open_source(source: str | os.PathLike[str], options: ExportOptions) -> Source:
    """What a file holds, by its name; FILE.py:NAME is run."""
    text = os.fspath(source)
    front_end = next(known for known in FRONT_ENDS if known.matches(text))
    for other in FRONT_ENDS:
        surplus = [f"{name}=" for name in other.options if getattr(options, name) not in (None, False)]
        if surplus and other is not front_end:
            raise ExportError(f"{text}: only {other.kind} take {' and '.join(surplus)}")
    network = front_end.read(text, options)
    if network.asks_normalisation and options.mean is None:
        raise ExportError(
            f"{text}: how are its images normalised? mean= and std= take a number per channel or a name "
            f"({', '.join(NORMALISATIONS)}, or none for pixels scaled to 0..1)"
        )
    return network


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
    stream: str = "auto",
    zero_weights: str = "refuse",
    verify: int = 4,
    images: str | None = None,
    max_images: int | None = None,
    calibration: str | np.ndarray | torch.Tensor | None = None,
    force: bool = False,
) -> Report:
    """Exports a binary network of your own, any module or function of a tensor, to a `.bnn` file (or `.onnx`).

        report = export_module(model, torch.zeros(1, 3, 32, 32), "m.bnn", mean="cifar10", std="cifar10")

    The model is run once, and what it computes from its input is recorded, in any coding style. It is neither changed
    nor copied, and it is exported as it computes in eval mode, whatever mode it is in. It may return one tensor or
    several, vectors or maps.

    Args:
        example_input: an image (1, channels, height, width), of which only the shape is used, or that shape.
        name: the network's name in the file; default: the name of its class.
        mean, std: per channel, of pixels scaled to 0..1, as in training, or "imagenet", "cifar10" or "cifar100".
            Default: 0 and 1, so pixels are only scaled to 0..1; the report warns of it.
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
        stream=stream,
        zero_weights=zero_weights,
        verify=verify,
        images=images,
        max_images=max_images,
        calibration=calibration,
        force=force,
    )
    target = check_target(output, force)
    spec = plain_input(*image_shape(example_input))
    spec = spec if resize is None else dataclasses.replace(spec, resize=resize)
    source = torch_module.source(model, spec, name or _name(model))
    if mean is None and std is None:
        source.warnings.append("no mean and std given: pixels are only scaled to 0..1")
    return prepare(source, options, is_onnx(target)).write(target)


def export_source(source: Source, output: str | os.PathLike[str], options: ExportOptions) -> Report:
    """The way from a source to a file, the same for all front ends."""
    target = check_target(output, options.force, source.path)
    return prepare(source, options, is_onnx(target)).write(target)


def prepare(source: Source, options: ExportOptions, as_onnx: bool = False) -> Prepared:
    """Validates and builds what a source becomes. Raises ExportError, which lists all that cannot be exported."""
    options.check()
    warnings = source.warnings + validate(source.graph, options.zero_weights)
    images = None if options.images is None else open_images(Path(options.images), source.num_classes)
    spec, names = options.input_of(source)
    metadata = {**spec.metadata(source.name, source.num_classes, names), **_meaning(source.graph)}
    if source.file_name is not None:
        metadata["source"] = source.file_name
    floats = Candidate(build(source.graph, spec.mean, spec.std, metadata))
    integer, reason = None, None
    if options.numerics != "float" and not as_onnx:
        if spec.labels in BUILTIN:
            metadata = {**metadata, "labels": spec.labels}
        calibration = calibration_images(options.calibration, images, spec)
        integer, reason = _integer(source, spec, metadata, options, calibration)
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
        written = self._onnx() if is_onnx(target) else None
        verification, integer_verification = self._proved(written)
        accuracy = self._accuracy()
        if self.integer and accuracy and accuracy.is_lost(source.num_classes) and not options.wants_integer:
            shares = f"{accuracy.exported:.1%} of the images, PyTorch on {accuracy.pytorch:.1%}"
            self._give_up_integers(f"in integers it is right on {shares}")
            verification, integer_verification = self._proved()
            accuracy = self._accuracy()
        integer = self.integer
        answers = self._answers(integer) if integer and not accuracy else None
        compared = accuracy or answers
        if integer and compared and (warning := compared.warning()):
            self.warnings.append(f'{warning}; numerics="float" keeps the answers of PyTorch')
        data = self.chosen.data if written is None else written.data
        try:
            replace_file(target, data)
        except OSError as e:
            raise ExportError(f"{target}: cannot be written: {e.strerror or e}") from None
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
            bytes=len(data),
            parameters=source.parameters,
            verification=verification,
            integer_verification=integer_verification,
            accuracy=accuracy,
            not_integer=self.not_integer,
            calibrated=integer.origin if integer else None,
            answers=answers,
            warnings=self.warnings,
        )

    def _accuracy(self) -> Accuracy | None:
        if self.images is None:
            return None
        return measure(self.source.reference, self.chosen.logits, self.images, self.spec, self.options.max_images)

    def _answers(self, integer: IntegerCandidate) -> Answers | None:
        """How many answers are PyTorch's, if enough images were given to tell."""
        calibration = integer.calibration
        if calibration.synthetic or len(calibration.images) < ENOUGH:
            return None
        images = pixels_of(self.spec, calibration.images[: 2 * ENOUGH])
        return Answers(len(images), agreement(self.source.reference, integer.logits, images, self.spec))

    def _give_up_integers(self, reason: str) -> None:
        self.integer, self.not_integer = None, reason
        self.warnings.append(f"this file is float: {reason}")

    def _proved(self, written: OnnxCheck | None = None) -> tuple[Verification, IntegerVerification | None]:
        """That the file computes what the network does. Where integers do not, and need not be, it becomes float."""
        source, options, spec = self.source, self.options, self.spec
        if self.integer is not None:
            try:
                return verify_integer(source, spec, self.integer, options.verify)
            except VerifyError as e:
                if options.wants_integer:
                    raise
                self._give_up_integers(f"in integers {e}")
        return verify(source, spec, self.floats, options.verify, written), None

    def _onnx(self) -> OnnxCheck:
        """The network as an ONNX file."""
        from ovsw.export import onnx_check, onnx_out

        facts: dict[str, Any] = {"deployed": self.source.deployed, "learned_scale": self.source.learned_scale}
        if self.source.file_name is not None:
            facts["source"] = self.source.file_name
        return onnx_check.OnnxCheck(onnx_out.to_bytes(self.source.graph, self.spec, self.source.name, facts))


def _integer(
    source: Source, spec: InputSpec, metadata: dict[str, Any], options: ExportOptions, calibration: Calibration
) -> tuple[IntegerCandidate | None, str | None]:
    """The network in integers, or why it has none."""
    widths = options.widths(source.deployed)
    images = None if source.deployed else calibration.images  # a network trained in its arithmetic has all its scales
    try:
        built = build(
            source.graph, spec.mean, spec.std, metadata, "integer", *widths, calibration=images, stream=options.stream
        )
    except NotIntegerError as e:
        if options.wants_integer:
            raise ExportError(f'the network cannot be exported with numerics="integer": {e}') from None
        return None, str(e)
    candidate = IntegerCandidate(built, calibration)
    if built.measured and calibration.synthetic:
        candidate.warnings.append(
            f"the scales of {len(built.measured)} maps that are not clamped come from synthetic noise; "
            "calibration= measures them on images"
        )
    return candidate, None


def _meaning(graph: ir.Graph) -> dict[str, str]:
    """What the numbers of the output are, if they are no logits."""
    if not isinstance(graph.output, ir.Softmax):
        return {}
    return {"output": "log_probabilities" if graph.output.log else "probabilities"}


def image_shape(example: torch.Tensor | Sequence[int]) -> tuple[int, int, int]:
    is_shape = isinstance(example, Sequence) and all(isinstance(n, int) for n in example)
    if not isinstance(example, torch.Tensor) and not is_shape:
        raise ExportError(
            f"example_input is a {type(example).__name__}, expected a tensor (1, channels, height, width) or that shape"
        )
    shape = tuple(example.shape) if isinstance(example, torch.Tensor) else tuple(example)
    if len(shape) != 4 or shape[0] != 1 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ExportError(f"example_input has the shape {shape}, expected (1, channels, height, width)")
    return shape[1:]


def _name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)
