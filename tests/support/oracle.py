"""The networks a second time, from their description alone: the judge of exporter and engine.

Plain functional torch in float64 over a state dict with the reference's key names. Shares no code with `ovsw`, so that
a misreading there cannot hide here. Also makes random checkpoints whose every part has an effect on the logits, and
reads the compact goldens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]
Rng = np.random.Generator

ARCHS = ("ResNet18_1w1a", "ResNet34_1w1a", "cResNet18_1w1a", "cResNet20_1w1a", "VGGSmall_1w1a")
REACT = ("ReActResNet18_1w1a", "ReActResNet34_1w1a")
EPS = 1e-5
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
_BLOCKS = {"ResNet18_1w1a": (2, 2, 2, 2), "ResNet34_1w1a": (3, 4, 6, 3)}
_SINGLE = dict(zip(REACT, ((4, 4, 4, 4), (6, 8, 12, 6))))  # blocks of one convolution


def input_size(arch: str) -> int:
    return 224 if arch in (*_BLOCKS, *REACT) else 32


def prepare(arch: str, images: np.ndarray, mean: Any = None, std: Any = None) -> np.ndarray:
    """uint8 (n, h, w, 3) to float32 (n, 3, h, w), in float32 and in the order of ToTensor and Normalize."""
    usual = IMAGENET if input_size(arch) == 224 else CIFAR
    mean, std = (np.asarray(b if a is None else a, np.float32) for a, b in zip((mean, std), usual))
    scaled = (images.astype(np.float32) / np.float32(255) - mean) / std
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def logits(arch: str, state: State, x: np.ndarray) -> np.ndarray:
    """Float64 logits of a float32 (n, 3, h, w) batch."""
    return _evaluate(arch, state, x)[0]


def min_margin(arch: str, state: State, x: np.ndarray) -> np.ndarray:
    """Per image, the smallest |value| whose sign is taken: rounding errors above it change the logits altogether.

    Exact zeros (of dead channels) are left out: no rounding makes them anything else.
    """
    return _evaluate(arch, state, x)[1]


def pick_images(
    arch: str,
    state: State,
    rng: Rng,
    n: int,
    tries: int,
    size: int | None = None,
    mean: Any = None,
    std: Any = None,
) -> np.ndarray:
    """The n of `tries` random uint8 images whose margins are largest."""
    size = size or input_size(arch)
    images = rng.integers(0, 256, (tries, size, size, 3), np.uint8)
    margins = [min_margin(arch, state, prepare(arch, image[None], mean, std))[0] for image in images]
    return images[np.argsort(np.negative(margins), kind="stable")[:n]]


def _evaluate(arch: str, state: State, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    net = _Net(state)
    with torch.no_grad():
        y = _FORWARDS[arch](net, torch.from_numpy(x).double())
    return y.numpy(), net.margin.numpy()


class _Net:
    """The layers by key. Subclassed to set running statistics on the way."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.margin = torch.tensor(torch.inf, dtype=torch.float64)

    def has(self, key: str) -> bool:
        return key in self.state

    def get(self, key: str) -> Tensor:
        return self.state[key].double()

    def binary(self, x: Tensor, key: str, stride: int = 1, pad: int = 1, standardised: bool = True) -> Tensor:
        """The scale is learned, or the mean |w| of the standardised or of the raw weight."""
        w = self.get(f"{key}.weight")
        self.margin = torch.minimum(self.margin, x.abs().where(x != 0, torch.inf).flatten(1).amin(1))
        if self.has(f"{key}.scaling_factor"):
            alpha = self.get(f"{key}.scaling_factor").flatten()
        elif not standardised:
            alpha = w.abs().mean((1, 2, 3))
        else:
            rows = w.reshape(len(w), -1)
            centred = rows - rows.mean(1)[:, None]
            variance = (centred**2).sum(1) / (rows.shape[1] - 1)
            alpha = (centred.abs() / (variance + EPS).sqrt()[:, None]).mean(1)
        return F.conv2d(_pm1(x), _pm1(w), stride=stride, padding=pad) * alpha[:, None, None]

    def conv(self, x: Tensor, key: str, stride: int = 1, pad: int = 0) -> Tensor:
        bias = self.get(f"{key}.bias") if self.has(f"{key}.bias") else None
        return F.conv2d(x, self.get(f"{key}.weight"), bias, stride, pad)

    def linear(self, x: Tensor, key: str) -> Tensor:
        return x @ self.get(f"{key}.weight").T + self.get(f"{key}.bias")

    def bn(self, x: Tensor, key: str) -> Tensor:
        parts = ("weight", "bias", "running_mean", "running_var")
        gamma, beta, mean, var = (self.get(f"{key}.{p}").view(-1, *[1] * (x.ndim - 2)) for p in parts)
        return (x - mean) / (var + EPS).sqrt() * gamma + beta


def _pm1(x: Tensor) -> Tensor:
    return (x >= 0).double() * 2 - 1


def _two_shortcuts(net: _Net, x: Tensor, key: str, stride: int, shortcut: Tensor) -> Tensor:
    y = F.hardtanh(net.bn(net.binary(x, f"{key}.conv1", stride), f"{key}.bn1") + shortcut)
    return F.hardtanh(net.bn(net.binary(y, f"{key}.conv2"), f"{key}.bn2") + y)


def _blocks(counts: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Key and stride of each block."""
    for layer, count in enumerate(counts, 1):
        for i in range(count):
            yield f"layer{layer}.{i}", 2 if layer > 1 and i == 0 else 1


def _resnet(counts: tuple[int, ...]) -> Callable[[_Net, Tensor], Tensor]:
    def forward(net: _Net, x: Tensor) -> Tensor:
        x = F.hardtanh(net.bn(net.conv(x, "conv1", 2, 3), "bn1"))
        x = F.max_pool2d(x, 3, 2, 1)
        for key, stride in _blocks(counts):
            down = f"{key}.downsample"
            short = net.bn(net.conv(x, f"{down}.0", 2), f"{down}.1") if stride == 2 else x
            x = _two_shortcuts(net, x, key, stride, short)
        return net.linear(net.bn(x.mean((2, 3)), "bn2"), "fc")

    return forward


def _cresnet18(net: _Net, x: Tensor) -> Tensor:
    x = net.bn(net.conv(x, "conv1", 1, 1), "bn1")
    for key, stride in _blocks((2, 2, 2, 2)):
        y = F.hardtanh(net.bn(net.binary(x, f"{key}.conv1", stride), f"{key}.bn1"))
        short = f"{key}.shortcut"
        r = net.bn(net.binary(x, f"{short}.0", 2, 0), f"{short}.1") if stride == 2 else x
        x = F.hardtanh(net.bn(net.binary(y, f"{key}.conv2"), f"{key}.bn2") + r)
    return net.conv(net.bn(x.mean((2, 3), keepdim=True), "bn2"), "fc").flatten(1)


def _cresnet20(net: _Net, x: Tensor) -> Tensor:
    x = F.hardtanh(net.bn(net.conv(x, "conv1", 1, 1), "bn1"))
    for key, stride in _blocks((3, 3, 3)):
        short = x
        if stride == 2:
            quarter = x.shape[1] // 2
            n, _, h, w = x.shape
            nothing = torch.zeros(n, quarter, h // 2, w // 2, dtype=x.dtype)
            short = torch.cat([nothing, F.avg_pool2d(x, 2), nothing], 1)
        x = _two_shortcuts(net, x, key, stride, short)
    return net.linear(net.bn(x.mean((2, 3)), "bn2"), "linear")


def _vggsmall(net: _Net, x: Tensor) -> Tensor:
    x = F.hardtanh(net.bn(net.conv(x, "conv0", 1, 1), "bn0"))
    for i in range(1, 6):
        y = net.binary(x, f"conv{i}")
        if i % 2:
            y = F.max_pool2d(y, 2)
        y = net.bn(y, f"bn{i}")
        x = F.hardtanh(y) if i < 5 else F.prelu(y, net.get("nonlinear5.weight"))
    return net.linear(x.flatten(1), "fc")


def _react(counts: tuple[int, ...]) -> Callable[[_Net, Tensor], Tensor]:
    def forward(net: _Net, x: Tensor) -> Tensor:
        x = F.max_pool2d(net.bn(net.conv(x, "conv1", 2, 3), "bn1"), 3, 2, 1)
        for key, stride in _blocks(counts):
            short = x
            if stride == 2:
                pooled = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
                short = net.bn(net.conv(pooled, f"{key}.downsample.1"), f"{key}.downsample.2")
            y = net.binary(x + net.get(f"{key}.move0.bias"), f"{key}.binary_conv", stride, standardised=False)
            y = net.bn(y, f"{key}.bn1") + short + net.get(f"{key}.move1.bias")
            y = torch.where(y > 0, y, y * net.get(f"{key}.prelu.weight")[:, None, None])
            x = y + net.get(f"{key}.move2.bias")
        return net.linear(x.mean((2, 3)), "fc")

    return forward


_FORWARDS: dict[str, Callable[[_Net, Tensor], Tensor]] = {
    **{arch: _resnet(counts) for arch, counts in _BLOCKS.items()},
    **{arch: _react(counts) for arch, counts in _SINGLE.items()},
    "cResNet18_1w1a": _cresnet18,
    "cResNet20_1w1a": _cresnet20,
    "VGGSmall_1w1a": _vggsmall,
}


def layout(arch: str, num_classes: int, size: int | None = None) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(key, kind, shape) of each layer in the reference's order; kinds are bin, conv, fc, bn, prelu, shift."""
    if arch == "VGGSmall_1w1a":
        widths = (3, 128, 128, 256, 256, 512, 512)
        for i in range(6):
            yield f"conv{i}", "bin" if i else "conv", (widths[i + 1], widths[i], 3, 3)
            yield f"bn{i}", "bn", (widths[i + 1],)
        yield "nonlinear5", "prelu", (512,)
        yield "fc", "fc", (num_classes, 512 * ((size or 32) // 8) ** 2)
        return
    if arch in REACT:
        yield from _react_layout(arch, num_classes)
        return
    first, counts = (16, (3, 3, 3)) if arch == "cResNet20_1w1a" else (64, _BLOCKS.get(arch, (2, 2, 2, 2)))
    kernel = 7 if arch in _BLOCKS else 3
    yield "conv1", "conv", (first, 3, kernel, kernel)
    yield "bn1", "bn", (first,)
    c = first
    for key, stride in _blocks(counts):
        cin, c = c, c * stride
        yield f"{key}.conv1", "bin", (c, cin, 3, 3)
        yield f"{key}.bn1", "bn", (c,)
        yield f"{key}.conv2", "bin", (c, c, 3, 3)
        yield f"{key}.bn2", "bn", (c,)
        if stride == 2 and arch != "cResNet20_1w1a":
            side, kind = ("downsample", "conv") if arch in _BLOCKS else ("shortcut", "bin")
            yield f"{key}.{side}.0", kind, (c, cin, 1, 1)
            yield f"{key}.{side}.1", "bn", (c,)
    yield "bn2", "bn", (c,)
    if arch == "cResNet20_1w1a":
        yield "linear", "fc", (num_classes, c)
    else:
        yield "fc", "fc", (num_classes, c, 1, 1) if arch == "cResNet18_1w1a" else (num_classes, c)


def _react_layout(arch: str, num_classes: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield "conv1", "conv", (64, 3, 7, 7)
    yield "bn1", "bn", (64,)
    c = 64
    for key, stride in _blocks(_SINGLE[arch]):
        cin, c = c, c * stride
        yield f"{key}.move0", "shift", (1, cin, 1, 1)
        yield f"{key}.binary_conv", "bin", (c, cin, 3, 3)
        yield f"{key}.bn1", "bn", (c,)
        yield f"{key}.move1", "shift", (1, c, 1, 1)
        yield f"{key}.prelu", "prelu", (c,)
        yield f"{key}.move2", "shift", (1, c, 1, 1)
        if stride == 2:
            yield f"{key}.downsample.1", "conv", (c, cin, 1, 1)
            yield f"{key}.downsample.2", "bn", (c,)
    yield "fc", "fc", (num_classes, c)


def random_state(
    arch: str,
    num_classes: int,
    rng: Rng,
    learned: bool = False,
    negative_alpha: bool = False,
    buffers: bool = False,
    norm_weight: float | None = None,
    size: int | None = None,
) -> State:
    """A checkpoint in which nothing is neutral, so that no convention can be got wrong without a trace.

    Args:
        learned: with `scaling_factor`; `negative_alpha`: a third of them negative.
        buffers: with the trainer's `weight_prev` and `tracker`.
        norm_weight: the weight of all batch norms but the head's, with bias 0, as at initialisation.
        size: side of the input for which running statistics (and VGGSmall's classifier) are made.
    """
    state: State = {}

    def put(key: str, values: np.ndarray) -> None:
        state[key] = torch.from_numpy(np.ascontiguousarray(values, np.float32))

    for key, kind, shape in layout(arch, num_classes, size):
        fan_in = int(np.prod(shape[1:]))
        if kind == "bn":
            sign = np.where(rng.random(shape) < 0.15, -1.0, 1.0)
            initial = norm_weight is not None and key != _head_norm(arch)
            put(f"{key}.weight", np.full(shape, norm_weight) if initial else sign * rng.uniform(0.5, 1.5, shape))
            put(f"{key}.bias", np.zeros(shape) if initial else rng.normal(0, 0.3, shape))
            put(f"{key}.running_mean", np.zeros(shape))
            put(f"{key}.running_var", np.ones(shape))
            state[f"{key}.num_batches_tracked"] = torch.tensor(1000)
        elif kind == "prelu":
            put(f"{key}.weight", rng.normal(0.25, 0.2, shape))
        elif kind == "shift":
            put(f"{key}.bias", rng.normal(0, 0.4, shape))
        elif kind == "bin":
            put(f"{key}.weight", _binary_weight(shape, rng))
            if learned:
                turned = np.where(rng.random(shape[0]) < 1 / 3, -1.0, 1.0) if negative_alpha else 1.0
                put(f"{key}.scaling_factor", turned * rng.uniform(0.5, 1.5, shape[0]) / fan_in**0.5)
            if buffers:
                state[f"{key}.weight_prev"] = state[f"{key}.weight"].clone()
                state[f"{key}.tracker"] = torch.zeros(shape)
        else:
            put(f"{key}.weight", rng.normal(0, fan_in**-0.5, shape))
            if kind == "fc":
                put(f"{key}.bias", rng.normal(0, 0.5, shape[0]))
    side = size or input_size(arch)
    images = rng.integers(0, 256, (4, side, side, 3), np.uint8)
    with torch.no_grad():
        _FORWARDS[arch](_Calibration(state, rng, _head_norm(arch)), torch.from_numpy(prepare(arch, images)).double())
    return state


def _head_norm(arch: str) -> str:
    return "bn5" if arch == "VGGSmall_1w1a" else "bn2"


def _binary_weight(shape: tuple[int, ...], rng: Rng) -> np.ndarray:
    """Channels of differing spread and non-zero mean; one weight in a hundred is nearly zero."""
    spread = rng.uniform(0.5, 1.5, (shape[0], 1, 1, 1)) * (2 / np.prod(shape[1:])) ** 0.5
    w = spread * (rng.normal(0, 1, shape) + rng.normal(0, 0.4, (shape[0], 1, 1, 1)))
    w *= np.where(rng.random(shape) < 0.01, 1e-4, 1.0)
    return np.where(w == 0, spread, w)


class _Calibration(_Net):
    """Takes each batch norm's statistics from the batch, slightly off, and goes on with those."""

    def __init__(self, state: State, rng: Rng, head: str) -> None:
        super().__init__(state)
        self.rng = rng
        self.head = head

    def bn(self, x: Tensor, key: str) -> Tensor:
        axes = [0, *range(2, x.ndim)]
        mean, var = x.mean(axes), x.var(axes)
        shift, stretch = self.rng.normal(0, 0.1, len(mean)), self.rng.uniform(0.7, 1.4, len(mean))
        self.state[f"{key}.running_mean"] = (mean + var.sqrt() * torch.from_numpy(shift)).float()
        self.state[f"{key}.running_var"] = (var * torch.from_numpy(stretch)).float()
        if key == self.head:  # behind tiny norms, eps would hide everything from the logits
            weight = self.get(f"{key}.weight") * ((var + EPS) / var.clamp(min=1e-30)).sqrt()
            self.state[f"{key}.weight"] = weight.float()
        return super().bn(x, key)


def golden(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The checkpoint of a compact golden NAME.npz as its trainer writes it, and the arrays of NAME.io.npz.

    A binary weight is scale[channel] * sign * level[code]. The optimizer's state is left out.
    """
    with np.load(path) as file, np.load(path.with_suffix(".io.npz")) as io:
        packed, arrays = dict(file), dict(io)
    meta = json.loads(str(packed["meta"]))
    codes = np.stack([packed["codes"] >> shift & 3 for shift in (0, 2, 4, 6)], 1).ravel()
    signs = np.unpackbits(packed["signs"]).astype(np.float32) * 2 - 1
    pools = {
        "bin": packed["levels"][codes] * signs[: len(codes)],
        "scale": packed["scales"],
        "f16": packed["f16"].astype(np.float32),
        "f32": packed["f32"],
    }

    def take(kind: str, shape: list[int]) -> np.ndarray:
        count = int(np.prod(shape))
        taken, pools[kind] = pools[kind][:count], pools[kind][count:]
        return taken.reshape(shape)

    state: State = {}
    for key, kind, shape in meta["keys"]:
        if kind == "bin":
            value = torch.from_numpy(take("scale", [shape[0], *[1] * (len(shape) - 1)]) * take("bin", shape))
        elif kind == "prev":
            value = state[key.replace("weight_prev", "weight")].clone()
        elif kind == "zeros":
            value = torch.zeros(shape)
        elif kind == "steps":
            value = torch.tensor(meta["num_batches_tracked"])
        else:
            value = torch.from_numpy(take(kind, shape).copy())
        state[key] = value
    fields = {k: v for k, v in meta["checkpoint"] if v != "$optimizer"}
    fields["state_dict"] = {meta["prefix"] + key: value for key, value in state.items()}
    return fields, arrays
