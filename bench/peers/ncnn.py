"""ncnn: float32, and its fp16 where that changes anything.

Its defaults store and compute in 16 bits where the CPU can; called fp32, all of that is off. It reads files of its own
format, which we write, and takes the images of a batch one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner, float_bytes, images

_FP16 = ("fp16_packed", "fp16_storage", "fp16_arithmetic")
_16_BIT = (*_FP16, "bf16_packed", "bf16_storage")


class Ncnn(Peer):
    modules = ("ncnn", "onnx")

    def __init__(self, engine: str, precision: str, options: tuple[str, ...]) -> None:
        super().__init__(engine, precision)
        self.options = options

    def unable(self) -> str | None:
        """On many CPUs it only stores fp16. Which ones changes with its versions, but arithmetic changes bits."""
        if self.precision == "fp32":
            return None
        (image,) = images("cresnet20", 1, seed=0)
        stored = Ncnn(self.engine, self.precision, _FP16[:2])
        same = np.array_equal(self.ready("cresnet20")(image), stored.ready("cresnet20")(image))
        return "computes in fp32 on this CPU" if same else None

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        import onnx

        from ovsw.bench.peers.ncnn_files import to_ncnn

        files = [folder / f"{network}.param", folder / f"{network}.bin"]
        if not files[1].exists():
            param, data = to_ncnn(onnx.load_from_string(float_bytes(network, batch)))
            files[0].write_text(param)
            files[1].write_bytes(data)
        return files

    def load(self, files: list[Path], threads: int) -> Runner:
        import ncnn

        net = ncnn.Net()
        net.opt.num_threads = threads
        net.opt.openmp_blocktime = 0
        for option in _16_BIT:
            if hasattr(net.opt, f"use_{option}"):
                setattr(net.opt, f"use_{option}", option in self.options)
        param, data = map(str, files)
        if net.load_param(param) or net.load_model(data):
            raise RuntimeError("cannot load the network")

        def one(image: np.ndarray) -> np.ndarray:
            extractor: Any = net.create_extractor()
            extractor.input("input", ncnn.Mat(image))
            code, logits = extractor.extract("logits")
            if code:
                raise RuntimeError(f"fails with code {code}")
            return np.array(logits)

        return lambda batch: np.stack([one(image) for image in batch])


PEERS: list[Peer] = [Ncnn("ncnn", "fp32", ()), Ncnn("ncnn", "fp16", _FP16)]
