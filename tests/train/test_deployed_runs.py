"""Runs whose last epochs compute as the exported file: what they leave, resuming them, exporting them, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ovsw import Engine
from ovsw import format as bnn
from ovsw.datasets import open_split
from ovsw.export.cli import main as export_main
from ovsw.networks import network
from ovsw.nn import create
from ovsw.train import Deployed, augment, cli, trainer

from support.training import QUICK, arguments, assert_same, few_images, interrupted, metrics

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BATCHES, TEST = 2, 32
# So slow that two batches, after which statistics are far off yet, can be gone on from.
SETTINGS = [*QUICK, "train.lr=0.002", "train.deployed_epochs=2", "train.deployed_weights=int8"]


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_images(32 * BATCHES, TEST):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "whole"
    assert cli.main(arguments(folder, settings=SETTINGS)) == 0
    return folder


def engine_of(checkpoint: Path, output: Path, *options: str) -> Engine:
    assert export_main([str(checkpoint), "-o", str(output), *options]) == 0
    return Engine(output)


def real_weights(file: Path) -> dict[str, str]:
    """The element kinds of real convolutions' and classifiers' weights."""
    model = bnn.read(file)
    return {op.name: model.tensors[op.weight or 0].dtype for op in model.ops if op.kind in ("conv", "linear")}


def test_what_a_run_leaves(finished: Path) -> None:
    assert [row["deployed"] for row in metrics(finished)] == [0, 1, 1]
    last = torch.load(finished / "last.pth", weights_only=True)
    assert len(last["state_dict"]) == 157  # the reference's keys
    assert last["ovsw"]["deployed"] == {"weights": "int8", "stem": "int8"}
    assert torch.load(finished / "initial.pth", weights_only=True)["ovsw"]["deployed"] == {}
    counts = {int(v) for k, v in last["state_dict"].items() if k.endswith("num_batches_tracked")}
    assert counts == {BATCHES}  # statistics stand still from the second epoch on
    best = torch.load(finished / "model_best.pth", weights_only=True)
    accuracies = [row["test_acc1"] for row in metrics(finished)[1:]]
    assert best["epoch"] == 2 + accuracies.index(max(accuracies))
    assert best["curr_acc1"] == max(accuracies)


def weights_of(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / f"{name}.pth", weights_only=True)["state_dict"]


def test_binary_weights_keep_their_signs(tmp_path: Path) -> None:
    """Unless they are told to change; all else is trained either way."""
    changed = {}
    for signs in ("false", "true"):
        settings = [*SETTINGS, "train.epochs=2", "train.lr=0.02", f"train.deployed_signs={signs}"]
        assert cli.main(arguments(tmp_path / signs, settings=settings)) == 0
        assert metrics(tmp_path / signs)[0]["deployed"] == metrics(tmp_path / signs)[1]["deployed"] == 1
        before, after = weights_of(tmp_path / signs, "initial"), weights_of(tmp_path / signs, "last")
        binary = [name for name in before if ".conv" in name and name.endswith(".weight")]
        changed[signs] = sum(int(((before[n] >= 0) != (after[n] >= 0)).sum()) for n in binary)
        assert not torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert changed["false"] == 0 < changed["true"]


def test_statistics_are_those_of_the_last_weights(tmp_path: Path) -> None:
    """Batch norms are frozen with the mean over all batches of an epoch, not with what the last steps left."""
    settings = [*SETTINGS, "train.epochs=1", "train.deployed_epochs=1", "train.lr=1e-9", "data.augment=none"]
    assert cli.main(arguments(tmp_path / "run", settings=settings)) == 0
    weights = weights_of(tmp_path / "run", "last")
    images = open_split("synthetic", None, "train").images[: 32 * BATCHES]
    spec = network("cResNet20").input
    x = augment.normalise(images, spec.mean, spec.std)
    maps = torch.nn.functional.conv2d(x, weights["conv1.weight"], padding=1)
    torch.testing.assert_close(weights["bn1.running_mean"], maps.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_the_best_is_a_deployed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What epochs before have measured is another function, be it better."""
    accuracies = iter([90.0, 30.0, 20.0])
    monkeypatch.setattr(trainer, "evaluate", lambda *_: {"test_acc1": next(accuracies), "test_acc5": 99.0})
    assert cli.main(arguments(tmp_path / "a", settings=SETTINGS)) == 0
    best = torch.load(tmp_path / "a" / "model_best.pth", weights_only=True)
    assert (best["epoch"], best["best_acc1"]) == (2, 30.0)
    assert torch.load(tmp_path / "a" / "last.pth", weights_only=True)["best_acc1"] == 30.0


def test_a_plain_export_gives_the_bits(finished: Path, tmp_path: Path) -> None:
    """Accuracy as the run has measured it, every logit as PyTorch has it."""
    engine = engine_of(finished / "last.pth", tmp_path / "m.bnn")
    assert real_weights(tmp_path / "m.bnn") == {"conv1": "i8", "linear": "i8"}
    split = open_split("synthetic", None, "test")
    images, labels = split.images[:TEST], split.labels[:TEST]
    logits = engine.run(np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy()))
    answers = torch.from_numpy(logits).topk(1, dim=1).indices[:, 0]
    assert 100 * int((answers == labels).sum()) / TEST == metrics(finished)[-1]["test_acc1"]

    model = create("cResNet20", 10).eval()
    state = torch.load(finished / "last.pth", weights_only=True)["state_dict"]
    model.load_state_dict({k: v for k, v in state.items() if k in model.state_dict()})
    spec = engine.input
    x = augment.normalise(images, spec.mean, spec.std)
    with torch.no_grad():
        np.testing.assert_array_equal(Deployed(model, spec, weights="int8")(x).numpy(), logits)


def test_explicit_widths_win(finished: Path, tmp_path: Path) -> None:
    engine_of(finished / "last.pth", tmp_path / "wide.bnn", "--weights", "int16")
    assert real_weights(tmp_path / "wide.bnn") == {"conv1": "i16", "linear": "i16"}
    engine_of(finished / "last.pth", tmp_path / "stem.bnn", "--stem", "int16")
    assert real_weights(tmp_path / "stem.bnn") == {"conv1": "i16", "linear": "i8"}
    engine_of(finished / "initial.pth", tmp_path / "initial.bnn")
    assert real_weights(tmp_path / "initial.bnn") == {"conv1": "i16", "linear": "i16"}
    engine_of(finished / "last.pth", tmp_path / "float.bnn", "--numerics", "float")
    assert real_weights(tmp_path / "float.bnn") == {"conv1": "f32", "linear": "f32"}


def test_widths_that_mean_nothing(finished: Path, tmp_path: Path) -> None:
    """A checkpoint may say anything."""
    checkpoint = torch.load(finished / "last.pth", weights_only=True)
    for said in ({"weights": "int4", "stem": ["int8"]}, "int8", None):
        checkpoint["ovsw"]["deployed"] = said
        torch.save(checkpoint, tmp_path / "c.pth")
        engine_of(tmp_path / "c.pth", tmp_path / "m.bnn", "--force")
        assert real_weights(tmp_path / "m.bnn") == {"conv1": "i16", "linear": "i16"}


@pytest.mark.parametrize("epochs", [1, 2])
def test_resuming(finished: Path, epochs: int, tmp_path: Path) -> None:
    """Stopped before the deployed epochs and among them; the weights are those of the unbroken run."""
    interrupted(arguments(tmp_path / "a", settings=SETTINGS), epochs)
    assert len(metrics(tmp_path / "a")) == epochs
    assert cli.main(arguments(tmp_path / "a", "--resume", settings=SETTINGS)) == 0
    for name in ("last.pth", "model_best.pth"):
        assert_same(finished / name, tmp_path / "a" / name)
    same = ("loss", "test_acc1", "deployed")
    assert [[row[k] for k in same] for row in metrics(finished)] == [
        [row[k] for k in same] for row in metrics(tmp_path / "a")
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.deployed_epochs=4"], "train.deployed_epochs is 4, expected 0 to 3, the number of epochs"),
        (["train.deployed_epochs=-1"], "train.deployed_epochs is -1, expected 0 to 3, the number of epochs"),
        (["train.deployed_weights=int4"], "train.deployed_weights is 'int4'; known are int16, int8"),
        (["train.deployed_stem=int32"], "train.deployed_stem is 'int32'; known are int16, int8"),
        (["train.deployed_epochs=0", "train.deployed_stem=x"], "train.deployed_stem is 'x'; known are int16, int8"),
        (["train.compile=true"], "train.deployed_epochs is 2, which cannot be combined with train.compile"),
        (["train.sync_bn=true"], "train.deployed_epochs is 2, which cannot be combined with train.sync_bn"),
        (
            ["network.binary_weights=false"],
            "layer1.0.conv1: its weights are real: binary_weights is False (and 17",
        ),
    ],
)
def test_refusals(settings: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first epoch, in one line."""
    assert cli.main(arguments(tmp_path / "a", settings=[*SETTINGS, *settings])) == (
        2 if words.startswith("train.") else 1
    )
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_several_processes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(arguments(tmp_path / "a", settings=SETTINGS)) == 2
    assert "train.deployed_epochs is 2, which cannot be combined with torchrun" in capsys.readouterr().err


def test_a_rate_that_is_too_high(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that no integer holds: the layer is named, what was saved stays."""
    assert cli.main(arguments(tmp_path / "a", settings=[*SETTINGS, "train.lr=1000"])) == 1
    error = capsys.readouterr().err
    assert "the weights no longer have an integer form in epoch 2; the last checkpoint is intact: " in error
    assert error.count("\n") == 1
    assert torch.load(tmp_path / "a" / "last.pth", weights_only=True)["epoch"] == 1
