"""Small files that ask for much memory: every op at extreme shapes.

As a script, loads and runs them and says how much the process grew: each in a fork of its own, so that its peak is its
own and all of it is given back.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ovsw import Engine
from ovsw import format as bnn
from ovsw.engine import NO_LIMIT

Shape = tuple[int, int, int]  # channels, rows, columns
CAP = 1 << 27  # elements of a map
MOST_WORK = 3e8  # products, or elements of what has none: more is not run here


class Net:
    """A network that grows op by op; `last` is the map that the next one reads."""

    def __init__(self, numerics: str, shape: Shape) -> None:
        self.integer = numerics == "integer"
        self.model = bnn.Model([], [], [], output=0, mean=0, std=1, numerics=numerics)
        self.last = self.model.add_value("u8" if self.integer else "f32", *shape)
        self.model.add_tensor(np.zeros(shape[0]))
        self.model.add_tensor(np.ones(shape[0]))
        self.work = float(np.prod(shape))

    @property
    def shape(self) -> Shape:
        return self.model.values[self.last].shape

    def tensor(self, shape: tuple[int, ...], dtype: str) -> int:
        return self.model.add_tensor(np.ones(shape), dtype)

    def add(self, kind: str, result: Shape, writes: str = "out", **fields: object) -> Net:
        """An op with the constants that it must have; `writes`: out, bits, or f32 for what an integer net ends with."""
        m, c = self.model, result[0]
        op = bnn.Op(kind, "", self.last, **fields)  # type: ignore[arg-type]
        if self.integer and kind in ("bconv", "conv", "avgpool", "mul", "linear"):
            if kind != "conv":
                one = kind == "linear"
                op.scale = self.tensor((1 if one else c,), "f32" if one else "i16")
            op.offset, op.shift = self.tensor((c,), "i32"), self.tensor((c,), "u8")
        if kind == "to_float":
            op.scale, op.offset = self.tensor((c,), "f64"), self.tensor((c,), "f64")
        floats = not self.integer or writes == "f32"
        ref = m.add_value("bits" if writes == "bits" else "f32" if floats else "i16", *result)
        op.out, op.bits = (None, ref) if writes == "bits" else (ref, None)
        m.ops.append(op)
        self.last = ref
        taps = float(np.prod(m.tensors[op.weight].shape[1:])) if op.weight is not None and kind != "gather" else 1.0
        self.work += float(np.prod(result)) * max(taps, float(np.prod(op.window)))
        return self

    def window(self, kind: str, out_c: int, window: int, axis: str, **how: int) -> Net:
        """bconv, conv or a pool, with a window along rows, columns or both; groups 0 is depthwise."""
        stride, dilation, groups = how.get("stride", 1), how.get("dilation", 1), how.get("groups", 1)
        c, h, w = self.shape
        extent = (window - 1) * dilation + 1
        pad = extent - 1 if how.get("padded") else 0
        if "pool" in kind:
            pad = window // 2 if how.get("padded") else 0
        pairs = {name: tuple(n if side in axis else rest for side in "hw") for name, n, rest in (
            ("window", window, 1), ("stride", stride, 1), ("pad", pad, 0), ("dilation", dilation, 1)
        )}  # fmt: skip
        sides = [
            (n + 2 * p - (k - 1) * d - 1) // s + 1
            for n, k, s, p, d in zip((h, w), *(pairs[k] for k in ("window", "stride", "pad", "dilation")))
        ]
        if min(sides) < 1 or max(sides) > bnn.MAX_DIM or out_c * sides[0] * sides[1] > CAP:
            raise ValueError("no such op")
        fields: dict[str, object] = dict(pairs)
        if "conv" in kind:
            per_group = c // groups if groups else 1
            shape = (out_c, *pairs["window"], per_group)
            if np.prod(shape) > 1e7:
                raise ValueError("no such op")
            if kind == "bconv":
                fields["weight"] = self.model.add_bits(np.ones(shape, np.bool_))
                fields["pad_value"] = float(how.get("pad_value", 0))
            else:
                fields["weight"] = self.model.add_tensor(np.zeros(shape), "i8" if self.integer else "f32")
        return self.add(kind, (out_c, sides[0], sides[1]), "out", **fields)

    def bits(self) -> Net:
        return self.add("eltwise", self.shape, "bits")

    def stream(self, out_c: int = 1) -> Net:
        """From the pixels of an integer net to 16 bits; in float nothing."""
        return self.window("conv", out_c, 1, "hw") if self.integer else self

    def done(self) -> tuple[bytes, float]:
        """The file, and how much work a run is."""
        if self.model.values[self.last].kind != "f32":
            self.add("to_float", self.shape, "f32")
        self.model.output = self.last
        return bnn.to_bytes(self.model), self.work


SHAPES: dict[str, Shape] = {
    "tall": (1, 1 << 20, 1),
    "wide": (1, 1, 1 << 20),
    "square": (1, 1500, 1500),
    "picture": (3, 1200, 1600),
    "deep": (1024, 1, 1),
    "deep and tall": (1024, 4000, 1),
    "one pixel": (1, 1, 1),
    "at the cap": (128, 1024, 1024),
}
WINDOWS: list[dict[str, Any]] = [
    {"window": k, "axis": axis, "padded": padded, **more}
    for k, axis, padded in itertools.product((3, 255), ("hw", "h", "w"), (0, 1))
    for more in ({}, {"stride": 7}, {"dilation": 256}, {"groups": 0}, {"pad_value": 1})
]  # fmt: skip


def windowed() -> Iterator[tuple[str, Callable[[], Net]]]:
    """One convolution or pool at every shape."""
    for numerics, (where, shape), how in itertools.product(("float", "integer"), SHAPES.items(), WINDOWS):
        for kind in ("conv pixels", "conv", "bconv", "maxpool", "avgpool"):
            name = f"{numerics} {kind} {where} {how}"
            averages, binary = kind == "avgpool", kind == "bconv"
            if ("pad_value" in how and not binary) or ("dilation" in how and averages):
                continue
            if "pool" in kind and "groups" in how:
                continue

            yield name, partial(one_window, numerics, shape, kind, how)


def one_window(numerics: str, shape: Shape, kind: str, how: dict[str, Any]) -> Net:
    net = Net(numerics, shape)
    core = kind.split()[0]
    if kind != "conv pixels":
        net.stream()
    if core == "bconv":
        net.bits()
    out_c = net.shape[0] if "pool" in core or how.get("groups") == 0 else 2
    return net.window(core, out_c, **how)


def others() -> Iterator[tuple[str, Callable[[], Net]]]:
    """Ops without a window, and many of a kind."""

    def chain(numerics: str, shape: Shape, kind: str, count: int, **fields: object) -> Callable[[], Net]:
        def make() -> Net:
            net = Net(numerics, shape).stream()
            for _ in range(count):
                more = {"residual": net.last} if kind == "mul" else {}
                net.add(kind, net.shape, **fields, **more)  # type: ignore[arg-type]
            return net

        return make

    def grown(numerics: str, kind: str, sides: tuple[int, int]) -> Callable[[], Net]:
        """gather and bilinear make a large map of a pixel."""

        def make() -> Net:
            net = Net(numerics, (1, 1, 1)).stream()
            size = 1 + sum(sides) if kind == "gather" else 2 * sum(sides)
            weight = net.model.add_tensor(np.zeros(size), "i32")
            return net.add(kind, (1, *sides), weight=weight)

        return make

    def wider(numerics: str, times: int) -> Callable[[], Net]:
        def make() -> Net:
            net = Net(numerics, (1, 12, 12)).stream()
            for _ in range(times):
                c, h, w = net.shape
                net.add("channel_pad", (c + 131070, h, w), channels=(65535, 65535))
            return net

        return make

    def doubled(numerics: str, times: int) -> Callable[[], Net]:
        def make() -> Net:
            net = Net(numerics, (1, 64, 64)).stream()
            for _ in range(times):
                c, h, w = net.shape
                net.add("concat", (2 * c, h, w), residual=net.last)
            return net

        return make

    def classified(numerics: str, shape: Shape, out_c: int) -> Callable[[], Net]:
        def make() -> Net:
            net = Net(numerics, shape).stream()
            size = int(np.prod(net.shape))
            weight = net.tensor((out_c, size), "i8" if net.integer else "f32")
            return net.add("linear", (out_c, 1, 1), "f32", weight=weight)

        return make

    def borders(numerics: str, count: int) -> Callable[[], Net]:
        """Windows of 255 x 255 over as many pixels: 509 x 509 classes of border each."""

        def make() -> Net:
            net = Net(numerics, (1, 255, 255))
            for _ in range(count):
                net.last = 0
                net.window("conv", 1, 255, "hw", padded=1)
            return net

        return make

    def unequal(numerics: str, count: int) -> Callable[[], Net]:
        """Each with a padding of its own, so that no two can share a table of classes."""

        def make() -> Net:
            net = Net(numerics, (1, 1 << 19, 1)).stream().bits()
            source = net.last
            for i in range(count):
                net.last = source
                net.window("bconv", 1, 2 + i % 200, "h", padded=1, stride=1 + i // 200)
            return net

        return make

    for numerics in ("float", "integer"):
        for where, shape in SHAPES.items():
            for kind in ("eltwise", "maxpool", "mul"):
                for count in (1, 1000):
                    yield f"{numerics} {count} x {kind} {where}", chain(numerics, shape, kind, count)
        for sides in ((100_000, 1), (1, 100_000), (4000, 4000), (11_000, 11_000)):
            for kind in ("gather", "bilinear"):
                yield f"{numerics} {kind} to {sides}", grown(numerics, kind, sides)
        for times in (1, 7):
            yield f"{numerics} {times} x channel_pad", wider(numerics, times)
        for times in (4, 12):
            yield f"{numerics} {times} x concat", doubled(numerics, times)
        features = (1, 500, 500) if numerics == "float" else (1, 250, 250)  # more would leave 32 bits
        yield f"{numerics} linear of many features", classified(numerics, features, 1)
        yield f"{numerics} linear of many classes", classified(numerics, (1, 1, 1), 20_000)
        yield f"{numerics} 900 unequal paddings", unequal(numerics, 900)
        for count in (1, 3, 14):
            yield f"{numerics} {count} x borders", borders(numerics, count)
    for where, shape in SHAPES.items():
        for kind in ("softmax", "log_softmax"):
            yield f"float {kind} {where}", chain("float", shape, kind, 1)


def cases() -> dict[str, Callable[[], Net]]:
    return dict((*windowed(), *others()))


# --- the child's side ------------------------------------------------------------------------------------------------


def status(field: str) -> int:
    """Of this process, in bytes: VmRSS, or VmHWM, its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def in_fork(job: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What `job` gives in a fork of this process, or what became of it."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        try:
            result = job()
        except BaseException as e:  # the parent gets to know it
            result = {"said": f"{type(e).__name__}: {e}"}
        os.write(into, json.dumps(result).encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(text) if code == 0 else {"said": f"ended with {code}"}


def grow(data: bytes, work: float, isa: str, threads: int, limit: int | None = None) -> dict[str, object]:
    """What the engine says of a file, and by how many bytes this process grew."""
    before = status("VmRSS")
    said = "loaded"
    try:
        engine = Engine(data, threads=threads, isa=isa, memory_limit=limit, work_limit=NO_LIMIT)
        if work <= MOST_WORK:
            engine.run(np.zeros(engine.input_shape, np.float32))
            said = "ran"
    except ValueError as e:
        said = str(e)
    return {"said": said, "grown": status("VmHWM") - before, "bytes": len(data)}


def main(seconds: str, part: str, parts: str, *tables: str) -> None:
    """Every `parts`th of the cases from number `part` on, each on one of the tables, with 1 or 8 threads."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))  # of each fork
    found = {}
    for i, (name, make) in enumerate(cases().items()):
        if i % int(parts) != int(part):
            continue
        try:
            data, work = make().done()
        except ValueError:
            continue  # such an op there cannot be
        if len(data) > 1_000_000:
            continue
        isa, threads = tables[i // int(parts) % len(tables)], (1, 8)[i // 2 % 2]
        found[f"{name} ({isa}, {threads} threads)"] = in_fork(lambda d=data, w=work, a=isa, t=threads: grow(d, w, a, t))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
