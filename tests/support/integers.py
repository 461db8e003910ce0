"""Integer models for tests, small and random ones, and `naive`: a second reading of docs/numerics.md.

It takes one element at a time, in Python's integers.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.bounds import Checker

from support.models import draw_window

INT32 = 2**31 - 1


def naive(model: bnn.Model, image: np.ndarray) -> dict[int, Any]:
    """All values of a small model as nested lists [row][column][channel] of Python integers (and float32 logits)."""
    mean = model.tensors[model.mean].array.tolist()
    zero = [int(np.floor(m * 65280 + 0.5)) for m in mean]
    values: dict[int, Any] = {0: image.tolist()}

    def numbers(ref: int | None) -> Any:
        return None if ref is None else model.tensors[ref].array.tolist()

    for op in model.ops:
        x = values[op.input]
        h, w, channels = len(x), len(x[0]), len(x[0][0])
        scale, offset, shift = numbers(op.scale), numbers(op.offset), numbers(op.shift)
        if op.kind == "linear":
            flat = [n for row in x for pixel in row for n in pixel]
            logits = []
            for k, row in enumerate(numbers(op.weight)):
                y = sum(a * b for a, b in zip(row, flat))
                q = ((y + (2 ** (shift[k] - 1) if shift[k] else 0)) >> shift[k]) + offset[k]
                logits.append(np.float32(q) * np.float32(scale[0]))
            values[op.out or 0] = [[logits]]
            continue
        out_h = (h + 2 * op.pad[0] - op.window[0]) // op.stride[0] + 1
        out_w = (w + 2 * op.pad[1] - op.window[1]) // op.stride[1] + 1
        weight: Any = None
        if op.weight is not None:
            tensor = model.tensors[op.weight]
            weight = tensor.array.tolist()
            if op.kind == "bconv":
                weight = (np.where(bnn.unpack_bits(tensor.array, channels), 1, -1)).tolist()
            elif op.input == 0 and tensor.dtype == "i8":
                weight = (tensor.array.astype(int) * 256).tolist()
        out = len(weight) if weight else channels + sum(op.channels)
        lo, hi = op.clamp if op.act == "clamp" else (-32768, 32767)
        stored, bits = [], []
        for y0, x0 in itertools.product(range(out_h), range(out_w)):
            taps = []
            for i, j in itertools.product(range(op.window[0]), range(op.window[1])):
                r, s = y0 * op.stride[0] + i - op.pad[0], x0 * op.stride[1] + j - op.pad[1]
                if 0 <= r < h and 0 <= s < w:
                    taps.append((i, j, x[r][s]))
            pixel = []
            for k in range(out):
                if op.kind == "eltwise":
                    q = taps[0][2][k]
                elif op.kind == "channel_pad":
                    c = k - op.channels[0]
                    q = taps[0][2][c] if 0 <= c < channels else 0
                elif op.kind == "maxpool":
                    q = max(tap[k] for _, _, tap in taps)
                elif op.kind == "avgpool":
                    q = (scale[k] * sum(tap[k] for _, _, tap in taps) + offset[k]) >> shift[k]
                elif op.kind == "bconv":
                    signs = ((i, j, [1 if n else -1 for n in tap]) for i, j, tap in taps)
                    dot = sum(a * b for i, j, tap in signs for a, b in zip(weight[k][i][j], tap))
                    q = (scale[k] * dot + offset[k]) >> shift[k]
                else:
                    dot = sum(a * b for i, j, tap in taps for a, b in zip(weight[k][i][j], tap))
                    if op.input == 0:
                        dot -= (sum(a * b for i, j, _ in taps for a, b in zip(weight[k][i][j], zero)) + 128) >> 8
                    q = (dot + offset[k]) >> shift[k]
                pixel.append(q)
            if op.out is None or model.values[op.out].kind != "i32":
                if op.residual is not None:
                    pixel = [q + r for q, r in zip(pixel, values[op.residual][y0][x0])]
                pixel = [int(min(max(q, lo), hi)) for q in pixel]
                if op.act == "prelu":
                    scaled = [(2 * v + 1) * a // 2**15 for v, a in zip(pixel, numbers(op.slope))]
                    pixel = [v if v >= 0 else min(max(s, -32768), 32767) for v, s in zip(pixel, scaled)]
            stored.append(pixel)
            bits.append([v >= 0 for v in pixel])
        for ref, flat_values in ((op.out, stored), (op.bits, bits)):
            if ref is not None:
                values[ref] = [flat_values[row * out_w : (row + 1) * out_w] for row in range(out_h)]
    return values


class RandomModel:
    """Small integer models with every kind of op; constants from harmless ones to the last bit of their bounds."""

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
            kinds = [k for k in list(bnn.OP_KINDS)[:7] if k != "linear" and self.sources(k)]
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
