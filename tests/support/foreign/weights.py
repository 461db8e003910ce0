"""Habits of binarising weights: in `forward`, by parametrisation, by hooks, out of other people's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from support.foreign.common import Body, Forward, Network, SignConv, binary, habit, lively

HABITS: dict[str, Network] = {}


def spelled(conv: type[nn.Module]) -> type[nn.Module]:
    """Registers a body of these convolutions, under the class's name."""

    def make() -> nn.Module:
        return Body(lambda _: binary, conv)

    make.__name__ = conv.__name__
    habit(HABITS)(make)
    return conv


@spelled
class MeanMagnitude(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        alpha = self.weight.abs().mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, self.weight.sign() * alpha, self.bias, self.stride, self.padding)


@spelled
class MagnitudeByNorm(nn.Conv2d):
    """The scale by a norm over a view, multiplied to the result."""

    def forward(self, x: Tensor) -> Tensor:
        n = self.weight[0].nelement()
        alpha = self.weight.norm(1, 3, keepdim=True).sum(2, keepdim=True).sum(1, keepdim=True).div(n)
        y = F.conv2d(x, self.weight.sign(), None, self.stride, self.padding)
        return y * alpha.detach().view(1, -1, 1, 1)


@spelled
class Standardised(nn.Conv2d):
    """Centred, divided by the deviation, a power of two as the scale, a straight-through in the weight."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.view(self.weight.size(0), -1)
        w = self.weight - flat.mean(-1).view(-1, 1, 1, 1)
        w = w / w.view(w.size(0), -1).std(-1).view(-1, 1, 1, 1)
        scale = 2 ** w.abs().view(w.size(0), -1).mean(-1).log2().round().float().view(-1, 1, 1, 1).detach()
        w = (w.sign() - w).detach() + w
        return F.conv2d(x, w * scale, self.bias, self.stride, self.padding)


@spelled
class CentredAndClamped(nn.Conv2d):
    """The weights themselves are written in `forward`; the next call finds what this one left."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.data
        self.weight.data = (w - w.mean(1, keepdim=True)).clamp_(-1.0, 1.0)
        clipped = self.weight.clamp(-1, 1)
        w = self.weight.sign().detach() - clipped.detach() + clipped
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


@spelled
class ShadowOnParameter(nn.Conv2d):
    """The real weights live as an attribute of the parameter, which holds their signs."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self.weight, "org"):
            self.weight.org = self.weight.data.clone()  # type: ignore[attr-defined]
        self.weight.data = self.weight.org.sign()  # type: ignore[attr-defined]
        return F.conv2d(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)


@spelled
class FlatParameter(nn.Module):
    """Weights as a column of numbers that is given its shape in `forward`; a learned scale of (C, 1, 1)."""

    def __init__(self, i: int, o: int, kernel_size: int, stride: int, padding: int, bias: bool) -> None:
        super().__init__()
        self.stride, self.padding, self.shape = stride, padding, (o, i, kernel_size, kernel_size)
        self.weights = nn.Parameter(torch.rand(o * i * kernel_size**2, 1) * 0.01 - 0.005)
        self.alpha = nn.Parameter(torch.ones(o, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights.view(self.shape)
        return self.alpha * F.conv2d(x, w.sign(), stride=self.stride, padding=self.padding)


@spelled
class TwoLevels(nn.Conv2d):
    """A centre and a distance per channel: weights {b - a, b + a}."""

    def forward(self, x: Tensor) -> Tensor:
        b = self.weight.mean((1, 2, 3), keepdim=True) + 0.02
        a = self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, torch.sign((self.weight - b) / a) * a + b, None, self.stride, self.padding)


@spelled
class Rotated(nn.Conv2d):
    """Two small matrices turn the weights before their sign is taken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        n = self.weight[0].numel()
        self.register_buffer("left", torch.linalg.qr(torch.randn(12, 12))[0])
        self.register_buffer("right", torch.linalg.qr(torch.randn(n // 12, n // 12))[0])

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.view(self.weight.size(0), 12, -1)
        turned = (self.left.t() @ w @ self.right).view_as(self.weight)
        return F.conv2d(x, turned.sign(), None, self.stride, self.padding)


@spelled
class Bytes(nn.Module):
    """Signs as a buffer of int8."""

    def __init__(self, i: int, o: int, kernel_size: int, stride: int, padding: int, bias: bool) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.register_buffer("signs", torch.randint(0, 2, (o, i, kernel_size, kernel_size), dtype=torch.int8) * 2 - 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.signs.to(x.dtype), None, self.stride, self.padding)


@spelled
class PackedBits(nn.Module):
    """Eight signs to a byte, unpacked in `forward`."""

    def __init__(self, i: int, o: int, kernel_size: int, stride: int, padding: int, bias: bool) -> None:
        super().__init__()
        self.stride, self.padding, self.shape = stride, padding, (o, i, kernel_size, kernel_size)
        self.register_buffer("packed", torch.randint(0, 256, (o * i * kernel_size**2 // 8, 1), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        bits = torch.bitwise_and(self.packed >> torch.arange(8, dtype=torch.uint8), 1)
        return F.conv2d(x, bits.view(self.shape).float() * 2 - 1, None, self.stride, self.padding)


@spelled
class MadeInForward(nn.Conv2d):
    """A layer is built for each call and its weights are written."""

    def forward(self, x: Tensor) -> Tensor:
        layer = nn.Conv2d(self.in_channels, self.out_channels, 3, stride=self.stride, padding=self.padding, bias=False)
        layer.weight.data.copy_(self.weight.data.sign())
        return layer(x)


@spelled
class SeveralBases(nn.Conv2d):
    """A sum of three binary convolutions with shifted signs and weights of their own."""

    def forward(self, x: Tensor) -> Tensor:
        deviation, parts = self.weight.std(), []
        for shift, alpha in ((-0.5, 0.3), (0.0, 0.5), (0.5, 0.2)):
            w = torch.sign(self.weight + shift * deviation)
            parts.append(alpha * F.conv2d(x, w, None, self.stride, self.padding))
        return torch.stack(parts).sum(0)


class Signed(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, 1.0, -1.0)


@habit(HABITS)
def parametrized() -> nn.Module:
    model = Body(lambda _: binary, nn.Conv2d)
    for layer in (model.conv1, model.conv2):
        parametrize.register_parametrization(layer, "weight", Signed())
    return model


@habit(HABITS)
def hooks_swap_weights() -> nn.Module:
    """Hooks put signs in before a layer runs and the real weights back after it."""
    model = Body(lambda _: binary, nn.Conv2d)

    def before(layer: Any, inputs: Any) -> None:
        layer.kept = layer.weight.data.clone()
        layer.weight.data.sign_()

    def after(layer: Any, inputs: Any, output: Any) -> None:
        layer.weight.data.copy_(layer.kept)

    for layer in (model.conv1, model.conv2):
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    return model


@habit(HABITS)
def binarised_once() -> nn.Module:
    """Weights were replaced before the model is given away: the layers are torch's own, nothing says binary."""
    model = Body(lambda _: binary, nn.Conv2d)
    for layer in (model.conv1, model.conv2):
        assert isinstance(layer, nn.Conv2d)
        layer.weight.data = layer.weight.data.sign() * layer.weight.data.abs().mean((1, 2, 3), keepdim=True)
    return model


@habit(HABITS)
def functional_call() -> Forward:
    """Not a module: a call with other parameters than those of the module."""
    from torch.func import functional_call

    model = lively(Body(lambda _: binary, nn.Conv2d))

    def forward(x: Tensor) -> Tensor:
        values = {k: v.sign() if k.startswith("conv") else v for k, v in model.named_parameters()}
        return functional_call(model, values, (x,))

    return forward


@habit(HABITS)
def numpy_constants() -> Forward:
    """A closure over numpy arrays."""
    rng = np.random.default_rng(3)
    stem = rng.normal(size=(16, 3, 3, 3)).astype(np.float32) * 0.3
    signs = np.where(rng.normal(size=(20, 16, 3, 3)) > 0, np.float32(0.1), np.float32(-0.1))
    head = rng.normal(size=(5, 20)).astype(np.float32)

    def forward(x: Tensor) -> Tensor:
        x = F.conv2d(x, torch.from_numpy(stem), torch.full((16,), 0.05), padding=1).sign()
        x = F.conv2d(x, torch.as_tensor(signs), stride=2)
        return x.mean((2, 3)) @ torch.tensor(head).T

    return forward


@habit(HABITS)
def shared_weights() -> nn.Module:
    """One layer three times, and its weights in a second layer."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.conv = SignConv(16, 16, 3, padding=1, bias=False)
            self.twin = SignConv(16, 16, 3, padding=1, bias=False)
            self.twin.weight = self.conv.weight
            self.norm = nn.BatchNorm2d(16)
            self.fc = nn.Linear(16, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for _ in range(3):
                x = x + self.norm(self.conv(binary(x)))
            x = x - self.norm(self.twin(binary(-x)))
            return self.fc(x.mean([2, 3]))

    return Shared()


@habit(HABITS)
def double_precision() -> nn.Module:
    return Body(lambda _: torch.sign, MeanMagnitude).double()


@habit(HABITS)
def scripted() -> nn.Module:
    """TorchScript of a body that has no Python left in it."""
    import warnings

    model = lively(Body(lambda _: binary, Bytes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, torch.randn(1, 3, 16, 16))
