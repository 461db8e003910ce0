"""What an export costs: top-1 of PyTorch and of the exported file on the same labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ovsw.export.errors import ExportError
from ovsw.export.verify import normalised
from ovsw.image import load_pixels
from ovsw.train.data import IMAGE_SUFFIXES, DataError, FolderSet, MemorySet, open_split

_BATCH = 50


@dataclass
class Accuracy:
    """Shares of `images`: right answers of either, and equal answers."""

    images: int
    pytorch: float
    exported: float
    agreement: float


def open_images(root: Path, num_classes: int) -> MemorySet | FolderSet:
    """The test images in a folder: CIFAR in any form that `ovsw-train` reads, or one folder of images per class.

    Classes are numbered as in the data set, or by the sorted names of the folders.
    """
    if not root.is_dir():
        raise ExportError(f"--images: the folder {root} does not exist")
    try:
        found = _cifar(root, num_classes) or _folders(root)
    except (DataError, OSError) as e:
        raise ExportError(f"--images: {e}") from None
    if len(found.names) != num_classes:
        raise ExportError(f"--images: {root} has {len(found.names)} classes, the network has {num_classes}")
    return found


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
    found = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not found:
        raise DataError(f"{root}: holds neither CIFAR nor a folder of images for each class")
    return FolderSet([path for path, _ in found], torch.tensor([label for _, label in found]), names)


def measure(
    model: nn.Module,
    run: Callable[[np.ndarray], np.ndarray],
    images: MemorySet | FolderSet,
    mean: np.ndarray,
    std: np.ndarray,
    size: int,
    resize: int,
    limit: int | None,
) -> Accuracy:
    """Compares `model` in float32 with `run`, which gives logits of uint8 (n, h, w, c), on at most `limit` images."""
    count = len(images) if limit is None else min(limit, len(images))
    chosen = np.arange(count) * len(images) // count  # spread over all classes
    labels = images.labels.numpy()[chosen]
    answers: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    for pixels in _batches(images, chosen, size, resize):
        with torch.no_grad():
            logits = model(torch.from_numpy(normalised(pixels, mean, std)))
        expected.append(logits.flatten(1).argmax(1).numpy())
        answers.append(run(pixels).argmax(axis=1))
    file, torch_ = np.concatenate(answers), np.concatenate(expected)
    shares = (float((a == b).mean()) for a, b in ((torch_, labels), (file, labels), (file, torch_)))
    return Accuracy(count, *shares)


def _batches(images: MemorySet | FolderSet, chosen: np.ndarray, size: int, resize: int) -> Iterator[np.ndarray]:
    if isinstance(images, MemorySet) and tuple(images.images.shape[2:]) != (size, size):
        raise ExportError(f"--images: the images have {images.images.shape[2]} pixels, the network takes {size}")
    for start in range(0, len(chosen), _BATCH):
        part = chosen[start : start + _BATCH]
        if isinstance(images, MemorySet):
            yield np.ascontiguousarray(images.images[part].numpy().transpose(0, 2, 3, 1))
        else:
            yield np.stack([load_pixels(images.paths[i], 3, resize, (size, size)) for i in part])
