"""What the kernels of format 1.2 must give, by torch in float64 and by plain loops: no code of ours.

Maps are (h, w, c) arrays, weights (out, rows, columns, channels of a group).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Pair = Sequence[int]


def channels_first(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x, np.float64)).permute(2, 0, 1)[None]


def channels_last(x: torch.Tensor) -> np.ndarray:
    return x[0].permute(1, 2, 0).numpy()


def conv(x: np.ndarray, weight: np.ndarray, stride: Pair, pad: Pair, dilation: Pair, fill: float = 0.0) -> np.ndarray:
    """A convolution of real numbers in float64; pixels outside count `fill`."""
    padded = F.pad(channels_first(x), (pad[1], pad[1], pad[0], pad[0]), value=fill)
    kernel = torch.from_numpy(np.ascontiguousarray(weight, np.float64)).permute(0, 3, 1, 2)
    groups = x.shape[2] // weight.shape[3]
    return channels_last(
        F.conv2d(padded, kernel, stride=tuple(stride), dilation=tuple(dilation), groups=groups)  # type: ignore[arg-type]
    )


def signs(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1.0, -1.0)


def max_pool(x: np.ndarray, window: Pair, stride: Pair, pad: Pair, dilation: Pair, ceil: bool) -> np.ndarray:
    pooled = F.max_pool2d(channels_first(x), tuple(window), tuple(stride), tuple(pad), tuple(dilation), ceil)  # type: ignore[arg-type]
    return channels_last(pooled)


def window_sums(
    x: np.ndarray, window: Pair, stride: Pair, pad: Pair, ceil: bool, exclude_pad: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of each window of an average pool, and by how many it is divided (h, w, 1)."""
    mean = channels_last(
        F.avg_pool2d(channels_first(x), tuple(window), tuple(stride), tuple(pad), ceil, not exclude_pad)  # type: ignore[arg-type]
    )
    h, w, _ = mean.shape
    sums, counts = np.zeros(mean.shape), np.zeros((h, w, 1), np.int64)
    for oy, ox in np.ndindex(h, w):
        for i, j in np.ndindex(*window):
            y, column = oy * stride[0] + i - pad[0], ox * stride[1] + j - pad[1]
            inside = 0 <= y < x.shape[0] and 0 <= column < x.shape[1]
            padded = y < x.shape[0] + pad[0] and column < x.shape[1] + pad[1]
            counts[oy, ox] += inside if exclude_pad else padded
            if inside:
                sums[oy, ox] += x[y, column]
    np.testing.assert_allclose(sums / counts, mean, rtol=1e-12, atol=1e-9)
    return sums, counts


def finish_float(t: np.ndarray, **e: Any) -> tuple[np.ndarray, np.ndarray]:
    """From t, in double, to the map and its bits."""
    u = t.astype(np.float32)
    act = e.get("act", "none")
    v = u
    if act == "clamp":
        v = np.clip(u, np.float32(e["clamp"][0]), np.float32(e["clamp"][1]))
    elif act == "prelu":
        slope = np.atleast_2d(e["slope"]).astype(np.float32)
        v = np.where(u >= 0, u * slope[1] if len(slope) == 2 else u, u * slope[0])
    elif act == "step":
        v = np.where(u >= 0, np.float32(e["clamp"][1]), np.float32(e["clamp"][0]))
    elif act == "sigmoid":
        v = np.array([1.0 / (1.0 + exponential(-float(x))) for x in u.reshape(-1)]).reshape(u.shape).astype(np.float32)
    return v, v >= e.get("threshold", np.float32(0))


def finish_integer(q: np.ndarray, **e: Any) -> tuple[np.ndarray, np.ndarray]:
    """From q + residual to the map and its bits."""
    act = e.get("act", "none")
    if act == "step":
        v = np.where(q >= 0, int(e["clamp"][1]), int(e["clamp"][0]))
        return v, v >= e.get("threshold", 0)
    lo, hi = e["clamp"] if act == "clamp" else (-32768, 32767)
    v = np.clip(q, int(lo), int(hi)).astype(np.int64)
    if act == "prelu":
        slope = np.atleast_2d(e["slope"]).astype(np.int64)
        scaled = [np.clip(((2 * v + 1) * row) >> 15, -32768, 32767) for row in slope]
        v = np.where(v < 0, scaled[0], scaled[1] if len(slope) == 2 else v)
    elif act == "table":
        table = e["slope"].astype(np.int64)
        i, f = (v + 32768) >> 8, v & 255
        v = (table[i] * (256 - f) + table[i + 1] * f + 128) >> 8
    return v, v >= e.get("threshold", 0)


def exponential(x: float) -> float:
    """e(x) of the text, operation by operation."""
    x = min(max(x, -745.0), 709.0)
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = 0.0
    for n in range(13, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    a = k // 2
    return p * math.ldexp(1.0, a) * math.ldexp(1.0, k - a)


def logarithm(s: float) -> float:
    """ln(s) of the text."""
    m, k = math.frexp(s)  # 0.5 <= m < 1
    if m < 0.75:
        m, k = 2 * m, k - 1
    t = (m - 1) / (m + 1)
    h = 0.0
    for i in range(20, -1, -1):
        h = h * (t * t) + 1.0 / (2 * i + 1)
    return k * 0.6931471805599453 + 2 * t * h


def softmax(x: np.ndarray, log: bool) -> np.ndarray:
    """Over the last axis, summed in order."""
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        most = float(row.max())
        powers = [exponential(float(v) - most) for v in row]
        total = 0.0
        for p in powers:
            total += p
        rows.append([(float(v) - most) - logarithm(total) for v in row] if log else [p / total for p in powers])
    return np.array(rows).reshape(x.shape).astype(np.float32)
