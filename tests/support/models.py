"""Float models for tests: the golden one, small ones, and random ones of the first seven ops whose sums are exact."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np

from ovsw import format as bnn

from support import DATA

TINY = (DATA / "tiny.bnn").read_bytes()
FIRST = list(bnn.OP_KINDS)[:7]  # the ops of format 1.0; `support.graphs` draws all of them
EXPECTED: dict[str, Any] = json.loads((DATA / "tiny.json").read_text(encoding="utf-8"))


def tiny_model() -> bnn.Model:
    """What tests/data/tiny.bnn holds."""

    def ramp(shape: tuple[int, ...], step: int, modulus: int, unit: float) -> np.ndarray:
        n = int(np.prod(shape))
        return (np.arange(n).reshape(shape) * step % modulus - modulus // 2) * unit

    labels = {"labels": ["no", "sí"]}
    m = bnn.Model([], [], [], output=5, mean=0, std=1, metadata={"arch": "tiny", "num_classes": 2, **labels})
    m.values = [
        bnn.Value("f32", 1, 4, 4),
        bnn.Value("f32", 3, 4, 4),
        bnn.Value("bits", 3, 4, 4),
        bnn.Value("f32", 3, 4, 4),
        bnn.Value("f32", 3, 2, 2),
        bnn.Value("f32", 2, 1, 1),
    ]
    m.add_tensor(np.array([0.5]))
    m.add_tensor(np.array([0.25]))
    stem = {
        "weight": m.add_tensor(ramp((3, 3, 3, 1), 7, 11, 0.25)),
        "scale": m.add_tensor(np.array([0.25, -0.125, 0.5]), "f64"),
        "offset": m.add_tensor(np.array([0.25, -0.5, 0.0]), "f64"),
    }
    binary = {
        "weight": m.add_bits(np.arange(81).reshape(3, 3, 3, 3) ** 2 % 7 < 3),
        "scale": m.add_tensor(np.array([0.0625, -0.125, 0.25]), "f64"),
        "offset": m.add_tensor(np.array([-0.25, 0.5, 0.125]), "f64"),
        "slope": m.add_tensor(np.array([0.25, 0.5, -0.125])),
    }
    fc = m.add_tensor(ramp((2, 12), 5, 11, 0.125))
    square = {"window": (3, 3), "pad": (1, 1)}
    m.ops = [
        bnn.Op("conv", "stem", 0, out=1, bits=2, act="clamp", clamp=(-1.0, 1.0), **stem, **square),  # type: ignore[arg-type]
        bnn.Op("bconv", "conv1", 2, residual=1, out=3, act="prelu", **binary, **square),  # type: ignore[arg-type]
        bnn.Op("maxpool", "pool", 3, out=4, stride=(2, 2), **square),  # type: ignore[arg-type]
        bnn.Op("linear", "fc", 4, out=5, weight=fc),
    ]
    return m


def draw_window(
    rng: random.Random, op: bnn.Op, shape: tuple[int, int, int], averages: tuple[int, ...] = ()
) -> tuple[int, int]:
    """Gives the op a window, stride and padding; returns rows and columns of its result.

    An avgpool has one of the sides `averages`, if any are given.
    """
    sides = []
    for axis, n in enumerate(shape[1:]):
        window = rng.choice(averages) if averages and op.kind == "avgpool" else rng.randint(1, 4)
        most = {"avgpool": 0, "maxpool": window // 2}.get(op.kind, window - 1)
        pad = rng.randint(0, most)
        if window > n + 2 * pad:
            window, pad = 1, 0
        stride = rng.randint(1, 3)
        for name, number in (("window", window), ("stride", stride), ("pad", pad)):
            pair = list(getattr(op, name))
            pair[axis] = number
            setattr(op, name, tuple(pair))
        sides.append((n + 2 * pad - window) // stride + 1)
    return sides[0], sides[1]


class RandomModel:
    """Small models with every op of format 1.0; all numbers are multiples of powers of two, so that sums are exact."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(seed)
        shape = (self.channels(), self.rng.randint(1, 6), self.rng.randint(1, 6))
        metadata = {"arch": f"random {seed}", "ü": [1, None, {"x": 0.5}]}
        self.model = m = bnn.Model([], [], [], output=0, mean=0, std=1, metadata=metadata)
        m.add_tensor(np.zeros(shape[0]))
        m.add_tensor(np.ones(shape[0]))
        m.add_value("f32", *shape)
        for i in range(self.rng.randint(1, 6)):
            self.add_op(f"op{i}" * self.rng.randint(0, 2))
        m.output = self.rng.choice([i for i, v in enumerate(m.values) if v.kind == "f32"])

    def channels(self) -> int:
        return self.rng.choice((1, 2, 3, 5, 8, 16, 33, 64, 65, 70))

    def numbers(self, shape: tuple[int, ...], low: int, high: int, unit: float) -> np.ndarray:
        n = int(np.prod(shape))
        return np.array([self.rng.randint(low, high) * unit for _ in range(n)]).reshape(shape)

    def add_op(self, name: str) -> None:
        m, rng = self.model, self.rng
        kind = rng.choice([k for k in FIRST if k != "bconv" or any(v.kind == "bits" for v in m.values)])
        wanted = "bits" if kind == "bconv" else "f32"
        op = bnn.Op(kind, name, rng.choice([i for i, v in enumerate(m.values) if v.kind == wanted]))
        c, h, w = shape = m.values[op.input].shape
        if kind in ("bconv", "conv", "maxpool", "avgpool"):
            h, w = draw_window(rng, op, shape, averages=(1, 2, 4))
        if kind == "bconv":
            c = self.channels()
            op.weight = m.add_bits(self.numbers((c, *op.window, shape[0]), 0, 1, 1.0) > 0)
        elif kind == "conv":
            c = rng.randint(1, 20)
            op.weight = m.add_tensor(self.numbers((c, *op.window, shape[0]), -2, 2, 1.0))
        elif kind == "linear":
            features, c, h, w = c * h * w, rng.randint(1, 9), 1, 1
            op.weight = m.add_tensor(self.numbers((c, features), -2, 2, 1.0))
        elif kind == "channel_pad":
            op.channels = (rng.randint(0, 3), rng.randint(0, 70))
            c += sum(op.channels)
        if rng.random() < 0.6:
            op.scale = m.add_tensor(self.numbers((c,), -2, 2, 0.5), "f64")
            op.offset = m.add_tensor(self.numbers((c,), -3, 3, 0.5), "f64")
        same = [i for i, v in enumerate(m.values) if v == bnn.Value("f32", c, h, w)]
        if same and rng.random() < 0.7:
            op.residual = rng.choice(same)
        op.act = rng.choice(("clamp", "clamp", "prelu", "none"))
        if op.act == "clamp":
            op.clamp = (-rng.randint(1, 4), rng.randint(0, 4))
        elif op.act == "prelu":
            op.slope = m.add_tensor(self.numbers((c,), -1, 2, 0.5))
        stores = rng.choice(("out", "bits", "both"))
        if stores != "bits":
            op.out = m.add_value("f32", c, h, w)
        if stores != "out":
            op.bits = m.add_value("bits", c, h, w)
        m.ops.append(op)

    def image(self) -> np.ndarray:
        return self.numbers(self.model.values[0].shape, -4, 4, 0.5).astype(np.float32)


def small_model(kind: str = "eltwise", shape: tuple[int, int, int] = (1, 1, 1), **fields: Any) -> bnn.Model:
    """One op of the input's shape."""
    m = bnn.Model([bnn.Value("f32", *shape), bnn.Value("f32", *shape)], [], [], output=1, mean=0, std=1)
    m.add_tensor(np.zeros(shape[0]))
    m.add_tensor(np.ones(shape[0]))
    m.ops.append(bnn.Op(kind, "op", 0, out=1, **fields))
    return m


def same_model(a: bnn.Model, b: bnn.Model) -> bool:
    """Equality that looks into arrays."""

    def plain(m: bnn.Model) -> tuple[Any, ...]:
        tensors = [(t.dtype, tuple(t.shape), t.array.dtype, t.array.shape, t.array.tobytes()) for t in m.tensors]
        return (tensors, *(getattr(m, f.name) for f in dataclasses.fields(m) if f.name != "tensors"))

    return plain(a) == plain(b)
