"""The accuracy of an export: top-1 of the reference and of the exported file on the same labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ovsw.datasets import IMAGE_SUFFIXES, DataError, FolderSet, MemorySet, open_split
from ovsw.export.errors import ExportError
from ovsw.image import load_pixels
from ovsw.networks import InputSpec
from ovsw.util.text import dims

_BATCH = 50
_HONEST = 0.85  # integer files of networks whose stream is not clamped give the same answer on 92 % and more


@dataclass
class Accuracy:
    """Shares of `images`: right answers of either, and equal answers."""

    images: int
    pytorch: float
    exported: float
    agreement: float

    def is_lost(self, classes: int) -> bool:
        """Whether the file has lost most of the network's accuracy: it is much nearer to chance."""
        chance = 1 / classes
        return self.pytorch > 2 * chance and self.exported - chance < (self.pytorch - chance) / 4

    def warning(self) -> str | None:
        """A warning for users of the file, if its answers differ from the network's."""
        noise = 3 * ((1 - self.agreement) / self.images) ** 0.5  # of a difference between accuracies on the same images
        if self.pytorch - self.exported > max(0.01, noise):
            return f"the file is right on {self.exported:.1%} of {self.images:,} images, PyTorch on {self.pytorch:.1%}"
        return other_answers(self.agreement, self.images)


@dataclass
class Answers:
    """The share of `images` on which a file has the same answer as PyTorch."""

    images: int
    same: float

    def warning(self) -> str | None:
        return other_answers(self.same, self.images)


def other_answers(agreement: float, images: int) -> str | None:
    """A warning, if the file's answers are PyTorch's on less than most of the images."""
    if agreement >= _HONEST:
        return None
    return f"the file gives the same answer as PyTorch on only {agreement:.0%} of {images:,} images"


def open_images(root: Path, num_classes: int) -> MemorySet | FolderSet:
    """The test images in a folder: CIFAR in any form that `ovsw-train` reads, or one folder of images per class.

    Classes are numbered as in the data set, or by the sorted names of the folders.
    """
    if not root.is_dir():
        raise ExportError(f"images: the folder {root} does not exist")
    try:
        images = _cifar(root, num_classes) or _folders(root)
    except (DataError, OSError) as e:
        raise ExportError(f"images: {e}") from None
    if len(images.names) != num_classes:
        raise ExportError(f"images: {root} has {len(images.names)} classes, the network has {num_classes}")
    return images


def _cifar(root: Path, num_classes: int) -> MemorySet | FolderSet | None:
    kind = {10: "cifar10", 100: "cifar100"}.get(num_classes)
    try:
        return None if kind is None else open_split(kind, root, "test")
    except DataError:
        if any(root.rglob("manifest.json")) or any(root.rglob("batches.meta")):
            raise
        return None


def _folders(root: Path) -> MemorySet | FolderSet:
    if (root / "val").is_dir() or (root / "test").is_dir():
        return open_split("folder", root, "test")
    names = sorted(p.name for p in root.iterdir() if p.is_dir())
    images = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not images:
        raise DataError(f"{root}: holds neither CIFAR nor a folder of images for each class")
    return FolderSet([path for path, _ in images], torch.tensor([label for _, label in images]), names)


def measure(
    reference: Callable[[np.ndarray], Any],
    run: Callable[[np.ndarray], np.ndarray],
    images: MemorySet | FolderSet,
    spec: InputSpec,
    limit: int | None,
) -> Accuracy:
    """Compares the reference in float32 with `run`, which takes uint8 (n, h, w, c), on at most `limit` images."""
    chosen = spread(len(images), limit)
    labels = images.labels.numpy()[chosen]
    exported: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    for pixels in _batches(images, chosen, spec):
        expected.append(first_output(reference(spec.normalised(pixels))).argmax(axis=1))
        exported.append(run(pixels).argmax(axis=1))
    file, torch_ = np.concatenate(exported), np.concatenate(expected)
    shares = (float((a == b).mean()) for a, b in ((torch_, labels), (file, labels), (file, torch_)))
    return Accuracy(len(chosen), *shares)


def agreement(
    reference: Callable[[np.ndarray], Any], run: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, spec: InputSpec
) -> float:
    """The share of images, uint8 (n, h, w, c), on which both have the same answer."""
    first = first_output(reference(spec.normalised(pixels))).reshape(len(pixels), -1)
    return float((first.argmax(axis=1) == run(pixels).argmax(axis=1)).mean())


def first_output(outputs: Any) -> np.ndarray:
    """The first of what a network returns: an array, or a tuple of several."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def some_pixels(images: MemorySet | FolderSet, spec: InputSpec, most: int) -> np.ndarray:
    """At most `most` of the images, evenly spread, as uint8 (n, h, w, c)."""
    return np.concatenate(list(_batches(images, spread(len(images), most), spec)))


def spread(total: int, most: int | None) -> np.ndarray:
    """The indices of at most `most` of `total` images, evenly spread, so that all classes are among them."""
    count = total if most is None else min(most, total)
    return np.arange(count) * total // count


def _batches(images: MemorySet | FolderSet, chosen: np.ndarray, spec: InputSpec) -> Iterator[np.ndarray]:
    if isinstance(images, MemorySet) and tuple(images.images.shape[1:]) != spec.shape:
        shape = dims(images.images.shape[1:])
        raise ExportError(f"images: the images are of {shape}, the network takes {dims(spec.shape)}")
    for start in range(0, len(chosen), _BATCH):
        part = chosen[start : start + _BATCH]
        if isinstance(images, MemorySet):
            yield np.ascontiguousarray(images.images[part].numpy().transpose(0, 2, 3, 1))
        else:
            crop = (spec.height, spec.width)
            yield np.stack([load_pixels(images.paths[i], spec.channels, spec.resize, crop) for i in part])
