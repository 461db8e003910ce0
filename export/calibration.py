"""Calibration images for the scales of an integer file: the caller's, those of a folder, or synthetic ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ovsw.datasets import IMAGE_SUFFIXES, DataError, FolderSet, MemorySet, open_split
from ovsw.export.accuracy import some_pixels, spread
from ovsw.export.errors import ExportError
from ovsw.image import load_pixels
from ovsw.networks import InputSpec
from ovsw.util.text import dims

MOST = 32  # images of a folder that are used, evenly spread


@dataclass
class Calibration:
    """`images` are normalised, float32 (n, channels, height, width); `origin` says in a few words what they are."""

    images: np.ndarray
    origin: str
    synthetic: bool = False


def calibration_images(
    images: str | Path | np.ndarray | torch.Tensor | None, labelled: MemorySet | FolderSet | None, spec: InputSpec
) -> Calibration:
    """The images that the user names, else some of the labelled ones, else synthetic ones."""
    if images is None and labelled is not None:
        pixels = some_pixels(labelled, spec, MOST)
        return Calibration(spec.normalised(pixels), f"{len(pixels)} of the labelled images")
    if images is None:
        return Calibration(spec.normalised(_synthetic(spec)), "synthetic noise", synthetic=True)
    if isinstance(images, (str, Path)):
        pixels = _of_folder(Path(images), spec)
        return Calibration(spec.normalised(pixels), f"{len(pixels)} images of {images}")
    array = images.detach().cpu().numpy() if isinstance(images, torch.Tensor) else np.asarray(images)
    return Calibration(_of_array(array, spec), f"{len(array)} images")


def _of_array(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    c, h, w = spec.shape
    if array.ndim == 4 and len(array) and array.dtype == np.uint8 and array.shape[1:] == (h, w, c):
        return spec.normalised(array)
    if array.ndim == 4 and len(array) and array.dtype.kind == "f" and array.shape[1:] == (c, h, w):
        if not np.isfinite(array).all():
            raise ExportError("calibration: the images hold values that are not finite")
        return np.ascontiguousarray(array, np.float32)
    raise ExportError(
        f"calibration: the images are {array.dtype} {array.shape}, expected uint8 (n, {h}, {w}, {c}) or normalised "
        f"float32 (n, {c}, {h}, {w})"
    )


def _of_folder(root: Path, spec: InputSpec) -> np.ndarray:
    """Pixels of CIFAR's training images, in any form that `ovsw-train` reads, or of all image files below a folder."""
    if not root.is_dir():
        raise ExportError(f"calibration: the folder {root} does not exist")
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    try:
        for kind in ("cifar10", "cifar100"):
            try:
                images = open_split(kind, root, "train")
            except DataError:
                continue
            if isinstance(images, MemorySet) and tuple(images.images.shape[1:]) == spec.shape:
                return np.ascontiguousarray(images.images[spread(len(images), MOST)].numpy().transpose(0, 2, 3, 1))
        if not paths:
            raise ExportError(f"calibration: {root} holds no images of {dims(spec.shape)}")
        chosen = [paths[i] for i in spread(len(paths), MOST)]
        return np.stack([load_pixels(p, spec.channels, spec.resize, (spec.height, spec.width)) for p in chosen])
    except (DataError, OSError, ValueError) as e:
        raise e if isinstance(e, ExportError) else ExportError(f"calibration: {e}") from None


def _synthetic(spec: InputSpec, count: int = 8, seed: int = 0) -> np.ndarray:
    """Pixels of noise at several scales, as neighbouring pixels of pictures are alike."""
    rng = np.random.default_rng(seed)
    images = []
    for i in range(count):
        block = 1 << (i % 4)
        coarse = rng.integers(0, 256, (-(-spec.height // block), -(-spec.width // block), spec.channels), np.uint8)
        images.append(coarse.repeat(block, 0).repeat(block, 1)[: spec.height, : spec.width])
    return np.stack(images)
