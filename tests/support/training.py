"""Quick runs of the trainer and how to compare their checkpoints."""

from __future__ import annotations

import csv
import itertools
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
from ovsw.train import cli, trainer

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


def interrupted(run: list[str], epochs: int = 1) -> None:
    """A run of ovsw-train that Ctrl-C ends at the save of the epoch after these."""
    real, saves = trainer.replace_file, []

    def stops(path: Path, data: bytes) -> None:
        if path.name == "last.pth" and len(saves) == epochs:
            raise KeyboardInterrupt
        saves.extend([path] if path.name == "last.pth" else [])
        real(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "replace_file", stops)
        assert cli.main(run) == 130


def metrics(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as f:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]


def tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """All tensors of nested dicts and lists, by path."""
    if isinstance(value, Tensor):
        return {name: value}
    if not isinstance(value, (dict, list)):
        return {}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return dict(itertools.chain.from_iterable(tensors(v, f"{name}/{k}").items() for k, v in parts))


def assert_same(a: Path, b: Path) -> None:
    """Weights, optimiser, OvSW's state and the random generator's, bit for bit."""
    one, two = (tensors(torch.load(path, weights_only=True)) for path in (a, b))
    assert one.keys() == two.keys()
    assert [k for k in one if not torch.equal(one[k], two[k])] == []


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
