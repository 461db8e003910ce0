"""Data sets: official files, folders of images, what is broken or hostile."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
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

from ovsw.datasets import DataError, FolderSet, MemorySet, base, open_split

from support import pickles, shared
from support.pictures import GREY, chunk, exif, png
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
        for c, y, x in itertools.product(range(3), (0, 5, 31), (0, 7, 31)):  # a plane after the other, row by row
            assert train.images[1, c, y, x] == pixels["1"][1, 1024 * c + 32 * y + x]
    hundred = open_split("cifar100", tmp_path, "test")
    assert isinstance(hundred, MemorySet)
    np.testing.assert_array_equal(hundred.images.reshape(4, -1), pixels["test100"])
    assert hundred.labels.tolist() == [7, 99, 0, 1]
    assert len(hundred.names) == 100


def test_webp_cifar() -> None:
    """Real CIFAR-10: the manifest's checksum is compared while loading."""
    test = open_split("cifar10", shared("data", "cifar10"), "test")
    assert isinstance(test, MemorySet)
    assert test.images.shape == (10000, 3, 32, 32)
    assert [test.names[i] for i in test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    with pytest.raises(DataError, match="it has 10 classes, expected 100"):
        open_split("cifar100", shared("data", "cifar10"), "test")


def test_mosaics(tmp_path: Path) -> None:
    """50 x 50 images in rows; a pixel that is not the manifest's is seen."""
    rng = np.random.default_rng(0)
    mosaic = rng.integers(0, 256, (1600, 1600, 3), np.uint8)
    images = np.stack([mosaic[y : y + 32, x : x + 32] for y in range(0, 1600, 32) for x in range(0, 1600, 32)])
    labels = rng.integers(0, 10, 2500)
    Image.fromarray(mosaic).save(tmp_path / "test_0.webp", lossless=True)
    np.savez(tmp_path / "labels.npz", test=labels, names=[f"c{i}" for i in range(10)])

    def manifest(pixels: np.ndarray) -> None:
        digest = hashlib.sha256(pixels.tobytes()).hexdigest()
        (tmp_path / "manifest.json").write_text(json.dumps({"test": {"sha256_pixels": digest}}))

    manifest(images)
    found = open_split("cifar10", tmp_path, "test")
    assert isinstance(found, MemorySet)
    np.testing.assert_array_equal(found.images.permute(0, 2, 3, 1), images)
    assert found.labels.tolist() == labels.tolist()
    assert found.names == [f"c{i}" for i in range(10)]
    images[2499, 31, 31, 2] ^= 1
    manifest(images)
    with pytest.raises(DataError, match="the test images differ from the manifest's checksum"):
        open_split("cifar10", tmp_path, "test")


def test_idx_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 28, 28), np.uint8)
    with gzip.open(tmp_path / "t10k-images-idx3-ubyte.gz", "wb") as f:
        f.write(struct.pack(">4I", 0x803, 5, 28, 28) + images.tobytes())
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 5) + bytes([0, 9, 2, 3, 4]))
    test = open_split("fashion-mnist", tmp_path, "test")
    assert isinstance(test, MemorySet)
    for channel in range(3):
        np.testing.assert_array_equal(test.images[:, channel], np.pad(images, ((0, 0), (2, 2), (2, 2))))
    assert test.labels.tolist() == [0, 9, 2, 3, 4]
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: not an IDX file"):
        open_split("fashion-mnist", tmp_path, "test")


def test_image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with Image.open(tmp_path / "train" / "cat" / "1.png") as image:
        expected = image.crop((7, 5, 47, 35)).resize((32, 32), Image.Resampling.BILINEAR)
    with monkeypatch.context() as patch:
        patch.setattr(base, "crop_box", lambda height, width, scale, rng: (5, 7, 30, 40))
        cut = found.load(4, 32, 36, (0.08, 1.25), np.random.default_rng(0))
    inside = np.s_[1:-1, 1:-1]  # along the edge a resize of a box looks beyond it
    np.testing.assert_array_equal(cut.permute(1, 2, 0)[inside], np.asarray(expected)[inside])
    (tmp_path / "train" / "bird" / "0.png").write_text("broken")
    with pytest.raises(DataError, match=r"0\.png: is not an image .* data\.broken=skip"):
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
    with pytest.raises(DataError, match="unknown data set" if kind == "imagenet" else "does not exist"):
        open_split(kind, tmp_path / "missing", "train")


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch evil",)


def test_folders_without_images(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no cat")
    with pytest.raises(DataError, match="train: holds no images in class folders"):
        open_split("folder", tmp_path, "train")


def test_hostile_cifar_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cifar(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="test_batch: not a CIFAR file"):
        open_split("cifar10", tmp_path, "test")
    assert not (tmp_path / "evil").exists()


def hostile_batch(array: bytes, labels: bytes = b"]" + pickles.number(1) + b"a") -> bytes:
    return b"\x80\x03}(" + pickles.raw(b"data") + array + pickles.raw(b"labels") + labels + b"u."


def test_cifar_that_holds_pointers(tmp_path: Path) -> None:
    """Read as numpy's own classes would have it, each element is the address of an object, and none is there."""
    fake_cifar(tmp_path)
    batch = hostile_batch(pickles.array_of_pointers(0x4141414141414141))
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(batch)
    code = """
import sys
from pathlib import Path
from ovsw.datasets import DataError, open_split
try:
    open_split("cifar10", Path(sys.argv[1]), "test")
except DataError as e:
    print(e)
"""
    words = pickles.in_child(code, tmp_path)
    assert words.endswith("test_batch: not a CIFAR file (holds an array that is not of uint8)")


@pytest.mark.parametrize(
    "name",
    [
        *("numpy.ctypeslib.ndarray", "numpy.core._reconstruct", "numpy.lib.format.dtype", "numpy.core.records.ndarray"),
        *("_codecs.lookup", "numpy.memmap", "builtins.list", "numpy.core.multiarray.scalar"),
    ],
)
def test_cifar_names_are_exact(name: str, tmp_path: Path) -> None:
    fake_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(hostile_batch(pickles.named(name)))
    with pytest.raises(DataError, match=f"test_batch: not a CIFAR file \\(holds {name}\\)"):
        open_split("cifar10", tmp_path, "test")


@pytest.mark.parametrize(
    "name", ["numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct", "_codecs.encode"]
)
def test_cifar_cannot_change_the_reader(name: str, tmp_path: Path) -> None:
    """BUILD on what a name stands for, with attributes to set on it."""
    fake_cifar(tmp_path)
    attributes = pickles.EMPTY_DICT + pickles.text("array") + pickles.number(3) + b"s"
    built = pickles.named(name) + pickles.several(pickles.NONE, attributes) + b"b"
    batch = tmp_path / "cifar-10-batches-py" / "test_batch"
    good = batch.read_bytes()
    batch.write_bytes(hostile_batch(built))
    with pytest.raises(DataError, match="test_batch: not a CIFAR file"):
        open_split("cifar10", tmp_path, "test")
    batch.write_bytes(good)
    assert open_split("cifar10", tmp_path, "test").labels.tolist() == [3, 4, 5, 6]


PIXELS = np.zeros((4, 3072), np.uint8)
BATCHES: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "data is not"),
    "a list": ([1, 2], "no dict"),
    "no labels": ({b"data": PIXELS}, "labels is not a list of numbers from 0 to 9"),
    "one label": ({b"data": PIXELS, b"labels": [1]}, "4 images but 1 labels"),
    "a label too large": ({b"data": PIXELS, b"labels": [0, 1, 2, 10]}, "numbers from 0 to 9"),
    "a label below 0": ({b"data": PIXELS, b"labels": [0, 1, 2, -1]}, "numbers from 0 to 9"),
    "labels as text": ({b"data": PIXELS, b"labels": [b"0", b"1", b"2", b"3"]}, "numbers from 0 to 9"),
    "a number of labels": ({b"data": PIXELS, b"labels": 4}, "numbers from 0 to 9"),
    "short rows": ({b"data": PIXELS[:, :-1], b"labels": [0] * 4}, "images of 3072 bytes"),
    "one row": ({b"data": PIXELS[0], b"labels": [0]}, "images of 3072 bytes"),
    "no rows": ({b"data": PIXELS[:0], b"labels": []}, "images of 3072 bytes"),
    "floats": ({b"data": PIXELS.astype(np.float32), b"labels": [0] * 4}, "not of uint8"),
    "a list of pixels": ({b"data": [0] * 3072, b"labels": [0]}, "images of 3072 bytes"),
}


@pytest.mark.parametrize("fault", BATCHES)
def test_odd_cifar(fault: str, tmp_path: Path) -> None:
    fake_cifar(tmp_path)
    content, words = BATCHES[fault]
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content, 3))
    with pytest.raises(DataError, match=f"test_batch: .*{words}"):
        open_split("cifar10", tmp_path, "test")


@pytest.mark.parametrize("names", [None, 3, [], [1, 2], b"abc"], ids=str)
def test_odd_names_of_cifar(names: Any, tmp_path: Path) -> None:
    fake_cifar(tmp_path)
    content = {} if names is None else {b"fine_label_names": names}
    (tmp_path / "cifar-100-python" / "meta").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(DataError, match=r"meta: not a CIFAR file .fine_label_names is not a list of names"):
        open_split("cifar100", tmp_path, "test")


# Broken images


def test_training_crops_are_upright_and_deep(tmp_path: Path) -> None:
    """A 16-bit picture, dark above and light below once it is turned as its EXIF says."""
    (tmp_path / "train" / "cat").mkdir(parents=True)
    stored = np.repeat(np.array([[60, 60, 180, 180]], np.uint16) << 8, 4, axis=0)
    held = chunk(b"eXIf", exif(5))
    (tmp_path / "train" / "cat" / "0.png").write_bytes(png(stored, GREY, 16, before=held))
    found = open_split("folder", tmp_path, "train")
    assert isinstance(found, FolderSet)
    crop = found.load(0, 4, 4, (1.0, 1.0), np.random.default_rng(0))
    assert crop[:, 0].unique().tolist() == [60]
    assert crop[:, 3].unique().tolist() == [180]


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
