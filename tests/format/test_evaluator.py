"""The judges judged: the float evaluator against PyTorch, the text's exponential and logarithm against libm."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw import numerics

from support.evaluator import evaluate
from support.models import small_model
from support.second_reading import e, ln

torch = pytest.importorskip("torch")
F = torch.nn.functional

SHAPE = (6, 7, 9)


def image(shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(np.float32)


def run(model: bnn.Model, x: np.ndarray) -> np.ndarray:
    found: np.ndarray = evaluate(model, x).outputs
    return found


def one_op(
    kind: str, x: np.ndarray, expected: Any, tensors: dict[str, np.ndarray] | None = None, **fields: Any
) -> None:
    """An op that gives what torch gives."""
    shape: Any = tuple(expected.shape[1:])
    model = small_model(kind, x.shape, **fields)  # type: ignore[arg-type]
    model.values[1] = bnn.Value("f32", *shape)
    for name, array in (tensors or {}).items():
        dtype = "i32" if array.dtype == np.int64 else "f64" if array.dtype == np.float64 else "f32"
        setattr(model.ops[0], name, model.add_tensor(array, dtype))
    found = run(model, x)
    np.testing.assert_allclose(found.reshape(shape), expected[0].numpy(), rtol=1e-5, atol=1e-5)


def windows(pool: bool) -> list[dict[str, Any]]:
    drawn, rng = [], random.Random(0)
    while len(drawn) < 60:
        window, stride = (rng.randint(1, 4), rng.randint(1, 4)), (rng.randint(1, 3), rng.randint(1, 3))
        dilation = (rng.randint(1, 3), rng.randint(1, 3))
        most = window if not pool else (window[0] // 2, window[1] // 2)
        pad = (rng.randint(0, most[0]), rng.randint(0, most[1]))
        covers = [(k - 1) * d + 1 for k, d in zip(window, dilation)]
        if all(c <= n + 2 * p for c, n, p in zip(covers, SHAPE[1:], pad)):
            drawn.append({"window": window, "stride": stride, "pad": pad, "dilation": dilation})
    return drawn


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions(groups: int) -> None:
    x = image()
    for w in windows(pool=False):
        weight = np.random.default_rng(1).normal(size=(12, 6 // groups, *w["window"])).astype(np.float32)
        expected = F.conv2d(
            torch.from_numpy(x)[None], torch.from_numpy(weight), None, w["stride"], w["pad"], w["dilation"], groups
        )
        one_op("conv", x, expected, {"weight": weight.transpose(0, 2, 3, 1)}, **w)


@pytest.mark.parametrize("ceil", [False, True])
def test_max_pools(ceil: bool) -> None:
    x = image()
    for w in windows(pool=True):
        sides = (w["window"], w["stride"], w["pad"], w["dilation"])
        one_op("maxpool", x, F.max_pool2d(torch.from_numpy(x)[None], *sides, ceil_mode=ceil), ceil=ceil, **w)


@pytest.mark.parametrize(("ceil", "exclude_pad"), itertools.product((False, True), repeat=2))
def test_average_pools(ceil: bool, exclude_pad: bool) -> None:
    x = image()
    for w in windows(pool=True):
        w["dilation"] = (1, 1)
        sides = (w["window"], w["stride"], w["pad"])
        expected = F.avg_pool2d(torch.from_numpy(x)[None], *sides, ceil, not exclude_pad)
        one_op("avgpool", x, expected, ceil=ceil, exclude_pad=exclude_pad, **w)


def test_binary_convolutions() -> None:
    """With a padding of any value, groups and a window scale: weights of two levels in PyTorch."""
    x = image()
    for n, w in enumerate(windows(pool=False)):
        rng, p, groups = np.random.default_rng(n), (0.0, 1.0, -1.0, 0.5)[n % 4], (1, 2, 6)[n % 3]
        positive = rng.integers(0, 2, (12, *w["window"], 6 // groups)) > 0
        model = small_model(shape=SHAPE)
        model.ops[0].out, model.ops[0].bits = None, 1
        model.values[1] = bnn.Value("bits", *SHAPE)
        scale, offset = rng.normal(size=(2, 12)), rng.normal(size=12)
        op = bnn.Op("bconv", "b", 1, pad_value=p, **w)
        op.weight, op.scale, op.offset = model.add_bits(positive), model.add_tensor(scale, "f64"), None
        op.offset = model.add_tensor(offset, "f64")
        signs = torch.from_numpy(np.where(x >= 0, 1.0, -1.0))[None]
        padded = F.pad(signs, (w["pad"][1],) * 2 + (w["pad"][0],) * 2, value=p)
        levels = np.where(positive, 1, -1) * scale[0][:, None, None, None] + scale[1][:, None, None, None]
        weight = torch.from_numpy(levels.transpose(0, 3, 1, 2).copy())
        expected = F.conv2d(padded, weight, torch.from_numpy(offset), w["stride"], 0, w["dilation"], groups)[0]
        op.out = model.output = model.add_value("f32", *expected.shape)
        model.ops.append(op)
        np.testing.assert_allclose(run(model, x).reshape(expected.shape), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(13, 9), (3, 20), (7, 1)])
def test_bilinear(align: bool, size: tuple[int, int]) -> None:
    x = image()
    table: list[int] = []
    for n, count in zip(SHAPE[1:], size):
        for i in range(count):
            at = i * (n - 1) / max(1, count - 1) if align else max(0.0, (i + 0.5) * n / count - 0.5)
            table += [int(at), round((at - int(at)) * 2**30) if int(at) < n - 1 else 0]
    expected = F.interpolate(torch.from_numpy(x)[None], size, mode="bilinear", align_corners=align)
    one_op("bilinear", x, expected, {"weight": np.array(table)})


def test_softmax_and_activations() -> None:
    x = image((5, 2, 3))
    tensor = torch.from_numpy(x)[None]
    one_op("softmax", x, F.softmax(tensor, 1))
    one_op("log_softmax", x, F.log_softmax(tensor, 1))
    one_op("eltwise", x, torch.sigmoid(tensor), act="sigmoid")
    slope = np.array([0.5, -0.25, 0.0, 1.0, 2.0], np.float32)
    one_op("eltwise", x, F.prelu(tensor, torch.from_numpy(slope)), {"slope": slope}, act="prelu")
    both = np.stack([slope, slope[::-1]])
    two = torch.where(tensor < 0, tensor * torch.from_numpy(both[0])[:, None, None], 0 * tensor)
    two = two + torch.where(tensor < 0, 0 * tensor, tensor * torch.from_numpy(both[1].copy())[:, None, None])
    one_op("eltwise", x, two, {"slope": both}, act="prelu")
    one_op("eltwise", x, torch.where(tensor >= 0, 3.0, -0.5), act="step", clamp=(-0.5, 3.0))


# --- the exponential and the logarithm of docs/format.md -------------------------------------------------------------


def test_exponential() -> None:
    x = np.concatenate([np.linspace(-750, 715, 20001), np.linspace(-1, 1, 2001), [0.0, -0.0, 1e-300, -1e9, 1e9]])
    found = numerics.exp(x)
    assert found.tolist() == [e(n) for n in x.tolist()]
    exact = np.exp(np.clip(x, -745, 709))
    normal = exact > 1e-300
    assert (np.abs(found - exact)[normal] <= 4e-16 * exact[normal]).all()
    assert (np.abs(found - exact)[~normal] <= 1e-315).all()
    assert numerics.exp(np.zeros(1))[0] == 1


def test_logarithm() -> None:
    s = np.concatenate([np.linspace(1, 4, 20001), np.geomspace(1, 1e300, 5001), [1.5, np.nextafter(1.5, 0), 3.0]])
    found = numerics.log(s)
    assert found.tolist() == [ln(n) for n in s.tolist()]
    exact = np.log(s)
    assert (np.abs(found - exact) <= 1e-15 * np.maximum(exact, 0.5)).all()
    assert numerics.log(np.ones(1))[0] == 0
