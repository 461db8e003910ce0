"""Where the time of one inference goes, step by step, and how far each step is from what this CPU can do.

The ceiling of a step is the longer of two times. One is its multiply-adds at the speed that the same kernel table, with
as many threads, reached in its fastest round on a layer that suits it (`random_nets.ideal_layers`). The other is the
time of a plain copy of as many bytes as the step must read and write: its inputs, its output and its weights as the
file has them, once each. So 100 % means as fast as our own best case, not as fast as the CPU's data sheet.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw.bench.measure import spread
from ovsw.bench.random_nets import ideal_layers
from ovsw.engine import ImageLike
from ovsw.summary import table

COPIES = tuple(1 << n for n in (17, 19, 21, 23, 26))  # bytes read and written; the caches' steps lie between them
_SIZES = {"map": 4, "i16": 2, "i32": 4, "u8": 1}
_TICK = 1e-8  # seconds: what a coarse clock may show as none
_WIDTHS = {"i8": "int8", "i16": "int16"}


def profile(data: bytes, isa: str | None, threads: int, image: ImageLike, rounds: int) -> dict[str, Any]:
    """Times each step of the model in `data` on one image; ideal layers and copies are timed in the same rounds."""
    engine = Engine(data, threads=threads, isa=isa)
    model = bnn.from_bytes(data)
    pixels = engine._batch(image)[0][:1]
    ideal_model = ideal_layers(model.numerics, **_widths(model))
    ideal = Engine(bnn.to_bytes(ideal_model), threads=threads, isa=engine.isa)
    c, h, w = ideal.input_shape
    noise = np.random.default_rng(0).integers(0, 256, (1, h, w, c), np.uint8)
    seconds, fastest, copies = [], [], []
    for _ in range(rounds):
        seconds.append(_last_run(engine, pixels))
        fastest.append(_last_run(ideal, noise))
        copies.append([_copy_speed(size, threads) for size in COPIES])
    peaks = _peaks(_steps(ideal, ideal_model), np.min(fastest, axis=0))
    speeds = dict(zip(COPIES, np.max(copies, axis=0).tolist()))
    times = np.asarray(seconds)
    total = float(np.median(times.sum(axis=1)))
    steps = _steps(engine, model)
    for step, each in zip(steps, times.T):
        ms = spread(1e3 * np.maximum(each, _TICK))
        median = ms["median"] / 1e3
        step.update(ms=ms["median"], p10=ms["p10"], p90=ms["p90"], share=median / total)
        step["gmacs"] = step["macs"] / median / 1e9
        step["ceiling_share"] = _least_seconds(step, peaks, speeds) / median
    return {
        "isa": engine.isa,
        "threads": threads,
        "rounds": rounds,
        "total_ms": 1e3 * total,
        "steps": steps,
        "ceilings": {
            "gmacs": peaks,
            "copy": [{"bytes": size, "gb_per_s": speed / 1e9} for size, speed in speeds.items()],
        },
    }


def show(profile: dict[str, Any]) -> str:
    """The profile as text: what a ceiling is, the steps, and what each op takes together."""
    steps = table(STEP_HEAD, step_cells(profile), right=range(5, len(STEP_HEAD)))
    ops = table(OP_HEAD, op_cells(profile), right=range(1, len(OP_HEAD)))
    return "\n".join([*(textwrap.fill(text, 118) for text in head(profile)), "", steps, "", ops])


def head(profile: dict[str, Any]) -> list[str]:
    """The paragraphs above the tables."""
    about = f"{profile['isa']}, {profile['threads']} thread(s), {profile['rounds']} rounds"
    peaks = [f"{name} {gmacs:.0f} GMAC/s" for name, gmacs in profile["ceilings"]["gmacs"].items()]
    copies = [f"{c['gb_per_s']:.0f} GB/s ({c['bytes'] >> 10} kB)" for c in profile["ceilings"]["copy"]]
    return [
        f"{about}, {profile['total_ms']:.3f} ms in all.",
        "Ceiling: the time of the same kernel at its best, on a layer that suits it, or of a copy of the step's bytes, "
        "whichever is longer, over the step's time. 100 % is our own best case on this CPU, not its data sheet's.",
        f"At their best in the same rounds: {', '.join(peaks)}; copies {', '.join(copies)}.",
    ]


STEP_HEAD = ("step", "op", "shape", "window", "kernel", "ms", "p10 .. p90", "%", "GMAC/s", "kB", "ceiling %")
OP_HEAD = ("op", "steps", "ms", "%", "GMAC/s")


def step_cells(profile: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows under STEP_HEAD."""
    return [
        (s["name"], s["op"], shape_text(s), s["window"], s["kernel"])
        + (f"{s['ms']:.3f}", f"{s['p10']:.3f} .. {s['p90']:.3f}", f"{100 * s['share']:.1f}")
        + (f"{s['gmacs']:.1f}" if s["macs"] else "-", f"{s['bytes'] / 1e3:.0f}", f"{100 * s['ceiling_share']:.0f}")
        for s in profile["steps"]
    ]


def op_cells(profile: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows under OP_HEAD, what takes most time first."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in profile["steps"]:
        groups[f"{step['op']} {step['kernel']}".removesuffix(" -")].append(step)
    rows = []
    for name, steps in groups.items():
        ms, share, macs = (sum(s[key] for s in steps) for key in ("ms", "share", "macs"))
        rows.append((ms, (name, str(len(steps)), f"{ms:.3f}", f"{100 * share:.1f}", _rate(macs, ms))))
    return [cells for _, cells in sorted(rows, reverse=True)]


def shape_text(step: dict[str, Any]) -> str:
    return " -> ".join("x".join(map(str, step[end])) for end in ("input", "output"))


def _rate(macs: float, ms: float) -> str:
    return f"{macs / ms / 1e6:.1f}" if macs else "-"


def _last_run(engine: Engine, pixels: np.ndarray) -> list[float]:
    """Seconds of each step; a run before it brings the network back into the caches."""
    return engine._core.time_steps(pixels, 2)[1]


def _steps(engine: Engine, model: bnn.Model) -> list[dict[str, Any]]:
    """What is known of the steps before they are timed; the first one takes the image over."""
    shape = engine.input_shape
    taken = int(np.prod(shape)) + _bytes(model.values[0])
    steps: list[dict[str, Any]] = [
        {"name": "input", "op": "input", "input": shape, "output": shape, "macs": 0.0}
        | {"window": "-", "kernel": "-", "bytes": taken}
    ]
    for op, step in zip(model.ops, engine._core.steps()):
        kernel = "-"
        if op.weight is not None:
            kernel = f"{model.values[op.input].kind} x {model.tensors[op.weight].dtype}".replace("map", "f32")
        window = "x".join(map(str, op.kernel)) + (f" / {op.stride[0]}" if op.stride != (1, 1) else "")
        values = [i for i in (op.input, op.residual, op.out, op.bits) if i is not None]
        moved = sum(_bytes(model.values[i]) for i in values) + sum(model.tensors[i].array.nbytes for i in op.tensors)
        known: dict[str, Any] = {key: step[key] for key in ("name", "op", "input", "output", "macs")}
        steps.append({**known, "window": window if op.kernel != (1, 1) else "-", "kernel": kernel, "bytes": moved})
    return steps


def _bytes(value: bnn.Value) -> int:
    pixel = -(-value.c // 64) * 8 if value.kind == "bits" else value.c * _SIZES[value.kind]
    return pixel * value.h * value.w


def _widths(model: bnn.Model) -> dict[str, Any]:
    """`weights` and `stem` of an integer network like this one."""
    found = {
        model.values[op.input].kind == "u8": _WIDTHS.get(model.tensors[op.weight].dtype)
        for op in model.ops
        if op.weight is not None and op.kind in ("conv", "linear")
    }
    return {"weights": found.get(False) or "int16", "stem": found.get(True)}


def _peaks(steps: list[dict[str, Any]], seconds: np.ndarray) -> dict[str, float]:
    """GMAC/s of each kind of convolution at its best."""
    peaks: dict[str, float] = {}
    for step, time in zip(steps, seconds):
        if step["op"] in ("bconv", "conv"):
            kind = f"{step['op']} {step['kernel']}"
            peaks[kind] = max(peaks.get(kind, 0.0), step["macs"] / float(time) / 1e9)
    return peaks


def _least_seconds(step: dict[str, Any], peaks: dict[str, float], speeds: dict[int, float]) -> float:
    peak = peaks.get(f"{step['op']} {step['kernel']}")
    size = max((size for size in speeds if size <= step["bytes"]), default=min(speeds))
    return max(step["macs"] / peak / 1e9 if peak else 0.0, step["bytes"] / speeds[size])


def _copy_speed(size: int, threads: int) -> float:
    """Bytes read and written per second by threads that copy their share of `size` over and over."""
    share = size // threads
    repeat = max(1, (4 << 20) // size)
    with ThreadPoolExecutor(threads) as pool:
        times = list(pool.map(lambda _: _core.time_copy(share, repeat), range(threads)))
    return sum(repeat * share / seconds for seconds in times)
