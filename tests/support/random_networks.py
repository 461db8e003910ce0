"""Random networks over the whole list of nodes, through all passes, and their judges: torch and ONNX Runtime against
the engine in float, the simulation against the engine in integers, on every kernel table of this CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovsw import Engine, cpu, numerics
from ovsw import format as bnn
from ovsw.export import ir, onnx_out
from ovsw.export.errors import NotIntegerError
from ovsw.export.passes import build
from ovsw.networks import InputSpec

from support.interpret import interpret
from support.random_ir import random_graph

UNSTABLE = 1e-3  # a network whose results jump by this much with the last bits of its maps has a value next to a sign
NEAR = 1e-4
MEAN, STD = 0.5, 0.25


def flat(found: object) -> list[np.ndarray]:
    parts = found if isinstance(found, (tuple, list)) else (found,)
    return [np.asarray(part).reshape(len(part), -1) for part in parts]


def off(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference, as a share of the largest number of its output or of 1."""
    assert [a.shape for a in found] == [b.shape for b in wanted]
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(found, wanted))


@dataclass
class Network:
    """The network of a seed, two images for it, and what torch computes of them in float64."""

    seed: int
    graph: ir.Graph
    pixels: np.ndarray
    images: np.ndarray
    expected: list[np.ndarray]
    stable: bool
    mean: np.ndarray
    std: np.ndarray

    @staticmethod
    def of(seed: int) -> Network:
        graph = random_graph(seed)
        c, h, w = graph.input_shape
        pixels = np.random.default_rng(seed).integers(0, 256, (2, h, w, c), np.uint8)
        mean, std = np.full(c, MEAN, np.float32), np.full(c, STD, np.float32)
        images = np.ascontiguousarray(((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2), np.float32)
        expected = flat(interpret(graph, images.astype(np.float64)))
        near = [flat(interpret(graph, images.astype(np.float64), 1e-6, draw)) for draw in range(4)]
        stable = all(off(one, expected) < UNSTABLE for one in near)
        return Network(seed, graph, pixels, images, expected, stable, mean, std)

    def float_file(self) -> bytes:
        return bnn.to_bytes(build(self.graph, self.mean, self.std, {}).model)

    def integer_model(self) -> bnn.Model | None:
        """None: it has no integer form."""
        try:
            return build(self.graph, self.mean, self.std, {}, "integer", calibration=self.images).model
        except NotIntegerError:
            return None


def check_float(network: Network) -> None:
    """Every table gives what torch gives; of an unstable network nothing can be said."""
    data = network.float_file()
    for isa in cpu.supported_isas():
        error = off(flat(Engine(data, isa=isa).run(network.images)), network.expected)
        assert error < NEAR or not network.stable, f"seed {network.seed}, {isa}: off by {error:.2g}"


def check_onnx_runtime(network: Network) -> None:
    """ONNX Runtime computes from the graph's ONNX form what the engine computes from its file."""
    import onnxruntime

    c, h, w = network.graph.input_shape
    spec = InputSpec(c, h, w, (MEAN,) * c, (STD,) * c, max(h, w))
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    model = onnx_out.to_model(network.graph, spec, "random").SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = flat(session.run(None, {"input": network.images}))
    error = off(flat(Engine(network.float_file()).run(network.images)), wanted)
    assert error < NEAR or not network.stable, f"seed {network.seed}: off by {error:.2g} from ONNX Runtime"


def check_integer(network: Network) -> bool:
    """Every table and number of threads gives the bits of the simulation; False if there is no integer file."""
    model = network.integer_model()
    if model is None:
        return False
    data = bnn.to_bytes(model)
    simulated = flat(numerics.simulate(model, network.pixels))
    for isa in cpu.supported_isas():
        for threads in (1, 2):
            for got, wanted in zip(flat(Engine(data, isa=isa, threads=threads).run(network.pixels)), simulated):
                assert got.tobytes() == wanted.astype(np.float32).tobytes(), f"seed {network.seed}, {isa}: other bits"
    return True
