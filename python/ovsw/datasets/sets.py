"""Image sets: CIFAR-10/100, Fashion-MNIST, image folders, and a synthetic one for tests.

Small sets are held in memory as one uint8 tensor; an image folder is decoded on demand by worker processes.
`open_split` finds out which form of a set lies in a folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ovsw.image import load_image, load_pixels
from ovsw.util import pickles

KINDS = ("cifar10", "cifar100", "fashion-mnist", "folder", "synthetic")
_MOST_ITEMS = 100_000  # of an IDX file; Fashion-MNIST has 60000
_LARGEST_LABELS = 1 << 24  # bytes in labels.npz
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}


class DataError(ValueError):
    """A folder that does not hold the data set it should, or a broken file in it."""


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
    """Images below `root/<class>/`, decoded when they are asked for.

    `broken` says what to do with a file that cannot be decoded: "refuse" raises, "skip" takes the next one.
    """

    paths: list[Path]
    labels: Tensor
    names: list[str]
    broken: str = "refuse"

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> FolderSet:
        """So many images, spread evenly: they are sorted by class."""
        return self.chosen(torch.tensor([i * len(self) // count for i in range(count)]))

    def chosen(self, places: Tensor) -> FolderSet:
        return FolderSet([self.paths[i] for i in places.tolist()], self.labels[places], self.names, self.broken)

    def load(
        self, index: int, size: int, resize: int, scale: Sequence[float] | None, rng: np.random.Generator
    ) -> Tensor:
        """One image as uint8 (3, size, size): a random resized crop if `scale` is given, else as for evaluation.

        In the place of one that is skipped comes the next of its class.
        """
        for candidate in self._candidates(index):
            path = self.paths[candidate]
            try:
                pixels = _random_crop(path, size, scale, rng) if scale else load_pixels(path, 3, resize, (size, size))
            except (OSError, ValueError) as e:
                if self.broken == "skip":
                    continue
                raise DataError(f"{e}; --set data.broken=skip passes over it") from None
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

    A scale above 1 asks for more than the image; such tries fail and are drawn again, ten times in all, and then the
    largest allowed centre is taken.
    """
    for _ in range(10):
        area = height * width * rng.uniform(scale[0], scale[1])
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def open_split(
    kind: str, root: Path | None, split: str, *, num_classes: int = 10, size: int = 32, broken: str = "refuse"
) -> MemorySet | FolderSet:
    """The "train" or "test" part of a data set. Raises DataError with what was looked for."""
    if kind == "synthetic":
        return _synthetic(split, num_classes, size)
    if root is None:
        raise DataError(f"--data DIR is needed: where {kind} lies")
    if not root.is_dir():
        raise DataError(f"--data: the folder {root} does not exist")
    if kind in ("cifar10", "cifar100"):
        return _cifar(kind, root, split)
    if kind == "fashion-mnist":
        return _idx(root, split)
    if kind == "folder":
        return _folder(root, split, broken)
    raise DataError(f"unknown data set '{kind}'; known are {', '.join(KINDS)}")


def _synthetic(split: str, num_classes: int, size: int) -> MemorySet:
    """Blurred noise around one pattern per class: learnable in seconds, the same every time."""
    rng = np.random.default_rng([0, split == "test"])
    patterns = np.random.default_rng(0).normal(size=(num_classes, 3, 4, 4))
    count = 512 if split == "train" else 256
    labels = rng.integers(0, num_classes, count)
    coarse = patterns[labels] + rng.normal(scale=0.7, size=(count, 3, 4, 4))
    images = np.clip(128 + 40 * coarse, 0, 255).astype(np.uint8).repeat(size // 4, axis=2).repeat(size // 4, axis=3)
    return MemorySet(torch.from_numpy(images), torch.from_numpy(labels), [f"pattern {i}" for i in range(num_classes)])


class _Stub:
    """What a CIFAR pickle may name is one of these: made from anything, does nothing. A class, as a pickle can give
    a function attributes; with `__setstate__`, so that it cannot give them to the class either.
    """

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Dtype(_Stub):
    """In the place of numpy.dtype: its code is all that counts."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.is_uint8 = code in ("u1", b"u1", "|u1", b"|u1")


class _Array(_Stub):
    """In the place of numpy.ndarray: builds arrays of uint8 from their bytes, and no others."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not dtype.is_uint8 or not isinstance(data, bytes):
            raise pickle.UnpicklingError("holds an array that is not of uint8")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1(_Stub):
    """In the place of _codecs.encode, by which newer pickles in old protocols write bytes."""

    def __new__(cls, text: str, _: str) -> Any:
        return text.encode("latin1")


class _CifarUnpickler(pickle.Unpickler):
    """CIFAR's official files are pickles; nothing that they name is imported."""

    STUBS: ClassVar[dict[tuple[str, str], type[_Stub]]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _Latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.STUBS:
            raise pickle.UnpicklingError(f"holds {module}.{name}")
        return self.STUBS[module, name]


def _unpickle(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    data = path.read_bytes()
    try:
        pickles.check(io.BytesIO(data), len(data))
        content = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as e:  # a damaged pickle can raise almost anything
        raise DataError(f"{path}: not a CIFAR file ({e})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a CIFAR file (no dict)")
    return content


def _cifar(kind: str, root: Path, split: str) -> MemorySet:
    folder = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[kind]
    for base in (root, root / kind, root / folder, root / kind / folder):
        if (base / "manifest.json").is_file():
            found = _mosaics(base, split)
            expected = 10 if kind == "cifar10" else 100
            if len(found.names) != expected:
                raise DataError(f"{base}: has {len(found.names)} classes, {kind} has {expected}")
            return found
        if kind == "cifar10" and (base / "test_batch").is_file():
            parts = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
            return _cifar_files(base, parts, b"labels", "batches.meta", b"label_names")
        if kind == "cifar100" and (base / "meta").is_file() and (base / "test").is_file():
            return _cifar_files(base, [split], b"fine_labels", "meta", b"fine_label_names")
    raise DataError(f"{root}: holds neither {folder} nor the WebP form of {kind}")


def _cifar_files(base: Path, parts: list[str], labels: bytes, meta: str, names: bytes) -> MemorySet:
    texts = _unpickle(base / meta).get(names)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, bytes) for text in texts):
        raise DataError(f"{base / meta}: not a CIFAR file ({names.decode()} is not a list of names)")
    read = [_cifar_part(base / part, labels, len(texts)) for part in parts]
    images = np.concatenate([part[0] for part in read]).reshape(-1, 3, 32, 32)
    numbers = torch.tensor([label for part in read for label in part[1]])
    return MemorySet(torch.from_numpy(images), numbers, [text.decode(errors="replace") for text in texts])


def _cifar_part(path: Path, key: bytes, classes: int) -> tuple[np.ndarray, list[int]]:
    """The images of one file, a row of bytes each, and their labels."""
    content = _unpickle(path)
    images, labels = getattr(content.get(b"data"), "array", None), content.get(key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3 * 32 * 32 or not len(images):
        raise DataError(f"{path}: not a CIFAR file (data is not an array of images of 3072 bytes)")
    if not isinstance(labels, list) or not all(type(n) is int and 0 <= n < classes for n in labels):
        raise DataError(f"{path}: not a CIFAR file ({key.decode()} is not a list of numbers from 0 to {classes - 1})")
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(images)} images but {len(labels)} labels")
    return images, labels


def _mosaics(base: Path, split: str) -> MemorySet:
    """Lossless WebP mosaics of 50 x 50 images, with the SHA-256 of the pixels in manifest.json."""
    paths = sorted(base.glob(f"{split}_*.webp"))
    if not paths or not (base / "labels.npz").is_file():
        raise DataError(f"{base}: has a manifest but no {split}_*.webp or labels.npz")
    pixels = np.concatenate([_mosaic(path) for path in paths])
    try:
        expected = json.loads((base / "manifest.json").read_bytes())[split]["sha256_pixels"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DataError(f"{base / 'manifest.json'}: has no sha256_pixels of {split}") from None
    if hashlib.sha256(pixels.tobytes()).hexdigest() != expected:
        raise DataError(f"{base}: the {split} images differ from the manifest's checksum")
    labels, names = _mosaic_labels(base / "labels.npz", split)
    if len(labels) != len(pixels):
        raise DataError(f"{base}: {len(pixels)} {split} images but {len(labels)} labels")
    return MemorySet(torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels), names)


def _mosaic(path: Path) -> np.ndarray:
    """The 2500 images of a mosaic."""
    try:
        with Image.open(path) as image:
            if image.size != (1600, 1600):
                raise DataError(f"{path}: is {image.width}x{image.height}, expected 1600x1600, 50 x 50 images")
            mosaic = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as e:
        raise DataError(f"{path}: cannot be decoded ({e})") from None
    return mosaic.reshape(50, 32, 50, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def _mosaic_labels(path: Path, split: str) -> tuple[np.ndarray, list[str]]:
    """The numbers of a split's classes, and the names of all classes."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_LABELS:
                raise ValueError(f"unpacks to more than {_LARGEST_LABELS} bytes")
        with np.load(path) as f:
            labels, names = f[split], [str(name) for name in f["names"]]
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < len(names))).all():
            raise ValueError(f"{split} is not a list of numbers from 0 to {len(names) - 1}")
    except Exception as e:  # of zip, zlib, numpy's header and its types
        raise DataError(f"{path}: holds no labels ({e})") from None
    return labels.astype(np.int64), names


def _idx(root: Path, split: str) -> MemorySet:
    """Fashion-MNIST's IDX files, plain or gzipped; padded from 28 to 32 pixels and repeated to three channels."""
    stem = "train" if split == "train" else "t10k"
    names = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    images = _idx_array(root, f"{stem}-images-idx3-ubyte", (28, 28))
    labels = _idx_array(root, f"{stem}-labels-idx1-ubyte", ())
    if len(images) != len(labels):
        raise DataError(f"{root}: {len(images)} {split} images but {len(labels)} labels")
    if labels.max() >= len(names):
        raise DataError(f"{root}: a label is {labels.max()}, expected 0 to {len(names) - 1}")
    grey = torch.from_numpy(np.pad(images, ((0, 0), (2, 2), (2, 2))))
    return MemorySet(grey[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(labels.astype(np.int64)), names)


def _idx_array(root: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The items of an IDX file, each of this shape. No more is unpacked than its header says, and that is bounded."""
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


def _folder(root: Path, split: str, broken: str) -> FolderSet:
    """The ImageNet layout: train/<class>/*.jpg, and val/ (or test/) likewise."""
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
    return FolderSet(paths, torch.tensor(labels), names, broken)
