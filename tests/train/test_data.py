"""Data sets: official files, folders of images, what is broken or hostile."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ovsw.train.data import DataError, FolderSet, MemorySet, open_split

from support import shared
from support.training import image_folder

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def fake_cifar(root: Path) -> dict[str, np.ndarray]:
    """CIFAR-10 and CIFAR-100 in the official form, few images each."""
    rng = np.random.default_rng(0)
    ten, hundred = root / "cifar-10-batches-py", root / "cifar-100-python"
    ten.mkdir(parents=True)
    hundred.mkdir()
    pixels = {name: rng.integers(0, 256, (4, 3072), np.uint8) for name in [*"12345", "test", "train100", "test100"]}
    for name in "12345":
        (ten / f"data_batch_{name}").write_bytes(pickle.dumps({b"data": pixels[name], b"labels": [0, 1, 2, 9]}, 2))
    (ten / "test_batch").write_bytes(pickle.dumps({b"data": pixels["test"], b"labels": [3, 4, 5, 6]}, 2))
    (ten / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, 2))
    for split in ("train", "test"):
        content = {b"data": pixels[f"{split}100"], b"fine_labels": [7, 99, 0, 1], b"coarse_labels": [1, 1, 1, 1]}
        (hundred / split).write_bytes(pickle.dumps(content, 2))
    (hundred / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"f%d" % i for i in range(100)]}, 2))
    return pixels


def test_official_cifar(tmp_path: Path) -> None:
    pixels = fake_cifar(tmp_path)
    for root in (tmp_path, tmp_path / "cifar-10-batches-py"):
        train = open_split("cifar10", root, "train")
        assert isinstance(train, MemorySet)
        np.testing.assert_array_equal(train.images[:4].reshape(4, -1), pixels["1"])
        np.testing.assert_array_equal(train.images[16:].reshape(4, -1), pixels["5"])
        assert train.labels.tolist() == [0, 1, 2, 9] * 5
        assert train.names[9] == "c9"
    hundred = open_split("cifar100", tmp_path, "test")
    assert hundred.labels.tolist() == [7, 99, 0, 1]
    assert len(hundred.names) == 100


def test_webp_cifar() -> None:
    """Real CIFAR-10: the manifest's checksum is compared while loading."""
    test = open_split("cifar10", shared("data", "cifar10"), "test")
    assert isinstance(test, MemorySet)
    assert test.images.shape == (10000, 3, 32, 32)
    assert [test.names[i] for i in test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    with pytest.raises(DataError, match="has 10 classes, cifar100 has 100"):
        open_split("cifar100", shared("data", "cifar10"), "test")


def test_idx_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 28, 28), np.uint8)
    with gzip.open(tmp_path / "t10k-images-idx3-ubyte.gz", "wb") as f:
        f.write(struct.pack(">4I", 0x803, 5, 28, 28) + images.tobytes())
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 5) + bytes([0, 9, 2, 3, 4]))
    test = open_split("fashion-mnist", tmp_path, "test")
    assert isinstance(test, MemorySet)
    np.testing.assert_array_equal(test.images[:, 1, 2:30, 2:30], images)
    assert test.labels.tolist() == [0, 9, 2, 3, 4]
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: not an IDX file"):
        open_split("fashion-mnist", tmp_path, "test")


def test_image_folder(tmp_path: Path) -> None:
    image_folder(tmp_path)
    found = open_split("folder", tmp_path, "train")
    assert isinstance(found, FolderSet)
    assert (found.names, found.labels.tolist()) == (["bird", "cat"], [0, 0, 0, 1, 1, 1])
    with Image.open(tmp_path / "train" / "bird" / "0.png") as image:
        expected = image.resize((45, 36), Image.Resampling.BILINEAR).crop((6, 2, 38, 34))
    centre = found.load(0, 32, 36, None, np.random.default_rng(0))
    np.testing.assert_array_equal(centre.permute(1, 2, 0), np.asarray(expected))
    crops = [found.load(0, 32, 36, (0.08, 1.25), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], crops[2])
    (tmp_path / "train" / "bird" / "0.png").write_text("broken")
    with pytest.raises(DataError, match=r"0\.png: cannot be decoded .* data\.broken=skip"):
        found.load(0, 32, 36, None, np.random.default_rng(0))
    found.broken = "skip"
    assert torch.equal(
        found.load(0, 32, 36, None, np.random.default_rng(0)), found.load(1, 32, 36, None, np.random.default_rng(0))
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cifar10", "holds neither cifar-10-batches-py nor the WebP form"),
        ("cifar100", "cifar-100-python"),
        ("fashion-mnist", "holds no train-images-idx3-ubyte"),
        ("folder", "no such folder"),
        ("imagenet", "unknown data set 'imagenet'; known are cifar10"),
    ],
)
def test_wrong_folders(kind: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        open_split(kind, tmp_path, "train")
    with pytest.raises(DataError, match="does not exist"):
        open_split(kind, tmp_path / "missing", "train")


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch evil",)


def test_hostile_cifar_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cifar(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="test_batch: not a CIFAR file"):
        open_split("cifar10", tmp_path, "test")
    assert not (tmp_path / "evil").exists()


# Broken images


def coloured_folder(root: Path, broken: set[str]) -> FolderSet:
    """Two classes of three images, each of one grey of its own: 0, 40, 80 and 120, 160, 200."""
    for i, (name, number) in enumerate(itertools.product(("bird", "cat"), range(3))):
        path = root / "train" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if f"{name}/{number}" in broken:
            path.write_text("broken")
        else:
            Image.fromarray(np.full((40, 50, 3), 40 * i, np.uint8)).save(path)
    found = open_split("folder", root, "train", broken="skip")
    assert isinstance(found, FolderSet)
    return found


@pytest.mark.parametrize("scale", [None, (0.08, 1.0)])
def test_a_skipped_image_is_replaced_by_one_of_its_class(scale: tuple[float, float] | None, tmp_path: Path) -> None:
    """By the next one; behind the last comes the first."""
    found = coloured_folder(tmp_path, {"bird/1", "bird/2", "cat/0"})
    greys = [set(found.load(i, 32, 36, scale, np.random.default_rng(i)).flatten().tolist()) for i in range(6)]
    assert greys == [{0}, {0}, {0}, {160}, {160}, {200}]


def test_a_class_that_cannot_be_decoded(tmp_path: Path) -> None:
    found = coloured_folder(tmp_path, {"cat/0", "cat/1", "cat/2"})
    assert found.load(2, 32, 36, None, np.random.default_rng(0)).unique().tolist() == [80]
    with pytest.raises(DataError, match="no image of this class can be decoded") as caught:
        found.load(4, 32, 36, None, np.random.default_rng(0))
    assert str(caught.value).startswith(f"{tmp_path / 'train' / 'cat'}: ")
