"""ncnn: float32, and its fp16 where that changes anything.

Its defaults store and compute in 16 bits where the CPU can; called fp32, all of that is off. It reads files of its own
format, which we write.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner, float_model

_16_BIT = ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage")


class Ncnn(Peer):
    modules = ("ncnn", "onnx")

    def available(self) -> str | None:
        why = super().available()
        if why is None and self.precision == "fp16" and not _has_fp16():
            return "computes in fp32 on this CPU"
        return why

    def load(self, network: str, threads: int) -> Runner:
        from ovsw.bench.peers.ncnn_files import to_ncnn

        return _runner(*to_ncnn(float_model(network)), self.precision, threads)


def _runner(param: str, data: bytes, precision: str, threads: int) -> Runner:
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.openmp_blocktime = 0
    for option in _16_BIT:
        if hasattr(net.opt, f"use_{option}"):
            setattr(net.opt, f"use_{option}", precision == "fp16" and option.startswith("fp16"))
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder) / "net"
        stem.with_suffix(".param").write_text(param)
        stem.with_suffix(".bin").write_bytes(data)
        if net.load_param(f"{stem}.param") or net.load_model(f"{stem}.bin"):
            raise RuntimeError("cannot load the network")

    def run(image: np.ndarray) -> np.ndarray:
        extractor: Any = net.create_extractor()
        extractor.input("input", ncnn.Mat(image[0]))
        code, logits = extractor.extract("logits")
        if code:
            raise RuntimeError(f"fails with code {code}")
        return np.array(logits)[None]

    return run


def _has_fp16() -> bool:
    """Which CPUs it uses fp16 on changes with its versions, so ask it: fp16 gives other bits than fp32."""
    from ovsw.bench.float_nets import float_resnet
    from ovsw.bench.peers.ncnn_files import to_ncnn

    files = to_ncnn(float_resnet("cresnet20"))
    image = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    return not np.array_equal(_runner(*files, "fp16", 1)(image), _runner(*files, "fp32", 1)(image))


PEERS: list[Peer] = [Ncnn("ncnn", "fp32"), Ncnn("ncnn", "fp16")]
