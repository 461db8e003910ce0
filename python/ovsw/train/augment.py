"""Augmentation on whole batches of uint8 images, and normalisation. Every random choice comes from one generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ovsw.datasets import crop_box

# PCA lighting as in the released code: rows of this matrix are weighted by the eigenvalues (the classical form weights
# the columns of another arrangement).
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((0.4009, 0.7192, -0.5675), (-0.8140, -0.0045, -0.5808), (0.4203, -0.6948, -0.5836))


def random_crop(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Each image padded with zeros and cut back to its size at a random place."""
    return crop(images, padding, torch.randint(2 * padding + 1, (2, len(images)), generator=generator))


def crop(images: Tensor, padding: int, shifts: Tensor) -> Tensor:
    """Each image padded with zeros and cut back to its size at the row `shifts[0]` and the column `shifts[1]`."""
    n, _, h, w = images.shape
    places = F.pad(images, (padding,) * 4).unfold(2, h, 1).unfold(3, w, 1)  # (n, c, rows, columns, h, w), a view
    return places[torch.arange(n), :, shifts[0], shifts[1]]


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    """Each image mirrored with probability one half."""
    return mirror(images, torch.rand(len(images), generator=generator) < 0.5)


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirrors the images that are marked in `mirrored`."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def random_resized_crop(images: Tensor, size: int, scale: Sequence[float], generator: Generator) -> Tensor:
    """A random crop of each image of a batch, resized to `size` bilinearly; keeps uint8."""
    n, _, h, w = images.shape
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    boxes = torch.tensor([crop_box(h, w, scale, rng) for _ in range(n)], dtype=torch.float32)
    steps = (torch.arange(size) + 0.5) / size
    y = (boxes[:, 0:1] + boxes[:, 2:3] * steps) * 2 / h - 1
    x = (boxes[:, 1:2] + boxes[:, 3:4] * steps) * 2 / w - 1
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=3)
    cut = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return cut.round_().to(torch.uint8)


def lighting(images: Tensor, std: float, generator: Generator) -> Tensor:
    """Adds a random colour along the principal components of ImageNet's pixels; images are floats in 0..1."""
    alpha = std * torch.randn(len(images), 3, generator=generator)
    shift = (alpha * torch.tensor(EIGENVALUES)) @ torch.tensor(EIGENVECTORS)
    return images + shift[:, :, None, None].to(images.dtype)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8, or floats in 0..1, to normalised float32."""
    scaled = images.float().div_(255) if images.dtype == torch.uint8 else images
    m, s = (torch.tensor(v, dtype=torch.float32).view(1, -1, 1, 1) for v in (mean, std))
    return (scaled - m) / s


def apply(
    images: Tensor,
    policy: str,
    mean: Sequence[float],
    std: Sequence[float],
    generator: Generator,
    size: int,
    crop: Sequence[float] = (0.08, 1.25),
    mirrored: Tensor | None = None,
) -> Tensor:
    """A training batch: uint8 in, normalised float32 out. `policy` is "cifar", "cifar-alternate", "imagenet" or "none".

    `mirrored` says which images "cifar-alternate" mirrors; the other policies draw that.

    For "imagenet" images of another size than `size` are cut by a random resized crop; those from an image folder have
    been cut already when they were decoded.
    """
    if policy == "none":
        return normalise(images, mean, std)
    if policy == "cifar":
        images = random_crop(images, 4, generator)
        return normalise(random_flip(images, generator), mean, std)
    if policy == "cifar-alternate":
        if mirrored is None:
            raise ValueError("the augmentation 'cifar-alternate' needs the argument `mirrored`")
        images = random_crop(images, 4, generator)
        return normalise(mirror(images, mirrored), mean, std)
    if policy == "imagenet":
        if images.shape[2:] != (size, size):
            images = random_resized_crop(images, size, crop, generator)
        lit = lighting(random_flip(images, generator).float().div_(255), 0.1, generator)
        return normalise(lit, mean, std)
    raise ValueError(f"unknown augmentation '{policy}'; known are cifar, cifar-alternate, imagenet, none")
