"""PyTorch: eager with oneDNN's convolutions, and compiled with frozen weights.

The network is the ONNX graph, run op by op.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner


class Torch(Peer):
    modules = ("torch", "onnx")
    quick = False  # seconds to import, and never the fastest

    def load(self, files: list[Path], threads: int) -> Runner:
        import onnx
        import torch

        torch.set_num_threads(threads)
        return self._runner(module_of(onnx.load(files[0])))

    def _runner(self, module: Any) -> Runner:
        import torch

        def run(image: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return np.asarray(module(torch.from_numpy(image)).numpy())

        return run


class TorchCompiled(Torch):
    slow = True

    def unable(self) -> str | None:
        compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
        return None if compiler else "torch.compile needs a C++ compiler"

    def _runner(self, module: Any) -> Runner:
        import torch
        import torch._inductor.config

        settings: Any = torch._inductor.config
        compiled: Any = torch.compile(module)

        def run(image: np.ndarray) -> np.ndarray:
            with settings.patch(freezing=True), torch.no_grad():
                return np.asarray(compiled(torch.from_numpy(image)).numpy())

        return run


def module_of(model: Any) -> Any:
    """A module that computes the graph; knows the ops that `float_nets` uses."""
    import torch
    from onnx import numpy_helper
    from torch.nn import functional as F

    graph = model.graph
    arrays = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    pads = {name: array.tolist() for name, array in arrays.items() if array.dtype == np.int64}
    steps = [(n.op_type, list(n.input), n.output[0], {a.name: list(a.ints) for a in n.attribute}) for n in graph.node]
    source, sink = graph.input[0].name, graph.output[0].name
    ops: dict[str, Callable[..., torch.Tensor]] = {
        "Conv": lambda a, x, weight, bias: F.conv2d(x, weight, bias, a["strides"], a["pads"][:2]),
        "Relu": lambda a, x: F.relu(x),
        "Add": lambda a, x, y: x + y,
        "MaxPool": lambda a, x: F.max_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2]),
        "AveragePool": lambda a, x: F.avg_pool2d(x, a["kernel_shape"], a["strides"]),
        "Pad": lambda a, x, pad: F.pad(x, [n for pair in zip(pad[3::-1], pad[:3:-1]) for n in pair]),
        "GlobalAveragePool": lambda a, x: x.mean(dim=(2, 3), keepdim=True),
        "Flatten": lambda a, x: x.flatten(1),
        "Gemm": lambda a, x, weight, bias: F.linear(x, weight, bias),
    }
    for kind in {kind for kind, *_ in steps} - set(ops):
        raise ValueError(f"op {kind} is not known here")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in arrays.keys() - pads.keys():
                self.register_buffer(name, torch.from_numpy(arrays[name].copy()))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            values = {source: image, **pads}
            for kind, inputs, out, a in steps:
                arguments = [values[name] if name in values else getattr(self, name) for name in inputs]
                values[out] = ops[kind](a, *arguments)
            return values[sink]

    return Net().eval()


PEERS: list[Peer] = [Torch("torch", "fp32"), TorchCompiled("torch-compiled", "fp32")]
