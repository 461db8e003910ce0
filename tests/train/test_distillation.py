"""Training with a teacher of ours, live or from a cache of its outputs; images held out, and flips that alternate."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ovsw.commands.base import UsageError
from ovsw.datasets import DataError, MemorySet
from ovsw.nn import create
from ovsw.nn.float_resnet import FloatCifarResNet20
from ovsw.train import augment, trainer, views
from ovsw.train.cli import main
from ovsw.train.distributed import World
from ovsw.train.recipe import Recipe, load_recipe, set_values

from support import HANGS
from support.training import assert_same, interrupted

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL = ["data.kind=synthetic", "train.epochs=1", "train.batch=64", "train.warmup=0", "train.lr=0.02"]


def arguments(recipe: str, run: Path, *settings: str) -> list[str]:
    return [recipe, "-o", str(run), "--quiet", *(part for s in (*SMALL, *settings) for part in ("--set", s))]


@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 1.0), (0.9, 4.0), (0.0, 2.0)])
def test_the_loss(weight: float, temperature: float) -> None:
    """weight * T * H(softmax(teacher / T), softmax(logits / T)) + (1 - weight) * H(labels, softmax(logits))."""
    rng = np.random.default_rng(0)
    logits, outputs, labels = rng.normal(size=(6, 5)), 3 * rng.normal(size=(6, 5)), rng.integers(0, 5, 6)
    recipe = Recipe()
    set_values(recipe, [f"train.distil={weight}", f"train.temperature={temperature}"])
    run: Any = SimpleNamespace(recipe=recipe, teacher=lambda x: torch.from_numpy(outputs))
    found = trainer._loss(run, torch.zeros(6), torch.from_numpy(labels), torch.from_numpy(logits))

    def log_softmax(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    targets = np.exp(log_softmax(outputs / temperature))
    soft = -(targets * log_softmax(logits / temperature)).sum(axis=1).mean() * temperature
    hard = -log_softmax(logits)[np.arange(6), labels].mean()
    assert float(found) == pytest.approx(weight * soft + (1 - weight) * hard)


def test_a_float_network_teaches_a_binary_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A float run, which has no flips to report, and then a binary one with its weights."""
    assert main(arguments("teacher-cresnet20", tmp_path / "teacher")) == 0
    teacher = tmp_path / "teacher" / "last.pth"
    binary = arguments("table1-cresnet20", tmp_path / "student", "train.teacher=float_cResNet20", "train.distil=0.9")
    assert main([*binary, "--teacher", str(teacher)]) == 0
    weights = torch.load(teacher, weights_only=True)["state_dict"]
    assert weights.keys() == create("float_cResNet20").state_dict().keys()
    capsys.readouterr()
    wrong = arguments("table1-cresnet20", tmp_path / "wrong", "train.teacher=cResNet20")
    assert main([*wrong, "--teacher", str(teacher)]) == 1
    assert "does not fit the network" in capsys.readouterr().err


def test_settings_that_cannot_be() -> None:
    for setting, words in (
        ("train.distil=1.5", "train.distil is 1.5"),
        ("train.temperature=0", "train.temperature is 0"),
        ("train.teacher_views=164", "train.teacher_views is 164, expected 0 to 162"),
        ("train.teacher_views=15", "expected an even number: cifar-alternate mirrors half"),
        ("data.augment=imagenet", "needs data.augment cifar or cifar-alternate, not 'imagenet'"),
        ("train.teacher=", "train.teacher_views is 16, but train.teacher is empty"),
    ):
        with pytest.raises(UsageError, match=words):
            set_values(load_recipe("zoo-cresnet20"), [setting])


def numbered(count: int) -> MemorySet:
    """Images with a ramp from left to right; labels are their numbers."""
    ramp = torch.arange(32, dtype=torch.uint8).mul(4).expand(count, 3, 32, 32).clone() + 64
    return MemorySet(ramp, torch.arange(count), [str(i) for i in range(count)])


def test_images_that_are_held_out() -> None:
    data = numbered(50)
    parts = {split: trainer._without(data, 12, split).labels.tolist() for split in ("train", "test")}
    assert (len(parts["train"]), len(parts["test"])) == (38, 12)
    assert sorted(parts["train"] + parts["test"]) == list(range(50))
    assert parts["test"] != list(range(12))
    assert trainer._without(data, 12, "test").labels.tolist() == parts["test"]
    for wrong in (50, 60, -1):
        with pytest.raises(
            DataError, match=f"data.held_out is {wrong}, expected 1 to 49: there are 50 training images"
        ):
            trainer._without(data, wrong, "train")
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, ["data.kind=synthetic", "data.held_out=100"])
    train, test = (trainer.open_data(recipe, None, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (412, 100)


def test_flips_that_alternate() -> None:
    """Each image is mirrored in every second epoch, half of them in each."""
    recipe, data = load_recipe("table1-cresnet20"), numbered(40)
    set_values(recipe, ["data.augment=cifar-alternate", "train.batch=16"])
    mirrored = []
    for epoch in range(3):
        batches = list(trainer._train_batches(recipe, data, 5, epoch, World()))
        middle = torch.cat([x[:, 0, 16, 12:20] for x, _ in batches])
        numbers = torch.cat([y for _, y in batches])
        mirrored.append((middle[:, 0] > middle[:, -1])[torch.argsort(numbers)])
    assert (mirrored[0] ^ mirrored[1]).all()
    assert (mirrored[0] == mirrored[2]).all()
    assert 8 < int(mirrored[0].sum()) < 32
    with pytest.raises(ValueError, match="needs the argument `mirrored`"):
        augment.apply(data.images, "cifar-alternate", (0,) * 3, (1,) * 3, torch.Generator(), 32)


CACHED = ["data.kind=synthetic", "data.limit=96", "train.epochs=2", "train.batch=32", "train.teacher_views=6"]


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """Random weights, and batch norms that keep the outputs apart."""
    torch.manual_seed(0)
    torch.save(create("float_cResNet20").state_dict(), tmp_path / "teacher.pth")
    return tmp_path / "teacher.pth"


def cached(run: Path, teacher: Path, *settings: str) -> list[str]:
    changes = [part for s in (*CACHED, *settings) for part in ("--set", s)]
    return ["zoo-cresnet20", "-o", str(run), "--quiet", "--teacher", str(teacher), *changes]


def started(folder: Path, teacher: Path, *settings: str) -> tuple[trainer.TrainingRun, MemorySet]:
    """A run with its views, and its training images."""
    recipe = load_recipe("zoo-cresnet20")
    set_values(recipe, [*CACHED, *settings])
    run = trainer.start(recipe, folder, 46, teacher=teacher)
    images = trainer.open_data(recipe, None, "train")
    assert isinstance(images, MemorySet)
    run.views = trainer._views(run, images, folder, quiet=True)
    return run, images


@pytest.mark.parametrize(("bfloat16", "tolerance"), [(False, 1e-3), (True, 3e-2)])
def test_cached_outputs_are_those_of_the_teacher(
    bfloat16: bool, tolerance: float, tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the very images of the batches, up to the rounding."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16, raising=False)
    run, images = started(tmp_path, teacher)
    assert run.teacher is not None
    for x, _, outputs in trainer._train_batches(run.recipe, images, 46, 0, World(), run.views):
        with torch.no_grad():
            live = run.teacher(x)
        assert live.std(dim=0).min() > 1e-3
        assert (outputs - live).abs().max() < tolerance * live.abs().max()


def test_views_are_few_crops_and_flips_that_alternate(tmp_path: Path) -> None:
    """Six views of each image, three of them mirrored; the parity of the epoch says which three it is drawn from."""
    recipe = load_recipe("zoo-cresnet20")
    set_values(recipe, [*CACHED, "train.batch=40"])
    data = numbered(40)
    data.images += torch.arange(32, dtype=torch.uint8)[:, None] * 2  # every crop is another picture
    six = views.Views(views.choose_crops(40, 6), np.zeros((40, 6, 10), np.float16))
    epochs = []
    for epoch in range(24):
        ((x, y, _),) = trainer._train_batches(recipe, data, 5, epoch, World(), six)
        epochs.append(x[torch.argsort(y)])
    again = next(trainer._train_batches(recipe, data, 5, 23, World(), six))
    assert torch.equal(again[0][torch.argsort(again[1])], epochs[23])
    for image in range(40):
        mirrored = [bool(x[image, 0, 16, 12] > x[image, 0, 16, 20]) for x in epochs]
        assert mirrored == [mirrored[0], not mirrored[0]] * 12
        assert len({x[image].numpy().tobytes() for x in epochs}) in (5, 6)
    assert 8 < sum(bool(x[0, 16, 12] > x[0, 16, 20]) for x in epochs[0]) < 32


def test_a_run_with_cached_outputs_resumes_the_same(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run takes the first one's cache, is stopped after an epoch and goes on."""
    shared = ["--teacher-cache", str(tmp_path / "cache")]
    assert main([*cached(tmp_path / "whole", teacher), *shared]) == 0
    (file,) = (tmp_path / "cache").iterdir()
    assert (np.load(file).shape, np.load(file).dtype) == ((96, 6, 10), np.float16)
    monkeypatch.setattr(views, "_write_outputs", None)
    monkeypatch.setattr(FloatCifarResNet20, "forward", None)  # no longer needed
    interrupted([*cached(tmp_path / "broken", teacher), *shared])
    assert main([*cached(tmp_path / "broken", teacher), *shared, "--resume"]) == 0
    assert_same(tmp_path / "whole" / "last.pth", tmp_path / "broken" / "last.pth")


def test_a_cache_that_was_killed_goes_on(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch and a half: the batch is kept, the file is the same in the end. Other images have a file of their
    own."""
    started(tmp_path, teacher)
    (file,) = tmp_path.glob("teacher-*.npy")
    whole = file.read_bytes()
    batch = 256 // 6 * 6 * 10 * 2
    file.with_name(f"{file.name}.part").write_bytes(whole[: 128 + batch + batch // 2])
    file.unlink()
    computed = []
    real = augment.normalise
    monkeypatch.setattr(views.augment, "normalise", lambda x, *rest: (computed.append(len(x)), real(x, *rest))[1])
    started(tmp_path, teacher)
    assert sum(computed) == (96 - 256 // 6) * 6
    assert file.read_bytes() == whole
    assert [path.name for path in tmp_path.glob("teacher-*")] == [file.name]
    started(tmp_path, teacher, "data.held_out=32")
    assert len(list(tmp_path.glob("teacher-*"))) == 2


def test_another_process_is_waited_for(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process has the part, a second one waits; then it finds the file complete."""
    started(tmp_path, teacher)
    (file,) = tmp_path.glob("teacher-*.npy")
    part = file.replace(file.with_name(f"{file.name}.part"))
    flock, waits = fcntl.flock, Event()
    held = os.open(part, os.O_RDONLY)
    flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr(views.fcntl, "flock", lambda *arguments: (waits.set(), flock(*arguments)))
    monkeypatch.setattr(views, "_write_outputs", None)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(started, tmp_path, teacher)
        assert waits.wait(HANGS)
        part.replace(file)
        os.close(held)
        assert second.result()[0].views is not None


def test_a_run_does_not_wait_for_its_own_lock(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ovsw-train locks the folder of its run and then computes the teacher's outputs in that folder."""
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: flock(file, how | fcntl.LOCK_NB))  # fails instead of waiting
    assert main(cached(tmp_path / "run", teacher)) == 0
    (file,) = (tmp_path / "run").glob("teacher-*")
    assert np.load(file).shape == (96, 6, 10)


def test_a_damaged_cache_is_named(tmp_path: Path, teacher: Path) -> None:
    started(tmp_path, teacher)
    (file,) = tmp_path.glob("teacher-*.npy")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{file.name}: damaged .*; delete it"):
        started(tmp_path, teacher)
