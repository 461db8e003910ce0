"""tools/zoo.py: what it measures and writes, what it refuses, and that nothing is lost when it does."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ovsw import Engine, zoo
from ovsw.commands.zoo import card
from ovsw.export import ExportOptions, export
from ovsw.export.accuracy import Accuracy
from ovsw.labels import load_labels
from ovsw.networks import network
from ovsw.nn import create
from ovsw.train import cli

from support import ROOT
from support.training import QUICK, arguments, few_images

pytestmark = pytest.mark.usefixtures("one_torch_thread")
LABELS = load_labels("cifar10", 10)


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_tool", ROOT / "tools" / "zoo.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@dataclass
class Place:
    """A tree with an empty zoo; a run of two epochs, its file, and 40 labelled images."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def zoo(self) -> Path:
        return self.path / "tree" / "python" / "ovsw" / "data" / "zoo"

    def add(self, *more: str, name: str = "a-net", model: str = "m.bnn", run: str = "run", tree: str = "tree") -> int:
        images = ["--images", str(self.path / "images")]
        given = [name, str(self.path / model), str(self.path / run), *images, "--tree", str(self.path / tree)]
        self.capsys.readouterr()
        return int(tool.main([*given, *more]))

    def contents(self) -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted((self.path / "tree").rglob("*")) if p.is_file()}

    def refuses(self, words: str, *more: str, **given: str) -> None:
        before = self.contents()
        assert self.add(*more, **given) == 1
        error = self.capsys.readouterr().err
        assert error.startswith("tools/zoo.py: error: ")
        assert words in error
        assert len(error.splitlines()) == 1
        assert self.contents() == before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoo")
    settings = [s for s in QUICK if "epochs" not in s]
    with few_images(96, 32):
        assert cli.main(arguments(path / "run", settings=[*settings, "train.epochs=2"])) == 0
    export(path / "run" / "model_best.pth", path / "m.bnn", ExportOptions(labels="cifar10"))
    rng = np.random.default_rng(0)
    for label in LABELS:
        (path / "images" / label).mkdir(parents=True)
        for i in range(4):
            coarse = rng.integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(path / "images" / label / f"{i}.png")
    for folder in (path / "tree" / "python" / "ovsw" / "data" / "zoo", path / "tree" / "docs"):
        folder.mkdir(parents=True)
    return path


@pytest.fixture
def place(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    shutil.copytree(made, tmp_path / "place")
    return Place(tmp_path / "place", capsys)


def right_answers(place: Place) -> tuple[int, int]:
    """Of the engine and of the network in PyTorch, counted one by one."""
    spec = network("cResNet20").input
    model = create("cResNet20_1w1a").eval()
    state = torch.load(place.path / "run" / "model_best.pth", weights_only=True)["state_dict"]
    model.load_state_dict({k: v for k, v in state.items() if not k.endswith(("weight_prev", "tracker"))})
    engine, engine_right, torch_right = Engine(place.path / "m.bnn"), 0, 0
    for label in LABELS:
        for path in (place.path / "images" / label).iterdir():
            engine_right += engine.classify(str(path), 1)[0][0] == label
            with Image.open(path) as image:
                x = torch.from_numpy(spec.normalised(np.asarray(image)[None]))
            with torch.no_grad():
                torch_right += LABELS[int(model(x).argmax())] == label
    return engine_right, torch_right


def change_run(place: Place, deployed_epochs: int, accuracy: float, epoch: int = 2) -> None:
    for name in ("model_best.pth", "last.pth"):
        path = place.path / "run" / name
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        checkpoint["ovsw"]["recipe"]["train"]["deployed_epochs"] = deployed_epochs
        torch.save({**checkpoint, "curr_acc1": accuracy, "epoch": epoch}, path)


def test_add(place: Place) -> None:
    assert place.add() == 0
    assert "a-net, right on" in place.capsys.readouterr().out
    (entry,) = zoo.read_index(place.zoo).values()
    right, right_pytorch = right_answers(place)
    assert (entry.images, entry.right, entry.right_pytorch) == (40, right, right_pytorch)
    assert (place.zoo / entry.file).read_bytes() == (place.path / "m.bnn").read_bytes()
    assert entry.classes == tuple(LABELS)
    assert entry.recipe == "table1-cresnet20"
    assert set(QUICK) - {"train.epochs=3"} >= {s.replace('"', "") for s in entry.settings if "epochs" not in s}
    assert {'data.kind="synthetic"', "train.epochs=2", "train.batch=32"} <= set(entry.settings)
    notes = place.path / "tree" / "docs" / "zoo" / "a-net"
    assert (notes / "metrics.csv").read_bytes() == (place.path / "run" / "metrics.csv").read_bytes()
    config = json.loads((notes / "config.json").read_text())
    saved = torch.load(place.path / "run" / "model_best.pth", weights_only=True)
    assert config["recipe"] == saved["ovsw"]["recipe"]
    assert config["epoch"] == saved["epoch"] == entry.epoch
    assert config["sha256"] == entry.sha256
    assert (notes / "card.md").read_text() == card(entry)
    compact = torch.load(place.zoo / "a-net.pth", weights_only=True)["state_dict"]
    for name, weight in saved["state_dict"].items():
        if name in compact and compact[name].dtype == torch.bfloat16:
            torch.testing.assert_close(compact[name].float(), weight, rtol=2**-8, atol=0)
            assert torch.equal(compact[name] >= 0, weight >= 0)
        elif name in compact:
            assert torch.equal(compact[name], weight)
    assert sum(weight.dtype == torch.bfloat16 for weight in compact.values()) == 18


def test_earlier_runs(place: Place) -> None:
    """Runs that the last one continues: their settings in the index, their metrics in docs."""
    settings = ["train.epochs=2", "train.lr=0.5"]
    saved = torch.load(place.path / "run" / "last.pth", weights_only=True)
    for name in ("one", "two"):
        shutil.copytree(place.path / "run", place.path / name)
    saved["ovsw"]["recipe"]["train"]["lr"] = 0.5
    torch.save(saved, place.path / "two" / "last.pth")
    assert place.add("--before", str(place.path / "one"), str(place.path / "two")) == 0
    (entry,) = zoo.read_index(place.zoo).values()
    assert [step.epochs for step in entry.before] == [2, 2]
    assert [set(settings) <= set(step.settings) for step in entry.before] == [False, True]
    assert {step.accuracy for step in entry.before} == {saved["curr_acc1"]}
    notes = place.path / "tree" / "docs" / "zoo" / "a-net"
    assert (notes / "before-2.csv").read_bytes() == (place.path / "two" / "metrics.csv").read_bytes()
    assert (notes / "card.md").read_text().count("ovsw-train ") == 3
    assert place.add("--force") == 0  # trained in one go
    assert not list(notes.glob("before-*"))
    place.refuses("nowhere", "--force", "--before", str(place.path / "nowhere"))


def test_everything_again(place: Place) -> None:
    """Without a name: measured and written once more, to the same bytes but for the latency."""
    assert place.add() == 0
    before = place.contents()
    (entry,) = zoo.read_index(place.zoo).values()
    index, shown = place.zoo / zoo.INDEX, place.path / "tree" / "docs" / "zoo" / "a-net" / "card.md"
    wrong = dataclasses.replace(entry, logits="0" * 64, ms=0.0, right_by_class=(0,) * 10)
    index.write_bytes(zoo.index_bytes({"a-net": wrong}))
    shown.write_text("old")
    again = ["--images", str(place.path / "images"), "--tree", str(place.path / "tree")]
    assert tool.main(again) == 0
    (found,) = zoo.read_index(place.zoo).values()
    assert dataclasses.replace(found, ms=entry.ms) == entry
    assert shown.read_text() == card(found)
    assert place.contents().keys() == before.keys()
    index.write_bytes(zoo.index_bytes({"a-net": dataclasses.replace(entry, right=entry.right + 1)}))
    assert tool.main(again) == 1
    assert f"a-net: has {entry.right} of 40 images in" in place.capsys.readouterr().err


def test_the_tutorial_has_the_demos_answers(place: Place) -> None:
    tutorial = place.path / "tree" / "docs" / "tutorial.md"
    tutorial.write_text("Before.\nNo marks.\n")
    place.refuses("tutorial.md: has no <!-- the demo's answers", name=zoo.DEFAULT)
    tutorial.write_text(f"Before.\n{tool.ANSWERS[0]}\nold\n{tool.ANSWERS[1]}\nAfter.\n")
    assert place.add(name=zoo.DEFAULT) == 0
    text, engine = tutorial.read_text(), Engine(place.path / "m.bnn")
    assert text.startswith("Before.\n<!--")
    assert text.endswith("-->\nAfter.\n")
    assert "old" not in text
    assert f"\n{zoo.read_index(place.zoo)[zoo.DEFAULT].about}\n" in text
    for truth, path in zoo.pictures().items():
        answer = engine.classify(str(path), 1)[0][0]
        line = next(line for line in text.splitlines() if line.startswith(path.name))
        assert line.split()[1:3] == [truth, "right" if answer == truth else "wrong"]
        assert line.split()[5] == answer


def test_both_counts_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They rarely differ on so few images."""
    assert right_answers(place)[0] != 10
    monkeypatch.setattr(tool, "measure", lambda *_: Accuracy(40, pytorch=0.25, exported=0.5, agreement=0.6))
    assert place.add() == 0
    (entry,) = zoo.read_index(place.zoo).values()
    assert (entry.right, entry.right_pytorch) == (right_answers(place)[0], 10)


def test_replace(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file takes the name; the old one goes, and others stay."""
    assert place.add() == 0
    assert place.add(name="b-net") == 0
    before = zoo.read_index(place.zoo)
    options = ExportOptions(labels="cifar10", weights="int8", force=True)
    export(place.path / "run" / "model_best.pth", place.path / "m.bnn", options)
    place.refuses("a-net: is in the zoo already; --force replaces it")
    assert place.add("--force", "--title", "Another one") == 0
    after = zoo.read_index(place.zoo)
    assert after["b-net"] == before["b-net"]
    assert after["a-net"].title == "Another one"
    assert after["a-net"].sha256 != before["a-net"].sha256
    assert {p.name for p in place.zoo.glob("*.bnn")} == {entry.file for entry in after.values()}
    monkeypatch.setattr(zoo, "FOLDER", place.zoo)
    assert zoo.check("a-net")


def test_killed_before_the_index_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index still means the old file, which is still there."""
    assert place.add() == 0
    export(
        place.path / "run" / "model_best.pth",
        place.path / "m.bnn",
        ExportOptions(labels="cifar10", weights="int8", force=True),
    )
    real = tool.replace_file

    def killed(path: Path, data: bytes) -> None:
        if path.name == zoo.INDEX:
            raise OSError(28, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(tool, "replace_file", killed)
    assert place.add("--force") == 1
    monkeypatch.setattr(zoo, "FOLDER", place.zoo)
    assert zoo.check("a-net")
    monkeypatch.setattr(tool, "replace_file", real)
    assert place.add("--force") == 0
    assert len(list(place.zoo.glob("*.bnn"))) == 1


def test_runs_in_the_deployed_arithmetic(place: Place) -> None:
    """What the trainer counted in PyTorch must be what the engine counts."""
    right, _ = right_answers(place)
    change_run(place, 1, 100 * (right + 1) / 40)
    place.refuses(f"of 40 images PyTorch had {right + 1} right and the engine has {right}")
    change_run(place, 1, 100 * right / 40)
    assert place.add() == 0
    (entry,) = zoo.read_index(place.zoo).values()
    assert (entry.deployed_epochs, entry.right, entry.right_pytorch) == (1, right, right)
    change_run(place, 1, 100 * (right + 1) / 40, epoch=1)  # the first of the two was not
    assert place.add("--force") == 0


def test_refused(place: Place) -> None:
    checkpoint = place.path / "run" / "model_best.pth"
    place.refuses("the name 'A net'", name="A net")
    place.refuses("elsewhere: not a source tree of ovsw", tree="elsewhere")
    place.refuses("nothing.bnn: No such file", model="nothing.bnn")

    for name, options, words in (
        ("float.bnn", ExportOptions(labels="cifar10", numerics="float"), "is a float file"),
        ("unnamed.bnn", ExportOptions(labels="none"), "has no class names"),
    ):
        export(checkpoint, place.path / name, options)
        place.refuses(words, model=name)
    place.refuses("nowhere/model_best.pth: no such file", run="nowhere")
    (place.path / "large.bnn").write_bytes(bytes(80_001))
    place.refuses("large.bnn: has 80,001 bytes, a network of the zoo at most 80,000", model="large.bnn")
    (place.path / "images" / "airplane").rename(place.path / "images" / "zeppelin")
    place.refuses("its classes are automobile")


def test_a_file_of_another_run_is_refused(place: Place) -> None:
    """One weight with another sign is enough."""
    path = place.path / "run" / "model_best.pth"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["state_dict"]["layer2.1.conv2.weight"][3, 5, 1, 2] *= -1
    torch.save(checkpoint, path)
    place.refuses("m.bnn: was not exported from")
    (place.path / "run" / "metrics.csv").unlink()
    place.refuses("metrics.csv: No such file")
