"""ReActNet's two steps with a teacher: the distilled runs, their export and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw import Engine
from ovsw.datasets import FolderSet, MemorySet
from ovsw.export.cli import main as export_main
from ovsw.nn import binary_layers, float_network, native
from ovsw.train import OvSW, augment, cli, trainer
from ovsw.train.recipe import load_recipe, set_values

from support import oracle, shared
from support.react import R20, REACT18, TOLERANCE, float_logits, randomised, state_of
from support.training import assert_same, few_images, interrupted, metrics

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CLASSES = 4
TINY = [
    *("data.kind=synthetic", "data.augment=cifar", "network.name=cResNet20_1w1a", f"network.num_classes={CLASSES}"),
    *("train.teacher=resnet18", "train.epochs=2", "train.batch=32", "train.warmup=0"),
]


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_images(48, 16):
        yield


def arguments(variant: str, folder: Path, *more: object) -> list[str]:
    changes = [part for setting in TINY for part in ("--set", setting)]
    return [f"table2-resnet18-two-step{variant}", "-o", str(folder), "--quiet", *changes, *map(str, more)]


def save_teacher(path: Path, seed: int, classes: int = CLASSES) -> Path:
    torch.manual_seed(seed)
    model = float_network("resnet18", classes)
    randomised(model)
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-step")


@pytest.fixture(scope="module")
def teacher(folder: Path) -> Path:
    return save_teacher(folder / "teacher.pth", 0)


@pytest.fixture(scope="module")
def first(folder: Path, teacher: Path) -> Path:
    assert cli.main(arguments("/step1", folder / "first", "--teacher", teacher)) == 0
    return folder / "first"


@pytest.fixture(scope="module")
def second(folder: Path, teacher: Path, first: Path) -> Path:
    assert cli.main(arguments("", folder / "second", "--teacher", teacher, "--init", first / "last.pth")) == 0
    return folder / "second"


def checkpoint(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, weights_only=True))


def doubled(run: trainer.TrainingRun) -> trainer.TrainingRun:
    """The same run in float64: in float32 another order of additions turns signs over, and the loss with them."""
    assert run.teacher is not None
    for model in (run.model, run.teacher):
        model.double().register_forward_pre_hook(lambda _, given: (given[0].double(),))
    config = run.recipe.ovsw
    run.ovsw = OvSW(run.model, config.lam, config.gamma if config.sad else 0.0, ags=config.ags)
    return run


def test_the_loss_is_the_teachers_cross_entropy(teacher: Path, tmp_path: Path) -> None:
    """Mean over the batch of -sum softmax(teacher) * log_softmax(student), student in training, teacher not."""
    recipe = load_recipe("table2-resnet18-two-step/step1")
    set_values(recipe, [*TINY, "train.epochs=1", "train.batch=48", "data.augment=none"])
    run = doubled(trainer.start(recipe, tmp_path, 1, teacher=teacher))
    trainer.train(run, None, quiet=True)
    split = trainer.open_data(recipe, None, "train")
    assert isinstance(split, MemorySet)
    x = augment.normalise(split.images, *oracle.CIFAR).double()
    student = trainer.build_model(recipe).double().train()
    student.load_state_dict(checkpoint(tmp_path / "initial.pth")["state_dict"])
    state = {k: v.double() for k, v in checkpoint(teacher).items()}
    with torch.no_grad():
        s, t = student(x), float_logits(state, x, (2, 2, 2, 2))
    assert t.std(0).min() > 0.05  # soft labels that differ from image to image
    soft = t.exp() / t.exp().sum(1, keepdim=True)
    expected = -(soft * (s - s.exp().sum(1, keepdim=True).log())).sum() / len(x)
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(expected.item(), abs=1e-9)
    assert run.teacher is not None
    assert all(torch.equal(v, state[k]) for k, v in run.teacher.state_dict().items())


def test_labels_do_not_matter(first: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trainer.open_split

    def wrong(kind: str, root: Path | None, split: str, **options: Any) -> MemorySet | FolderSet:
        found = real(kind, root, split, **options)
        found.labels = (found.labels + 1) % CLASSES if split == "train" else found.labels
        return found

    monkeypatch.setattr(trainer, "open_split", wrong)
    more = ("--teacher", teacher, "--set", "train.label_smoothing=0.1")
    assert cli.main(arguments("/step1", tmp_path, *more)) == 0
    assert_same(first / "last.pth", tmp_path / "last.pth")
    for mine, theirs in zip(metrics(first), metrics(tmp_path)):
        assert mine["loss"] == theirs["loss"]
        assert mine["train_acc1"] != theirs["train_acc1"]


def test_the_second_step_starts_where_the_first_ended(first: Path, second: Path) -> None:
    begin, end = (checkpoint(first / name)["state_dict"] for name in ("initial.pth", "last.pth"))
    start, after = (checkpoint(second / name)["state_dict"] for name in ("initial.pth", "last.pth"))
    assert len(end) == 121
    assert all(torch.equal(start[key], value) for key, value in end.items())
    changed = [k for k in end if not torch.equal(begin[k], end[k]) and not torch.equal(start[k], after[k])]
    assert changed == list(end)
    previous = [key for key in start if key.endswith(".weight_prev")]
    assert len(previous) == 18
    assert all(torch.equal(start[key], start[key.replace("weight_prev", "weight")]) for key in previous)
    assert not any(start[key.replace("weight_prev", "tracker")].any() for key in previous)


def test_the_first_step_has_real_weights(first: Path, second: Path) -> None:
    """A layer of its network convolves signs with the weights as they are, also in evaluation."""
    state = checkpoint(first / "last.pth")["state_dict"]
    recipe = load_recipe("table2-resnet18-two-step/step1")
    set_values(recipe, TINY)
    model = trainer.build_model(recipe).double().eval()
    model.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    inputs: list[Tensor] = []
    layer = model.get_submodule("layer2.0.conv1")
    layer.register_forward_hook(lambda _, given, out: inputs.extend([given[0], out]))
    with torch.no_grad():
        model(x)
    expected = F.conv2d(torch.sign(inputs[0]), state["layer2.0.conv1.weight"].double(), stride=2, padding=1)
    torch.testing.assert_close(inputs[1], expected, atol=1e-10, rtol=0)
    assert checkpoint(first / "last.pth")["ovsw"]["recipe"]["network"]["binary_weights"] is False
    assert checkpoint(second / "last.pth")["ovsw"]["recipe"]["network"]["binary_weights"] is True


@pytest.mark.parametrize("form", ["bare", "module", "old", "learned"])
def test_forms_of_a_start(form: str, first: Path, teacher: Path, tmp_path: Path) -> None:
    """A bare state dict, one with `module.`, one of an old torch without num_batches_tracked; and a scale to be
    learned, which starts at mean |w| of those weights.
    """
    state = checkpoint(first / "last.pth")["state_dict"]
    if form == "old":
        state = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save({f"module.{k}": v for k, v in state.items()} if form == "module" else state, tmp_path / "init.pth")
    recipe = load_recipe("table2-resnet18-two-step")
    set_values(recipe, [*TINY, f"network.learned_scale={str(form == 'learned').lower()}"])
    run = trainer.start(recipe, tmp_path, 0, teacher=teacher, init=tmp_path / "init.pth")
    found = run.model.state_dict()
    assert all(torch.equal(found[k], v) for k, v in state.items())
    scales = [layer.scaling_factor for layer in binary_layers(run.model).values()]
    if form == "learned":
        trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
        for name, scale in zip(binary_layers(run.model), scales):
            assert scale is not None
            torch.testing.assert_close(scale.detach(), state[f"{name}.weight"].abs().mean((1, 2, 3)))
            assert id(scale) in trained
    else:
        assert scales == [None] * 18


@pytest.mark.parametrize("variant", ["", "/adam"])
def test_a_distilled_second_step_resumes_the_same(
    variant: str, first: Path, second: Path, teacher: Path, tmp_path: Path
) -> None:
    given = ("--teacher", teacher, "--init", first / "last.pth")
    whole = second if not variant else tmp_path / "whole"
    if variant:
        assert cli.main(arguments(variant, whole, *given)) == 0
    broken = tmp_path / "broken"
    interrupted(arguments(variant, broken, *given))
    assert checkpoint(broken / "last.pth")["epoch"] == 1
    assert cli.main(arguments(variant, broken, "--teacher", teacher, "--resume")) == 0
    assert_same(whole / "last.pth", broken / "last.pth")
    assert [row["loss"] for row in metrics(whole)] == [row["loss"] for row in metrics(broken)]


@pytest.mark.slow
def test_channels_last(first: Path, teacher: Path, tmp_path: Path) -> None:
    """The same losses as without, and the same weights whether in one go or in two."""
    losses = []
    for setting in ("true", "false"):
        recipe = load_recipe("table2-resnet18-two-step")
        set_values(recipe, [*TINY, "train.epochs=1", f"train.channels_last={setting}"])
        run = doubled(trainer.start(recipe, tmp_path, 0, teacher=teacher, init=first / "last.pth"))
        trainer.train(run, None, quiet=True)
        losses.append(metrics(tmp_path)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    given = ("--teacher", teacher, "--init", first / "last.pth")
    whole, broken, setting = tmp_path / "whole", tmp_path / "broken", ("--set", "train.channels_last=true")
    assert cli.main(arguments("", whole, *given, *setting)) == 0
    interrupted(arguments("", broken, *given, *setting))
    assert cli.main(arguments("", broken, "--teacher", teacher, *setting, "--resume")) == 0
    assert_same(whole / "last.pth", broken / "last.pth")
    weight = checkpoint(whole / "last.pth")["state_dict"]["layer1.0.conv1.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_compiled(first: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, saved under their own names. The graph is captured but not turned into C++, for time."""
    real, compiled = torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda m: compiled.append(m) or real(m, backend="eager"))
    more = ("--teacher", teacher, "--init", first / "last.pth", "--set", "train.epochs=1")
    for name in ("usual", "compiled"):
        setting = f"train.compile={'true' if name == 'compiled' else 'false'}"
        with native.using(None):  # which torch.compile cannot see into
            assert cli.main(arguments("", tmp_path / name, *more, "--set", setting)) == 0
    assert len(compiled) == 1
    assert_same(tmp_path / "usual" / "last.pth", tmp_path / "compiled" / "last.pth")


# Export


def export(path: Path, model: Path, *options: str) -> Engine:
    assert export_main([str(path), "-o", str(model), "--numerics", "float", *options]) == 0
    return Engine(model)


def assert_runs(engine: Engine, arch: str, state: oracle.State, size: int) -> None:
    images = oracle.pick_images(arch, state, np.random.default_rng(7), 2, 8, size)
    x = oracle.prepare(arch, images)
    expected = oracle.logits(arch, state, x)
    assert expected.std(axis=0).max() > 100 * TOLERANCE  # not constants, which any network would give
    assert np.abs(engine.run(x) - expected).max() < TOLERANCE
    assert np.abs(engine.run(images) - expected).max() < TOLERANCE


@pytest.mark.parametrize(
    ("arch", "size", "options"),
    [(REACT18, 64, {}), ("ReActResNet34_1w1a", 32, {"learned": True, "negative_alpha": True})],
)
def test_exported_networks(
    arch: str, size: int, options: dict[str, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint as ReActNet saves it, through the exporter and the engine, against the oracle."""
    state = state_of(arch, size, **options)
    prefixed = {f"module.{k}": v for k, v in state.items()}
    saved = {"epoch": 127, "state_dict": prefixed, "best_top1_acc": torch.tensor(65.9), "optimizer": {"state": {}}}
    torch.save(saved, tmp_path / "c.pth")
    engine = export(tmp_path / "c.pth", tmp_path / "m.bnn", "--input-size", str(size), "--verify", "1")
    (tmp_path / "c.pth").unlink()  # up to 90 MB, which pytest would keep
    assert capsys.readouterr().out.startswith(f"{arch}: 10 classes, input {size}x{size}, ")
    assert_runs(engine, arch, state, size)


def test_golden(tmp_path: Path) -> None:
    """What ReActNet's own code computed: first the oracle, which judges all else, then the engine."""
    saved, io = oracle.golden(shared("golden", "ReActNet_birealnet18_step2.npz"))
    state = {k[len("module.") :]: v for k, v in saved["state_dict"].items()}
    x = oracle.prepare(REACT18, io["x_u8"], io["mean"], io["std"])
    assert np.abs(oracle.logits(REACT18, state, x[:1]) - io["logits64"][:1]).max() < 1e-11
    assert np.abs(oracle.min_margin(REACT18, state, x[:1]) - io["min_margin"][:1]).max() < 1e-11
    torch.save(saved, tmp_path / "c.pth")
    engine = export(tmp_path / "c.pth", tmp_path / "m.bnn", "--verify", "1")
    (tmp_path / "c.pth").unlink()
    assert np.abs(engine.run(x) - io["logits64"]).max() < TOLERANCE


def test_steps_through_the_exporter(
    first: Path, second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is refused: its tensors are those of a binary network, but they are not meant so."""
    assert export_main([str(first / "last.pth"), "-o", str(tmp_path / "m.bnn")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ovsw-export: error: {first / 'last.pth'}: its weights are real, it is the first of two")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "m.bnn").exists()
    state = checkpoint(second / "last.pth")["state_dict"]
    assert_runs(export(second / "last.pth", tmp_path / "m.bnn"), R20, state, 32)


# Refusals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--init INIT", "the recipe distils from resnet18: --teacher FILE gives"),
        ("--init INIT --teacher TEACHER --set train.teacher=", "the recipe has no teacher"),
        ("--teacher TEACHER", "--init FILE gives the checkpoint of the first"),
        ("--teacher TEACHER --resume", "--init FILE gives the checkpoint of the first"),
        ("--teacher TEACHER --init nowhere.pth", "nowhere.pth: no such file"),
        ("--teacher TEACHER --init TEACHER", "teacher.pth: does not fit the network"),
        ("--teacher TEACHER --init INIT --set network.num_classes=5", "last.pth: does not fit the network"),
        ("--init INIT --teacher nowhere.pth", "nowhere.pth: no such file"),
        ("--init INIT --teacher DAMAGED", "damaged.pth: not a PyTorch checkpoint"),
        ("--init INIT --teacher OTHER", "other.pth: does not fit the network: 2 of 122 tensors"),
        ("--init INIT --teacher OTHER", "the first is fc.weight (4, 512)"),
        ("--init INIT --teacher INIT", "last.pth: does not fit the network"),
        ("--init INIT --teacher TEACHER --set train.teacher=resnet50", "unknown network 'resnet50'"),
        (
            "--init INIT --teacher TEACHER --set train.schedule=step",
            "train.schedule is 'step'; known are cosine, linear",
        ),
    ],
)
def test_refused_runs(
    given: str, words: str, folder: Path, first: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, damaged = folder / "other.pth", folder / "damaged.pth"
    if not other.exists():
        save_teacher(other, 1, CLASSES + 1)
        damaged.write_bytes(teacher.read_bytes()[:100_000])
    files = {"TEACHER": teacher, "INIT": first / "last.pth", "OTHER": other, "DAMAGED": damaged}
    more = [str(files.get(word, word)) for word in given.split()]
    assert cli.main(arguments("", tmp_path / "run", *more)) == (2 if words.startswith(("the recipe", "--init")) else 1)
    error = capsys.readouterr().err
    assert error.startswith("ovsw-train: error: ")
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run" / "last.pth").exists()


def test_another_teacher_is_refused(
    second: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a resume; the same weights under another name are the same teacher."""
    other = save_teacher(tmp_path / "other.pth", 1)
    before = (second / "last.pth").stat().st_mtime_ns
    assert cli.main(arguments("", second, "--teacher", other, "--resume")) == 1
    error = capsys.readouterr().err
    assert f"{second / 'last.pth'}: was trained with another teacher" in error
    assert len(error.splitlines()) == 1
    other.write_bytes(teacher.read_bytes())
    assert cli.main(arguments("", second, "--teacher", other, "--resume")) == 0
    assert (second / "last.pth").stat().st_mtime_ns == before
