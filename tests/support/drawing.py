"""Graphs by hand for `ovsw-export --explain`: dense blocks, long chains, several results, names that mean harm."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovsw.export import ir

RNG = np.random.default_rng(7)


class Builder:
    """Nodes one after the other, named by the caller."""

    def __init__(self, channels: int = 3, side: int = 32) -> None:
        self.image = ir.Input("x", [], (channels, side, side))
        self.nodes: list[ir.Node] = [self.image]

    def add(self, kind: type[ir.Node], name: str, inputs: list[ir.Node], shape: ir.Shape, *more: Any) -> Any:
        node = kind(name, inputs, shape, *more)
        self.nodes.append(node)
        return node

    def conv(self, name: str, x: ir.Node, channels: int, binary: bool = True, side: int = 3) -> ir.Node:
        weight = RNG.normal(size=(channels, x.shape[0], side, side)).astype(np.float32)
        shape = (channels, *x.shape[1:])
        geometry = ((side, side), (1, 1), (side // 2, side // 2))
        if binary:
            return self.add(ir.BinaryConv, name, [x], shape, *geometry, weight, np.full(channels, 0.1))
        return self.add(ir.Conv, name, [x], shape, *geometry, weight)

    def norm(self, name: str, x: ir.Node) -> ir.Node:
        c = x.shape[0]
        values = (RNG.normal(size=c), RNG.normal(size=c), RNG.normal(size=c), RNG.uniform(0.5, 2, c), 1e-5)
        return self.add(ir.Norm, name, [x], x.shape, *values)

    def clamp(self, name: str, x: ir.Node) -> ir.Node:
        return self.add(ir.Act, name, [x], x.shape, "clamp", -1.0, 1.0)

    def join(self, name: str, *inputs: ir.Node) -> ir.Node:
        return self.add(ir.Concat, name, list(inputs), (sum(x.shape[0] for x in inputs), *inputs[0].shape[1:]))

    def sum(self, name: str, x: ir.Node, y: ir.Node) -> ir.Node:
        return self.add(ir.Add, name, [x, y], x.shape)

    def pool(self, name: str, x: ir.Node, side: int = 2) -> ir.Node:
        shape = (x.shape[0], x.shape[1] // side, x.shape[2] // side)
        return self.add(ir.AvgPool, name, [x], shape, (side, side), (side, side), (0, 0))

    def classify(self, x: ir.Node, classes: int = 10) -> ir.Node:
        x = self.pool("pool", x, x.shape[1])
        weight = RNG.normal(size=(classes, x.shape[0])).astype(np.float32)
        return self.add(ir.Linear, "fc", [x], (classes, 1, 1), weight, np.ones(classes))


def dense(blocks: int = 3, layers: int = 4) -> ir.Graph:
    """Every layer of a block reads what all before it gave."""
    b = Builder()
    x = b.norm("bn", b.conv("stem", b.image, 16, binary=False))
    for i in range(blocks):
        maps = [x]
        for j in range(layers):
            name = f"block{i}.{j}"
            y = b.join(f"{name}.cat", *maps) if len(maps) > 1 else x
            y = b.norm(f"{name}.bn", y)
            maps.append(b.norm(f"{name}.after", b.conv(f"{name}.conv", y, 8)))
        x = b.join(f"block{i}.out", *maps)
        if i < blocks - 1:
            x = b.pool(f"down{i}.pool", b.norm(f"down{i}.bn", b.conv(f"down{i}.conv", x, 16, binary=False, side=1)))
    b.classify(x)
    return ir.Graph(b.nodes)


def chain(ops: int) -> ir.Graph:
    """Residual blocks of two binary convolutions, `ops` ops in all."""
    b = Builder(side=8)
    x = b.clamp("act", b.norm("bn", b.conv("stem", b.image, 16, binary=False)))
    for i in range((ops - 3) // 2):
        y = b.clamp(f"layer{i}.act1", b.norm(f"layer{i}.bn1", b.conv(f"layer{i}.conv1", x, 16)))
        y = b.sum(f"layer{i}.add", b.norm(f"layer{i}.bn2", b.conv(f"layer{i}.conv2", y, 16)), x)
        x = b.clamp(f"layer{i}.act2", y)
    b.classify(x)
    return ir.Graph(b.nodes)


def ladder(steps: int = 4) -> ir.Graph:
    """Down and up again with connections across, and a map of every height as a result."""
    b = Builder(side=32)
    x = b.clamp("act", b.norm("bn", b.conv("stem", b.image, 16, binary=False)))
    kept, results = [], []
    for i in range(steps):
        kept.append(x)
        x = b.pool(f"down{i}.pool", b.clamp(f"down{i}.act", b.norm(f"down{i}.bn", b.conv(f"down{i}.conv", x, 16))))
    for i in reversed(range(steps)):
        c, h, w = x.shape
        rows = np.arange(2 * h) // 2
        x = b.add(ir.Gather, f"up{i}.nearest", [x], (c, 2 * h, 2 * w), np.arange(c), rows, rows)
        x = b.join(f"up{i}.cat", x, kept[i])
        x = b.clamp(f"up{i}.act", b.norm(f"up{i}.bn", b.conv(f"up{i}.conv", x, 16)))
        results.append(b.conv(f"head{i}", x, 3, binary=False, side=1))
    return ir.Graph(b.nodes, outputs=results[::-1])


def gated() -> ir.Graph:
    """One of everything else: a gate per channel, thresholds, two slopes, levels, moves, a softmax."""
    b = Builder(side=16)
    x = b.clamp("act", b.norm("bn", b.conv("stem", b.image, 16, binary=False)))
    gate = b.conv("gate.conv", b.pool("gate.pool", x, 16), 16, binary=False, side=1)
    x = b.add(ir.Mul, "gate.mul", [x, b.add(ir.Act, "gate.sigmoid", [gate], gate.shape, "sigmoid")], x.shape)
    x = b.add(ir.ChannelPad, "wide", [x], (20, 16, 16), 2, 2)
    x = b.add(ir.MaxPool, "peak", [x], (20, 8, 8), (3, 3), (2, 2), (0, 0), (1, 1), True)
    rows, parts = np.array([0, 0, 1, 1] * 2), np.array([0.0, 0.5, 0.0, 0.5] * 2)
    x = b.add(ir.Bilinear, "zoom", [x], (20, 8, 8), rows, parts, rows, parts)
    weight = RNG.normal(size=(8, 5, 3, 3)).astype(np.float32)
    window = ((3, 3), (1, 1), (2, 2), weight, np.ones(8), (2, 2), -1.0, np.full(8, 0.5))
    x = b.add(ir.BinaryConv, "odd", [x], (8, 8, 8), *window)
    x = b.add(ir.Act, "odd.prelu", [x], x.shape, "prelu", 0.0, 0.0, np.full(8, 0.25), np.full(8, 0.5))
    x = b.add(ir.Act, "levels", [x], x.shape, "step", 0.0, 2.0)
    logits = b.classify(x)
    b.add(ir.Softmax, "soft", [logits], logits.shape)
    return ir.Graph(b.nodes)
