"""What every peer is: an engine at one precision that may be installed here, and runs a float network on one image.

The networks are those of `ovsw.bench.float_nets`, and the judge of a peer's answers is ONNX Runtime in float32. Nothing
here or at the head of an engine's module imports an engine: a missing one must cost nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np

SIDES = {"resnet18": 224, "resnet34": 224, "cresnet20": 32}  # of the square image
CALIBRATION_IMAGES = 16

# Takes float32 (1, 3, side, side), gives the logits (1, classes). One with an attribute `seconds` has timed its own
# last call, in another process.
Runner = Callable[[np.ndarray], np.ndarray]


class Peer:
    """An engine at one precision.

    Attributes:
        engine: its name, which `--peers` knows.
        precision: "fp32", "fp16", "bf16", "int8" or "1-bit": what it computes in, not what it would call itself.
        modules: what must be importable; the first one's distribution gives the version.
        networks: those that it can run.
        comparable: whether its logits can be judged, that is, whether it has our weights.
    """

    modules: tuple[str, ...] = ()
    networks: tuple[str, ...] = tuple(SIDES)
    comparable = True

    def __init__(self, engine: str, precision: str) -> None:
        self.engine = engine
        self.precision = precision

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.precision}"

    def available(self) -> str | None:
        """None if it can be used here, else in one line why not."""
        missing = [m for m in self.modules if importlib.util.find_spec(m) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    def version(self) -> str:
        """Of the engine, as installed; "" if nobody knows."""
        try:
            return importlib.metadata.version(self.modules[0])
        except (IndexError, importlib.metadata.PackageNotFoundError):
            return ""

    def load(self, network: str, threads: int) -> Runner:
        """The network, ready to run with this many threads."""
        raise NotImplementedError


@functools.lru_cache(maxsize=1)
def float_bytes(network: str) -> bytes:
    """The ONNX model that all peers get, as its file."""
    from ovsw.bench.float_nets import float_resnet

    return float_resnet(network).SerializeToString()


def float_model(network: str) -> Any:
    """The same, to look into; each caller has its own, since quantisers change what they are given."""
    import onnx

    return onnx.load_from_string(float_bytes(network))


def death(command: list[str], timeout: float = 600.0) -> str | None:
    """None if the command ends by itself, whatever its exit code; else the signal that killed it, or its slowness."""
    none = subprocess.DEVNULL
    try:
        code = subprocess.run(command, timeout=timeout, stdin=none, stdout=none, stderr=none).returncode
    except subprocess.TimeoutExpired:
        return f"takes more than {timeout:g} s"
    return f"dies of {signal.Signals(-code).name}" if code < 0 else None


def images(network: str, count: int, seed: int) -> list[np.ndarray]:
    """Seeded noise as a normalised image would have it: coarse and fine structure, contrast and mean vary."""
    rng = np.random.default_rng(seed)
    side = SIDES[network]
    made = []
    for _ in range(count):
        coarse = np.kron(rng.normal(size=(1, 3, 8, 8)), np.ones((1, 1, side // 8, side // 8)))
        fine = rng.normal(size=(1, 3, side, side))
        contrast = rng.uniform(0.6, 1.1)
        made.append((contrast * (0.8 * coarse + 0.6 * fine) + rng.normal(0.0, 0.5, (1, 3, 1, 1))).astype(np.float32))
    return made


def calibration(network: str) -> list[np.ndarray]:
    """Images to find the ranges of int8 activations with; never those that are compared or timed."""
    return images(network, CALIBRATION_IMAGES, seed=1)


# Largest `error`. A wrong image, padding or layer gives about 1 or more; good int8 gives 0.1 to 0.2.
BOUNDS = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 0.2, "int8": 0.5}


def fault(found: np.ndarray, expected: np.ndarray, precision: str) -> str | None:
    """None if the logits of several images are those expected, as far as the precision allows; else what is wrong."""
    if found.shape != expected.shape:
        return f"gives shape {found.shape}, expected {expected.shape}"
    if not np.isfinite(found).all():
        return "gives values that are not finite"
    off = error(found, expected)
    if off > BOUNDS[precision]:
        return f"differs from onnxruntime-fp32 by {off:.2g}, allowed {BOUNDS[precision]:.2g}"
    tops, wanted = found.argmax(axis=1).tolist(), expected.argmax(axis=1).tolist()
    if precision == "fp32" and tops != wanted:
        return f"top-1 is {tops}, onnxruntime-fp32 has {wanted}"
    return None


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The difference relative to what the images make of the logits.

    Random networks have a favourite class: most of their logits, and always their top-1, are the same for every image,
    so that part says nothing.
    """
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected - expected.mean(axis=0)))
