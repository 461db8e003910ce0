"""`ovsw-run`, `ovsw-info`, `ovsw-demo`, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.bench import demo
from ovsw.bench.random_nets import random_resnet
from ovsw.commands import info, run
from ovsw.commands.base import UsageError, command

from support import ROOT

PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "small.bnn"
    network = random_resnet("resnet18", num_classes=10, size=32)
    network.metadata["labels"] = [f"kind {i}" for i in range(10)]
    bnn.write(network, path)
    return str(path)


def test_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([model, PHOTO, "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == PHOTO
    assert len(lines) == 4
    expected = Engine(model).classify(PHOTO, 3)
    assert [line.split("%")[1].strip() for line in lines[1:]] == [label for label, _ in expected]
    assert run.main([model, PHOTO, "--memory-limit", "1"]) == 1
    assert "the limit is 1000000; raise it with memory_limit (--memory-limit of a command)" in capsys.readouterr().err
    assert run.main([model, PHOTO, "--work-limit", "1"]) == 0


def test_run_json_and_profile(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([model, PHOTO, PHOTO, "--json", "--profile", "--threads", "2"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["threads"] == 2
    assert [r["image"] for r in found["results"]] == [PHOTO, PHOTO]
    expected = Engine(model).classify(PHOTO)
    assert [(t["label"], t["probability"]) for t in found["results"][0]["top"]] == expected
    assert "layer1.0.conv1" in captured.err


def test_run_goes_on_after_a_bad_image(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, gone = str(tmp_path / "bad.jpg"), str(tmp_path / "gone.jpg")
    Path(bad).write_text("no")
    assert run.main([model, bad, PHOTO, gone, PHOTO, "--top", "1"]) == 1
    captured = capsys.readouterr()
    errors = captured.err.splitlines()
    assert [error.split(": ")[:3] for error in errors] == [["ovsw-run", "error", bad], ["ovsw-run", "error", gone]]
    assert [line for line in captured.out.splitlines() if not line.startswith(" ")] == [PHOTO, PHOTO]
    assert run.main([model, bad, PHOTO, "--json", "--profile"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)["results"]
    assert found[0] == {"image": bad, "error": errors[0].removeprefix("ovsw-run: error: ")}
    assert found[1]["image"] == PHOTO
    assert "layer1.0.conv1" in captured.err
    assert run.main([model, gone]) == 1


def test_run_goes_on_after_a_picture_without_memory(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classify = Engine.classify

    def sometimes(self: Engine, image: str, k: int) -> object:
        if image == "huge.png":
            raise MemoryError("huge.png: not enough memory for 9000 x 9000 pixels")
        return classify(self, image, k)

    monkeypatch.setattr(Engine, "classify", sometimes)
    assert run.main([model, "huge.png", PHOTO]) == 1
    captured = capsys.readouterr()
    assert captured.err == "ovsw-run: error: huge.png: not enough memory for 9000 x 9000 pixels\n"
    assert captured.out.startswith(PHOTO)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("x is 1"), "x is 1"),
        (UsageError("--x is 1"), "--x is 1"),
        (ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"), "torch is not installed"),
        (ModuleNotFoundError("No module named 'mine'", name="mine"), "No module named 'mine'"),
        (FileNotFoundError(2, "No such file or directory", "f.bnn"), "f.bnn: No such file or directory"),
        (RuntimeError("no threads"), "no threads"),
        (MemoryError(), "out of memory"),
        (SystemError("error return without exception set"), "error return without exception set"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SystemError is what C code without memory raises at times, in the middle of torch's imports."""

    @command("ovsw-x", "", lambda parser: None)
    def main(args: object) -> int:
        raise error

    assert main([]) == (2 if type(error) is UsageError else 1)
    assert capsys.readouterr().err == f"ovsw-x: error: {said}\n"


def test_info(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main([model]) == 0
    text = capsys.readouterr().out
    size = Path(model).stat().st_size
    for words in (f"{size:,} bytes", "10 classes: kind 0, kind 1, ... kind 9", "layer2.0.downsample.0", "512x1x1"):
        assert words in text
    assert info.main([model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == size
    assert found["input"] == [3, 32, 32]
    assert found["format"] == "1.0"
    assert found["ops"][0]["bytes"] == 64 * 147 * 4 + 64 * 16
    assert found["ops"][2] == {
        "name": "layer1.0.conv1",
        "op": "bconv",
        "input": [64, 8, 8],
        "output": [64, 8, 8],
        "window": [3, 3],
        "stride": [1, 1],
        "bits": 1,
        "bytes": 64 * 9 * 8 + 64 * 16,
        "stores": "f32+bits",
        "second": None,
        "groups": 1,
        "dilation": [1, 1],
    }


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--repeat", "1", "--save", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in ("resnet18", "resnet34"):
        assert f"{(tmp_path / f'{name}.bnn').stat().st_size / 1e6:.2f}" in text
    assert "(means nothing)" not in text
    engine = zoo.load()
    pictures = [(label, str(path)) for label, path in zoo.pictures().items()] + [("cat", PHOTO)]
    right = 0
    for truth, path in pictures:  # what it shows is what the network says, be it right or wrong
        top = engine.classify(path, 3)
        right += top[0][0] == truth
        verdict = "right" if top[0][0] == truth else "wrong"
        line = next(line for line in text.splitlines() if line.startswith(f"{Path(path).name} "))
        assert line.split() == [
            Path(path).name,
            truth,
            verdict,
            *(w for n, p in top for w in (f"{100 * p:.0f}", "%", n)),
        ]
    assert f"{right} of 11 right" in text
    assert "\x1b" not in text


def test_demo_with_a_photo_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([PHOTO, "--repeat", "1"]) == 0
    text = capsys.readouterr().out
    top = zoo.load().classify(PHOTO, 3)
    line = next(line for line in text.splitlines() if line.startswith("cat.jpg "))
    assert line.split()[1:] == [word for label, p in top for word in (f"{100 * p:.0f}", "%", label)]
    assert "verdict" not in text
    assert "wrong" not in text
    for arguments in (["--save", str(tmp_path / "missing")], ["--html", str(tmp_path / "missing" / "a.html")]):
        assert demo.main(arguments) == 2
    assert demo.main([str(tmp_path / "missing.jpg")]) == 1


@pytest.mark.parametrize("columns", [30, 80, 130])
def test_demo_in_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures beside their answers, as many as fit; no line is wider than the terminal that has room for one."""
    monkeypatch.setattr(demo, "colours", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert demo.main(["--repeat", "1"]) == 0
    shown = capsys.readouterr().out.partition("\n\n")[2].partition("Time for one image")[0]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= max(columns, 40)
    across = max(1, columns // 40)
    pictures = [*zoo.pictures().values(), Path(PHOTO)]
    names = [line for line in lines if ".png" in line or ".jpg" in line]
    assert [re.findall(r"\S+\.(?:png|jpg)", line) for line in names] == [
        [path.name for path in pictures[i : i + across]] for i in range(0, len(pictures), across)
    ]
    engine = zoo.load()
    for i, path in enumerate(pictures):
        first = lines.index(names[i // across]) + 2
        cells = [line[40 * (i % across) : 40 * (i % across + 1)] for line in lines[first : first + 3]]
        assert [cell[16:].split() for cell in cells] == [
            [f"{100 * p:.0f}", "%", label] for label, p in engine.classify(str(path), 3)
        ]
        assert cells[0][:16] == "▀" * 16


def test_demo_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "demo.html"
    assert demo.main(["--repeat", "1", "--html", str(page)]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<img") == 11
    for path in [*zoo.pictures().values(), Path(PHOTO)]:
        assert path.name in text
        for label, _ in zoo.load().classify(str(path), 3):
            assert label in text.partition(path.name)[2].partition("<img")[0]


def test_random_networks_have_the_exported_structure() -> None:
    """Made without torch, but op for op what the exporter makes of the real network."""
    pytest.importorskip("torch")
    from ovsw.export.frontend.torch_module import trace
    from ovsw.export.passes import build
    from ovsw.nn import create

    for name, arch in (("resnet18", "ResNet18_1w1a"), ("resnet34", "ResNet34_1w1a")):
        exported = build(trace(create(arch, 10).eval(), (3, 64, 64)), (0, 0, 0), (1, 1, 1), {}).model
        made = random_resnet(name, num_classes=10, size=64)
        assert made.ops == exported.ops
        assert made.values == exported.values
        assert [t.shape for t in made.tensors] == [t.shape for t in exported.tensors]
        assert [t.dtype for t in made.tensors] == [t.dtype for t in exported.tensors]


def test_random_networks_are_seeded() -> None:
    first, again, other = (bnn.to_bytes(random_resnet("resnet18", seed, 10, 32)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    logits = Engine(first).run(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8))
    assert logits.std() > 0.1
