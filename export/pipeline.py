"""The whole way in six steps, and the report of what was exported."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.engine import Engine
from ovsw.export.errors import ExportError
from ovsw.export.fold import fold
from ovsw.export.load import Loaded, load
from ovsw.export.pack import pack
from ovsw.export.trace import trace
from ovsw.export.validate import validate
from ovsw.export.verify import Verification, verify
from ovsw.export.write import check_target, write
from ovsw.labels import load_labels
from ovsw.summary import Layer, layers


@dataclass
class ExportOptions:
    """What the command line can set; None means: as found in the checkpoint or usual for the network."""

    arch: str | None = None
    input_size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    labels: str | None = None
    numerics: str = "float"
    zero_weights: str = "refuse"
    verify: int = 4
    force: bool = False


@dataclass
class Report:
    """What was exported, for people (`ovsw-export`) and programs (`--json`)."""

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
    shape = (3, loaded.input_size, loaded.input_size)
    graph = trace(loaded.model, shape)
    warnings = validate(graph, options.zero_weights)
    ops = fold(graph)
    mean, std = _normalisation(loaded, options)
    model = pack(ops, shape, mean, std, _metadata(source, loaded, options))
    model.numerics = options.numerics
    data = bnn.to_bytes(model)
    try:
        engine = Engine(data)
    except ValueError as e:
        raise ExportError(f"{source}: the engine refuses the result: {e}") from None
    verification = verify(loaded.model, engine, shape, options.verify) if options.verify else None
    write(data, target)
    return Report(
        output=str(target),
        arch=loaded.spec.name,
        num_classes=loaded.num_classes,
        input_size=loaded.input_size,
        learned_scale=loaded.learned_scale,
        numerics=model.numerics,
        labels=len(model.metadata["labels"]),
        layers=layers(model),
        bytes=len(data),
        parameters=sum(p.numel() for n, p in loaded.model.named_parameters() if not n.endswith("scaling_factor")),
        verification=verification,
        warnings=warnings,
    )


def _normalisation(loaded: Loaded, options: ExportOptions) -> tuple[Sequence[float], Sequence[float]]:
    mean = loaded.spec.mean if options.mean is None else options.mean
    std = loaded.spec.std if options.std is None else options.std
    for what, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            raise ExportError(f"--{what} takes 3 numbers, one per channel, not {len(values)}")
    if not all(1e-30 < s < 1e30 for s in std) or not all(abs(m) < 1e30 for m in mean):
        raise ExportError("--mean takes finite numbers and --std positive ones, for pixels scaled to 0..1")
    return mean, std


def _metadata(source: Path, loaded: Loaded, options: ExportOptions) -> dict[str, Any]:
    spec, size = loaded.spec, loaded.input_size
    labels = options.labels
    if labels is None:
        usual = spec.dataset == "imagenet" and loaded.num_classes == 1000
        labels = "imagenet" if usual else "none"
    try:
        names = load_labels(labels, loaded.num_classes)
    except (OSError, ValueError) as e:
        raise ExportError(f"--labels: {e}") from None
    return {
        "producer": f"ovsw {__version__}",
        "arch": spec.name,
        "num_classes": loaded.num_classes,
        "preprocess": {"resize": round(size * spec.resize_ratio), "crop": size},
        "labels": names,
        "source": source.name,
    }
