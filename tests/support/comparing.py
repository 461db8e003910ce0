"""A network's graph beside the network itself: whatever the front end made of it, evaluated naively in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ovsw.export import ir
from ovsw.export.frontend.torch_module import trace

from support.interpret import interpret

Shape = tuple[int, int, int]


def unsupported(graph: ir.Graph) -> list[str]:
    return [node.reason for node in graph.nodes if isinstance(node, ir.Unsupported)]


def kinds(graph: ir.Graph, kind: type[ir.Node]) -> list[Any]:
    return [node for node in graph.nodes if isinstance(node, kind)]


def outputs_of(network: Callable[[Any], Any], images: np.ndarray) -> list[np.ndarray]:
    """What torch computes, one image at a time, in float64 if it is a module, flat."""
    if isinstance(network, nn.Module):
        network = network.eval().double()
    found = []
    for image in images:
        with torch.no_grad():
            result = network(torch.tensor(image[None], dtype=torch.float64))
        found.append(
            [r.double().numpy().reshape(-1) for r in (result if isinstance(result, (tuple, list)) else [result])]
        )
    return [np.stack(parts) for parts in zip(*found)]


def assert_same(network: Any, shape: Shape = (4, 6, 6), images: int = 3, scale: float = 2.0) -> ir.Graph:
    """Records a network and compares its graph with it; gives the graph."""
    graph = trace(network, shape)
    assert unsupported(graph) == []
    x = np.random.default_rng(0).normal(size=(images, *shape)) * scale
    x = x.astype(np.float32).astype(np.float64)
    x[0].flat[::7] = 0.0  # where signs differ in what they make of it
    expected = outputs_of(network, x[1:])
    for found, wanted in zip(interpret(graph, x[1:]), expected):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=1e-6 * max(1.0, np.abs(wanted).max()))
    return graph
