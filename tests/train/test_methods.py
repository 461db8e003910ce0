"""The layers of RBNN, AdaBin, ReCU and Bi-Real: forward and backward by their formulas, schedules, OvSW on top."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import AdaptiveConv2d, BinaryLayer, Maxout, ReActConv2d, RectifiedConv2d, RotatedConv2d, binary_layers
from ovsw.nn import create as create_network
from ovsw.train import OvSW

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LAYERS = {"RBNN": RotatedConv2d, "AdaBin": AdaptiveConv2d, "ReCU": RectifiedConv2d, "Bi-Real": ReActConv2d}
NETWORKS = ("rbnn_cresnet20", "adabin_cresnet20", "recu_cresnet20", "bireal_cresnet20")


def through(x: Tensor, smooth: Tensor) -> Tensor:
    """The sign of x in value, `smooth` in gradient."""
    return torch.where(x >= 0, 1.0, -1.0).double() + smooth - smooth.detach()


def parabola(x: Tensor, t: float, k: float) -> Tensor:
    """RBNN's approximation of the sign, as its paper writes it: flat beyond sqrt(2) / t."""
    inside = k * (math.sqrt(2) * t * x - x.sign() * t**2 * x**2 / 2)
    return torch.where(x.abs() < math.sqrt(2) / t, inside, k * x.sign())


def bireal(x: Tensor) -> Tensor:
    """2x - x^2 on the right, 2x + x^2 on the left, flat beyond 1."""
    return torch.where(x.abs() < 1, 2 * x - x.sign() * x**2, x.sign())


def per_filter(w: Tensor) -> tuple[Tensor, Tensor]:
    mean = w.sum((1, 2, 3), keepdim=True) / w[0].numel()
    return mean, w - mean


def rbnn(x: Tensor, p: dict[str, Tensor], t: float, k: float) -> Tensor:
    centred = per_filter(p["weight"])[1]
    n = centred[0].numel()
    w = centred / ((centred**2).sum((1, 2, 3), keepdim=True) / (n - 1)).sqrt()
    turned = torch.stack([p["R1"].T @ one.reshape(len(p["R1"]), -1) @ p["R2"] for one in w]).reshape(w.shape)
    w = w + p["rotate"].sin().abs() * (turned.detach() - w)
    a = per_filter(x)[1]
    a = a / ((a**2).sum((1, 2, 3), keepdim=True) / (a[0].numel() - 1)).sqrt()
    wide = max(t, 1.0)
    return F.conv2d(through(a, parabola(a, wide, 1.0)), through(w, parabola(w, t, k)), padding=1) * p["alpha"]


def adabin(x: Tensor, p: dict[str, Tensor], t: float, k: float) -> Tensor:
    mean, centred = per_filter(p["weight"])
    width = ((centred**2).sum((1, 2, 3), keepdim=True) / centred[0].numel()).sqrt()
    w = width * through(centred, k * torch.tanh(t * centred / width)) + mean
    alpha, beta = p["binary_a.alpha_a"], p["binary_a.beta_a"]
    a = (x - beta) / alpha
    return F.conv2d(alpha * (through(a, bireal(a)) + beta), w, padding=1)


def recu(x: Tensor, p: dict[str, Tensor], t: float, k: float) -> Tensor:
    centred = per_filter(p["weight"])[1]
    n = centred[0].numel()
    w = centred * math.sqrt(8) / ((centred**2).sum((1, 2, 3), keepdim=True) / (n - 1) + 1e-5).sqrt()
    limit = -w.abs().mean().item() * math.log(2 - 2 * p["tau"].item())
    assert 0.02 < (w.abs() > limit).double().mean() < 0.5
    w = w.where(w.abs() <= limit, limit * w.sign())
    a = per_filter(x)[1]
    a = x / ((a**2).sum((1, 2, 3), keepdim=True) / (a[0].numel() - 1) + 1e-5).sqrt()
    return F.conv2d(through(a, bireal(a)), through(w, w), padding=1) * p["alpha"]


def bi_real(x: Tensor, p: dict[str, Tensor], t: float, k: float) -> Tensor:
    w = p["weight"]
    scale = w.detach().abs().sum((1, 2, 3), keepdim=True) / w[0].numel()
    within = w.where(w.abs() <= 1, w.detach())
    values = scale * torch.where(w >= 0, 1.0, -1.0)
    return F.conv2d(through(x, bireal(x)), values + within - within.detach(), padding=1)


FORMULAS: dict[str, Callable[..., Tensor]] = {"RBNN": rbnn, "AdaBin": adabin, "ReCU": recu, "Bi-Real": bi_real}


def layer_of(method: str) -> BinaryLayer:
    """With weights that have means, and every parameter moved from where it starts."""
    torch.manual_seed(1)
    layer = LAYERS[method](4, 6, 3, 1, 1).double()
    with torch.no_grad():
        layer.weight += 0.1 * torch.randn(6, 1, 1, 1)
        layer.weight[0] *= 8  # some beyond 1
        for name, p in layer.named_parameters():
            if name != "weight":
                p.mul_(0.6).add_(0.3 * torch.rand_like(p))
    return layer


@pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("method", LAYERS)
def test_forward_and_backward(method: str, progress: float) -> None:
    layer = layer_of(method).train()
    layer.set_progress(progress)
    low = {"RBNN": 1e-2, "AdaBin": 1e-3}.get(method, 1.0)
    t = 10 ** (math.log10(low) + (1 - math.log10(low)) * progress)
    x = (torch.randn(3, 4, 5, 5, dtype=torch.float64) + 0.2).requires_grad_()
    upstream = torch.randn(3, 6, 5, 5, dtype=torch.float64)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    expected = FORMULAS[method](x, {**parameters, **dict(layer.named_buffers())}, t, max(1 / t, 1.0))
    wanted = torch.autograd.grad(expected, [x, *parameters.values()], upstream)
    found = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    given = torch.autograd.grad(found, [x, *layer.parameters()], upstream)
    for name, a, b in zip(("x", *parameters), given, wanted):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
        assert float(b.abs().max()) > 1e-6, f"the gradient of {name} proves nothing"


@pytest.mark.parametrize("method", LAYERS)
def test_evaluation_is_the_same_function(method: str) -> None:
    """In training the input is scaled and weights are cut, which changes no sign."""
    layer = layer_of(method)
    layer.set_progress(0.7)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), layer.train()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", LAYERS)
def test_what_signs_are_taken_of(method: str) -> None:
    layer = layer_of(method)
    w = layer.weight.detach()
    expected = w if method == "Bi-Real" else per_filter(w)[1]
    if isinstance(layer, RotatedConv2d):
        standard = expected / expected.std((1, 2, 3), keepdim=True)
        turned = torch.stack([layer.R1.T @ f.reshape(len(layer.R1), -1) @ layer.R2 for f in standard]).reshape(w.shape)
        expected = standard.lerp(turned, layer.rotate.detach().sin().abs().expand_as(w))
    torch.testing.assert_close(layer.signed(), expected, rtol=1e-12, atol=1e-14)
    assert not layer.signed().requires_grad


def test_schedules() -> None:
    rotated, adaptive, rectified = RotatedConv2d(2, 2, 3), AdaptiveConv2d(2, 2, 3), RectifiedConv2d(2, 2, 3)
    assert math.isinf(-torch.log(2 - 2 * rectified.tau))  # nothing is cut before a trainer speaks
    for progress, t_rbnn, t_adabin, tau in ((0, 1e-2, 1e-3, 0.85), (0.5, 10**-0.5, 0.1, 0.90285), (1, 10, 10, 0.99)):
        for layer in (rotated, adaptive, rectified):
            layer.set_progress(progress)
        assert (rotated.t, rotated.k) == pytest.approx((t_rbnn, max(1 / t_rbnn, 1)))
        assert (adaptive.t, adaptive.k) == pytest.approx((t_adabin, max(1 / t_adabin, 1)))
        assert rectified.tau.item() == pytest.approx(tau, abs=1e-5)
    fresh = ReActConv2d(2, 2, 3)
    before = {k: v.clone() for k, v in fresh.state_dict().items()}
    fresh.set_progress(0.5)
    fresh.begin_epoch()
    assert all(torch.equal(v, before[k]) for k, v in fresh.state_dict().items())


@pytest.mark.parametrize(("channels", "sides"), [(64, (24, 24)), (128, (32, 36)), (16, (12, 12)), (5, (5, 9))])
def test_rotation_update(channels: int, sides: tuple[int, int]) -> None:
    """Three cycles, filter by filter in numpy; the signs come nearer to what they are of."""
    torch.manual_seed(0)
    layer = RotatedConv2d(channels, 8, 3).double()
    assert (layer.R1.shape[0], layer.R2.shape[0]) == sides
    w = layer.weight.detach().numpy().reshape(8, -1)
    x = ((w - w.mean(1, keepdims=True)) / w.std(1, ddof=1, keepdims=True)).reshape(8, *sides)
    r1, r2 = layer.R1.numpy().copy(), layer.R2.numpy().copy()

    def agreement(r1: np.ndarray, r2: np.ndarray) -> float:
        return sum(float(np.abs(r1.T @ xi @ r2).sum()) for xi in x)

    start = agreement(r1, r2)
    for _ in range(3):
        b = [np.sign(r1.T @ xi @ r2) for xi in x]
        u, _, vh = np.linalg.svd(sum(bi @ r2.T @ xi.T for bi, xi in zip(b, x)))
        r1 = vh.T @ u.T
        u, _, vh = np.linalg.svd(sum(xi.T @ r1 @ bi for bi, xi in zip(b, x)))
        r2 = u @ vh
    layer.begin_epoch()
    np.testing.assert_allclose(layer.R1.numpy(), r1, atol=1e-9)
    np.testing.assert_allclose(layer.R2.numpy(), r2, atol=1e-9)
    np.testing.assert_allclose(r1 @ r1.T, np.eye(len(r1)), atol=1e-12)
    assert agreement(r1, r2) > start


def test_maxout() -> None:
    layer = Maxout(2)
    assert layer(torch.tensor([-2.0, 3.0]).view(1, 2, 1, 1)).flatten().tolist() == [-0.5, 3.0]
    with torch.no_grad():
        layer.pos_scale.copy_(torch.tensor([2.0, -1.0]))
        layer.neg_scale.copy_(torch.tensor([-1.0, 0.5]))
    found = layer(torch.tensor([[-2.0, -2.0], [3.0, 3.0]]).view(2, 2, 1, 1))
    assert found.view(2, 2).tolist() == [[2.0, -1.0], [6.0, -3.0]]


def test_initial_state() -> None:
    layer = RotatedConv2d(16, 8, 3)
    assert torch.equal(layer.alpha.view(-1), layer.weight.abs().mean(dim=(1, 2, 3)))
    assert torch.all(layer.rotate == torch.tensor(math.pi / 2))
    torch.testing.assert_close(layer.R1 @ layer.R1.T, torch.eye(12), atol=1e-5, rtol=0)
    for name, weight in (("rbnn_cresnet20", 1e-8), ("rbnn_plain_cresnet20", 1.0), ("recu_cresnet20", 1.0)):
        norms = [m for m in create_network(name).modules() if isinstance(m, nn.BatchNorm2d)]
        assert all(torch.all(m.weight == weight) for m in norms)
    adaptive = AdaptiveConv2d(3, 3, 3)
    assert (adaptive.binary_a.alpha_a.item(), adaptive.binary_a.beta_a.item()) == (1.0, 0.0)
    scales = RectifiedConv2d(3, 50, 3).alpha.detach()
    assert 0 <= scales.min() < 0.2 < 0.8 < scales.max() <= 1
    with pytest.raises(ValueError, match="learned_scale is not an option of AdaBin_cResNet20_1w1a"):
        create_network("adabin_cresnet20", learned_scale=True)
    learned = {name: next(iter(binary_layers(create_network(name)).values())).learned_scale for name in NETWORKS}
    assert list(learned.values()) == [True, False, True, False]


# OvSW on top


@pytest.mark.parametrize("method", LAYERS)
def test_ovsw_sees_the_flips_of_binary_weights(method: str) -> None:
    """Not those of the latent weight: one that crosses its filter's mean flips, one that crosses 0 may not."""
    layer = layer_of(method).float()
    ovsw = OvSW(layer, gamma=0.01, ags=False)
    signs = torch.sign(layer.signed())
    with torch.no_grad():
        layer.weight += 0.05 * torch.randn_like(layer.weight) + 0.2
    flipped = torch.sign(layer.signed()) != signs
    latent = torch.sign(layer.weight) != torch.sign(layer.weight - 0.2)
    layer.weight.grad = torch.zeros_like(layer.weight)
    ovsw.step()
    assert 0 < int(flipped.sum()) < flipped.numel()
    assert ovsw.step_flip_rate() == pytest.approx(float(flipped.float().mean()))
    assert method == "Bi-Real" or not torch.equal(flipped, latent)
    expected = torch.where(flipped, 0.0, 0.01 * layer.weight)
    torch.testing.assert_close(layer.weight.grad, expected)
    restored = OvSW(layer)
    restored.load_state_dict(ovsw.state_dict())
    torch.testing.assert_close(restored.state_dict()["weight_prev"], layer.signed())


def test_a_turn_of_rbnn_is_a_flip_of_its_weights() -> None:
    layer = RotatedConv2d(16, 8, 3)
    ovsw, signs = OvSW(layer), torch.sign(layer.signed())
    layer.begin_epoch()
    ovsw.step()
    assert ovsw.step_flip_rate() == pytest.approx(float((torch.sign(layer.signed()) != signs).float().mean()))
    assert ovsw.step_flip_rate() > 0.01


def test_rbnn_where_it_starts_has_no_gradient_to_scale() -> None:
    """At pi/2 none reaches the weight and AGS leaves it at that; a little beside it AGS raises what comes to lambda."""
    torch.manual_seed(0)
    layer = RotatedConv2d(16, 8, 3, 1, 1)
    x = torch.randn(2, 16, 6, 6)
    ovsw = OvSW(layer, lam=0.04, gamma=0.0)
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()
    ovsw.step()
    assert not layer.weight.grad.any()
    with torch.no_grad():
        layer.rotate -= 0.01
    layer.zero_grad()
    (1e-3 * layer(x)).sum().backward()
    small = layer.weight.grad.flatten(1).norm(dim=1)
    norms = layer.weight.flatten(1).norm(dim=1)
    assert torch.all((small > 1e-6) & (small < 0.004 * norms))
    ovsw.step()
    torch.testing.assert_close(layer.weight.grad.flatten(1).norm(dim=1), 0.04 * norms)
