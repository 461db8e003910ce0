"""Archives of runs: a run that went through one resumes to the same weights; what is no run or archive is refused."""

from __future__ import annotations

import io
import lzma
import shlex
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ovsw.train import archive, cli, flips

from support.peak import assert_small
from support.training import arguments, assert_same, few_images, interrupted, metrics

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_images(96, 32):
        yield


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of three."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    interrupted(arguments(folder), epochs=2)
    return folder


@pytest.fixture(scope="module")
def packed(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archives") / "a.run"
    assert archive.main(["pack", str(stopped), str(file)]) == 0
    return file


def rows(folder: Path) -> list[dict[str, float]]:
    """All metrics but the time."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in metrics(folder)]


def test_a_run_resumes_from_its_archive(
    stopped: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that unpacking it prints."""
    direct, restored = tmp_path / "direct", tmp_path / "restored"
    shutil.copytree(stopped, direct)
    assert archive.main(["unpack", str(packed), str(restored)]) == 0
    assert (restored / "metrics.csv").read_bytes() == (stopped / "metrics.csv").read_bytes()
    program, *printed = shlex.split(capsys.readouterr().out.splitlines()[1])
    assert program == "ovsw-train"
    assert printed[-2:] == [str(restored), "--resume"]
    assert cli.main([*printed, "--quiet"]) == 0
    assert cli.main(arguments(direct, "--resume")) == 0
    assert_same(direct / "last.pth", restored / "last.pth")
    assert len(rows(direct)) == 3
    assert rows(direct) == rows(restored)


def test_what_comes_back(stopped: Path, packed: Path, tmp_path: Path) -> None:
    """Every tensor but `weight_prev`, of which signs; `ovsw-flips` sees the same in both."""
    restored = tmp_path / "run"
    archive.unpack(packed, restored)
    for name in ("initial.pth", "last.pth"):
        was, now = (torch.load(folder / name, weights_only=True) for folder in (stopped, restored))
        assert was.keys() == now.keys()
        assert was["ovsw"]["recipe"] == now["ovsw"]["recipe"]
        assert was["ovsw"]["metrics"] == now["ovsw"]["metrics"]
        assert torch.equal(was["ovsw"]["rng"][0], now["ovsw"]["rng"][0])
        for key, tensor in was["state_dict"].items():
            expected = tensor.sign() if key.endswith("weight_prev") else tensor
            assert torch.equal(now["state_dict"][key], expected), key
    for old, new in zip(flips.load_run(stopped), flips.load_run(restored)):
        assert old.name == new.name
        for array, back in ((old.start, new.start), (old.end, new.end), (old.never, new.never)):
            assert array.tobytes() == back.tobytes()


@pytest.mark.parametrize("last_is_best", [True, False])
def test_the_best_comes_back_if_it_is_the_last(
    last_is_best: bool, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file, restored = (tmp_path / name for name in ("run", "a.run", "restored"))
    shutil.copytree(stopped, run)
    checkpoint = torch.load(run / "last.pth", weights_only=True)
    torch.save({**checkpoint, "epoch": 2 if last_is_best else 1}, run / "model_best.pth")
    assert archive.main(["pack", str(run), str(file)]) == 0
    assert ("model_best.pth is of an earlier epoch" in capsys.readouterr().out) == (not last_is_best)
    archive.unpack(file, restored)
    assert (restored / "model_best.pth").exists() == last_is_best


def test_size_when_nothing_repeats(stopped: Path, tmp_path: Path) -> None:
    """At the end of a long run the flip rates are numbers like any other."""
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    checkpoint = torch.load(run / "last.pth", weights_only=True)
    generator = torch.Generator().manual_seed(0)
    for key, tensor in checkpoint["state_dict"].items():
        if key.endswith("tracker"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator).pow_(3))
    torch.save(checkpoint, run / "last.pth")
    archive.pack(run, tmp_path / "a.run")
    size = (tmp_path / "a.run").stat().st_size
    assert 3_000_000 < size < 4_000_000


def test_values_of_every_kind_come_back() -> None:
    """Layouts, NaN, infinities, -0, empty tensors and other types, and the attributes of a state dict."""
    state = torch.nn.BatchNorm2d(2).state_dict()
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, -3.4e38])
    content = {
        **{"state": state, "odd": odd, "x.weight_prev": torch.tensor([0.0, 1.0, -1.0]), "none": None},
        **{"empty": torch.zeros(0, 3), "scalar": torch.tensor(0.1), "whole": torch.arange(3), "bf16": odd.bfloat16()},
        "wide": torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        "lists": [1, 2.5, "text", (0.9, 0.999), [torch.tensor([True, False, True])], float("nan")],
    }
    back = archive._mapped(archive._mapped(content, archive._encode), archive._decode)
    assert archive._difference(content, back) is None
    assert back["wide"].stride() == content["wide"].stride()  # type: ignore[attr-defined]
    assert back["odd"].numpy().tobytes() == odd.numpy().tobytes()
    assert back["state"]._metadata == state._metadata  # type: ignore[attr-defined]
    for key, other in (("odd", odd + 1), ("whole", torch.arange(4)), ("none", 0), ("x.weight_prev", -torch.ones(3))):
        assert archive._difference(content, {**back, key: other}) == key


def test_loss_is_noticed_before_anything_is_written(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = archive._decode

    def wrong(value: Any, key: str) -> Any:
        found = real(value, key)
        return found + 1e-7 if key == "linear.bias" and found is not value else found

    monkeypatch.setattr(archive, "_decode", wrong)
    assert archive.main(["pack", str(stopped), str(tmp_path / "a.run")]) == 1
    assert "linear.bias would change" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["pack", "HERE/nothing", "HERE/new"], "nothing: not a folder of ovsw-train"),
        (["pack", "HERE", "HERE/new"], "initial.pth: no such file"),
        (["pack", "RUN", "FILE"], "exists already; --force"),
        (["unpack", "FILE", "RUN"], "exists already"),
        (["unpack", "HERE/nothing", "HERE/new"], "nothing: No such file"),
        (["unpack", "RUN/last.pth", "HERE/new"], "last.pth: not an archive of a run, or damaged (LZMAError)"),
        (["unpack", "HERE/cut", "HERE/new"], "cut: not an archive of a run, or damaged"),
        (["unpack", "HERE/flipped", "HERE/new"], "flipped: not an archive of a run, or damaged"),
        (["unpack", "HERE/empty", "HERE/new"], "empty: not an archive of a run, or damaged"),
        (["unpack", "HERE/other", "HERE/new"], "other: not an archive of a run, or damaged (KeyError)"),
        (["unpack", "HERE/newer", "HERE/new"], "newer: an archive of version 2, this is for version 1"),
        (["unpack", "FILE", "HERE/missing/new"], "missing"),
    ],
)
def test_refused(
    given: list[str], words: str, stopped: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = packed.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-1000])
    (tmp_path / "flipped").write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    (tmp_path / "empty").write_bytes(b"")
    for name, content in (("other", {"a": 1}), ("newer", {"version": 2})):
        torch.save(content, tmp_path / "c.pth")
        (tmp_path / name).write_bytes(lzma.compress((tmp_path / "c.pth").read_bytes()))
    before = sorted(tmp_path.iterdir())
    places = {"HERE": tmp_path, "RUN": stopped, "FILE": packed}
    capsys.readouterr()
    arguments = ["/".join(str(places.get(part, part)) for part in g.split("/")) for g in given]
    assert archive.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("ovsw.train.archive: error: ")
    assert words in error
    assert len(error.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
    assert packed.read_bytes() == data


def hostile(tmp_path: Path, files: dict[str, Any], /, **changes: Any) -> Path:
    """An archive with these files."""
    torch.save({"version": 1, "files": files, "best_is_last": False, "metrics": "", **changes}, tmp_path / "c.pth")
    archive_file = tmp_path / "hostile.xz"
    archive_file.write_bytes(lzma.compress((tmp_path / "c.pth").read_bytes()))
    return archive_file


@pytest.mark.parametrize("name", ["../outside", "{tmp}/outside", "metrics.csv", "sub/last.pth", "last.pth\0"])
def test_an_archive_names_no_files_of_its_own(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outside").write_text("mine")
    file = hostile(tmp_path, {"initial.pth": {}, "last.pth": {}, name.format(tmp=tmp_path): {"a": 1}})
    assert archive.main(["unpack", str(file), str(tmp_path / "run")]) == 1
    assert "not an archive of a run, or damaged (ValueError)" in capsys.readouterr().err
    assert (tmp_path / "outside").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.pth", "hostile.xz", "outside"]


ABOUT = {"recipe": {}, "seed": 1, "scaler": {}, "rng": [], "metrics": [], "state": {}, "flip_history": {}}
RUN = {"state_dict": {}, "ovsw": ABOUT}
FORGED: dict[str, dict[str, Any]] = {
    "a list for the files": {"files": ["initial.pth", "last.pth"]},
    "numbers for checkpoints": {"files": {"initial.pth": 1, "last.pth": 2}},
    "checkpoints of others": {"files": {"initial.pth": RUN, "last.pth": {"state_dict": {}}}},
    "metrics that are no text": {"metrics": 3},
    "another order": {"files": {"last.pth": RUN, "initial.pth": RUN}},
}


@pytest.mark.parametrize("fault", FORGED)
def test_forged_archives(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and nothing is written."""
    honest = {"initial.pth": RUN, "last.pth": RUN}
    archive.unpack(hostile(tmp_path, honest), tmp_path / "honest")
    file = hostile(tmp_path, honest, **FORGED[fault])
    before = sorted(tmp_path.iterdir())
    assert archive.main(["unpack", str(file), str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ovsw.train.archive: error: {file}: not an archive of a run, or damaged (")
    assert said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def tensor(kind: str, shape: list[int], data: torch.Tensor) -> dict[str, Any]:
    return {"ovsw.archive": kind, "shape": shape, "channels_last": False, "data": data.byte()}


def two(first: Any) -> dict[str, Any]:
    return {"initial.pth": {"x": first, "noise": NOISE}, "last.pth": {}}


def of_pickle(opcodes: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("c/data.pkl", b"\x80\x02" + opcodes)
        file.writestr("c/noise", NOISE.numpy().tobytes())
    return stream.getvalue()


def of_members() -> bytes:
    """A zip archive of 600,000 empty members, all at the same place."""
    whole = of_pickle(b"}.")
    at, end = whole.index(b"PK\1\2"), whole.rindex(b"PK\5\6")
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *[0] * 11, 1, *[0] * 6) + b"a"
    listed = whole[at:end] + 600_000 * entry
    return whole[:at] + listed + whole[end : end + 12] + struct.pack("<2LH", len(listed), at, 0)


NOISE = torch.randint(256, (900_000,), generator=torch.Generator().manual_seed(0)).byte()
ZEROS = torch.zeros(1 << 26).byte()
DICT = dict.fromkeys(range(100_000))
BOMBS: dict[str, Callable[[Path], Path]] = {
    "signs from nothing": lambda p: hostile(p, two(tensor("signs", [1 << 16, 1 << 16], torch.zeros(8)))),
    "bits from nothing": lambda p: hostile(p, two(tensor("bits", [1 << 16, 1 << 16], torch.zeros(8)))),
    "floats from nothing": lambda p: hostile(p, two(tensor("floats", [1 << 16, 1 << 16], torch.zeros(8)))),
    "many signs": lambda p: hostile(p, two(tensor("signs", [1 << 28], ZEROS))),
    "one tensor many times": lambda p: hostile(p, two([tensor("floats", [1 << 22], ZEROS[: 1 << 24])] * 200)),
    "hidden by a negative size": lambda p: hostile(
        p, two([*[tensor("bits", [1 << 26], ZEROS[: 1 << 23])] * 40, tensor("bits", [-(1 << 40)], ZEROS[:1])])
    ),
    "one dict many times": lambda p: hostile(p, two([DICT] * 200)),
    "many members": lambda p: packed_as(p, of_members()),
    "many sets": lambda p: packed_as(p, of_pickle(b"(" + b"\x8f" * (1 << 26) + b"l.")),
}


def packed_as(tmp_path: Path, data: bytes) -> Path:
    (tmp_path / "hostile.xz").write_bytes(lzma.compress(data, preset=0))
    return tmp_path / "hostile.xz"


@pytest.mark.parametrize("bomb", BOMBS)
def test_small_archives_take_little_memory(bomb: str, tmp_path: Path) -> None:
    """With noise in them, as an archive may unpack to a multiple of its own size."""
    file = BOMBS[bomb](tmp_path)
    assert assert_small("archive", file).startswith(f"ValueError: {file}: not an archive of a run, or damaged (")
