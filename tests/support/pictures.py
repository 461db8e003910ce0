"""Image files written byte by byte, so that what is in them is known without the library that reads them."""

from __future__ import annotations

import struct
import zlib

import numpy as np

GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6  # colour types of PNG
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))  # Adam7


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    pixels: np.ndarray,
    colour: int,
    depth: int = 8,
    *,
    interlaced: bool = False,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of samples (height, width[, samples]); `before` and `after` are chunks around those of the image."""
    samples = pixels.reshape(*pixels.shape[:2], -1)
    parts = [samples[y::dy, x::dx] for y, x, dy, dx in PASSES] if interlaced else [samples]
    raw = b"".join(b"\0" + _row(row, depth) for part in parts if part.size for row in part)
    height, width = pixels.shape[:2]
    return claim(width, height, colour, depth, interlaced, before + chunk(b"IDAT", zlib.compress(raw)) + after)


def claim(width: int, height: int, colour: int, depth: int, interlaced: bool = False, rest: bytes = b"") -> bytes:
    """A PNG that says how large it is; whether `rest` has that many pixels is another question."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + rest + chunk(b"IEND", b"")


def _row(row: np.ndarray, depth: int) -> bytes:
    flat = row.reshape(-1)
    if depth == 16:
        return flat.astype(">u2").tobytes()
    if depth == 8:
        return flat.astype(np.uint8).tobytes()
    bits = flat.astype(np.uint8)[:, None] >> np.arange(depth - 1, -1, -1, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(-1)).tobytes()


def tiff(data: bytes, width: int, height: int, bits: tuple[int, ...], photometric: int, sample: int = 1) -> bytes:
    """An uncompressed little-endian TIFF in one strip; `sample` is 1 for unsigned, 2 for signed, 3 for float."""
    values = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 0}
    values |= {277: len(bits), 278: height, 279: len(data), 339: (sample,) * len(bits)}
    start = 8 + 2 + 12 * len(values) + 4
    extra, entries = b"", b""
    for tag, value in values.items():
        if isinstance(value, tuple):
            packed = struct.pack(f"<{len(value)}H", *value)
            at = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", start + len(extra))
            extra += packed if len(packed) > 4 else b""
            entries += struct.pack("<HHI", tag, 3, len(value)) + at
        else:
            entries += struct.pack("<HHII", tag, 4, 1, start + 16 if tag == 273 else value)
    extra = extra.ljust(16, b"\0")
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(values)) + entries + bytes(4) + extra + data


def exif(orientation: int) -> bytes:
    """The block that says how the camera was held."""
    return b"MM\0*\0\0\0\x08" + struct.pack(">H", 1) + struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0) + bytes(4)
