"""Integer models for tests: a small one, and random ones of the first seven ops with constants up to their bounds."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.bounds import Checker

from support.models import FIRST, draw_window

INT32 = 2**31 - 1


class RandomModel:
    """Small models with every op of format 1.0; constants from harmless ones to the last bit of their bounds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        c, h, w = rng.choice((1, 3, 4)), rng.randint(1, 7), rng.randint(1, 7)
        self.model = m = bnn.Model([], [], [], output=0, mean=0, std=1, numerics="integer", version=(1, 1))
        m.add_tensor(np.array([rng.choice((0.0, 0.45, -0.3, 1.0, 250.0)) for _ in range(c)]))
        m.add_tensor(np.array([rng.uniform(0.1, 1) for _ in range(c)]))
        m.add_value("u8", c, h, w)
        self.most = {0: 255}
        self.add("conv")
        for _ in range(rng.randint(1, 6)):
            kinds = [k for k in FIRST if k != "linear" and self.sources(k)]
            self.add(rng.choice(kinds))
        if not self.sources("linear"):
            self.add("conv", force_map=True)
        self.add("linear")
        m.output = len(m.values) - 1
        m.version = (bnn.MAJOR, bnn.lowest_minor(m))

    def sources(self, kind: str) -> list[int]:
        wanted = {"bconv": ("bits",), "conv": ("u8", "i16")}.get(kind, ("i16",))
        return [i for i, v in enumerate(self.model.values) if v.kind in wanted]

    def integers(self, shape: tuple[int, ...], largest: int) -> np.ndarray:
        most = self.rng.choice((largest, max(1, largest // 50), 3))
        n = int(np.prod(shape))
        return np.array([self.rng.randint(-most, most) for _ in range(n)], np.int64).reshape(shape)

    def add(self, kind: str, force_map: bool = False) -> None:
        m, rng = self.model, self.rng
        op = bnn.Op(kind, f"{kind}{len(m.ops)}", rng.choice(self.sources(kind)))
        c, h, w = shape = m.values[op.input].shape
        if kind in ("bconv", "conv", "maxpool", "avgpool"):
            h, w = draw_window(rng, op, shape)
        out = c
        if kind == "channel_pad":
            op.channels = (rng.randint(0, 3), rng.randint(0, 70))
            out = c + sum(op.channels)
        if kind in ("bconv", "conv", "linear"):
            out = rng.choice((1, 3, 8, 17, 33, 65))
        if kind == "bconv":
            op.weight = m.add_bits(self.integers((out, *op.window, c), 100) > 0)
        width = rng.choice(("i16", "i8"))
        if kind == "conv":
            op.weight = m.add_tensor(self.integers((out, *op.window, c), 32767 if width == "i16" else 127), width)
        if kind == "linear":
            h = w = 1
            features = int(np.prod(shape))
            op.weight = m.add_tensor(self.integers((out, features), 32767 if width == "i16" else 127), width)
        same = [i for i, v in enumerate(m.values) if v.kind in ("i16", "i32") and v.shape == (out, h, w)]
        wide = kind == "conv" and op.input != 0 and not force_map and rng.random() < 0.4
        plain = wide or kind == "linear"
        if same and not plain and rng.random() < 0.7:
            op.residual = rng.choice(same)
        if not plain and rng.random() < 0.7:
            lo = rng.choice((-16384, -32768, -100, 0, 5))
            op.act, op.clamp = "clamp", (lo, rng.randint(max(lo, -50), 32767))
        elif not plain and rng.random() < 0.5:
            op.act, op.slope = "prelu", m.add_tensor(self.integers((out,), 32767), "i16")
        stores = "out" if plain or force_map else rng.choice(("out", "bits", "both", "both"))
        if stores != "bits":
            op.out = m.add_value("f32" if kind == "linear" else "i32" if wide else "i16", out, h, w)
        if stores != "out":
            op.bits = m.add_value("bits", out, h, w)
        m.ops.append(op)
        if kind in ("bconv", "conv", "linear", "avgpool"):
            self.constants(op, out)

    def constants(self, op: bnn.Op, out: int) -> None:
        """Draws scales, offsets and shifts until the bounds hold."""
        m, rng = self.model, self.rng
        weight = None if op.weight is None else m.tensors[op.weight]
        keep, divide = len(m.tensors), 1
        while True:
            del m.tensors[keep:]
            if weight is not None and weight.dtype != "bits" and divide > 1:
                weight.array = (weight.array // divide).astype(weight.array.dtype)
            scale = np.abs(self.integers((out,), max(1, 32767 // divide)))
            if op.kind == "avgpool":
                scale = scale * rng.choice((1, -1))
            if op.kind in ("bconv", "avgpool"):
                op.scale = m.add_tensor(scale, "i16")
            if op.kind == "linear":
                op.scale = m.add_tensor(np.array([rng.choice((1.0, 0.001, 3e-7))]))
            op.offset = m.add_tensor(self.integers((out,), rng.choice((INT32, 1 << 26)) // divide), "i32")
            wide = op.kind in ("avgpool", "linear")
            low = 0 if rng.random() < 0.3 else 8
            shifts = [rng.randint(low, 47 if wide and rng.random() < 0.3 else 24) for _ in range(out)]
            op.shift = m.add_tensor(np.array(shifts), "u8")
            if self.is_legal():
                return
            divide = 2 if weight is not None and weight.dtype != "bits" else divide * 2
            divide = min(divide, 1 << 15)

    def is_legal(self) -> bool:
        checker = Checker(self.model)
        try:
            for i, op in enumerate(self.model.ops):
                checker.op(i, op)
        except bnn.FormatError as e:
            if "32 bits" not in str(e):
                raise
            return False
        return True

    def image(self) -> np.ndarray:
        c, h, w = self.model.values[0].shape
        flat = [self.rng.choice((0, 255, self.rng.randint(0, 255))) for _ in range(c * h * w)]
        return np.array(flat, np.uint8).reshape(h, w, c)


@functools.cache
def random_model(seed: int) -> tuple[bnn.Model, np.ndarray]:
    made = RandomModel(seed)
    return made.model, np.stack([made.image() for _ in range(2)])


SEEDS = range(60)


def small(kernel: int = 3, channels: int = 4, seed: int = 0) -> bnn.Model:
    """pixels -> conv -> bconv with residual -> conv to i32 -> bconv with that -> maxpool -> avgpool -> linear."""
    rng = np.random.default_rng(seed)
    m = bnn.Model([], [], [], output=0, mean=0, std=1, numerics="integer", version=(1, 1))
    m.add_tensor(np.array([0.5, 0.4]))
    m.add_tensor(np.array([0.25, 0.2]))
    c = channels

    def tensors(scale: Any = None, offset: int = 0, shift: int = 8) -> dict[str, int]:
        made = {} if scale is None else {"scale": m.add_tensor(np.full(c, scale), "i16")}
        return {
            **made,
            "offset": m.add_tensor(np.full(c, offset), "i32"),
            "shift": m.add_tensor(np.full(c, shift), "u8"),
        }

    def real(cin: int, k: int) -> int:
        return m.add_tensor(rng.integers(-99, 99, (c, k, k, cin)), "i16")

    def binary() -> int:
        return m.add_bits(rng.integers(0, 2, (c, 3, 3, c)) > 0)

    x = m.add_value("u8", 2, 6, 6)
    a, ab = m.add_value("i16", c, 6, 6), m.add_value("bits", c, 6, 6)
    b, bb = m.add_value("i16", c, 6, 6), m.add_value("bits", c, 6, 6)
    short, d = m.add_value("i32", c, 6, 6), m.add_value("i16", c, 6, 6)
    pooled, mean = m.add_value("i16", c, 3, 3), m.add_value("i16", c, 1, 1)
    logits = m.add_value("f32", c, 1, 1)
    clamp: dict[str, Any] = {"act": "clamp", "clamp": (-16384, 16384)}
    three: dict[str, Any] = {"window": (3, 3), "pad": (1, 1)}
    head: dict[str, Any] = {"window": (3, 3), "stride": (3, 3)}
    m.ops = [
        bnn.Op("conv", "stem", x, out=a, bits=ab, weight=real(2, 3), **tensors(), **clamp, **three),
        bnn.Op("bconv", "one", ab, out=b, bits=bb, residual=a, weight=binary(), **tensors(9000), **clamp, **three),
        bnn.Op("conv", "short", b, out=short, weight=real(c, 1), **tensors()),
        bnn.Op("bconv", "two", bb, out=d, residual=short, weight=binary(), **tensors(900), **clamp, **three),
        bnn.Op("maxpool", "pool", d, out=pooled, window=(2, 2), stride=(2, 2)),
        bnn.Op("avgpool", "mean", pooled, out=mean, **tensors(30000, 5, 18), **head),
        bnn.Op("linear", "fc", mean, out=logits, weight=m.add_tensor(rng.integers(-99, 99, (c, c)), "i16")),
    ]
    m.ops[-1].scale = m.add_tensor(np.array([0.25]))
    m.ops[-1].offset = m.add_tensor(np.zeros(c), "i32")
    m.ops[-1].shift = m.add_tensor(np.full(c, 3), "u8")
    m.output = logits
    return m


def set_kind(value: int, kind: str) -> Edit:
    return lambda m: setattr(m.values[value], "kind", kind)


Edit = Callable[[bnn.Model], None]


class Workbench:
    """A model with one op of interest between pixels and an f32 output: maps of every kind to read, and constants.

    `pixels` is 2 x side x side; `stream` is i16 and `bits` its signs, c x side x side; `spot` is i16, c x 1 x 1.
    """

    def __init__(self, c: int = 4, side: int = 4, clamp: tuple[int, int] = (-16384, 16384)) -> None:
        rng = np.random.default_rng(c + side)
        self.model = m = bnn.Model([], [], [], output=0, mean=0, std=1, numerics="integer")
        m.add_tensor(np.array([0.5, 0.25]))
        m.add_tensor(np.ones(2))
        self.c, self.side = c, side
        self.pixels = m.add_value("u8", 2, side, side)
        self.stream, self.bits = m.add_value("i16", c, side, side), m.add_value("bits", c, side, side)
        self.spot = m.add_value("i16", c, 1, 1)
        weight = m.add_tensor(rng.integers(-99, 99, (c, 1, 1, 2)), "i16")
        refs: dict[str, Any] = self.constants(offset=0, shift=0)
        self.model.ops.append(bnn.Op("conv", "stem", 0, out=1, bits=2, weight=weight, act="clamp", clamp=clamp, **refs))
        refs = self.constants(scale=500, offset=0, shift=13)
        m.ops.append(bnn.Op("avgpool", "mean", 1, out=self.spot, window=(side, side), **refs))

    def constants(self, c: int | None = None, **numbers: Any) -> dict[str, int]:
        """Tensors of one number each, by the dtype of an op's field, or of given ones."""
        dtypes = {"scale": "i16", "offset": "i32", "shift": "u8", "slope": "i16", "threshold": "i16"}
        shape = self.c if c is None else c
        made = {}
        for name, value in numbers.items():
            array = value if isinstance(value, np.ndarray) else np.full(shape, value)
            made[name] = self.model.add_tensor(array, "f64" if array.dtype == np.float64 else dtypes[name])
        return made

    def add(self, kind: str, source: int, shape: tuple[int, int, int], bits: bool = False, **fields: Any) -> bnn.Model:
        """The op of interest, which writes a map of this shape (and bits), and a way from it to the output."""
        m = self.model
        op = bnn.Op(kind, "it", source, **fields)
        last = kind in ("to_float", "softmax", "log_softmax")
        op.out = m.add_value("f32" if last else "i16", *shape)
        if bits:
            op.bits = m.add_value("bits", *shape)
        m.ops.append(op)
        m.output = op.out
        if not last:
            m.output = m.add_value("f32", *shape)
            refs: dict[str, Any] = self.constants(shape[0], scale=np.full(shape[0], 0.5), offset=np.zeros(shape[0]))
            m.ops.append(bnn.Op("to_float", "end", op.out, out=m.output, **refs))
        return m
