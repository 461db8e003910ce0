"""CIFAR-10 and CIFAR-100: the official files, whose pickles import nothing, or mosaics of the images."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from ovsw.datasets.base import DataError, DataSet, MemorySet
from ovsw.util import pickles

_LARGEST_LABELS = 1 << 23  # bytes in labels.npz


class Cifar(DataSet):
    """The official pickles of CIFAR-10 or CIFAR-100, or lossless mosaics of their images."""

    classes: ClassVar[int]
    folder: ClassVar[str]
    parts: ClassVar[dict[str, list[str]]]  # files by split
    labels: ClassVar[bytes]  # keys in the pickles
    names: ClassVar[bytes]
    meta: ClassVar[str]  # the file with the names
    marks: ClassVar[tuple[str, ...]]  # the files that a folder is known by

    def open(self, root: Path, split: str) -> MemorySet:
        for base in (root, root / self.name, root / self.folder, root / self.name / self.folder):
            if (base / "manifest.json").is_file():
                return _mosaics(base, split, self.classes)
            if all((base / file).is_file() for file in self.marks):
                return self._official(base, split)
        raise DataError(f"{root}: holds neither {self.folder} nor the WebP form of {self.name}")

    def _official(self, base: Path, split: str) -> MemorySet:
        texts = _unpickle(base / self.meta).get(self.names)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, bytes) for text in texts):
            raise DataError(f"{base / self.meta}: not a CIFAR file ({self.names.decode()} is not a list of names)")
        read = [_cifar_part(base / part, self.labels, len(texts)) for part in self.parts[split]]
        images = np.concatenate([part[0] for part in read]).reshape(-1, 3, 32, 32)
        numbers = torch.tensor([label for part in read for label in part[1]])
        return MemorySet(torch.from_numpy(images), numbers, [text.decode(errors="replace") for text in texts])


class Cifar10(Cifar):
    name, title, classes, folder = "cifar10", "CIFAR-10", 10, "cifar-10-batches-py"
    parts: ClassVar = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    labels, names, meta, marks = b"labels", b"label_names", "batches.meta", ("test_batch",)


class Cifar100(Cifar):
    name, title, classes, folder = "cifar100", "CIFAR-100", 100, "cifar-100-python"
    parts: ClassVar = {"train": ["train"], "test": ["test"]}
    labels, names, meta, marks = b"fine_labels", b"fine_label_names", "meta", ("meta", "test")


class _Stub:
    """Stands for everything that a CIFAR pickle may name: takes any arguments and does nothing. It is a class, as a
    pickle can set attributes of a function, and has `__setstate__`, so that it cannot set those of the class either.
    """

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Dtype(_Stub):
    """Replaces numpy.dtype; only its code counts."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.is_uint8 = code in ("u1", b"u1", "|u1", b"|u1")


class _Array(_Stub):
    """Replaces numpy.ndarray; builds arrays of uint8 from their bytes, and no others."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not dtype.is_uint8 or not isinstance(data, bytes):
            raise pickle.UnpicklingError("holds an array that is not of uint8")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1(_Stub):
    """Replaces _codecs.encode, with which newer pickles in old protocols write bytes."""

    def __new__(cls, text: str, _: str) -> Any:
        return text.encode("latin1")


class _CifarUnpickler(pickle.Unpickler):
    """Reads the official files, which are pickles, without importing anything that they name."""

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


def _mosaics(base: Path, split: str, classes: int) -> MemorySet:
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
    labels, names = _mosaic_labels(base / "labels.npz", split, classes)
    if len(labels) != len(pixels):
        raise DataError(f"{base}: {len(pixels)} {split} images but {len(labels)} labels")
    return MemorySet(torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels), names)


def _mosaic(path: Path) -> np.ndarray:
    """The 2500 images of a mosaic."""
    try:
        with Image.open(path, formats=["WEBP"]) as image:  # PostScript would run in Ghostscript
            if image.size != (1600, 1600):
                raise DataError(f"{path}: is {image.width}x{image.height}, expected 1600x1600, 50 x 50 images")
            mosaic = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as e:
        raise DataError(f"{path}: cannot be decoded ({e})") from None
    return mosaic.reshape(50, 32, 50, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def _mosaic_labels(path: Path, split: str, classes: int) -> tuple[np.ndarray, list[str]]:
    """The labels of a split, and the names of all classes."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_LABELS:
                raise ValueError(f"unpacks to more than {_LARGEST_LABELS} bytes")
        with np.load(path) as f:
            labels, names = f[split], f["names"]
        if names.shape != (classes,):  # arrays of empty names hold any number of them
            raise ValueError(f"it has {names.size} classes, expected {classes}")
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < len(names))).all():
            raise ValueError(f"{split} is not a list of numbers from 0 to {len(names) - 1}")
    except Exception as e:  # of zip, zlib, numpy's header and its types
        raise DataError(f"{path}: holds no labels ({e})") from None
    return labels.astype(np.int64), [str(name) for name in names]
