"""Image loading against an evaluation pipeline written out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw.image import load_pixels

from support import ROOT

PHOTO = ROOT / "bench" / "data" / "cat.jpg"  # 451 x 300


def test_resize_and_crop_as_evaluated() -> None:
    """Shorter side to 256, centre 224, bilinear with antialiasing."""
    image = Image.open(PHOTO).convert("RGB")
    expected = image.resize((384, 256), Image.Resampling.BILINEAR).crop((80, 16, 304, 240))
    np.testing.assert_array_equal(load_pixels(PHOTO, 3, 256, (224, 224)), np.asarray(expected))
    tall = image.transpose(Image.Transpose.TRANSPOSE)
    expected = tall.resize((256, 384), Image.Resampling.BILINEAR).crop((16, 80, 240, 304))
    np.testing.assert_array_equal(load_pixels(tall, 3, 256, (224, 224)), np.asarray(expected))


def test_right_size_is_left_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(load_pixels(Image.fromarray(pixels), 3, 32, (32, 32)), pixels)


def test_colour_modes(tmp_path: Path) -> None:
    """Grey, alpha, palette, CMYK, 1-bit and 16-bit images all become RGB."""
    grey = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    rgb = np.repeat(grey[..., None], 3, axis=2)
    alpha = np.dstack([rgb, np.full_like(grey, 77)])
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    for name, image in {
        "L": Image.fromarray(grey),
        "LA": Image.fromarray(np.dstack([grey, grey])),
        "RGBA": Image.fromarray(alpha),
        "P": Image.fromarray(grey).convert("P"),
        "I;16": deep,
    }.items():
        image.save(tmp_path / f"{name[0]}.png")
        for source in (image, tmp_path / f"{name[0]}.png"):
            np.testing.assert_array_equal(load_pixels(source, 3, 32, (32, 32)), rgb, err_msg=name)
    for mode in ("CMYK", "1", "YCbCr", "HSV"):
        assert load_pixels(Image.fromarray(rgb).convert(mode), 3, 32, (32, 32)).shape == (32, 32, 3)
    np.testing.assert_array_equal(load_pixels(Image.fromarray(rgb), 1, 32, (32, 32))[..., 0], grey)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (33, 32), (31, 33)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    assert load_pixels(Image.new("RGB", size), 3, 36, (32, 32)).shape == (32, 32, 3)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        load_pixels(tmp_path / "gone.jpg", 3, 32, (32, 32))
    with pytest.raises(ValueError, match="is a folder"):
        load_pixels(tmp_path, 3, 32, (32, 32))
    (tmp_path / "text.jpg").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text\.jpg: is not an image"):
        load_pixels(tmp_path / "text.jpg", 3, 32, (32, 32))
    (tmp_path / "half.jpg").write_bytes(PHOTO.read_bytes()[:9000])
    with pytest.raises(ValueError, match=r"half\.jpg: cannot be decoded"):
        load_pixels(tmp_path / "half.jpg", 3, 32, (32, 32))
    with pytest.raises(ValueError, match="4 channels"):
        load_pixels(Image.new("RGB", (32, 32)), 4, 32, (32, 32))
