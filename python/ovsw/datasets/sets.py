"""The data sets, one class each: CIFAR-10/100 (`cifar.py`), Fashion-MNIST, image folders, a synthetic one for tests."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from ovsw.datasets.base import IMAGE_SUFFIXES, DataError, DataSet, FolderSet, MemorySet, Split
from ovsw.datasets.cifar import Cifar10, Cifar100

_MOST_ITEMS = 70_000  # of an IDX file; Fashion-MNIST has 60000


class FashionMnist(DataSet):
    """IDX files, plain or gzipped; images are padded from 28 to 32 pixels and repeated to three channels."""

    name, title = "fashion-mnist", "Fashion-MNIST"

    def open(self, root: Path, split: str) -> MemorySet:
        stem = "train" if split == "train" else "t10k"
        names = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
        images = _idx_array(root, f"{stem}-images-idx3-ubyte", (28, 28))
        labels = _idx_array(root, f"{stem}-labels-idx1-ubyte", ())
        if len(images) != len(labels):
            raise DataError(f"{root}: {len(images)} {split} images but {len(labels)} labels")
        if labels.max() >= len(names):
            raise DataError(f"{root}: a label is {labels.max()}, expected 0 to {len(names) - 1}")
        grey = torch.from_numpy(np.pad(images, ((0, 0), (2, 2), (2, 2))))
        rgb = grey[:, None].expand(-1, 3, -1, -1).contiguous()
        return MemorySet(rgb, torch.from_numpy(labels.astype(np.int64)), names)


def _idx_array(root: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The items of an IDX file, each of this shape; unpacks as much as the header says, within a bound."""
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            try:
                with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                    magic, count, *dims = struct.unpack(f">{2 + len(shape)}I", file.read(4 * (2 + len(shape))))
                    if magic != 0x0801 + len(shape):
                        raise ValueError(f"magic number {magic:#x}")
                    if tuple(dims) != shape or not 1 <= count <= _MOST_ITEMS:
                        raise ValueError(f"{count} items of {dims}, expected 1 to {_MOST_ITEMS} of {list(shape)}")
                    data = file.read(count * math.prod(shape))
                return np.frombuffer(data, np.uint8).reshape(count, *shape)
            except (OSError, EOFError, ValueError, struct.error, zlib.error) as e:
                raise DataError(f"{path}: not an IDX file ({e})") from None
    raise DataError(f"{root}: holds no {name}[.gz]")


class ImageFolder(DataSet):
    """The ImageNet layout: train/<class>/*.jpg, and val/ (or test/) likewise."""

    name, title = "folder", "a folder of images"

    def open(self, root: Path, split: str) -> FolderSet:
        folders = ("train",) if split == "train" else ("val", "test")
        base = next((root / name for name in folders if (root / name).is_dir()), root / folders[0])
        if not base.is_dir():
            raise DataError(f"{base}: no such folder (expected train/<class>/ and val/<class>/)")
        names = sorted(p.name for p in base.iterdir() if p.is_dir())
        paths, labels = [], []
        for label, name in enumerate(names):
            images = sorted(p for p in (base / name).rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            paths += images
            labels += [label] * len(images)
        if not paths:
            raise DataError(f"{base}: holds no images in class folders")
        return FolderSet(paths, torch.tensor(labels), names, self.broken)


class Synthetic(DataSet):
    """Blurred noise around one pattern per class: learnable in seconds, the same every time."""

    name, title, in_folder = "synthetic", "synthetic patterns", False

    def open(self, root: Path, split: str) -> MemorySet:
        rng = np.random.default_rng([0, split == "test"])
        patterns = np.random.default_rng(0).normal(size=(self.num_classes, 3, 4, 4))
        count = 512 if split == "train" else 256
        labels = rng.integers(0, self.num_classes, count)
        coarse = patterns[labels] + rng.normal(scale=0.7, size=(count, 3, 4, 4))
        small, times = np.clip(128 + 40 * coarse, 0, 255).astype(np.uint8), self.size // 4
        images = torch.from_numpy(small.repeat(times, axis=2).repeat(times, axis=3))
        return MemorySet(images, torch.from_numpy(labels), [f"pattern {i}" for i in range(self.num_classes)])


_CLASSES: tuple[type[DataSet], ...] = (Cifar10, Cifar100, FashionMnist, ImageFolder, Synthetic)
DATASETS = {data_set.name: data_set for data_set in _CLASSES}


def open_split(
    kind: str, root: Path | None, split: str, *, num_classes: int = 10, size: int = 32, broken: str = "refuse"
) -> Split:
    """The "train" or "test" part of a data set. Raises DataError with what was looked for."""
    if kind not in DATASETS:
        raise DataError(f"unknown data set '{kind}'; known are {', '.join(DATASETS)}")
    if DATASETS[kind].in_folder:
        if root is None:
            raise DataError(f"--data DIR is needed: the folder of {kind}")
        if not root.is_dir():
            raise DataError(f"--data: the folder {root} does not exist")
    return DATASETS[kind](num_classes, size, broken).open(root or Path(), split)
