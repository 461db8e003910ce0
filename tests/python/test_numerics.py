"""Integer files: the simulation against the text, the engine against the simulation, and the exporter against float64.

`naive` below is a second reading of docs/numerics.md, in Python's integers and one element at a time.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine, _core, numerics
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.export import ExportError, ExportOptions, export, ir
from ovsw.export.cli import main
from ovsw.export.fold import Fused, fold
from ovsw.export.pack import pack, pack_integer
from ovsw.export.quantize import TOP, Integer, NotIntegerError, quantize
from ovsw.export.trace import trace
from ovsw.image import load_pixels
from ovsw.labels import resolve_labels
from ovsw.nn import BinaryConv2d, create

import oracle
from conftest import DATA, ROOT, shared

R20 = "cResNet20_1w1a"
INT32 = 2**31 - 1

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# --- a second reading of the text ------------------------------------------------------------------------------------


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
        out_h = (h + 2 * op.pad[0] - op.kernel[0]) // op.stride[0] + 1
        out_w = (w + 2 * op.pad[1] - op.kernel[1]) // op.stride[1] + 1
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
            for i, j in itertools.product(range(op.kernel[0]), range(op.kernel[1])):
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
            kinds = [k for k in bnn.OP_KINDS if k != "linear" and self.sources(k)]
            self.add(rng.choice(kinds))
        if not self.sources("linear"):
            self.add("conv", force_map=True)
        self.add("linear")
        m.output = len(m.values) - 1

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
            h, w = self.window(op, shape)
        out = c
        if kind == "channel_pad":
            op.channels = (rng.randint(0, 3), rng.randint(0, 70))
            out = c + sum(op.channels)
        if kind in ("bconv", "conv", "linear"):
            out = rng.choice((1, 3, 8, 17, 33, 65))
        if kind == "bconv":
            op.weight = m.add_bits(self.integers((out, *op.kernel, c), 100) > 0)
        width = rng.choice(("i16", "i8"))
        if kind == "conv":
            op.weight = m.add_tensor(self.integers((out, *op.kernel, c), 32767 if width == "i16" else 127), width)
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
        stores = "out" if plain or force_map else rng.choice(("out", "bits", "both", "both"))
        if stores != "bits":
            op.out = m.add_value("map" if kind == "linear" else "i32" if wide else "i16", out, h, w)
        if stores != "out":
            op.bits = m.add_value("bits", out, h, w)
        m.ops.append(op)
        if kind in ("bconv", "conv", "linear", "avgpool"):
            self.constants(op, out)

    def window(self, op: bnn.Op, shape: tuple[int, int, int]) -> tuple[int, int]:
        sides = []
        for axis, n in enumerate(shape[1:]):
            kernel = self.rng.randint(1, 4)
            most = {"avgpool": 0, "maxpool": kernel // 2}.get(op.kind, kernel - 1)
            pad = self.rng.randint(0, most)
            if kernel > n + 2 * pad:
                kernel, pad = 1, 0
            stride = self.rng.randint(1, 3)
            for name, number in (("kernel", kernel), ("stride", stride), ("pad", pad)):
                pair = list(getattr(op, name))
                pair[axis] = number
                setattr(op, name, tuple(pair))
            sides.append((n + 2 * pad - kernel) // stride + 1)
        return sides[0], sides[1]

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
        checker = numerics._Checker(self.model)
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


def test_simulation_is_the_naive_reading() -> None:
    kinds = set()
    spread = 0
    for seed in SEEDS:
        model, images = random_model(seed)
        found = numerics.simulate_values(model, images)
        for n, image in enumerate(images):
            expected = naive(model, image)
            for i in range(len(model.values)):
                assert found[i][n].tolist() == np.array(expected[i]).tolist(), (seed, i)
        assert numerics.simulate(model, images).tolist() == found[model.output].reshape(2, -1).tolist()
        kinds.update((op.kind, None if op.out is None else model.values[op.out].kind) for op in model.ops)
        spread += any(len(np.unique(v)) > 20 for i, v in found.items() if i)
    assert {kind for kind, _ in kinds} == set(bnn.OP_KINDS)
    assert ("conv", "i32") in kinds
    assert spread > len(SEEDS) // 3  # not all saturated


def test_engine_gives_the_bits_of_the_simulation(isa: str) -> None:
    for seed in SEEDS:
        model, images = random_model(seed)
        expected = numerics.simulate(model, images)
        data = bnn.to_bytes(model)
        for threads in (1, 2):
            logits = Engine(data, threads=threads, isa=isa).run(images)
            assert logits.tolist() == expected.tolist(), (seed, isa, threads)


# --- what is refused -------------------------------------------------------------------------------------------------


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
    logits = m.add_value("map", c, 1, 1)
    clamp: dict[str, Any] = {"act": "clamp", "clamp": (-16384, 16384)}
    three: dict[str, Any] = {"kernel": (3, 3), "pad": (1, 1)}
    head: dict[str, Any] = {"kernel": (3, 3), "stride": (3, 3)}
    m.ops = [
        bnn.Op("conv", "stem", x, out=a, bits=ab, weight=real(2, 3), **tensors(), **clamp, **three),
        bnn.Op("bconv", "one", ab, out=b, bits=bb, residual=a, weight=binary(), **tensors(9000), **clamp, **three),
        bnn.Op("conv", "short", b, out=short, weight=real(c, 1), **tensors()),
        bnn.Op("bconv", "two", bb, out=d, residual=short, weight=binary(), **tensors(900), **clamp, **three),
        bnn.Op("maxpool", "pool", d, out=pooled, kernel=(2, 2), stride=(2, 2)),
        bnn.Op("avgpool", "mean", pooled, out=mean, **tensors(30000, 5, 18), **head),
        bnn.Op("linear", "fc", mean, out=logits, weight=m.add_tensor(rng.integers(-99, 99, (c, c)), "i16")),
    ]
    m.ops[-1].scale = m.add_tensor(np.array([0.25]))
    m.ops[-1].offset = m.add_tensor(np.zeros(c), "i32")
    m.ops[-1].shift = m.add_tensor(np.full(c, 3), "u8")
    m.output = logits
    return m


Edit = Callable[[bnn.Model], None]


def put(op: int, name: str, value: Any, index: int = 0) -> Edit:
    """Sets one element of a tensor."""

    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        array = tensor.array.copy()
        array.reshape(-1)[index] = value
        tensor.array = array

    return edit


def fill(op: int, name: str, value: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        tensor.array = np.full_like(tensor.array, value)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(m: bnn.Model) -> None:
        for e in edits:
            e(m)

    return edit


def set_op(op: int, **fields: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.ops[op] = dataclasses.replace(m.ops[op], **fields)

    return edit


def set_kind(value: int, kind: str) -> Edit:
    return lambda m: setattr(m.values[value], "kind", kind)


def set_dtype(op: int, name: str, dtype: str) -> Edit:
    def edit(m: bnn.Model) -> None:
        tensor = m.tensors[getattr(m.ops[op], name)]
        tensor.dtype, tensor.array = dtype, tensor.array.astype(bnn.DTYPES[dtype][1])

    return edit


def set_mean(value: float) -> Edit:
    return lambda m: setattr(m.tensors[m.mean], "array", np.full(2, value, "<f4"))


def drop(op: int, name: str) -> Edit:
    """Removes a tensor and the reference to it."""

    def edit(m: bnn.Model) -> None:
        gone = getattr(m.ops[op], name)
        setattr(m.ops[op], name, None)
        del m.tensors[gone]
        for o in m.ops:
            for field in ("weight", "scale", "offset", "slope", "shift"):
                ref = getattr(o, field)
                if ref is not None and ref > gone:
                    setattr(o, field, ref - 1)

    return edit


STEM_SUM = 18 * 32767  # of |weight|, all at the top
REFUSED: dict[str, tuple[Edit, str]] = {
    "bconv: M * K + |O| is 2^31": (put(1, "offset", INT32 - 9000 * 36 + 1), "op 1 'one': channel 0"),
    "bconv: the same below zero": (put(1, "offset", -(INT32 - 9000 * 36 + 1)), "op 1 'one': channel 0"),
    "bconv: negative M": (put(1, "scale", -1, 2), "op 1 'one'"),
    "bconv: shift 32": (put(1, "shift", 32), "op 1 'one'"),
    "stem: shift 32": (put(0, "shift", 32), "op 0 'stem'"),
    "stem: sum": (both(fill(0, "weight", 32767), put(0, "offset", INT32 - 255 * STEM_SUM)), "op 0 'stem'"),
    "stem: zero point": (both(fill(0, "weight", 9000), set_mean(-200.0)), "op 0 'stem'"),
    "mean over 256": (set_mean(257.0), "mean"),
    "conv: X * A + |O|": (both(fill(2, "weight", 32767), put(2, "offset", 65536)), "op 2 'short'"),
    "conv: shift 32": (put(2, "shift", 32), "op 2 'short'"),
    "residual: sum": (
        both(fill(2, "weight", 32000), fill(2, "shift", 0), put(3, "offset", 1 << 30), put(3, "shift", 0)),
        "op 3 'two': its sum with the residual",
    ),
    "avgpool: shift 48": (put(5, "shift", 48), "op 5 'mean'"),
    "avgpool: sum": (put(5, "shift", 1), "op 5 'mean'"),
    "linear: shift 48": (put(6, "shift", 48), "op 6 'fc'"),
    "linear: offset": (put(6, "offset", INT32 - 100), "op 6 'fc'"),
    "linear: scale 0": (put(6, "scale", 0.0), "op 6 'fc'"),
    "linear: scale NaN": (put(6, "scale", float("nan")), ""),
    "linear: activation": (set_op(6, act="clamp", clamp=(-1, 1)), "op 6 'fc'"),
    "clamp: half": (set_op(1, clamp=(-16384.5, 16384)), "op 1 'one'"),
    "clamp: 17 bits": (set_op(1, clamp=(-16384, 32768)), "op 1 'one'"),
    "clamp: NaN": (set_op(1, clamp=(float("nan"), 16384)), "op 1 'one'"),
    "clamp: order": (set_op(1, clamp=(5, 4)), "op 1 'one'"),
    "prelu": (set_op(1, act="prelu"), "op 1 'one'"),
    "pixels in a map": (set_kind(0, "i16"), "value 0"),
    "i32 with activation": (set_op(2, act="clamp", clamp=(-1, 1)), "op 2 'short'"),
    "i32 from bconv": (set_kind(3, "i32"), "op 1 'one'"),
    "i32 from the stem": (both(set_kind(1, "i32"), set_op(0, act="none")), "op 0 'stem'"),
    "i32 read by a pool": (set_op(4, input=5), "op 4 'pool'"),
    "f32 in the middle": (set_kind(6, "map"), "op 3 'two'"),
    "logits as integers": (set_kind(9, "i16"), ""),
    "no shift": (drop(1, "shift"), "op 1 'one'"),
    "no scale": (drop(5, "scale"), "op 5 'mean'"),
    "no offset": (drop(0, "offset"), "op 0 'stem'"),
    "scale of i32": (set_dtype(1, "scale", "i32"), "op 1 'one'"),
    "offset of i16": (set_dtype(1, "offset", "i16"), "op 1 'one'"),
    "shift of i8": (set_dtype(1, "shift", "i8"), "op 1 'one'"),
    "weight of f32": (set_dtype(2, "weight", "f32"), "op 2 'short'"),
    "weight of u8": (set_dtype(0, "weight", "u8"), "op 0 'stem'"),
    "stem: 8 bits count 256-fold": (
        both(set_dtype(0, "weight", "i8"), put(0, "offset", INT32 - 50 * 255 * 99 * 18)),
        "op 0 'stem'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bounds_and_kinds(name: str) -> None:
    edit, words = REFUSED[name]
    model = small()
    edit(model)
    with pytest.raises(bnn.FormatError) as caught:
        numerics.check(model)
    assert words in str(caught.value)
    with pytest.raises(bnn.FormatError):
        numerics.simulate(model, np.zeros((1, 6, 6, 2), np.uint8))
    with pytest.raises(ValueError, match="the model: "):
        Engine(bnn.to_bytes(model))


def test_a_convolution_of_pixels_writes_no_i32() -> None:
    model = small()
    short = model.ops[2]
    weight = model.tensors[short.weight or 0]
    short.input, weight.shape = 0, (4, 1, 1, 2)
    weight.array = np.ascontiguousarray(weight.array[..., :2])
    with pytest.raises(bnn.FormatError, match="op 2 'short': conv cannot write an i32"):
        numerics.check(model)
    with pytest.raises(ValueError, match=r"op 2 'short': out \(value 5\) is i32 4x6x6, computed is i16 4x6x6"):
        Engine(bnn.to_bytes(model))


ALLOWED: dict[str, Edit] = {
    "as it is": lambda m: None,
    "bconv: the last number": put(1, "offset", INT32 - 9000 * 36),
    "bconv: the first number": put(1, "offset", -(INT32 - 9000 * 36)),
    "shift 31": both(put(0, "shift", 31), put(1, "shift", 31), put(2, "shift", 31)),
    "shift 47": both(put(5, "shift", 47), put(6, "shift", 47)),
    "shift 0": both(put(0, "shift", 0), put(1, "shift", 0), put(2, "shift", 0), put(6, "shift", 0)),
    "avgpool: negative M": both(fill(5, "scale", -32768), put(5, "offset", -7)),
    "stem: 8 bits": both(fill(0, "weight", -128), set_dtype(0, "weight", "i8")),
    "negative mean": set_mean(-3.0),
    "one-sided clamp": set_op(1, clamp=(5, 7)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_last_allowed_numbers(name: str, isa: str) -> None:
    model = small()
    ALLOWED[name](model)
    images = np.random.default_rng(1).integers(0, 256, (2, 6, 6, 2), np.uint8)
    images[1] = 255
    expected = numerics.simulate_values(model, images)
    for n in range(2):
        again = naive(model, images[n])
        assert all(expected[i][n].tolist() == np.array(again[i]).tolist() for i in expected)
    logits = Engine(bnn.to_bytes(model), isa=isa).run(images)
    assert logits.tolist() == expected[model.output].reshape(2, -1).tolist()


def test_a_clamp_can_make_values_larger() -> None:
    """What a pool with a clamp hands on is bounded by the clamp, not by what the pool reads."""
    model = small()
    model.ops[3].clamp = (-1, 1)  # the pool reads these
    model.ops[4].act, model.ops[4].clamp = "clamp", (20000, 30000)
    numerics.check(model)
    drop(5, "scale")(model)
    model.ops[5].kind = "conv"
    weight = model.add_tensor(np.full((4, 3, 3, 4), 3000), "i16")
    model.ops[5].weight = weight
    with pytest.raises(bnn.FormatError, match="op 5 'mean': channel 0 may reach"):
        numerics.check(model)
    with pytest.raises(ValueError, match="'mean': "):
        Engine(bnn.to_bytes(model))


def test_images_of_the_wrong_kind() -> None:
    for images in (np.zeros((1, 6, 6, 3), np.uint8), np.zeros((1, 6, 6, 2)), np.zeros((6, 6, 2), np.uint8)):
        with pytest.raises(ValueError, match="expected uint8"):
            numerics.simulate(small(), images)
    with pytest.raises(bnn.FormatError, match="numerics is float"):
        numerics.simulate(random_resnet("cresnet20"), np.zeros((1, 32, 32, 3), np.uint8))


def test_no_images() -> None:
    assert numerics.simulate(small(), np.zeros((0, 6, 6, 2), np.uint8)).shape == (0, 4)


def test_pixels_of_normalised_values(isa: str) -> None:
    model = small()
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 6, 2), np.uint8)
    x = ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    assert (numerics.pixels(x, mean, std) == images).all()
    halves = (np.array([0.5, 1.5, 254.5, -3.0, 300.0]) / 255).reshape(1, 1, 1, 5)
    assert numerics.pixels(halves, np.zeros(1), np.ones(1)).ravel().tolist() == [0, 2, 254, 0, 255]
    wild = np.random.default_rng(3).normal(0, 3, (2, 2, 6, 6)).astype(np.float32)
    expected = numerics.simulate(model, numerics.pixels(wild, mean, std))
    assert Engine(bnn.to_bytes(model), isa=isa).run(wild).tolist() == expected.tolist()


# --- the file --------------------------------------------------------------------------------------------------------


def test_integer_files_are_1_1_and_survive_a_round_trip() -> None:
    for model in (small(), random_resnet("cresnet20", numerics="integer")):
        data = bnn.to_bytes(model)
        again = bnn.from_bytes(data)
        assert data[8:12] == bytes([1, 0, 1, 0])
        assert again.version == (1, 1)
        assert again.numerics == "integer"
        assert again.ops == model.ops
        assert again.values == model.values
        assert bnn.to_bytes(again) == data


def test_float_files_stay_1_0() -> None:
    model = random_resnet("cresnet20")
    data = bnn.to_bytes(model)
    assert data[8:12] == bytes([1, 0, 0, 0])
    assert bnn.from_bytes(data).version == (1, 0)
    model.metadata["labels"] = "cifar10"  # which a reader of 1.0 does not know
    assert bnn.to_bytes(model)[8:12] == bytes([1, 0, 1, 0])


def record(data: bytes, op: int) -> int:
    """Where an op's record starts."""
    n_values, n_tensors = np.frombuffer(data, "<u4", 2, 28)
    return int(64 + 16 * n_values + 40 * n_tensors + 80 * op)


def repaired(data: bytearray) -> bytes:
    data[12:16] = bnn.checksum(memoryview(data)).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("model", "op", "at", "number", "words"),
    [
        (small(), 4, 68, 0, "op 4 'pool': |tensor 0: is referred to 2 times"),
        (small(), 1, 68, 1000, "op 1 'one': shift refers to 1000"),
        (small(), 1, 68, bnn.NONE, "tensor|shift"),
        (small(), 1, 72, 1, "op 1 'one': reserved bytes are not zero"),
        (small(), 1, 76, 1 << 31, "op 1 'one': reserved bytes are not zero"),
        (random_resnet("cresnet20"), 1, 68, 1, "op 1 'layer1.0.conv1': reserved bytes are not zero"),
        (random_resnet("cresnet20"), 1, 68, bnn.NONE, "op 1 'layer1.0.conv1': reserved bytes are not zero"),
    ],
)
def test_shift_in_the_op_record(model: bnn.Model, op: int, at: int, number: int, words: str) -> None:
    data = bytearray(bnn.to_bytes(model))
    start = record(data, op) + at
    data[start : start + 4] = number.to_bytes(4, "little")
    with pytest.raises(bnn.FormatError, match=words):
        bnn.from_bytes(repaired(data))
    with pytest.raises(ValueError, match=words):
        _core.Engine(repaired(data), 1, "")


def test_integers_have_no_place_in_float_files() -> None:
    for edit in (set_kind(0, "u8"), set_kind(1, "i16"), set_kind(1, "i32")):
        model = random_resnet("cresnet20")
        edit(model)
        with pytest.raises(ValueError, match="the model: "):
            Engine(bnn.to_bytes(model))
    model = random_resnet("cresnet20")
    weight = model.tensors[model.ops[0].weight or 0]
    weight.dtype, weight.array = "i16", weight.array.astype("<i2")
    with pytest.raises(ValueError, match="op 0 'conv1'"):
        Engine(bnn.to_bytes(model))


def test_labels_by_name() -> None:
    assert resolve_labels("imagenet", 1000)[:2] == ["tench", "goldfish"]
    assert resolve_labels("cifar10", 10)[1] == "automobile"
    assert resolve_labels(["a", "b"], 2) == ["a", "b"]
    assert resolve_labels([], 7) == []
    for value, count in (("nowhere", 10), ("imagenet", 10), (["a"], 2), ([1, 2], 2), (None, 2), ("", 0)):
        with pytest.raises(ValueError, match=r"labels|names"):
            resolve_labels(value, count)
    model = random_resnet("cresnet20", numerics="integer")
    model.metadata["labels"] = "cifar10"
    assert Engine(bnn.to_bytes(model)).labels[1] == "automobile"


# --- what the exporter chooses ---------------------------------------------------------------------------------------


def folded(model: nn.Module, shape: tuple[int, int, int]) -> list[Fused]:
    return fold(trace(model.eval(), shape))


def loaded(arch: str, state: oracle.State, size: int) -> nn.Module:
    classes = list(state.values())[-1].shape[0]
    learned = any(key.endswith("scaling_factor") for key in state)
    model = create(arch, classes, learned_scale=learned, input_size=size)
    model.load_state_dict(state, strict=False)
    return model.eval()


@functools.cache
def state_of(arch: str, size: int, **options: Any) -> oracle.State:
    """Shared by tests: edit copies only."""
    return oracle.random_state(arch, 10, np.random.default_rng(3), size=size, **options)


def normalisation(arch: str) -> tuple[Any, Any]:
    return oracle.CIFAR if arch == R20 else oracle.IMAGENET


def real(value: np.ndarray, made: Integer | None) -> np.ndarray:
    """A value of the simulation as float64, (n, c, h, w); bits without `made`."""
    if made is None:
        return np.where(value, 1.0, -1.0).transpose(0, 3, 1, 2)
    assert made.centre is not None
    return ((value + made.centre) / made.steps).transpose(0, 3, 1, 2)


def float_op(op: bnn.Op, model: bnn.Model, x: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """One op of a float model in float64, on (n, c, h, w)."""
    t = torch.from_numpy(x)
    if op.kind in ("bconv", "conv"):
        tensor = model.tensors[op.weight or 0]
        w = tensor.array.astype(np.float64)
        if op.kind == "bconv":
            w = np.where(bnn.unpack_bits(tensor.array, tensor.shape[-1]), 1.0, -1.0)
        y = F.conv2d(t, torch.from_numpy(w.transpose(0, 3, 1, 2).copy()), stride=op.stride, padding=op.pad)
    elif op.kind == "maxpool":
        y = F.max_pool2d(t, op.kernel, op.stride, op.pad)
    elif op.kind == "avgpool":
        y = F.avg_pool2d(t, op.kernel, op.stride)
    elif op.kind == "channel_pad":
        y = F.pad(t, (0, 0, 0, 0, *op.channels))
    else:
        w = model.tensors[op.weight or 0].array.astype(np.float64)
        y = (t.permute(0, 2, 3, 1).flatten(1) @ torch.from_numpy(w).T)[:, :, None, None]
    result = y.numpy()
    if op.scale is not None and op.offset is not None:
        a, b = (model.tensors[i].array[:, None, None] for i in (op.scale, op.offset))
        result = a * result + b
    if residual is not None:
        result = result + residual
    return np.clip(result, *op.clamp) if op.act == "clamp" else result


@pytest.mark.parametrize(
    ("arch", "size", "options"),
    [
        (R20, 32, {"learned": True, "negative_alpha": True}),
        (R20, 32, {"norm_weight": 1e-8}),
        ("ResNet18_1w1a", 48, {}),
    ],
    ids=str,
)
def test_every_op_is_right_to_a_step(arch: str, size: int, options: dict[str, Any]) -> None:
    """Each op is given the simulation's inputs, so that no sign that fell the other way hides what it does."""
    ops = folded(loaded(arch, state_of(arch, size, **options), size), (3, size, size))
    mean, std = normalisation(arch)
    reference = pack(ops, (3, size, size), mean, std, {})
    made, _ = quantize(ops, mean, std)
    model = pack_integer(made, (3, size, size), mean, std, {})
    assert [(op.kind, op.name, op.out, op.bits) for op in model.ops] == [
        (op.kind, op.name, op.out, op.bits) for op in reference.ops
    ]
    images = np.random.default_rng(5).integers(0, 256, (3, size, size, 3), np.uint8)
    values = numerics.simulate_values(model, images)
    maps = {op.out: integer for op, integer in zip(model.ops, made)}
    for op, other in zip(model.ops, reference.ops):
        x = oracle.prepare(arch, images).astype(np.float64)
        if op.input != 0:
            x = real(values[op.input], maps.get(op.input))
        residual = None if op.residual is None else real(values[op.residual], maps[op.residual])
        expected = float_op(other, reference, x, residual)
        if op.kind == "linear" and maps[op.input].steps < 1:  # a norm as initialised, the steps are far too large
            continue
        if op.kind == "linear":
            error = np.abs(values[op.out or 0].reshape(3, -1) - expected.reshape(3, -1)).max()
            assert error < 1e-3 * max(1.0, np.abs(expected).max()), op.name
            continue
        # Before the shift: 2^-15 of what brings the residual within the clamp.
        steps: Any = 0.01 + (1.01 + (0 if residual is None else np.abs(residual))) * maps[op.out].steps / 2**15
        if op.kind == "conv":  # a half for each weight, more where weights are rounded together
            shift = model.tensors[op.shift or 0].array[:, None, None].astype(np.float64)
            unit = 255 * np.float32(std)[:, None, None] if op.input == 0 else maps[op.input].steps
            sizes = torch.from_numpy(np.abs(x * unit).sum(axis=1, keepdims=True))
            reach = F.conv2d(sizes, torch.ones(1, 1, *op.kernel).double(), stride=op.stride, padding=op.pad).numpy()
            steps = 0.01 + (2.5 if op.input == 0 else 0.5) * reach / 2**shift
        elif op.kind == "avgpool" and (op.out or 0) == model.ops[-1].input:
            steps = 0.51 + 0.5 * np.abs(x).sum(axis=(2, 3)).max() * maps[op.input].steps / 2.0**16
        if op.out is not None:
            error = np.abs(real(values[op.out], maps[op.out]) - expected) * maps[op.out].steps
            assert (error < 0.5 + steps).all(), op.name
        if op.bits is not None:
            differ = values[op.bits].transpose(0, 3, 1, 2) != (expected >= 0)
            assert (np.where(differ, np.abs(expected), 0) * maps[op.out].steps < steps).all(), op.name


def test_signs_are_exact() -> None:
    """With scales that 15 bits hold, a binary layer rounds what it stores to half a step, and its signs not at all."""
    ops = folded(loaded(R20, state_of(R20, 32), 32), (3, 32, 32))
    for op in [op for op in ops if isinstance(op.core, ir.Dot)]:
        assert op.affine is not None
        unit = 2.0 ** (np.floor(np.log2(np.abs(op.affine.scale) * TOP)) - 14) / TOP
        op.affine.scale = np.clip(np.round(op.affine.scale / unit), -32767, 32767) * unit
    mean, std = oracle.CIFAR
    reference = pack(ops, (3, 32, 32), mean, std, {})
    made, _ = quantize(ops, mean, std)
    model = pack_integer(made, (3, 32, 32), mean, std, {})
    images = np.random.default_rng(5).integers(0, 256, (12, 32, 32, 3), np.uint8)
    values = numerics.simulate_values(model, images)
    maps = {op.out: integer for op, integer in zip(model.ops, made)}
    seen = 0
    for op, other in zip(model.ops, reference.ops):
        if op.kind != "bconv":
            continue
        residual = real(values[op.residual or 0], maps[op.residual])
        expected = float_op(other, reference, real(values[op.input], None), residual)
        if op.bits is not None:
            assert ((values[op.bits].transpose(0, 3, 1, 2) == (expected >= 0)) | (np.abs(expected) < 1e-9)).all(), (
                op.name
            )
            seen += int((np.abs(expected) < 0.5 / TOP).sum())
        assert (np.abs(real(values[op.out or 0], maps[op.out]) - expected) * TOP < 0.5001).all(), op.name
    assert seen > 5  # that half a step would have turned


def test_the_stream_is_clamped_and_reaches_its_ends() -> None:
    model = random_resnet("cresnet20", numerics="integer")
    images = np.random.default_rng(5).integers(0, 256, (4, 32, 32, 3), np.uint8)
    values = numerics.simulate_values(model, images)
    for op in model.ops:
        if op.act == "clamp" and op.out is not None:
            assert op.clamp == (-32768, 32767)
            assert values[op.out].min() == -32768
            assert values[op.out].max() == 32767


def test_a_stream_that_convolutions_read_leaves_them_bits() -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics="integer")
    clamps = {op.name: op.clamp for op in model.ops if op.act == "clamp"}
    last = {name for name in clamps if name.startswith("layer4")}
    assert {clamps[name] for name in last} == {(-32768, 32767)}
    assert {clamps[name] for name in clamps.keys() - last} == {(-8192, 8191)}


def stem_of(arch: str, size: int, mean: Any, std: Any, **options: str) -> tuple[bnn.Model, list[Fused], float]:
    """The integer model, the ops it was made of, and the steps per unit of its first map."""
    ops = folded(loaded(arch, state_of(arch, size), size), (3, size, size))
    made, _ = quantize(ops, mean, std, **options)
    return pack_integer(made, (3, size, size), mean, std, {}), ops, made[0].steps


@pytest.mark.parametrize(("arch", "size"), [(R20, 32), ("ResNet18_1w1a", 48)])
@pytest.mark.parametrize("kind", ["mean", "black", "white", "border", "noise"])
def test_borders_of_the_stem(arch: str, size: int, kind: str) -> None:
    """A pixel outside counts as a normalised 0, not as a black pixel."""
    mean, std = normalisation(arch)
    model, ops, top = stem_of(arch, size, mean, std)
    image = np.zeros((1, size, size, 3), np.uint8)
    if kind == "mean":
        image[:] = np.rint(np.array(mean) * 255)
    elif kind == "white":
        image[:] = 255
    elif kind == "border":
        image[:, [0, -1]] = image[:, :, [0, -1]] = 255
    elif kind == "noise":
        image[:] = np.random.default_rng(0).integers(0, 256, image.shape)
    core, affine = ops[0].core, ops[0].affine
    assert isinstance(core, ir.Conv)
    assert affine is not None
    weight, shift = (model.tensors[i].array.astype(np.float64) for i in (model.ops[0].weight, model.ops[0].shift))  # type: ignore[index]
    steps = weight.transpose(0, 3, 1, 2) / 2.0 ** shift[:, None, None, None]  # of the stream per step of a pixel
    wanted = core.weight * affine.scale[:, None, None, None] / (255 * np.float64(np.float32(std))[:, None, None]) * top
    assert (np.abs(steps - wanted).max(axis=(1, 2, 3)) <= 2.5 / 2**shift).all()
    assert (np.abs(weight).max(axis=(1, 2, 3)) > 16383).all()  # no bit is wasted

    (ph, pw), (sh, sw) = core.pad, core.stride
    padded = np.zeros((1, 3, size + 2 * ph, size + 2 * pw))
    centred = (image - 255 * np.float32(mean).astype(np.float64)).transpose(0, 3, 1, 2)
    padded[:, :, ph : ph + size, pw : pw + size] = centred
    y = F.conv2d(torch.from_numpy(padded), torch.from_numpy(steps), stride=(sh, sw)).numpy()
    expected = np.clip(y + affine.offset[:, None, None] * top, -top, top)
    found = numerics.simulate_values(model, image)[model.ops[0].out or 0].transpose(0, 3, 1, 2) + 0.5
    error = np.abs(found - expected)
    assert error[:, :, ph:-ph, pw:-pw].max() < 0.51
    assert (error < 0.52 + np.abs(steps).sum(axis=(1, 2, 3))[:, None, None] / 512).all()  # z has steps of 1/256
    if kind == "mean":  # hardly anything but the offset, at the border as elsewhere
        flat = np.clip(affine.offset, -1, 1)[:, None, None] * top
        assert np.abs(found - flat).max() < 0.03 * top


@pytest.mark.parametrize(("arch", "size", "gain"), [(R20, 32, 2.0), ("ResNet18_1w1a", 224, 3.0)])
@pytest.mark.parametrize("stem", ["int16", "int8"])
def test_errors_of_a_stem_cancel_on_a_photo(arch: str, size: int, gain: float, stem: str) -> None:
    """Against each weight rounded by itself, in as many bits."""
    mean, std = normalisation(arch)
    model, ops, top = stem_of(arch, size, mean, std, stem=stem)
    core, affine = ops[0].core, ops[0].affine
    assert isinstance(core, ir.Conv)
    assert affine is not None
    exact = core.weight * affine.scale[:, None, None, None] / (255 * np.float64(np.float32(std))[:, None, None]) * top
    shift = model.tensors[model.ops[0].shift or 0].array.astype(np.float64)[:, None, None, None]
    unit = {"int16": 1, "int8": 256}[stem] / 2**shift
    together = model.tensors[model.ops[0].weight or 0].array.transpose(0, 3, 1, 2) * unit
    photo = load_pixels(ROOT / "bench" / "data" / "cat.jpg", 3, size, (size, size))
    centred = torch.from_numpy((photo - 255 * np.array(mean)).transpose(2, 0, 1)[None])

    def error(weight: np.ndarray) -> float:
        return float(F.conv2d(centred, torch.from_numpy(weight - exact), stride=core.stride).square().mean().sqrt())

    assert gain * error(together) < error(np.round(exact / unit) * unit)


def agreement(arch: str, state: oracle.State, size: int, n: int, **options: str) -> tuple[float, np.ndarray]:
    """Share of equal top-1, and the largest difference of each image's logits, between simulation and oracle."""
    mean, std = normalisation(arch)
    made, _ = quantize(folded(loaded(arch, state, size), (3, size, size)), mean, std, **options)
    model = pack_integer(made, (3, size, size), mean, std, {})
    numerics.check(model)
    images = oracle.pick_images(arch, state, np.random.default_rng(1), n, 8 * n, size)
    logits = numerics.simulate(model, images)
    expected = oracle.logits(arch, state, oracle.prepare(arch, images))
    assert expected.std(axis=0).max() > 0.05
    return float((logits.argmax(1) == expected.argmax(1)).mean()), np.abs(logits - expected).max(axis=1)


def test_logits_where_no_sign_falls_the_other_way() -> None:
    """Random networks are chaotic; among images with wide margins some keep all signs, and those are near."""
    same, differences = agreement(R20, state_of(R20, 32), 32, 12)
    assert (differences < 5e-3).sum() >= 3
    assert same >= 0.5


class Gentle(nn.Module):
    """A ResNet-like network with few signs that matter: real layers carry most, so that rounding shows as rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.Hardtanh(), nn.MaxPool2d(3, 2, 1))
        self.conv = BinaryConv2d(16, 16, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(16)
        self.short = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24))
        self.down = BinaryConv2d(16, 24, 3, 2, 1, learned_scale=True)
        self.down_norm = nn.BatchNorm2d(24)
        self.wide = nn.Sequential(nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Hardtanh(-0.8, 1.2))
        self.head_norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.hardtanh(self.norm(self.conv(x)) + x)
        x = F.hardtanh(self.down_norm(self.down(x)) + self.short(x))
        x = self.wide(x)
        return self.head(self.head_norm(F.adaptive_avg_pool2d(x, 1)).flatten(1))


def randomised(model: nn.Module, seed: int, binary: float = 0.02) -> nn.Module:
    """Values that matter, with negative ones among them; `binary` is the size of the binary layers' scales."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(module.weight, 0, 1.0)
            nn.init.normal_(module.bias, 0, 0.3)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, 0, module.weight[0].numel() ** -0.5)
        if isinstance(module, BinaryConv2d) and module.scaling_factor is not None:
            nn.init.normal_(module.scaling_factor, 0, binary)
    return model.eval()


def simulated(
    model: nn.Module, shape: tuple[int, int, int], images: np.ndarray, **options: str
) -> tuple[np.ndarray, np.ndarray, bnn.Model, list[str]]:
    """Logits of the integer model and of torch in float64, the model, and warnings."""
    mean, std = oracle.CIFAR
    made, warnings = quantize(folded(model, shape), mean, std, **options)
    packed = pack_integer(made, shape, mean, std, {})
    x = oracle.prepare(R20, images)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(torch.from_numpy(x).double()).numpy()
    return numerics.simulate(packed, images), expected, packed, warnings


@pytest.mark.parametrize("seed", range(4))
def test_a_gentle_network(seed: int, isa: str) -> None:
    model = randomised(Gentle(), seed, binary=1e-5)
    images = np.random.default_rng(seed).integers(0, 256, (20, 3, 2, 3), np.uint8).repeat(16, 1).repeat(16, 2)
    logits, expected, packed, warnings = simulated(model, (3, 48, 32), images)
    assert warnings == []
    assert np.abs(logits - expected).max() < 4e-3
    assert (logits.argmax(1) == expected.argmax(1)).all()
    assert expected.std(axis=0).max() > 0.03
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()
    narrow, *_ = simulated(model, (3, 48, 32), images, weights="int8")
    assert 1e-4 < np.abs(narrow - expected).max() < 0.2


@pytest.mark.parametrize("value", [0.0, 1e-8, -1e-8, -1.0])
def test_small_and_negative_norm_weights(value: float) -> None:
    model = Gentle()
    randomised(model, 1, binary=1e-5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.weight[::3] = value
    images = np.random.default_rng(2).integers(0, 256, (10, 32, 32, 3), np.uint8)
    logits, expected, _, warnings = simulated(model, (3, 32, 32), images)
    assert warnings == []
    assert np.abs(logits - expected).max() < 4e-3


class Pooled(nn.Module):
    """Pools between a layer and its norm, whose scales have both signs: what `fold` moves has to come back right."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2))
        self.stem_norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(BinaryConv2d(8, 24, 3, padding=1, learned_scale=True), nn.MaxPool2d(3, 2, 1))
        self.norm = nn.BatchNorm2d(24)
        self.classifier = nn.Conv2d(24, 5, (3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem_norm(self.stem(x)))
        return self.classifier(F.hardtanh(self.norm(self.body(x)))).flatten(1)


@pytest.mark.parametrize("positive", [True, False])
def test_pools_before_norms(positive: bool) -> None:
    model = randomised(Pooled(), 3, binary=0.1)
    with torch.no_grad():
        model.stem_norm.weight.abs_()  # type: ignore[operator]
        if positive:
            model.norm.weight.abs_()  # type: ignore[operator]
    images = np.random.default_rng(2).integers(0, 256, (30, 12, 8, 3), np.uint8)
    logits, expected, packed, _ = simulated(model, (3, 12, 8), images)
    near = np.abs(logits - expected).max(axis=1) < 2e-3
    assert near.mean() > 0.5  # the others have a value within rounding of 0 before the sign
    kinds = [op.kind for op in packed.ops]
    extra = [] if positive else ["avgpool"]
    assert kinds == ["conv", "maxpool", "bconv", "maxpool", *extra, "linear"]
    assert Engine(bnn.to_bytes(packed)).run(images).tolist() == logits.tolist()


def test_a_pool_before_a_negative_norm_of_a_real_layer_is_refused() -> None:
    model = randomised(Pooled(), 3)
    with torch.no_grad():
        model.stem_norm.weight.fill_(-1.0)  # type: ignore[operator]
    with pytest.raises(NotIntegerError, match=r"stem.0: its result is not clamped"):
        quantize(folded(model, (3, 12, 8)), *oracle.CIFAR)


class Chain(nn.Module):
    """One binary layer between clamps, then the head: its constants are all that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.conv = BinaryConv2d(8, 6, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem(x))
        x = F.hardtanh(self.norm(self.conv(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def chain(scale: float, bias: float) -> nn.Module:
    """clamp(scale * dots + bias) in every channel."""
    model = randomised(Chain(), 5)
    assert isinstance(model, Chain)
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    assert model.conv.scaling_factor is not None
    with torch.no_grad():
        model.conv.scaling_factor.fill_(scale)
        model.norm.running_mean.zero_()
        model.norm.running_var.fill_(1 - model.norm.eps)
        model.norm.weight.fill_(1.0)
        model.norm.bias.fill_(bias)
    return model


@pytest.mark.parametrize(
    ("scale", "bias", "words"),
    [
        (0.03, 0.2, None),
        (0.03, -25.0, None),
        (0.03, 5000.0, "offset so large"),
        (30.0, -5000.0, "scale over 1"),
        (0.03, 1e6, "offset so large"),
        (0.03, -1e9, "offset so large"),
        (1e-9, 0.7, None),
        (3.0, 0.5, "scale over 1"),
        (500.0, -0.3, "scale over 1"),
    ],
)
def test_extreme_constants(scale: float, bias: float, words: str | None) -> None:
    model = chain(scale, bias)
    images = np.random.default_rng(2).integers(0, 256, (10, 6, 6, 3), np.uint8)
    logits, expected, packed, warnings = simulated(model, (3, 6, 6), images)
    numerics.check(packed)
    assert np.abs(logits - expected).max() < 5e-3
    if words is None:
        assert warnings == []
    else:
        assert len(warnings) == 1
        assert words in warnings[0]
        assert warnings[0].startswith("conv: 6 of 6 channels have")


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("cResNet18_1w1a", "conv1: its result is not clamped"),
        ("VGGSmall_1w1a", "nonlinear5: the activation prelu"),
        ("ReActResNet18_1w1a", "conv1: its result is not clamped"),
    ],
)
def test_networks_that_are_not_integer(arch: str, reason: str) -> None:
    size = 32
    with pytest.raises(NotIntegerError) as caught:
        quantize(folded(create(arch, 10, input_size=size), (3, size, size)), *oracle.CIFAR)
    assert str(caught.value).startswith(reason)


class ReadsPixels(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = BinaryConv2d(3, 3, 3, padding=1) if how == "signs" else nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.how == "pool":
            y = F.hardtanh(y) + F.max_pool2d(x, 3, 1, 1)
        if self.how == "add":
            y = y + x
        y = F.relu(y) if self.how == "relu" else F.hardtanh(y)
        logits = self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return F.hardtanh(logits) if self.how == "end" else logits


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("signs", "reads the pixels"),
        ("pool", "reads the pixels"),
        ("add", "adds the pixels"),
        ("relu", "clamps to 0..inf"),
        ("end", "nothing can follow"),
    ],
)
def test_what_integers_cannot_do(how: str, reason: str) -> None:
    with pytest.raises(NotIntegerError, match=reason):
        quantize(folded(ReadsPixels(how), (3, 6, 6)), *oracle.CIFAR)


# --- sizes and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weights", "most"),
    [
        ("resnet18", "int16", 2_810_000),
        ("resnet18", "int8", 2_150_000),
        ("resnet34", "int16", 4_120_000),
        ("resnet34", "int8", 3_450_000),
    ],
)
def test_sizes(name: str, weights: str, most: int) -> None:
    model = random_resnet(name, numerics="integer", weights=weights)
    numerics.check(model)
    assert len(bnn.to_bytes(model)) <= most
    assert model.metadata["labels"] == "imagenet"
    width = {"int16": "i16", "int8": "i8"}[weights]
    real_ones = [op for op in model.ops if op.kind in ("conv", "linear")]
    assert {model.tensors[op.weight or 0].dtype for op in real_ones} == {width}
    assert {model.tensors[op.weight or 0].dtype for op in model.ops if op.kind == "bconv"} == {"bits"}


def test_an_8_bit_stem() -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics="integer", stem="int8")
    dtypes = [model.tensors[op.weight].dtype for op in model.ops if op.kind != "bconv" and op.weight is not None]
    assert dtypes == ["i8", *["i16"] * 4]


@pytest.mark.parametrize("stem", ["int8", "int16"])
def test_the_largest_weights_of_a_stem(stem: str, isa: str) -> None:
    """A stem whose results are beyond the clamp from one step of a pixel to the next is the last that fits."""
    model = randomised(Gentle(), 0, binary=1e-5)
    images = np.random.default_rng(2).integers(0, 256, (5, 32, 32, 3), np.uint8)
    with torch.no_grad():
        model.stem[0].weight[2, 0, 1, 1] = 60.0  # type: ignore[index]
        model.stem[1].weight[2] = float(torch.sqrt(model.stem[1].running_var[2] + 1e-5))  # type: ignore[index,operator]
    logits, expected, packed, warnings = simulated(model, (3, 32, 32), images, stem=stem)
    assert warnings == []
    counts = 60 * (TOP / 1.2) / (255 * oracle.CIFAR[1][0])
    found = packed.tensors[packed.ops[0].weight or 0].array[2].max()
    assert abs(found - counts / {"int8": 256, "int16": 1}[stem]) < 2.5
    assert np.abs(logits - expected).max() < 0.2
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()
    with torch.no_grad():
        model.stem[0].weight[2, 0, 1, 1] *= 2  # type: ignore[index]
    with pytest.raises(NotIntegerError, match=rf"stem.0: 1 channels have weights .* too large for {stem[3:]} bits"):
        simulated(model, (3, 32, 32), images, stem=stem)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "cresnet20"])
def test_random_networks_are_the_exported_ones(name: str) -> None:
    arch = {"resnet18": "ResNet18_1w1a", "resnet34": "ResNet34_1w1a", "cresnet20": R20}[name]
    mean, std = normalisation(arch)
    state = state_of(arch, 32)
    made, _ = quantize(folded(loaded(arch, state, 32), (3, 32, 32)), mean, std)
    exported = pack_integer(made, (3, 32, 32), mean, std, {})
    random_one = random_resnet(name, num_classes=10, size=32, numerics="integer")
    assert random_one.ops == exported.ops
    assert random_one.values == exported.values
    assert [(t.dtype, t.shape) for t in random_one.tensors] == [(t.dtype, t.shape) for t in exported.tensors]
    assert random_one.version == (1, 1)


# --- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_integer_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(state_of(R20, 32, learned=True), checkpoint)
    code, out, err = run(capsys, str(checkpoint), "-o", str(target), "--json", "--labels", "cifar10")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["numerics"] == "integer"
    assert report["not_integer"] is None
    assert report["labels"] == 10
    assert report["verification"]["images"] == 4
    assert report["integer_verification"]["images"] == 4
    assert report["bytes"] == target.stat().st_size < 66_000
    model = bnn.read(target)
    assert (model.numerics, model.version, model.metadata["labels"]) == ("integer", (1, 1), "cifar10")
    assert Engine(target).labels[1] == "automobile"
    code, out, _ = run(capsys, str(checkpoint), "-o", str(target), "--force", "--weights", "int8", "--verify", "1")
    assert code == 0
    assert "numerics integer" in out
    assert "simulation's bits on 1 random images" in out
    assert bnn.read(target).tensors[bnn.read(target).ops[-1].weight or 0].dtype == "i8"
    code, out, _ = run(capsys, str(checkpoint), "-o", str(target), "--force", "--numerics", "float", "--verify", "0")
    assert code == 0
    assert bnn.read(target).version == (1, 0)


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("cResNet18_1w1a", "conv1: its result is not clamped"),
        ("VGGSmall_1w1a", "nonlinear5: the activation prelu"),
    ],
)
def test_auto_falls_back_to_float(arch: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(create(arch, 10).state_dict(), checkpoint)
    base = (str(checkpoint), "-o", str(target), "--verify", "0", "--zero-weights", "plus")
    for options in (("--numerics", "integer"), ("--weights", "int8"), ("--stem", "int8")):
        code, out, err = run(capsys, *base, *options)
        assert (code, out) == (2, "")
        assert reason in err
        assert not target.exists()
    code, _, err = run(capsys, *base)
    assert code == 0
    assert err.count("\n") == 1
    assert reason in err
    assert "float" in err
    assert bnn.read(target).numerics == "float"
    code, _, err = run(capsys, *base, "--numerics", "float", "--force")
    assert (code, err) == (0, "")
    code, _, err = run(capsys, *base, "--numerics", "float", "--weights", "int8", "--force")
    assert code == 2
    assert "--weights" in err
    checkpoint.unlink()


def test_a_wrong_engine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(state_of(R20, 32), checkpoint)
    right = numerics.simulate
    monkeypatch.setattr(numerics, "simulate", lambda *args: np.nextafter(right(*args), np.float32(np.inf)))
    with pytest.raises(RuntimeError, match="the engine differs from the simulation on 2 of 2 images"):
        export(checkpoint, target, ExportOptions(verify=2))
    assert not target.exists()


def test_accuracy_on_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target, images = tmp_path / "c.pth", tmp_path / "m.bnn", tmp_path / "images"
    state = state_of(R20, 32)
    torch.save(state, checkpoint)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    answers = oracle.logits(R20, state, oracle.prepare(R20, pixels)).argmax(1)
    for label in range(10):
        (images / f"class{label}").mkdir(parents=True)
    for i, (image, answer) in enumerate(zip(pixels, answers)):
        label = answer if i % 4 else (answer + 1) % 10  # three in four are right
        Image.fromarray(image).save(images / f"class{label}" / f"{i:02}.png")
    base = (str(checkpoint), "-o", str(target), "--verify", "0", "--force", "--images", str(images))
    code, out, err = run(capsys, *base, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["accuracy"]
    assert found["images"] == 40
    assert found["pytorch"] == pytest.approx(0.75, abs=0.03)
    assert 0 <= found["exported"] <= 1
    code, out, _ = run(capsys, *base, "--max-images", "7", "--numerics", "float")
    assert code == 0
    assert "top-1 on 7 labelled images: PyTorch " in out
    assert "the same answer on 100.00%" in out
    (images / "class10").mkdir()
    code, _, err = run(capsys, *base)
    assert code == 2
    assert "has 11 classes, the network has 10" in err
    for folder, words in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "classes")):
        code, _, err = run(capsys, *base[:-1], str(folder))
        assert code == 2
        assert "--images" in err
        assert words in err


def test_accuracy_on_cifar10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared("data", "cifar10")
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(state_of(R20, 32), checkpoint)
    base = (str(checkpoint), "-o", str(target), "--verify", "0", "--max-images", "50")
    code, out, err = run(capsys, *base, "--images", str(folder), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["accuracy"]["images"] == 50


def test_images_of_another_size(tmp_path: Path) -> None:
    folder = shared("data", "cifar10")
    checkpoint = tmp_path / "c.pth"
    torch.save(state_of(R20, 32), checkpoint)
    options = ExportOptions(input_size=40, images=str(folder), verify=0)
    with pytest.raises(ExportError, match="32 pixels, the network takes 40"):
        export(checkpoint, tmp_path / "m.bnn", options)


def test_the_golden_network_in_integers() -> None:
    checkpoint, io = oracle.golden(DATA / "cResNet20_1w1a_sfTrue.npz")
    model = loaded(R20, checkpoint["state_dict"], 32)
    made, warnings = quantize(folded(model, (3, 32, 32)), io["mean"], io["std"])
    packed = pack_integer(made, (3, 32, 32), io["mean"], io["std"], {})
    assert warnings == []
    logits = numerics.simulate(packed, io["x_u8"])
    assert (np.abs(logits - io["logits64"]).max(axis=1) < 5e-3).any()
    assert Engine(bnn.to_bytes(packed)).run(io["x_u8"]).tolist() == logits.tolist()
