"""Proof before success: what the file computes is compared with the source's reference, value by value.

There are four steps, and none of them tolerates a chaotic difference:

1. The graph that the file was made of, computed in float64, must give the original's float64 results.
2. The engine on a float file must agree with that graph. Where a value is so near to a threshold that float32 rounding
   decides its sign, the engine's sign is taken over, so that everything after it stays comparable. Any other difference
   is a fault.
3. An ONNX file is evaluated by another engine (`onnx_check`).
4. An integer file is checked op by op (`op_check`), and the engine must give the bits of the simulation. How far its
   outputs are from the reference is only reported.

The images hold every pixel value, black borders, flat and saturated areas, and noise, because comparisons go wrong at
exact pixel values and exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ovsw import format as bnn
from ovsw import numerics
from ovsw.engine import NO_LIMIT, Engine, default_memory_limit
from ovsw.export import ir, reference
from ovsw.export.accuracy import first_output
from ovsw.export.calibration import Calibration
from ovsw.export.errors import ExportError, VerifyError
from ovsw.export.op_check import OpCheck
from ovsw.export.passes import Built
from ovsw.export.passes.pack import pack
from ovsw.export.source import Source
from ovsw.networks import InputSpec

if TYPE_CHECKING:
    from ovsw.export.onnx_check import OnnxCheck  # which needs onnx

TOLERANCE = 1e-4  # of a float file's outputs: of the largest one, or of 1
_EQUAL = 1e-6  # of the graph's outputs, where the original computes in float64 throughout
_NEAR = 1e-5  # of a map's largest number: float32 rounding may decide such a sign
_TIE = 1e-9  # the same in float64
_FEW = 0.05  # share of a comparison's values at exact zeros that may be accidental


class Candidate:
    """A model as the file that it may become, loaded by the engine. Raises ExportError if that refuses it."""

    def __init__(self, built: Built) -> None:
        self.model, self.lowered, self.graph = built.model, built.lowered, built.graph
        self.data = bnn.to_bytes(built.model)
        try:
            if built.model.numerics == "integer":
                numerics.check(built.model)
            self.engine = Engine(self.data, memory_limit=NO_LIMIT, work_limit=NO_LIMIT)
        except ValueError as e:
            raise ExportError(f"the engine refuses the result: {e}") from None

    def memory_warnings(self) -> list[str]:
        """A warning if engines cannot load it with their default limit."""
        needs, limit = self.engine.memory.total, default_memory_limit(len(self.data))
        if needs <= limit:
            return []
        excess = f"{needs:,} bytes of memory, more than the default limit of {limit:,}"
        return [f"it needs {excess}; pass memory_limit= to load it"]

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """All that the network returns for a batch, each output flattened, one after the other."""
        return _joined(self.engine.run(images))

    def logits(self, images: np.ndarray) -> np.ndarray:
        """The first output for a batch."""
        return first_output(self.engine.run(images)).reshape(len(images), -1)


class IntegerCandidate(Candidate):
    """One in integers, with what its scales were measured on."""

    def __init__(self, built: Built, measured_on: Calibration) -> None:
        super().__init__(built)
        self.warnings = list(built.warnings)
        self.measured = built.measured
        self.calibration = measured_on

    @property
    def origin(self) -> str | None:
        return self.calibration.origin if self.measured else None


@dataclass
class Verification:
    """How many images agreed, on how many rounding decided a sign, and the largest difference on those that agreed."""

    images: int
    ties: int
    max_error: float


@dataclass
class IntegerVerification:
    """On how many images every op was right and the engine equal to the simulation, on how many of these the answer was
    PyTorch's, and how far logits were off.

    `saturated` is the share of numbers that did not fit the scale that was measured for them. `rounding` has the
    ops whose rounding changed signs, and the shares of these, largest first.
    """

    images: int
    same_top1: int
    max_difference: float
    mean_difference: float
    saturated: float
    rounding: list[tuple[str, float]]


@dataclass
class _Sample:
    """An image, the original's outputs for it, and the values of the graph's nodes."""

    pixels: np.ndarray  # uint8 (1, h, w, c)
    image: np.ndarray  # normalised float32 (1, c, h, w)
    expected: np.ndarray
    values: dict[ir.Node, Tensor]


def verify(
    source: Source, spec: InputSpec, candidate: Candidate, count: int, written: OnnxCheck | None = None
) -> Verification:
    """Compares the original with the graph, and that with the engine on a float file, and the original with an ONNX
    file that is going to be written. Raises VerifyError.
    """
    proof, watch = _Proof(source, spec, candidate.graph), _Watch(candidate)
    result = Verification(0, 0, 0.0)
    for sample in proof.samples(count):
        error, tie = watch.compare(sample)
        if written is not None:
            written.compare(sample.image, sample.expected)
        result = Verification(result.images + 1, result.ties + tie, max(result.max_error, error))
    result.ties += proof.ties
    return result


def verify_integer(
    source: Source, spec: InputSpec, candidate: IntegerCandidate, count: int
) -> tuple[Verification, IntegerVerification]:
    """Compares the original with the graph, that with every op, and the engine with the simulation. Raises VerifyError.

    The first half of the images are calibration images, if the user named some.
    """
    proof, check = _Proof(source, spec, candidate.graph), OpCheck(candidate.model, candidate.lowered)
    calibration = candidate.calibration
    own = None if calibration.synthetic else pixels_of(spec, calibration.images[: -(-count // 2)])
    samples = []
    for sample in proof.samples(count, own):
        check.image(sample.pixels, sample.values)
        samples.append(replace(sample, values={}))
    if check.faults:
        shown = "; ".join(f"{name}: {text}" for name, text in list(check.faults.items())[:3])
        ops = "1 op does" if len(check.faults) == 1 else f"{len(check.faults)} ops do"
        raise VerifyError(f"{ops} not compute what the network does: {shown}")
    images = np.concatenate([sample.pixels for sample in samples])
    simulated = -(-count // 2)  # of the images: it costs as much as all the rest
    values = numerics.simulate_values(candidate.model, images[:simulated])
    logits = candidate.outputs(images)
    expected_logits = _joined(tuple(values[i].transpose(0, 3, 1, 2) for i in candidate.model.outputs))
    differing = int((logits[:simulated] != expected_logits).any(axis=1).sum())
    if differing:
        raise VerifyError(f"the engine differs from the simulation on {differing} of {simulated} images")
    expected = np.stack([sample.expected for sample in samples])
    difference = np.abs(logits - expected)
    first = candidate.model.values[candidate.model.output]
    answers = (each[:, : first.c * first.h * first.w].argmax(axis=1) for each in (logits, expected))
    return Verification(len(samples), proof.ties, proof.max_error), IntegerVerification(
        images=len(images),
        same_top1=int(np.equal(*answers).sum()),
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        saturated=_saturated(candidate, values),
        rounding=check.changed_signs(),
    )


class _Proof:
    """That a graph is what the original computes; `ties` counts images that were put aside because they hold a value
    whose sign not even float64 can tell.
    """

    def __init__(self, source: Source, spec: InputSpec, graph: ir.Graph) -> None:
        self.source, self.spec, self.graph = source, spec, graph
        self.ties, self.max_error = 0, 0.0

    def samples(self, count: int, first: np.ndarray | None = None) -> Iterator[_Sample]:
        """`count` images on which both agree, those of `first` before others. Raises VerifyError where they differ."""
        agreed, most = 0, max(3, count)
        for pixels in _pictures(self.spec, first):
            if agreed == count:
                return
            sample = self._sample(pixels)
            if sample is not None:
                agreed += 1
                yield sample
            elif self.ties > most:
                raise VerifyError(f"the graph differs from PyTorch on {self.ties} images{self.reason}")

    def _sample(self, pixels: np.ndarray) -> _Sample | None:
        image = self.spec.normalised(pixels)
        original = self.source.reference(image.astype(np.float64))
        expected, wide = _joined(original)[0], _is_wide(original)
        if not np.isfinite(expected).all():
            raise VerifyError("the original gives values that are not finite")
        values = reference.values(self.graph, image)
        error = _off(_outputs(self.graph, values), expected)
        if error <= (_EQUAL if wide else TOLERANCE):
            self.max_error = max(self.max_error, error)
            return _Sample(pixels, image, expected, values)
        node, share = _nearest_tie(self.graph, values, _TIE if wide else _NEAR)
        if node is None:
            raise VerifyError(f"the exported model differs from PyTorch by {error:.3g} of the largest output")
        reason = ""
        if share > 0:
            reason = (
                f": {100 * share:.2g} % of the values that {node.name} reads are exactly at its threshold. If it is "
                "torch.sign, torch.sign(0) is 0, neither +1 nor -1; torch.where(x >= 0, 1, -1) has two levels"
            )
        if share > 0 and wide and _off(_joined(self.source.reference(image))[0], expected) <= TOLERANCE:
            raise VerifyError(f"the exported model differs from PyTorch{reason}")  # which is sure of itself there
        self.ties, self.reason = self.ties + 1, reason
        return None


class _Watch:
    """A float file's engine that also shows what its signs and steps are taken of."""

    def __init__(self, candidate: Candidate) -> None:
        self.graph = candidate.graph
        self.jumps = [node for node in self.graph.nodes if reference.jumps(node)]
        self.thresholds = {
            low.fused.sign: low.constants["threshold"][1] for low in candidate.lowered if "threshold" in low.constants
        }
        shown = [node for node in map(self._shown, self.jumps) if not isinstance(node, ir.Input)]
        self.shown = list(dict.fromkeys([*self.graph.outputs, *shown]))[: bnn.MAX_OUTPUTS]
        channels = self.graph.input_shape[0]
        lowered = [
            replace(low, fused=replace(low.fused, wants_map=low.fused.wants_map or low.fused.value in self.shown))
            for low in candidate.lowered
        ]
        model = pack(lowered, self.shown, (0.0,) * channels, (1.0,) * channels, {})
        self.engine = Engine(bnn.to_bytes(model), memory_limit=NO_LIMIT, work_limit=NO_LIMIT)
        self.candidate = candidate

    @staticmethod
    def _shown(node: ir.Node) -> ir.Node:
        return node.inputs[0] if isinstance(node, ir.Sign) else node

    def compare(self, sample: _Sample) -> tuple[float, bool]:
        """The largest difference of the outputs, and whether rounding decided a sign. Raises VerifyError."""
        maps = dict(zip(self.shown, _parts(self.engine.run(sample.image))))
        tie = False

        def decide(node: ir.Node, x: Tensor, expected: Tensor) -> Tensor | None:
            nonlocal tie
            decided = self._decision(node, maps, sample.image)
            if decided is None or bool((differ := decided != expected).any()) is False:
                return None
            tie = True
            _refuse_far(node, x, differ, maps.get(node.inputs[0]))
            return decided

        values = reference.values(self.graph, sample.image, decide)
        error = _off(self.candidate.outputs(sample.image)[0], _outputs(self.graph, values))
        if not error <= TOLERANCE:
            raise VerifyError(f"the exported model differs from PyTorch by {error:.3g} of the largest output")
        return error, tie

    def _decision(self, node: ir.Node, maps: dict[ir.Node, np.ndarray], image: np.ndarray) -> Tensor | None:
        shown = self._shown(node)
        if not isinstance(shown, ir.Input) and shown not in maps:
            return None
        values = image if isinstance(shown, ir.Input) else maps[shown].reshape(1, *shown.shape)
        if not isinstance(node, ir.Sign):
            return torch.from_numpy(values.astype(np.float64))
        threshold = np.float32(self.thresholds.get(node, np.float32(0)))
        return torch.from_numpy(values >= threshold.reshape(-1, 1, 1))


def _refuse_far(node: ir.Node, x: Tensor, differ: Tensor, stored: np.ndarray | None) -> None:
    """Raises VerifyError unless float32 rounding explains that these signs differ.

    It does not where the engine's value, if that is known, is exactly at the threshold as the graph's is.
    """
    at = reference.threshold_of(node)
    distance = (x - at).abs()
    far = differ & (distance > _NEAR * float(x.abs().max()))
    exact = differ & (distance == 0)
    if stored is not None:
        exact &= torch.from_numpy(stored.reshape(x.shape).astype(np.float64)) == at
    if far.any() or int(exact.sum()) > (_FEW if stored is None else 0) * exact.numel():
        wrong = far if far.any() else exact
        where = f"up to {float(distance[far].max()):.3g} away from" if far.any() else "exactly at"
        raise VerifyError(
            f"{node.name}: {int(wrong.sum())} of {wrong.numel()} signs differ from PyTorch's; the values are {where} "
            "the threshold"
        )


def _is_wide(outputs: Any) -> bool:
    """Whether these outputs of the original were computed in float64."""
    return all(part.dtype == np.float64 for part in _parts(outputs))


def _nearest_tie(graph: ir.Graph, values: dict[ir.Node, Tensor], near: float) -> tuple[ir.Node | None, float]:
    """The sign or step with the most values exactly at its threshold, or with one nearly there; how large a share."""
    best: ir.Node | None = None
    most = -1.0
    for node in filter(reference.jumps, graph.nodes):
        x = values[node.inputs[0]]
        distance = (x - reference.threshold_of(node)).abs()
        share = float((distance == 0).double().mean())
        if share > most and float(distance.min()) <= near * float(x.abs().max()):
            best, most = node, share
    return best, most


def _outputs(graph: ir.Graph, values: dict[ir.Node, Tensor]) -> np.ndarray:
    return np.concatenate([values[node].double().numpy().reshape(-1) for node in graph.outputs])


def _off(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest number or of 1."""
    error = float(np.abs(actual - expected).max())
    return error / max(1.0, float(np.abs(expected).max())) if np.isfinite(error) else np.inf


def pixels_of(spec: InputSpec, images: np.ndarray) -> np.ndarray:
    """The uint8 (n, h, w, c) pixels of normalised images (n, c, h, w)."""
    return numerics.pixels(images, np.asarray(spec.mean, np.float32), np.asarray(spec.std, np.float32))


def _pictures(spec: InputSpec, first: np.ndarray | None) -> Iterator[np.ndarray]:
    """Images (1, h, w, c) without end: those of `first`, then one of each kind, then noise."""
    yield from [] if first is None else first[:, None]
    c, h, w = spec.shape
    rng = np.random.default_rng(0)
    yield pixels_of(spec, rng.normal(size=(1, c, h, w)))
    rows, columns = np.mgrid[:h, :w]
    ramp = (rows * 256 // max(h, 1) + columns * 256 // max(w, 1))[:, :, None] // 2 + np.arange(c) * 40
    framed = np.where(rng.random((h, w, 1)) < 0.2, rng.integers(0, 256, (h, w, c)), ramp % 256)
    top, side = -(-h // 6), -(-w // 6)
    framed[:top] = framed[:, :side] = 0  # a black border, and a white patch
    framed[-top:, -side:] = 255
    yield framed.astype(np.uint8)[None]
    blocks = rng.choice([0, 1, 127, 128, 254, 255], (-(-h // 4), -(-w // 4), c)).repeat(4, 0).repeat(4, 1)[:h, :w]
    yield blocks.astype(np.uint8)[None]
    flat = np.where((rows < h // 2) ^ (columns < w // 3), 0, 255)[:, :, None].repeat(c, 2)
    flat[: h // 2, w // 3 :] = rng.integers(0, 256, c)
    yield flat.astype(np.uint8)[None]
    while True:
        yield rng.integers(0, 256, (1, h, w, c), np.uint8)


def _saturated(candidate: IntegerCandidate, values: dict[int, np.ndarray]) -> float:
    """The share of stored numbers that lie at an end of their range."""
    count = total = 0
    for op in candidate.measured:
        if op.out is not None:
            lo, hi = op.clamp if op.act == "clamp" else (-32768, 32767)
            v = values[op.out]
            count += int(((v <= lo) & (lo != 0)).sum() + (v >= hi).sum())  # at 0 a ReLU ends what it should
            total += v.size
    return count / max(1, total)


def _parts(outputs: Any) -> tuple[np.ndarray, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _joined(outputs: Any) -> np.ndarray:
    return np.concatenate([part.reshape(len(part), -1) for part in _parts(outputs)], axis=1)
