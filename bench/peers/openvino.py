"""OpenVINO: float32, 16 bits where its CPU plugin can, and int8 by nncf's post-training quantisation.

Left alone it computes float networks in bf16 on CPUs that have it, hence the hint for each precision.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner, calibration, child

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


class OpenVino(Peer):
    modules: tuple[str, ...] = ("openvino", "onnx")

    def prepare_environment(self) -> None:
        _without_amx()

    def unable(self) -> str | None:
        if self.precision not in ("fp16", "bf16"):
            return None
        able = self.precision.upper() in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return None if able else f"no {self.precision} on this CPU"

    def version(self) -> str:
        return super().version() + " without AMX" * _without_amx()

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        files = super().files(network, batch, folder)
        if self.precision == "fp32":
            return files
        openvino = _openvino()
        model = openvino.Core().read_model(files[0])
        if self.precision == "int8":
            model = _quantized(model, network, batch)
        saved = folder / f"{network}-{batch}.{self.precision}.xml"
        openvino.save_model(model, saved, compress_to_fp16=self.precision != "int8")
        return [saved, saved.with_suffix(".bin")]

    def load(self, files: list[Path], threads: int) -> Runner:
        core = _openvino().Core()
        config: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        if self.precision in _HINTS:
            config["INFERENCE_PRECISION_HINT"] = _HINTS[self.precision]
        request = core.compile_model(core.read_model(files[0]), "CPU", config).create_infer_request()
        return lambda image: np.array(request.infer({0: image}, share_inputs=True)[0])


class OpenVinoInt8(OpenVino):
    modules = ("openvino", "onnx", "nncf")


def _openvino() -> Any:
    _without_amx()
    import openvino

    return openvino


_ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
_TRY_AMX = """
import openvino
from ovsw.bench.peers.base import float_bytes, images
core = openvino.Core()
model = core.read_model(float_bytes("cresnet20"))
core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})({0: images("cresnet20", 1, seed=0)[0]})
"""


@functools.cache
def _without_amx() -> bool:
    """Whether AMX had to be switched off, which only works before the plugin is loaded.

    Some virtual machines show AMX but not the CPUID leaf with the sizes of its tiles: the plugin then dies of an
    illegal instruction in every int8 or bf16 network. AVX-512, with VNNI and fp16, is the next best.
    """
    amx = False
    with contextlib.suppress(OSError):
        amx = "amx_tile" in Path("/proc/cpuinfo").read_text()
    if not amx or _ISA_LIMIT in os.environ or child([sys.executable, "-c", _TRY_AMX])[1] is None:
        return False
    os.environ[_ISA_LIMIT] = "AVX512_CORE_FP16"
    return True


def _quantized(model: Any, network: str, batch: int) -> Any:
    os.environ.setdefault("NNCF_CI", "1")  # otherwise it reports its use to its makers
    import nncf

    nncf.set_log_level(logging.ERROR)
    data = calibration(network, batch)
    return nncf.quantize(model, nncf.Dataset(data), subset_size=len(data))


PEERS: list[Peer] = [*(OpenVino("openvino", p) for p in _HINTS), OpenVinoInt8("openvino", "int8")]
