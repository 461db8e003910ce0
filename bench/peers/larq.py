"""Larq Compute Engine: binary networks in TensorFlow Lite, in a child process.

Its package needs an old TensorFlow, so it lives in a venv of its own, whose python OVSW_LARQ_PYTHON names; the networks
are .tflite files, named by OVSW_LARQ_MODEL_RESNET18 and _RESNET34. Their weights are not ours, so the logits cannot be
checked.
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from ovsw.bench.peers.base import Peer, Runner
from ovsw.bench.topology import IMAGENET

WORKER = Path(__file__).with_name("larq_worker.py")
_PYTHON = "OVSW_LARQ_PYTHON"


class Larq(Peer):
    networks = IMAGENET
    comparable = False

    def missing(self) -> str | None:
        python = os.environ.get(_PYTHON, "")
        if not python:
            return f"{_PYTHON} does not name the python of its venv"
        if not Path(python).is_file():
            return f"{_PYTHON}: {python}: no such file"
        return None

    def version(self) -> str:
        code = "from importlib.metadata import version as v; print(v('larq-compute-engine'))"
        done = subprocess.run([os.environ.get(_PYTHON, ""), "-c", code], capture_output=True, text=True)
        return done.stdout.strip()

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        variable = f"OVSW_LARQ_MODEL_{network.upper()}"
        model = os.environ.get(variable, "")
        if not Path(model).is_file():
            raise FileNotFoundError(
                f"{variable}: {model}: no such file" if model else f"{variable} names no .tflite file"
            )
        return [Path(model)]

    def load(self, files: list[Path], threads: int) -> Runner:
        return Child([os.environ[_PYTHON], str(WORKER), str(files[0]), str(threads)])


class Child:
    """A runner in another process: an image goes down the pipe, the time of the inference and the logits come back.

    The files take one image, so a batch goes one by one.
    """

    def __init__(self, command: list[str]) -> None:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (a full pipe would block the child)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, env={**os.environ, **quiet}
        )
        atexit.register(self.close)
        self.seconds = 0.0
        if self._read(6) != b"ready\n":
            raise RuntimeError("the child process does not start")

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        self.seconds = 0.0
        return np.stack([self._one(image) for image in batch.transpose(0, 2, 3, 1)])

    def _one(self, image: np.ndarray) -> np.ndarray:
        assert self.process.stdin is not None
        data = np.ascontiguousarray(image, np.float32).tobytes()
        self.process.stdin.write(struct.pack("<q", len(data)) + data)
        self.process.stdin.flush()
        nanoseconds, size = struct.unpack("<qq", self._read(16))
        self.seconds += nanoseconds * 1e-9
        return np.frombuffer(self._read(size), np.float32)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(size)
        if len(data) < size:
            self.said.seek(0)
            said = self.said.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"the child process ended: {said[-1] if said else 'no message'}")
        return data


PEERS: list[Peer] = [Larq("larq", "1-bit")]
