"""Whether an integer model keeps to docs/numerics.md: kinds, shapes and tensors of its ops, and that no sum overflows.

`check` implements those rules a second time, besides the engine (`csrc/graph`), from the text alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ovsw import format as bnn

INT32 = 2**31 - 1
LOW, HIGH = -32768, 32767
WIDE = 1 << 30  # the largest clamp, level and pad_value in 32 bits, and one more than the largest input of a prelu
MAX_SHIFT, MAX_WIDE_SHIFT, MAX_I32_SHIFT = 31, 47, 62  # of a sum in 32 bits, in 64 bits, and there of an i32 input
OFFSET_UNIT = 65536  # of avgpool and mul over an i32
MAX_MEAN = 256
MAX_TAPS = 65535  # of avgpool
MAX_PAD_VALUE = 1024  # of bconv

WINDOWED = ("bconv", "conv", "maxpool", "avgpool")
DILATED = ("bconv", "conv", "maxpool")
POOLS = ("maxpool", "avgpool")
PAIRED = ("mul", "concat")  # ops whose residual is a second input and is not added
NO_INTEGERS = {"bconv": "bits", "softmax": "f32", "log_softmax": "f32"}  # what they read instead
READS_I32 = ("eltwise", "maxpool", "avgpool", "channel_pad", "concat", "gather", "bilinear", "mul", "to_float")
WRITES_F32 = ("linear", "softmax", "log_softmax", "to_float")
# The tensors of each op besides weight, slope and threshold.
_SUMS = {"scale": "i16", "offset": "i32", "shift": "u8"}
CONSTANTS = {
    "bconv": _SUMS,
    "conv": {"offset": "i32", "shift": "u8"},
    "linear": {"scale": "f32", "offset": "i32", "shift": "u8"},
    "maxpool": {},
    "avgpool": _SUMS,
    "channel_pad": {},
    "eltwise": {},
    "mul": _SUMS,
    "concat": {},
    "gather": {},
    "bilinear": {},
    "softmax": {},
    "log_softmax": {},
    "to_float": {"scale": "f64", "offset": "f64"},
}
WEIGHTS = {
    "bconv": ("bits",),
    "conv": ("i16", "i8"),
    "linear": ("i16", "i8"),
    "gather": ("i32",),
    "bilinear": ("i32",),
}


# --- what the simulation needs too -----------------------------------------------------------------------------------


def zero_points(model: bnn.Model) -> np.ndarray:
    """Each input channel's zero in steps of 1/256 of a pixel's."""
    return np.floor(model.tensors[model.mean].array.astype(np.float64) * 65280 + 0.5).astype(np.int64)


def integers(model: bnn.Model, ref: int | None) -> np.ndarray:
    """A tensor as int64."""
    assert ref is not None  # guaranteed by `check`
    return model.tensors[ref].array.astype(np.int64)


def real_weight(model: bnn.Model, op: bnn.Op) -> np.ndarray:
    """A real convolution's weights; over pixels an i8 counts 256-fold."""
    weight = integers(model, op.weight)
    return 256 * weight if op.input == 0 and model.tensors[op.weight or 0].dtype == "i8" else weight


def two_rows(array: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """A tensor [C'] or [2, C']: its first row, and the second or None."""
    return (array[0], array[1]) if array.ndim == 2 else (array, None)


def is_wide(model: bnn.Model, op: bnn.Op) -> bool:
    """Whether an op computes in 32 bits from end to end. One that writes an i16 does not, whatever its threshold is."""
    if op.out is not None:
        return model.values[op.out].kind == "i32"
    return op.threshold is not None and model.tensors[op.threshold].dtype == "i32"


def stored(number: float) -> float:
    """A clamp or pad_value as a file has it: an f32, in which not every 32-bit integer exists."""
    return float(np.float32(number))


def sides(op: bnn.Op, h: int, w: int) -> tuple[int, int]:
    """Rows and columns of what a window makes of h rows and w columns."""
    result = []
    for n, k, s, p, d in zip((h, w), op.window, op.stride, op.pad, op.dilation):
        free = n + 2 * p - ((k - 1) * d + 1)
        count = (-(-free // s) if op.ceil else free // s) + 1
        if op.ceil and (count - 1) * s >= n + p:  # a window that would start in the padding below
            count -= 1
        result.append(count)
    return result[0], result[1]


# --- the rules -------------------------------------------------------------------------------------------------------


def check(model: bnn.Model) -> None:
    """Raises FormatError, naming the op, where kinds, tensors or bounds are not as docs/numerics.md says."""
    if model.numerics != "integer":
        raise bnn.FormatError(f"numerics is {model.numerics}, expected integer")
    if model.values[0].kind != "u8":
        raise bnn.FormatError(f"value 0 is of kind {model.values[0].kind}, expected u8")
    for what, ref in (("mean", model.mean), ("std", model.std)):
        tensor = model.tensors[ref]
        if tensor.dtype != "f32" or tensor.shape != (model.values[0].c,):
            raise bnn.FormatError(
                f"header field {what} is {tensor.dtype} {tensor.shape}, expected f32 per input channel"
            )
    mean, std = (model.tensors[ref].array for ref in (model.mean, model.std))
    if not (np.abs(mean) <= MAX_MEAN).all():
        raise bnn.FormatError(f"header field mean is {mean}, expected numbers of at most {MAX_MEAN}")
    if not (np.isfinite(std) & (std > 0)).all():
        raise bnn.FormatError(f"header field std is {std}, expected positive numbers")
    checker = Checker(model)
    for i, op in enumerate(model.ops):
        checker.op(i, op)
    if len(set(model.outputs)) < len(model.outputs):
        raise bnn.FormatError(f"header field output: the values {model.outputs} are not distinct")
    for output in model.outputs:
        if model.values[output].kind != "f32":
            raise bnn.FormatError(f"header field output: value {output} is not of kind f32")
    for value in range(len(model.values)):
        if value not in checker.most:
            raise bnn.FormatError(f"value {value} is never written")


@dataclass
class Checker:
    """Walks the ops; `most` has the largest |x| of every value written so far, of f32 and bits 0."""

    model: bnn.Model
    most: dict[int, int] = field(default_factory=lambda: {0: 255})
    label: str = ""

    def require(self, condition: object, message: str) -> None:
        if not condition:
            raise bnn.FormatError(f"{self.label}: {message}")

    def op(self, i: int, op: bnn.Op) -> None:
        self.label = f"op {i} '{op.name}'"
        self.require(op.kind in CONSTANTS, f"{op.kind} has no place in an integer file")
        self.inputs(op)
        self.window(op)
        shape = self.result(op)
        self.tensors(op, shape)
        self.outputs(op, shape)
        self.activation(op)
        u = self.largest(op)
        if op.residual is not None and op.kind not in PAIRED:
            u += self.most[op.residual]
            self.require(u <= INT32, "its sum with the residual may overflow 32 bits")
        most = self.largest_wide(op, u) if is_wide(self.model, op) else self.largest_stored(op)
        for ref in (op.out, op.bits):
            if ref is not None:
                self.most[ref] = most if self.model.values[ref].kind in ("i16", "i32") else 0

    def inputs(self, op: bnn.Op) -> None:
        values = self.model.values
        for what, ref in (("input", op.input), ("residual", op.residual)):
            self.require(ref is None or ref in self.most, f"{what} {ref} is not written yet")
        kind = values[op.input].kind
        expected = ["i16", "i32"] if op.kind in READS_I32 else ["i16"]
        if op.kind in NO_INTEGERS:
            expected = [NO_INTEGERS[op.kind]]
        if op.kind == "conv" and op.input == 0:
            expected = ["u8"]
        self.require(kind in expected, f"reads a value of kind {kind}, expected {' or '.join(expected)}")
        if op.kind in PAIRED:
            self.require(op.residual is not None, f"residual is missing, the second input of {op.kind}")
        if op.residual is not None:
            allowed = {"mul": ("i16",), "concat": (kind,)}.get(op.kind, ("i16", "i32"))
            second = values[op.residual].kind
            self.require(second in allowed, f"the residual is of kind {second}, expected {' or '.join(allowed)}")
            self.require(op.kind not in WRITES_F32, f"has a residual, which {op.kind} does not take")

    def window(self, op: bnn.Op) -> None:
        _, h, w = self.model.values[op.input].shape
        none = op.window == op.stride == op.dilation == (1, 1) and op.pad == (0, 0)
        self.require(none or op.kind in WINDOWED, f"has a window, which {op.kind} does not take")
        self.require(op.dilation == (1, 1) or op.kind in DILATED, f"has a dilation, which {op.kind} does not take")
        self.require(not op.ceil or op.kind in POOLS, f"has the flag ceil, which {op.kind} does not take")
        averages = op.kind == "avgpool"
        self.require(not op.exclude_pad or averages, f"has the flag exclude_pad, which {op.kind} does not take")
        self.require(op.channels == (0, 0) or op.kind == "channel_pad", f"has channels to pad, not a {op.kind}'s")
        for n, k, s, p, d in zip((h, w), op.window, op.stride, op.pad, op.dilation):
            extent = (k - 1) * d + 1
            self.require(k > 0 and s > 0 and 1 <= d <= 256, f"window {k}, stride {s} or dilation {d} is out of range")
            self.require(extent <= n + 2 * p, f"its window of {extent} does not fit in {n} with a padding of {p}")
            half = op.kind in POOLS
            most = k // 2 if half else extent - 1
            self.require(
                p <= most, f"a padding of {p} is {'more than half' if half else 'not smaller than'} its window"
            )
            empty = op.kind == "maxpool" and p and d > n
            self.require(not empty, f"a window with a padding of {p} and a dilation of {d} has no tap within {n}")

    def result(self, op: bnn.Op) -> tuple[int, int, int]:
        """The shape of what the op computes."""
        model = self.model
        c, h, w = model.values[op.input].shape
        written = op.bits if op.out is None else op.out
        self.require(written is not None, "writes nothing")
        if op.kind in ("gather", "bilinear"):
            shape = model.values[written or 0].shape
            return shape if op.kind == "gather" else (c, *shape[1:])
        if op.kind in ("bconv", "conv", "linear"):
            self.require(op.weight is not None, "weight is missing")
            c = model.tensors[op.weight or 0].shape[0]
            return (c, 1, 1) if op.kind == "linear" else (c, *sides(op, h, w))
        if op.kind == "concat":
            return (c + model.values[op.residual or 0].c, h, w)
        return (c + sum(op.channels), *sides(op, h, w))

    def tensors(self, op: bnn.Op, result: tuple[int, int, int]) -> None:
        """Presence, dtypes and shapes, and what is in those that are no sums."""
        model = self.model
        channels, rows, columns = result
        refs = {key: getattr(op, key) for key in ("weight", "scale", "offset", "shift", "slope", "threshold")}
        expected: dict[str, tuple[str, ...]] = {key: (dtype,) for key, dtype in CONSTANTS[op.kind].items()}
        if op.kind in WEIGHTS:
            expected["weight"] = WEIGHTS[op.kind]
        whole = ("i32",) if is_wide(model, op) else ("i16",)
        if op.kind == "bconv":
            expected["scale"] = whole
        if op.act in ("prelu", "table"):
            expected["slope"] = whole
        if op.threshold is not None and op.bits is not None:
            expected["threshold"] = whole
        shapes: dict[str, list[tuple[int, ...]]] = {}
        shapes["scale"] = [(1,)] if op.kind == "linear" else [(channels,)] + [(2, channels)] * (op.kind == "bconv")
        shapes["slope"] = [(257,)] if op.act == "table" else [(channels,), (2, channels)]
        for key, ref in refs.items():
            fault = "is missing" if ref is None else "has no place here"
            self.require((ref is not None) == (key in expected), f"{key} {fault}")
            if ref is None:
                continue
            tensor, dtypes = model.tensors[ref], expected[key]
            self.require(tensor.dtype in dtypes, f"{key} is {tensor.dtype}, expected {' or '.join(dtypes)}")
            fits = key == "weight" or tensor.shape in shapes.get(key, [(channels,)])
            self.require(fits, f"{key} has shape {tensor.shape}")
            finite = tensor.dtype not in ("f32", "f64") or np.isfinite(tensor.array).all()
            self.require(finite, f"{key} holds NaN or infinity")
        if op.kind in ("bconv", "conv", "linear"):
            self.weight(op)
        elif op.kind == "gather":
            self.gather(op, (channels, rows, columns))
        elif op.kind == "bilinear":
            self.bilinear(op, (rows, columns))
        if op.kind == "linear":
            scale = model.tensors[refs["scale"]].array[0]
            self.require(scale > 0, f"scale is {scale}, expected a positive number")

    def weight(self, op: bnn.Op) -> None:
        c, h, w = self.model.values[op.input].shape
        shape = self.model.tensors[op.weight or 0].shape
        tail = (h * w * c,) if op.kind == "linear" else op.window
        fits = shape[1 : 1 + len(tail)] == tail and len(shape) == (2 if op.kind == "linear" else 4)
        self.require(fits, f"weight has shape {shape}, expected {tail} after the first dimension")
        if op.kind != "linear":
            per_group = shape[3]
            self.require(c % per_group == 0, f"weight has {per_group} input channels, which do not divide {c}")
            groups = c // per_group
            self.require(shape[0] % groups == 0, f"{shape[0]} output channels are no multiple of {groups} groups")

    def gather(self, op: bnn.Op, result: tuple[int, int, int]) -> None:
        index = integers(self.model, op.weight)
        self.require(index.shape == (sum(result),), f"weight has shape {index.shape}, expected ({sum(result)},)")
        parts = np.split(index, np.cumsum(result)[:2])
        for what, part, n in zip(("channel", "row", "column"), parts, self.model.values[op.input].shape):
            inside = part.min() >= -1 and part.max() < n
            self.require(inside, f"weight names {what}s {part.min()} to {part.max()}, expected -1 to {n - 1}")
        wide = self.model.values[op.input].kind == "i32"
        self.require_whole(wide, f"pad_value is {op.pad_value}", op.pad_value)

    def bilinear(self, op: bnn.Op, result: tuple[int, int]) -> None:
        table = integers(self.model, op.weight)
        length = 2 * sum(result)
        self.require(table.shape == (length,), f"weight has shape {table.shape}, expected ({length},)")
        _, h, w = self.model.values[op.input].shape
        for what, part, n in zip(("row", "column"), np.split(table, [2 * result[0]]), (h, w)):
            index, fraction = part[::2], part[1::2]
            last = index + (fraction != 0)
            reads = index.min() >= 0 and last.max() < n
            self.require(reads, f"weight reads {what}s {index.min()} to {last.max()}, expected 0 to {n - 1}")
            fits = fraction.min() >= 0 and fraction.max() < 1 << 30
            self.require(fits, f"weight has fractions {fraction.min()} to {fraction.max()}, expected less than 2^30")

    def require_whole(self, wide: bool, message: str, *numbers: float) -> None:
        """Numbers of a record that are compared with, or put among, those of 16 or of 32 bits."""
        low, high = (-WIDE, WIDE) if wide else (LOW, HIGH)
        whole = all(low <= stored(n) <= high and stored(n).is_integer() for n in numbers)
        kind = "16-bit integers" if len(numbers) > 1 else "a 16-bit integer"
        self.require(whole, f"{message}, expected {'whole numbers within 2^30' if wide else kind}")

    def outputs(self, op: bnn.Op, result: tuple[int, int, int]) -> None:
        """Kinds and shapes of what is written and added."""
        values = self.model.values
        kinds = {ref: values[ref].kind for ref in (op.out, op.bits) if ref is not None}
        for ref in kinds:
            self.require(ref not in self.most, f"value {ref} is written twice")
            self.require(values[ref].shape == result, f"value {ref} has shape {values[ref].shape}, expected {result}")
        if op.residual is not None:
            shape = values[op.residual].shape
            if op.kind == "concat":
                fits = shape[1:] == result[1:]
            else:
                fits = shape == result or (op.kind in ("mul", "eltwise") and shape == (result[0], 1, 1))
            self.require(fits, f"the residual has shape {shape}, the result {result}")
        self.require(op.out != op.bits, f"value {op.out} is written twice")
        self.require(op.bits is None or kinds[op.bits] == "bits", "writes bits to a value of another kind")
        plain = op.residual is None and op.act == "none" and op.bits is None
        if op.kind in WRITES_F32:
            self.require(plain, f"{op.kind} writes f32 and has no residual, activation or bits")
        if op.out is not None:
            kind, expected = kinds[op.out], ("f32",) if op.kind in WRITES_F32 else ("i16", "i32")
            self.require(kind in expected, f"writes a value of kind {kind}, expected {' or '.join(expected)}")

    def activation(self, op: bnn.Op) -> None:
        self.require(op.act != "sigmoid", "sigmoid has no place in an integer file")
        wide = is_wide(self.model, op)
        free = op.act != "table" or op.weight is None
        self.require(free, f"has a table, which {op.kind} does not take")
        self.require(op.act != "table" or not wide, "has a table, which no wide op takes")
        if op.act in ("clamp", "step"):
            lo, hi = op.clamp
            self.require_whole(wide, f"clamp_lo is {lo}, clamp_hi {hi}", lo, hi)
            self.require(op.act == "step" or lo <= hi, f"clamp_lo is {lo}, clamp_hi {hi}")

    def largest_stored(self, op: bnn.Op) -> int:
        """X: the largest |x| that the op can store as i16."""
        if op.act in ("clamp", "step"):
            return int(max(abs(n) for n in op.clamp))
        moves = op.kind == "concat" or (op.kind in ("maxpool", "channel_pad", "gather") and op.residual is None)
        return min(self.largest_read(op), -LOW) if op.act == "none" and moves else -LOW

    def largest_wide(self, op: bnn.Op, u: int) -> int:
        """X of an i32: the largest |x| that the op stores where |u| is at most `u`."""
        if op.act in ("clamp", "step"):
            return int(max(abs(stored(n)) for n in op.clamp))
        if op.act == "prelu":
            self.require(u < WIDE, f"may reach {u} before its prelu, expected less than 2^30")
            slope = np.abs(integers(self.model, op.slope))
            return (u * max(int(slope.max()), WIDE if slope.ndim == 1 else 0) >> 30) + 1
        return u

    def largest_read(self, op: bnn.Op) -> int:
        """The largest |q| of an op that only moves numbers."""
        most = self.most[op.input]
        if op.kind == "concat":
            most = max(most, self.most[op.residual or 0])
        return max(most, int(abs(stored(op.pad_value)))) if op.kind == "gather" else most

    def largest(self, op: bnn.Op) -> int:
        """The largest |q| of any channel."""
        reads_i32 = self.model.values[op.input].kind == "i32"
        if op.shift is None:
            return self.largest_read(op) if reads_i32 else -LOW
        shift, offset = integers(self.model, op.shift), np.abs(integers(self.model, op.offset))
        most = MAX_WIDE_SHIFT if op.kind in ("linear", "avgpool", "mul") else MAX_SHIFT
        most = MAX_I32_SHIFT if reads_i32 else most
        self.require(shift.max() <= most, f"shift is {shift.max()}, expected 0 to {most}")
        if op.kind == "linear":
            sums = np.abs(integers(self.model, op.weight)).sum(axis=1)
            return self.fits(((-LOW * sums) >> shift) + 1 + offset)
        if op.kind in ("avgpool", "mul"):
            taps = op.window[0] * op.window[1]
            self.require(taps <= MAX_TAPS, f"has {taps} taps, expected at most {MAX_TAPS}")
            x = self.most[op.input] if reads_i32 else -LOW
            factor = x * (taps if op.kind == "avgpool" else -LOW)  # the sums stay below 2^62
            sums = factor * np.abs(integers(self.model, op.scale)) + offset * (OFFSET_UNIT if reads_i32 else 1)
            return self.fits(_shifted(sums, shift) - LOW)
        sums = offset + (self.binary_sums(op) if op.kind == "bconv" else self.real_sums(op))
        self.fits(sums)
        return int(_shifted(sums.astype(np.int64), shift).max())

    def binary_sums(self, op: bnn.Op) -> np.ndarray:
        scale, window = two_rows(integers(self.model, op.scale))
        self.require(scale.min() >= 0, f"scale is {scale.min()}, expected 0 or more")
        p = abs(stored(op.pad_value))
        self.require(p <= MAX_PAD_VALUE, f"pad_value is {op.pad_value}, expected at most {MAX_PAD_VALUE} in size")
        taps = math.prod(self.model.tensors[op.weight or 0].shape[1:])
        both = scale if window is None else scale + np.abs(window)
        exact = both.astype(object)  # 64 bits do not hold all products with an i32
        return exact * (taps * max(1, math.ceil(p))) + int(not p.is_integer())

    def real_sums(self, op: bnn.Op) -> np.ndarray:
        weight = np.abs(real_weight(self.model, op))
        sums = self.most[op.input] * weight.sum(axis=(1, 2, 3))
        if op.input == 0:
            per_group = weight.shape[3]
            zeros = np.abs(zero_points(self.model)).reshape(-1, per_group)  # by group
            of_channel = np.repeat(zeros, len(weight) // len(zeros), axis=0)
            counted = (weight.sum(axis=(1, 2)) * of_channel).sum(axis=1)
            sums = sums + -(-counted // 256) + 1
        return sums

    def fits(self, sums: np.ndarray) -> int:
        worst = int(np.argmax(sums))
        self.require(sums[worst] <= INT32, f"channel {worst} may reach {sums[worst]}, which 32 bits do not hold")
        return int(sums[worst])


def _shifted(sums: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The largest |a >> shift| of |a| <= sums: floor makes negative numbers larger in size."""
    return -(-sums >> shift)
