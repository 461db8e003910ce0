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


# Vanilla training with learned scales a second time, from its description: no layer of torch.nn, no code of ovsw.


def naive_sign(x: Tensor, zero: int) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, float(zero))).double()


def naive_binary(x: Tensor, weight: Tensor, alpha: Tensor, stride: int, zero: int) -> Tensor:
    """Each sample over its deviation, a polynomial of slope 2 - 2|x| for the sign, weights straight through."""
    deviations = [(((s - s.mean()) ** 2).sum() / (s.numel() - 1) + 1e-5).sqrt() for s in x.detach()]
    x = torch.stack([s / d for s, d in zip(x, deviations)])
    smooth = torch.where(x.abs() < 1, 2 * x - x * x.abs(), 0.0)
    a = smooth - smooth.detach() + naive_sign(x.detach(), zero)
    b = weight - weight.detach() + naive_sign(weight.detach(), zero)
    return F.conv2d(a, b, stride=stride, padding=1) * alpha[:, None, None]


def naive_norm(state: dict[str, Tensor], x: Tensor, key: str) -> Tensor:
    """By the batch's mean and biased variance; the running ones get a tenth of them, the variance unbiased."""
    axes, shape = [0, *range(2, x.ndim)], [-1] + [1] * (x.ndim - 2)
    n = x.numel() // x.shape[1]
    mean = x.sum(axes) / n
    var = ((x - mean.view(shape)) ** 2).sum(axes) / n
    for name, value in (("mean", mean), ("var", var * n / (n - 1))):
        state[f"{key}.running_{name}"] = 0.9 * state[f"{key}.running_{name}"] + 0.1 * value.detach()
    scaled = (x - mean.view(shape)) / (var + 1e-5).sqrt().view(shape)
    return scaled * state[f"{key}.weight"].view(shape) + state[f"{key}.bias"].view(shape)


def naive_clip(x: Tensor) -> Tensor:
    return torch.where(x > 1, 1.0, torch.where(x < -1, -1.0, x))


def naive_loss(state: dict[str, Tensor], x: Tensor, labels: Tensor, zero: int) -> Tensor:
    """Mean cross-entropy of cResNet20 in training; changes the running statistics in `state`."""

    def binary(x: Tensor, key: str, stride: int = 1) -> Tensor:
        return naive_binary(x, state[f"{key}.weight"], state[f"{key}.scaling_factor"], stride, zero)

    x = naive_clip(naive_norm(state, F.conv2d(x, state["conv1.weight"], padding=1), "bn1"))
    for layer in (1, 2, 3):
        for i in range(3):
            key, stride, short = f"layer{layer}.{i}", 1, x
            if layer > 1 and i == 0:
                pooled = (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4
                nothing = torch.zeros_like(pooled)[:, ::2]
                stride, short = 2, torch.cat([nothing, pooled, nothing], 1)
            y = naive_clip(naive_norm(state, binary(x, f"{key}.conv1", stride), f"{key}.bn1") + short)
            x = naive_clip(naive_norm(state, binary(y, f"{key}.conv2"), f"{key}.bn2") + y)
    features = naive_norm(state, x.sum((2, 3)) / x[0, 0].numel(), "bn2")
    logits = features @ state["linear.weight"].T + state["linear.bias"]
    chosen = logits[torch.arange(len(labels)), labels]
    return (logits.exp().sum(1).log() - chosen).sum() / len(labels)


@pytest.mark.parametrize("zero", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_vanilla_trajectory_with_learned_scales(zero: int) -> None:
    """Five SGD steps in float64 against a naive implementation: losses, every weight, scale, sign and statistic.

    Behind a batch norm a scale matters only by its eps, so some are made small enough to get real gradients. Weights
    of exactly 0 and a dead channel make a difference between the paper's sign(0) = 1 and the released code's 0.
    """
    torch.manual_seed(5)
    model = create("cResNet20_1w1a", 10, learned_scale=True).double().train()
    layers = {name: m for name, m in model.named_modules() if isinstance(m, BinaryConv2d)}
    with torch.no_grad():
        for layer in layers.values():
            layer.zero = zero
            layer.weight.view(-1)[::97] = 0.0
            assert layer.scaling_factor is not None
            layer.scaling_factor[::2] *= 0.02
            layer.scaling_factor[::3] *= -1
        for norm in (m for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))):
            norm.weight += 0.2 * torch.randn_like(norm.weight)
            norm.bias += 0.2 * torch.randn_like(norm.bias)  # at 0, whole dots tie with the edges of the clip
        stem = model.get_submodule("bn1")
        stem.weight[3] = stem.bias[3] = 0.0  # type: ignore[index]
    parameters = [name for name, _ in model.named_parameters()]
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    begin, velocity = dict(state), {k: torch.zeros_like(state[k]) for k in parameters}
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    x, labels = torch.randn(5, 4, 3, 32, 32, dtype=torch.float64), torch.randint(10, (5, 4))
    other = naive_loss(dict(state), x[0], labels[0], 1 - zero)
    for step in range(5):
        loss = F.cross_entropy(model(x[step]), labels[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        for k in parameters:
            state[k].requires_grad_()
        expected = naive_loss(state, x[step], labels[step], zero)
        grads = torch.autograd.grad(expected, [state[k] for k in parameters])
        for k, grad in zip(parameters, grads):
            weight = state[k].detach()
            velocity[k] = 0.9 * velocity[k] + grad + 5e-4 * weight
            state[k] = weight - 0.05 * velocity[k]
        assert loss.item() == pytest.approx(expected.item(), abs=1e-9)
        if step == 0:
            assert abs(loss.item() - other.item()) > 1e-3

    found = model.state_dict()
    for key in (k for k in found if not k.endswith("num_batches_tracked")):
        torch.testing.assert_close(found[key], state[key], atol=1e-9, rtol=1e-9, msg=lambda m, key=key: f"{key}: {m}")
    for name in layers:
        assert torch.equal(torch.sign(found[f"{name}.weight"]), torch.sign(state[f"{name}.weight"])), name
    moved = {k: (found[k] - begin[k]).abs() for k in parameters}
    scales = torch.cat([moved[f"{name}.scaling_factor"] / begin[f"{name}.scaling_factor"].abs() for name in layers])
    assert (scales > 0.1).float().mean() > 0.2  # by far more than weight decay moves them
    flipped = [torch.sign(found[f"{n}.weight"]) != torch.sign(begin[f"{n}.weight"]) for n in layers]
    assert sum(int(f.sum()) for f in flipped) > 5000


def test_ags_and_sad_by_hand() -> None:
    """The paper's equations as loops over single filters and weights, over many steps with flips."""
    torch.manual_seed(0)
    lam, gamma, sigma, momentum = 0.5, 0.01, 0.3, 0.5
    layer = nn.Conv2d(2, 3, 2, bias=False)
    ovsw = OvSW(layer, lam, gamma, sigma, momentum, layers=[layer])
    rate, before = torch.zeros_like(layer.weight), layer.weight.detach().clone()
    never = torch.ones_like(layer.weight, dtype=torch.bool)
    for _ in range(6):
        weight = layer.weight.detach().clone()
        grad = torch.randn_like(weight) * 0.1
        expected = grad.clone()
        for k in range(3):
            ratio = grad[k].norm() / weight[k].norm()
            if ratio < lam:
                expected[k] *= lam / ratio
        for i in np.ndindex(*weight.shape):
            flipped = math.copysign(1, weight[i]) != math.copysign(1, before[i])
            rate[i] = momentum * rate[i] + (1 - momentum) * flipped
            never[i] &= not flipped
            if rate[i] < sigma:
                expected[i] += gamma * weight[i]
        before = weight
        layer.weight.grad = grad
        ovsw.step()
        torch.testing.assert_close(layer.weight.grad, expected, atol=1e-6, rtol=1e-5)
        assert ovsw.silent_share() == pytest.approx(float((rate < sigma).float().mean()))
        assert torch.equal(ovsw.flip_history()["weight"], ~never)
        assert ovsw.never_flipped() == pytest.approx(float(never.float().mean()))
        with torch.no_grad():
            layer.weight += torch.randn_like(weight) * 0.3


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
