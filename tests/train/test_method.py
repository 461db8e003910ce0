"""OvSW's gradients and state against the reference implementation's vectors, and against naive loops."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import BinaryConv2d, create
from ovsw.train import OvSW

from support import DATA, shared


def tensors(path: object) -> dict[str, Any]:
    with np.load(str(path)) as f:
        return {k: torch.from_numpy(f[k]) if f[k].dtype.kind in "fiu" else str(f[k]) for k in f.files}


@pytest.fixture(scope="module")
def hooks() -> dict[str, Tensor]:
    return tensors(DATA / "hooks.npz")


def golden_layer(hooks: dict[str, Tensor]) -> BinaryConv2d:
    layer = BinaryConv2d(5, 8, 3, padding=1)
    layer.zero = 0  # as in the released code
    with torch.no_grad():
        layer.weight.copy_(hooks["weight"])
    return layer


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_layer_forward_and_backward(hooks: dict[str, Tensor], mode: str) -> None:
    layer = golden_layer(hooks).train(mode == "train")
    x = hooks["x"].clone().requires_grad_()
    y = layer(x)
    y.backward(hooks["gy"])
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.scale(), hooks["derived_scale"].flatten(), atol=1e-6, rtol=0)
    torch.testing.assert_close(y, hooks[f"{mode}_y"], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(x.grad, hooks[f"{mode}_gx"], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(layer.weight.grad, hooks[f"{mode}_gw"], atol=1e-6, rtol=1e-6)


def test_hooks(hooks: dict[str, Tensor]) -> None:
    """AGS alone, then SAD on top of it, from a given state: channels below the clamps, a zero weight, no gradient."""
    layer = golden_layer(hooks)
    layer.weight.grad = hooks["grad_in"].clone()
    ags = OvSW(layer, lam=0.04, sad=False)
    ags.step()
    torch.testing.assert_close(layer.weight.grad, hooks["grad_after_ags"], atol=1e-6, rtol=1e-6)
    assert ags.ratio is not None
    torch.testing.assert_close(ags.ratio[0], hooks["ags_ratio_mean"], atol=1e-6, rtol=1e-6)
    sad = OvSW(layer, gamma=9e-4, ags=False)
    sad.load_state_dict({"weight_prev": hooks["weight_prev_in"], "tracker": hooks["tracker_in"]})
    sad.step()
    state = sad.state_dict()
    torch.testing.assert_close(layer.weight.grad, hooks["grad_after_sad"], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state["tracker"], hooks["tracker_out"], atol=1e-6, rtol=0)
    assert torch.equal(state["weight_prev"], hooks["weight_prev_out"])
    assert sad.silent_share() == pytest.approx(float(hooks["silent_fraction"]), abs=1e-6)


def test_four_steps_of_the_reference() -> None:
    """Losses, gradient norms before and after the hooks, final weights, flips and statistics of four SGD steps.

    In float64: these steps amplify rounding so much (the stem's first gradient has norm 388) that float32 on another
    CPU or another number of threads takes a different path, while float64 follows the golden's float64 losses to 1e-9.
    """
    golden = tensors(shared("golden", "train_ovsw_cResNet20.npz"))
    meta = json.loads(golden["meta"])
    hyper = meta["hyper"]
    model = create(hyper["arch"], hyper["num_classes"], learned_scale=hyper["scaling_factor"])
    layers = {name: m for name, m in model.named_modules() if isinstance(m, BinaryConv2d)}
    for layer in layers.values():
        layer.zero = 0
    model.load_state_dict({k[len("init/") :]: v for k, v in golden.items() if k.startswith("init/")})
    model.train().double()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(
        model.parameters(), hyper["lr"], momentum=hyper["momentum"], weight_decay=hyper["weight_decay"]
    )
    ovsw = OvSW(model, hyper["delta"], hyper["dampen_weight"], hyper["track_threshold"], hyper["track_momentum"])
    mean, std = (torch.tensor(meta[k]).view(1, 3, 1, 1) for k in ("mean", "std"))

    def norms() -> list[float]:
        grads = [parameters[k].grad for k in meta["params"]]
        return [float(torch.linalg.vector_norm(g)) for g in grads if g is not None]

    for step in range(meta["steps"]):
        x = (golden["x_u8"][step].permute(0, 3, 1, 2).float() / 255 - mean) / std
        optimizer.param_groups[0]["lr"] = float(golden["lr"][step])
        loss = F.cross_entropy(model(x.double()), golden["y"][step])
        optimizer.zero_grad()
        loss.backward()
        np.testing.assert_allclose(norms(), golden["raw_norm"][step], rtol=1e-4)
        ovsw.step()
        np.testing.assert_allclose(norms(), golden["hooked_norm"][step], rtol=1e-4)
        optimizer.step()
        assert loss.item() == pytest.approx(float(golden["loss64"][step]), abs=1e-9)

    found = {**model.state_dict(), **ovsw.state_dict()}
    for name in layers:
        weight, expected = found[f"{name}.weight"], golden[f"final/{name}.weight"]
        torch.testing.assert_close(weight.float(), expected, atol=2e-5, rtol=0)
        assert torch.equal(torch.sign(weight).float(), torch.sign(expected)), name
        torch.testing.assert_close(
            found[f"{name}.tracker"].float(), golden[f"final/{name}.tracker"], atol=1e-9, rtol=1e-6
        )
    others = [k for k in model.state_dict() if k[: -len(".weight")] not in layers]
    for key in others:
        torch.testing.assert_close(found[key].float(), golden[f"final/{key}"].float(), atol=1e-4, rtol=1e-4)


def test_watching_only() -> None:
    """Without AGS and with a penalty of 0 the gradients stay as they are, bit for bit."""
    model = create("cResNet20_1w1a").train()
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    before = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    OvSW(model, gamma=0.0, ags=False).step()
    assert all(torch.equal(p.grad, before[k]) for k, p in model.named_parameters() if p.grad is not None)


def test_finding_layers() -> None:
    model = create("cResNet20_1w1a")
    assert len(OvSW(model).weights) == 18
    first = model.get_submodule("layer1.0.conv1")
    assert list(OvSW(model, layers=[first]).weights) == ["layer1.0.conv1.weight"]
    named = OvSW(model, layers={"mine": first.weight})  # type: ignore[dict-item]
    assert set(named.state_dict()) == {"mine.weight_prev", "mine.tracker"}
    with pytest.raises(ValueError, match="no BinaryConv2d"):
        OvSW(nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match=r"lacks layer1\.0\.conv1\.weight_prev"):
        OvSW(model).load_state_dict({})
    with pytest.raises(ValueError, match="momentum"):
        OvSW(model, momentum=1.0)


def test_frozen_layers_are_left_alone() -> None:
    model = create("cResNet20_1w1a")
    ovsw = OvSW(model)
    first = model.get_submodule("layer1.0.conv1")
    first.weight.grad = torch.ones_like(first.weight)  # type: ignore[arg-type, assignment]
    ovsw.step()
    assert model.get_submodule("layer1.0.conv2").weight.grad is None


def test_recu_clamp() -> None:
    """Weights beyond the quantile keep their sign and get no gradient."""
    torch.manual_seed(0)
    layer = BinaryConv2d(16, 4, 3).train()
    layer.tau = 0.9
    x = torch.randn(2, 16, 5, 5)
    y = layer(x)
    y.sum().backward()
    limit = -layer.weight.abs().mean() * math.log(2 - 2 * 0.9)
    outside = layer.weight.abs() > limit
    assert layer.weight.grad is not None
    assert 0.02 < outside.float().mean() < 0.3
    assert torch.all(layer.weight.grad[outside] == 0)
    assert torch.any(layer.weight.grad[~outside] != 0)
    layer.tau = None
    torch.testing.assert_close(layer(x), y)
