"""The `.bnn` file in pure numpy: constants, data classes, `read` and `write`.

`docs/format.md` is the normative text; the C++ loader (`csrc/format`, `csrc/graph`) implements it a second time for
the runtime. This reader checks the container (bounds, alignment, checksum, references); what the ops mean and whether
their shapes fit is checked by the C++ side when a model is loaded to run.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.metadata import MAJOR as MAJOR
from ovsw.metadata import MINOR as MINOR
from ovsw.metadata import FormatError as FormatError
from ovsw.metadata import parse_metadata, warn_if_newer
from ovsw.util.files import PathLike, replace_file

MAGIC = b"\x89BNN\r\n\x1a\n"
ALIGN = 64
NONE = 0xFFFFFFFF

HEADER = struct.Struct("<8sHHIQ10I")
VALUE = struct.Struct("<4I")
TENSOR = struct.Struct("<HH4IIQQ")
OP = struct.Struct("<HH10I2f6H4s2I2BH")  # 4s: two numbers of channels, or in PADS_WITH the pad_value
_CHANNELS, _PAD_VALUE = struct.Struct("<2H"), struct.Struct("<f")

MAX_OUTPUTS = 1024
MAX_COUNT = 16_384  # values, tensors, ops
MAX_STRINGS = 1 << 22
MAX_METADATA = 1 << 24
MAX_NAME = 255
MAX_DIM = 1 << 20
MAX_RESIZE = 16  # times the larger side of the input

NUMERICS = {"float": 0, "integer": 1}
VALUE_KINDS = {"f32": 0, "bits": 1, "i16": 2, "i32": 3, "u8": 4}
OP_KINDS = {
    "bconv": 1,
    "conv": 2,
    "linear": 3,
    "maxpool": 4,
    "avgpool": 5,
    "channel_pad": 6,
    "eltwise": 7,
    "mul": 8,
    "concat": 9,
    "gather": 10,
    "bilinear": 11,
    "softmax": 12,
    "log_softmax": 13,
    "to_float": 14,
    "round": 15,
}
ACTIVATIONS = {"none": 0, "clamp": 1, "prelu": 2, "step": 3, "sigmoid": 4, "table": 5}
DTYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "f32": (0, np.dtype("<f4")),
    "f64": (1, np.dtype("<f8")),
    "bits": (2, np.dtype("<u8")),
    "i16": (3, np.dtype("<i2")),
    "i32": (4, np.dtype("<i4")),
    "u8": (5, np.dtype("u1")),
    "i8": (6, np.dtype("i1")),
}
PADS_WITH = frozenset({"bconv", "gather"})  # ops that have a pad_value in the place of channels
FLAGS = {"ceil": 1, "exclude_pad": 2}
_SINCE_1_1 = frozenset({"integer", "i16", "i32", "u8", "i8"})  # codes of any enumeration


@dataclass
class Value:
    """An edge of the graph: a feature map of `c` channels, `h` rows, `w` columns, as numbers or as sign bits."""

    kind: str
    c: int
    h: int
    w: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.c, self.h, self.w)


@dataclass
class Tensor:
    """A constant. `array` has `shape`, little-endian; for bits it is `<u8` words, ceil(shape[-1]/64) per row."""

    dtype: str
    shape: tuple[int, ...]
    array: np.ndarray


@dataclass
class Op:
    """A node: `act(scale * core(input) + offset + residual)`, stored as numbers (`out`) and/or sign bits (`bits`).

    With numerics "integer" the sum before the residual is shifted right by `shift` (docs/numerics.md). References are
    indices into `Model.values` (input, residual, out, bits) and `Model.tensors` (the others). The residual of mul and
    concat is their second input. `pad_value` is that of bconv and gather, `channels` those of channel_pad; `clamp` are
    also the levels of a step, `slope` also a table.
    """

    kind: str
    name: str
    input: int
    out: int | None = None
    bits: int | None = None
    residual: int | None = None
    weight: int | None = None
    scale: int | None = None
    offset: int | None = None
    slope: int | None = None
    shift: int | None = None
    act: str = "none"
    clamp: tuple[float, float] = (0.0, 0.0)
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    channels: tuple[int, int] = (0, 0)
    pad_value: float = 0.0
    threshold: int | None = None
    ceil: bool = False
    exclude_pad: bool = False

    @property
    def tensors(self) -> list[int]:
        """The tensors that the op refers to."""
        refs = (self.weight, self.scale, self.offset, self.slope, self.shift, self.threshold)
        return [ref for ref in refs if ref is not None]


@dataclass
class Model:
    """A whole file. `values[0]` is the input; `mean` and `std` are tensors of one f32 per input channel.

    `version` is that of the file it was read from. `more_outputs` are those after the first.
    """

    values: list[Value]
    tensors: list[Tensor]
    ops: list[Op]
    output: int
    mean: int
    std: int
    numerics: str = "float"
    metadata: dict[str, Any] = field(default_factory=dict)
    version: tuple[int, int] = (MAJOR, 0)
    more_outputs: list[int] = field(default_factory=list)

    @property
    def outputs(self) -> list[int]:
        """All of them, as values."""
        return [self.output, *self.more_outputs]

    def add_value(self, kind: str, c: int, h: int, w: int) -> int:
        self.values.append(Value(kind, c, h, w))
        return len(self.values) - 1

    def add_tensor(self, array: np.ndarray, dtype: str = "f32") -> int:
        """Appends a tensor of numbers; the array is converted to `dtype`."""
        data = np.ascontiguousarray(array, DTYPES[dtype][1])
        self.tensors.append(Tensor(dtype, data.shape, data))
        return len(self.tensors) - 1

    def add_bits(self, positive: np.ndarray) -> int:
        """Appends a bit tensor from a boolean array (True = +1); the last axis is packed."""
        self.tensors.append(Tensor("bits", positive.shape, pack_bits(positive)))
        return len(self.tensors) - 1


def pack_bits(positive: np.ndarray) -> np.ndarray:
    """Packs booleans along the last axis into little-endian 64-bit words, least significant bit first, tail zero."""
    n = positive.shape[-1]
    padded = np.zeros((*positive.shape[:-1], -(-n // 64) * 64), np.bool_)
    padded[..., :n] = positive
    return np.packbits(padded, axis=-1, bitorder="little").view("<u8")


def unpack_bits(words: np.ndarray, n: int) -> np.ndarray:
    """The inverse of `pack_bits`: booleans, `n` on the last axis."""
    raw = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return np.unpackbits(raw, axis=-1, bitorder="little")[..., :n].astype(np.bool_)


def _align(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _storage_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], -(-shape[-1] // 64)) if dtype == "bits" else shape


def _ref(index: int | None) -> int:
    return NONE if index is None else index


def lowest_minor(model: Model) -> int:
    """The first minor version that has everything this model uses."""
    if any(op.kind == "round" or _has_wide_numbers(model, op) for op in model.ops):
        return 3
    if model.more_outputs or any(_is_new(model, op) for op in model.ops):
        return 2
    names = {model.numerics, *(v.kind for v in model.values), *(t.dtype for t in model.tensors)}
    return int(bool(names & _SINCE_1_1) or isinstance(model.metadata.get("labels"), str))


def _has_wide_numbers(model: Model, op: Op) -> bool:
    """Whether an op has something that came with 1.3. A conv over a map without epilogue could write an i32 before."""
    if model.numerics != "integer":
        return False
    old = op.kind == "conv" and op.input != 0 and op.residual is None and op.act == "none" and op.bits is None
    values = [op.input, *([] if old or op.out is None else [op.out])]
    tensors = [ref for ref in (op.scale, op.slope, op.threshold) if ref is not None]
    return any(model.values[ref].kind == "i32" for ref in values) or any(
        model.tensors[ref].dtype == "i32" for ref in tensors
    )


def _is_new(model: Model, op: Op) -> bool:
    """Whether an op has something that came with 1.2."""
    return (
        OP_KINDS[op.kind] > OP_KINDS["eltwise"]
        or ACTIVATIONS[op.act] > ACTIVATIONS["prelu"]
        or (op.act == "prelu" and model.numerics == "integer")
        or op.dilation != (1, 1)
        or (op.pad_value != 0 and op.kind in PADS_WITH)
        or op.threshold is not None
        or op.ceil
        or op.exclude_pad
        or (op.kind == "avgpool" and op.pad != (0, 0))
        or any(ref is not None and len(model.tensors[ref].shape) > 1 for ref in (op.scale, op.slope))
        or (op.residual is not None and model.values[op.residual].shape != model.values[_written(op)].shape)
        or (op.kind in ("bconv", "conv") and model.tensors[op.weight or 0].shape[-1] != model.values[op.input].c)
    )


def _written(op: Op) -> int:
    return (op.bits or 0) if op.out is None else op.out


def to_bytes(model: Model) -> bytes:
    """Serialises a model as a file of the lowest version that does; what the model says of itself is not checked."""
    strings = bytearray()
    op_records = bytearray()
    for op in model.ops:
        name = op.name.encode()
        refs = (op.input, op.residual, op.out, op.bits, op.weight, op.scale, op.offset, op.slope)
        shift = _ref(op.shift) if model.numerics == "integer" else 0
        codes, geometry = (OP_KINDS[op.kind], ACTIVATIONS[op.act]), (*op.window, *op.stride, *op.pad)
        # -0.0 becomes 0.0, the zeros that 1.0 has there.
        padding = _PAD_VALUE.pack(op.pad_value + 0.0) if op.kind in PADS_WITH else _CHANNELS.pack(*op.channels)
        threshold = 0 if op.threshold is None else op.threshold + 1
        gaps, flags = (n - 1 for n in op.dilation), sum(bit for flag, bit in FLAGS.items() if getattr(op, flag))
        fields = (*codes, len(strings), len(name), *map(_ref, refs), *op.clamp, *geometry, padding)
        op_records += OP.pack(*fields, shift, threshold, *gaps, flags)
        strings += name
    metadata = json.dumps(model.metadata, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    values = b"".join(VALUE.pack(VALUE_KINDS[v.kind], *v.shape) for v in model.values)

    more_outputs = struct.pack(f"<{len(model.more_outputs)}I", *model.more_outputs)
    header_size = HEADER.size + len(more_outputs)
    tables = header_size + len(values) + TENSOR.size * len(model.tensors) + len(op_records)
    end = tables + len(strings) + len(metadata)
    tensor_records, data = bytearray(), bytearray()
    for t in model.tensors:
        code, np_dtype = DTYPES[t.dtype]
        raw = np.ascontiguousarray(t.array, np_dtype).tobytes()
        data += bytes(_align(end) - end)
        dims = (*t.shape, *[0] * (4 - len(t.shape)))
        tensor_records += TENSOR.pack(code, len(t.shape), *dims, 0, _align(end), len(raw))
        data += raw
        end = _align(end) + len(raw)

    sizes = (header_size, len(model.values), len(model.tensors), len(model.ops), len(strings), len(metadata))
    whole = (model.output, model.mean, model.std, NUMERICS[model.numerics])

    def header(crc: int) -> bytes:
        return HEADER.pack(MAGIC, MAJOR, lowest_minor(model), crc, end, *sizes, *whole)

    rest = more_outputs + values + bytes(tensor_records) + bytes(op_records) + bytes(strings) + metadata + bytes(data)
    return header(checksum(header(0) + rest)) + rest


def checksum(data: bytes | memoryview) -> int:
    """CRC-32 (as in zlib and PNG) of a file's bytes, leaving out the four of the checksum field itself."""
    view = memoryview(data)
    return zlib.crc32(view[16:], zlib.crc32(view[:12]))


def write(model: Model, path: PathLike) -> int:
    """Writes a model atomically; returns the size in bytes."""
    data = to_bytes(model)
    replace_file(path, data)
    return len(data)


def read(path: PathLike) -> Model:
    """Reads and checks a file. Raises FormatError (a ValueError) or OSError."""
    try:
        model = from_bytes(Path(path).read_bytes())
    except FormatError as e:
        raise FormatError(f"{path}: {e}") from None
    warn_if_newer(path, model.version, model.metadata)
    return model


def from_bytes(data: bytes) -> Model:
    """Parses and checks a file's bytes; tensors are read-only views into `data`."""
    try:
        return _from_bytes(data)
    except FormatError as e:
        if len(data) < HEADER.size:
            raise
        _, major, minor, crc, *_ = HEADER.unpack_from(data)
        if major != MAJOR or minor <= MINOR or crc != checksum(data):
            raise
        known = f"this reader knows {MAJOR}.{MINOR}: install a newer ovsw"
        raise FormatError(f"{e}; the file is of format version {major}.{minor}, {known}") from None


def _from_bytes(data: bytes) -> Model:
    if len(data) < len(MAGIC) or data[: len(MAGIC)] != MAGIC:
        raise FormatError("not a .bnn file (magic number missing)")
    if len(data) < HEADER.size:
        raise FormatError(f"truncated: {len(data)} bytes, the header has {HEADER.size}")
    (_, major, minor, crc, file_size, header_size, n_values, n_tensors, n_ops) = HEADER.unpack_from(data)[:9]
    (strings_size, metadata_size, output, mean, std, numerics) = HEADER.unpack_from(data)[9:]
    if major != MAJOR:
        advice = ": install a newer ovsw" if major > MAJOR else ""
        raise FormatError(f"format version {major}.{minor}, this reader knows {MAJOR}.x{advice}")
    if file_size != len(data):
        state = "truncated" if len(data) < file_size else "too long"
        raise FormatError(f"{state}: {len(data)} bytes, header field file_size says {file_size}")
    if crc != checksum(data):
        raise FormatError("checksum mismatch: the file is damaged")
    if header_size % 4 or not HEADER.size <= header_size < HEADER.size + 4 * MAX_OUTPUTS:
        raise FormatError(f"header_size is {header_size}, expected {HEADER.size} and 4 for each further output")
    for what, n in (("value_count", n_values), ("tensor_count", n_tensors), ("op_count", n_ops)):
        if not 1 <= n <= MAX_COUNT:
            raise FormatError(f"{what} is {n}, expected 1 to {MAX_COUNT}")
    if strings_size > MAX_STRINGS or metadata_size > MAX_METADATA:
        raise FormatError(f"strings_size {strings_size} or metadata_size {metadata_size} is over the limit")

    at_tensors = header_size + VALUE.size * n_values
    at_ops = at_tensors + TENSOR.size * n_tensors
    at_strings = at_ops + OP.size * n_ops
    at_metadata = at_strings + strings_size
    end = at_metadata + metadata_size
    if end > len(data):
        raise FormatError(f"tables end at byte {end}, the file has {len(data)}")

    numerics_name = _name(NUMERICS, numerics, "numerics")
    kinds = VALUE_KINDS if numerics_name == "integer" else {name: VALUE_KINDS[name] for name in ("f32", "bits")}
    values = [_value(i, kinds, *VALUE.unpack_from(data, header_size + VALUE.size * i)) for i in range(n_values)]
    tensors = []
    for i in range(n_tensors):
        tensor, end = _tensor(i, data, end, TENSOR.unpack_from(data, at_tensors + TENSOR.size * i))
        tensors.append(tensor)
    if end != len(data):
        raise FormatError(f"tensor data ends at byte {end}, the file has {len(data)}")
    strings = data[at_strings:at_metadata]
    records = (OP.unpack_from(data, at_ops + OP.size * i) for i in range(n_ops))
    with_shift = numerics_name == "integer"
    ops = [_op(i, strings, n_values, n_tensors, record, with_shift) for i, record in enumerate(records)]
    metadata = parse_metadata(data[at_metadata : at_metadata + metadata_size])
    more_outputs = list(struct.unpack_from(f"<{(header_size - HEADER.size) // 4}I", data, HEADER.size))
    for index in more_outputs:
        if index >= n_values:
            raise FormatError(f"output index {index} is out of range: the file has {n_values} values")
    if len({output, *more_outputs}) <= len(more_outputs):
        raise FormatError("an output is named twice")
    for what, index, kind in (("output", output, "values"), ("mean", mean, "tensors"), ("std", std, "tensors")):
        n = n_values if kind == "values" else n_tensors
        if index >= n:
            raise FormatError(f"header field {what} is {index}, the file has {n} {kind}")
    _check_tensor_uses(ops, mean, std, n_tensors)
    _check_resize(metadata, max(values[0].h, values[0].w))
    return Model(values, tensors, ops, output, mean, std, numerics_name, metadata, (major, minor), more_outputs)


def _check_tensor_uses(ops: list[Op], mean: int, std: int, n_tensors: int) -> None:
    """Every tensor has one user: what is loaded is then never larger than the file by more than a constant."""
    uses = Counter([mean, std, *(ref for op in ops for ref in op.tensors)])
    for i in range(n_tensors):
        if uses[i] != 1:
            raise FormatError(f"tensor {i}: is referred to {uses[i]} times, expected once")


def _check_resize(metadata: dict[str, Any], side: int) -> None:
    preprocess = metadata.get("preprocess", {})
    resize = preprocess.get("resize", side) if isinstance(preprocess, dict) else None
    if type(resize) is not int or not side <= resize <= MAX_RESIZE * side:
        raise FormatError(
            f"metadata field preprocess.resize must be a whole number, not smaller than the input ({side}) and at most "
            f"{MAX_RESIZE} times as large ({MAX_RESIZE * side})"
        )


def _name(codes: dict[str, int], code: int, what: str) -> str:
    for name, known in codes.items():
        if known == code:
            return name
    raise FormatError(f"{what} {code} is unknown")


def _value(i: int, kinds: dict[str, int], kind: int, c: int, h: int, w: int) -> Value:
    if not all(1 <= n <= MAX_DIM for n in (c, h, w)):
        raise FormatError(f"value {i}: shape {(c, h, w)}, expected 1 to {MAX_DIM} each")
    return Value(_name(kinds, kind, f"value {i}: kind"), c, h, w)


def _tensor(i: int, data: bytes, end: int, record: tuple[int, ...]) -> tuple[Tensor, int]:
    code, rank, *dims, reserved, offset, length = record
    name = _name({k: v[0] for k, v in DTYPES.items()}, code, f"tensor {i}: dtype")
    if not 1 <= rank <= 4 or any(dims[rank:]) or reserved:
        raise FormatError(f"tensor {i}: rank {rank} with dims {tuple(dims)}")
    shape = tuple(dims[:rank])
    if not all(1 <= n <= MAX_DIM for n in shape):
        raise FormatError(f"tensor {i}: shape {shape}, expected 1 to {MAX_DIM} each")
    storage, np_dtype = _storage_shape(name, shape), DTYPES[name][1]
    count = math.prod(storage)
    if length != count * np_dtype.itemsize:
        raise FormatError(f"tensor {i}: length {length}, {name} {shape} takes {count * np_dtype.itemsize}")
    if offset != _align(end) or offset + length > len(data):
        raise FormatError(f"tensor {i}: offset {offset} length {length}, expected offset {_align(end)}")
    if any(data[end:offset]):
        raise FormatError(f"tensor {i}: the padding before it is not zero")
    array = np.frombuffer(data, np_dtype, count, offset).reshape(storage)
    if name == "bits" and shape[-1] % 64 and np.any(array[..., -1] >> np.uint64(shape[-1] % 64)):
        raise FormatError(f"tensor {i}: bits past the last channel are not zero")
    return Tensor(name, shape, array), offset + length


def _op(i: int, strings: bytes, n_values: int, n_tensors: int, record: tuple[Any, ...], with_shift: bool) -> Op:
    kind, act, name_at, name_len, *rest = record
    refs, clamp, geometry = rest[:8], rest[8:10], rest[10:16]
    padding, shift, threshold, gap_h, gap_w, flags = rest[16:]
    refs += [shift if with_shift else NONE, threshold - 1 if threshold else NONE]
    if name_at + name_len > len(strings):
        raise FormatError(f"op {i}: name lies outside the strings")
    if name_len > MAX_NAME:
        raise FormatError(f"op {i}: name has {name_len} bytes, expected at most {MAX_NAME}")
    try:
        name = strings[name_at : name_at + name_len].decode()
    except UnicodeDecodeError:
        raise FormatError(f"op {i}: name is not printable UTF-8") from None
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in name):
        raise FormatError(f"op {i}: name is not printable UTF-8")
    label = f"op {i} '{name}'"
    kinds = ("input", "residual", "out", "bits", "weight", "scale", "offset", "slope", "shift", "threshold")
    indices: dict[str, Any] = {}
    for what, ref, (to, n) in zip(kinds, refs, [("value", n_values)] * 4 + [("tensor", n_tensors)] * 6):
        if ref != NONE and ref >= n:
            raise FormatError(f"{label}: {what} refers to {to} {ref}, the file has {n}")
        indices[what] = None if ref == NONE else ref
    source = indices.pop("input")
    if source is None:
        raise FormatError(f"{label}: no input")
    if flags > sum(FLAGS.values()) or (shift and not with_shift):
        raise FormatError(f"{label}: reserved bytes are not zero")
    names = (_name(OP_KINDS, kind, f"{label}: kind"), _name(ACTIVATIONS, act, f"{label}: activation"))
    pairs: Any = dict(zip(("window", "stride", "pad"), zip(geometry[::2], geometry[1::2])))
    if names[0] in PADS_WITH:
        pairs["pad_value"] = _PAD_VALUE.unpack(padding)[0]
    else:
        pairs["channels"] = _CHANNELS.unpack(padding)
    pairs["dilation"] = (gap_h + 1, gap_w + 1)
    pairs |= {flag: bool(flags & bit) for flag, bit in FLAGS.items()}
    return Op(names[0], name, source, **indices, act=names[1], clamp=(clamp[0], clamp[1]), **pairs)
