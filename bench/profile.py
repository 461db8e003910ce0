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
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovsw import Engine, _bench
from ovsw import format as bnn
from ovsw.bench.measure import spread
from ovsw.bench.random_nets import ideal_layers
from ovsw.engine import NO_LIMIT, ImageLike
from ovsw.util.text import dims, table

COPIES = tuple(1 << n for n in (17, 19, 21, 23, 26))  # bytes read and written; cache sizes lie between them
_SIZES = {"f32": 4, "i16": 2, "i32": 4, "u8": 1}
_TICK = 1e-8  # seconds; a coarse clock may show none
_WIDTHS = {"i8": "int8", "i16": "int16"}


@dataclass
class Work:
    """The work of a step; `kinds` are the types of its input and weight, `bytes` what it must read and write."""

    name: str
    op: str
    input: tuple[int, ...]
    output: tuple[int, ...]
    macs: float
    window: str
    kinds: str
    bytes: int

    @property
    def label(self) -> str:
        return f"{self.op} {self.kinds}".removesuffix(" -")

    @property
    def shape(self) -> str:
        return f"{dims(self.input)} -> {dims(self.output)}"


@dataclass
class TimedStep(Work):
    """`share` is that of the whole time, `ceiling_share` the time of the ceiling over the step's."""

    ms: float
    p10: float
    p90: float
    share: float
    gmacs: float
    ceiling_share: float


@dataclass
class Copy:
    bytes: int
    gb_per_s: float


@dataclass
class Ceilings:
    """GMAC/s of each kind of convolution at its best, and the speed of copies, small ones first."""

    gmacs: dict[str, float]
    copy: list[Copy]

    def seconds(self, work: Work) -> float:
        """The shortest possible time of the step."""
        peak = self.gmacs.get(work.label)
        speed = max((c for c in self.copy if c.bytes <= work.bytes), key=lambda c: c.bytes, default=self.copy[0])
        return max(work.macs / peak if peak else 0.0, work.bytes / speed.gb_per_s) / 1e9


@dataclass
class NetworkProfile:
    isa: str
    threads: int
    rounds: int
    total_ms: float
    steps: list[TimedStep]
    ceilings: Ceilings


def profile(data: bytes, isa: str | None, threads: int, image: ImageLike, rounds: int) -> NetworkProfile:
    """Times each step of the model in `data` on one image; ideal layers and copies are timed in the same rounds."""
    engine = Engine(data, threads=threads, isa=isa, memory_limit=NO_LIMIT)  # it has been loaded before
    model = bnn.from_bytes(data)
    pixels = engine.batch(image)[:1]
    ideal_model = ideal_layers(model.numerics, **_widths(model))
    ideal = Engine(bnn.to_bytes(ideal_model), threads=threads, isa=engine.isa)
    c, h, w = ideal.input_shape
    noise = np.random.default_rng(0).integers(0, 256, (1, h, w, c), np.uint8)
    seconds, fastest, copies = [], [], []
    for _ in range(rounds):
        seconds.append(_last_run(engine, pixels))
        fastest.append(_last_run(ideal, noise))
        copies.append([_copy_speed(size, threads) for size in COPIES])
    speeds = [Copy(size, speed / 1e9) for size, speed in zip(COPIES, np.max(copies, axis=0).tolist())]
    ceilings = Ceilings(_peaks(_work(ideal, ideal_model), np.min(fastest, axis=0)), speeds)
    times = np.asarray(seconds)
    total = 1e3 * float(np.median(times.sum(axis=1)))
    steps = []
    for work, t in zip(_work(engine, model), times.T):
        ms = spread(1e3 * np.maximum(t, _TICK))
        timed: dict[str, Any] = {"ms": ms.median, "p10": ms.p10, "p90": ms.p90, "share": ms.median / total}
        gmacs, ceiling = work.macs / ms.median / 1e6, 1e3 * ceilings.seconds(work) / ms.median
        steps.append(TimedStep(**vars(work), **timed, gmacs=gmacs, ceiling_share=ceiling))
    return NetworkProfile(engine.isa, threads, rounds, total, steps, ceilings)


def show(profile: NetworkProfile) -> str:
    """The profile as text: what a ceiling is, the steps, and the totals per op."""
    steps = table(STEP_HEAD, step_cells(profile), right=range(5, len(STEP_HEAD)))
    ops = table(OP_HEAD, op_cells(profile), right=range(1, len(OP_HEAD)))
    return "\n".join([*(textwrap.fill(text, 118) for text in head(profile)), "", steps, "", ops])


def head(profile: NetworkProfile) -> list[str]:
    """The paragraphs above the tables."""
    about = f"{profile.isa}, {profile.threads} thread(s), {profile.rounds} rounds"
    peaks = [f"{name} {gmacs:.0f} GMAC/s" for name, gmacs in profile.ceilings.gmacs.items()]
    copies = [f"{c.gb_per_s:.0f} GB/s ({c.bytes >> 10} kB)" for c in profile.ceilings.copy]
    return [
        f"{about}, {profile.total_ms:.3f} ms in all.",
        "Ceiling: the time of the same kernel at its best, on a layer that suits it, or of a copy of the step's bytes, "
        "whichever is longer, over the step's time. 100 % is our own best case on this CPU, not its data sheet's.",
        f"At their best in the same rounds: {', '.join(peaks)}; copies {', '.join(copies)}.",
    ]


STEP_HEAD = ("step", "op", "shape", "window", "kinds", "ms", "p10 .. p90", "%", "GMAC/s", "kB", "ceiling %")
OP_HEAD = ("op", "steps", "ms", "%", "GMAC/s")


def step_cells(profile: NetworkProfile) -> list[tuple[str, ...]]:
    """The rows under STEP_HEAD."""
    return [
        (s.name, s.op, s.shape, s.window, s.kinds)
        + (f"{s.ms:.3f}", f"{s.p10:.3f} .. {s.p90:.3f}", f"{100 * s.share:.1f}")
        + (_rate(s.macs, s.ms), f"{s.bytes / 1e3:.0f}", f"{100 * s.ceiling_share:.0f}")
        for s in profile.steps
    ]


def op_cells(profile: NetworkProfile) -> list[tuple[str, ...]]:
    """The rows under OP_HEAD, the slowest first."""
    groups: dict[str, list[TimedStep]] = defaultdict(list)
    for step in profile.steps:
        groups[step.label].append(step)
    rows = []
    for name, steps in groups.items():
        ms, share, macs = (sum(getattr(s, key) for s in steps) for key in ("ms", "share", "macs"))
        rows.append((ms, (name, str(len(steps)), f"{ms:.3f}", f"{100 * share:.1f}", _rate(macs, ms))))
    return [cells for _, cells in sorted(rows, reverse=True)]


def _rate(macs: float, ms: float) -> str:
    return f"{macs / ms / 1e6:.1f}" if macs else "-"


def _last_run(engine: Engine, pixels: np.ndarray) -> np.ndarray:
    """Seconds of each step; a run before it brings the network back into the caches."""
    return engine.time_steps(pixels, 2)[1]


def _work(engine: Engine, model: bnn.Model) -> list[Work]:
    """Of each step; the first one takes the image over."""
    first, *steps = engine.steps
    taken = int(np.prod(first.input)) + _bytes(model.values[0])
    works = [Work(first.name, first.op, first.input, first.output, first.macs, "-", "-", taken)]
    for op, step in zip(model.ops, steps):
        kinds = "-" if op.weight is None else f"{model.values[op.input].kind} x {model.tensors[op.weight].dtype}"
        window = dims(op.window) + (f" / {op.stride[0]}" if op.stride != (1, 1) else "")
        values = [i for i in (op.input, op.residual, op.out, op.bits) if i is not None]
        moved = sum(_bytes(model.values[i]) for i in values) + sum(model.tensors[i].array.nbytes for i in op.tensors)
        about = (step.name, step.op, step.input, step.output, step.macs)
        works.append(Work(*about, window if op.window != (1, 1) else "-", kinds, moved))
    return works


def _bytes(value: bnn.Value) -> int:
    pixel = -(-value.c // 64) * 8 if value.kind == "bits" else value.c * _SIZES[value.kind]
    return pixel * value.h * value.w


def _widths(model: bnn.Model) -> dict[str, Any]:
    """`weights` and `stem` of an integer network like this one."""
    widths = {
        model.values[op.input].kind == "u8": _WIDTHS.get(model.tensors[op.weight].dtype)
        for op in model.ops
        if op.weight is not None and op.kind in ("conv", "linear")
    }
    return {"weights": widths.get(False) or "int16", "stem": widths.get(True)}


def _peaks(steps: list[Work], seconds: np.ndarray) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for work, time in zip(steps, seconds):
        if work.op in ("bconv", "conv"):
            peaks[work.label] = max(peaks.get(work.label, 0.0), work.macs / float(time) / 1e9)
    return peaks


def _copy_speed(size: int, threads: int) -> float:
    """Bytes read and written per second by threads that copy their share of `size` over and over."""
    share = size // threads
    repeat = max(1, (4 << 20) // size)
    with ThreadPoolExecutor(threads) as pool:
        times = list(pool.map(lambda _: _bench.time_copy(share, repeat), range(threads)))
    return sum(repeat * share / seconds for seconds in times)
