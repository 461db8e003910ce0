"""Run by count.py under emulation: loads one engine with one network and executes it between the markers of marks.c.

Prints a JSON object about what ran. The first call is not counted: it would include the dynamic linker.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

COUNTED = 2


def ovsw_call(
    network: str, isa: str | None, stem: str, next_step: int | None
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """`network` is the name of one with random weights, or a `.bnn` file; `next_step` the address of a marker."""
    from ovsw import Engine, _testing
    from ovsw import format as bnn

    if network.endswith(".bnn"):
        data = Path(network).read_bytes()
    else:
        from ovsw.bench.random_nets import random_resnet

        data = bnn.to_bytes(random_resnet(network, numerics="integer", stem=stem))
    engine = Engine(data, threads=1, isa=isa)
    channels, height, width = engine.input_shape
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    about: dict[str, Any] = {"engine": f"ovsw {engine.isa}", "precision": engine.numerics}
    if next_step is None:
        return lambda: engine.run(pixels), about
    about["steps"] = [asdict(step) for step in engine.steps]
    marked = _testing.Model(data, engine.isa)
    return lambda: marked.run(pixels, next_step), about


def ncnn_call(stem: str, precision: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """`stem`.param and `stem`.bin; the defaults of ncnn but for one thread and, with fp32, the 16-bit options."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = 1
    if precision == "fp32":
        for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "bf16_packed"):
            if hasattr(net.opt, f"use_{option}"):
                setattr(net.opt, f"use_{option}", False)
    if net.load_param(f"{stem}.param") or net.load_model(f"{stem}.bin"):
        raise RuntimeError(f"ncnn cannot load {stem}")
    values = ncnn.Mat(np.load(f"{stem}.npy")).clone()

    def call() -> np.ndarray:
        extractor = net.create_extractor()
        extractor.input("input", values)
        return np.array(extractor.extract("logits")[1])

    return call, {"engine": f"ncnn {ncnn.__version__}", "precision": precision}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("engine", choices=("ovsw", "ncnn"))
    p.add_argument("network")
    p.add_argument("--isa")
    p.add_argument("--stem", default="int8", help="of ovsw: weights of the first convolution")
    p.add_argument("--precision", default="fp32")
    p.add_argument("--marks", required=True)
    p.add_argument("--logits", help="a .npy file for the answer")
    p.add_argument("--steps", action="store_true", help="of ovsw: a region for each step")
    args = p.parse_args()
    marks = ctypes.CDLL(args.marks)
    begin, end = marks.begin, marks.end
    if args.engine == "ovsw":
        next_step = ctypes.cast(marks.next, ctypes.c_void_p).value if args.steps else None
        call, about = ovsw_call(args.network, args.isa, args.stem, next_step)
    else:
        call, about = ncnn_call(args.network, args.precision)
    gc.disable()  # or a collection may fall into a region
    logits = call()
    begin()  # the first call of either is the linker's too
    end()
    for _ in range(COUNTED):
        begin()
        logits = call()
        end()
    if not args.steps and not np.isfinite(logits).all():
        raise RuntimeError("the answer is not finite")
    if args.logits:
        np.save(args.logits, logits)
    print(json.dumps(about))


if __name__ == "__main__":
    main()
