"""From an image file to the pixels a network was evaluated on: orient, convert, resize, centre-crop.

Errors name the file. At most `PIL.Image.MAX_IMAGE_PIXELS` pixels are decoded, and of small files fewer, so that a file
of 1 MB takes less than 512 MB.
"""

from __future__ import annotations

import io
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Union

import numpy as np
from PIL import Image

ImageSource = Union[str, "os.PathLike[str]", Image.Image]

# What Pillow may read, the most common kinds first. Others run programs (EPS) or open a file in the file (IPTC).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "PPM", "WEBP", "TIFF", "ICO", "PCX", "SGI", "TGA", "QOI", "AVIF")
_FREE_PIXELS, _PIXELS_PER_BYTE = 1 << 24, 16  # pixels of any file, and more for each of its bytes
WHOLE = 1 << 24  # largest result, in pixels, of scaling a whole picture (64 MB); only thin pictures exceed it
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TIFF_BITS, _TIFF_PHOTOMETRIC, _TIFF_WHITE_IS_ZERO = 258, 262, 0
_QUIET = threading.Lock()  # the filters of warnings belong to the process


def _new_lock() -> None:
    """Replaces the lock in a forked child, where the thread that held it does not exist."""
    global _QUIET
    _QUIET = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def load_pixels(source: ImageSource, channels: int, resize: int, crop: tuple[int, int]) -> np.ndarray:
    """uint8 pixels (height, width, channels): the shorter side scaled to `resize`, the centre `crop` cut out.

    The steps are those of the usual evaluation pipeline: EXIF orientation, conversion to RGB (or grey, for a network
    of one channel), bilinear resize with antialiasing, centre crop; what the crop has beyond the image is black.
    """
    image = load_image(source, channels)
    if 0 in image.size:
        raise ValueError(f"the image of {image.width}x{image.height} has no pixels")
    try:
        centre = _scaled_centre(image, resize, crop)
    except MemoryError:
        raise _no_memory(source, image.size) from None
    return np.asarray(centre, np.uint8).reshape(*crop, channels)


def load_image(source: ImageSource, channels: int) -> Image.Image:
    """The upright picture in RGB, or in grey for one channel. Raises ValueError or OSError, with the file's name.

    Alpha is dropped, of animations the first frame is taken, of 16 bits the upper 8. Pixels of 32 bits are refused:
    their file does not say which number is white.
    """
    if channels not in (1, 3):
        raise ValueError(f"the network takes {channels} channels, an image has 1 or 3")
    if isinstance(source, Image.Image):
        return _decode(source, source, channels)
    with _open(source) as image:
        return _decode(image, source, channels)


def read_image(data: bytes, name: str) -> Image.Image:
    """The picture in a file's bytes, as `load_image` takes it; errors, there and here, are about `name`."""
    image = _opened(io.BytesIO(data), name)
    image.filename = name  # type: ignore[attr-defined]
    return image


def _open(path: str | os.PathLike[str]) -> Image.Image:
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such image")
    if Path(path).is_dir():
        raise ValueError(f"{path}: is a folder")
    return _opened(path, path)


def _opened(file: str | os.PathLike[str] | io.BytesIO, path: str | os.PathLike[str]) -> Image.Image:
    try:
        with _quiet():
            image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as e:  # beyond twice the limit; the size is only in the message
        raise _too_large(path, re.findall(r"\d+", str(e))[0]) from None
    except PermissionError:
        raise
    except MemoryError:
        raise _no_memory(path) from None
    except Exception as e:  # damaged files can raise almost anything, here and where they are decoded
        raise ValueError(f"{path}: is not an image that Pillow can read ({type(e).__name__})") from None
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        image.close()
        raise _too_large(path, f"{image.width} x {image.height} = {image.width * image.height}")
    size = file.seek(0, io.SEEK_END) if isinstance(file, io.BytesIO) else Path(path).stat().st_size
    if image.width * image.height > _FREE_PIXELS + _PIXELS_PER_BYTE * size:
        image.close()
        raise ValueError(f"{path}: is too large: {image.width} x {image.height} pixels in only {size} bytes")
    return image


def _decode(image: Image.Image, source: ImageSource, channels: int) -> Image.Image:
    try:
        image.load()
        image = _eight_bits(image)
        if image.mode == "P":  # with transparency, Pillow would warn of the way without RGBA
            image = image.convert("RGBA")
        method = _UPRIGHT.get(_orientation(image))
        upright = image if method is None else image.transpose(method)
        mode = "L" if channels == 1 else "RGB"
        return upright if upright.mode == mode and upright is not source else upright.convert(mode)
    except MemoryError:
        raise _no_memory(source, image.size) from None
    except Exception as e:
        reason = str(e) or type(e).__name__
        raise ValueError(f"{_name(source)}: cannot be decoded ({reason})") from None


def _orientation(image: Image.Image) -> int:
    """The orientation in EXIF; 1 if the block is missing or damaged."""
    try:
        with _quiet():
            orientation = image.getexif().get(_ORIENTATION)
    except Exception:
        return 1
    return orientation if isinstance(orientation, int) else 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deep grey by its upper 8 bits, as Pillow reads deep colour; its own conversion would clip to white."""
    bits, inverted = 16, False
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        bits = tags.get(_TIFF_BITS, (16,))[0]
        inverted = tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        deep = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        shallow = Image.fromarray(~deep if inverted else deep)
        shallow.info = image.info
        return shallow
    if image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise ValueError(f"its pixels are {kind}, which do not say what is white; save it with 8 or 16 bits")
    return image


def _scaled_centre(image: Image.Image, size: int, crop: tuple[int, int]) -> Image.Image:
    """The centre of the picture scaled to `size`. Of a thin picture only that part is scaled: 20000 x 1 pixels would
    grow to five gigabytes. Positions are then rounded differently, by which pixels can differ by 2 of 255.
    """
    short = min(image.size)
    width, height = (size if side == short else int(size * side / short) for side in image.size)
    left, top = round((width - crop[1]) / 2), round((height - crop[0]) / 2)
    right, bottom = left + crop[1], top + crop[0]
    if width * height <= WHOLE:
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return image.crop((left, top, right, bottom))
    x, y = _Part(image.width, width, left, right), _Part(image.height, height, top, bottom)
    source = image.crop((x.source[0], y.source[0], x.source[1], y.source[1]))
    box = (x.box[0], y.box[0], x.box[1], y.box[1])
    part = source.resize((x.last - x.first, y.last - y.first), Image.Resampling.BILINEAR, box=box)
    return part.crop((left - x.first, top - y.first, right - x.first, bottom - y.first))


class _Part:
    """Along one side: which pixels of the scaled picture are asked for, which of the source they depend on (the filter
    reaches one pixel, or one of the result's), and where exactly in these.
    """

    def __init__(self, length: int, scaled: int, first: int, last: int) -> None:
        self.first, self.last = max(first, 0), min(last, scaled)
        start, end = self.first * length / scaled, self.last * length / scaled
        reach = math.ceil(max(length / scaled, 1)) + 1
        self.source = max(math.floor(start) - reach, 0), min(math.ceil(end) + reach, length)
        self.box = start - self.source[0], end - self.source[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the warnings of Pillow about large files and damaged EXIF, which are errors here or ignored."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _name(source: ImageSource) -> str:
    return str(getattr(source, "filename", "") or "the image") if isinstance(source, Image.Image) else str(source)


def _too_large(path: str | os.PathLike[str], pixels: str) -> ValueError:
    return ValueError(f"{path}: is too large: {pixels} pixels, the limit is {Image.MAX_IMAGE_PIXELS}")


def _no_memory(source: ImageSource, size: tuple[int, int] | None = None) -> MemoryError:
    return MemoryError(f"{_name(source)}: not enough memory" + (f" for {size[0]} x {size[1]} pixels" if size else ""))
