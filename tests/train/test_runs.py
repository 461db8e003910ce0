"""Runs: what they leave, what they refuse, and that they survive being killed; pictures of them."""

from __future__ import annotations

import csv
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ovsw import Engine
from ovsw.commands import run
from ovsw.datasets import DataError, FolderSet, MemorySet, open_split
from ovsw.export.cli import main as export_main
from ovsw.networks import network
from ovsw.nn import create
from ovsw.train import augment, cli, flips, landscape, trainer
from ovsw.train.recipe import load_recipe, set_values

from support.training import arguments, assert_same, few_images, image_folder, interrupted, metrics, tiny_cifar

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_images(256, 64):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert cli.main(arguments(folder)) == 0
    return folder


def test_a_run_leaves_what_it_should(finished: Path) -> None:
    rows = metrics(finished)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert 0 < rows[2]["flip_rate"] < 0.5
    assert 0.5 < rows[2]["silent_share"] <= 1
    assert rows[0]["never_flipped"] > rows[2]["never_flipped"] > 0.5
    checkpoint = torch.load(finished / "last.pth", weights_only=True)
    assert checkpoint["arch"] == "cResNet20_1w1a"
    assert checkpoint["epoch"] == 3
    assert len(checkpoint["state_dict"]) == 157  # the reference's keys, SAD's buffers among them
    assert [len(g["params"]) for g in checkpoint["optimizer"]["param_groups"]] == [41, 20]
    assert (finished / "initial.pth").is_file()


def test_tensorboard_has_every_metric(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(trainer.METRICS[1:])
    for name in trainer.METRICS[1:]:
        shown = [e.value for e in events.Scalars(name)]
        assert shown == pytest.approx([row[name] for row in metrics(finished)], rel=1e-5)


def test_checkpoints_go_through_the_exporter(finished: Path, tmp_path: Path) -> None:
    """Trained here, exported, and the engine agrees with PyTorch (ovsw-export verifies that)."""
    file = tmp_path / "m.bnn"
    assert export_main([str(finished / "model_best.pth"), "-o", str(file), "--numerics", "float"]) == 0
    best = torch.load(finished / "model_best.pth", weights_only=True)["state_dict"]
    model = create("cResNet20_1w1a").double().eval()
    model.load_state_dict({key: value for key, value in best.items() if key in model.state_dict()})
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        expected = model(x.double()).numpy()
    off = np.abs(Engine(file).run(x.numpy()) - expected).max(axis=1)
    assert (off < 1e-4 * np.abs(expected).max()).mean() > 0.5  # in others a sign is a matter of rounding


@pytest.mark.parametrize("kind", ["cifar10", "folder"])
def test_class_names_from_the_data_to_the_answers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ovsw-train, ovsw-export and ovsw-run as README has them, on few images: answers have the names of the data."""
    classes = [f"c{i}" for i in range(10)] if kind == "cifar10" else ["bird", "cat"]
    if kind == "cifar10":
        tiny_cifar(tmp_path / "data", 4)
    else:
        image_folder(tmp_path / "data")
    settings = [f"data.kind={kind}", f"network.num_classes={len(classes)}", "data.limit=4", "data.workers=0"]
    more = ["--data", str(tmp_path / "data")]
    assert cli.main(arguments(tmp_path / "run", *more, settings=[*settings, "train.epochs=1", "train.batch=2"])) == 0
    assert export_main([str(tmp_path / "run" / "model_best.pth"), "-o", str(tmp_path / "m.bnn")]) == 0
    photo = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(photo)
    capsys.readouterr()
    assert run.main([str(tmp_path / "m.bnn"), str(photo), "--json", "--top", str(len(classes))]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert {answer["label"] for answer in found["top"]} == set(classes)


def test_a_limit_takes_the_first_images(tmp_path: Path) -> None:
    """Of either part; of a folder, which is sorted by class, some of every class; none is lost below the limit."""
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, ["data.limit=7"])
    whole = open_split("cifar10", tiny_cifar(tmp_path / "cifar"), "train")
    assert isinstance(whole, MemorySet)
    for part, count in (("train", 7), ("test", 7)):
        found = trainer.open_data(recipe, tmp_path / "cifar", part)
        assert len(found) == count
    cut = trainer.open_data(recipe, tmp_path / "cifar", "train")
    assert isinstance(cut, MemorySet)
    assert torch.equal(cut.images, whole.images[:7])
    assert torch.equal(cut.labels, whole.labels[:7])
    image_folder(tmp_path / "folder")
    set_values(recipe, ["data.kind=folder", "data.limit=4", "network.num_classes=2"])
    some = trainer.open_data(recipe, tmp_path / "folder", "train")
    assert isinstance(some, FolderSet)
    assert some.labels.tolist() == [0, 0, 1, 1]
    assert [(p.parent.name, p.stem) for p in some.paths] == [("bird", "0"), ("bird", "1"), ("cat", "0"), ("cat", "1")]
    set_values(recipe, ["data.limit=100"])
    assert len(trainer.open_data(recipe, tmp_path / "folder", "train")) == 6
    set_values(recipe, ["data.limit=-1"])
    with pytest.raises(DataError, match=r"^data\.limit is -1, expected a number of images, or 0 for all$"):
        trainer.open_data(recipe, tmp_path / "folder", "train")


def run_in_child(folder: Path, moment: str = "never", seconds: float = 0.0) -> int:
    """How a run that resumes ends: 0, or minus a signal, since it is killed on the spot so long after a moment.

    Seconds are of a CPU, not of the wall: on a busy machine it would be killed before it has done anything.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    save = trainer.replace_file

    def reach(here: str) -> None:
        if here == moment:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles its signal

    def watched(path: Path, data: bytes) -> None:
        last = path.name == "last.pth"
        reach("before a save" if last else "")
        save(path, data)
        reach("after a save" if last else "")

    try:
        trainer.replace_file = watched
        reach("at the start")
        os._exit(cli.main(arguments(folder, "--resume")))
    except BaseException:
        os._exit(99)


@pytest.mark.filterwarnings("ignore:This process")
def test_kill_at_any_moment_and_resume(finished: Path, tmp_path: Path) -> None:
    """Killed at random moments, some within a save; then the weights are those of the unbroken run."""
    rng = random.Random(0)
    folder = tmp_path / "broken"
    epochs: list[int] = []
    while True:
        moment = ("at the start", "before a save", "after a save")[len(epochs) % 3]
        code = run_in_child(folder, moment, rng.uniform(0.0005, 0.01 if moment == "before a save" else 0.1))
        if code == 0:
            break
        assert code == -signal.SIGPROF
        saved = (folder / "last.pth").exists()
        assert saved or not (folder / "metrics.csv").exists()
        epochs.append(torch.load(folder / "last.pth", weights_only=True)["epoch"] if saved else 0)
    assert len(epochs) >= 3
    assert epochs == sorted(epochs)
    assert {0, 1} <= set(epochs)
    assert run_in_child(folder) == 0
    assert_same(finished / "last.pth", folder / "last.pth")


def test_a_save_that_is_cut_short(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed or out of disk while writing the second checkpoint: the first one is intact and the run goes on."""
    folder = tmp_path / "run"
    real = trainer.replace_file
    calls = 0

    def fails(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += path.name == "last.pth"
        if path.name == "last.pth" and calls == 2:
            raise OSError(28, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(trainer, "replace_file", fails)
    assert cli.main(arguments(folder)) == 1
    assert torch.load(folder / "last.pth", weights_only=True)["epoch"] == 1
    monkeypatch.undo()
    assert cli.main(arguments(folder, "--resume")) == 0
    assert_same(finished / "last.pth", folder / "last.pth")


def test_an_image_folder_trains_and_resumes(tmp_path: Path) -> None:
    """Worker processes and random crops, the same whether in one go or in two."""
    image_folder(tmp_path / "data")
    settings = ["data.kind=folder", "network.num_classes=2", "train.batch=4", "train.warmup=1", "data.augment=imagenet"]
    settings.append("train.epochs=2")
    more = ("--data", str(tmp_path / "data"))
    assert cli.main(arguments(tmp_path / "a", *more, settings=settings)) == 0
    interrupted(arguments(tmp_path / "b", *more, settings=settings))
    assert cli.main(arguments(tmp_path / "b", "--resume", *more, settings=settings)) == 0
    assert_same(tmp_path / "a" / "last.pth", tmp_path / "b" / "last.pth")


def test_a_finished_folder_is_not_overwritten(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(finished)) == 1
    assert "--resume continues it" in capsys.readouterr().err
    assert cli.main(arguments(finished, "--resume", "--set", "train.lr=0.2")) == 1
    assert "train.lr 0.05 -> 0.2" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert "table1-cresnet20" in text
    assert "87.7 % top-1" in text


# Looking at runs


def test_flips_of_a_run(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flips.main([str(finished), "-o", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    with (tmp_path / "flips.csv").open() as f:
        rows = list(csv.reader(f))[1:]
    assert len(rows) == 18
    first, last = (torch.load(finished / n, weights_only=True) for n in ("initial.pth", "last.pth"))
    for name, size, never, changed in rows:
        start, end = (c["state_dict"][f"{name}.weight"] for c in (first, last))
        ever = last["ovsw"]["flip_history"][f"{name}.weight"]
        assert int(size) == start.numel()
        assert float(changed) == pytest.approx(100 * float((start.sign() != end.sign()).float().mean()), abs=0.006)
        assert float(never) == pytest.approx(100 * float((~ever).float().mean()), abs=0.006)
        # what never flipped has its first sign; the last optimiser step comes after the last look
        moved = (start.sign() != end.sign()) & ~ever
        assert moved.float().mean() < 0.05
        assert name in text
    for picture in ("flips.png", "flips_epochs.png"):
        with Image.open(tmp_path / picture) as image:
            assert min(image.size) > 300
            assert len(set(image.convert("L").resize((64, 64)).getdata())) > 10


def test_flips_of_two_runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column each, on the same axes, with shares of its own; epochs are whole numbers."""
    other = tmp_path / "vanilla"
    shutil.copytree(finished, other)
    changed = torch.load(other / "last.pth", weights_only=True)
    for ever in changed["ovsw"]["flip_history"].values():
        ever[:] = True
    torch.save(changed, other / "last.pth")
    figures: list[Any] = []
    monkeypatch.setattr(flips, "save", lambda figure, _: figures.append(figure))
    assert flips.main([str(finished), str(other), "-o", str(tmp_path)]) == 0
    drawn, epochs = figures
    rows = [drawn.axes[i : i + 2] for i in range(0, len(drawn.axes), 2)]
    assert len(rows) == 3
    for name, (left, right) in zip(("layer1.2.conv2", "layer2.2.conv2", "layer3.2.conv2"), rows):
        assert [a.get_title() for a in (left, right)] == [f"{run}: {name}.weight" for run in ("whole", "vanilla")]
        assert left.get_ylim() == right.get_ylim()
        shares = [a.get_legend().get_texts()[1].get_text() for a in (left, right)]
        assert shares[1] == "never flipped: 0.00 %" != shares[0]
    with (tmp_path / "flips.csv").open() as f:
        assert [row[:2] for row in csv.reader(f)][1::18] == [["whole", "layer1.0.conv1"], ["vanilla", "layer1.0.conv1"]]
    epochs.canvas.draw()
    assert all(float(tick).is_integer() for tick in epochs.axes[0].get_xticks())
    shutil.copytree(finished, tmp_path / "again" / "whole")
    assert flips.main([str(finished), str(tmp_path / "again" / "whole")]) == 1


def test_flips_between_checkpoints(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flips.main([str(finished / "initial.pth"), str(finished / "last.pth")]) == 0
    assert "layer3.2.conv2.weight" in capsys.readouterr().out
    assert {share for _, _, share in flips.compare(finished / "last.pth", finished / "last.pth")} == {0.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "nowhere: no such file"),
        (["RUN/last.pth"], "two at a time"),
        (["RUN/last.pth", "RUN/metrics.csv"], "metrics.csv: not a PyTorch checkpoint"),
        (["RUN", "--layers", "conv9"], "no binary layer 'conv9'"),
        (["RUN", "-o", "RUN/missing"], "does not exist"),
    ],
)
def test_flips_refuses(given: list[str], words: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flips.main([g.replace("RUN", str(finished)) for g in given]) == (2 if "two at" in words else 1)
    assert words in capsys.readouterr().err


def test_landscape(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ovsw.util.progress.FIRST", 0.0)
    out = tmp_path / "loss.png"
    small = ["--grid", "3", "--images", "32", "-o", str(out)]
    assert landscape.main([str(finished / "last.pth"), *small]) == 0
    assert "ovsw-landscape: points 1 of 9, " in capsys.readouterr().err
    with out.with_suffix(".csv").open() as f:
        rows = {(float(a), float(b)): float(loss) for a, b, loss in list(csv.reader(f))[1:]}
    assert len(rows) == 9
    model = create("cResNet20_1w1a").eval()
    state = torch.load(finished / "last.pth", weights_only=True)["state_dict"]
    model.load_state_dict({k: v for k, v in state.items() if not k.endswith(("weight_prev", "tracker"))})
    split = open_split("synthetic", None, "test")
    assert isinstance(split, MemorySet)
    spec = network("cResNet20").input
    with torch.no_grad():
        logits = model(augment.normalise(split.images[:32], spec.mean, spec.std))
    assert rows[0.0, 0.0] == pytest.approx(float(nn.functional.cross_entropy(logits, split.labels[:32])), abs=1e-5)
    assert out.stat().st_size > 10_000
    assert landscape.main([str(finished / "metrics.csv"), *small]) == 1
    assert landscape.main([str(finished / "last.pth"), "-o", str(tmp_path / "missing" / "x.png")]) == 1


def test_a_surface_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go along the first direction, columns along the second; the network is left as it was."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    given = [{name: torch.randn_like(p) for name, p in start.items()} for _ in (1, 2)]
    left = iter(given)
    monkeypatch.setattr(landscape, "direction", lambda model, generator: next(left))
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1])
    found = landscape.surface(model, x, y, 3, 0.5)
    for (i, a), (j, b) in itertools.product(enumerate((-0.5, 0.0, 0.5)), repeat=2):
        w, bias = (start[k] + a * given[0][k] + b * given[1][k] for k in ("weight", "bias"))
        logits = x @ w.T + bias
        loss = (logits.exp().sum(1).log() - logits[torch.arange(5), y]).sum() / 5
        assert found[i, j] == pytest.approx(loss.item())
    assert all(torch.equal(p, start[name]) for name, p in model.named_parameters())


def test_directions_are_filter_normalised() -> None:
    model = create("cResNet20_1w1a")
    found = landscape.direction(model, torch.Generator().manual_seed(0))
    weight, step = model.get_submodule("layer2.0.conv1").weight, found["layer2.0.conv1.weight"]
    torch.testing.assert_close(step.flatten(1).norm(dim=1), weight.detach().flatten(1).norm(dim=1))  # type: ignore[operator]
    assert not found["bn1.bias"].any()


def test_torch_sleeps_when_idle(tmp_path: Path) -> None:
    """OpenMP is told before torch loads it; spinning threads would take the cores from the training kernels."""
    program = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch loads with", os.environ.get("OMP_WAIT_POLICY"))
sys.meta_path.insert(0, Watch())
from ovsw.__main__ import train
sys.exit(train(sys.argv[1:]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", program, "table1-cresnet20", "--data", "missing", "-o", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.stdout.splitlines() == ["torch loads with passive"], ended.stderr


def test_a_run_that_ended_while_torch_was_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def locked(folder: Path) -> Iterator[None]:
        (folder / "last.pth").write_bytes(b"of another process")
        yield

    monkeypatch.setattr(cli, "locked_folder", locked)
    assert cli.main(arguments(tmp_path / "run")) == 1
    assert "contains a run already; --resume continues it" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["last.pth"]


def test_one_process_trains_in_a_folder(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.main(arguments(folder, "--resume")) == 1
    finally:
        os.close(held)
    assert capsys.readouterr().err == f"ovsw-train: error: {folder}: another process is writing to this folder\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert cli.main(arguments(folder, "--resume")) == 0
