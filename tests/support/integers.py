"""Integer models for tests: a small one, and one around any op; `support.graphs` draws random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn

INT32 = 2**31 - 1


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
