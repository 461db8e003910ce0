"""docs/numerics.md in numpy: what a file with numerics `integer` computes, and whether its numbers stay in range.

The judge of the engine in this mode: written from the text alone, in naive int64, with no code of the kernels. Matrix
products run in floating point, of a width in which the integers at hand are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ovsw import format as bnn

INT32 = 2**31 - 1
MAX_SHIFT, MAX_WIDE_SHIFT = 31, 47
MAX_MEAN = 256
MAX_TAPS = 65535  # of avgpool
_CHUNK = 1 << 17  # input pixels that are simulated together

_WINDOWED = ("bconv", "conv", "maxpool", "avgpool")
# The tensors of each op besides the weight.
_CONSTANTS = {
    "bconv": {"scale": "i16", "offset": "i32", "shift": "u8"},
    "conv": {"offset": "i32", "shift": "u8"},
    "linear": {"scale": "f32", "offset": "i32", "shift": "u8"},
    "avgpool": {"scale": "i16", "offset": "i32", "shift": "u8"},
    "maxpool": {},
    "channel_pad": {},
    "eltwise": {},
}


def pixels(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The uint8 (n, h, w, c) pixels of normalised float values (n, c, h, w)."""
    wide = np.asarray(x, np.float64).transpose(0, 2, 3, 1) * np.asarray(std, np.float64) + np.asarray(mean, np.float64)
    return np.clip(np.rint(wide * 255), 0, 255).astype(np.uint8)


def zero_points(model: bnn.Model) -> np.ndarray:
    """Each input channel's zero in steps of 1/256 of a pixel's."""
    return np.floor(model.tensors[model.mean].array.astype(np.float64) * 65280 + 0.5).astype(np.int64)


def simulate(model: bnn.Model, images: np.ndarray) -> np.ndarray:
    """The logits, float32 (n, classes), of uint8 (n, h, w, c) pixels. Raises FormatError for a bad model."""
    check(model)
    _check_images(model, images)
    step = max(1, _CHUNK // (model.values[0].h * model.values[0].w))
    parts = [images[i : i + step] for i in range(0, len(images), step)]
    logits = [_values(model, part, keep=False)[model.output].reshape(len(part), -1) for part in parts]
    return np.concatenate(logits) if logits else np.zeros((0, math.prod(model.values[model.output].shape)), np.float32)


def simulate_values(model: bnn.Model, images: np.ndarray) -> dict[int, np.ndarray]:
    """All values by index, (n, h, w, c): integers as int64, bits as bool (True is +1), logits as float32."""
    check(model)
    _check_images(model, images)
    return _values(model, images, keep=True)


def _check_images(model: bnn.Model, images: np.ndarray) -> None:
    c, h, w = model.values[0].shape
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (h, w, c):
        raise ValueError(f"the images are {images.dtype} {images.shape}, expected uint8 (n, {h}, {w}, {c})")


# --- what is computed ------------------------------------------------------------------------------------------------


def _values(model: bnn.Model, images: np.ndarray, keep: bool) -> dict[int, np.ndarray]:
    """All values; without `keep` only those that are still read, and the output."""
    last = {ref: i for i, op in enumerate(model.ops) for ref in (op.input, op.residual) if ref is not None}
    values: dict[int, np.ndarray] = {0: images.astype(np.int64)}
    for i, op in enumerate(model.ops):
        x = values[op.input]
        if op.kind == "linear":
            values[_index(op.out)] = _linear(model, op, x)
        else:
            q = _core(model, op, x)
            if op.out is not None and model.values[op.out].kind == "i32":
                values[op.out] = q
            else:
                lo, hi = _range(op)
                v = np.clip(q if op.residual is None else q + values[op.residual], lo, hi)
                if op.act == "prelu":
                    scaled = ((2 * v + 1) * _array(model, op.slope)) >> 15
                    v = np.where(v >= 0, v, np.clip(scaled, -32768, 32767))
                if op.out is not None:
                    values[op.out] = v
                if op.bits is not None:
                    values[op.bits] = v >= 0
        if not keep:
            for ref in {op.input, op.residual, op.out, op.bits} - {None, model.output}:
                if ref in values and last.get(ref, -1) <= i:
                    del values[ref]
    return values


def _core(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    """q, as int64 (n, h, w, channels)."""
    if op.kind == "eltwise":
        return x
    if op.kind == "channel_pad":
        return np.pad(x, ((0, 0), (0, 0), (0, 0), op.channels))
    if op.kind == "maxpool":
        lowest = np.iinfo(np.int64).min
        return np.max(_taps(op, x, lowest), axis=0)
    shift, offset = _array(model, op.shift), _array(model, op.offset)
    if op.kind == "avgpool":
        total = np.sum(_taps(op, x, 0), axis=0)
        return (_array(model, op.scale) * total + offset) >> shift
    if op.kind == "bconv":
        signs = np.where(x, 1, -1)
        return (_array(model, op.scale) * _convolve(op, signs, _signs(model, op), 1) + offset) >> shift
    weight = _weight(model, op)
    if op.input == 0:
        zeros = np.broadcast_to(zero_points(model), x.shape[1:])[None]
        correction = _convolve(op, zeros, weight, int(np.abs(zeros).max()))
        return (_convolve(op, x, weight, 255) - ((correction + 128) >> 8) + offset) >> shift
    return (_convolve(op, x, weight, 32768) + offset) >> shift


def _linear(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    weight, shift = _array(model, op.weight), _array(model, op.shift)
    wide = _exact(weight, 32768)
    y = (x.reshape(len(x), -1).astype(wide) @ weight.T.astype(wide)).astype(np.int64)
    rounding = (1 << shift) >> 1
    q = ((y + rounding) >> shift) + _array(model, op.offset)
    logits = q.astype(np.float32) * model.tensors[_index(op.scale)].array
    return logits.reshape(len(x), 1, 1, -1)


def _taps(op: bnn.Op, x: np.ndarray, outside: int) -> list[np.ndarray]:
    """The input as each tap of the window sees it, (n, h', w', c); `outside` stands where a tap is outside."""
    _, h, w, _ = x.shape
    (kh, kw), (sh, sw), (ph, pw) = op.window, op.stride, op.pad
    out_h, out_w = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1
    padded = np.pad(x, ((0, 0), (ph, ph), (pw, pw), (0, 0)), constant_values=outside)
    return [
        padded[:, i : i + sh * (out_h - 1) + 1 : sh, j : j + sw * (out_w - 1) + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]


def _convolve(op: bnn.Op, x: np.ndarray, weight: np.ndarray, largest: int) -> np.ndarray:
    """The sum over taps and channels of weight * x; |x| <= largest. What is outside counts nothing, so it is 0 here."""
    rows = weight.reshape(len(weight), -1)
    wide = _exact(rows, largest)
    patches = np.concatenate(_taps(op, x.astype(wide), 0), axis=-1)
    flat = patches.reshape(-1, patches.shape[-1]) @ rows.T.astype(wide)
    return flat.reshape(*patches.shape[:3], -1).astype(np.int64)


def _exact(rows: np.ndarray, largest: int) -> type[np.generic]:
    """A type in which products of integers with these rows are exact: all partial sums fit in it."""
    bound = largest * int(np.abs(rows).sum(axis=1).max())
    return np.float32 if bound < 1 << 24 else np.float64 if bound < 1 << 53 else np.int64


def _range(op: bnn.Op) -> tuple[int, int]:
    return (int(op.clamp[0]), int(op.clamp[1])) if op.act == "clamp" else (-32768, 32767)


def _index(ref: int | None) -> int:
    assert ref is not None  # `check` has seen to it
    return ref


def _array(model: bnn.Model, ref: int | None) -> np.ndarray:
    return model.tensors[_index(ref)].array.astype(np.int64)


def _weight(model: bnn.Model, op: bnn.Op) -> np.ndarray:
    """A real convolution's weights; over pixels an i8 counts 256-fold."""
    weight = _array(model, op.weight)
    return 256 * weight if op.input == 0 and model.tensors[_index(op.weight)].dtype == "i8" else weight


def _signs(model: bnn.Model, op: bnn.Op) -> np.ndarray:
    tensor = model.tensors[_index(op.weight)]
    return np.where(bnn.unpack_bits(tensor.array, tensor.shape[-1]), 1, -1)


# --- what is allowed -------------------------------------------------------------------------------------------------


def check(model: bnn.Model) -> None:
    """Raises FormatError, naming the op, where kinds, tensors or bounds are not as docs/numerics.md says."""
    if model.numerics != "integer":
        raise bnn.FormatError(f"numerics is {model.numerics}, expected integer")
    if model.values[0].kind != "u8":
        raise bnn.FormatError(f"value 0 is of kind {model.values[0].kind}, expected u8")
    mean = model.tensors[model.mean].array
    if mean.shape != (model.values[0].c,) or not (np.abs(mean) <= MAX_MEAN).all():
        raise bnn.FormatError(f"header field mean is {mean}, expected numbers of at most {MAX_MEAN} per channel")
    if model.values[model.output].kind != "f32":
        raise bnn.FormatError(f"header field output: value {model.output} is not of kind f32")
    checker = _Checker(model)
    for i, op in enumerate(model.ops):
        checker.op(i, op)
    if model.output not in checker.most:
        raise bnn.FormatError(f"header field output: value {model.output} is not written")


@dataclass
class _Checker:
    """Walks the ops; `most` has the largest |x| of every value written so far."""

    model: bnn.Model
    most: dict[int, int] = field(default_factory=lambda: {0: 255})
    label: str = ""

    def require(self, condition: object, message: str) -> None:
        if not condition:
            raise bnn.FormatError(f"{self.label}: {message}")

    def op(self, i: int, op: bnn.Op) -> None:
        self.label = f"op {i} '{op.name}'"
        self.inputs(op)
        channels = self.tensors(op)
        wide = self.outputs(op, channels)
        lo, hi = op.clamp if op.act == "clamp" else (-32768.0, 32767.0)
        self.require(lo <= hi, f"clamp_lo is {lo}, clamp_hi {hi}")
        whole = all(-32768 <= n <= 32767 and float(n).is_integer() for n in (lo, hi))
        self.require(whole, f"clamp_lo is {lo}, clamp_hi {hi}, expected whole numbers of 16 bits")
        q = self.largest(op)
        residual = 0 if op.residual is None else self.most[op.residual]
        self.require(q + residual <= INT32, "its sum with the residual may leave 32 bits")
        if op.out is not None:
            hands_on = op.kind in ("maxpool", "channel_pad") and op.residual is None and op.act == "none"
            limit = int(max(abs(lo), abs(hi)))
            self.most[op.out] = q if wide else self.most[op.input] if hands_on else limit
        if op.bits is not None:
            self.most[op.bits] = 1

    def inputs(self, op: bnn.Op) -> None:
        values = self.model.values
        for what, ref in (("input", op.input), ("residual", op.residual)):
            self.require(ref is None or ref in self.most, f"{what} {ref} is not written yet")
        kind = values[op.input].kind
        if op.kind == "conv":
            self.require(kind == ("u8" if op.input == 0 else "i16"), f"cannot read a value of kind {kind}")
        else:
            expected = "bits" if op.kind == "bconv" else "i16"
            self.require(kind == expected, f"reads a value of kind {kind}, expected {expected}")
        if op.residual is not None:
            kind = values[op.residual].kind
            self.require(kind in ("i16", "i32"), f"the residual is of kind {kind}, expected i16 or i32")

    def tensors(self, op: bnn.Op) -> int:
        """Checks presence, dtype and shape; returns the number of output channels."""
        c, h, w = self.model.values[op.input].shape
        refs = {name: getattr(op, name) for name in ("weight", "scale", "offset", "shift", "slope")}
        expected: dict[str, tuple[str, ...]] = {name: (dtype,) for name, dtype in _CONSTANTS[op.kind].items()}
        if op.kind in ("bconv", "conv", "linear"):
            expected["weight"] = ("bits",) if op.kind == "bconv" else ("i16", "i8")
        if op.act == "prelu":
            expected["slope"] = ("i16",)
        for name, ref in refs.items():
            fault = "is missing" if ref is None else "has no place here"
            self.require((ref is not None) == (name in expected), f"{name} {fault}")
        channels = c + sum(op.channels)
        if op.weight is not None:
            shape = self.model.tensors[op.weight].shape
            tail = (h * w * c,) if op.kind == "linear" else (*op.window, c)
            self.require(shape[1:] == tail, f"weight has shape {shape}, expected {tail} after the first dimension")
            channels = shape[0]
        for name, dtypes in expected.items():
            tensor = self.model.tensors[refs[name]]
            self.require(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, expected {' or '.join(dtypes)}")
            length = 1 if (op.kind, name) == ("linear", "scale") else channels
            self.require(name == "weight" or tensor.shape == (length,), f"{name} has shape {tensor.shape}")
        if op.kind == "linear":
            scale = self.model.tensors[refs["scale"]].array[0]
            self.require(np.isfinite(scale) and scale > 0, f"scale is {scale}, expected a positive number")
        return channels

    def outputs(self, op: bnn.Op, channels: int) -> bool:
        """Checks kinds and shapes of what is written; returns whether that is an i32."""
        _, h, w = self.model.values[op.input].shape
        if op.kind == "linear":
            h = w = 1
        if op.kind in _WINDOWED:
            sides = zip((h, w), op.window, op.stride, op.pad)
            self.require(all(k > 0 and s > 0 and k <= n + 2 * p for n, k, s, p in sides), "its window does not fit")
            h, w = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip((h, w), op.window, op.stride, op.pad))
        kinds = {ref: self.model.values[ref].kind for ref in (op.out, op.bits) if ref is not None}
        self.require(kinds, "writes nothing")
        for ref in kinds:
            self.require(ref not in self.most, f"value {ref} is written twice")
        for ref in (*kinds, *([] if op.residual is None else [op.residual])):
            shape = self.model.values[ref].shape
            self.require(shape == (channels, h, w), f"value {ref} has shape {shape}, expected {(channels, h, w)}")
        self.require(op.bits is None or kinds[op.bits] == "bits", "writes bits to a value of another kind")
        if op.out is None:
            return False
        kind, plain = kinds[op.out], op.residual is None and op.act == "none" and op.bits is None
        if op.kind == "linear":
            self.require(kind == "f32" and plain, "linear writes f32 logits and has no residual, activation or bits")
        elif kind == "i32":
            self.require(op.kind == "conv" and op.input != 0, f"{op.kind} cannot write an i32")
            self.require(plain, "writes an i32 and so has no residual, activation or bits")
        else:
            self.require(kind == "i16", f"writes a value of kind {kind}, expected i16")
        return kind == "i32"

    def largest(self, op: bnn.Op) -> int:
        """The largest |q| of any channel."""
        if op.shift is None:
            return 32768
        shift, offset = _array(self.model, op.shift), np.abs(_array(self.model, op.offset))
        most = MAX_WIDE_SHIFT if op.kind in ("linear", "avgpool") else MAX_SHIFT
        self.require(shift.max() <= most, f"shift is {shift.max()}, allowed are 0 to {most}")
        if op.kind == "linear":
            sums = np.abs(_array(self.model, op.weight)).sum(axis=1)
            return self.fits(((32768 * sums) >> shift) + 1 + offset)
        if op.kind == "avgpool":
            taps = op.window[0] * op.window[1]
            self.require(taps <= MAX_TAPS, f"has {taps} taps, allowed are {MAX_TAPS}")
            sums = 32768 * taps * np.abs(_array(self.model, op.scale)) + offset
            return self.fits(_shifted(sums, shift) + 32768)
        if op.kind == "bconv":
            scale = _array(self.model, op.scale)
            self.require(scale.min() >= 0, f"scale is {scale.min()}, expected 0 or more")
            taps = op.window[0] * op.window[1] * self.model.values[op.input].c
            sums = scale * taps + offset
        else:
            weight = np.abs(_weight(self.model, op))
            sums = self.most[op.input] * weight.sum(axis=(1, 2, 3)) + offset
            if op.input == 0:
                zeros = (weight * np.abs(zero_points(self.model))).sum(axis=(1, 2, 3))
                sums += -(-zeros // 256) + 1
        self.fits(sums)
        return int(_shifted(sums, shift).max())

    def fits(self, sums: np.ndarray) -> int:
        worst = int(np.argmax(sums))
        self.require(sums[worst] <= INT32, f"channel {worst} may reach {sums[worst]}, which 32 bits do not hold")
        return int(sums[worst])


def _shifted(sums: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The largest |a >> shift| of |a| <= sums: floor makes negative numbers larger in size."""
    return -(-sums >> shift)
