"""The training side around the method: recipes, data, augmentation, optimisers, and runs that survive kill -9."""

from __future__ import annotations

import csv
import gzip
import os
import pickle
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from ovsw import Engine
from ovsw.export.cli import main as export_main
from ovsw.nn import create, network
from ovsw.train import augment, cli, flips, landscape, trainer
from ovsw.train.data import DataError, FolderSet, MemorySet, open_split
from ovsw.train.optim import LARS, learning_rate, make_optimizer
from ovsw.train.recipe import TrainConfig, load_recipe, recipes, set_values

from conftest import shared

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# Recipes


def test_every_recipe_loads_and_builds() -> None:
    found = recipes()
    names = [r.name for r in found]
    assert len(names) == len(set(names)) >= 60
    for recipe in found:
        assert recipe.title
        assert recipe.notes
        with torch.device("meta"):
            create(recipe.network.name, recipe.network.num_classes)


def test_recipes_say_what_the_released_code_does() -> None:
    cifar = load_recipe("table1-cresnet20")
    assert (cifar.train.epochs, cifar.train.batch, cifar.train.weight_decay) == (600, 256, 5e-4)
    assert (cifar.ovsw.lam, cifar.ovsw.gamma, cifar.ovsw.sigma, cifar.ovsw.momentum) == (0.04, 9e-4, 1e-4, 0.999)
    assert (cifar.network.learned_scale, cifar.network.sign_zero, cifar.train.decay_dims) == (False, 0, 1)
    imagenet = load_recipe("table2-resnet18")
    assert (imagenet.train.epochs, imagenet.train.batch, imagenet.train.weight_decay) == (200, 512, 1e-4)
    assert (imagenet.ovsw.lam, imagenet.ovsw.gamma, imagenet.train.decay_dims) == (0.01, 2e-5, 2)
    vanilla = load_recipe("table3-cifar100/vanilla")
    assert (vanilla.ovsw.ags, vanilla.ovsw.sad, vanilla.train.epochs) == (False, False, 120)
    assert "65.23" in vanilla.paper


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epoch=3", "did you mean 'epochs'"),
        ("trian.epochs=3", "did you mean 'train'"),
        ("train.epochs=many", "expected int"),
        ("train=3", "section.key=value"),
        ("train.epochs", "section.key=value"),
        ("ovsw.ags=1", "expected bool"),
    ],
)
def test_refused_settings(assignment: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        set_values(load_recipe("table1-cresnet20"), [assignment])


def test_settings(tmp_path: Path) -> None:
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, ["train.epochs=3", "train.lr=1", "ovsw.ags=false", "data.kind=synthetic", "train.seeds=[1, 2]"])
    assert (recipe.train.epochs, recipe.train.lr, recipe.ovsw.ags) == (3, 1.0, False)
    assert (recipe.data.kind, recipe.train.seeds) == ("synthetic", [1, 2])
    for name, words in (("table1-resnet20", "table1-cresnet20"), ("table3-cifar100/agz", "'ags'")):
        with pytest.raises(ValueError, match=words):
            load_recipe(name)
    (tmp_path / "mine.toml").write_text('title = "mine"\n[train]\nlr = 0.5\n')
    assert load_recipe(str(tmp_path / "mine.toml")).train.lr == 0.5
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ValueError, match=r"bad\.toml: not a recipe"):
        load_recipe(str(tmp_path / "bad.toml"))


# Schedule and optimisers


def test_learning_rate() -> None:
    config = TrainConfig()
    rates = [learning_rate(config, epoch) for epoch in range(600)]
    assert rates[:6] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.10001])
    assert rates[-1] == pytest.approx(1.07e-5, rel=0.01)
    assert all(a > b for a, b in zip(rates[5:], rates[6:]))


def test_parameter_groups() -> None:
    model = create("cResNet20_1w1a", learned_scale=True)
    for dims, vectors in ((1, 5e-4), (2, 0.0)):
        groups = make_optimizer(model, TrainConfig(decay_dims=dims)).param_groups
        assert [g["weight_decay"] for g in groups] == [vectors, 5e-4]
        assert all(p.ndim == 1 for p in groups[0]["params"])
        assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="known are sgd, adam, lars"):
        make_optimizer(model, TrainConfig(optimizer="bop"))


def test_lars_by_hand() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4))
    bias = nn.Parameter(torch.zeros(3))
    lars = LARS([weight, bias], lr=0.1, momentum=0.9, weight_decay=0.01, eta=0.02)
    w, b = weight.detach().numpy().copy(), bias.detach().numpy().copy()
    velocity = [np.zeros_like(w), np.zeros_like(b)]
    for _ in range(3):
        weight.grad, bias.grad = torch.randn(3, 4), torch.randn(3)
        g, h = weight.grad.numpy(), bias.grad.numpy()
        scale = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.01 * np.linalg.norm(w))
        velocity = [0.9 * velocity[0] + g + 0.01 * w, 0.9 * velocity[1] + h + 0.01 * b]
        w, b = w - 0.1 * scale * velocity[0], b - 0.1 * velocity[1]
        lars.step()
        np.testing.assert_allclose(weight.detach().numpy(), w, rtol=1e-5)
        np.testing.assert_allclose(bias.detach().numpy(), b, rtol=1e-5)


# Augmentation


def numbered(n: int = 64, size: int = 8) -> Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_random_crop_is_a_shift_with_zeros() -> None:
    images = numbered()
    cropped = augment.random_crop(images, 2, generator())
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    shifts = set()
    for before, after in zip(padded, cropped.numpy()):
        found = [(y, x) for y in range(5) for x in range(5) if np.array_equal(before[:, y : y + 8, x : x + 8], after)]
        assert len(found) == 1
        shifts.add(found[0])
    assert len(shifts) > 15


def test_random_flip() -> None:
    images = numbered()
    flipped = augment.random_flip(images, generator())
    mirrored = [torch.equal(b.flip(2), a) for b, a in zip(images, flipped)]
    kept = [torch.equal(b, a) for b, a in zip(images, flipped)]
    assert all(m != k for m, k in zip(mirrored, kept))
    assert 16 < sum(mirrored) < 48


def test_crop_boxes() -> None:
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(500):
        top, left, h, w = augment.crop_box(60, 80, (0.08, 1.25), rng)
        assert 0 <= top <= 60 - h
        assert 0 <= left <= 80 - w
        assert 0.70 < w / h < 1.40
        areas.append(h * w / 4800)
    assert min(areas) < 0.12
    assert max(areas) > 0.9


def test_random_resized_crop_of_a_gradient() -> None:
    """On a picture that is linear in x and y the crop is again linear, with slopes of the box."""
    ramp = (torch.arange(64)[None, :] * 2 + torch.arange(64)[:, None]).to(torch.uint8)
    images = ramp.expand(8, 3, 64, 64)
    out = augment.random_resized_crop(images, 32, (0.2, 0.8), generator()).float()
    dx, dy = out[:, :, 8:24, 9:25] - out[:, :, 8:24, 8:24], out[:, :, 9:25, 8:24] - out[:, :, 8:24, 8:24]
    assert out.shape == (8, 3, 32, 32)
    assert torch.all((dx.mean(dim=(1, 2, 3)) > 1.4) & (dx.mean(dim=(1, 2, 3)) < 4.1))
    assert torch.all(dx.var(dim=(1, 2, 3)) < 0.6)
    assert torch.all(dy.mean(dim=(1, 2, 3)) > 0.6)


def test_lighting_and_normalise() -> None:
    images = torch.rand(4, 3, 2, 2, generator=generator())
    lit = augment.lighting(images, 0.1, generator(3)) - images
    alpha = 0.1 * torch.randn(4, 3, generator=generator(3)).double().numpy()
    for i in range(4):
        shift = sum(alpha[i, k] * augment.EIGENVALUES[k] * np.array(augment.EIGENVECTORS[k]) for k in range(3))
        np.testing.assert_allclose(lit[i, :, 0, 0], shift, atol=1e-6)
    x = numbered(2)
    mean, std = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
    expected = (x.numpy().astype(np.float64) / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(augment.normalise(x, mean, std), expected, atol=1e-6)


def test_policies() -> None:
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    for policy in ("none", "cifar", "imagenet"):
        out = augment.apply(numbered(4), policy, mean, std, generator(), 8)
        assert out.shape == (4, 3, 8, 8)
        again = augment.apply(numbered(4), policy, mean, std, generator(), 8)
        assert torch.equal(out, again)
    with pytest.raises(ValueError, match="known are cifar, imagenet, none"):
        augment.apply(numbered(4), "autoaugment", mean, std, generator(), 8)


# Data


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


def image_folder(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("bird", "cat"):
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")


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


# Runs

QUICK = ["data.kind=synthetic", "train.epochs=3", "train.batch=64", "train.lr=0.05", "train.warmup=1"]


def arguments(folder: Path, *more: str, settings: list[str] | None = None) -> list[str]:
    changes = [part for s in (settings or QUICK) for part in ("--set", s)]
    return ["table1-cresnet20", "-o", str(folder), "--quiet", *changes, *more]


def weights(path: Path) -> dict[str, Tensor]:
    loaded = torch.load(path, weights_only=True)
    return {
        **loaded["state_dict"],
        **{f"opt.{k}": v["momentum_buffer"] for k, v in loaded["optimizer"]["state"].items()},
    }


def assert_same(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    different = [k for k in first if not torch.equal(first[k], second[k])]
    assert different == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert cli.main(arguments(folder)) == 0
    return folder


def test_a_run_leaves_what_it_should(finished: Path) -> None:
    with (finished / "metrics.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert float(rows[2]["loss"]) < float(rows[0]["loss"])
    assert 0 < float(rows[2]["flip_rate"]) < 0.5
    assert 0.5 < float(rows[2]["silent_share"]) <= 1
    assert float(rows[0]["never_flipped"]) > float(rows[2]["never_flipped"]) > 0.5
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
    with (finished / "metrics.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert set(events.Tags()["scalars"]) == set(trainer.METRICS[1:])
    for name in trainer.METRICS[1:]:
        shown = [e.value for e in events.Scalars(name)]
        assert shown == pytest.approx([float(row[name]) for row in rows], rel=1e-5)


def test_checkpoints_go_through_the_exporter(finished: Path, tmp_path: Path) -> None:
    """Trained here, exported, and the engine agrees with PyTorch (ovsw-export verifies that)."""
    model = tmp_path / "m.bnn"
    assert export_main([str(finished / "model_best.pth"), "-o", str(model)]) == 0
    assert Engine(model).run(np.zeros((32, 32, 3), np.uint8)).shape == (10,)


def test_a_vanilla_run(tmp_path: Path) -> None:
    """No buffers of the method in its state dict, but flips and silence are reported, and it resumes the same."""
    vanilla = [*QUICK, "train.epochs=2", "ovsw.ags=false", "ovsw.sad=false"]
    assert cli.main(arguments(tmp_path / "a", settings=vanilla)) == 0
    checkpoint = torch.load(tmp_path / "a" / "last.pth", weights_only=True)
    assert len(checkpoint["state_dict"]) == 121
    with (tmp_path / "a" / "metrics.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert 0.9 < float(rows[1]["silent_share"]) <= 1


def forked(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        except BaseException:
            os._exit(99)
    return child


@pytest.mark.filterwarnings("ignore:This process")
def test_kill_at_any_moment_and_resume(finished: Path, tmp_path: Path) -> None:
    """Ten times kill -9, at random moments, some within a save; then the weights are those of the unbroken run."""
    rng = random.Random(0)
    folder = tmp_path / "broken"
    kills = 0
    while kills < 10:
        child = forked(lambda: cli.main(arguments(folder, "--resume")))
        time.sleep(rng.uniform(0.05, 1.2))
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        assert (folder / "last.pth").exists() or not (folder / "metrics.csv").exists()
    child = forked(lambda: cli.main(arguments(folder, "--resume")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kills >= 3
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
    assert cli.main(arguments(folder)) == 2
    assert torch.load(folder / "last.pth", weights_only=True)["epoch"] == 1
    monkeypatch.undo()
    assert cli.main(arguments(folder, "--resume")) == 0
    assert_same(finished / "last.pth", folder / "last.pth")


def test_an_image_folder_trains_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes and random crops, the same whether in one go or in two."""
    image_folder(tmp_path / "data")
    settings = ["data.kind=folder", "network.num_classes=2", "train.batch=4", "train.warmup=1", "data.augment=imagenet"]
    settings.append("train.epochs=2")
    more = ("--data", str(tmp_path / "data"))
    assert cli.main(arguments(tmp_path / "a", *more, settings=settings)) == 0
    real, calls = trainer.replace_file, []

    def stops(path: Path, data: bytes) -> None:
        if path.name == "last.pth" and calls:
            raise KeyboardInterrupt
        calls.extend([path] if path.name == "last.pth" else [])
        real(path, data)

    monkeypatch.setattr(trainer, "replace_file", stops)
    assert cli.main(arguments(tmp_path / "b", *more, settings=settings)) == 130
    monkeypatch.undo()
    assert cli.main(arguments(tmp_path / "b", "--resume", *more, settings=settings)) == 0
    assert_same(tmp_path / "a" / "last.pth", tmp_path / "b" / "last.pth")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "train.epoch=1"), "did you mean 'epochs'"),
        (("--set", "data.kind=cifar10"), "--data"),
        (("--set", "data.kind=cifar10", "--data", "/nowhere"), "/nowhere does not exist"),
        (("--set", "network.name=AlexNet"), "AlexNet"),
        (("--set", "train.optimizer=bop"), "bop"),
        (("--amp",), "--amp needs a GPU"),
    ],
)
def test_refused_runs(more: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(tmp_path / "run", *more)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_finished_folder_is_not_overwritten(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(finished)) == 2
    assert "--resume goes on" in capsys.readouterr().err
    assert cli.main(arguments(finished, "--resume", "--set", "train.lr=0.2")) == 2
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


def test_flips_between_checkpoints(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flips.main([str(finished / "initial.pth"), str(finished / "last.pth")]) == 0
    assert "layer3.2.conv2.weight" in capsys.readouterr().out
    assert {share for _, _, share in flips.compare(finished / "last.pth", finished / "last.pth")} == {0.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "nowhere: no such file"),
        (["RUN/last.pth"], "two at a time"),
        (["RUN/last.pth", "RUN/metrics.csv"], "metrics.csv: not a checkpoint"),
        (["RUN", "--layers", "conv9"], "no binary layer 'conv9'"),
        (["RUN", "-o", "RUN/missing"], "does not exist"),
    ],
)
def test_flips_refuses(given: list[str], words: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flips.main([g.replace("RUN", str(finished)) for g in given]) == 2
    assert words in capsys.readouterr().err


def test_landscape(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "loss.png"
    small = ["--grid", "3", "--images", "32", "-o", str(out)]
    assert landscape.main([str(finished / "last.pth"), *small]) == 0
    with out.with_suffix(".csv").open() as f:
        rows = {(float(a), float(b)): float(loss) for a, b, loss in list(csv.reader(f))[1:]}
    assert len(rows) == 9
    model = create("cResNet20_1w1a").eval()
    state = torch.load(finished / "last.pth", weights_only=True)["state_dict"]
    model.load_state_dict({k: v for k, v in state.items() if not k.endswith(("weight_prev", "tracker"))})
    split = open_split("synthetic", None, "test")
    assert isinstance(split, MemorySet)
    spec = network("cResNet20")
    with torch.no_grad():
        logits = model(augment.normalise(split.images[:32], spec.mean, spec.std))
    assert rows[0.0, 0.0] == pytest.approx(float(nn.functional.cross_entropy(logits, split.labels[:32])), abs=1e-5)
    assert out.stat().st_size > 10_000
    assert landscape.main([str(finished / "metrics.csv"), *small]) == 2
    assert landscape.main([str(finished / "last.pth"), "-o", str(tmp_path / "missing" / "x.png")]) == 2


def test_directions_are_filter_normalised() -> None:
    model = create("cResNet20_1w1a")
    found = landscape.direction(model, torch.Generator().manual_seed(0))
    weight, step = model.get_submodule("layer2.0.conv1").weight, found["layer2.0.conv1.weight"]
    torch.testing.assert_close(step.flatten(1).norm(dim=1), weight.detach().flatten(1).norm(dim=1))  # type: ignore[operator]
    assert not found["bn1.bias"].any()
