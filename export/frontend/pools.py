"""Pools, reductions over rows, columns and channels, and bilinear resizing."""

from __future__ import annotations

import math

import numpy as np

from ovsw.export import ir
from ovsw.export.frontend.builder import GraphBuilder, RefusedError, handles, largest
from ovsw.export.frontend.values import Arranged, Call, Value, frame
from ovsw.export.frontend.windows import Geometry, Pair, pair

_MOST_REPEATS = 16


@handles("max_pool2d_with_indices")
def _max_pool(builder: GraphBuilder, call: Call) -> ir.Node:
    if call.output:
        raise RefusedError("max-pool positions (return_indices) are not supported")
    x, window = builder.node(call.args[0]), pair(call.args[1])
    stride, pad = call.arg(2, "stride") or window, call.arg(3, "padding", 0)
    dilation, ceil = pair(call.arg(4, "dilation", 1)), bool(call.arg(5, "ceil_mode", False))
    shape, geometry = frame(call.shape), (window, pair(stride), pair(pad))
    ceil = _ceils(ceil, x, shape, geometry, dilation)
    return ir.MaxPool(call.where.name, [x], shape, *geometry, dilation=dilation, ceil=ceil)


def _ceils(ceil: bool, x: ir.Node, shape: ir.Shape, geometry: tuple[Pair, Pair, Pair], dilation: Pair = (1, 1)) -> bool:
    """Whether rounding up makes a difference."""
    window, stride, (ph, pw) = geometry
    return ceil and Geometry(window, stride, dilation, (ph, ph, pw, pw)).taken(x.shape) != shape[1:]


@handles("avg_pool2d")
def _avg_pool(builder: GraphBuilder, call: Call) -> ir.Node:
    x, window = builder.node(call.args[0]), pair(call.args[1])
    stride, pad = pair(call.arg(2, "stride") or window), pair(call.arg(3, "padding", 0))
    shape, geometry = frame(call.shape), (window, stride, pad)
    ceil = _ceils(bool(call.arg(4, "ceil_mode", False)), x, shape, geometry)
    exclude = not call.arg(5, "count_include_pad", True) and any(pad)
    divisor = call.arg(6, "divisor_override")
    if divisor is None:
        return ir.AvgPool(call.where.name, [x], shape, *geometry, ceil=ceil, exclude_pad=exclude)
    if ceil:
        raise RefusedError("average pooling with both ceil_mode and divisor_override is not supported")
    pool = ir.AvgPool(call.where.name, [x], shape, *geometry)
    return builder.affine(f"{call.where.name}.divisor", pool, window[0] * window[1] / float(divisor), 0.0)


@handles("_adaptive_avg_pool2d", "adaptive_max_pool2d")
def _adaptive(builder: GraphBuilder, call: Call) -> ir.Node:
    """Windows of different sizes have their rows repeated until all have as many: the mean and the largest stay."""
    if call.output:
        raise RefusedError("max-pool positions (return_indices) are not supported")
    x, shape = builder.node(call.args[0]), frame(call.shape)
    window, index = [], []
    for n, m in zip(x.shape[1:], shape[1:]):
        starts, ends = ([(i * n) // m for i in range(m)], [-(-((i + 1) * n) // m) for i in range(m)])
        size = math.lcm(*(end - start for start, end in zip(starts, ends)))
        if size > _MOST_REPEATS and n % m:
            raise RefusedError(f"adaptive pooling from {n} to {m} is not supported; use a divisor of {n}")
        repeats = (np.repeat(np.arange(a, b), size // (b - a)) for a, b in zip(starts, ends))
        window.append(size if n % m else n // m)
        index.append(np.concatenate(list(repeats)) if n % m else np.arange(n))
    if [len(i) for i in index] != list(x.shape[1:]):
        repeated = (x.shape[0], len(index[0]), len(index[1]))
        x = ir.Gather(f"{call.where.name}.repeated", [x], repeated, np.arange(x.shape[0]), index[0], index[1])
    kind = ir.MaxPool if "max" in call.op else ir.AvgPool
    return kind(call.where.name, [x], shape, (window[0], window[1]), (window[0], window[1]), (0, 0))


# Reductions.


@handles("mean", "sum", "amax", "max", "amin", "min")
def _reduced(builder: GraphBuilder, call: Call) -> ir.Node:
    if call.output:
        raise RefusedError(f"the positions returned by {call.op}() are not supported")
    x, dims = _whole_reduction(call)
    node = builder.node(x)
    channels, rows, columns = _axes(x, dims)
    name, (c, h, w) = call.where.name, node.shape
    window = (h if rows else 1, w if columns else 1)
    kind = "mean" if call.op == "sum" else call.op
    if window != (1, 1):
        node = builder.affine(f"{name}.sign", node, -1.0, 0.0) if kind in ("amin", "min") else node
        shape = (c, h // window[0], w // window[1])
        pool = ir.AvgPool if kind == "mean" else ir.MaxPool
        node = pool(name, [node], shape, window, window, (0, 0))
        node = builder.affine(f"{name}.sign", node, -1.0, 0.0) if kind in ("amin", "min") else node
    if channels is not None:
        node = _over_channels(builder, name, node, kind, *channels)
    if call.op == "sum":
        count = math.prod(window) * (channels[1] if channels is not None else 1)
        node = builder.affine(f"{name}.sum", node, float(count), 0.0)
    if node.shape != frame(call.shape):
        raise RefusedError(f"{call.op} over dimensions {sorted(dims)} of {tuple(x.shape)} is not supported")
    return node


def _dims(call: Call) -> set[int]:
    rank = len(call.args[0].shape)
    dims = call.arg(1, "dim")
    if dims is None or dims == []:
        return set(range(rank))
    return {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()


def _whole_reduction(call: Call) -> tuple[Value, set[int]]:
    """mean(3) and then mean(2) are one over rows and columns; so is one over pixels in a row."""
    x, dims = call.args[0], _dims(call)
    inner = x if isinstance(x, Call) and x.op == call.op and not x.output else None
    if inner is not None and len(x.shape) == 3 and dims == {2} and _dims(inner) == {3}:
        return inner.args[0], {2, 3}
    whole = x.whole() if isinstance(x, Arranged) else None
    if whole is not None and len(x.shape) == 3 and len(whole.shape) == 4 and x.shape[:2] == whole.shape[:2]:
        dims = {d for d in dims if d < 2} | ({2, 3} if 2 in dims else set())
        return whole, dims
    return x, dims


def _axes(x: Value, dims: set[int]) -> tuple[tuple[int, int, int] | None, bool, bool]:
    """The channels that are reduced, as groups, their size and channels after them; whether rows and columns are."""
    rank = len(x.shape)
    first = 1 if rank > 1 and x.shape[0] == 1 else 0
    inner = {2: (first,), 3: (first, rank - 1)}.get(rank - first + 1, (*range(first, rank - 2),))
    spatial = [d for d in range(first, rank) if d not in inner]
    if rank - first == 2:
        inner, spatial = (first,), [rank - 1]
    reduced = [d for d in inner if d in dims]
    rows = len(spatial) == 2 and spatial[0] in dims
    columns = bool(spatial) and spatial[-1] in dims
    if not reduced:
        return None, rows, columns
    if reduced != list(range(reduced[0], reduced[-1] + 1)):
        raise RefusedError(f"reducing dimensions {sorted(dims)} is not supported")
    groups = math.prod(x.shape[d] for d in inner if d < reduced[0])
    size = math.prod(x.shape[d] for d in reduced)
    after = math.prod(x.shape[d] for d in inner if d > reduced[-1])
    return (groups, size, after), rows, columns


def _over_channels(
    builder: GraphBuilder, name: str, x: ir.Node, kind: str, groups: int, size: int, after: int
) -> ir.Node:
    """Of channels (groups, size, after) those of `size`."""
    c, h, w = x.shape
    if size == 1:
        return x
    members = np.arange(c).reshape(groups, size, after)
    if kind == "mean":
        weight = np.zeros((groups * after, c), np.float32)
        np.put_along_axis(weight, members.transpose(0, 2, 1).reshape(-1, size), 1.0, axis=1)
        total = ir.Conv(
            f"{name}.channels", [x], (groups * after, h, w), (1, 1), (1, 1), (0, 0), weight[:, :, None, None]
        )
        return builder.affine(name, total, 1.0 / size, 0.0)
    if size > _MOST_REPEATS:
        raise RefusedError(f"{kind} over {size} channels is not supported; the limit is {_MOST_REPEATS}")
    rows, columns, shape = np.arange(h), np.arange(w), (groups * after, h, w)
    parts: list[ir.Node] = [
        ir.Gather(f"{name}.{i}", [x], shape, members[:, i].reshape(-1), rows, columns) for i in range(size)
    ]
    return largest(builder, name, parts, kind in ("amin", "min"))


# Resizing.


@handles("upsample_bilinear2d")
def _bilinear(builder: GraphBuilder, call: Call) -> ir.Node:
    x, shape = builder.node(call.args[0]), frame(call.shape)
    corners = bool(call.args[2])
    factors = call.arg(3, "scales_h"), call.arg(4, "scales_w")
    scales = factors[0] if isinstance(factors[0], (list, tuple)) else factors
    index: list[np.ndarray] = []
    for n, m, scale in zip(x.shape[1:], shape[1:], scales or (None, None)):
        if corners:
            at = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
        else:
            at = np.maximum((np.arange(m) + 0.5) * (1 / scale if scale else n / m) - 0.5, 0.0)
        whole = np.minimum(np.floor(at), n - 1)
        index += [whole.astype(int), np.where(whole >= n - 1, 0.0, at - whole)]
    return ir.Bilinear(call.where.name, [x], shape, *index)
