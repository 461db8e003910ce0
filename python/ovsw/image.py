"""From an image file to the pixels a network was evaluated on: orient, convert, resize, centre-crop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

import numpy as np
from PIL import Image, ImageOps

ImageSource = Union[str, "os.PathLike[str]", Image.Image]


def load_pixels(source: ImageSource, channels: int, resize: int, crop: tuple[int, int]) -> np.ndarray:
    """uint8 pixels (height, width, channels): the shorter side scaled to `resize`, the centre `crop` cut out.

    The steps are those of the usual evaluation pipeline: EXIF orientation, conversion to RGB (or grey, for a network
    of one channel; an alpha channel is dropped), bilinear resize with antialiasing, centre crop.
    """
    if isinstance(source, Image.Image):
        return _prepare(source, "the image", channels, resize, crop)
    with _open(source) as image:
        return _prepare(image, str(source), channels, resize, crop)


def _prepare(image: Image.Image, name: str, channels: int, resize: int, crop: tuple[int, int]) -> np.ndarray:
    try:
        image = _convert(ImageOps.exif_transpose(image), channels)
        image = _centre_crop(_resize(image, resize), crop)
    except (OSError, SyntaxError, Image.DecompressionBombError) as e:
        raise ValueError(f"{name}: cannot be decoded ({e})") from None
    return np.asarray(image, np.uint8).reshape(*crop, channels)


def _open(path: str | os.PathLike[str]) -> Image.Image:
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such image")
    try:
        return Image.open(path)
    except (OSError, SyntaxError, Image.DecompressionBombError) as e:
        reason = "is a folder" if Path(path).is_dir() else f"is not an image that Pillow can read ({type(e).__name__})"
        raise ValueError(f"{path}: {reason}") from None


def _convert(image: Image.Image, channels: int) -> Image.Image:
    if channels not in (1, 3):
        raise ValueError(f"the network takes {channels} channels, an image has 1 or 3")
    if image.mode.startswith("I;16"):  # 16-bit grey: Pillow would clip it to white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("L" if channels == 1 else "RGB")


def _resize(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    short, long = min(width, height), max(width, height)
    if short == size:
        return image
    long = int(size * long / short)
    return image.resize((size, long) if width <= height else (long, size), Image.Resampling.BILINEAR)


def _centre_crop(image: Image.Image, crop: tuple[int, int]) -> Image.Image:
    height, width = crop
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
