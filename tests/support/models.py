"""Float models for tests: the golden one, and small ones; `support.graphs` draws random ones."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from ovsw import format as bnn

from support import DATA

TINY = (DATA / "tiny.bnn").read_bytes()
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
