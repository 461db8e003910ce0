"""Binarized ResNet18, ResNet34 and cResNet20 with seeded random weights, made with numpy alone.

They go through the exporter's own steps after tracing, so they have the ops and shapes that `ovsw-export` gives the
trained networks (a test compares the two) and are as large and take as long; only their answers mean nothing.
"""

from __future__ import annotations

import numpy as np

from ovsw import format as bnn
from ovsw.bench.topology import NETWORKS, Topology
from ovsw.export import ir, passes
from ovsw.labels import load_labels


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


def _resnet(b: _Builder, image: ir.Node, net: Topology, num_classes: int) -> ir.Node:
    cout, window, stride = net.stem
    x = _hardtanh(b.conv("conv1", image, cout, window, stride))
    if net.imagenet:
        size = (x.shape[1] - 1) // 2 + 1
        x = ir.MaxPool("maxpool", [x], (cout, size, size), (3, 3), (2, 2), (1, 1))
    for block in net.blocks():
        short, half = x, x.shape[1] // 2
        if block.stride == 2 and net.imagenet:
            short = b.conv(f"{block.name}.downsample.0", x, block.cout, 1, 2)
        elif block.stride == 2:
            pool = ir.AvgPool(f"{block.name}.identity.0", [x], (block.cin, half, half), (2, 2), (2, 2), (0, 0))
            more = (block.cout - block.cin) // 2
            short = ir.ChannelPad(f"{block.name}.identity.1", [pool], (block.cout, half, half), more, more)
        x = b.bconv(f"{block.name}.conv1", x, short, block.cout, block.stride)
        x = b.bconv(f"{block.name}.conv2", x, x, block.cout, 1)
    return b.head(net.spec.classifier, x, num_classes)


STEMS = ("int8", "int16")  # weights of the first convolution: as trained for deployment, and for networks that were not


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
    if name not in NETWORKS:
        raise ValueError(f"unknown network '{name}', known are {', '.join(NETWORKS)}")
    spec = NETWORKS[name]
    image = spec.input if size is None else spec.input.at(size)
    num_classes = num_classes or spec.num_classes
    output = _resnet(_Builder(seed), ir.Input("x", [], image.shape), Topology(spec), num_classes)
    labels: str | list[str] = []
    if isinstance(image.labels, str) and num_classes == spec.num_classes:
        labels = image.labels if numerics == "integer" else load_labels(image.labels, num_classes)
    metadata = image.metadata(f"{name} (random weights)", num_classes, labels)
    graph = ir.Graph(ir.reachable(output))
    return passes.build(graph, image.mean, image.std, metadata, numerics, weights, stem)[0]


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
    graph, mean, std = ir.Graph(ir.reachable(output)), (0.5,) * shape[0], (0.25,) * shape[0]
    return passes.build(graph, mean, std, {"labels": []}, numerics, weights, stem)[0]
