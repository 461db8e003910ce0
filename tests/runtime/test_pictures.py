"""Pictures of every kind: the right pixels, or one error that names the file and says why.

The files are written byte by byte (`support.pictures`), so their pixels are known without Pillow; where that cannot be,
Pillow writes them from known pixels.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, features

import ovsw.image
from ovsw.image import load_image, load_pixels

from support import ROOT
from support.peak import assert_small
from support.pictures import GREY, GREY_ALPHA, PALETTE, RGB, RGB_ALPHA, chunk, claim, exif, png, tiff

H, W = 6, 9
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (H, W), np.uint8)
COLOURS = RNG.integers(0, 256, (H, W, 3), np.uint8)
DEEP = RNG.integers(0, 65536, (H, W), np.uint16)
DEEP_COLOURS = RNG.integers(0, 65536, (H, W, 3), np.uint16)
TABLE = RNG.integers(0, 256, (16, 3), np.uint8)
INDICES = RNG.integers(0, 16, (H, W), np.uint8)
ALPHA = RNG.integers(0, 256, (H, W), np.uint8)
BITS = RNG.integers(0, 2, (H, W), np.uint8)


def colours(path: Path) -> np.ndarray:
    return np.asarray(load_image(path, 3))


def grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, axis=2)


def ppm(head: str, samples: np.ndarray) -> bytes:
    return f"{head} {W} {H} 65535\n".encode() + samples.astype(">u2").tobytes()


PLTE = chunk(b"PLTE", TABLE.tobytes())
CMYK = RNG.integers(0, 256, (H, W, 4), np.uint8)
FROM_CMYK = np.rint((255.0 - CMYK[..., :3]) * (255.0 - CMYK[..., 3:]) / 255)
KINDS = {
    "grey": (png(BYTES, GREY), grey(BYTES)),
    "rgb": (png(COLOURS, RGB), COLOURS),
    "grey and alpha": (png(np.dstack([BYTES, ALPHA]), GREY_ALPHA), grey(BYTES)),
    "rgb and alpha": (png(np.dstack([COLOURS, ALPHA]), RGB_ALPHA), COLOURS),
    "palette": (png(INDICES, PALETTE, before=PLTE), TABLE[INDICES]),
    "palette, 4 bits": (png(INDICES, PALETTE, 4, before=PLTE), TABLE[INDICES]),
    "palette, alpha": (png(INDICES, PALETTE, before=PLTE + chunk(b"tRNS", bytes(range(16)))), TABLE[INDICES]),
    "palette, clear": (png(INDICES, PALETTE, before=PLTE + chunk(b"tRNS", b"\xff\xff\0")), TABLE[INDICES]),
    "grey, clear": (png(BYTES, GREY, before=chunk(b"tRNS", struct.pack(">H", BYTES[0, 0]))), grey(BYTES)),
    "1 bit": (png(BITS, GREY, 1), grey(BITS * 255)),
    "2 bits": (png(BYTES % 4, GREY, 2), grey(BYTES % 4 * 85)),
    "4 bits": (png(INDICES, GREY, 4), grey(INDICES * 17)),
    "16 bits": (png(DEEP, GREY, 16), grey(DEEP >> 8)),
    "16 bits, alpha": (png(np.dstack([DEEP, DEEP]), GREY_ALPHA, 16), grey(DEEP >> 8)),
    "16 bits, rgb": (png(DEEP_COLOURS, RGB, 16), DEEP_COLOURS >> 8),
    "interlaced": (png(COLOURS, RGB, interlaced=True), COLOURS),
    "interlaced, 16 bits": (png(DEEP, GREY, 16, interlaced=True), grey(DEEP >> 8)),
    "interlaced, 1 bit": (png(BITS, GREY, 1, interlaced=True), grey(BITS * 255)),
    "1 x 1": (png(COLOURS[:1, :1], RGB), COLOURS[:1, :1]),
    "pgm, 16 bits": (ppm("P5", DEEP), grey(DEEP >> 8)),
    "tiff": (tiff(BYTES.tobytes(), W, H, (8,), 1), grey(BYTES)),
    "tiff, white is 0": (tiff(BYTES.tobytes(), W, H, (8,), 0), grey(255 - BYTES)),
    "tiff, 16 bits": (tiff(DEEP.tobytes(), W, H, (16,), 1), grey(DEEP >> 8)),
    "tiff, 16 bits, white is 0": (tiff(DEEP.tobytes(), W, H, (16,), 0), grey(255 - (DEEP >> 8))),
    "tiff, 16 bits, rgb": (tiff(DEEP_COLOURS.tobytes(), W, H, (16,) * 3, 2), DEEP_COLOURS >> 8),
    "tiff, cmyk": (tiff(CMYK.tobytes(), W, H, (8,) * 4, 5), FROM_CMYK),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pixels(kind: str, tmp_path: Path) -> None:
    data, expected = KINDS[kind]
    path = tmp_path / "picture"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(colours(path), expected)


def test_twelve_bits(tmp_path: Path) -> None:
    """Two values in three bytes: the upper eight bits of each are the picture."""
    values = DEEP[:, :8] & 0xFFF
    first, second = values[:, ::2].astype(int), values[:, 1::2].astype(int)
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=2).astype(np.uint8)
    (tmp_path / "12.tiff").write_bytes(tiff(packed.tobytes(), 8, H, (12,), 1))
    np.testing.assert_array_equal(colours(tmp_path / "12.tiff"), grey(values >> 4))


def test_cmyk_jpeg(tmp_path: Path) -> None:
    """Flat colours, as JPEG is lossy; Adobe's files hold them inverted."""
    for cmyk in ((0, 0, 0, 0), (255, 0, 0, 0), (0, 255, 255, 0), (30, 90, 200, 60), (0, 0, 0, 255)):
        Image.new("CMYK", (16, 16), cmyk).save(tmp_path / "flat.jpg", quality=100)
        expected = [(255 - c) * (255 - cmyk[3]) / 255 for c in cmyk[:3]]
        assert np.abs(colours(tmp_path / "flat.jpg") - expected).max() <= 2, cmyk


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "tiff"])
def test_first_frame(kind: str, tmp_path: Path) -> None:
    if kind == "webp" and not features.check("webp"):
        pytest.skip("Pillow has no WebP here")
    frames = [Image.new("RGB", (W, H), colour) for colour in ((200, 10, 60), (0, 255, 0), (0, 0, 255))]
    lossless = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"moves.{kind}", save_all=True, append_images=frames[1:], **lossless)
    assert {tuple(p) for p in colours(tmp_path / f"moves.{kind}").reshape(-1, 3)} == {(200, 10, 60)}


TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize("orientation", range(10))
def test_orientations(orientation: int, tmp_path: Path) -> None:
    """As EXIF defines them, before the pixels and after them, also deep and palette pictures; 0 and 9 mean nothing."""
    turn = TURNS.get(orientation, TURNS[1])
    block = chunk(b"eXIf", exif(orientation))
    for data, expected in (
        (png(COLOURS, RGB, before=block), COLOURS),
        (png(COLOURS, RGB, after=block), COLOURS),
        (png(DEEP, GREY, 16, before=block), grey(DEEP >> 8)),
        (png(INDICES, PALETTE, before=PLTE + block), TABLE[INDICES]),
    ):
        (tmp_path / "held.png").write_bytes(data)
        np.testing.assert_array_equal(colours(tmp_path / "held.png"), turn(expected))
    Image.new("RGB", (W, H)).save(tmp_path / "held.jpg", exif=b"Exif\0\0" + exif(orientation))
    assert colours(tmp_path / "held.jpg").shape == turn(COLOURS).shape


BLOCK = exif(6)
BLOCK_OF_EXIF = chunk(b"eXIf", BLOCK)


@pytest.mark.parametrize(
    "block",
    [b"", b"Exif\0\0", b"nonsense", BLOCK[:9], BLOCK[:15], BLOCK[:4] + b"\xff\xff\xff\xff" + BLOCK[8:], b"MM\0*" * 9]
    + [BLOCK[:8] + struct.pack(">HHHIHH", 1, 0x0112, kind, 1, 6, 0) for kind in (0, 2, 5, 12, 99)]
    + [BLOCK[:8] + struct.pack(">HHHII", 1, 0x0112, 3, 0xFFFFFFFF, 0xFFFFFFFF)],
)
def test_broken_exif_says_nothing(block: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.png").write_bytes(png(COLOURS, RGB, before=chunk(b"eXIf", block)))
    (tmp_path / "odd.jpg").write_bytes(b"")
    Image.fromarray(COLOURS).save(tmp_path / "odd.jpg", exif=b"Exif\0\0" + block)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(colours(tmp_path / "odd.png"), COLOURS)
        assert colours(tmp_path / "odd.jpg").shape == COLOURS.shape


def iptc(data: bytes) -> bytes:
    """An IPTC picture, whose pixels are those of a file in it."""
    fields = ((3, 60, b"\1\0"), (3, 20, b"\0\x09"), (3, 30, b"\0\x09"), (3, 120, b"\5"), (8, 10, data))
    return b"".join(struct.pack(">BBBH", 0x1C, *tag, len(value)) + value for *tag, value in fields)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
WHITE = "do not say what is white"
REFUSED = {
    "ints": (tiff(DEEP.astype("<i4").tobytes(), W, H, (32,), 1, 2), f"32-bit integers, which {WHITE}"),
    "unsigned": (tiff(DEEP.astype("<u4").tobytes(), W, H, (32,), 1, 1), f"32-bit integers, which {WHITE}"),
    "signed": (tiff(DEEP.tobytes(), W, H, (16,), 1, 2), f"32-bit integers, which {WHITE}"),
    "floats": (tiff(DEEP.astype("<f4").tobytes(), W, H, (32,), 1, 3), f"floats, which {WHITE}"),
    "doubles": (tiff(DEEP.astype("<f8").tobytes(), W, H, (64,), 1, 3), "is not an image that Pillow can read"),
    "postscript": (POSTSCRIPT, "is not an image that Pillow can read"),
    "postscript in IPTC": (iptc(POSTSCRIPT), "is not an image that Pillow can read"),
    "flat": (
        claim(9000, 9000, RGB, 8, rest=chunk(b"IDAT", zlib.compress(bytes(9000 * 27_001)))),
        "too large: 9000 x 9000 pixels in only",
    ),
    "truncated": (png(COLOURS, RGB)[:100], "truncated"),
    "no pixels": (claim(W, H, RGB, 8), "cannot be decoded"),
    "broken stream": (claim(W, H, RGB, 8, rest=chunk(b"IDAT", b"\x78\x9c" + bytes(40))), "broken data stream"),
    "broken checksum": (png(COLOURS, RGB).replace(b"IDAT", b"IDAt"), ""),
    "0 x 0": (claim(0, 0, RGB, 8), ""),
    "between": (claim(10_000, 9_000, RGB, 8), "too large: 10000 x 9000 = 90000000 pixels, the limit is 89478485"),
    "bomb": (claim(20_000, 9_000, RGB, 8), "too large: 180000000 pixels, the limit is 89478485"),
    "huge": (claim(2**31 - 1, 2**31 - 1, RGB, 8), f"too large: {(2**31 - 1) ** 2} pixels"),
    "words": (
        claim(W, H, RGB, 8, rest=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 22)))),
        "is not an image that Pillow can read|cannot be decoded",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was called"))
    data, words = REFUSED[kind]
    path = tmp_path / "hostile picture"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"^{path}: .*({words})") as e:
            load_pixels(path, 3, 32, (32, 32))
    assert "\n" not in str(e.value)


def test_limit_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(png(COLOURS, RGB))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", W * H - 1)
    with pytest.raises(ValueError, match=f"{W} x {H} = {W * H} pixels, the limit is {W * H - 1}"):
        load_image(tmp_path / "a.png", 3)
    for limit in (W * H, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        np.testing.assert_array_equal(colours(tmp_path / "a.png"), COLOURS)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_of_32_bits_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match=f"the image: cannot be decoded .*{WHITE}"):
        load_pixels(Image.new(mode, (8, 8), 70_000), 3, 8, (8, 8))


# --- scaling ---------------------------------------------------------------------------------------------------------


def plainly(image: Image.Image, size: int, crop: tuple[int, int]) -> np.ndarray:
    """All of it scaled, then the centre cut out."""
    short = min(image.size)
    if short != size:
        sides = [size if side == short else int(size * side / short) for side in image.size]
        image = image.resize((sides[0], sides[1]), Image.Resampling.BILINEAR)
    left, top = round((image.width - crop[1]) / 2), round((image.height - crop[0]) / 2)
    return np.asarray(image.crop((left, top, left + crop[1], top + crop[0])))


def drawn(rng: np.random.Generator) -> tuple[Image.Image, int, tuple[int, int]]:
    """Any shape, wide and tall, any size, and crops that fit in and that do not."""
    width, height = (int(side) for side in np.exp(rng.uniform(0, np.log(500), 2)))
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    return image, int(rng.integers(1, 60)), (int(rng.integers(1, 70)), int(rng.integers(1, 70)))


def test_whole_or_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary pictures are scaled whole, to the same bits; the way of the thin ones rounds positions differently."""
    rng = np.random.default_rng(1)
    largest, other, pixels, cases = 0, 0, 0, 0
    while cases < 300:
        image, size, crop = drawn(rng)
        if size * size * max(image.size) / min(image.size) > 1e6:
            continue
        cases += 1
        expected = plainly(image, size, crop)
        np.testing.assert_array_equal(load_pixels(image, 3, size, crop), expected)
        with monkeypatch.context() as thin:
            thin.setattr(ovsw.image, "WHOLE", 0)
            apart = np.abs(load_pixels(image, 3, size, crop).astype(int) - expected)
        largest, other, pixels = max(largest, apart.max()), other + np.count_nonzero(apart), pixels + apart.size
    assert largest <= 2
    assert other < 0.02 * pixels


def test_no_ordinary_picture_is_thin() -> None:
    """The usual networks scale to 256 at most: a picture may be 256 times as long as high."""
    image = Image.fromarray(RNG.integers(0, 256, (2, 512, 3), np.uint8))
    np.testing.assert_array_equal(load_pixels(image, 3, 256, (224, 224)), plainly(image, 256, (224, 224)))


CHILD = """
import resource, sys
import numpy as np
from ovsw.image import load_pixels
from support.hostile import limit_memory
limit_memory(int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
np.save(sys.argv[3], load_pixels(sys.argv[2], 3, 256, (224, 224)))
"""


@pytest.mark.parametrize("length", [20_000, 200_001])
@pytest.mark.parametrize("wide", [True, False])
def test_thin_pictures_take_little(length: int, wide: bool, tmp_path: Path) -> None:
    """Of a line of pixels, each scaled to 256 x 256, the crop shows the middle: straight lines between centres."""
    line = np.random.default_rng(0).integers(0, 256, length, np.uint8)
    (tmp_path / "thin.png").write_bytes(png(line[None] if wide else line[:, None], GREY))
    command = [sys.executable, "-c", CHILD, "100", str(tmp_path / "thin.png"), str(tmp_path / "thin.npy")]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "thin.npy").astype(float)
    places = (length * 128 - 112 + np.arange(224) + 0.5) / 256 - 0.5
    expected = np.interp(places, np.arange(length), line)[None, :, None]
    assert found.shape == (224, 224, 3)
    assert np.abs(found - (expected if wide else expected.swapaxes(0, 1))).max() <= 1


def test_out_of_memory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(claim(4_000, 4_000, RGB_ALPHA, 8, rest=chunk(b"IDAT", zlib.compress(b"\0"))))
    command = [sys.executable, "-c", CHILD, "40", str(tmp_path / "large.png"), str(tmp_path / "none.npy")]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=900)
    last = done.stderr.splitlines()[-1]
    assert last == f"MemoryError: {tmp_path / 'large.png'}: not enough memory for 4000 x 4000 pixels"


@pytest.mark.parametrize("colour", [RGB, RGB_ALPHA, PALETTE, GREY_ALPHA])
def test_small_files_take_little_memory(colour: int, tmp_path: Path) -> None:
    """The largest that a file of a megabyte may be, turned by its EXIF block."""
    samples, path = {RGB: 3, RGB_ALPHA: 4, PALETTE: 1, GREY_ALPHA: 2}[colour], tmp_path / "flat.png"
    noise = chunk(b"nOIS", np.random.default_rng(0).bytes(850_000))
    before = chunk(b"PLTE", bytes(768)) + chunk(b"tRNS", bytes(256)) if colour == PALETTE else b""
    rows = zlib.compress(bytes(5500 * (5500 * samples + 1)), 9)
    path.write_bytes(claim(5500, 5500, colour, 8, rest=before + BLOCK_OF_EXIF + noise + chunk(b"IDAT", rows)))
    assert assert_small("picture", path) == "read"


# --- anything --------------------------------------------------------------------------------------------------------


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    """Bytes changed, cut off and doubled in files of every kind: pixels, or a ValueError with the name."""
    seeds = [data for data, _ in KINDS.values()]
    formats = [f for f in ("JPEG", "GIF", "WEBP", "BMP", "TGA", "ICO", "PCX", "SGI", "PPM", "TIFF", "MPO") if saves(f)]
    for name in formats:
        Image.fromarray(COLOURS.repeat(4, 0).repeat(4, 1)).save(tmp_path / "seed", format=name)
        seeds.append((tmp_path / "seed").read_bytes())
    rng, refused = random.Random(0), 0
    path = tmp_path / "damaged"
    for case in range(600):
        data = bytearray(seeds[case % len(seeds)])
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(len(data))
            way = rng.randrange(4)
            if way == 0:
                data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            elif way == 1:
                data = data[: max(at, 1)]
            elif way == 2:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            else:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"\0\0\xff\xff"))
        path.write_bytes(data)
        error = f"{path}: "
        try:
            assert load_pixels(path, 3, 8, (8, 8)).shape == (8, 8, 3)
        except ValueError as e:
            error, refused = str(e), refused + 1
        assert error.startswith(f"{path}: "), case
    assert 100 < refused < 600


def saves(name: str) -> bool:
    Image.init()
    return name in Image.SAVE and (name != "WEBP" or features.check("webp"))
