"""`ovsw-export` and the engine together: what comes out must be what the checkpoint computes, or a clear refusal."""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import ExportError
from ovsw.export import export as export_step
from ovsw.export.cli import main
from ovsw.export.fold import fold
from ovsw.export.pack import pack
from ovsw.export.trace import trace
from ovsw.export.validate import validate
from ovsw.nn import BinaryConv2d

import oracle
from conftest import DATA, shared

TOLERANCE = 1e-4
OVSW_GOLDENS = ("ResNet18_1w1a", "cResNet18_1w1a", "cResNet20_1w1a", "cResNet20_1w1a_sfTrue", "VGGSmall_1w1a")
FOREIGN_GOLDENS = ("RBNN_resnet20_bireal_cifar10", "AdaBin_resnet18_cifar100")
R20, VGG = "cResNet20_1w1a", "VGGSmall_1w1a"


class Folder:
    """A folder with a checkpoint `c.pth`, and the command that makes `m.bnn` of it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys
        self.checkpoint, self.output = path / "c.pth", path / "m.bnn"
        self.out = self.err = ""

    def save(self, checkpoint: Any, **options: Any) -> None:
        torch.save(checkpoint, self.checkpoint, **options)

    def run(self, *options: str) -> int:
        """In float unless the options say otherwise: integers round, test_numerics.py judges those."""
        if "--numerics" not in options:
            options = (*options, "--numerics", "float")
        self.capsys.readouterr()
        try:
            code = main([str(self.checkpoint), "-o", str(self.output), *options])
        except SystemExit as e:  # argparse's own refusals
            code = int(str(e.code))
        self.out, self.err = self.capsys.readouterr()
        return code

    def export(self, checkpoint: Any, *options: str) -> Path:
        self.save(checkpoint)
        assert self.run(*options) == 0, self.err
        assert f"wrote {self.output}" in self.out or "--json" in options
        return self.output

    def engine(self, checkpoint: Any, *options: str) -> Engine:
        return Engine(self.export(checkpoint, *options))

    def contents(self) -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in self.path.rglob("*")}

    def refuses(self, *named: str, options: tuple[str, ...] = ()) -> None:
        """Exit code 2, `named` on stderr, nothing on stdout, no traceback, and every file as it was."""
        before = self.contents()
        code = self.run(*options)
        assert code == 2, (code, self.err)
        assert "ovsw-export: error: " in self.err
        assert [n for n in named if n not in self.err] == [], self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        assert self.contents() == before


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


@dataclass(frozen=True)
class Case:
    """A random checkpoint, images on which it can be judged, and the oracle's answer."""

    arch: str
    state: oracle.State
    images: np.ndarray
    x: np.ndarray
    expected: np.ndarray


def judged(arch: str, state: oracle.State, size: int | None = None, n: int = 3, tries: int = 12) -> Case:
    images = oracle.pick_images(arch, state, np.random.default_rng(7), n, tries, size)
    x = oracle.prepare(arch, images)
    expected = oracle.logits(arch, state, x)
    assert expected.std(axis=0).max() > 0.05  # not constants, which any network would give
    return Case(arch, state, images, x, expected)


@functools.cache
def state_of(arch: str, classes: int = 10, **options: Any) -> oracle.State:
    """Shared by tests: edit copies only."""
    return oracle.random_state(arch, classes, np.random.default_rng(classes), **options)


@functools.cache
def case_of(arch: str, classes: int = 10, **options: Any) -> Case:
    return judged(arch, state_of(arch, classes, **options), options.get("size"))


def edited(state: oracle.State, edits: Mapping[str, Callable[[Tensor], Any]]) -> oracle.State:
    """A copy of a state dict with some tensors changed in place."""
    changed = dict(state)
    for key, edit in edits.items():
        changed[key] = state[key].clone()
        edit(changed[key])
    return changed


def fill(value: float, *where: Any) -> Callable[[Tensor], None]:
    """Sets the elements at flat positions (all, if none are given)."""

    def edit(tensor: Tensor) -> None:
        tensor.view(-1)[list(where) if where else slice(None)] = value

    return edit


def norms(state: oracle.State) -> list[str]:
    return [k[: -len(".running_var")] for k in state if k.endswith(".running_var")]


def assert_runs(model: Path, case: Case) -> None:
    for threads in (1, 2):
        engine = Engine(model, threads=threads)
        assert engine.run(case.x).shape == case.expected.shape
        assert np.abs(engine.run(case.x) - case.expected).max() < TOLERANCE
        assert np.abs(engine.run(case.x[0]) - case.expected[0]).max() < TOLERANCE


# The goldens: what the reference implementation itself computed.


def assert_golden(model: Path, io: dict[str, np.ndarray]) -> None:
    x, expected = oracle.prepare("", io["x_u8"], io["mean"], io["std"]), io["logits64"]
    for threads in (1, 2):
        engine = Engine(model, threads=threads)
        assert np.abs(engine.run(x) - expected).max() < TOLERANCE
        assert np.abs(engine.run(x[1]) - expected[1]).max() < TOLERANCE
        assert np.abs(engine.run(io["x_u8"]) - expected).max() < TOLERANCE


def test_golden_in_the_repository(folder: Folder) -> None:
    checkpoint, io = oracle.golden(DATA / "cResNet20_1w1a_sfTrue.npz")
    model = folder.export(checkpoint)
    assert folder.out.startswith("cResNet20_1w1a: 10 classes, input 32x32, learned scales")
    assert_golden(model, io)


@pytest.mark.parametrize("name", OVSW_GOLDENS)
def test_golden(name: str, folder: Folder) -> None:
    spec = importlib.util.spec_from_file_location("expand", shared("golden", "expand.py"))
    assert spec is not None
    assert spec.loader is not None
    expand = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(expand)
    checkpoint, meta = expand.load_golden(shared("golden", f"{name}.npz"))
    with np.load(shared("golden", f"{name}.io.npz")) as io:
        arrays = dict(io)
    model = folder.export(checkpoint, "--verify", "1")
    folder.checkpoint.unlink()  # up to 180 MB, which pytest would keep
    assert folder.out.startswith(f"{meta['arch']}: {meta['num_classes']} classes")
    assert_golden(model, arrays)


@pytest.mark.parametrize("name", OVSW_GOLDENS)
def test_oracle_is_the_reference(name: str) -> None:
    """The oracle judges everything below, so it is held to far less than the tolerance."""
    local = DATA / f"{name}.npz"
    checkpoint, io = oracle.golden(local if local.exists() else shared("golden", f"{name}.npz"))
    arch = name.replace("_sfTrue", "")
    x = oracle.prepare(arch, io["x_u8"], io["mean"], io["std"])[:1]
    assert np.abs(oracle.logits(arch, checkpoint["state_dict"], x) - io["logits64"][:1]).max() < 1e-11
    assert np.abs(oracle.min_margin(arch, checkpoint["state_dict"], x) - io["min_margin"][:1]).max() < 1e-11


@pytest.mark.parametrize("name", FOREIGN_GOLDENS)
def test_other_families_are_refused(name: str, folder: Folder) -> None:
    """Some of their keys are ours with other semantics: an export would run and be wrong."""
    checkpoint, _ = oracle.golden(shared("golden", f"{name}.npz"))
    folder.save({"state_dict": checkpoint["state_dict"]})
    folder.refuses("c.pth")
    folder.checkpoint.unlink()


# Random checkpoints against the oracle.


@pytest.mark.parametrize(
    ("arch", "size", "options"),
    [
        (R20, 32, {}),
        (R20, 32, {"learned": True}),
        (R20, 32, {"learned": True, "negative_alpha": True}),
        (VGG, 32, {}),
        (VGG, 32, {"learned": True, "negative_alpha": True}),
        ("cResNet18_1w1a", 32, {"learned": True, "negative_alpha": True}),
        ("ResNet18_1w1a", 64, {}),
        ("ResNet34_1w1a", 32, {"learned": True, "negative_alpha": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_network(arch: str, size: int, options: dict[str, bool], folder: Folder) -> None:
    case = case_of(arch, 10, size=size, **options)
    assert_runs(folder.export(case.state, "--input-size", str(size), "--verify", "1"), case)
    folder.checkpoint.unlink()
    assert folder.out.startswith(f"{arch}: 10 classes, input {size}x{size}, ")
    assert ("learned scales" in folder.out) == options.get("learned", False)


@pytest.mark.parametrize("classes", [1, 2, 7, 37, 100, 1000])
def test_class_counts(classes: int, folder: Folder) -> None:
    case = case_of(R20, classes)
    assert_runs(folder.export(case.state, "--verify", "1"), case)
    engine = Engine(folder.output)
    assert engine.num_classes == classes
    assert engine.metadata["num_classes"] == classes
    assert engine.labels == []


def test_imagenet_labels_come_with_1000_classes(folder: Folder) -> None:
    options = ("--input-size", "32", "--verify", "0")
    engine = folder.engine(state_of("ResNet18_1w1a", 1000, size=32), *options)
    assert len(engine.labels) == 1000
    assert folder.engine(state_of("ResNet18_1w1a", 10, size=64), *options, "--force").labels == []


def test_vggsmall_shows_its_input_size(folder: Folder) -> None:
    case = case_of(VGG, 10, size=16)
    assert_runs(folder.export(case.state), case)
    assert Engine(folder.output).input_shape == (3, 16, 16)


# The same weights in every wrapping give the same file.


def trainer(state: oracle.State, **more: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "arch": "whatever",
        "state_dict": OrderedDict(state),
        "best_acc1": 87.5,
        "curr_acc1": "Not evaluated",
        **more,
    }


def renamed(state: oracle.State, prefix: str) -> oracle.State:
    return {prefix + key: value for key, value in state.items()}


def with_optimizer(state: oracle.State) -> dict[str, Any]:
    parameters = [nn.Parameter(v.clone()) for k, v in state.items() if k.endswith((".weight", ".bias"))]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


WRAPPINGS: dict[str, Callable[[oracle.State], Any]] = {
    "trainer": trainer,
    "model_state_dict": lambda s: {"model_state_dict": s, "epoch": 1},
    "model": lambda s: {"model": s},
    "module.": lambda s: trainer(renamed(s, "module.")),
    "_orig_mod.": lambda s: renamed(s, "_orig_mod."),
    "_orig_mod.module.": lambda s: renamed(s, "_orig_mod.module."),
    "module._orig_mod.": lambda s: renamed(s, "module._orig_mod."),
    "optimizer": lambda s: trainer(s, optimizer=with_optimizer(s)),
    "no counters": lambda s: {k: v for k, v in s.items() if not k.endswith("num_batches_tracked")},
    "buffers": lambda s: {
        **s,
        **{k.replace("weight", "weight_prev"): v * -1 for k, v in s.items() if ".conv" in k and k.endswith("weight")},
        **{k.replace("weight", "tracker"): v * 0 for k, v in s.items() if ".conv" in k and k.endswith("weight")},
    },
    "numpy scalars": lambda s: trainer(
        s, best=np.float64(1.5), n=np.int64(3), f=np.float32(2.5), i=np.int32(-1), pair=(np.float64(1), [np.int64(2)])
    ),
    "namespace": lambda s: trainer(s, args=argparse.Namespace(lr=0.1, arch="x", gpu=None, sizes=[1, 2])),
    "parameters": lambda s: {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in s.items()},
    "float64": lambda s: {k: v.double() if v.is_floating_point() else v for k, v in s.items()},
    "another order": lambda s: dict(reversed(list(s.items()))),
    "not contiguous": lambda s: {k: v.mT.contiguous().mT if v.ndim > 1 else v for k, v in s.items()},
    "scales as 4d": lambda s: {k: v.view(-1, 1, 1, 1) if k.endswith("scaling_factor") else v for k, v in s.items()},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappings(wrapping: str, folder: Folder) -> None:
    state = state_of(R20, 10, learned=True)
    plain = folder.export(state, "--verify", "0").read_bytes()
    wrapped = folder.export(WRAPPINGS[wrapping](state), "--verify", "0", "--force").read_bytes()
    assert wrapped == plain


def test_derived_and_learned_scales_make_different_files(folder: Folder) -> None:
    """Or the test above would prove little."""
    state = state_of(R20, 10, learned=True)
    plain = folder.export(state, "--verify", "0").read_bytes()
    derived = {k: v for k, v in state.items() if not k.endswith("scaling_factor")}
    assert folder.export(derived, "--verify", "0", "--force").read_bytes() != plain


def test_old_file_layout(folder: Folder) -> None:
    state = state_of(R20, 10)
    plain = folder.export(state, "--verify", "0").read_bytes()
    folder.save(trainer(state), _use_new_zipfile_serialization=False)
    assert folder.run("--verify", "0", "--force") == 0
    assert folder.output.read_bytes() == plain


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, folder: Folder) -> None:
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state_of(R20, 10, learned=True).items()}
    plus = ("--zero-weights", "plus")  # float16 makes zeros of the smallest
    assert_runs(folder.export(state, *plus), judged(R20, state))


# Values at the edge.


@pytest.mark.parametrize("arch", [R20, VGG])
@pytest.mark.parametrize("value", [0.0, 1e-8, -1e-8])
def test_tiny_norm_weights(arch: str, value: float, folder: Folder) -> None:
    state = state_of(arch, 10, learned=True, negative_alpha=True)
    state = edited(state, {f"{n}.weight": fill(value, 0, 3, 5) for n in norms(state)})
    assert_runs(folder.export(state, "--verify", "1"), judged(arch, state))
    assert folder.err == ""


@pytest.mark.parametrize(("arch", "size"), [(R20, 32), (VGG, 32), ("ResNet18_1w1a", 32)])
def test_norms_as_initialised(arch: str, size: int, folder: Folder) -> None:
    """All norms at 1e-8 with bias 0, as the ImageNet networks start: the whole stream is of that size."""
    case = case_of(arch, 10, norm_weight=1e-8, size=size)
    assert_runs(folder.export(case.state, "--input-size", str(size), "--verify", "1"), case)


@pytest.mark.parametrize("norm", ["layer1.1.bn1", "layer2.0.bn1", "layer3.2.bn2"])
def test_one_norm_as_initialised(norm: str, folder: Folder) -> None:
    """At layer2.0 half of the shortcut's channels are zero padding: the sign hangs on the tiny term alone."""
    state = edited(state_of(R20, 10), {f"{norm}.weight": fill(1e-8), f"{norm}.bias": fill(0.0)})
    assert_runs(folder.export(state), judged(R20, state))


@pytest.mark.parametrize("arch", [R20, VGG])
def test_tiny_variance(arch: str, folder: Folder) -> None:
    state = state_of(arch, 10)
    state = edited(state, {f"{n}.running_var": fill(1e-12, 1, 4) for n in norms(state) if n != "bn5"})
    assert_runs(folder.export(state, "--verify", "1"), judged(arch, state))


def test_dead_channels_count_as_plus_one(folder: Folder) -> None:
    names = ("bn0", "bn3")
    state = edited(
        state_of(VGG, 10), {f"{n}.{part}": fill(0.0, 2, 9, 10) for n in names for part in ("weight", "bias")}
    )
    assert_runs(folder.export(state, "--verify", "1"), judged(VGG, state))
    warnings = folder.err.splitlines()
    assert len(warnings) == 2
    for name, warning in zip(names, warnings):
        assert warning.startswith(f"ovsw-export: warning: {name}: 3 channels are always 0")


def test_zero_weights(folder: Folder) -> None:
    edits = {
        "layer1.0.conv1.weight": fill(0.0, *range(0, 1200, 7)),
        "layer3.2.conv2.weight": fill(-0.0, *range(100, 30000, 11)),
        "conv1.weight": fill(0.0, 3),  # real-valued: nothing special
    }
    state = edited(state_of(R20, 10), edits)
    counts = [int((state[k] == 0).sum()) for k in edits]
    folder.save(state)
    folder.refuses(
        "2 problem(s)",
        f"layer1.0.conv1: {counts[0]} of 2304 binary weights are exactly 0",
        f"layer3.2.conv2: {counts[1]} of 36864 binary weights are exactly 0",
        "--zero-weights plus",
    )
    case = judged(R20, state)
    assert_runs(folder.export(state, "--zero-weights", "plus"), case)
    minus = edited(state, {k: lambda w: w.masked_fill_(w == 0, -1e-9) for k in edits})
    assert np.abs(oracle.logits(R20, minus, case.x) - case.expected).max() > 0.1  # so it can be told


def test_zero_weight_in_a_real_layer(folder: Folder) -> None:
    state = edited(state_of(R20, 10), {"conv1.weight": fill(0.0, 3, 5), "linear.weight": fill(0.0, 0)})
    assert_runs(folder.export(state), judged(R20, state))


# Options.


@pytest.mark.parametrize("form", ["words", "commas", "both"])
def test_mean_and_std(form: str, folder: Folder) -> None:
    mean, std = (0.1, 0.55, 0.9), (0.5, 0.3, 0.21)
    state = state_of(R20, 10)

    def written(v: tuple[float, ...]) -> list[str]:
        forms = {"words": [*map(str, v)], "commas": [",".join(map(str, v))], "both": [f"{v[0]},", f"{v[1]}, {v[2]}"]}
        return forms[form]

    engine = folder.engine(state, "--mean", *written(mean), "--std", *written(std), "--verify", "0")
    images = oracle.pick_images(R20, state, np.random.default_rng(3), 3, 12, mean=mean, std=std)
    x = oracle.prepare(R20, images, mean, std)
    expected = oracle.logits(R20, state, x)
    assert np.abs(engine.run(images) - expected).max() < TOLERANCE
    assert np.abs(engine.run(x) - expected).max() < TOLERANCE
    usual = oracle.logits(R20, state, oracle.prepare(R20, images))
    assert np.abs(usual - expected).max() > 0.1


def test_pixels_are_normalised_as_usual(folder: Folder) -> None:
    for case in (case_of(R20, 10), case_of("ResNet18_1w1a", 10, size=64)):
        size = str(case.images.shape[1])
        engine = folder.engine(case.state, "--input-size", size, "--verify", "0", "--force")
        assert np.abs(engine.run(case.images) - case.expected).max() < TOLERANCE


def test_labels_file(folder: Folder) -> None:
    names = [f"class {c} é" for c in "abcdefghij"]
    labels = folder.path / "labels.txt"
    labels.write_text("\r\n".join(names) + "\r\n\r\n", encoding="utf-8")
    engine = folder.engine(state_of(R20, 10), "--labels", str(labels), "--verify", "0")
    assert engine.labels == names
    assert {label for label, _ in engine.classify(case_of(R20, 10).x[0], 10)} == set(names)


def test_builtin_labels(folder: Folder) -> None:
    engine = folder.engine(state_of(R20, 10), "--labels", "cifar10", "--verify", "0")
    assert engine.labels[:2] == ["airplane", "automobile"]


def test_input_size(folder: Folder) -> None:
    case = case_of(R20, 10, size=20)
    assert_runs(folder.export(case.state, "--input-size", "20"), case)
    engine = Engine(folder.output)
    assert engine.input_shape == (3, 20, 20)
    assert engine.metadata["preprocess"] == {"resize": 20, "crop": 20}


@pytest.mark.parametrize("name", ["cResNet20_1w1a", "cresnet20", "CRESNET20_1W1A"])
def test_arch_by_name(name: str, folder: Folder) -> None:
    assert folder.engine(state_of(R20, 10), "--arch", name, "--verify", "0").metadata["arch"] == R20


@pytest.mark.parametrize("count", [0, 1, 6])
def test_verify(count: int, folder: Folder) -> None:
    folder.export(state_of(R20, 10), "--verify", str(count), "--json")
    check = json.loads(folder.out)["verification"]
    assert check is None if count == 0 else check["images"] == count
    folder.export(state_of(R20, 10), "--verify", str(count), "--force")
    assert ("not verified" in folder.out) == (count == 0)


@pytest.mark.parametrize(("arch", "parameters", "binary"), [(R20, 269_850, 18), (VGG, 4_660_618, 5)])
def test_json(arch: str, parameters: int, binary: int, folder: Folder) -> None:
    model = bnn.read(folder.export(state_of(arch, 10, learned=True), "--json", "--verify", "1"))
    report = json.loads(folder.out)
    assert report["arch"] == arch
    assert report["num_classes"] == 10
    assert report["learned_scale"] is True
    assert report["output"] == str(folder.output)
    assert report["bytes"] == folder.output.stat().st_size
    assert report["parameters"] == parameters
    assert report["fp32_bytes"] == 4 * parameters
    assert report["warnings"] == []
    assert report["verification"]["max_error"] < TOLERANCE
    assert [layer["name"] for layer in report["layers"]] == [op.name for op in model.ops]
    assert sum(layer["bits"] == 1 for layer in report["layers"]) == binary
    constants = sum(tensor.array.nbytes for tensor in model.tensors)
    assert sum(layer["bytes"] for layer in report["layers"]) == constants - 2 * 3 * 4  # mean and std
    for layer in report["layers"]:
        if layer["bits"] == 1:
            (cin, _, _), (cout, _, _) = layer["input"], layer["output"]
            assert layer["bytes"] >= cout * 9 * -(-cin // 64) * 8


def test_force(folder: Folder) -> None:
    folder.output.write_bytes(b"precious")
    folder.save(state_of(R20, 10))
    folder.refuses("m.bnn: exists already; --force")
    assert folder.output.read_bytes() == b"precious"
    assert folder.run("--force", "--verify", "0") == 0
    assert Engine(folder.output).num_classes == 10
    assert sorted(p.name for p in folder.path.iterdir()) == ["c.pth", "m.bnn"]


def test_force_keeps_the_old_file_if_the_export_fails(folder: Folder) -> None:
    folder.output.write_bytes(b"precious")
    folder.save(edited(state_of(R20, 10), {"conv1.weight": fill(float("nan"), 0)}))
    folder.refuses("conv1", options=("--force",))
    assert folder.output.read_bytes() == b"precious"


def test_a_wrong_export_is_not_written(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> bnn.Model:
        model = pack(*args)
        scale = model.tensors[model.ops[5].scale or 0]
        scale.array = -scale.array
        return model

    monkeypatch.setattr(sys.modules[export_step.__module__], "pack", wrong)
    folder.save(state_of(R20, 10))
    before = folder.contents()
    assert folder.run() == 1
    assert "differs from PyTorch" in folder.err
    assert "nothing was written" in folder.err
    assert folder.contents() == before


# Nonsense.


class _Bomb:
    """What a hostile pickle holds: loading it runs a command."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.target}",))


def test_missing_file(folder: Folder) -> None:
    folder.refuses("c.pth: no such file")


def test_folder_as_checkpoint(folder: Folder) -> None:
    folder.checkpoint.mkdir()
    folder.refuses("c.pth: not a file")


@pytest.mark.parametrize("content", ["empty", "jpeg", "text", "zeros", "bnn", "numpy"])
def test_not_a_checkpoint(content: str, folder: Folder) -> None:
    if content == "bnn":
        data = folder.export(state_of(R20, 10), "--verify", "0").read_bytes()
        folder.output.unlink()
    else:
        jpeg = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xdb" + bytes(range(200))
        known = {"empty": b"", "jpeg": jpeg, "text": b"hello world\n", "zeros": bytes(1000)}
        data = known[content] if content in known else (DATA / "cResNet20_1w1a_sfTrue.npz").read_bytes()
    folder.checkpoint.write_bytes(data)
    folder.refuses("c.pth")


def test_truncated(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    data = folder.checkpoint.read_bytes()
    for length in (1, 50, 1000, len(data) // 2, len(data) - 1000, len(data) - 1):
        folder.checkpoint.write_bytes(data[:length])
        folder.refuses("c.pth")


@pytest.mark.parametrize("kind", ["zip", "legacy", "beside the weights"])
def test_hostile_pickle_is_not_executed(kind: str, folder: Folder) -> None:
    mark = folder.path / "mark"
    bomb: Any = _Bomb(mark)
    bomb = {"state_dict": state_of(R20, 10), "args": bomb} if kind == "beside the weights" else bomb
    folder.save(bomb, _use_new_zipfile_serialization=kind != "legacy")
    folder.refuses("c.pth: refused", "posix.system", "could execute code")
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(_Bomb(mark))) == 0  # the bomb works
    assert mark.exists()


def test_hostile_bare_pickle_is_not_executed(folder: Folder) -> None:
    mark = folder.path / "mark"
    folder.checkpoint.write_bytes(pickle.dumps(_Bomb(mark), protocol=2))
    folder.refuses("c.pth")
    assert not mark.exists()


def test_pickled_module(folder: Folder) -> None:
    folder.save(nn.Sequential(nn.Linear(2, 2)))
    folder.refuses("c.pth: refused", "torch.nn.modules.container.Sequential", "save a state_dict")


@pytest.mark.parametrize(
    "value", [None, 3, "text", [1, 2], torch.zeros(3), {}, {"state_dict": {}}, {"epoch": 3, "loss": 0.5}], ids=str
)
def test_no_state_dict(value: Any, folder: Folder) -> None:
    folder.save(value)
    folder.refuses("c.pth: holds no state dict")


def test_tensors_of_no_network(folder: Folder) -> None:
    folder.save({"a.weight": torch.zeros(3, 3), "b.weight": torch.zeros(5)})
    folder.refuses("c.pth: its 2 tensors are those of no known network", *oracle.ARCHS)


def test_unknown_arch(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses("unknown network 'ResNet99'", *oracle.ARCHS, options=("--arch", "ResNet99"))


def test_wrong_arch(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    named = ("does not fit VGGSmall_1w1a", "missing: conv0.weight (128, 3, 3, 3)", "unexpected: layer1.0.conv1.weight")
    folder.refuses(*named, options=("--arch", "VGGSmall"))


def test_all_misfits_are_listed_at_once(folder: Folder) -> None:
    state = dict(state_of(R20, 10, learned=True))
    del state["layer2.1.conv2.weight"], state["bn2.running_mean"]
    state["layer1.0.bn1.weight"] = torch.ones(17)
    state["linear.bias"] = torch.zeros(11)
    state["layer1.0.conv1.scaling_factor"] = torch.ones(15)
    state["bn1.scaling_factor"] = torch.ones(16)
    state["extra.weight"] = torch.zeros(2, 3)
    folder.save(state)
    folder.refuses(
        "c.pth: does not fit cResNet20_1w1a",
        "missing: layer2.1.conv2.weight (32, 32, 3, 3)",
        "missing: bn2.running_mean (64)",
        "wrong shape: layer1.0.bn1.weight is (17), expected (16)",
        "wrong shape: linear.bias is (11), expected (10)",
        "wrong shape: layer1.0.conv1.scaling_factor is (15), expected (16)",
        "unexpected: bn1.scaling_factor (16)",
        "unexpected: extra.weight (2, 3)",
    )


def test_values_that_are_not_finite(folder: Folder) -> None:
    edits = {
        "conv1.weight": fill(float("nan"), 0, 5),
        "layer2.0.conv1.weight": fill(float("inf"), 7),
        "layer3.0.bn2.running_mean": fill(float("-inf"), 1, 2, 3),
        "linear.bias": fill(float("nan")),
    }
    folder.save(edited(state_of(R20, 10), edits))
    folder.refuses(
        "conv1: 2 of 432 values of weight",
        "layer2.0.conv1: 1 of 4608 values of weight",
        "layer3.0.bn2: 3 of 64 values of",
        "linear: 10 of 10 values of bias",
    )


def test_learned_scale_that_is_not_finite(folder: Folder) -> None:
    state = state_of(R20, 10, learned=True)
    folder.save(edited(state, {"layer1.0.conv2.scaling_factor": fill(float("nan"), 4)}))
    folder.refuses("layer1.0.conv2: 1 of 16 values of scale")


def test_negative_variance(folder: Folder) -> None:
    edits = {"bn1.running_var": fill(-1.0, 0, 1), "layer1.2.bn1.running_var": fill(-0.5, 3)}
    folder.save(edited(state_of(R20, 10), edits))
    folder.refuses("bn1: running_var is negative in 2 of 16", "layer1.2.bn1: running_var is negative in 1 of 16")


def test_output_in_a_missing_folder(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output = folder.path / "nowhere" / "m.bnn"
    folder.refuses("nowhere does not exist")


def test_output_is_a_folder(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output.mkdir()
    folder.refuses("m.bnn: is a folder", options=("--force",))


def test_output_is_the_checkpoint(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output.symlink_to(folder.checkpoint)
    folder.refuses("m.bnn: is the checkpoint itself", options=("--force",))
    folder.output = folder.checkpoint
    folder.refuses("c.pth: is the checkpoint itself", options=("--force",))


@pytest.mark.parametrize(
    ("content", "named"), [(b"a\nb\nc\n", "has 3 names, the network has 10"), (b"\xff\xfe\x00", "not a text file")]
)
def test_bad_labels(content: bytes, named: str, folder: Folder) -> None:
    labels = folder.path / "labels.txt"
    labels.write_bytes(content)
    folder.save(state_of(R20, 10))
    folder.refuses("--labels", "labels.txt", named, options=("--labels", str(labels)))


def test_missing_labels(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses("--labels", "nowhere.txt", options=("--labels", "nowhere.txt"))
    folder.refuses("imagenet", "1000 names", options=("--labels", "imagenet"))


@pytest.mark.parametrize("size", [8, 31, 40, 64])
def test_vggsmall_at_a_wrong_size(size: int, folder: Folder) -> None:
    folder.save(state_of(VGG, 10))
    inputs = 512 * (size // 8) ** 2
    folder.refuses(
        f"does not fit VGGSmall_1w1a at input size {size}",
        f"fc.weight is (10, 8192), expected (10, {inputs})",
        options=("--input-size", str(size)),
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--mean", "0.5", "0.5"), "--mean takes 3 numbers"),
        (("--std", "0.5,0.5,0.5,0.5"), "--std takes 3 numbers"),
        (("--std", "0.5", "0", "0.5"), "--std positive"),
        (("--std", "0.5", "nan", "0.5"), "--std positive"),
        (("--mean", "0.5", "inf", "0.5"), "--mean takes finite"),
        (("--mean", "0.5", "x", "0.5"), "not a list of numbers: 'x'"),
        (("--input-size", "0"), "not a size"),
        (("--input-size", "-3"), "not a size"),
        (("--input-size", "99999"), "not a size"),
        (("--verify", "some"), "not a count: 'some'"),
        (("--numerics", "magic"), "'magic'"),
        (("--zero-weights", "minus"), "'minus'"),
        (("--nonsense",), "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options(options: tuple[str, ...], named: str, folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses(named, options=options)


def test_as_a_process(folder: Folder) -> None:
    """In-process calls cannot see the exit status itself, nor what torch prints at import."""
    command = [sys.executable, "-m", "ovsw.export.cli", str(folder.checkpoint), "-o", str(folder.output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ovsw-export: error: {folder.checkpoint}: no such file\n"


# Any network: the steps after `load` know no names.


class Foreign(nn.Module):
    """Much that the exporter does not know, in one network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.dilated = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.gelu = nn.GELU()
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.group_norm = nn.GroupNorm(2, 8)
        self.blur = nn.AvgPool2d(3, 1, 1)
        self.ceil = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.turned = nn.ConvTranspose2d(8, 8, 2, 2)
        self.adaptive = nn.AdaptiveAvgPool2d(5)
        self.head = nn.Linear(8 * 5 * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gelu(self.dilated(self.grouped(self.stem(x))))
        x = self.blur(self.group_norm(self.norm(self.mirrored(x))))
        x = self.turned(self.ceil(x)) * 2
        x = torch.sigmoid(x) + 1
        x = F.pad(x, (1, 1, 0, 0))
        return self.head(self.adaptive(x.transpose(2, 3)).flatten(1)).softmax(1)


def test_everything_unsupported_is_listed_at_once() -> None:
    with pytest.raises(ExportError) as caught:
        validate(trace(Foreign().eval(), (3, 16, 16)))
    message = str(caught.value)
    reasons = {
        "grouped": "groups=2",
        "dilated": "dilation=(2, 2)",
        "mirrored": "reflect",
        "gelu": "GELU",
        "norm": "running statistics",
        "group_norm": "GroupNorm",
        "blur": "padding",
        "ceil": "rounding",
        "turned": "ConvTranspose2d",
        "mul": "mul()",
        "sigmoid": "sigmoid()",
        "add": "addition",
        "pad": "(1, 1, 0, 0)",
        "transpose": "transpose()",
        "adaptive": "5x5",
        "softmax": "softmax()",
    }
    found = {problem.split(":")[0]: problem for problem in caught.value.problems}
    assert found.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in found[name]
        assert found[name] in message
    assert f"{len(reasons)} problem(s)" in message


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3))) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (Branching(), "Branching cannot be traced"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), "read by"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.ReLU(), nn.Linear(144, 2)), "read by"),
    ],
    ids=["branch", "flattened output", "flattened relu"],
)
def test_untraceable(module: nn.Module, named: str) -> None:
    with pytest.raises(ExportError, match=named):
        validate(trace(module.eval(), (3, 8, 8)))


class Plain(nn.Module):
    """The common order; conv with bias, overlapping max-pool, odd channel counts, a strided binary 1x1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 5, 5, stride=2, padding=2),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.BatchNorm2d(5),
            BinaryConv2d(5, 67, 3, padding=1),
            nn.BatchNorm2d(67),
            nn.PReLU(67),
            BinaryConv2d(67, 9, 1, stride=2),
            nn.BatchNorm2d(9),
            nn.Hardtanh(-0.7, 1.3),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(9, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class BinaryInput(nn.Module):
    """Signs of the input itself, which is also read by a real layer and as a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.signs = BinaryConv2d(3, 3, 3, padding=1, learned_scale=True)
        self.again = BinaryConv2d(3, 3, (1, 3), padding=(0, 1))  # type: ignore[arg-type]
        self.real = nn.Conv2d(3, 3, (3, 1), padding=(1, 0), bias=False)
        self.head = nn.Linear(3 * 6 * 10, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.signs(x) + x
        z = self.real(x) + self.again(x)
        return self.head((y + z).flatten(1))


class Sums(nn.Module):
    """Additions of a value with itself, of three values, under a norm, and of two binary layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.a = BinaryConv2d(8, 8, 3, padding=1)
        self.b = BinaryConv2d(8, 8, 3, padding=1, learned_scale=True)
        self.after = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.norm(x + x)
        y = self.a(x) + self.b(x)
        y = F.hardtanh(self.after(y + x + y))
        y = y + y
        y = y + self.a(y)  # the same layer a second time
        return self.head(F.adaptive_avg_pool2d(y, (1, 1)).flatten(1))


class ManyReaders(nn.Module):
    """One activation read by two binary layers, a real layer, a pool and two additions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.Hardtanh())
        self.a = nn.Sequential(BinaryConv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12))
        self.b = nn.Sequential(BinaryConv2d(12, 12, 1), nn.BatchNorm2d(12))
        self.real = nn.Conv2d(12, 12, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.side = nn.Linear(12, 5)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = self.a(x) + x, F.relu(self.b(x)) + x
        y = F.hardtanh(a) + self.real(x) + self.pool(x)
        side = self.side(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return self.head(F.adaptive_avg_pool2d(y + b, 1).flatten(1)) + side


class Pools(nn.Module):
    """Max-pools behind scales of both signs: of values nobody else reads, and of values that are read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.MaxPool2d(2))
        self.private = nn.Sequential(
            BinaryConv2d(16, 16, 3, padding=1, learned_scale=True), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1)
        )
        self.public = BinaryConv2d(16, 16, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Sequential(BinaryConv2d(16, 16, 3, padding=1, learned_scale=True), nn.MaxPool2d(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.private(self.stem(x))
        dots = self.public(x)
        normed = self.norm(dots)
        y = self.pool(dots) + self.pool(normed)
        z = F.avg_pool2d(normed, 2) + self.last(x)
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


class Vectors(nn.Module):
    """Flattened maps of several pixels, and layers on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = BinaryConv2d(3, 7, 3, stride=2, padding=1)
        self.scale = nn.BatchNorm2d(7, affine=False)
        self.act = nn.PReLU()
        self.pool = nn.AdaptiveAvgPool2d((2, 3))
        self.wide = nn.Linear(42, 20, bias=False)
        self.norm = nn.BatchNorm1d(20)
        self.slope = nn.PReLU(20)
        self.other = nn.Linear(42, 20)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.scale(self.stem(x))))
        x = x.view(x.size(0), -1)
        y = self.slope(self.norm(self.wide(x))) + self.other(self.drop(x))
        return self.head(y.relu())


class Functional(nn.Module):
    """Calls instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.a = BinaryConv2d(6, 10, 3, stride=2, padding=1)
        self.b = BinaryConv2d(10, 10, 3, padding=1)
        self.head = nn.Linear(10 * 2 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem(x), -0.8, 0.9)
        short = F.pad(F.avg_pool2d(x, 2), (0, 0, 0, 0, 1, 3))
        x = F.hardtanh(self.a(x) + short, max_val=2.0)
        y = torch.relu(self.b(x)).add(x)
        y += x
        y = F.max_pool2d(y, kernel_size=3, stride=2, padding=1)
        y = F.max_pool2d(y, 2)
        return self.head(torch.flatten(y, start_dim=1))


class BitsOnly(nn.Module):
    """Binary layers one after another, nothing between them, down to one pixel; the logits are a convolution's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            BinaryConv2d(3, 130, 3, stride=2, padding=1),
            BinaryConv2d(130, 64, 3, padding=1),
            nn.Identity(),
            BinaryConv2d(64, 65, 2, stride=2),
            nn.BatchNorm2d(65),
            nn.AvgPool2d((3, 5)),
            nn.Conv2d(65, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """Gives norms, slopes and scales values that matter, with negative ones among them."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.5)
            module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias, 0, 0.5)
        elif isinstance(module, nn.PReLU):
            nn.init.normal_(module.weight, 0.2, 0.4)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, 0.02, 0.3)
        if isinstance(module, BinaryConv2d) and module.scaling_factor is not None:
            nn.init.normal_(module.scaling_factor, 0, 0.2)
    return model.eval()


def in_float64(model: nn.Module, x: Tensor) -> tuple[np.ndarray, list[float]]:
    """The output, and per binary layer the smallest |value| whose sign is taken.

    Exact zeros are left out: they come from ReLUs and padding, and no rounding makes them anything else.
    """
    margins: list[float] = []

    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        margins.append(float(inputs[0].abs().where(inputs[0] != 0, torch.inf).min()))

    double = copy.deepcopy(model).double()
    for module in double.modules():
        if isinstance(module, BinaryConv2d):
            module.register_forward_pre_hook(watch)
    with torch.no_grad():
        return double(x.double()).numpy(), margins


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Plain, (3, 17, 23)),
        (BinaryInput, (3, 6, 10)),
        (Sums, (3, 9, 7)),
        (ManyReaders, (3, 8, 8)),
        (Pools, (3, 24, 32)),
        (Vectors, (3, 8, 12)),
        (Functional, (3, 16, 16)),
        (BitsOnly, (3, 12, 20)),
    ],
)
def test_any_network(network: type[nn.Module], shape: tuple[int, int, int], seed: int) -> None:
    model = randomised(network(), seed)
    candidates = [torch.randn(1, *shape) for _ in range(12)]
    x = max(candidates, key=lambda candidate: min(in_float64(model, candidate)[1]))
    expected, margins = in_float64(model, x)
    assert min(margins) > 2e-6
    graph = trace(model, shape)
    assert validate(graph) == []
    packed = pack(fold(graph), shape, [0.0] * 3, [1.0] * 3, {})
    assert sum(op.kind == "bconv" for op in packed.ops) == len(margins)  # none is computed twice
    data = bnn.to_bytes(packed)
    tolerance = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for threads in (1, 2):
        assert np.abs(Engine(data, threads=threads).run(x.numpy()) - expected).max() < tolerance


@pytest.mark.parametrize("size", [31, 33])
def test_size_that_does_not_fit(size: int, folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses(f"does not take an input of (3, {size}, {size})", options=("--input-size", str(size)))


def test_vggsmall_at_a_tiny_size(folder: Folder) -> None:
    folder.save(state_of(VGG, 10))
    folder.refuses("not a size between 8 and 4096: '7'", options=("--input-size", "7"))


def test_truncated_old_layout(folder: Folder) -> None:
    folder.save(state_of(R20, 10), _use_new_zipfile_serialization=False)
    data = folder.checkpoint.read_bytes()
    for length in range(0, 20000, 97):
        folder.checkpoint.write_bytes(data[:length])
        folder.refuses("c.pth")


def test_damaged_old_layout(folder: Folder) -> None:
    folder.save({"conv1.weight": torch.zeros(3)}, _use_new_zipfile_serialization=False)
    data = folder.checkpoint.read_bytes()
    at = data.rindex(b"q\x01a.") - 3  # in the list of storage keys behind the pickle
    folder.checkpoint.write_bytes(data[:at] + b"x" + data[at + 1 :])
    folder.refuses("c.pth")


def test_numpy_scalars_of_numpy_1(folder: Folder) -> None:
    folder.save({"state_dict": state_of(R20, 10), "best": np.float64(87.5)})
    with zipfile.ZipFile(folder.checkpoint) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(folder.checkpoint, "w") as new:
        for name, part in parts.items():
            new.writestr(name, part.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert folder.run("--verify", "0") == 0, folder.err


@pytest.mark.parametrize(
    "value",
    [
        np.bool_(True),
        np.float16(1),
        np.uint8(1),
        np.str_("x"),
        np.arange(3.0),
        Path("x"),
        argparse.Namespace(o=Path("y")),
    ],
    ids=repr,
)
def test_plain_data_beside_the_weights(value: object, folder: Folder) -> None:
    folder.save({"state_dict": state_of(R20, 10), "x": value})
    assert folder.run("--verify", "0") == 0, folder.err


@pytest.mark.parametrize("content", [b"hello world\n", bytes(1000)], ids=["text", "zeros"])
def test_message_for_what_is_no_checkpoint(content: bytes, folder: Folder) -> None:
    folder.checkpoint.write_bytes(content)
    folder.refuses("c.pth: not a")
    assert "(101)" not in folder.err
    assert "weights_only" not in folder.err


def test_a_missing_learned_scale(folder: Folder) -> None:
    state = dict(state_of(R20, 10, learned=True))
    del state["layer1.0.conv1.scaling_factor"]
    folder.save(state)
    folder.refuses("missing: layer1.0.conv1.scaling_factor (16)")


@pytest.mark.parametrize("options", [("--std", "1e-50", "1", "1"), ("--mean", "1e39", "0", "0")], ids=str)
def test_normalisation_beyond_float32(options: tuple[str, ...], folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses(options[0], options=(*options, "--verify", "0"))


def test_no_classes(folder: Folder) -> None:
    folder.save({**state_of(R20, 10), "linear.weight": torch.zeros(0, 64), "linear.bias": torch.zeros(0)})
    folder.refuses("c.pth", "linear.weight", options=("--verify", "0"))


def test_complex_weights(folder: Folder) -> None:
    state = state_of(R20, 10)
    folder.save({**state, "conv1.weight": state["conv1.weight"].to(torch.complex64)})
    folder.refuses("conv1.weight")


def test_sparse_weights(folder: Folder) -> None:
    state = state_of(R20, 10)
    folder.save({**state, "conv1.weight": state["conv1.weight"].to_sparse()})
    folder.refuses("c.pth", "conv1.weight")


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = BinaryConv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(torch.add(self.a(x), self.b(x)), 1).flatten(1))


class Inplace(Added):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) + self.b(x)
        z = F.relu(y, inplace=True)  # y too
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


class Accumulated(Added):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(x)
        z = y.add_(self.a(x))  # y too
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


class MapOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = BinaryConv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


@pytest.mark.parametrize("network", [Added, Inplace, Accumulated, MapOut])
def test_exact_or_refused(network: type[nn.Module]) -> None:
    model = randomised(network(), 0)
    x = torch.randn(1, 3, 5, 5)
    expected, _ = in_float64(model, x)
    graph = trace(model, (3, 5, 5))
    try:
        validate(graph)
    except ExportError:
        assert network is not Added
        return
    got = Engine(bnn.to_bytes(pack(fold(graph), (3, 5, 5), [0.0] * 3, [1.0] * 3, {}))).run(x.numpy())
    assert np.abs(got - expected.reshape(1, -1)).max() < TOLERANCE


class Weights(nn.Module):
    """Functional forms with weights of their own, which fx cannot normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(F.conv2d(x, self.w)).mean((2, 3))


class Beyond(nn.Module):
    """Layers that torch.fx traces, the tables know and the engine cannot run."""

    def __init__(self) -> None:
        super().__init__()
        self.padded = nn.Conv2d(3, 3, 1, padding=1)
        self.rows = nn.Linear(8, 5)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.rows(self.padded(x)), 1).flatten(1))


@pytest.mark.parametrize(("network", "named"), [(Weights, ("conv2d", "sigmoid", "mean")), (Beyond, ("padded", "rows"))])
def test_all_of_it_is_listed(network: type[nn.Module], named: tuple[str, ...]) -> None:
    with pytest.raises(ExportError) as caught:
        validate(trace(network().eval(), (3, 6, 6)))
    assert [n for n in named if n not in str(caught.value)] == []
