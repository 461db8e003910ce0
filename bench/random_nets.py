"""Binarized ResNet18, ResNet34 and cResNet20 with seeded random weights, made with numpy alone.

They go through the exporter's own steps after tracing, so they have the ops and shapes that `ovsw-export` gives the
trained networks (a test compares the two) and are as large and take as long; only their answers mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.export import ir
from ovsw.export.fold import fold
from ovsw.export.pack import pack, pack_integer
from ovsw.export.quantize import quantize
from ovsw.labels import load_labels

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
CIFAR_BLOCKS = {"cresnet20": (3, 3, 3)}
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))


class _Builder:
    """Makes nodes with random weights, as tracing would give them but for batch norms, which are affines here."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def affine(self, x: ir.Node, fan_in: int) -> ir.Node:
        """A multiplier that gives sums over `fan_in` terms unit size, and a small offset."""
        channels = x.shape[0]
        scale = self.rng.uniform(0.5, 1.5, channels) / np.sqrt(fan_in)
        return ir.Affine(f"{x.name}.norm", [x], x.shape, scale, self.rng.normal(0.0, 0.3, channels))

    def conv(self, name: str, x: ir.Node, cout: int, k: int, stride: int) -> ir.Node:
        """A real convolution with batch norm."""
        cin, size, _ = x.shape
        out, weight = (size - 1) // stride + 1, self.rng.normal(0.0, 1.0, (cout, cin, k, k)).astype(np.float32)
        node = ir.Conv(name, [x], (cout, out, out), (k, k), (stride, stride), (k // 2, k // 2), weight)
        return self.affine(node, k * k * cin)

    def bconv(self, name: str, x: ir.Node, residual: ir.Node, cout: int, stride: int) -> ir.Node:
        """A binary convolution with batch norm, shortcut and hardtanh."""
        cin, size, _ = x.shape
        out = (size - 1) // stride + 1
        weight = self.rng.integers(0, 2, (cout, cin, 3, 3), np.int8).astype(np.float32) - 0.5
        geometry = ((3, 3), (stride, stride), (1, 1))
        node = ir.BinaryConv(name, [x], (cout, out, out), *geometry, weight=weight, scale=np.ones(cout))
        normed = self.affine(node, 9 * cin)
        return _hardtanh(ir.Add(f"{name}.add", [normed, residual], normed.shape))

    def head(self, name: str, x: ir.Node, num_classes: int) -> ir.Node:
        """Global average, batch norm and classifier."""
        c, size, _ = x.shape
        average = ir.AvgPool("avgpool", [x], (c, 1, 1), (size, size), (size, size), (0, 0))
        weight = self.rng.normal(0.0, 1.0, (num_classes, c)).astype(np.float32)
        logits = ir.Linear(name, [self.affine(average, 1)], (num_classes, 1, 1), weight)
        return self.affine(logits, c)


def _hardtanh(x: ir.Node) -> ir.Node:
    return ir.Act(f"{x.name}.hardtanh", [x], x.shape, "clamp", -1.0, 1.0)


def _imagenet(b: _Builder, image: ir.Node, blocks: tuple[int, ...], num_classes: int) -> ir.Node:
    x = _hardtanh(b.conv("conv1", image, 64, 7, 2))
    size = (x.shape[1] - 1) // 2 + 1
    x = ir.MaxPool("maxpool", [x], (64, size, size), (3, 3), (2, 2), (1, 1))
    for stage, count in enumerate(blocks, start=1):
        cout = 32 << stage
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            short = x if stride == 1 else b.conv(f"{prefix}.downsample.0", x, cout, 1, 2)
            x = b.bconv(f"{prefix}.conv1", x, short, cout, stride)
            x = b.bconv(f"{prefix}.conv2", x, x, cout, 1)
    return b.head("fc", x, num_classes)


def _cifar(b: _Builder, image: ir.Node, blocks: tuple[int, ...], num_classes: int) -> ir.Node:
    x = _hardtanh(b.conv("conv1", image, 16, 3, 1))
    for stage, count in enumerate(blocks, start=1):
        cout = 8 << stage
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            short, stride = x, 1
            if stage > 1 and block == 0:
                stride, cin, half, quarter = 2, x.shape[0], x.shape[1] // 2, cout // 4
                pool = ir.AvgPool(f"{prefix}.pool", [x], (cin, half, half), (2, 2), (2, 2), (0, 0))
                short = ir.ChannelPad("pad" if stage == 2 else "pad_1", [pool], (cout, half, half), quarter, quarter)
            x = b.bconv(f"{prefix}.conv1", x, short, cout, stride)
            x = b.bconv(f"{prefix}.conv2", x, x, cout, 1)
    return b.head("linear", x, num_classes)


def random_resnet(
    name: str,
    seed: int = 0,
    num_classes: int | None = None,
    size: int | None = None,
    numerics: str = "float",
    weights: str = "int16",
    stem: str | None = None,
) -> bnn.Model:
    """A model of "resnet18", "resnet34" or "cresnet20", by default with its usual classes and input size."""
    cifar = name in CIFAR_BLOCKS
    size = size or (32 if cifar else 224)
    num_classes = num_classes or (10 if cifar else 1000)
    shape, b = (3, size, size), _Builder(seed)
    image = ir.Input("x", [], shape)
    if cifar:
        output = _cifar(b, image, CIFAR_BLOCKS[name], num_classes)
    else:
        output = _imagenet(b, image, BLOCKS[name], num_classes)
    mean, std = _CIFAR if cifar else _IMAGENET
    metadata: dict[str, Any] = {
        "producer": f"ovsw {__version__}",
        "arch": f"{name} (random weights)",
        "num_classes": num_classes,
        "preprocess": {"resize": size if cifar else round(size * 256 / 224), "crop": size},
        "labels": [],
    }
    if num_classes == 1000:
        metadata["labels"] = "imagenet" if numerics == "integer" else load_labels("imagenet", 1000)
    return _packed(output, shape, mean, std, metadata, numerics, weights, stem)


def ideal_layers(numerics: str, weights: str = "int16", stem: str | None = None) -> bnn.Model:
    """A network whose convolutions suit the kernels: many channels each way, all of it in the cache of a core.

    It has every kind of convolution that a network of these numerics and weights can have.
    """
    b, shape = _Builder(0), (64, 28, 28)
    image = ir.Input("x", [], shape)
    x = _hardtanh(b.conv("pixels", image, 256, 3, 1))
    x = b.bconv("binary.256", x, x, 256, 1)
    x = b.bconv("binary.512", x, b.conv("stream", x, 512, 1, 1), 512, 1)
    output = b.head("fc", x, 10)
    return _packed(output, shape, (0.5,) * shape[0], (0.25,) * shape[0], {"labels": []}, numerics, weights, stem)


def _packed(
    output: ir.Node,
    shape: ir.Shape,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    numerics: str,
    weights: str,
    stem: str | None,
) -> bnn.Model:
    """The model that the exporter would make of these nodes."""
    ops = fold(ir.Graph(ir.reachable(output)))
    if numerics == "float":
        return pack(ops, shape, mean, std, metadata)
    made, _ = quantize(ops, mean, std, weights, stem)
    return pack_integer(made, shape, mean, std, metadata)
