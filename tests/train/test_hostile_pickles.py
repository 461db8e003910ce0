"""Pickles that name nothing forbidden and are hostile all the same: by what they would take, or by what is in them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from ovsw.datasets import DataError, open_split, sets
from ovsw.nn.checkpoint import CheckpointError, read, state_dict
from ovsw.train import cli, flips, landscape
from ovsw.util import pickles as scan

from support import pickles
from support.peak import assert_small
from support.training import arguments

pytestmark = pytest.mark.usefixtures("one_torch_thread")

# A tuple of twice the one before, 60 times; a tuple in a tuple, a million deep; each as the key of a dict.
LAUGHS = b")" + b"2\x86" * 60
DEEP = b")" + b"\x85" * 1_000_000
KEYS = {"laughs": LAUGHS, "deep": DEEP}
LISTS = b"(]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b"t"
PLACE = b"Nr" + struct.pack("<I", 3 * 10**8) + b"0"  # 300 million places of a memo, 2.4 GB


def cifar(folder: Path, batch: bytes) -> Path:
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, 2))
    (folder / "test_batch").write_bytes(batch)
    return folder


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_take_for_ever(key: str, tmp_path: Path) -> None:
    cifar(tmp_path, b"\x80\x02}" + KEYS[key] + b"Ns.")
    assert "test_batch: not a CIFAR file (an object of" in assert_small("cifar", tmp_path / "test_batch")
    path = tmp_path / "c.pth"
    pickles.save_with(path, {"a": torch.ones(1)}, b"}" + KEYS[key] + b"Ns")
    assert assert_small("checkpoint", path) == f"CheckpointError: {path}: not a PyTorch checkpoint, or damaged"


def test_lists_of_lists(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    pickles.save_with(path, {"a": torch.ones(1)}, LISTS)
    with pytest.raises(CheckpointError, match="not a PyTorch checkpoint"):
        read(path)


def test_a_place_far_out_in_the_memo(tmp_path: Path) -> None:
    cifar(tmp_path, b"\x80\x02" + PLACE + b"}.")
    said = assert_small("cifar", tmp_path / "test_batch")
    assert said == f"DataError: {tmp_path / 'test_batch'}: not a CIFAR file (memo index 300000000)"


@pytest.mark.parametrize(
    "opcodes",
    [
        b"\x82\x01.",
        b"P1\n.",
        b"K\x01Q.",
        b"0.",
        b"e.",
        b"(e.",
        b"h\x07.",
        b"\x8e" + bytes(7) + b"\x01.",
        b"",
        b"]K\x01b.",
    ],
)
def test_other_opcodes_of_cifar(opcodes: bytes, tmp_path: Path) -> None:
    """Extensions, persistent ids, an empty stack or memo, a length of 2^56, the end, BUILD on a list."""
    with pytest.raises(DataError, match="test_batch: not a CIFAR file"):
        open_split("cifar10", cifar(tmp_path, b"\x80\x04" + opcodes), "test")


def test_honest_pickles_pass() -> None:
    shared: list[Any] = [(i, str(i)) for i in range(2000)]
    honest = [{"a": shared, "b": shared}, tuple(range(9000)), np.arange(9), {(1, 2): {3}}, [[]] * 99, frozenset({1})]
    for value in honest:
        for protocol in range(6):
            data = pickle.dumps(value, protocol)
            scan.check(io.BytesIO(data), len(data))


# --- checkpoints that are larger than their file ---------------------------------------------------------------------


def test_packed_checkpoints(tmp_path: Path) -> None:
    """Zeros, a thousand times smaller when packed; torch itself would unpack them."""
    path = tmp_path / "c.pth"
    torch.save({"a": torch.zeros(1 << 20)}, path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    assert path.stat().st_size < 100_000
    with pytest.raises(CheckpointError, match="not a PyTorch checkpoint"):
        read(path)


@pytest.mark.parametrize("way", ["stride 0", "views"])
def test_more_numbers_than_the_file_holds(way: str, tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    few = torch.ones(1 << 10, dtype=torch.float16)
    many = {"a.weight": few[:1].expand(1 << 30)} if way == "stride 0" else {f"v{i}": few[:] for i in range(100)}
    torch.save(many, path)
    numbers, held = (1 << 30, 2048) if way == "stride 0" else (102400, 2048)
    with pytest.raises(CheckpointError, match=f"c.pth: its tensors have {numbers} numbers, but it holds {held} bytes"):
        state_dict(path, read(path))
    tied = {"a": few, "b": few}
    torch.save(tied, path)
    assert state_dict(path, read(path))["b"].dtype == torch.float32


def test_archives_that_unpack_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "run.xz"
    path.write_bytes(lzma.compress(bytes(1 << 28), preset=0))
    assert path.stat().st_size < 100_000
    assert "run.xz: not an archive of a run, or damaged" in assert_small("archive", path)


# --- runs with forged values -----------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"seed": 1, "scaler": {}, "rng": [], "metrics": [], "state": {}, "flip_history": {}}
FORGED: dict[str, dict[str, Any]] = {
    "an empty recipe": {"recipe": {}},
    "a recipe of numbers": {"recipe": {"network": 1, "data": 2, "train": 3, "ovsw": 4}},
    "an unknown key": {"recipe": {"network": {"nonsense": 1}}},
    "a list for a number": {"recipe": {"network": {"num_classes": [1]}}},
    "weights of text": {"recipe": {}, "flip_history": {"conv1.weight": "text"}},
}


@pytest.mark.parametrize("fault", FORGED)
def test_forged_runs(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the file, from every command that takes a run."""
    content: dict[str, Any] = {"epoch": 1, "best_acc1": 0.0, "optimizer": {}, "state_dict": {}}
    content["ovsw"] = {**RUN, **FORGED[fault]}
    for name in ("initial.pth", "last.pth"):
        torch.save(content, tmp_path / name)
    last = tmp_path / "last.pth"
    runs = {
        "ovsw-train": lambda: cli.main(arguments(tmp_path, "--resume", "--seed", "1")),
        "ovsw-flips": lambda: flips.main([str(tmp_path)]),
        "ovsw-landscape": lambda: landscape.main([str(last), "-o", str(tmp_path / "l.png"), "--grid", "2"]),
    }
    for name, run in runs.items():
        assert run() == 1
        said = capsys.readouterr().err
        assert said.startswith(f"{name}: error: ")
        assert said.count("\n") == 1


def test_views_in_a_run(tmp_path: Path) -> None:
    """Of one byte, 4 GB: what is beside the weights may not grow either."""
    history = {"layer1.0.conv1.weight": torch.zeros(1, dtype=torch.bool).expand(1 << 32)}
    recipe = {"network": {"name": "cresnet20"}}
    content = {"state_dict": {}, "ovsw": {**RUN, "recipe": recipe, "flip_history": history}}
    for name in ("initial.pth", "last.pth"):
        torch.save(content, tmp_path / name)
    said = assert_small("flips", tmp_path / "last.pth")
    assert said.endswith(".pth: its tensors have 4294967296 numbers, but it holds 1 bytes")


# --- other data sets -------------------------------------------------------------------------------------------------


def idx(folder: Path, images: bytes | None = None, labels: bytes = bytes([0, 9])) -> None:
    whole = struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 784) if images is None else images
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 2) + labels)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (struct.pack(">4I", 0x803, 2**32 - 1, 28, 28) + bytes(1 << 26), bytes(2), "4294967295 items of .28, 28."),
        (struct.pack(">4I", 0x803, 2, 2**20, 2**20), bytes(2), r"2 items of .1048576, 1048576., expected"),
        (struct.pack(">4I", 0x803, 2, 28, 29) + bytes(2 * 28 * 29), bytes(2), r"2 items of .28, 29., expected"),
        (struct.pack(">4I", 0x803, 0, 28, 28), bytes(2), "0 items of"),
        (struct.pack(">4I", 0x803, 2, 28, 28) + bytes(784), bytes(2), "not an IDX file"),
        (None, bytes([0, 10]), "a label is 10, expected 0 to 9"),
    ],
)
def test_hostile_idx(images: bytes | None, labels: bytes, words: str, tmp_path: Path) -> None:
    idx(tmp_path, images, labels)
    with pytest.raises(DataError, match=words):
        open_split("fashion-mnist", tmp_path, "test")


def test_damaged_gzip(tmp_path: Path) -> None:
    idx(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(DataError):
            open_split("fashion-mnist", tmp_path, "test")


def mosaic(folder: Path, **change: Any) -> None:
    """One mosaic in the WebP form, with its manifest and labels."""
    import hashlib

    side = change.get("side", 1600)
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(folder / "test_0.webp", lossless=True)
    digest = hashlib.sha256(bytes(2500 * 3072)).hexdigest()
    (folder / "manifest.json").write_text(change.get("manifest", json.dumps({"test": {"sha256_pixels": digest}})))
    content = {"test": np.arange(2500) % 10, "names": np.array([f"c{i}" for i in range(10)])}
    np.savez_compressed(folder / "labels.npz", **{**content, **change.get("labels", {})})
    if "archive" in change:
        (folder / "labels.npz").write_bytes(change["archive"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"side": 1599}, "test_0.webp: is 1599x1599, expected 1600x1600"),
        ({"manifest": "{"}, "manifest.json: has no sha256_pixels of test"),
        ({"manifest": "[]"}, "manifest.json: has no sha256_pixels of test"),
        ({"manifest": '{"test": 3}'}, "manifest.json: has no sha256_pixels of test"),
        ({"manifest": "[" * 100_000}, "manifest.json: has no sha256_pixels of test"),
        ({"archive": b"nonsense"}, "labels.npz: holds no labels"),
        ({"labels": {"test": np.array([{}] * 2500)}}, "labels.npz: holds no labels"),
        ({"labels": {"test": np.arange(2500) % 10 + 1}}, "labels.npz: holds no labels .test is not a list of numbers"),
        ({"labels": {"test": np.arange(2500) % 10 - 1}}, "labels.npz: holds no labels .test is not a list of numbers"),
        ({"labels": {"test": np.zeros((2500, 1), int)}}, "labels.npz: holds no labels .test is not a list of numbers"),
        ({"labels": {"test": np.zeros(2500)}}, "labels.npz: holds no labels .test is not a list of numbers"),
        ({"labels": {"more": np.zeros(1 << 24, np.uint8)}}, "labels.npz: holds no labels .unpacks to more than"),
    ],
)
def test_hostile_mosaics(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    mosaic(tmp_path, **change)
    with pytest.raises(DataError, match=words):
        open_split("cifar10", tmp_path, "test")


def test_names_of_nothing(tmp_path: Path) -> None:
    """Empty names take no bytes in labels.npz, however many there are."""
    mosaic(tmp_path, labels={"names": np.zeros(8_000_000, "S1")})
    said = assert_small("cifar", tmp_path / "labels.npz")
    assert said.endswith("labels.npz: holds no labels (it has 8000000 classes, expected 10)")


def test_idx_files_of_zeros(tmp_path: Path) -> None:
    """As many images as a file may have, packed to a thousandth."""
    head, count = struct.pack(">4I", 0x803, sets._MOST_ITEMS, 28, 28), sets._MOST_ITEMS
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(count * 784), 1))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">2I", 0x801, count) + bytes(count)))
    assert assert_small("fashion-mnist", tmp_path / "t10k-images-idx3-ubyte.gz") == "read"


def test_a_mosaic_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was called"))
    mosaic(tmp_path)
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1600 1600\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "test_0.webp").write_bytes(head)
    with Image.open(tmp_path / "test_0.webp") as image:
        assert image.format == "EPS"
    with pytest.raises(DataError, match=r"test_0.webp: cannot be decoded"):
        open_split("cifar10", tmp_path, "test")


def test_an_honest_mosaic(tmp_path: Path) -> None:
    mosaic(tmp_path)
    assert len(open_split("cifar10", tmp_path, "test")) == 2500
