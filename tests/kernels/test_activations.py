"""Every activation, thresholds and residuals per channel, behind every core, in both numerics, on every table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support import naive
from support.ops import run_op

Rng = np.random.Generator

CHANNELS = [7, 16, 64, 70, 130]
FLOAT_ACTS = ["none", "clamp", "prelu", "rprelu", "step", "sigmoid"]
INTEGER_ACTS = ["none", "clamp", "prelu", "rprelu", "step", "table"]


def activation(rng: Rng, act: str, c: int, numerics: str) -> dict[str, Any]:
    """The fields of an op and of the judges in tests/support/naive.py; rprelu has a slope for either side."""
    if act in ("clamp", "step"):
        low, high = (-1.5, 0.75) if numerics == "float" else (-9000, 12000)
        return {"act": act, "clamp": (high, low) if act == "step" and c % 2 else (low, high)}
    rows = {"prelu": (c,), "rprelu": (2, c), "table": (257,)}.get(act)
    if rows is None:
        return {"act": act}
    slope = rng.normal(size=rows).astype(np.float32) if numerics == "float" else rng.integers(-32768, 32768, rows)
    if numerics == "integer" and act != "table":
        slope[..., :3] = [-32768, 32767, 0]
    return {"act": act.replace("rp", "p"), "slope": slope}


def threshold(rng: Rng, c: int, numerics: str) -> np.ndarray:
    values = rng.normal(size=c).astype(np.float32) if numerics == "float" else rng.integers(-20000, 20000, c)
    values[0] = 0
    return values


def judged(
    isa: str, numerics: str, kind: str, x: np.ndarray, t: np.ndarray, e: dict[str, Any], op: dict[str, Any]
) -> None:
    """Against the judge of what follows t (q + residual in integers)."""
    expected = (naive.finish_float if numerics == "float" else naive.finish_integer)(t, **e)
    dtypes = {"slope": "f32", "threshold": "f32"} if numerics == "float" else {"slope": "i16", "threshold": "i16"}
    constants = {**op.get("constants", {}), **{name: (e[name], dtypes[name]) for name in dtypes if name in e}}
    record = {"act": e["act"], "clamp": e.get("clamp", (0.0, 0.0))}
    for split, out, bits in ((0, True, True), (5, True, "threshold" in e), (3, False, True)):
        name = ("f32" if numerics == "float" else "i16") if out else None
        got = run_op(
            isa, numerics, kind, x, out=name, bits=bits, split=split, **{**op, "constants": constants, **record}
        )
        label = f"{kind} {x.shape} {e['act']} threshold {'threshold' in e}"
        if out:
            np.testing.assert_array_equal(got["out"], expected[0], err_msg=label)
        if bits:
            np.testing.assert_array_equal(got["bits"], expected[1], err_msg=label)


def around_zero(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Floats with zeros of both signs and very small ones among them."""
    x = rng.normal(size=shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array([0.0, -0.0, 1e-40, -1e-40], np.float32), shape), x)


@pytest.mark.parametrize("act", FLOAT_ACTS)
@pytest.mark.parametrize("with_threshold", [False, True])
def test_float(isa: str, act: str, with_threshold: bool) -> None:
    rng = np.random.default_rng(len(act))
    for c in CHANNELS:
        e = activation(rng, act, c, "float")
        if with_threshold:
            e["threshold"] = threshold(rng, c, "float")
        x = around_zero(rng, (3, 4, c))
        judged(isa, "float", "eltwise", x, x.astype(np.float64), e, {})
        for shape in ((3, 4, c), (1, 1, c)):  # the latter counts for every pixel
            residual = rng.normal(size=shape).astype(np.float32)
            scale, offset = rng.normal(size=c), rng.normal(size=c)
            constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
            t = x * scale + offset + residual
            judged(isa, "float", "eltwise", x, t, e, {"residual": residual, "constants": constants})
            judged(isa, "float", "eltwise", x, x + residual.astype(np.float64), e, {"residual": residual})
        bits, weight = rng.random((3, 4, 40)) < 0.5, rng.random((c, 3, 3, 40)) < 0.5
        y = naive.conv(naive.signs(bits), naive.signs(weight), (1, 1), (1, 1), (1, 1))
        judged(isa, "float", "bconv", bits, y * scale, e, {"weight": weight, "pad": (1, 1), "constants": {
            "scale": (scale, "f64"), "offset": (np.zeros(c), "f64")}})  # fmt: skip


@pytest.mark.parametrize("act", INTEGER_ACTS)
@pytest.mark.parametrize("with_threshold", [False, True])
def test_integer_maps(isa: str, act: str, with_threshold: bool) -> None:
    rng = np.random.default_rng(len(act))
    for c in CHANNELS:
        e = activation(rng, act, c, "integer")
        if with_threshold:
            e["threshold"] = threshold(rng, c, "integer")
        x = rng.integers(-32768, 32768, (3, 5, c)).astype(np.int16)
        x[0, 0], x[0, 1], x[0, 2], x[0, 3] = 0, -1, -32768, 32767
        judged(isa, "integer", "eltwise", x, x.astype(np.int64), e, {})
        for shape in (x.shape, (1, 1, c)):
            for kind, most in (("int16", 2**15), ("int32", 2**30)):
                residual = rng.integers(-most, most, shape).astype(kind)
                judged(isa, "integer", "eltwise", x, x.astype(np.int64) + residual, e, {"residual": residual})
        pooled = naive.max_pool(x, (2, 2), (1, 1), (0, 0), (1, 1), False).astype(np.int64)
        judged(isa, "integer", "maxpool", x, pooled, e, {"window": (2, 2)})
        channels = np.concatenate([np.zeros((3, 5, 1)), x, np.zeros((3, 5, 2))], axis=2).astype(np.int64)
        if act in ("none", "clamp", "step", "table") and not with_threshold:
            judged(isa, "integer", "channel_pad", x, channels, e, {"channels": (1, 2)})


@pytest.mark.parametrize("act", INTEGER_ACTS[:-1])
@pytest.mark.parametrize("with_threshold", [False, True])
@pytest.mark.parametrize("residual", [None, "int16", "int32"])
def test_integer_convolutions(isa: str, act: str, with_threshold: bool, residual: str | None) -> None:
    rng = np.random.default_rng(len(act))
    for c in CHANNELS:
        e = activation(rng, act, c, "integer")
        if with_threshold:
            e["threshold"] = threshold(rng, c, "integer")
        shape = (4, 5, c)
        op: dict[str, Any] = {"pad": (1, 1)}
        added: Any = 0
        if residual:
            added = rng.integers(-20000, 20000, shape).astype(residual)
            op["residual"] = added
        shift, offset = rng.integers(0, 4, c), rng.integers(-(2**12), 2**12, c)
        terms = {"offset": (offset, "i32"), "shift": (shift, "u8")}
        bits, binary = rng.random((4, 5, 64)) < 0.5, rng.random((c, 3, 3, 64)) < 0.5
        scale = rng.integers(0, 800, c)
        y = naive.conv(naive.signs(bits), naive.signs(binary), (1, 1), (1, 1), (1, 1)).astype(np.int64)
        q = ((scale * y + offset) >> shift) + added
        judged(isa, "integer", "bconv", bits, q, e, {
            **op, "weight": binary, "constants": {"scale": (scale, "i16"), **terms}})  # fmt: skip
        for groups, dtype in ((1, "int16"), (1, "uint8"), (c, "int16")):
            in_c = c if groups > 1 else 3
            x = rng.integers(0, 256, (4, 5, in_c)).astype(dtype)
            weight = rng.integers(-60, 60, (c, 3, 3, in_c // groups)).astype(np.int16)
            y = naive.conv(x, weight, (1, 1), (1, 1), (1, 1)).astype(np.int64)
            judged(isa, "integer", "conv", x, ((y + offset) >> shift) + added, e, {
                **op, "weight": weight, "constants": terms})  # fmt: skip
