"""PyTorch: eager with oneDNN's convolutions, and compiled with frozen weights.

The network is the ONNX graph, run op by op.
"""

from __future__ import annotations

import shutil
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
        return self._runner(_module(onnx.load(files[0])))

    def _runner(self, module: Any) -> Runner:
        import torch

        def run(image: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return np.asarray(module(torch.from_numpy(image)).numpy())

        return run


class TorchCompiled(Torch):
    slow = True

    def unable(self) -> str | None:
        found = any(map(shutil.which, ("c++", "g++", "clang++")))
        return None if found else "torch.compile needs a C++ compiler"

    def _runner(self, module: Any) -> Runner:
        import torch
        import torch._inductor.config

        settings: Any = torch._inductor.config
        compiled: Any = torch.compile(module)

        def run(image: np.ndarray) -> np.ndarray:
            with settings.patch(freezing=True), torch.no_grad():
                return np.asarray(compiled(torch.from_numpy(image)).numpy())

        return run


def _module(model: Any) -> Any:
    """A module that computes the graph; knows the ops that `float_nets` uses."""
    import torch
    from onnx import numpy_helper
    from torch.nn import functional as F

    graph = model.graph
    arrays = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    steps = [(n.op_type, list(n.input), n.output[0], {a.name: list(a.ints) for a in n.attribute}) for n in graph.node]
    source, sink = graph.input[0].name, graph.output[0].name
    pads = {name: array.tolist() for name, array in arrays.items() if array.dtype == np.int64}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, array in arrays.items():
                if name not in pads:
                    self.register_buffer(name, torch.from_numpy(array.copy()))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            values = {source: image}
            for kind, inputs, out, a in steps:
                x = values[inputs[0]]
                if kind == "Conv":
                    weight, bias = getattr(self, inputs[1]), getattr(self, inputs[2])
                    y = F.conv2d(x, weight, bias, a["strides"], a["pads"][:2])
                elif kind == "Relu":
                    y = F.relu(x)
                elif kind == "Add":
                    y = x + values[inputs[1]]
                elif kind == "MaxPool":
                    y = F.max_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2])
                elif kind == "AveragePool":
                    y = F.avg_pool2d(x, a["kernel_shape"], a["strides"])
                elif kind == "Pad":
                    before, after = pads[inputs[1]][:4], pads[inputs[1]][4:]
                    y = F.pad(x, [n for pair in zip(before[::-1], after[::-1]) for n in pair])
                elif kind == "GlobalAveragePool":
                    y = x.mean(dim=(2, 3), keepdim=True)
                elif kind == "Flatten":
                    y = x.flatten(1)
                elif kind == "Gemm":
                    y = F.linear(x, getattr(self, inputs[1]), getattr(self, inputs[2]))
                else:
                    raise ValueError(f"op {kind} is not known here")
                values[out] = y
            return values[sink]

    return Net().eval()


PEERS: list[Peer] = [Torch("torch", "fp32"), TorchCompiled("torch-compiled", "fp32")]
