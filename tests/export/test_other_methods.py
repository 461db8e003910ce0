"""Checkpoints of RBNN, AdaBin, ReCU and Bi-Real: recognised by their keys, rebuilt to the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ovsw.export.errors import ExportError
from ovsw.export.frontend.checkpoint import load
from ovsw.networks import network
from ovsw.nn import create

from support import DATA, methods, oracle, shared

pytestmark = pytest.mark.usefixtures("one_torch_thread")

GOLDENS = {
    "RBNN_resnet20_bireal_cifar10": ("RBNN_cResNet20_1w1a", 10, 1e-4),
    "AdaBin_resnet18_cifar100": ("AdaBin_cResNet18_1w1a", 100, 2e-3),
}


def computed(module: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module.double().eval()(torch.from_numpy(x).double()).numpy()


def saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "c.pth")
    return tmp_path / "c.pth"


def random_state(arch: str) -> methods.State:
    torch.manual_seed(0)
    return methods.randomised(create(arch, 10).state_dict(), seed=1)


def images(size: int, seed: int = 2) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, size, size, 3), np.uint8)
    return oracle.prepare("", pixels, *methods.IMAGENET)


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str, tmp_path: Path) -> None:
    """In the form that their trainers write: `module.` before every key, the parameters again in a list."""
    local = DATA / f"{name}.npz"
    checkpoint, io = oracle.golden(local if local.exists() else shared("golden", f"{name}.npz"))
    if "parameters" in checkpoint:
        checkpoint["parameters"] = [nn.Parameter(v) for v in checkpoint["state_dict"].values() if v.ndim]
    arch, classes, tolerance = GOLDENS[name]
    loaded = load(saved(tmp_path, checkpoint))
    assert (loaded.spec.name, loaded.warnings, loaded.input.labels) == (arch, [], ())
    np.testing.assert_allclose((loaded.input.mean, loaded.input.std), (io["mean"], io["std"]), rtol=1e-6)
    x = oracle.prepare("", io["x_u8"], io["mean"], io["std"])
    np.testing.assert_array_equal(loaded.input.normalised(io["x_u8"]), x)
    found = computed(loaded.module, x)
    assert found.shape == (4, classes)
    assert np.abs(found - io["logits64"]).max() < tolerance / 1e4


def test_the_oracle_is_the_reference() -> None:
    checkpoint, io = oracle.golden(DATA / "RBNN_resnet20_bireal_cifar10.npz")
    x = oracle.prepare("", io["x_u8"], io["mean"], io["std"])
    found = methods.logits("RBNN_cResNet20_1w1a", checkpoint["state_dict"], x)
    assert np.abs(found - io["logits64"]).max() < 1e-11


@pytest.mark.parametrize("arch", methods.FORWARDS)
def test_random_checkpoints(arch: str, tmp_path: Path) -> None:
    """Every tensor has its part in the logits: the oracle checks that it has read them all."""
    state = random_state(arch)
    x = images(network(arch).input.height if network(arch).dataset == "cifar" else 64)
    expected = methods.logits(arch, state, x)
    name = arch if "plain" in arch or arch.startswith("BiReal_") else "whatever"
    loaded = load(saved(tmp_path, {"state_dict": {f"module.{k}": v for k, v in state.items()}, "arch": name}))
    assert loaded.spec.name == arch
    assert np.abs(computed(loaded.module, x) - expected).max() < 1e-9 * max(1, np.abs(expected).max())


def test_twins_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """RBNN's two ResNet20 have the same tensors, and Bi-Real's cResNet20 has those of OvSW's."""
    state = random_state("RBNN_cResNet20_1w1a")
    for name, arch in (("resnet20_bireal_1w1a", "RBNN_cResNet20_1w1a"), ("resnet20_1w1a", "RBNN_plain_cResNet20_1w1a")):
        loaded = load(saved(tmp_path, {"model": name, "state_dict": state}))
        assert (loaded.spec.name, loaded.warnings) == (arch, [])
    unnamed = load(saved(tmp_path, state))
    assert unnamed.spec.name == "RBNN_cResNet20_1w1a"
    assert "could be RBNN_plain_cResNet20_1w1a: pass arch=" in unnamed.warnings[0]
    assert load(saved(tmp_path, state), "rbnn_plain_cresnet20").warnings == []
    state = random_state("cResNet20_1w1a")
    assert load(saved(tmp_path, state)).spec.name == "cResNet20_1w1a"
    assert load(saved(tmp_path, state)).warnings == []
    assert load(saved(tmp_path, {"arch": "BiReal_cResNet20_1w1a", "state_dict": state})).spec.name.startswith("BiReal")


def test_shapes_as_trainers_keep_them(tmp_path: Path) -> None:
    """ReCU's tau becomes a vector in training, or is left out; Bi-Real keeps weights as columns."""
    state = random_state("ReCU_cResNet20_1w1a")
    x = images(32)
    expected = methods.logits("ReCU_cResNet20_1w1a", state, x)
    forms = [
        {k: v.reshape(1) if k.endswith(".tau") else v for k, v in state.items()},
        {k: v for k, v in state.items() if not k.endswith(".tau")},
        {k: v.reshape(-1) if k.endswith(".alpha") else v for k, v in state.items()},
    ]
    for form in forms:
        assert np.abs(computed(load(saved(tmp_path, form)).module, x) - expected).max() < 1e-9
    state = random_state("BiRealNet18_1w1a")
    columns = {
        k.replace("binary_conv.weight", "binary_conv.weights"): v.reshape(-1, 1) if "binary_conv" in k else v
        for k, v in state.items()
    }
    x = images(64)
    found = computed(load(saved(tmp_path, columns)).module, x)
    assert np.abs(found - methods.logits("BiRealNet18_1w1a", columns, x)).max() < 1e-9


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("layer2.0.conv1.rotate", "missing: layer2.0.conv1.rotate (32, 1, 1, 1)"),
        ("layer2.0.conv1.R2", "missing: layer2.0.conv1.R2 (12, 12)"),
        ("bn2.weight", "missing: bn2.weight (64)"),
    ],
)
def test_a_missing_tensor(key: str, words: str, tmp_path: Path) -> None:
    state = random_state("RBNN_cResNet20_1w1a")
    del state[key]
    with pytest.raises(ExportError) as e:
        load(saved(tmp_path, state))
    assert "does not fit RBNN_cResNet20_1w1a" in str(e.value)
    assert words in e.value.problems


def test_input_of_a_run(tmp_path: Path) -> None:
    """What ovsw-train has written of normalisation and classes, as far as it makes sense for the weights."""
    state = random_state("cResNet20_1w1a")

    def spec(recipe: dict[str, Any] | None = None, **written: Any) -> Any:
        about = {"recipe": {"data": recipe or {}}, **({"input": written} if written else {})}
        return load(saved(tmp_path, {"state_dict": state, "arch": "cResNet20_1w1a", "ovsw": about})).input

    usual = network("cresnet20").input
    assert spec() == usual
    assert spec({"kind": "cifar10"}).labels == "cifar10"  # of a run before there was more
    assert spec({"kind": "cifar100"}).labels == ()
    own = spec(mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1], labels=[f"thing {i}" for i in range(10)])
    assert (own.mean, own.std, own.labels[3]) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1), "thing 3")
    assert spec({"kind": "cifar10"}, labels="cifar10").labels == "cifar10"
    for labels in (["a", "b"], [1] * 10, "imagenet", "/etc/passwd", 7, None):
        assert spec({"kind": "cifar10"}, labels=labels).labels == ()
    for mean in ([0.5], "0.5", [0.5, 0.5, float("nan")], [0.5, 0.5, "x"]):
        assert spec(mean=mean, std=[0.2, 0.2, 0.2]).mean == usual.mean
