"""Augmentation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ovsw.datasets import crop_box
from ovsw.train import augment

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def numbered(n: int = 64, size: int = 8) -> Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_random_crop_is_a_shift_with_zeros() -> None:
    images = numbered()
    cropped = augment.random_crop(images, 2, generator())
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    shifts = set()
    for before, after in zip(padded, cropped.numpy()):
        found = [(y, x) for y in range(5) for x in range(5) if np.array_equal(before[:, y : y + 8, x : x + 8], after)]
        assert len(found) == 1
        shifts.add(found[0])
    assert len(shifts) > 15


def within(count: int, n: int, p: float) -> bool:
    """Whether so many of n are what chance gives: five standard deviations."""
    return abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


def test_random_flip() -> None:
    """Of 10,000 images a half, give or take 250; each by itself."""
    images = numbered(10_000, 2)
    flipped = augment.random_flip(images, generator())
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    kept = (flipped == images).flatten(1).all(1)
    assert (mirrored | kept).all()
    assert within(int((mirrored & ~kept).sum()), int((mirrored ^ kept).sum()), 0.5)
    assert within(int((mirrored[1:] != mirrored[:-1]).sum()), 9_999, 0.5)


def test_crop_boxes() -> None:
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(500):
        top, left, h, w = crop_box(60, 80, (0.08, 1.25), rng)
        assert 0 <= top <= 60 - h
        assert 0 <= left <= 80 - w
        assert 0.70 < w / h < 1.40
        areas.append(h * w / 4800)
    assert min(areas) < 0.12
    assert max(areas) > 0.9
    boxes = [crop_box(8, 8, (0.3, 0.6), rng) for _ in range(500)]
    assert {min(top for top, *_ in boxes), min(left for _, left, *_ in boxes)} == {0}
    assert {max(top + h for top, _, h, _ in boxes), max(left + w for _, left, _, w in boxes)} == {8}


def test_crops_have_the_area_and_the_aspect_that_were_asked_for() -> None:
    """A quarter of 600 x 800, any place, log w/h uniform between the logs of 3/4 and 4/3."""
    rng = np.random.default_rng(0)
    tops, lefts, ratios = [], [], []
    for _ in range(4_000):
        top, left, h, w = crop_box(600, 800, (0.25, 0.25), rng)
        assert h * w == pytest.approx(120_000, rel=0.005)
        tops.append((top + 0.5) / (600 - h + 1))
        lefts.append((left + 0.5) / (800 - w + 1))
        ratios.append((math.log(w / h) / math.log(4 / 3) + 1) / 2)
    for share in (tops, lefts, ratios):  # each uniform over 0..1, and none has to do with another
        assert min(share) < 0.01
        assert max(share) > 0.99
        assert all(within(int(n), 4_000, 0.1) for n in np.histogram(share, 10, (0, 1))[0][1:-1])
    assert np.abs(np.corrcoef([tops, lefts, ratios]) - np.eye(3)).max() < 5 / math.sqrt(4_000)
    areas = [crop_box(600, 800, (0.1, 0.5), rng)[2:] for _ in range(4_000)]
    shares = [h * w / 480_000 for h, w in areas]
    assert 0.0995 < min(shares) < 0.102
    assert 0.498 < max(shares) < 0.5025
    assert within(sum(share < 0.3 for share in shares), 4_000, 0.5)


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(60, 80, (0, 0, 60, 80)), (20, 80, (0, 26, 20, 27)), (80, 20, (26, 0, 27, 20)), (30, 30, (0, 0, 30, 30))],
)
def test_a_crop_that_cannot_be(height: int, width: int, box: tuple[int, int, int, int]) -> None:
    """Of more than the image: the largest centre of at most 4/3."""
    assert crop_box(height, width, (1.5, 2.0), np.random.default_rng(0)) == box


@pytest.mark.parametrize("box", [(0, 0, 64, 64), (8, 20, 32, 40), (3, 5, 16, 16), (0, 0, 51, 63)])
def test_random_resized_crop_by_hand(box: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bilinear between the four nearest pixels' centres, the edge's beyond it."""
    monkeypatch.setattr(augment, "crop_box", lambda h, w, scale, rng: box)
    images = numbered(2, 64)
    found = augment.random_resized_crop(images, 16, (0.1, 1.0), generator()).numpy()
    top, left, h, w = box
    y, x = (np.clip(a + n * (np.arange(16) + 0.5) / 16 - 0.5, 0, 63) for a, n in ((top, h), (left, w)))
    y0, x0 = (np.minimum(np.floor(v).astype(int), 62) for v in (y, x))
    v, u = (y - y0)[:, None], x - x0
    p = images.numpy().astype(np.float64)
    upper, lower = (p[:, :, r][..., x0] * (1 - u) + p[:, :, r][..., x0 + 1] * u for r in (y0, y0 + 1))
    exact = upper * (1 - v) + lower * v
    sure = np.abs(exact - np.floor(exact) - 0.5) > 1e-2
    assert sure.mean() > 0.5
    np.testing.assert_array_equal(found[sure], np.rint(exact)[sure])


def test_lighting_and_normalise() -> None:
    images = torch.rand(4, 3, 2, 2, generator=generator())
    lit = augment.lighting(images, 0.1, generator(3)) - images
    alpha = 0.1 * torch.randn(4, 3, generator=generator(3)).double().numpy()
    for i in range(4):
        shift = sum(alpha[i, k] * augment.EIGENVALUES[k] * np.array(augment.EIGENVECTORS[k]) for k in range(3))
        np.testing.assert_allclose(lit[i, :, 0, 0], shift, atol=1e-6)
    x = numbered(2)
    mean, std = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
    expected = (x.numpy().astype(np.float64) / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(augment.normalise(x, mean, std), expected, atol=1e-6)


MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.5)


def pixels_of(normalised: Tensor) -> np.ndarray:
    mean, std = (np.array(v)[:, None, None] for v in (MEAN, STD))
    return 255 * (normalised.double().numpy() * std + mean)


def test_policy_none() -> None:
    images = numbered(4)
    found = augment.apply(images, "none", MEAN, STD, generator(), 8)
    np.testing.assert_allclose(pixels_of(found), images, atol=1e-3)
    with pytest.raises(ValueError, match="known are cifar, cifar-alternate, imagenet, none"):
        augment.apply(numbered(4), "autoaugment", MEAN, STD, generator(), 8)


def test_policy_cifar() -> None:
    """Pixels that say where they come from: shifts of -4 to 4 in either direction alike, a half mirrored."""
    n, size = 8_100, 16
    places = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    places[0, 0], places[0, 1] = torch.arange(1, size + 1)[:, None], torch.arange(1, size + 1)
    found = np.rint(pixels_of(augment.apply(places.expand(n, -1, -1, -1), "cifar", MEAN, STD, generator(), size)))
    rows, columns = found[:, 0, :, 8].astype(int), found[:, 1, 8].astype(int)
    down = rows[:, 8] - 9
    mirrored = columns[:, 8] < columns[:, 7]
    right = np.where(mirrored, columns[:, 7], columns[:, 8]) - 9
    assert within(int(mirrored.sum()), n, 0.5)
    counts = np.zeros((9, 9, 2))
    np.add.at(counts, (down + 4, right + 4, mirrored.astype(int)), 1)
    assert counts.sum() == n
    assert ((counts - 50) ** 2 / 50).sum() < 161 + 5 * math.sqrt(2 * 161)  # chi squared of 162 cells
    for shift, flip, image in zip(zip(down, right), mirrored[:200], found):
        y, x = (np.arange(size) + s + 1 for s in shift)
        inside = ((y > 0) & (y <= size))[:, None] & ((x > 0) & (x <= size))
        expected = np.where(inside, y[:, None], 0)
        np.testing.assert_array_equal(image[0], expected[:, ::-1] if flip else expected)
    again = augment.apply(places.expand(n, -1, -1, -1), "cifar", MEAN, STD, generator(), size)
    np.testing.assert_array_equal(np.rint(pixels_of(again)), found)


def test_policy_imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half mirrored, and colours moved by a tenth of what ImageNet's vary; cut only where the size is another."""
    n = 20_000
    image = torch.tensor([100, 150], dtype=torch.uint8).expand(n, 3, 2, 2)
    found = pixels_of(augment.apply(image, "imagenet", MEAN, STD, generator(), 2)) / 255
    mirrored = found[:, 0, 0, 0] > found[:, 0, 0, 1]
    assert within(int(mirrored.sum()), n, 0.5)
    shift = found.mean((2, 3)) - 125 / 255
    axes, values = np.array(augment.EIGENVECTORS), np.array(augment.EIGENVALUES)
    expected = axes.T @ np.diag((0.1 * values) ** 2) @ axes
    np.testing.assert_allclose(np.cov(shift.T), expected, rtol=0.06, atol=1e-7)
    assert np.abs(shift.mean(0)).max() < 5 * math.sqrt(expected.max() / n)
    steps = np.where(mirrored[:, None, None, None], 25, -25) / 255 * np.array([1, -1])
    np.testing.assert_allclose(found - shift[:, :, None, None] - 125 / 255, steps + 0 * found, atol=1e-6)
    asked: list[tuple[object, ...]] = []

    def box(h: int, w: int, scale: object, rng: object) -> tuple[int, int, int, int]:
        asked.append((h, w, scale))
        return 0, 0, h, w

    monkeypatch.setattr(augment, "crop_box", box)
    assert augment.apply(numbered(3), "imagenet", MEAN, STD, generator(), 4, (0.3, 0.6)).shape == (3, 3, 4, 4)
    assert asked == [(8, 8, (0.3, 0.6))] * 3
