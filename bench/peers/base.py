"""A peer: another engine at one precision, if it is installed, which runs a float network on images.

The networks are those of `ovsw.bench.float_nets`. A peer's answers are compared with those of ONNX Runtime in float32.
Nothing here or at the head of an engine's module imports an engine: a missing one must cost nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ovsw.bench.topology import NETWORKS

CALIBRATION_IMAGES = 16

# Takes float32 (batch, 3, side, side), gives the logits (batch, classes). One with an attribute `seconds` has timed
# its own last call, in another process.
Runner = Callable[[np.ndarray], np.ndarray]


class Peer:
    """An engine at one precision.

    Attributes:
        engine: its name, which `--peers` knows.
        precision: "fp32", "fp16", "bf16", "int8" or "1-bit": the type that it really computes in.
        modules: the modules it needs; the distribution of the first one has the version.
        networks: those that it can run.
        comparable: whether its logits can be compared, that is, whether it has our weights.
        slow: whether it takes minutes to get ready.
        quick: whether it takes part in a quick run: it is ready within seconds and useful for the paper's table.
    """

    modules: tuple[str, ...] = ()
    networks: tuple[str, ...] = tuple(NETWORKS)
    comparable = True
    slow = False

    def __init__(self, engine: str, precision: str) -> None:
        self.engine = engine
        self.precision = precision

    @property
    def quick(self) -> bool:
        return not self.slow and self.precision != "int8"

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.precision}"

    def missing(self) -> str | None:
        """None if it is installed, otherwise a line on what is missing; loads nothing."""
        missing = [m for m in self.modules if importlib.util.find_spec(m) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    def prepare_environment(self) -> None:
        """Sets the variables that must be set before the engine is loaded, here or in a child process."""

    def unable(self) -> str | None:
        """None if it works on this CPU, otherwise a line on why not; it is installed and may be loaded."""
        return None

    def version(self) -> str:
        """The version of the engine; "" if unknown."""
        try:
            return importlib.metadata.version(self.modules[0])
        except (IndexError, importlib.metadata.PackageNotFoundError):
            return ""

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        """Creates the files that the engine loads in this folder: by default the ONNX model that peers share."""
        return [float_file(network, batch, folder)]

    def load(self, files: list[Path], threads: int) -> Runner:
        """The network in these files, ready to run with this many threads."""
        raise NotImplementedError

    def ready(self, network: str, threads: int = 1, batch: int = 1) -> Runner:
        """Both steps, for callers that do not need the files."""
        with tempfile.TemporaryDirectory() as folder:
            return self.load(self.files(network, batch, Path(folder)), threads)


@functools.lru_cache(maxsize=1)
def float_bytes(network: str, batch: int = 1) -> bytes:
    """The ONNX model that all peers get, as its file."""
    from ovsw.bench.float_nets import float_resnet

    return float_resnet(network, batch=batch).SerializeToString()


def float_file(network: str, batch: int, folder: Path) -> Path:
    path = folder / f"{network}-{batch}.onnx"
    if not path.exists():
        path.write_bytes(float_bytes(network, batch))
    return path


def child(command: list[str], timeout: float = 600.0) -> tuple[str, str | None]:
    """The output of a command, and None if it ends by itself with any exit code; otherwise why it did not."""
    none = subprocess.DEVNULL
    try:
        done = subprocess.run(command, timeout=timeout, stdin=none, stdout=subprocess.PIPE, stderr=none, text=True)
    except subprocess.TimeoutExpired:
        return "", f"takes more than {timeout:g} s"
    code = done.returncode
    return done.stdout, f"dies of {signal.Signals(-code).name}" if code < 0 else None


def one_line(e: Exception) -> str:
    """An error of another engine on one short line."""
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text if len(text) <= 160 else text[:157] + '...'}"


def images(network: str, count: int, seed: int) -> list[np.ndarray]:
    """Seeded noise like normalised images: coarse and fine structure, with varying contrast and mean."""
    rng = np.random.default_rng(seed)
    side = NETWORKS[network].input.height
    noise = []
    for _ in range(count):
        coarse = np.kron(rng.normal(size=(1, 3, 8, 8)), np.ones((1, 1, side // 8, side // 8)))
        fine = rng.normal(size=(1, 3, side, side))
        contrast = rng.uniform(0.6, 1.1)
        noise.append((contrast * (0.8 * coarse + 0.6 * fine) + rng.normal(0.0, 0.5, (1, 3, 1, 1))).astype(np.float32))
    return noise


def batches(network: str, batch: int, count: int, seed: int) -> list[np.ndarray]:
    """At least `count` such images, in full batches."""
    full = -(-count // batch)
    noise = images(network, full * batch, seed)
    return [np.concatenate(noise[i * batch : (i + 1) * batch]) for i in range(full)]


def calibration(network: str, batch: int) -> list[np.ndarray]:
    """Images to find the ranges of int8 activations with; never those that are compared or timed."""
    return batches(network, batch, CALIBRATION_IMAGES, seed=1)


# Largest `error`. A wrong image, padding or layer gives about 1 or more; good int8 gives 0.1 to 0.2.
BOUNDS = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 0.2, "int8": 0.5}


def fault(logits: np.ndarray, expected: np.ndarray, precision: str) -> str | None:
    """None if logits of several images are as expected, within what the precision allows; otherwise what is wrong."""
    if logits.shape != expected.shape:
        return f"gives shape {logits.shape}, expected {expected.shape}"
    if not np.isfinite(logits).all():
        return "gives values that are not finite"
    off = error(logits, expected)
    if off > BOUNDS[precision]:
        return f"differs from onnxruntime-fp32 by {off:.2g}, allowed {BOUNDS[precision]:.2g}"
    top, expected_top = logits.argmax(axis=1).tolist(), expected.argmax(axis=1).tolist()
    if precision == "fp32" and top != expected_top:
        return f"top-1 is {top}, onnxruntime-fp32 has {expected_top}"
    return None


def error(logits: np.ndarray, expected: np.ndarray) -> float:
    """The difference relative to how much the logits differ between images.

    Random networks have a favourite class: most of each logit, and always the top-1, is the same for every image, so
    that part carries no information.
    """
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected - expected.mean(axis=0)))
