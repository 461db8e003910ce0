"""What an export is asked for: its options, where the file goes, and how images are prepared for it.

Messages name parameters as Python callers write them, `mean=` or `force=True`. The command translates them into its
own options.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ovsw.export.errors import ExportError
from ovsw.labels import load_labels
from ovsw.networks import NORMALISATIONS, InputSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ovsw.export.source import Source

WIDTHS = ("int16", "int8")
CHOICES = {
    "numerics": ("auto", "integer", "float"),
    "weights": WIDTHS,
    "stem": (*WIDTHS, "int24"),
    "stream": ("auto", "int32", "int16"),
    "zero_weights": ("refuse", "plus"),
}


@dataclass
class ExportOptions:
    """What the command line can set; None means: as found in the checkpoint or usual for the network.

    `arch` and `input_size` are for checkpoints, `input` (channels, height, width) and `checkpoint` for FILE.py:NAME,
    `allow_unsafe` for `.pt2` programs, which are read by a pickle that may run code, `no_limits` for `.onnx` files,
    however much memory and time they take. `mean` and `std` are numbers per channel, or the name of a normalisation in
    `ovsw.networks`. `labels` is a file, the name of a built-in list, "none", or the names. `numerics` is "auto"
    (integer where the network allows it), "integer" or "float". `weights` and `stem` are the widths of real weights in
    integer files, "int16" or "int8"; the default is the arithmetic in which the checkpoint was trained, else int16. A
    stem of "int24" is two convolutions; in a 32-bit stream it is the default where it costs next to nothing. `stream`
    is the width of residual streams that no clamp bounds; "auto" is int32. `calibration` are images for the scales of
    what is not clamped: a folder, uint8 (n, height, width, channels) or normalised float32 (n, channels, height,
    width); the default is some of `images`, else synthetic ones.
    """

    arch: str | None = None
    input_size: int | None = None
    mean: str | Sequence[float] | None = None
    std: str | Sequence[float] | None = None
    labels: str | Sequence[str] | None = None
    numerics: str = "auto"
    weights: str | None = None
    stem: str | None = None
    stream: str = "auto"
    zero_weights: str = "refuse"
    verify: int = 4
    images: str | None = None
    max_images: int | None = None
    calibration: str | np.ndarray | torch.Tensor | None = None
    force: bool = False
    input: tuple[int, int, int] | None = None
    checkpoint: str | None = None
    allow_unsafe: bool = False
    no_limits: bool = False

    def check(self) -> None:
        """Raises ExportError for values that no network can use."""
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known and (value is not None or name not in ("weights", "stem")):
                raise ExportError(f"{name}= is {value!r}; known are {', '.join(known)}")
        if self.verify < 1:
            raise ExportError(f"verify= is {self.verify}; at least 1 image is compared with the original")
        if self.numerics == "float" and (self.weights == "int8" or self.stem is not None):
            raise ExportError('weights= and stem= are for integer files, not for numerics="float"')

    @property
    def wants_integer(self) -> bool:
        """Whether a float file is not what was asked for."""
        return self.numerics == "integer" or self.weights == "int8" or self.stem is not None

    def widths(self, trained: dict[str, str]) -> tuple[str, str | None]:
        """Of the real weights and of the stem's: as asked for, as the network was trained, or 16 bits.

        A stem of None is as wide as the other weights, or wider where that costs little.
        """
        weights = self.weights or trained.get("weights", "int16")
        return weights, self.stem or (trained.get("stem") if self.weights is None else None)

    def input_of(self, source: Source) -> tuple[InputSpec, list[str]]:
        """The source's input with what the options change of it, and the names of the classes."""
        spec = self.normalisation_of(source.input)
        labels = self.labels if self.labels is None or isinstance(self.labels, str) else tuple(self.labels)
        spec = replace(spec, labels=spec.labels if labels is None else labels)
        return spec, _class_names(spec.labels, source.num_classes)

    def normalisation_of(self, spec: InputSpec) -> InputSpec:
        """An input with the mean and std of the options."""
        named = self.mean if isinstance(self.mean, str) else None  # a name counts for both
        mean = _numbers("mean", self.mean, spec.mean)
        std = _numbers("std", named if self.std is None else self.std, spec.std)
        if not all(1e-30 < s < 1e30 for s in std) or not all(abs(m) < 1e30 for m in mean):
            raise ExportError("mean= takes finite numbers and std= positive ones, for pixels scaled to 0..1")
        return replace(spec, mean=mean, std=std)


def _numbers(name: str, value: str | Sequence[float] | None, usual: tuple[float, ...]) -> tuple[float, ...]:
    """One number per channel: as given, of a known normalisation, or the usual ones."""
    known = {**NORMALISATIONS, "none": ((0.0,) * len(usual), (1.0,) * len(usual))}
    if value is None:
        return usual
    if isinstance(value, str):
        if value not in known:
            raise ExportError(f"{name}: '{value}' is neither numbers nor one of {', '.join(known)}")
        value = known[value][name == "std"]
    if len(value) != len(usual):
        raise ExportError(f"{name}= takes {len(usual)} numbers, one per channel, not {len(value)}")
    return tuple(map(float, value))


def _class_names(labels: str | tuple[str, ...], classes: int) -> list[str]:
    if isinstance(labels, str):
        try:
            return load_labels(labels, classes)
        except (OSError, ValueError) as e:
            raise ExportError(f"labels: {e}") from None
    if len(labels) not in (0, classes):
        raise ExportError(f"labels: {len(labels)} names are given, the network has {classes} classes")
    return list(labels)


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether a file is ONNX, by its name; raises ExportError if it is and the package is missing."""
    if not os.fspath(path).endswith(".onnx"):
        return False
    if importlib.util.find_spec("onnx") is None:
        raise ExportError(f"{path}: onnx is needed for such files: pip install 'ovsw[onnx]'")
    return True


def check_target(output: str | os.PathLike[str], force: bool, source: str | os.PathLike[str] | None = None) -> Path:
    """The file to write. Raises ExportError if it may not or cannot be written, before any work is done."""
    target = Path(output)
    if not target.parent.is_dir():
        raise ExportError(f"{target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise ExportError(f"{target}: is a folder")
    if source is not None and Path(source).exists() and target.exists() and target.samefile(source):
        raise ExportError(f"{target}: is the checkpoint itself")
    if target.is_file() and not force:  # a device or a pipe loses nothing
        raise ExportError(f"{target}: exists already; force=True overwrites it")
    is_onnx(target)
    return target
