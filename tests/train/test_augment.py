"""Augmentation."""

from __future__ import annotations

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


def test_random_flip() -> None:
    images = numbered()
    flipped = augment.random_flip(images, generator())
    mirrored = [torch.equal(b.flip(2), a) for b, a in zip(images, flipped)]
    kept = [torch.equal(b, a) for b, a in zip(images, flipped)]
    assert all(m != k for m, k in zip(mirrored, kept))
    assert 16 < sum(mirrored) < 48


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


def test_random_resized_crop_of_a_gradient() -> None:
    """On a picture that is linear in x and y the crop is again linear, with slopes of the box."""
    ramp = (torch.arange(64)[None, :] * 2 + torch.arange(64)[:, None]).to(torch.uint8)
    images = ramp.expand(8, 3, 64, 64)
    out = augment.random_resized_crop(images, 32, (0.2, 0.8), generator()).float()
    dx, dy = out[:, :, 8:24, 9:25] - out[:, :, 8:24, 8:24], out[:, :, 9:25, 8:24] - out[:, :, 8:24, 8:24]
    assert out.shape == (8, 3, 32, 32)
    assert torch.all((dx.mean(dim=(1, 2, 3)) > 1.4) & (dx.mean(dim=(1, 2, 3)) < 4.1))
    assert torch.all(dx.var(dim=(1, 2, 3)) < 0.6)
    assert torch.all(dy.mean(dim=(1, 2, 3)) > 0.6)


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


def test_policies() -> None:
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    for policy in ("none", "cifar", "imagenet"):
        out = augment.apply(numbered(4), policy, mean, std, generator(), 8)
        assert out.shape == (4, 3, 8, 8)
        again = augment.apply(numbered(4), policy, mean, std, generator(), 8)
        assert torch.equal(out, again)
    with pytest.raises(ValueError, match="known are cifar, imagenet, none"):
        augment.apply(numbered(4), "autoaugment", mean, std, generator(), 8)
