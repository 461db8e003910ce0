"""The networks of RBNN, AdaBin, ReCU and Bi-Real a second time, from their formulas alone, and random weights for them.

Plain functional torch in float64 over a state dict with the keys of each method's own code. Shares nothing with `ovsw`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NOT_READ = (".num_batches_tracked", ".tau")


def pm1(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


class Judge:
    """Layers by key; `used` are the keys that were read, `margin` the smallest |value| whose sign was taken."""

    def __init__(self, method: str, state: State) -> None:
        self.method, self.state, self.used, self.margin = method, state, set[str](), math.inf

    def get(self, key: str) -> Tensor:
        self.used.add(key)
        return self.state[key].double()

    def sign(self, x: Tensor) -> Tensor:
        self.margin = min(self.margin, float(x.abs().min()))
        return pm1(x)

    def norm(self, x: Tensor, key: str) -> Tensor:
        parts = ("weight", "bias", "running_mean", "running_var")
        gamma, beta, mean, var = (self.get(f"{key}.{p}").view(-1, *[1] * (x.ndim - 2)) for p in parts)
        return gamma * (x - mean) / torch.sqrt(var + 1e-5) + beta

    def conv(self, x: Tensor, key: str, stride: int = 1, pad: int = 0) -> Tensor:
        return F.conv2d(x, self.get(f"{key}.weight"), stride=stride, padding=pad)

    def act(self, x: Tensor, key: str) -> Tensor:
        """Hardtanh, or AdaBin's two slopes."""
        if self.method != "AdaBin":
            return x.clamp(-1, 1)
        up, down = (self.get(f"{key}.{side}_scale").view(-1, 1, 1) for side in ("pos", "neg"))
        return torch.where(x >= 0, up * x, down * x)

    def binary(self, x: Tensor, key: str, stride: int = 1, pad: int = 1) -> Tensor:
        w = self.get(f"{key}.weights" if f"{key}.weights" in self.state else f"{key}.weight")
        w = w.reshape(-1, x.shape[1], *([3, 3] if pad else [1, 1]))
        mean = w.mean((1, 2, 3), keepdim=True)
        if self.method == "AdaBin":
            alpha, beta = (self.get(f"{key}.binary_a.{name}") for name in ("alpha_a", "beta_a"))
            width = ((w - mean) ** 2).mean((1, 2, 3), keepdim=True) ** 0.5
            levels = torch.where(w >= mean, mean + width, mean - width)
            return F.conv2d(alpha * (self.sign((x - beta) / alpha) + beta), levels, stride=stride, padding=pad)
        if self.method == "Bi-Real":
            return F.conv2d(self.sign(x), pm1(w), stride=stride, padding=pad) * w.abs().mean((1, 2, 3)).view(-1, 1, 1)
        alpha = self.get(f"{key}.alpha").view(-1, 1, 1)
        if self.method == "ReCU":
            return alpha * F.conv2d(self.sign(x), pm1(w - mean), stride=stride, padding=pad)
        n = w[0].numel()
        w = (w - mean) / (((w - mean) ** 2).sum((1, 2, 3), keepdim=True) / (n - 1)) ** 0.5
        r1, r2 = self.get(f"{key}.R1"), self.get(f"{key}.R2")
        assert r1.shape[0] == max(i for i in range(1, n + 1) if n % i == 0 and i * i <= n)
        turned = torch.einsum("ji,ojk,kl->oil", r1, w.reshape(len(w), len(r1), len(r2)), r2).reshape(w.shape)
        share = self.get(f"{key}.rotate").sin().abs()
        b = pm1((1 - share) * w + share * turned)
        return alpha * F.conv2d(self.sign(x - x.mean((1, 2, 3), keepdim=True)), b, stride=stride, padding=pad)

    def linear(self, x: Tensor, key: str) -> Tensor:
        return x @ self.get(f"{key}.weight").T + self.get(f"{key}.bias")


def smaller(x: Tensor, cout: int, average: bool) -> Tensor:
    """Half the size, zeros as further channels."""
    if x.shape[1] == cout:
        return x
    x = F.avg_pool2d(x, 2) if average else x[..., ::2, ::2]
    zeros = x.new_zeros(len(x), (cout - x.shape[1]) // 2, *x.shape[2:])
    return torch.cat([zeros, x, zeros], 1)


def resnet20(j: Judge, x: Tensor, average: bool, both: bool = True) -> Tensor:
    x = j.act(j.norm(j.conv(x, "conv1", 1, 1), "bn1"), "nonlinear1")
    for s, cout in enumerate((16, 32, 64), 1):
        for i in range(3):
            key, stride = f"layer{s}.{i}", 2 if s > 1 and i == 0 else 1
            across = smaller(x, cout, average)
            y = j.norm(j.binary(x, f"{key}.conv1", stride), f"{key}.bn1")
            y = j.act(y + across if both else y, f"{key}.nonlinear1")
            z = j.norm(j.binary(y, f"{key}.conv2"), f"{key}.bn2")
            x = j.act(z + (y if both else across), f"{key}.nonlinear2")
    return j.linear(j.norm(x.mean((2, 3)), "bn2"), "linear")


def resnet18(j: Judge, x: Tensor) -> Tensor:
    x = j.norm(j.conv(x, "conv1", 1, 1), "bn1")
    x = j.act(x, "nonlinear1") if j.method == "AdaBin" else x
    for s, cout in enumerate((64, 128, 256, 512), 1):
        for i in range(2):
            key, stride = f"layer{s}.{i}", 2 if s > 1 and i == 0 else 1
            across = x
            if stride == 2 and j.method == "ReCU":
                across = smaller(x, cout, True)
            elif stride == 2:
                real = j.method == "AdaBin"
                across = j.conv(x, f"{key}.shortcut.0", 2) if real else j.binary(x, f"{key}.shortcut.0", 2, 0)
                across = j.norm(across, f"{key}.shortcut.1")
            y = j.norm(j.binary(x, f"{key}.conv1", stride), f"{key}.bn1")
            y = j.act(y + across if j.method == "AdaBin" else y, f"{key}.nonlinear1")
            z = j.norm(j.binary(y, f"{key}.conv2"), f"{key}.bn2")
            x = j.act(z + (y if j.method == "AdaBin" else across), f"{key}.nonlinear2")
    return j.linear(j.norm(x.mean((2, 3)), "bn2"), "linear")


def vgg(j: Judge, x: Tensor) -> Tensor:
    x = j.norm(j.conv(x, "conv0", 1, 1), "bn0").clamp(-1, 1)
    for i in range(1, 6):
        x = j.binary(x, f"conv{i}")
        x = j.norm(F.max_pool2d(x, 2) if i % 2 else x, f"bn{i}").clamp(-1, 1)
    return j.linear(x.flatten(1), "fc")


def bireal_net(j: Judge, x: Tensor) -> Tensor:
    x = F.max_pool2d(j.norm(j.conv(x, "conv1", 2, 3), "bn1"), 3, 2, 1)
    for s, i in ((s, i) for s in range(1, 5) for i in range(4)):
        key, stride = f"layer{s}.{i}", 2 if s > 1 and i == 0 else 1
        across = x
        if stride == 2:
            across = j.norm(j.conv(F.avg_pool2d(x, 2), f"{key}.downsample.1"), f"{key}.downsample.2")
        x = j.norm(j.binary(x, f"{key}.binary_conv", stride), f"{key}.bn1") + across
    return j.linear(x.mean((2, 3)), "fc")


FORWARDS = {
    "RBNN_cResNet18_1w1a": ("RBNN", resnet18),
    "RBNN_cResNet20_1w1a": ("RBNN", lambda j, x: resnet20(j, x, average=False)),
    "RBNN_plain_cResNet20_1w1a": ("RBNN", lambda j, x: resnet20(j, x, average=False, both=False)),
    "RBNN_VGGSmall_1w1a": ("RBNN", vgg),
    "AdaBin_cResNet18_1w1a": ("AdaBin", resnet18),
    "AdaBin_cResNet20_1w1a": ("AdaBin", lambda j, x: resnet20(j, x, average=False)),
    "ReCU_cResNet18_1w1a": ("ReCU", resnet18),
    "ReCU_cResNet20_1w1a": ("ReCU", lambda j, x: resnet20(j, x, average=True)),
    "ReCU_VGGSmall_1w1a": ("ReCU", vgg),
    "BiReal_cResNet20_1w1a": ("Bi-Real", lambda j, x: resnet20(j, x, average=True)),
    "BiRealNet18_1w1a": ("Bi-Real", bireal_net),
}


def logits(arch: str, state: State, x: np.ndarray) -> np.ndarray:
    """Float64 logits of a float32 batch; every tensor of the state must have had a part in them."""
    method, forward = FORWARDS[arch]
    judge = Judge(method, state)
    with torch.no_grad():
        found = forward(judge, torch.from_numpy(x).double()).numpy()
    unused = {key for key in state if not key.endswith(NOT_READ)} - judge.used
    assert unused == set()
    assert judge.margin > 1e-9, "a sign is taken of what is nearly 0: other images"
    return found


def randomised(state: State, seed: int) -> State:
    """The same keys with random values, none of which is as a fresh network has it."""
    rng = np.random.default_rng(seed)

    def draw(key: str, shape: tuple[int, ...]) -> np.ndarray:
        name = key.rpartition(".")[2]
        if name in ("R1", "R2"):
            return np.linalg.qr(rng.normal(size=shape))[0]
        if name == "rotate":
            return rng.uniform(0.3, 2.8, shape)
        if name in ("running_var", "alpha_a"):
            return rng.uniform(0.4, 2, shape)
        if name in ("alpha", "pos_scale", "neg_scale") or (name == "weight" and len(shape) == 1):
            return rng.uniform(0.2, 1.5, shape) * np.where(rng.random(shape) < 0.15, -1, 1)
        if name == "weight" and len(shape) == 4:
            fan_in = math.prod(shape[1:])
            return rng.normal(size=shape) / fan_in**0.5 + rng.normal(0, 0.5 / fan_in**0.5, (shape[0], 1, 1, 1))
        return rng.normal(0, 0.3, shape)

    return {
        key: value if key.endswith(NOT_READ) else torch.from_numpy(draw(key, tuple(value.shape)).astype(np.float32))
        for key, value in state.items()
    }
