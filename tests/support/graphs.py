"""Random whole models over every op, activation and field of format 1.3, in both numerics, valid by construction.

Integer models of an odd seed may have wide ops (version 1.3), all others are of version 1.2 at most.

A model is that of a seed and a number of draws. With fewer draws it begins in the same way, which helps to find the op
that a failure comes from.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.bounds import INT32, READS_I32, WIDE, Checker, is_wide, sides

CHANNELS = (1, 2, 3, 5, 16, 17, 64, 65, 130)
SIDES = (1, 1, 2, 3, 4, 5, 7, 9)
MOST_CHANNELS = 200
FLOAT, INTEGER = "float", "integer"
LAST = ("softmax", "log_softmax", "to_float", "linear")  # what writes f32 in integer files


def model_of(seed: int, numerics: str, draws: int | None = None, extreme: bool = False) -> tuple[bnn.Model, np.ndarray]:
    """The model of a seed, and two images for it; `extreme`: integers, with constants as large as they may be."""
    graph = (Extreme if extreme else Graph)(seed, numerics, seed % 7 + 1 if draws is None else draws)
    return graph.model, graph.images(2)


class Graph:
    """A model, drawn op by op; the contents of its tensors come from numpy's generator."""

    def __init__(self, seed: int, numerics: str, draws: int) -> None:
        self.rng = rng = random.Random(f"{numerics} {seed}")
        self.whole = numerics == INTEGER
        self.widens = self.whole and seed % 2 == 1
        self.noise = np.random.default_rng(rng.getrandbits(32))
        c, h, w = rng.choice((1, 2, 3, 4)), rng.choice(SIDES), rng.choice(SIDES)
        self.model = m = bnn.Model([], [], [], output=0, mean=0, std=1, numerics=numerics)
        m.add_tensor(np.array([rng.choice((0.0, 0.45, -0.3, 1.0)) for _ in range(c)]))
        m.add_tensor(np.array([rng.choice((0.25, 0.5, 1.0)) for _ in range(c)]))
        m.add_value("u8" if self.whole else "f32", c, h, w)
        self.number = "i16" if self.whole else "f32"
        self.checker = Checker(m)
        self.add("conv" if self.whole or self.chance(0.7) else "eltwise")
        for _ in range(draws):
            self.add(rng.choice([kind for kind in (*bnn.OP_KINDS, "bconv", "bconv") if self.inputs(kind)]))
        self.choose_outputs()
        m.version = (bnn.MAJOR, bnn.lowest_minor(m))

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def images(self, n: int) -> np.ndarray:
        """Pixels (n, h, w, c) for an integer model, values (n, c, h, w) for a float one."""
        c, h, w = self.model.values[0].shape
        if self.whole:
            return self.noise.integers(0, 256, (n, h, w, c)).astype(np.uint8)
        return (self.noise.random((n, c, h, w)) * 4 - 2).astype(np.float32)

    def choose_outputs(self) -> None:
        m, rng = self.model, self.rng
        if self.whole and not any(v.kind == "f32" for v in m.values):
            if not self.inputs("linear"):
                self.add("conv", plain=True)
            self.add(rng.choice(("linear", "to_float")))
        for end in self.unread("bits"):
            self.add("bconv", plain=True, source=end)
        ends = sorted([*self.unread(self.number), *(self.unread("i32") if self.widens else [])])
        for end in ends[-4:] if self.whole else []:
            self.add("to_float", source=end)
        maps = [i for i, v in enumerate(m.values) if v.kind == "f32"]
        chosen = [i for i in self.unread("f32") if self.chance(0.9)] or [maps[-1]]
        chosen += [i for i in maps if i not in chosen and self.chance(0.1)]
        rng.shuffle(chosen)
        m.output, m.more_outputs = chosen[0], chosen[1:]

    def unread(self, kind: str) -> list[int]:
        """Values of a kind that no op reads: what is wrong in them would not be seen."""
        read = {ref for op in self.model.ops for ref in (op.input, op.residual)}
        return [i for i, v in enumerate(self.model.values) if v.kind == kind and i not in read]

    # --- one op ---

    def inputs(self, kind: str) -> list[int]:
        """The values that an op of this kind can read, the latest last."""
        wanted = {"bconv": ("bits",), "softmax": ("f32",), "log_softmax": ("f32",)}.get(kind, (self.number,))
        if kind == "conv" and self.whole:
            wanted = ("u8", "i16")
        if self.widens and kind in READS_I32:
            wanted = ("i16", "i32")
        if (kind == "to_float" and not self.whole) or (kind == "round" and self.whole):
            return []
        found = [i for i, v in enumerate(self.model.values) if v.kind in wanted]
        if kind == "bilinear":
            found = [i for i in found if math.prod(self.model.values[i].shape) <= 4096]
        return [i for i in found if kind != "concat" or self.partners(i)]

    def partners(self, index: int) -> list[int]:
        """What can be put behind the channels of a map."""
        c, h, w = self.model.values[index].shape
        kind, values = self.model.values[index].kind, enumerate(self.model.values)
        same = [(i, v) for i, v in values if v.kind == kind and (v.h, v.w) == (h, w)]
        return [i for i, v in same if v.c + c <= MOST_CHANNELS]

    def add(self, kind: str, plain: bool = False, source: int = 0, beside: bnn.Op | None = None) -> None:
        """Appends an op; `plain`: it writes numbers and nothing else; `beside`: a shortcut, to which it adds."""
        m, rng = self.model, self.rng
        if not source:
            source = rng.choice(self.inputs(kind)[-5:]) if beside is None else self.beside(beside, kind)
        op = bnn.Op(kind, f"{kind}{len(m.ops)}", source)
        c, h, w = m.values[source].shape
        if beside is not None:
            op.window, op.stride, op.pad, op.dilation = beside.window, beside.stride, beside.pad, beside.dilation
            h, w = sides(op, h, w)
        elif kind in ("bconv", "conv", "maxpool", "avgpool"):
            self.window(op, h, w)
            h, w = sides(op, h, w)
        elif kind == "linear":
            h = w = 1
        elif kind in ("gather", "bilinear"):
            h, w = rng.choice(SIDES), rng.choice(SIDES)
        if beside is not None:
            op.residual = beside.out
            c = m.values[beside.out or 0].c
        elif kind in ("bconv", "conv", "linear", "gather", "channel_pad"):
            c = self.channels(op, (c, h, w))
        if kind == "concat":
            op.residual = rng.choice(self.partners(source))
            c += m.values[op.residual].c
        elif kind == "mul":
            self.mean_of(source, needed=not self.addable((self.number,), (c, h, w), spread=True))
            op.residual = rng.choice(self.addable((self.number,), (c, h, w), spread=True)[-3:])
        elif kind == "eltwise":
            self.mean_of(source)
        self.weight(op, (c, h, w))
        last = kind in ("softmax", "log_softmax") or (self.whole and kind in LAST)
        short = self.whole and kind == "conv" and source != 0 and not plain and beside is None and self.chance(0.4)
        wide = self.widens and not (last or plain or short) and self.chance(0.6)
        if not (last or short or plain):
            self.epilogue(op, (c, h, w), wide)
        stores = "out" if last or short or plain else rng.choice(("out", "bits", "both", "both"))
        if stores != "bits":
            op.out = m.add_value("f32" if last else "i32" if wide or short else self.number, c, h, w)
        if stores != "out":
            op.bits = m.add_value("bits", c, h, w)
            if wide and (op.out is None or self.chance(0.4)):
                op.threshold = self.integers((c,), rng.choice((9000, 1 << 24, INT32)), "i32")
            elif not wide and self.chance(0.4):
                op.threshold = self.tensor((c,), 1.0, "f32") if not self.whole else self.integers((c,), 9000, "i16")
        if self.whole:
            self.integer_constants(op, c)
        elif kind not in LAST[:2] and (kind == "linear" or self.chance(0.6)):
            rows = (2, c) if kind == "bconv" and self.chance(0.3) else (c,)
            size = 1.0 if kind != "bconv" else 2 / math.sqrt(math.prod(m.tensors[op.weight or 0].shape[1:]))
            op.scale, op.offset = self.tensor(rows, size, "f64"), self.tensor((c,), 0.5, "f64")
        m.ops.append(op)
        if self.whole:
            self.checker.op(len(m.ops) - 1, op)
        if short:
            self.add("bconv" if self.beside(op, "bconv") else "conv", beside=op)

    def beside(self, op: bnn.Op, kind: str) -> int:
        """A value from which an op of this kind makes as many rows and columns as `op` does, or 0."""
        h, w = self.model.values[op.input].shape[1:]
        wanted = "bits" if kind == "bconv" else self.number
        same = [i for i, v in enumerate(self.model.values) if v.kind == wanted and (v.h, v.w) == (h, w)]
        return same[-1] if same else 0

    def mean_of(self, source: int, needed: bool = False) -> None:
        """Often, for an op that can take a map of one pixel as its second: the mean of its input."""
        m = self.model
        c, h, w = m.values[source].shape
        if needed or (h * w > 1 and source != 0 and self.chance(0.4)):
            op = bnn.Op("avgpool", f"mean{len(m.ops)}", source, window=(h, w), out=m.add_value(self.number, c, 1, 1))
            if self.whole:
                self.integer_constants(op, c)
                self.checker.op(len(m.ops), op)
            m.ops.append(op)

    def window(self, op: bnn.Op, h: int, w: int) -> None:
        rng, pool = self.rng, op.kind in ("maxpool", "avgpool")
        axes, same = [], self.chance(0.4)  # as many rows and columns as before, which residuals need
        for n in (h, w):
            k, d, s = rng.choice((1, 2, 3, 3, 5)), rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 1, 2, 3))
            if op.kind == "avgpool":
                d = 1
            p = rng.randint(0, k // 2 if pool else min((k - 1) * d, 4))
            if same and k % 2:
                p, s = (k // 2 if pool else (k - 1) * d // 2), 1
            if (k - 1) * d + 1 > n + 2 * p or (op.kind == "maxpool" and p and d > n):
                k, d, p = min(k, n), 1, 0
            axes.append((k, s, p, d))
        op.window, op.stride, op.pad, op.dilation = zip(*axes)
        op.ceil = pool and self.chance(0.5)
        op.exclude_pad = op.kind == "avgpool" and self.chance(0.5)

    def channels(self, op: bnn.Op, result: tuple[int, int, int]) -> int:
        """How many the result has; often as many as the input, or another map to which it could be added."""
        c, h, w = result
        if op.kind == "channel_pad":
            op.channels = (self.rng.randint(0, 3), self.rng.choice((0, 1, 60)))
            return c + sum(op.channels)
        alike = [v.c for v in self.model.values[1:] if (v.h, v.w) == (h, w) and v.kind != "bits"]
        if alike and self.chance(0.5):
            return self.rng.choice(alike)
        return self.rng.choice((*CHANNELS, c, c, min(2 * c, 130 // c * c or c)))

    def weight(self, op: bnn.Op, result: tuple[int, int, int]) -> None:
        m, rng = self.model, self.rng
        c, h, w = m.values[op.input].shape
        if op.kind in ("bconv", "conv"):
            divisors = [g for g in range(1, c + 1) if c % g == result[0] % g == 0]
            groups = rng.choice(divisors) if self.chance(0.5) else 1
            shape = (result[0], *op.window, c // groups)
            if op.kind == "bconv":
                op.weight = m.add_bits(self.noise.integers(0, 2, shape) > 0)
                op.pad_value = float(np.float32(rng.choice((0.0, 0.0, 1.0, -1.0, 0.5, -0.3, 2.75))))
            elif not self.whole:
                op.weight = self.tensor(shape, 1 / math.sqrt(math.prod(shape[1:])), "f32")
        elif op.kind == "linear" and not self.whole:
            op.weight = self.tensor((result[0], c * h * w), 1 / math.sqrt(c * h * w), "f32")
        if self.whole and op.kind in ("conv", "linear"):
            op.weight = self.integer_weight(op, (result[0], c * h * w) if op.kind == "linear" else shape)
        if op.kind == "gather":
            low = -1 if self.chance(0.5) else 0
            parts = [self.noise.integers(low, n, count) for n, count in zip((c, h, w), result)]
            op.weight = m.add_tensor(np.concatenate(parts), "i32")
            op.pad_value = float(rng.choice((0, -5, 1000, -32768) if self.whole else (0, -1.5, 0.75)))
            if m.values[op.input].kind == "i32":
                op.pad_value = float(rng.choice((op.pad_value, 1 << 20, WIDE, -WIDE)))
        elif op.kind == "bilinear":
            op.weight = m.add_tensor(np.concatenate([self.pairs(h, result[1]), self.pairs(w, result[2])]), "i32")

    def pairs(self, n: int, count: int) -> np.ndarray:
        """Places between rows or columns of a bilinear: index and fraction."""
        found = []
        for _ in range(count):
            index = self.rng.randrange(n)
            fraction = self.rng.choice((0, 1, 65535, 1 << 29, (1 << 30) - 1, self.rng.randrange(1 << 30)))
            found += [index, 0 if index == n - 1 else fraction]
        return np.array(found, np.int64)

    def addable(self, kinds: tuple[str, ...], shape: tuple[int, int, int], spread: bool) -> list[int]:
        """Values of one of these kinds and of this shape; `spread`: or of one pixel."""
        shapes = (shape, (shape[0], 1, 1)) if spread else (shape,)
        return [i for i, v in enumerate(self.model.values) if v.kind in kinds and v.shape in shapes]

    def largest_core(self, op: bnn.Op) -> int:
        """|q| of an op without constants, or what `integer_constants` leaves to one that has them."""
        if op.kind in ("bconv", "conv", "avgpool", "mul") or self.model.values[op.input].kind != "i32":
            return 5 << 27
        return self.checker.largest_read(op)

    def epilogue(self, op: bnn.Op, shape: tuple[int, int, int], wide: bool) -> None:
        """Residual and activation."""
        rng = self.rng
        if op.kind not in ("mul", "concat"):
            kinds = ("i16", "i32") if self.whole else ("f32",)
            found = self.addable(kinds, shape, spread=op.kind == "eltwise")
            if self.widens:
                found = [i for i in found if self.checker.most[i] + self.largest_core(op) <= INT32]
            if found and op.residual is None and self.chance(0.6):
                op.residual = rng.choice(found)
        acts = ["none", "clamp", "prelu", "step", *(["sigmoid"] if not self.whole else [])]
        if self.whole and op.weight is None and not wide:
            acts.append("table")
        added = 0 if op.residual is None or op.kind in ("mul", "concat") else self.checker.most.get(op.residual, 0)
        if wide and self.largest_core(op) + added >= WIDE:
            acts.remove("prelu")
        op.act = rng.choice(acts)
        rows = (2, shape[0]) if self.chance(0.4) else (shape[0],)
        if wide:
            if op.act == "clamp":
                lo = rng.choice((-WIDE, -(1 << 24), -100, 0, 5))
                op.clamp = (lo, float(np.float32(rng.randint(max(lo, 0), rng.choice((1 << 17, WIDE))))))
            elif op.act == "step":
                op.clamp = (rng.choice((-WIDE, 0, 7)), rng.choice((WIDE, 70000, -5)))
            elif op.act == "prelu":
                op.slope = self.integers(rows, INT32, "i32")
        elif self.whole:
            if op.act == "clamp":
                lo = rng.choice((-32768, -16384, -100, 0, 5))
                op.clamp = (lo, rng.randint(max(lo, 0), 32767))
            elif op.act == "step":
                op.clamp = (rng.choice((-16384, 0, 7)), rng.choice((16384, 32767, -5)))
            elif op.act == "prelu":
                op.slope = self.integers(rows, 32767, "i16")
            elif op.act == "table":
                op.slope = self.integers((257,), 32767, "i16")
        elif op.act in ("clamp", "step"):
            op.clamp = (rng.choice((-1.0, -0.5, 0.0)), rng.choice((0.0, 1.0, 6.0)))
        elif op.act == "prelu":
            op.slope = self.tensor(rows, 1.0, "f32")

    # --- numbers ---

    def tensor(self, shape: tuple[int, ...], size: float, dtype: str) -> int:
        return self.model.add_tensor((self.noise.random(shape) * 2 - 1) * size, dtype)

    def integers(self, shape: tuple[int, ...], most: int, dtype: str) -> int:
        return self.model.add_tensor(self.between(-most, most, shape), dtype)

    def between(self, low: int, high: int, shape: int | tuple[int, ...]) -> np.ndarray:
        """Whole numbers, both ends included."""
        return self.noise.integers(low, high + 1, shape)

    def integer_weight(self, op: bnn.Op, shape: tuple[int, ...]) -> int:
        """As large as 2^29 allows for the sum of a conv, so that there is room for the offset and a residual."""
        width = self.rng.choice(("i16", "i8"))
        most = 32767 if width == "i16" else 127
        if op.kind == "conv":
            largest = 512 if op.input == 0 else self.checker.most[op.input]  # with the zero points
            if op.input == 0 and width == "i8":
                largest *= 256
            most = max(1, min(most, (1 << 29) // (largest * math.prod(shape[1:]) or 1)))
        return self.integers(shape, self.rng.choice((most, max(1, most // 9))), width)

    def integer_constants(self, op: bnn.Op, c: int) -> None:
        """Scale, offset and shift that leave numbers of about 13 bits; at times the last ones that are allowed."""
        m, rng = self.model, self.rng
        if op.kind == "to_float":
            op.scale, op.offset = self.tensor((c,), 0.01, "f64"), self.tensor((c,), 1.0, "f64")
        if op.kind not in ("bconv", "conv", "linear", "avgpool", "mul"):
            return
        wide, reads_i32 = is_wide(m, op), m.values[op.input].kind == "i32"
        long = op.kind in ("linear", "avgpool", "mul")  # sums in 64 bits
        if op.kind in ("bconv", "avgpool", "mul"):
            largest, typical = self.sizes(op)
            most = 32767 if long else (1 << 28) // largest if wide else min(32767, (1 << 29) // largest)
            scale = self.between(0 if op.kind == "bconv" else -most, most, c)
            counted = np.abs(scale)
            if op.kind == "bconv" and self.chance(0.3):
                window = self.between(-most, most, c)
                scale, counted = np.stack([scale, window]), counted + np.abs(window)
            op.scale = m.add_tensor(scale, "i32" if wide and op.kind == "bconv" else "i16")
            sums, usual = counted * largest + 1, max(1.0, float(counted.max()) * typical)
        else:
            weight = np.abs(m.tensors[op.weight or 0].array.astype(np.int64)).reshape(c, -1)
            factor = 512 if op.input == 0 else 32768 if long else self.checker.most[op.input]
            if op.input == 0 and m.tensors[op.weight or 0].dtype == "i8":
                factor *= 256
            sums = weight.sum(axis=1) * factor + 1
            usual = max(1.0, float(weight.mean()) * factor / 2 * math.sqrt(weight.shape[1]))
        shift = max(0, round(math.log2(usual)) - rng.randint(11, 26 if wide else 15))
        if long:
            shift = min(62 if reads_i32 else 47, max(shift, math.ceil(math.log2(float(sums.max()) + (1 << 20))) - 28))
        if op.kind == "avgpool" and not reads_i32 and self.chance(0.3):  # every rounding of a mean can be seen
            scale = self.noise.integers(-4, 5, c)
            m.tensors[op.scale or 0].array, shift = scale.astype("<i2"), op.window[0].bit_length()
        shift = min(shift, 62 if reads_i32 else 47 if long else 31)
        room = 1 << min(shift + 13, 20 if long else 29)
        offset = self.between(-room, room, c)
        if not (long or wide) and op.residual is None and op.act != "none" and self.chance(0.2):
            offset[0] = rng.choice((1, -1)) * (INT32 - int(sums[0]))
        op.offset, op.shift = m.add_tensor(offset, "i32"), m.add_tensor(np.full(c, shift), "u8")
        if op.kind == "linear":
            op.scale = m.add_tensor(np.array([rng.choice((1.0, 0.001, 3e-7))]))

    def sizes(self, op: bnn.Op) -> tuple[int, float]:
        """The largest core of an op with a scale, and one that is not unusual."""
        most = self.checker.most[op.input] if self.model.values[op.input].kind == "i32" else 32768
        if op.kind == "mul":
            return most << 15, most * 512.0
        taps = op.window[0] * op.window[1]
        if op.kind == "avgpool":
            return most * taps, most * taps / 4
        k = math.prod(self.model.tensors[op.weight or 0].shape[1:])
        return k * max(1, math.ceil(abs(op.pad_value))), math.sqrt(k)


class Extreme(Graph):
    """Weights, slopes, thresholds, scales and offsets are the largest of either sign that is allowed, or about 0;
    pixels are black and white. Sums go as far as the bounds let them, and every saturation is met.
    """

    def integers(self, shape: tuple[int, ...], most: int, dtype: str) -> int:
        if most in (32767, INT32) and len(shape) < 3:  # slopes, tables: any 16 or 32 bits
            return self.model.add_tensor(self.between(-most - 1, most, shape), dtype)
        return super().integers(shape, most, dtype)

    def between(self, low: int, high: int, shape: int | tuple[int, ...]) -> np.ndarray:
        inner = [n for n in (-1, 0, 1) if low <= n <= high]
        return self.noise.choice([low, high, low, high, *inner], shape)

    def images(self, n: int) -> np.ndarray:
        c, h, w = self.model.values[0].shape
        if not self.whole:
            return super().images(n)
        return self.noise.choice(np.uint8([0, 255, 255, 1, 254]), (n, h, w, c))


def features(model: bnn.Model) -> set[str]:
    """What of the format a model uses, by name; for tests that want to have seen everything."""
    found: set[str] = {"several outputs"} if model.more_outputs else set()
    for op in model.ops:
        found |= {op.kind, f"act {op.act}", f"{op.kind} with {op.act}"}
        weight: Any = None if op.weight is None else model.tensors[op.weight].shape
        marks = {
            "dilation": op.dilation != (1, 1),
            "pad_value": op.kind == "bconv" and op.pad_value != 0 and op.pad != (0, 0),
            "broken pad_value": op.kind == "bconv" and op.pad != (0, 0) and not float(op.pad_value).is_integer(),
            "hole": op.kind == "gather" and -1 in model.tensors[op.weight or 0].array,
            "groups": op.kind in ("bconv", "conv") and weight[3] != model.values[op.input].c,
            "depthwise": op.kind in ("bconv", "conv") and weight[3] == 1 < model.values[op.input].c,
            "ceil": op.ceil,
            "exclude_pad": op.exclude_pad,
            "padded": op.kind == "avgpool" and op.pad != (0, 0),
            "two rows of scale": op.scale is not None and model.tensors[op.scale].array.ndim == 2,
            "two slopes": op.slope is not None and model.tensors[op.slope].array.ndim == 2,
            "threshold": op.threshold is not None,
            "wide": is_wide(model, op),
            "reads i32": model.values[op.input].kind == "i32",
            "residual": op.residual is not None,
            "residual i32": op.residual is not None and model.values[op.residual].kind == "i32",
            "spread": op.residual is not None
            and model.values[op.residual].shape[1:] == (1, 1)
            and model.values[op.input].shape[1:] != (1, 1),
        }
        found |= {f"{op.kind} {name}" for name, marked in marks.items() if marked}
        found |= {f"wide {op.act}"} if is_wide(model, op) else set()
    return found
