"""The doors of the exporter, and the way behind them: a source is validated, built, proved, measured and written.

For an integer file a float model is built as well: it proves that the network was read right.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ovsw import format as bnn
from ovsw.export.accuracy import Accuracy, measure, open_images
from ovsw.export.errors import ExportError
from ovsw.export.frontend import checkpoint as checkpoint_file
from ovsw.export.frontend import torch_module
from ovsw.export.passes import build
from ovsw.export.passes.scales import NotIntegerError
from ovsw.export.source import Source
from ovsw.export.validate import validate
from ovsw.export.verify import Candidate, IntegerVerification, Verification, verify, verify_integer
from ovsw.labels import BUILTIN, load_labels
from ovsw.networks import InputSpec
from ovsw.summary import Layer, layers


@dataclass
class ExportOptions:
    """What the command line can set; None means: as found in the checkpoint or usual for the network.

    `arch` and `input_size` are for checkpoints. `labels` is a file, the name of a built-in list, "none", or the names.
    `numerics` is "auto" (integer where the network allows it), "integer" or "float". `weights` and `stem` are the
    widths of real weights in integer files, "int16" or "int8"; usual are those in whose arithmetic the checkpoint was
    trained, else int16.
    """

    arch: str | None = None
    input_size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    labels: str | Sequence[str] | None = None
    numerics: str = "auto"
    weights: str | None = None
    stem: str | None = None
    zero_weights: str = "refuse"
    verify: int = 4
    images: str | None = None
    max_images: int | None = None
    force: bool = False


@dataclass
class Report:
    """What was exported, for people (`ovsw-export`) and programs (`--json`).

    `input_size` is the longer side. `verification` is that of the float model, which is also made for an integer file.
    `not_integer` is the reason why a file that may be either is float.
    """

    output: str
    arch: str
    num_classes: int
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
    warnings: list[str]

    @property
    def fp32_bytes(self) -> int:
        return 4 * self.parameters

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fp32_bytes": self.fp32_bytes}


def export(
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: ExportOptions | None = None,
) -> Report:
    """Exports a checkpoint to a `.bnn` file. Raises ExportError or VerifyError and then leaves no file behind."""
    options = options or ExportOptions()
    path = Path(checkpoint)
    _check_target(Path(output), options.force, path)
    return export_source(checkpoint_file.source(path, options.arch, options.input_size), output, options)


def export_module(
    model: nn.Module,
    example_input: torch.Tensor | Sequence[int],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    resize: int | None = None,
    labels: str | Sequence[str] | None = None,
    numerics: str = "auto",
    weights: str | None = None,
    stem: str | None = None,
    zero_weights: str = "refuse",
    verify: int = 4,
    images: str | None = None,
    max_images: int | None = None,
    force: bool = False,
) -> Report:
    """Exports a binary network of your own to a `.bnn` file: any module of known layers.

        report = export_module(model, torch.zeros(1, 3, 32, 32), "m.bnn", mean=(0.5,) * 3, std=(0.25,) * 3)

    Known are the layers of `ovsw.nn`, the usual ones of `torch.nn`, and those given to `register_layer`. The module is
    exported as it computes in eval mode; it is not changed, whatever mode it is in.

    Args:
        example_input: an image (1, channels, height, width), of which only the shape counts, or that shape.
        name: how the file calls the network; default: the name of its class.
        mean, std: per channel, of pixels scaled to 0..1, as in training. Default: 0 and 1, so pixels are scaled to 0..1
            and no further; the report warns of it.
        resize: what an image file's shorter side is scaled to before the centre is cut out; default: the input's size.
        labels: class names, a file of them, or "imagenet" or "cifar10"; default: none.

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
        force=force,
    )
    _check_target(Path(output), force)
    channels, height, width = _image_shape(example_input)
    resize = max(height, width) if resize is None else resize
    spec = InputSpec(channels, height, width, (0.0,) * channels, (1.0,) * channels, resize)
    source = torch_module.source(model, spec, name or type(model).__name__)
    if mean is None and std is None:
        source.warnings.append("no mean and std given: pixels are scaled to 0..1 and no further")
    return export_source(source, output, options)


def export_source(source: Source, output: str | os.PathLike[str], options: ExportOptions) -> Report:
    """The way from a source to a file, the same for all front ends."""
    _check_choices(options)
    target = Path(output)
    _check_target(target, options.force, source.path)
    warnings = source.warnings + validate(source.graph, options.zero_weights)
    images = None if options.images is None else open_images(Path(options.images), source.num_classes)
    spec = _input(source, options)
    names = _labels(source, spec)
    metadata = spec.metadata(source.name, source.num_classes, names)
    if source.path is not None:
        metadata["source"] = source.path.name

    floats = Candidate(build(source.graph, spec.mean, spec.std, metadata)[0])
    integer, reason = None, None
    if options.numerics != "float":
        if spec.labels in BUILTIN:
            metadata = {**metadata, "labels": spec.labels}
        try:
            model, more = build(source.graph, spec.mean, spec.std, metadata, "integer", *_widths(source, options))
            integer = Candidate(model)
            warnings += more
        except NotIntegerError as e:
            reason = str(e)
            if options.numerics == "integer" or options.weights == "int8" or options.stem is not None:
                raise ExportError(f"the network cannot be exported with --numerics integer: {e}") from None
    count, chosen = options.verify, integer or floats
    verification = verify(source, floats, count) if count else None  # that the network was read right
    integer_verification = verify_integer(source, spec, integer, count) if count and integer else None
    accuracy = None
    if images is not None:
        accuracy = measure(source.reference, chosen.engine.run, images, spec, options.max_images)
    try:
        bnn.replace_file(target, chosen.data)
    except OSError as e:
        raise ExportError(f"{target}: cannot be written: {e.strerror or e}") from None
    return Report(
        output=str(target),
        arch=source.name,
        num_classes=source.num_classes,
        input_size=max(spec.height, spec.width),
        input_shape=spec.shape,
        mean=spec.mean,
        std=spec.std,
        learned_scale=source.learned_scale,
        numerics=chosen.model.numerics,
        labels=len(names),
        layers=layers(chosen.model),
        bytes=len(chosen.data),
        parameters=source.parameters,
        verification=verification,
        integer_verification=integer_verification,
        accuracy=accuracy,
        not_integer=reason,
        warnings=warnings,
    )


def _check_target(target: Path, force: bool, source: Path | None = None) -> None:
    """Refuses an output that cannot or must not be written, before any work is done."""
    if not target.parent.is_dir():
        raise ExportError(f"{target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise ExportError(f"{target}: is a folder")
    if source is not None and source.exists() and target.exists() and target.samefile(source):
        raise ExportError(f"{target}: is the checkpoint itself")
    if target.exists() and not force:
        raise ExportError(f"{target}: exists already; --force overwrites it")


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
    if options.numerics == "float" and (options.weights == "int8" or options.stem is not None):
        raise ExportError("--weights and --stem are for integer files, --numerics float has none")


def _widths(source: Source, options: ExportOptions) -> tuple[str, str]:
    """Of the real weights and the stem's: as asked for, as the network was trained, or 16 bits."""
    weights = options.weights or source.deployed.get("weights", "int16")
    trained = options.weights is None and "stem" in source.deployed
    return weights, options.stem or (source.deployed["stem"] if trained else weights)


def _image_shape(example: torch.Tensor | Sequence[int]) -> tuple[int, int, int]:
    shape = tuple(example.shape) if isinstance(example, torch.Tensor) else tuple(example)
    if len(shape) != 4 or shape[0] != 1 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ExportError(f"example_input has the shape {shape}, expected (1, channels, height, width)")
    return shape[1:]


def _input(source: Source, options: ExportOptions) -> InputSpec:
    """The source's input with what the options change of it."""
    spec = source.input
    mean = spec.mean if options.mean is None else tuple(map(float, options.mean))
    std = spec.std if options.std is None else tuple(map(float, options.std))
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
