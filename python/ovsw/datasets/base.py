"""What every data set is: images with labels, held in memory or decoded from files, in two parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Union

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ovsw.image import load_image, load_pixels

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}


class DataError(ValueError):
    """A folder without the data set that was looked for, or with a broken file."""


@dataclass
class MemorySet:
    """All images as uint8 (n, channels, height, width), and their labels."""

    images: Tensor
    labels: Tensor
    names: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> MemorySet:
        return MemorySet(self.images[:count], self.labels[:count], self.names)

    def chosen(self, places: Tensor) -> MemorySet:
        return MemorySet(self.images[places], self.labels[places], self.names)


@dataclass
class FolderSet:
    """Images below `root/<class>/`, decoded on demand.

    `broken` decides about files that cannot be decoded: "refuse" raises, "skip" takes the next one.
    """

    paths: list[Path]
    labels: Tensor
    names: list[str]
    broken: str = "refuse"

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> FolderSet:
        """This many images, spread evenly, as they are sorted by class."""
        return self.chosen(torch.tensor([i * len(self) // count for i in range(count)]))

    def chosen(self, places: Tensor) -> FolderSet:
        return FolderSet([self.paths[i] for i in places.tolist()], self.labels[places], self.names, self.broken)

    def load(
        self, index: int, size: int, resize: int, scale: Sequence[float] | None, rng: np.random.Generator
    ) -> Tensor:
        """One image as uint8 (3, size, size): a random resized crop if `scale` is given, else as for evaluation.

        A skipped image is replaced by the next one of its class.
        """
        for candidate in self._candidates(index):
            path = self.paths[candidate]
            try:
                pixels = _random_crop(path, size, scale, rng) if scale else load_pixels(path, 3, resize, (size, size))
            except (OSError, ValueError) as e:
                if self.broken == "skip":
                    continue
                raise DataError(f"{e}; --set data.broken=skip skips it") from None
            return torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        raise DataError(f"{self.paths[index].parent}: no image of this class can be decoded")

    def _candidates(self, index: int) -> Iterator[int]:
        """The image itself, then the others of its class."""
        yield index
        same = torch.nonzero(self.labels == self.labels[index]).flatten().tolist()
        first = same.index(index)
        yield from same[first + 1 :] + same[:first]


def _random_crop(path: Path, size: int, scale: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    rgb = load_image(path, 3)
    top, left, h, w = crop_box(rgb.height, rgb.width, scale, rng)
    return np.asarray(rgb.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h)))


def crop_box(height: int, width: int, scale: Sequence[float], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Top, left, height, width of a random crop of `scale` of the area and an aspect ratio of 3/4 to 4/3.

    A crop larger than the image is drawn again, ten times in all; then the largest allowed centre is taken.
    """
    for _ in range(10):
        area = height * width * rng.uniform(scale[0], scale[1])
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


Split = Union[MemorySet, FolderSet]


@dataclass(frozen=True)
class DataSet:
    """A data set that `open_split` opens by its `name`; `in_folder` says whether it is read from a folder.

    `num_classes` and `size` are for synthetic images; `broken` says whether image folders skip or refuse broken files.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    in_folder: ClassVar[bool] = True
    num_classes: int = 10
    size: int = 32
    broken: str = "refuse"

    def open(self, root: Path, split: str) -> Split:
        """The "train" or "test" part. Raises DataError with what was looked for."""
        raise NotImplementedError
