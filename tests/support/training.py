"""Quick runs of the trainer and how to compare their checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ovsw.datasets import MemorySet
from ovsw.train import trainer

QUICK = ["data.kind=synthetic", "train.epochs=3", "train.batch=32", "train.lr=0.05", "train.warmup=1"]


@contextmanager
def few_images(train: int, test: int) -> Iterator[None]:
    """Runs see only so many images of a set: steps count here, not what is learned."""
    real = trainer.open_split

    def cut(kind: str, root: Path | None, split: str, **options: Any) -> Any:
        found = real(kind, root, split, **options)
        return found.first(train if split == "train" else test) if isinstance(found, MemorySet) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "open_split", cut)
        yield


def arguments(folder: Path, *more: str, settings: list[str] | None = None) -> list[str]:
    changes = [part for s in (settings or QUICK) for part in ("--set", s)]
    return ["table1-cresnet20", "-o", str(folder), "--quiet", *changes, *more]


def weights(path: Path) -> dict[str, Tensor]:
    loaded = torch.load(path, weights_only=True)
    return {
        **loaded["state_dict"],
        **{f"opt.{k}": v["momentum_buffer"] for k, v in loaded["optimizer"]["state"].items()},
    }


def assert_same(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    different = [k for k in first if not torch.equal(first[k], second[k])]
    assert different == []


def image_folder(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("bird", "cat"):
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")


def tiny_cifar(root: Path, per_file: int = 32) -> Path:
    """CIFAR-10 in the official form with few images: blurred noise around one pattern per class."""
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    patterns = rng.normal(size=(10, 3, 4, 4))
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = rng.integers(0, 10, per_file)
        coarse = 128 + 40 * (patterns[labels] + rng.normal(scale=0.5, size=(per_file, 3, 4, 4)))
        pixels = np.clip(coarse, 0, 255).astype(np.uint8).repeat(8, axis=2).repeat(8, axis=3)
        content = {b"data": pixels.reshape(per_file, -1), b"labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content, 2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, 2))
    return root
