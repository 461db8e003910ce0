"""Every value of a recording as a function of another one: sums in which terms cancel, and piecewise linear functions.

`Functions.of` gives the value that another one is computed from by elementwise operations with constants, and the
function. Straight-through estimators vanish here, because they add and subtract the same value. `Functions.step` finds
values with two levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ovsw.export.frontend.piecewise import COMPARISONS, ROUNDINGS, Piecewise
from ovsw.export.frontend.recorder import Recording
from ovsw.export.frontend.values import (
    ELEMENTWISE,
    Arranged,
    Call,
    Value,
    array,
    is_value,
    names,
    numbers_of,
    per_channel,
)

_INF = float("inf")
_IDENTITY = Piecewise.line(1.0, 0.0)

# Increasing functions: f(x) and t compare as x and the inverse at t do.
_INVERSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.arctanh,
    "sigmoid": lambda t: np.log(t) - np.log1p(-t),
    "exp": np.log,
    "expm1": np.log1p,
    "log1p": np.expm1,
    "atan": np.tan,
    "asin": np.sin,
    "sinh": np.arcsinh,
    "sqrt": np.square,
}
_KEEPS_SIGN = names("erf silu gelu mish selu elu celu tanh atan asin sinh expm1 log1p")
_NOT_NEGATIVE = names("abs relu sqrt square std var linalg_vector_norm norm exp sigmoid softplus rsqrt cosh")
_POSITIVE = names("exp sigmoid softplus rsqrt cosh std var linalg_vector_norm norm reciprocal")
_KEEPS_BOUNDS = names("max_pool2d_with_indices amax amin max min mean adaptive_max_pool2d")
_POOLS_MAX = names("max_pool2d_with_indices adaptive_max_pool2d")
_BINARY = names("mul div maximum minimum heaviside copysign")
_CLAMPS = names("hardtanh relu6 clamp clamp_min clamp_max")
_ACTIVATIONS = _CLAMPS | names("relu leaky_relu _prelu_kernel rrelu_with_noise")
_LOGIC = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.logical_and,
    "bitwise_or": np.logical_or,
    "bitwise_xor": np.logical_xor,
}


@dataclass
class Step:
    """A step: `hi` where `of` > 0, `lo` where `of` < 0, `zero` where it is 0; each is one number or one per channel."""

    of: Value
    lo: np.ndarray
    hi: np.ndarray
    zero: np.ndarray

    @property
    def strict(self) -> bool:
        """Whether 0 counts as negative; where it is neither, as with torch.sign, it is positive."""
        return bool(np.array_equal(self.zero, self.lo) and not np.array_equal(self.lo, self.hi))

    @property
    def uniform(self) -> bool:
        return self.lo.size == self.hi.size == 1


@dataclass
class _Sum:
    """Values times constants, plus a constant. `cancelled`: a value was in it that is in it no more.

    `parts` is the same as it was written, its values not resolved into sums themselves.
    """

    terms: dict[Value, np.ndarray]
    constant: np.ndarray
    cancelled: bool = False
    parts: tuple[list[tuple[Value, np.ndarray]], np.ndarray] | None = None


class Functions:
    """All values of a recording as functions of others.

    `near` describes them as functions of activations that nodes compute anyway. For example, the sign of a clamped
    stream reads the clamp's result and not its input, so that the input need not be stored as well.
    """

    def __init__(self, recording: Recording, whole: Functions | None = None) -> None:
        self.next, self.whole = recording.numbers, whole
        self.near = Functions(recording, self) if whole is None else None
        self.sums: dict[Value, _Sum] = {}
        self.known: dict[Value, tuple[Value, Piecewise]] = {}
        self.lines: dict[Value, list[Value]] = {}
        self.steps: dict[Value, Step | None] = {}
        self.extremes: dict[Value, tuple[float, float]] = {}
        for call in recording.calls:  # in their order, so that no recursion goes deep
            if call.op != "constant":
                self.of(call)

    def call(self, op: str, args: tuple[Any, ...], like: Value, call: Value, **more: Any) -> Call:
        """Makes an operation that is not in the network, with the shape of `like` and the name of `call`."""
        if self.whole is not None:
            return self.whole.call(op, args, like, call, **more)
        new = Call(op, args, {}, like.shape, call.where, self.next, **more)
        self.next += new.size
        return new

    # Sums.

    def sum(self, value: Value) -> _Sum:
        if value not in self.sums:
            self.sums[value] = self._sum(value) or _Sum({value: np.ones(1)}, np.zeros(1))
        return self.sums[value]

    def _sum(self, call: Value) -> _Sum | None:
        if not isinstance(call, Call) or call.dtype == torch.bool:
            return None
        if call.op == "neg":
            return self._weighted(call, [(call.args[0], -1.0)])
        if call.op in ("add", "sub", "rsub"):
            x, y = call.args[:2]
            alpha = float(call.arg(2, "alpha", 1))
            signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op]
            return self._weighted(call, [(x, signs[0]), (y, signs[1])])
        if call.op in ("mul", "div") and not call.kwargs.get("rounding_mode"):
            x, y = call.args[:2]
            if call.op == "mul" and not is_value(x):
                x, y = y, x
            factor = None if is_value(y) or not is_value(x) else per_channel(y, call.shape)
            if factor is not None and (call.op == "mul" or (factor != 0).all()):
                return self._weighted(call, [(x, factor if call.op == "mul" else 1.0 / factor)])
        return None

    def _weighted(self, call: Call, parts: list[tuple[Any, Any]]) -> _Sum | None:
        terms: dict[Value, np.ndarray] = {}
        written: list[tuple[Value, np.ndarray]] = []
        constant, own_constant, cancelled = np.zeros(1), np.zeros(1), False
        for part, factor in parts:
            if not is_value(part):
                number = per_channel(part, call.shape)
                if number is None:
                    return None
                constant, own_constant = constant + number * factor, own_constant + number * factor
                continue
            if part.shape != call.shape:
                return None
            written.append((part, np.atleast_1d(factor)))
            inner = self.sum(part)
            cancelled |= inner.cancelled
            constant = constant + inner.constant * factor
            for value, weight in inner.terms.items():
                terms[value] = terms.get(value, np.zeros(1)) + weight * factor
        left = {value: weight for value, weight in terms.items() if (np.abs(weight) > 1e-12).any()}
        return _Sum(left, constant, cancelled or len(left) < len(terms), (written, own_constant))

    # Functions.

    def of(self, value: Value) -> tuple[Value, Piecewise]:
        """The value that this one is a function of, and that function."""
        if value not in self.known:
            self.known[value] = (value, _IDENTITY)  # unless more is found
            result = self._of(value)
            if result is not None:
                source, f = self._peeled(*result)
                lo, hi = self.bounds(source)
                if not f.is_line and max(lo, -hi) > -_INF:
                    f = f.bounded(lo, hi)
                self.known[value] = (source, f)
                if f.is_line:
                    self.lines.setdefault(source, []).append(value)
        return self.known[value]

    def _of(self, value: Value) -> tuple[Value, Piecewise] | None:
        if isinstance(value, Arranged):
            return self._arranged(value)
        total = self.sum(value)
        if value not in total.terms:
            return self._of_sum(value, total)
        op, x = value.op, value.args[0] if value.args else None
        if self.whole is not None and op in _ACTIVATIONS and is_value(x) and not self.of(x)[1].is_step:
            return None
        if op in _POOLS_MAX and value.output == 0:
            return self._pooled(value)
        if op == "where":
            return self._chosen(value, *value.args[:3])
        if len(value.args) > 1 and op in (*COMPARISONS, *_LOGIC, *_BINARY):
            return self._of_two(value, op, *value.args[:2])
        if not is_value(x) or x.shape != value.shape:
            return None
        source, f = self.of(x)
        g = self._ofone(value, op, f)
        return None if g is None else (source, g)

    def _of_sum(self, call: Call, total: _Sum) -> tuple[Value, Piecewise] | None:
        if not total.terms:
            any_value = next(a for a in call.args if is_value(a))
            return self.of(any_value)[0], Piecewise.line(0.0, total.constant)
        forms = [(list(total.terms.items()), total.constant)]
        if total.parts is not None and not total.cancelled:
            forms.insert(0, total.parts)
        for terms, constant in forms:
            parts = [(*self.of(value), weight) for value, weight in terms]
            if all(source is parts[0][0] for source, _, _ in parts):
                f = Piecewise.line(0.0, constant)
                for _, g, weight in parts:
                    f = f + g.scaled(weight)
                return parts[0][0], f
        return None

    def _ofone(self, call: Call, op: str, f: Piecewise) -> Piecewise | None:
        """Operations on one value, with constants."""
        a = call.args
        if op in ("sign", "sgn"):
            return f.sign()
        if op == "abs":
            return f.bent(-1.0)
        if op == "relu":
            return f.bent(0.0)
        if op in ("leaky_relu", "_prelu_kernel", "rrelu_with_noise"):
            slope = slope_of(call)
            return None if slope is None else f.bent(slope)
        if op in _CLAMPS:
            limits = limits_of(call)
            return None if limits is None else f.clamped(*limits)
        if op == "hardsigmoid":
            return f.scaled(1 / 6, 0.5).clamped(0.0, 1.0)
        if op == "threshold" and not is_value(a[2]):
            return Piecewise.choice(f.compared("gt", float(a[1])), f, Piecewise.line(0.0, float(a[2])))
        if op in ("hardshrink", "softshrink"):
            size = float(call.arg(1, "lambd", 0.5))
            outside = f.compared("gt", size) + f.compared("lt", -size)
            kept = f if op == "hardshrink" else f + f.clamped(-size, size).scaled(-1.0)
            return Piecewise.choice(outside, kept, Piecewise.line(0.0, 0.0))
        if op in ROUNDINGS or op == "fix":
            decimals = call.arg(1, "decimals", 0)
            within = f.clamped(*self.bounds(call.args[0]))
            return None if decimals else within.rounded("trunc" if op == "fix" else op)
        if op in ("logical_not", "bitwise_not"):
            return f.compared("eq", 0.0) if op == "logical_not" or call.dtype == torch.bool else None
        if op == "positive":
            return f
        if f.is_step and op in ELEMENTWISE:
            return f.mapped(lambda levels: _evaluated(call, levels))
        return None

    def _of_two(self, call: Call, op: str, x: Any, y: Any) -> tuple[Value, Piecewise] | None:
        """Operations on two values, or on one and a constant."""
        if op in COMPARISONS and is_value(x) and is_value(y) and x.shape == y.shape == call.shape:
            return self._compared_values(call, op, x, y)
        if not is_value(x) and op in COMPARISONS:
            x, y, op = y, x, {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}.get(op, op)
        pair = self._on_one_source(call, x, y)
        if pair is None:
            return None
        source, f, g = pair
        if op in COMPARISONS:
            difference = f + g.scaled(-1.0)
            return source, difference.compared(op, 0.0)
        if op in _LOGIC:
            result = f.of_levels(g, lambda a, b: _LOGIC[op](a, b).astype(float))
        elif op == "heaviside":
            result = Piecewise.choice(f.compared("eq", 0.0), g, f.compared("gt", 0.0))
        elif op == "copysign":
            result = g.compared("ge", 0.0).scaled(2.0, -1.0).times(f.bent(-1.0))
        elif op in ("mul", "div"):
            result = f.times(g) if op == "mul" else f.over(g)
        else:
            difference = f + g.scaled(-1.0)
            over = difference.bent(0.0)  # max(f, g) = g + relu(f - g)
            result = g + over if op == "maximum" else f + over.scaled(-1.0)
        return None if result is None else (source, result)

    def _compared_values(self, call: Call, op: str, x: Value, y: Value) -> tuple[Value, Piecewise] | None:
        """x > y is x - y > 0."""
        difference = self.call("sub", (x, y), x, call)
        source, f = self.of(difference)
        return source, f.compared(op, 0.0)

    def _on_one_source(self, call: Call, *operands: Any) -> tuple[Any, ...] | None:
        """The source that all operands are functions of, followed by these functions."""
        functions: list[tuple[Value | None, Piecewise]] = []
        for operand in operands:
            if is_value(operand):
                if operand.shape != call.shape:
                    return None
                functions.append(self.of(operand))
            else:
                number = per_channel(operand, call.shape)
                if number is None:
                    return None
                functions.append((None, Piecewise.line(0.0, number)))
        sources = {source for source, _ in functions if source is not None}
        return (sources.pop(), *(f for _, f in functions)) if len(sources) == 1 else None

    def _chosen(self, call: Call, condition: Any, yes: Any, no: Any) -> tuple[Value, Piecewise] | None:
        operands = self._on_one_source(call, condition, yes, no)
        if operands is None or not operands[1].is_step:
            return None
        return operands[0], Piecewise.choice(*operands[1:])

    def _pooled(self, call: Call) -> tuple[Value, Piecewise] | None:
        """The largest of two levels is the level of the largest."""
        step = self.step(call.args[0])
        if step is None or not step.uniform:
            return None
        pooled, f = step.of, _function(step)
        if step.hi < step.lo:
            pooled, f = (
                self.call("affine", (pooled, np.array([-1.0]), np.zeros(1)), pooled, call),
                f.through(np.array([-1.0]), np.zeros(1)),
            )
        return self.call(call.op, (pooled, *call.args[1:]), call, call), f

    def _arranged(self, value: Arranged) -> tuple[Value, Piecewise] | None:
        """Levels that were moved are the levels of what was moved."""
        which, place = value.located()
        steps = [None if source.op == "constant" else self.step(source) for source in value.sources]
        levels = [step for step in steps if step is not None and step.uniform]
        if len(levels) < sum(source.op != "constant" for source in value.sources):
            return None
        first = levels[0]
        if any((s.lo, s.hi, s.zero) != (first.lo, first.hi, first.zero) for s in levels):
            return None
        index = np.empty(value.shape, np.int64)
        sources: dict[int, Call] = {}
        for i, (source, step) in enumerate(zip(value.sources, steps)):
            here = which == i
            if step is None:
                constants = array(source.args[0]).reshape(-1)[place[here]]
                if not np.isin(constants, [first.lo[0], first.hi[0]]).all():
                    return None
                signs = torch.from_numpy(np.where(constants == first.hi[0], 1.0, -1.0))
                new: Value = self.call("constant", (signs,), replace(source, shape=tuple(signs.shape)), value)
                index[here] = numbers_of(new)
            else:
                new = step.of
                index[here] = numbers_of(new)[place[here]]
            sources.update({s.start: s for s in (new.sources if isinstance(new, Arranged) else [new])})
        moved = Arranged(index, [sources[start] for start in sorted(sources)], value.where)
        return moved, _function(first)

    def _peeled(self, source: Value, f: Piecewise) -> tuple[Value, Piecewise]:
        """Removes operations that do not change a step: sign(tanh(x)) is sign(x), and so is sign(x / std)."""
        while f.is_step and not f.is_line and isinstance(source, Call) and source.args:
            x, finite = source.args[0], f.breaks[np.isfinite(f.breaks)]
            at_zero = not finite.any()
            if not is_value(x) or x.shape != source.shape:
                break
            if source.op in ("div", "mul") and at_zero and is_value(source.args[1]):
                if self.bounds(source.args[1])[0] < 0 or (source.op == "mul" and not self._is_positive(source.args[1])):
                    break
                source, f = self._composed(x, f)
            elif source.op in _KEEPS_SIGN and at_zero:
                source, f = self._composed(x, f)
            elif source.op in _INVERSES:
                with np.errstate(all="ignore"):
                    breaks = np.where(np.isfinite(f.breaks), _INVERSES[source.op](f.breaks), np.inf)
                if not np.isfinite(breaks[np.isfinite(f.breaks)]).all():
                    break
                source, f = self._composed(x, replace(f, breaks=breaks))
            else:
                break
        return source, f

    def _is_positive(self, value: Value) -> bool:
        """Whether a value is always above 0, by its bounds or by its operation."""
        return self.bounds(value)[0] > 0 or (isinstance(value, Call) and value.op in _POSITIVE)

    def _composed(self, x: Value, step: Piecewise) -> tuple[Value, Piecewise]:
        """step(g(y)) where x = g(y)."""
        source, g = self.of(x)
        if source is x:
            return x, step
        result = Piecewise.line(0.0, step.offset[0])
        for k in range(len(step.breaks)):
            level, off = step.breaks[k], ~np.isfinite(step.breaks[k])
            level = np.where(off, 0.0, level)
            rise = np.where(off, 0.0, step.offset[k + 1] - step.offset[k])
            there = np.where(off, 0.0, step.at[k] - step.offset[k])
            result = result + g.compared("gt", level).scaled(rise) + g.compared("eq", level).scaled(there)
        return source, result

    # Steps.

    def step(self, value: Value) -> Step | None:
        """A value of two levels as the sign of another one that the network has, or of one that is shifted."""
        if value not in self.steps:
            near = None if self.near is None else self.near.step(value)
            self.steps[value] = near or self._step(value)
        return self.steps[value]

    def _step(self, value: Value) -> Step | None:
        source, f = self.of(value)
        if not f.is_step or len(f.breaks) != 1:
            return None
        if (np.isfinite(f.breaks[0]) & (f.offset[0] == f.offset[1]) & (f.at[0] != f.offset[0])).any():  # x == 0, x != 0
            return None
        best: Step | None = None
        for candidate in [source, *self.lines.get(source, [])]:
            line = self.of(candidate)[1] if candidate is not source else _IDENTITY
            step = _at_zero(candidate, f, line)
            if step is not None and (best is None or step.uniform > best.uniform or _rises(step) > _rises(best)):
                best = step
        if best is not None:
            return best
        t = f.breaks[0]
        some = np.isfinite(t)  # elsewhere it is the lower level for every x
        scale, offset = some.astype(float), np.where(some, -np.where(some, t, 0.0), -1.0)
        shifted = self.call("affine", (source, scale, offset), source, value)
        return Step(shifted, one(f.offset[0]), one(np.where(some, f.offset[1], f.offset[0])), one(f.at[0]))

    # Bounds.

    def bounds(self, value: Value) -> tuple[float, float]:
        """A lower and an upper bound of a value."""
        if value not in self.extremes:
            self.extremes[value] = (-_INF, _INF)
            self.extremes[value] = self._bounds(value)
        return self.extremes[value]

    def _bounds(self, value: Value) -> tuple[float, float]:
        if isinstance(value, Arranged):
            parts = [_extremes(s.args[0]) if s.op == "constant" else self.bounds(s) for s in value.sources]
            return min(lo for lo, _ in parts), max(hi for _, hi in parts)
        source, f = self.known.get(value, (value, _IDENTITY))
        if source is not value:
            return _range(f, *self.bounds(source))
        op, x = value.op, value.args[0] if value.args else None
        if op in _NOT_NEGATIVE or (op == "pow" and value.args[1] in (2, 4)):
            return 0.0, 1.0 if op == "sigmoid" else _INF
        if op in ("_softmax", "hardsigmoid"):
            return 0.0, 1.0
        if op in _CLAMPS and is_value(x) and (limits := limits_of(value)) is not None:
            lo, hi = self.bounds(x)
            least, most = limits
            return float(np.clip(lo, least, most).min()), float(np.clip(hi, least, most).max())
        if op in _KEEPS_BOUNDS and is_value(x) and value.output == 0:
            return self.bounds(x)
        if op in ("avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d") and is_value(x):
            lo, hi = self.bounds(x)
            return min(lo, 0.0), max(hi, 0.0)
        if op in ("add", "sub", "mul") and len(value.args) > 1:
            (a, b), (c, d) = (self.bounds(v) if is_value(v) else _extremes(v) for v in value.args[:2])
            if op == "mul":
                return (0.0, _INF) if a >= 0 and c >= 0 else (-_INF, _INF)
            alpha = float(value.arg(2, "alpha", 1)) * (1 if op == "add" else -1)
            return (a + min(alpha * c, alpha * d), b + max(alpha * c, alpha * d)) if alpha else (a, b)
        return -_INF, _INF


def limits_of(call: Call) -> tuple[np.ndarray, np.ndarray] | None:
    """The limits of a clamp, if they are constant."""
    bounds = {
        "relu6": (0.0, 6.0),
        "hardtanh": (call.arg(1, "min_val", -1.0), call.arg(2, "max_val", 1.0)),
        "clamp": (call.arg(1, "min"), call.arg(2, "max")),
        "clamp_min": (call.arg(1, "min"), None),
        "clamp_max": (None, call.arg(1, "max")),
    }[call.op]
    if any(is_value(bound) for bound in bounds):
        return None
    lo, hi = (
        per_channel(unlimited if bound is None else bound, call.shape)
        for bound, unlimited in zip(bounds, (-_INF, _INF))
    )
    return None if lo is None or hi is None else (lo, hi)


def slope_of(call: Call) -> np.ndarray | None:
    if call.op == "rrelu_with_noise":
        return np.array([(float(call.arg(2, "lower", 1 / 8)) + float(call.arg(3, "upper", 1 / 3))) / 2])
    slope = call.arg(1, "negative_slope", 0.01)
    return None if is_value(slope) else per_channel(slope, call.shape)


def _evaluated(call: Call, levels: np.ndarray) -> np.ndarray:
    """Any elementwise operation on constants: torch computes it."""
    rest = [torch.as_tensor(per_channel(a, call.shape)) if isinstance(a, torch.Tensor) else a for a in call.args[1:]]
    result = getattr(torch.ops.aten, call.op)(torch.from_numpy(np.array(levels)), *rest, **call.kwargs)
    return result.double().numpy()


def _function(step: Step) -> Piecewise:
    lo, hi, zero = np.broadcast_arrays(step.lo, step.hi, step.zero)
    return Piecewise(np.zeros((1, len(lo))), np.zeros((2, len(lo))), np.stack([lo, hi]), zero[None])


def _at_zero(candidate: Value, f: Piecewise, line: Piecewise) -> Step | None:
    """The step as one of `candidate`, a linear function of its source, if it jumps where `candidate` is 0."""
    width = max(f.channels, line.channels)
    f, line = f.widened(width), line.widened(width)
    a, b, t = line.slope[0], line.offset[0], f.breaks[0]
    fixed = (a == 0) | ~np.isfinite(t)  # channels in which the candidate is constant, or the step is
    there = np.where(fixed, 0.0, a * np.where(fixed, 0.0, t) + b)
    if (np.abs(there) > 1e-11 * (1.0 + np.abs(b))).any() or (np.isinf(t) & (a != 0)).any() or fixed.all():
        return None
    below, above = np.where(a < 0, f.offset[1], f.offset[0]), np.where(a < 0, f.offset[0], f.offset[1])
    lo, hi, zero = (one(v[~fixed]) for v in (below, above, f.at[0]))
    if fixed.any():  # there the sign of a constant has to give the level
        if lo.size > 1 or hi.size > 1:
            return None
        value = f(np.zeros(width))
        if not np.array_equal(np.where(b < 0, lo, hi)[fixed], value[fixed]):
            return None
    return Step(candidate, lo, hi, zero)


def _rises(step: Step) -> bool:
    return bool((step.lo < step.hi).all())


def one(levels: np.ndarray) -> np.ndarray:
    """One number, if all channels have the same."""
    return levels[:1].copy() if levels.size and (levels == levels[0]).all() else np.array(levels)


def _extremes(constant: Any) -> tuple[float, float]:
    a = array(constant)
    return float(a.min()), float(a.max())


def _range(f: Piecewise, lo: float, hi: float) -> tuple[float, float]:
    """The least and the largest value of a function on an interval, or wider bounds."""
    ends = []
    for end, piece in ((lo, 0), (hi, -1)):
        if np.isfinite(end):
            ends.append(f(np.array([end])))
        else:
            slope = f.slope[piece] if f.is_line or piece == 0 else _last(f, f.slope)
            ends.append(
                np.where(slope == 0, _last(f, f.offset) if piece else f.offset[0], np.where(slope < 0, -end, end))
            )
    inner = [*f.beside(), f.at]
    used = np.isfinite(f.breaks) & (f.breaks >= lo) & (f.breaks <= hi)
    values = np.concatenate([np.ravel(e) for e in ends] + [part[used] for part in inner])
    return float(values.min()), float(values.max())


def _last(f: Piecewise, rows: np.ndarray) -> np.ndarray:
    """The slopes or offsets beyond the last break of each channel."""
    last = np.isfinite(f.breaks).sum(axis=0)
    return np.take_along_axis(rows, last[None], 0)[0]
