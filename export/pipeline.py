"""The whole way in six steps, twice for integers: a float model proves the reading, the integer one is written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovsw import format as bnn
from ovsw import numerics
from ovsw._version import __version__
from ovsw.engine import Engine
from ovsw.export import ir
from ovsw.export.accuracy import Accuracy, measure, open_images
from ovsw.export.errors import ExportError
from ovsw.export.fold import Fused, fold
from ovsw.export.load import Loaded, load
from ovsw.export.pack import pack, pack_integer
from ovsw.export.quantize import NotIntegerError, quantize
from ovsw.export.trace import trace
from ovsw.export.validate import validate
from ovsw.export.verify import IntegerVerification, Verification, verify, verify_integer
from ovsw.export.write import check_target, write
from ovsw.labels import BUILTIN, load_labels
from ovsw.summary import Layer, layers


@dataclass
class ExportOptions:
    """What the command line can set; None means: as found in the checkpoint or usual for the network.

    `numerics` is "auto" (integer where the network allows it), "integer" or "float". `weights` and `stem` are the
    widths of real weights in integer files, "int16" or "int8".
    """

    arch: str | None = None
    input_size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    labels: str | None = None
    numerics: str = "auto"
    weights: str = "int16"
    stem: str | None = None
    zero_weights: str = "refuse"
    verify: int = 4
    images: str | None = None
    max_images: int | None = None
    force: bool = False


@dataclass
class Report:
    """What was exported, for people (`ovsw-export`) and programs (`--json`).

    `verification` is that of the float model, which is also made for an integer file. `not_integer` is the reason why
    a file that may be either is float.
    """

    output: str
    arch: str
    num_classes: int
    input_size: int
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
    source, target = Path(checkpoint), Path(output)
    check_target(source, target, options.force)
    loaded = load(source, options.arch, options.input_size)
    images = None if options.images is None else open_images(Path(options.images), loaded.num_classes)
    shape = (3, loaded.input_size, loaded.input_size)
    graph = trace(loaded.model, shape)
    warnings = validate(graph, options.zero_weights)
    ops = fold(graph)
    mean, std = _normalisation(loaded, options)
    metadata, labels = _metadata(source, loaded, options)
    model = pack(ops, shape, mean, std, metadata)
    data = bnn.to_bytes(model)
    engine = _engine(source, data)
    verification = verify(loaded.model, engine, shape, options.verify) if options.verify else None

    exact, reason, more = _integer(ops, shape, mean, std, metadata, options)
    integer_verification = None
    run = engine.run
    if exact is not None:
        model, data = exact, bnn.to_bytes(exact)
        numerics.check(model)
        engine = _engine(source, data)
        run = engine.run
        if options.verify:
            integer_verification = verify_integer(loaded.model, model, engine, options.verify)
    accuracy = None
    if images is not None:
        how = (model.tensors[model.mean].array, model.tensors[model.std].array, loaded.input_size)
        resize = metadata["preprocess"]["resize"]
        accuracy = measure(loaded.model, run, images, *how, resize, options.max_images)
    write(data, target)
    return Report(
        output=str(target),
        arch=loaded.spec.name,
        num_classes=loaded.num_classes,
        input_size=loaded.input_size,
        learned_scale=loaded.learned_scale,
        numerics=model.numerics,
        labels=labels,
        layers=layers(model),
        bytes=len(data),
        parameters=sum(p.numel() for n, p in loaded.model.named_parameters() if not n.endswith("scaling_factor")),
        verification=verification,
        integer_verification=integer_verification,
        accuracy=accuracy,
        not_integer=reason,
        warnings=warnings + more,
    )


def _engine(source: Path, data: bytes) -> Engine:
    try:
        return Engine(data)
    except ValueError as e:
        raise ExportError(f"{source}: the engine refuses the result: {e}") from None


def _integer(
    ops: list[Fused],
    shape: ir.Shape,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    options: ExportOptions,
) -> tuple[bnn.Model | None, str | None, list[str]]:
    """The integer model, if it is wanted and possible; else why it is not possible; and warnings."""
    narrow = options.weights != "int16" or options.stem is not None
    if options.numerics == "float":
        if narrow:
            raise ExportError("--weights and --stem are for integer files, --numerics float has none")
        return None, None, []
    try:
        made, warnings = quantize(ops, mean, std, options.weights, options.stem)
    except NotIntegerError as e:
        if options.numerics == "integer" or narrow:
            raise ExportError(f"the network cannot be exported with --numerics integer: {e}") from None
        return None, str(e), []
    if options.labels in BUILTIN or (options.labels is None and metadata["labels"]):
        metadata = {**metadata, "labels": options.labels or "imagenet"}
    return pack_integer(made, shape, mean, std, metadata), None, warnings


def _normalisation(loaded: Loaded, options: ExportOptions) -> tuple[Sequence[float], Sequence[float]]:
    mean = loaded.spec.mean if options.mean is None else options.mean
    std = loaded.spec.std if options.std is None else options.std
    for what, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            raise ExportError(f"--{what} takes 3 numbers, one per channel, not {len(values)}")
    if not all(1e-30 < s < 1e30 for s in std) or not all(abs(m) < 1e30 for m in mean):
        raise ExportError("--mean takes finite numbers and --std positive ones, for pixels scaled to 0..1")
    return mean, std


def _metadata(source: Path, loaded: Loaded, options: ExportOptions) -> tuple[dict[str, Any], int]:
    """What a float file says of itself, and the number of its labels."""
    spec, size = loaded.spec, loaded.input_size
    labels = options.labels
    if labels is None:
        usual = spec.dataset == "imagenet" and loaded.num_classes == 1000
        labels = "imagenet" if usual else "none"
    try:
        names = load_labels(labels, loaded.num_classes)
    except (OSError, ValueError) as e:
        raise ExportError(f"--labels: {e}") from None
    metadata = {
        "producer": f"ovsw {__version__}",
        "arch": spec.name,
        "num_classes": loaded.num_classes,
        "preprocess": {"resize": round(size * spec.resize_ratio), "crop": size},
        "labels": names,
        "source": source.name,
    }
    return metadata, len(names)
