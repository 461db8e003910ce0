"""The reader of torch.save's files: torch.load reads honest ones alike; hostile ones get neither code nor memory."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ovsw.nn.checkpoint import CheckpointError, read, state_dict
from ovsw.nn.torch_file import OddTensor, read_torch_file

from support import pickles
from support.peak import assert_small

DAMAGED = "CheckpointError: {}: not a PyTorch checkpoint, or damaged"


def honest() -> dict[str, Any]:
    torch.manual_seed(0)
    base, model = torch.randn(6, 4), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.int8, torch.uint8)
    return {
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": nn.Parameter(torch.ones(2)),
        **{str(kind): torch.arange(5).to(kind) for kind in kinds},
        "bool": torch.tensor([True, False]),
        "views": [base, base[1:, ::2], base.t(), base[:1].expand(3, 4), torch.zeros(0, 3), torch.tensor(1.5)],
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "plain": [
            1,
            -(2**70),
            1.5,
            "text\u00e9",
            b"bytes\xff",
            None,
            True,
            (1, (2,)),
            {3: [4]},
            {"set"},
            bytearray(b"x"),
        ],
        "others": [torch.float16, torch.device("cpu"), torch.Size([1, 2]), Counter({30: 1}), OrderedDict(a=1)],
    }


def assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours, theirs)
        return
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        assert getattr(ours, "_metadata", None) == getattr(theirs, "_metadata", None)
        for key in theirs:
            assert_equal(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            assert_equal(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_reads_the_same(zipped: bool) -> None:
    buffer = io.BytesIO()
    torch.save(honest(), buffer, _use_new_zipfile_serialization=zipped)
    ours = read_torch_file(buffer)
    buffer.seek(0)
    assert_equal(ours, torch.load(buffer, weights_only=True))
    one, part = ours["views"][:2]
    one.fill_(7.0)
    assert (part == 7).all()  # views share what they are views of


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_weights(tmp_path: Path) -> None:
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "meta": torch.zeros(3, device="meta"),
        "complex": torch.ones(2, dtype=torch.complex64),
    }
    torch.save({**odd, "weight": torch.ones(1)}, tmp_path / "c.pth")
    content = read(tmp_path / "c.pth")
    assert isinstance(content["sparse"], OddTensor)
    with pytest.raises(CheckpointError, match="quantized, sparse or empty tensors: sparse, quantized, meta, complex"):
        state_dict(tmp_path / "c.pth", content)


# --- hostile files ---------------------------------------------------------------------------------------------------


def zipped(path: Path, content: bytes, **storages: bytes) -> None:
    """A checkpoint with this pickle and these storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("c/data.pkl", b"\x80\x02" + content + b".")
        for key, data in storages.items():
            archive.writestr(f"c/data/{key}", data)


def old(path: Path, content: bytes, keys: bytes, storages: bytes = b"") -> None:
    """A checkpoint of before PyTorch 1.6."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    parts = [pickle.dumps(value, 2) for value in head]
    path.write_bytes(b"".join([*parts, b"\x80\x02" + content + b".", b"\x80\x02" + keys + b".", storages]))


def storage(key: str, count: int, kind: str = "torch.FloatStorage", *more: bytes) -> bytes:
    parts = (pickles.text("storage"), pickles.named(kind), pickles.text(key), pickles.text("cpu"), number(count), *more)
    return pickles.several(*parts) + b"Q"


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def tensor(where: bytes, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    dims = (pickles.several(*map(number, values)) for values in (size, stride))
    return pickles.call("torch._utils._rebuild_tensor_v2", where, number(offset), *dims, pickles.FALSE, pickles.NONE)


FOUR = storage("0", 4)
LONG = pickles.text("x" * 300_000) + pickles.put(0) + b"0"
MANY = 20_000
ATTACKS: dict[str, Callable[[Path], object]] = {
    "a bytearray of 8 GB": lambda p: zipped(p, pickles.call("builtins.bytearray", number(8 << 30))),
    "copies of a string": lambda p: zipped(
        p, LONG + b"](" + pickles.call("_codecs.encode", pickles.get(0), pickles.text("latin1")) * MANY + b"e"
    ),
    "copies of a dict": lambda p: zipped(
        p,
        b"}(" + b"".join(number(i) + b"N" for i in range(MANY)) + b"u" + pickles.put(0) + b"0]("
        + pickles.call("collections.OrderedDict", pickles.get(0)) * 2000 + b"e",
    ),
    "deep keys in the fifth pickle": lambda p: old(p, b"}", b"](" + b")" + b"\x85" * 200_000 + b"e"),
    "an old storage of 8 GB": lambda p: old(p, storage("0", 1 << 31, "torch.FloatStorage", pickles.NONE), b"]"),
    "many old storages": lambda p: old(
        p, b"](" + b"".join(storage(str(i), 1000, "torch.FloatStorage", pickles.NONE) for i in range(2000)) + b"e", b"]"
    ),
    "a storage of 8 GB": lambda p: zipped(p, storage("0", 1 << 31), **{"0": bytes(16)}),
    "a storage that is cut": lambda p: zipped(p, storage("0", 40), **{"0": bytes(16)}),
    "a storage of a negative size": lambda p: zipped(p, storage("0", -4), **{"0": bytes(16)}),
    "a tensor beyond its storage": lambda p: zipped(p, tensor(FOUR, 0, (5,), (1,)), **{"0": bytes(16)}),
    "an offset beyond": lambda p: zipped(p, tensor(FOUR, 4, (1,), (1,)), **{"0": bytes(16)}),
    "a negative offset": lambda p: zipped(p, tensor(FOUR, -1, (1,), (1,)), **{"0": bytes(16)}),
    "a negative stride": lambda p: zipped(p, tensor(FOUR, 3, (4,), (-1,)), **{"0": bytes(16)}),
    "a sum that overflows": lambda p: zipped(p, tensor(FOUR, 0, (1 << 62, 3), (1 << 62, 1)), **{"0": bytes(16)}),
    "sizes without strides": lambda p: zipped(p, tensor(FOUR, 0, (2, 2), (1,)), **{"0": bytes(16)}),
    "attributes of a list": lambda p: zipped(p, b"]}b"),
    "a call of a string": lambda p: zipped(p, pickles.text("x") + b")R"),
    "a class as a call": lambda p: zipped(p, pickles.named("argparse.Namespace") + b"(o"),
    "a reference that is no storage": lambda p: zipped(p, pickles.several(pickles.text("module")) + b"Q"),
    "a list that holds itself": lambda p: zipped(p, b"]" + pickles.put(0) + pickles.get(0) + b"a"),
    "another folder's storage": lambda p: zipped(p, storage("../../0", 4), **{"0": bytes(16)}),
}  # fmt: skip


def test_the_same_with_true_numbers_is_read(tmp_path: Path) -> None:
    path, data = tmp_path / "c.pth", torch.arange(4.0)
    zipped(path, tensor(FOUR, 1, (3,), (1,)), **{"0": data.numpy().tobytes()})
    assert read(path).tolist() == [1, 2, 3]
    where = storage("0", 4, "torch.FloatStorage", pickles.NONE)
    old(
        path,
        tensor(where, 0, (2, 2), (1, 2)),
        b"]" + pickles.text("0") + b"a",
        struct.pack("<q", 4) + data.numpy().tobytes(),
    )
    assert read(path).tolist() == [[0, 2], [1, 3]]
    zipped(path, LONG + b"](" + pickles.call("_codecs.encode", pickles.get(0), pickles.text("latin1")) + b"e")
    assert read(path) == [b"x" * 300_000]


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_files(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    ATTACKS[attack](path)
    assert assert_small("checkpoint", path) == DAMAGED.format(path)


def test_two_archives_in_one_file(tmp_path: Path) -> None:
    """Readers that look for the end of a zip file in different ways take different ones; there is one reader only."""
    first, second = tmp_path / "a", tmp_path / "b"
    zipped(first, b"}" + b")" + b"\x85" * 200_000 + b"Ns")
    torch.save({"a": 1}, second)
    (tmp_path / "c.pth").write_bytes(first.read_bytes() + second.read_bytes())
    assert "holds no state dict" in assert_small("checkpoint", tmp_path / "c.pth")
    (tmp_path / "d.pth").write_bytes(second.read_bytes() + first.read_bytes())
    assert assert_small("checkpoint", tmp_path / "d.pth") == DAMAGED.format(tmp_path / "d.pth")


def test_methods_of_a_dict_stay_its_own(tmp_path: Path) -> None:
    state = pickles.EMPTY_DICT + pickles.text("items") + pickles.number(3) + b"s"
    zipped(tmp_path / "c.pth", pickles.named("collections.OrderedDict") + b")R" + state + b"b")
    assert list(read(tmp_path / "c.pth").items()) == []


def test_a_bool_is_0_or_1(tmp_path: Path) -> None:
    zipped(tmp_path / "c.pth", tensor(storage("0", 3, "torch.BoolStorage"), 0, (3,), (1,)), **{"0": b"\0\1\xff"})
    bits = read(tmp_path / "c.pth")
    assert bits.view(torch.uint8).tolist() == [0, 1, 1]


def test_every_cut_and_flip_of_an_old_file(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(3.0)}, buffer, _use_new_zipfile_serialization=False)
    data, path = buffer.getvalue(), tmp_path / "c.pth"
    assert struct.pack("<q", 3) in data
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]):
            path.write_bytes(damaged)
            try:
                read(path)
            except CheckpointError:
                continue
            assert len(damaged) == len(data)
