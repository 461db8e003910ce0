"""The front end for PyTorch: any module or function becomes a graph of nodes, in any coding style.

The network is run once under the recorder, in eval mode, with copies of its tensors, in float64 if that gives the same
results. It is not changed. An operation that is not supported becomes an `Unsupported` node, so that `validate` can
report all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend import elementwise, pools, windows
from ovsw.export.frontend.builder import GraphBuilder
from ovsw.export.frontend.layers import LAYERS
from ovsw.export.frontend.recorder import record
from ovsw.export.frontend.standin import standing_in
from ovsw.export.frontend.values import Place, Places
from ovsw.export.source import Source
from ovsw.networks import InputSpec
from ovsw.nn import binary_layers
from ovsw.util.text import first_line

Network = Callable[[Tensor], Any]
assert all(module.__name__ for module in (elementwise, pools, windows))  # whose operations GraphBuilder finds

_AGREE = 1e-3  # of the largest output: float32 and float64, where no sign is different
_ALIKE = 0.3  # of the outputs' spread: the same, where some signs are different; other functions differ by 1 or more
_TRIES = 6


def source(model: Network, spec: InputSpec, name: str, path: Path | None = None) -> Source:
    """A network as a source. `model` is a module, or any function that takes a tensor of images."""
    model = unwrapped(model)
    runner = Runner(model, name, spec.shape)
    module = model if isinstance(model, nn.Module) else nn.Module()
    parameters = [p for n, p in module.named_parameters() if not n.endswith("scaling_factor")]
    network = Source(
        name,
        runner.recorded().graph,
        runner.reference,
        spec,
        parameters=sum(p.numel() for p in parameters),
        learned_scale=any(layer.learned_scale for layer in binary_layers(module).values()),
        path=path,
    )
    network.warnings += runner.warnings
    return network


def trace(model: Network, input_shape: ir.Shape) -> ir.Graph:
    """The graph of `model` in eval mode for one image of `input_shape`."""
    return Runner(unwrapped(model), type(model).__name__, input_shape).recorded().graph


def unwrapped(model: Any) -> Any:
    """The network itself, without DataParallel, DistributedDataParallel or torch.compile around it."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(model, wrappers) or isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model.module if isinstance(model, wrappers) else model._orig_mod
    return model


def opaque(module: nn.Module) -> Any:
    """The converter of a layer that is not looked into; None for others."""
    return LAYERS.get(type(module))


class Recorded(NamedTuple):
    """A network as a graph, the shapes of its results for one image, and the nodes of the values that it has on the way
    to them.
    """

    graph: ir.Graph
    shapes: list[tuple[int, ...]]
    nodes: dict[Place, ir.Node]
    places: Places


@dataclass
class Runner:
    """Runs a user's network, in float64 if it gives the same results there as in float32."""

    model: Network
    name: str
    shape: ir.Shape
    warnings: list[str] = field(default_factory=list)
    training: list[nn.Module] = field(default_factory=list)  # modules that were, the last time

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise ExportError(f"a module or a function of images is expected, not {type(self.model).__name__}")
        images = torch.randn(_TRIES, *self.shape, generator=torch.Generator().manual_seed(0))
        (narrow,) = self.run(images[:1])
        training = self.training
        self.dtype = torch.float64 if self._agrees(images, narrow) else torch.float32
        if any(module in self.training for module in training):  # others are made at every call
            self.warnings.append(f"{self.name} was in training mode; exported as in eval mode")
        self.batches = self._takes_batches(images[:2].to(self.dtype))

    def run(self, *images: Tensor) -> list[list[np.ndarray]]:
        """What the network returns for each of several inputs, in eval mode and their precision."""
        results = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]), standing_in(images[0].dtype) as training:
            for x in images:
                result = self._result(x)
                tensors = result if isinstance(result, (tuple, list)) else [result]
                results.append([np.asarray(t.detach().numpy()) for t in tensors if isinstance(t, Tensor)])
        self.training = training
        return results

    def _result(self, x: Tensor) -> Any:
        try:
            return self.model(x)
        except ExportError:
            raise
        except Exception as e:  # whatever the network's own code raises for an input it does not fit
            raise ExportError(f"{self.name} does not take an input of {self.shape}: {first_line(e)}") from None

    def recorded(self) -> Recorded:
        """The network as its weights are now."""
        image = torch.randn(1, *self.shape, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        with torch.random.fork_rng(devices=[]), standing_in(self.dtype):
            recording = record(self._result, image, self.names, opaque)
            builder = GraphBuilder(recording)
            graph = builder.graph(recording.outputs)
        nodes = {place: builder.nodes[v] for place, v in recording.values.items() if v in builder.nodes}
        return Recorded(graph, [value.shape for value in recording.outputs], nodes, recording.places)

    @property
    def names(self) -> dict[nn.Module, str]:
        """The paths of modules."""
        return {m: path for path, m in self.model.named_modules()} if isinstance(self.model, nn.Module) else {}

    def reference(self, images: np.ndarray) -> Any:
        """The network's results for normalised images: (n, classes), or (n, channels, height, width) for maps."""
        dtype = self.dtype if images.dtype == np.float64 else torch.float32
        x = torch.tensor(images).to(dtype)
        parts = [x] if self.batches else [x[i : i + 1] for i in range(len(x))]
        results = self.run(*parts)
        outputs = [
            np.concatenate([_rows(result[i], len(part)) for result, part in zip(results, parts)])
            for i in range(len(results[0]))
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _agrees(self, images: Tensor, first: list[np.ndarray]) -> bool:
        """Whether float64 gives the same: for one of a few images, as a sign may be different in others.

        Where an image has millions of signs, some of them always are. Then results that are alike have to do.
        """
        alike = False
        for i in range(len(images)):
            narrow = self.run(images[i : i + 1])[0] if i else first
            try:
                (wide,) = self.run(images[i : i + 1].double())
            except ExportError:
                return False
            if all(_near(a, b) for a, b in zip(narrow, wide)):
                return True
            alike |= all(_is_alike(a, b) for a, b in zip(narrow, wide))
        return alike

    def _takes_batches(self, pair: Tensor) -> bool:
        """Whether the result for an image does not depend on the other images of the batch."""
        try:
            together, *alone = self.run(pair, pair[:1], pair[1:])
        except ExportError:
            return False
        expected = [np.concatenate(parts) if parts[0].ndim else np.array(0.0) for parts in zip(*alone)]
        same = len(together) == len(expected) and all(_near(a, b) for a, b in zip(together, expected))
        if not same:
            self.warnings.append(f"{self.name} computes other results for several images at once; exported as for one")
        return same


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal except for rounding; infinities and NaN must be the same."""
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
    return a.shape == b.shape and bool(np.isclose(a, b, rtol=0.0, atol=_AGREE * largest, equal_nan=True).all())


def _is_alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two results come from one function, except for a few different signs."""
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    return bool(np.linalg.norm(a - b) <= _ALIKE * np.linalg.norm(b - b.mean()))


def _rows(result: np.ndarray, images: int) -> np.ndarray:
    """With the images first, as vectors where there is one pixel."""
    maps = result.reshape(images, *(result.shape[1:] if len(result.shape) > 1 and images == len(result) else (-1,)))
    return maps.reshape(images, -1) if maps.ndim < 4 or maps.shape[2:] == (1, 1) else maps
