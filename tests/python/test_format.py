"""The `.bnn` file: docs/format.md against the code, a golden file, round trips, and files that mean harm.

The evaluator below is written from docs/format.md alone, in naive loops; it shares nothing with the engine. What could
crash the interpreter or eat the machine runs in a child process: this file as a script (`main` at the end).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union

import numpy as np
import pytest

from ovsw import Engine, _core
from ovsw import format as bnn

from conftest import DATA, ROOT, TABLES

DOC = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
TINY = (DATA / "tiny.bnn").read_bytes()
EXPECTED: dict[str, Any] = json.loads((DATA / "tiny.json").read_text(encoding="utf-8"))

Edit = Callable[[bnn.Model], None]
Number = Union[int, float]


# --- docs/format.md as data ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Field:
    offset: int
    size: int
    type: str
    name: str

    @property
    def code(self) -> str:
        """The field for `struct`."""
        return {"u16": "H", "u32": "I", "u64": "Q", "f32": "f", "bytes": f"{self.size}s"}[self.type]


def section(title: str) -> str:
    """The text below a heading that starts with `title`, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}.*?$(.*?)(?=^#|\Z)", DOC, re.M | re.S)
    assert found, f"docs/format.md has no section '{title}'"
    return found.group(1)


def rows(title: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def record(title: str) -> tuple[int, list[Field]]:
    """A record's size, from its heading, and its fields."""
    size = re.search(rf"^### {title}: (\d+) bytes$", DOC, re.M)
    assert size
    return int(size.group(1)), [Field(int(at), int(n), kind, name) for at, n, kind, name, _ in rows(title)]


RECORDS = {
    "header": record("Header"),
    "value": record("Value record"),
    "tensor": record("Tensor record"),
    "op": record("Op record"),
}


def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def cpp_enum(path: str, name: str) -> dict[str, int]:
    """The members of a C++ enumeration, kChannelPad as channel_pad."""
    body = re.search(rf"enum class {name} : [\w:]+ \{{(.*?)\}}", source(path), re.S)
    assert body, f"{path} has no enum {name}"
    members = re.findall(r"k(\w+) = (\d+)", body.group(1))
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(): int(code) for key, code in members}


def cpp_constant(path: str, name: str) -> int:
    found = re.search(rf"\b{name} = ([^,;]+)[,;]", source(path))
    assert found, f"{path} has no constant {name}"
    text = re.sub(r"std::size_t\((\d+)\)", r"\1", found.group(1))
    shifted = re.fullmatch(r"(\d+)u? << (\d+)", text)
    return int(shifted.group(1)) << int(shifted.group(2)) if shifted else int(text)


# --- the evaluator ---------------------------------------------------------------------------------------------------


class InexactError(Exception):
    """A float32 sum whose value depends on the order of the additions: there is no single right answer to compare."""


def check_exact(products: np.ndarray) -> None:
    """Raises unless float32 adds these up without rounding in any order: all are multiples of a unit, the sum of
    their sizes is less than 2^24 units."""
    some = np.abs(products[products != 0])
    if some.size == 0:
        return
    mantissa, exponent = np.frexp(some)
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    unit = int((exponent - 53 + lowest).min())
    if not some.sum() < 2.0 ** (24 + unit):
        raise InexactError


def signs(tensor: bnn.Tensor) -> np.ndarray:
    """A bits tensor as +1 and -1, bit by bit."""
    n = tensor.shape[-1]
    words = tensor.array.reshape(-1, tensor.array.shape[-1]).tolist()
    flat = [1 if row[c // 64] >> (c % 64) & 1 else -1 for row in words for c in range(n)]
    return np.array(flat, np.float64).reshape(tensor.shape)


def window(op: bnn.Op, x: np.ndarray) -> tuple[int, int, Callable[[int, int], list[tuple[int, int, np.ndarray]]]]:
    """The rows and columns of the result, and for each of its pixels the taps inside: (i, j, channels there)."""
    (h, w, _), (kh, kw), (sh, sw), (ph, pw) = x.shape, op.kernel, op.stride, op.pad

    def taps(y0: int, x0: int) -> list[tuple[int, int, np.ndarray]]:
        at = ((i, j, y0 * sh + i - ph, x0 * sw + j - pw) for i in range(kh) for j in range(kw))
        return [(i, j, x[r, s]) for i, j, r, s in at if 0 <= r < h and 0 <= s < w]

    return (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, taps


def core(model: bnn.Model, op: bnn.Op, x: np.ndarray, check: Callable[[np.ndarray], None]) -> np.ndarray:
    """The core of an op, float64 (rows, columns, channels), from its input (the same, of float32 numbers or signs)."""
    x = x.astype(np.float64)
    if op.kind == "eltwise":
        return x
    if op.kind == "channel_pad":
        return np.pad(x, ((0, 0), (0, 0), op.channels))
    if op.kind == "linear":
        weight = model.tensors[op.weight or 0].array.astype(np.float64)
        products = weight * x.reshape(-1)
        for row in products:
            check(row)
        return products.sum(axis=1).reshape(1, 1, -1)

    height, width, taps = window(op, x)
    result = np.zeros((height, width, model.tensors[op.weight].shape[0] if op.weight is not None else x.shape[2]))
    if op.kind in ("bconv", "conv"):
        tensor = model.tensors[op.weight or 0]
        weight = signs(tensor) if op.kind == "bconv" else tensor.array.astype(np.float64)
    for y, z in itertools.product(range(height), range(width)):
        inside = taps(y, z)
        if op.kind == "maxpool":
            result[y, z] = np.max([pixel for _, _, pixel in inside], axis=0)
        elif op.kind == "avgpool":
            total = np.sum([pixel for _, _, pixel in inside], axis=0)
            result[y, z] = total / (op.kernel[0] * op.kernel[1])
        else:
            products = np.concatenate([weight[:, i, j] * pixel for i, j, pixel in inside], axis=1)
            if op.kind == "conv":
                for row in products:
                    check(row)
            result[y, z] = products.sum(axis=1)
    return result


def evaluate(
    model: bnn.Model, image: np.ndarray, check: Callable[[np.ndarray], None] = check_exact
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The output of a model for float32 values (channels, rows, columns), and all values (rows, columns, channels).

    `check` sees the products of each sum of a conv or linear.
    """
    values = {0: image.transpose(1, 2, 0).astype(np.float32)}
    for op in model.ops:
        t = core(model, op, values[op.input], check)
        if op.scale is not None and op.offset is not None:
            t = t * model.tensors[op.scale].array + model.tensors[op.offset].array
        if op.residual is not None:
            t = t + values[op.residual].astype(np.float64)
        v = t.astype(np.float32)
        if op.act == "clamp":
            v = np.minimum(np.maximum(v, np.float32(op.clamp[0])), np.float32(op.clamp[1]))
        elif op.act == "prelu":
            v = np.where(v >= 0, v, v * model.tensors[op.slope or 0].array)
        shape = (v.shape[2], v.shape[0], v.shape[1])
        if op.out is not None:
            assert model.values[op.out] == bnn.Value("map", *shape)
            values[op.out] = v
        if op.bits is not None:
            assert model.values[op.bits] == bnn.Value("bits", *shape)
            values[op.bits] = np.where(v >= 0, 1, -1)
    return values[model.output].reshape(-1), values


def normalised(model: bnn.Model, pixels: np.ndarray) -> np.ndarray:
    """Pixels (rows, columns, channels) as the network sees them, (channels, rows, columns)."""
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    return ((pixels.astype(np.float32) / np.float32(255) - mean) / std).transpose(2, 0, 1)


# --- models ----------------------------------------------------------------------------------------------------------


def tiny_model() -> bnn.Model:
    """What tests/data/tiny.bnn holds."""

    def ramp(shape: tuple[int, ...], step: int, modulus: int, unit: float) -> np.ndarray:
        n = int(np.prod(shape))
        return (np.arange(n).reshape(shape) * step % modulus - modulus // 2) * unit

    labels = {"labels": ["no", "sí"]}
    m = bnn.Model([], [], [], output=5, mean=0, std=1, metadata={"arch": "tiny", "num_classes": 2, **labels})
    m.values = [
        bnn.Value("map", 1, 4, 4),
        bnn.Value("map", 3, 4, 4),
        bnn.Value("bits", 3, 4, 4),
        bnn.Value("map", 3, 4, 4),
        bnn.Value("map", 3, 2, 2),
        bnn.Value("map", 2, 1, 1),
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
    square = {"kernel": (3, 3), "pad": (1, 1)}
    m.ops = [
        bnn.Op("conv", "stem", 0, out=1, bits=2, act="clamp", clamp=(-1.0, 1.0), **stem, **square),  # type: ignore[arg-type]
        bnn.Op("bconv", "conv1", 2, residual=1, out=3, act="prelu", **binary, **square),  # type: ignore[arg-type]
        bnn.Op("maxpool", "pool", 3, out=4, stride=(2, 2), **square),  # type: ignore[arg-type]
        bnn.Op("linear", "fc", 4, out=5, weight=fc),
    ]
    return m


class RandomModel:
    """Small models with every kind of op; all numbers are multiples of powers of two, so that sums are exact."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(seed)
        shape = (self.channels(), self.rng.randint(1, 6), self.rng.randint(1, 6))
        metadata = {"arch": f"random {seed}", "ü": [1, None, {"x": 0.5}]}
        self.model = m = bnn.Model([], [], [], output=0, mean=0, std=1, metadata=metadata)
        m.add_tensor(np.zeros(shape[0]))
        m.add_tensor(np.ones(shape[0]))
        m.add_value("map", *shape)
        for i in range(self.rng.randint(1, 6)):
            self.add_op(f"op{i}" * self.rng.randint(0, 2))
        m.output = self.rng.choice([i for i, v in enumerate(m.values) if v.kind == "map"])

    def channels(self) -> int:
        return self.rng.choice((1, 2, 3, 5, 8, 16, 33, 64, 65, 70))

    def numbers(self, shape: tuple[int, ...], low: int, high: int, unit: float) -> np.ndarray:
        n = int(np.prod(shape))
        return np.array([self.rng.randint(low, high) * unit for _ in range(n)]).reshape(shape)

    def add_window(self, op: bnn.Op, shape: tuple[int, int, int]) -> tuple[int, int]:
        """Chooses kernel, stride and padding; returns rows and columns of the result."""
        sides = []
        for axis, n in enumerate(shape[1:]):
            kernel = self.rng.choice((1, 2, 4)) if op.kind == "avgpool" else self.rng.randint(1, 4)
            most = {"avgpool": 0, "maxpool": kernel // 2}.get(op.kind, kernel - 1)
            pad = self.rng.randint(0, most)
            if kernel > n + 2 * pad:
                kernel, pad = 1, 0
            stride = self.rng.randint(1, 3)
            for name, number in (("kernel", kernel), ("stride", stride), ("pad", pad)):
                pair = list(getattr(op, name))
                pair[axis] = number
                setattr(op, name, tuple(pair))
            sides.append((n + 2 * pad - kernel) // stride + 1)
        return sides[0], sides[1]

    def add_op(self, name: str) -> None:
        m, rng = self.model, self.rng
        kind = rng.choice([k for k in bnn.OP_KINDS if k != "bconv" or any(v.kind == "bits" for v in m.values)])
        wanted = "bits" if kind == "bconv" else "map"
        op = bnn.Op(kind, name, rng.choice([i for i, v in enumerate(m.values) if v.kind == wanted]))
        c, h, w = shape = m.values[op.input].shape
        if kind in ("bconv", "conv", "maxpool", "avgpool"):
            h, w = self.add_window(op, shape)
        if kind == "bconv":
            c = self.channels()
            op.weight = m.add_bits(self.numbers((c, *op.kernel, shape[0]), 0, 1, 1.0) > 0)
        elif kind == "conv":
            c = rng.randint(1, 20)
            op.weight = m.add_tensor(self.numbers((c, *op.kernel, shape[0]), -2, 2, 1.0))
        elif kind == "linear":
            features, c, h, w = c * h * w, rng.randint(1, 9), 1, 1
            op.weight = m.add_tensor(self.numbers((c, features), -2, 2, 1.0))
        elif kind == "channel_pad":
            op.channels = (rng.randint(0, 3), rng.randint(0, 70))
            c += sum(op.channels)
        if rng.random() < 0.6:
            op.scale = m.add_tensor(self.numbers((c,), -2, 2, 0.5), "f64")
            op.offset = m.add_tensor(self.numbers((c,), -3, 3, 0.5), "f64")
        same = [i for i, v in enumerate(m.values) if v == bnn.Value("map", c, h, w)]
        if same and rng.random() < 0.7:
            op.residual = rng.choice(same)
        op.act = rng.choice(("clamp", "clamp", "prelu", "none"))
        if op.act == "clamp":
            op.clamp = (-rng.randint(1, 4), rng.randint(0, 4))
        elif op.act == "prelu":
            op.slope = m.add_tensor(self.numbers((c,), -1, 2, 0.5))
        stores = rng.choice(("out", "bits", "both"))
        if stores != "bits":
            op.out = m.add_value("map", c, h, w)
        if stores != "out":
            op.bits = m.add_value("bits", c, h, w)
        m.ops.append(op)

    def image(self) -> np.ndarray:
        return self.numbers(self.model.values[0].shape, -4, 4, 0.5).astype(np.float32)


def small_model(kind: str = "eltwise", shape: tuple[int, int, int] = (1, 1, 1), **fields: Any) -> bnn.Model:
    """One op of the input's shape."""
    m = bnn.Model([bnn.Value("map", *shape), bnn.Value("map", *shape)], [], [], output=1, mean=0, std=1)
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


# --- files as bytes --------------------------------------------------------------------------------------------------


class File:
    """The bytes of a file, its records found by name and number."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.count = {
            "header": 1,
            **{kind: self.get("header", 0, f"{kind}_count") for kind in ("value", "tensor", "op")},
        }

    def field(self, kind: str, name: str) -> Field:
        return next(f for f in RECORDS[kind][1] if f.name == name)

    def start(self, kind: str, index: int) -> int:
        at = 0
        for table, (size, _) in RECORDS.items():
            if table == kind:
                return at + size * index
            at += size * self.count[table]
        raise KeyError(kind)

    @property
    def strings(self) -> int:
        return self.start("op", self.count["op"])

    @property
    def metadata(self) -> int:
        return self.strings + self.get("header", 0, "strings_size")

    def get(self, kind: str, index: int, name: str) -> Any:
        field, start = self.field(kind, name), 0 if kind == "header" else self.start(kind, index)
        return struct.unpack_from("<" + field.code, self.data, start + field.offset)[0]

    def set(self, kind: str, index: int, name: str, number: Any) -> File:
        field = self.field(kind, name)
        struct.pack_into("<" + field.code, self.data, self.start(kind, index) + field.offset, number)
        return self

    def splice(self, start: int, end: int, new: bytes) -> File:
        self.data[start:end] = new
        return self

    def repaired(self) -> bytes:
        """With the right checksum."""
        struct.pack_into("<I", self.data, 12, bnn.checksum(memoryview(self.data)))
        return bytes(self.data)


def with_metadata(text: bytes) -> bytes:
    """A small valid file but for its metadata."""
    file = File(bnn.to_bytes(small_model()))
    old, end = file.get("tensor", 0, "offset"), file.metadata + len(text)
    shift = -(-end // 64) * 64 - old
    file.splice(file.metadata, old, text + bytes(old + shift - end))
    for i in range(file.count["tensor"]):
        file.set("tensor", i, "offset", file.get("tensor", i, "offset") + shift)
    return file.set("header", 0, "metadata_size", len(text)).set("header", 0, "file_size", len(file.data)).repaired()


def with_name(name: bytes, model: bnn.Model | None = None) -> bytes:
    """A small file whose only op has this name."""
    model = model or small_model()
    model.ops[0].name = "x" * len(name)
    file = File(bnn.to_bytes(model))
    return file.splice(file.strings, file.metadata, name).repaired()


def hostile_numbers(field: Field, now: Number) -> list[Number]:
    if field.type == "f32":
        nan, inf = float("nan"), float("inf")
        return [0.0, -0.0, 1.0, -1.0, nan, inf, -inf, 3.4e38, -3.4e38, 1e-45]
    top = 1 << 8 * field.size
    around = [0, 1, 2, 3, 63, 64, 65, 255, 256, (1 << 15) - 1, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 20, (1 << 20) + 1]
    around += [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, top - 64, top - 2, top - 1]
    around += [int(now) - 1, int(now) + 1, int(now) * 2, int(now) - 64, int(now) + 64]
    return sorted({n for n in around if 0 <= n < top and n != now})


# Every error says which part of the file is wrong.
NAMES_THE_THING = re.compile(
    r"\bvalue \d+\b|\btensor \d+: |\bop \d+ '|\bop \d+: name|header field (output|mean|std|file_size)|metadata|"
    r"(value|tensor|op)_count is|(strings|metadata)_size \d+|header_size is|numerics \d+ is unknown|magic number|"
    r"format version|truncated|checksum|tables end at byte|tensor data ends at byte|its maps"
)


def refusal(read: Callable[[], object]) -> str | None:
    """The message of a ValueError, None if there is none; any other exception comes through."""
    try:
        read()
    except ValueError as e:
        return str(e)
    return None


def load_and_run(data: bytes) -> str:
    """'ran', or the message of a ValueError; also has the two readers agree."""
    numpy, cpp = refusal(lambda: bnn.from_bytes(data)), refusal(lambda: _core.Engine(data, 1, ""))
    if numpy and not cpp:  # which reads neither names nor metadata as text
        assert re.search("UTF-8|JSON", numpy), f"only the numpy reader refuses: {numpy}"
    message = refusal(lambda: Engine(data))
    if message:
        assert NAMES_THE_THING.search(message), f"the message names nothing: {message}"
        return message
    engine = Engine(data)
    if engine._core.arena_bytes < 1 << 26:
        engine.run(np.zeros(engine.input_shape, np.float32))
    return "ran"


# --- the golden file -------------------------------------------------------------------------------------------------


def test_golden_file_has_the_documented_contents() -> None:
    model = bnn.read(DATA / "tiny.bnn")
    assert same_model(model, tiny_model())
    assert model.version == (1, 0)
    assert model.values[2] == bnn.Value("bits", 3, 4, 4)
    assert [(op.kind, op.pad) for op in model.ops][:2] == [("conv", (1, 1)), ("bconv", (1, 1))]


def test_golden_file_is_written_byte_for_byte() -> None:
    assert bnn.to_bytes(bnn.from_bytes(TINY)) == TINY
    assert bnn.to_bytes(tiny_model()) == TINY


def test_golden_answers_follow_from_the_specification() -> None:
    model = bnn.from_bytes(TINY)
    values = np.array(EXPECTED["values"], np.float32)
    logits, found = evaluate(model, values)
    assert logits.tolist() == EXPECTED["values_logits"]
    assert (found[1] == 0).any(), "the sign of an exact zero should be part of this"
    assert (found[4] < 0).any(), "a window with padding and no positive tap should be part of this"


def test_engine_gives_the_golden_answers(isa: str) -> None:
    engine = Engine(DATA / "tiny.bnn", isa=isa)
    assert engine.isa == isa
    assert engine.run(np.array(EXPECTED["values"], np.float32)).tolist() == EXPECTED["values_logits"]
    logits = engine.run(np.array(EXPECTED["pixels"], np.uint8))
    np.testing.assert_allclose(logits, EXPECTED["pixels_logits"], rtol=0, atol=2e-6)
    assert engine.labels == ["no", "sí"]


def test_golden_pixels_follow_from_the_specification() -> None:
    """Sums of normalised pixels are rounded; no value is so near to zero that its sign could depend on their order."""
    model = bnn.from_bytes(TINY)
    image = normalised(model, np.array(EXPECTED["pixels"], np.uint8))
    logits, found = evaluate(model, image, check=lambda products: None)
    np.testing.assert_allclose(logits, EXPECTED["pixels_logits"], rtol=0, atol=1e-6)
    assert np.abs(found[1]).min() > 1e-3


# --- docs/format.md --------------------------------------------------------------------------------------------------


def dump_lines() -> Iterator[tuple[int, bytes]]:
    for line in section("Example").splitlines():
        found = re.match(r"([0-9a-f]{8})  (?:00 \* (\d+)|((?:[0-9a-f]{2} ?)+))(?:  |$)", line)
        if found:
            at, zeros, shown = found.groups()
            yield int(at, 16), bytes(int(zeros)) if zeros else bytes.fromhex(shown)


def test_hexdump_is_the_golden_file() -> None:
    end = 0
    for at, shown in dump_lines():
        assert at == end, f"the dump goes from {end:#x} to {at:#x}"
        assert TINY[at : at + len(shown)] == shown, f"at {at:#x}"
        end = at + len(shown)
    assert end == len(TINY)


@pytest.mark.parametrize("kind", RECORDS)
def test_record_tables(kind: str) -> None:
    size, fields = RECORDS[kind]
    packed = {"header": bnn.HEADER, "value": bnn.VALUE, "tensor": bnn.TENSOR, "op": bnn.OP}[kind]
    assert size == packed.size == cpp_constant("csrc/format/file.cc", f"k{kind.capitalize()}Bytes")
    end = 0
    for field in fields:
        assert field.offset == end, field
        assert field.size == struct.calcsize("<" + field.code), field
        end += field.size
    assert end == size
    codes = re.sub(r"(\d+)([HIf])", lambda m: m.group(2) * int(m.group(1)), packed.format.lstrip("<"))
    assert re.sub("8s$", "II", "".join(f.code for f in fields)) == codes


def test_record_fields_are_those_of_the_loader() -> None:
    """The order of fields in csrc/format/file.cc; the types follow from the sizes."""
    text = source("csrc/format/file.cc")
    header = re.findall(r"(\w+) = f\.take<std::uint(\d+)_t>\(\);", text[text.index("File parse_file") :])
    documented = [("crc" if f.name == "checksum" else f.name, str(8 * f.size)) for f in RECORDS["header"][1][1:]]
    assert header == documented
    op = text[text.index("OpRecord parse_op") : text.index("}  // namespace")]
    found = re.findall(
        r"op\.(kind|activation) =|(name_at|name_size) =|[=?] ref\(\"(\w+)\"|op\.(clamp_\w+) =|&op\.(\w+)", op
    )
    names = ["".join(groups).replace("name_at", "name_offset") for groups in found]
    assert names == [f.name for f in RECORDS["op"][1]][:-1]
    value = re.findall(r"v\.(\w+) = f\.take", text)
    assert value == [f.name for f in RECORDS["value"][1]]


@pytest.mark.parametrize(
    ("title", "python", "cpp"),
    [
        ("Numerics", bnn.NUMERICS, ("csrc/format/file.h", "Numerics")),
        ("Dtypes", {name: code for name, (code, _) in bnn.DTYPES.items()}, ("csrc/format/file.h", "Dtype")),
        ("Op kinds", bnn.OP_KINDS, ("csrc/graph/graph.h", "OpKind")),
        ("Activations", bnn.ACTIVATIONS, ("kernels/kernels.h", "Act")),
        ("Value kinds", bnn.VALUE_KINDS, None),
    ],
)
def test_enumerations(title: str, python: dict[str, int], cpp: tuple[str, str] | None) -> None:
    documented = {name: int(code) for code, name, _ in rows(title)}
    assert documented == python
    if cpp:
        assert documented == cpp_enum(*cpp)


def test_element_sizes() -> None:
    found = re.findall(r"`([fiu]\d+)` \| (\d+) bytes? per element", section("Dtypes"))
    sizes = {name: int(size) for name, size in found}
    assert sizes == {name: dtype.itemsize for name, (_, dtype) in bnn.DTYPES.items() if name != "bits"}
    assert bnn.DTYPES["bits"][1].itemsize * 8 == 64


def test_magic_version_and_alignment() -> None:
    meaning = {name: text.strip("`") for _, _, _, name, text in rows("Header")}
    assert bytes.fromhex(meaning["magic"]) == bnn.MAGIC == TINY[:8]
    assert (int(meaning["major"]), int(meaning["minor"])) == (bnn.MAJOR, bnn.MINOR)
    assert int(meaning["major"]) == cpp_constant("csrc/format/file.cc", "kMajor")
    assert f"# The `.bnn` file, version {bnn.MAJOR}.{bnn.MINOR}\n" in DOC
    assert f"smallest multiple of {bnn.ALIGN} " in DOC
    assert cpp_constant("csrc/base/buffer.h", "kAlign") == bnn.ALIGN
    assert f"`0x{bnn.NONE:X}` means" in DOC


def test_limits() -> None:
    limits = {name: int(value) for name, value, _ in rows("Limits")}
    file, graph, plan = "csrc/format/file.cc", "csrc/graph/graph.cc", "csrc/plan/plan.cc"
    assert limits["count"] == bnn.MAX_COUNT == cpp_constant(file, "kMaxCount")
    assert limits["dim"] == bnn.MAX_DIM == cpp_constant(file, "kMaxDim")
    assert limits["strings"] == bnn.MAX_STRINGS == cpp_constant(file, "kMaxStrings")
    assert limits["metadata"] == bnn.MAX_METADATA == cpp_constant(file, "kMaxMetadata")
    assert limits["elements"] == cpp_constant(graph, "kMaxElements")
    assert limits["name"] == bnn.MAX_NAME == cpp_constant(file, "kMaxName")
    assert limits["input_channels"] == cpp_constant(graph, "kMaxInputChannels")
    assert limits["kernel"] == cpp_constant(graph, "kMaxKernel")
    assert re.search(r"features <= \(1u << 20\)", source(graph))
    assert limits["features"] == 1 << 20
    assert re.search(r"kernel_w < 1e9", source(graph))
    assert limits["taps"] == 10**9 - 1
    assert f"more than {cpp_constant(plan, 'kMaxArena')} bytes" in section("Limits")


def test_bit_order_example() -> None:
    row = np.zeros(70, np.bool_)
    row[[0, 2, 9, 64, 69]] = True
    shown = re.search(r"^```\n(.*?)```", section("Bits"), re.M | re.S)
    assert shown
    assert bytes.fromhex(shown.group(1)) == bnn.pack_bits(row).tobytes()


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_models_survive_a_round_trip(tmp_path: Path, seed: int) -> None:
    model = RandomModel(seed).model
    path = tmp_path / "model.bnn"
    size = bnn.write(model, path)
    again = bnn.read(path)
    assert size == path.stat().st_size
    assert same_model(model, again)
    assert bnn.to_bytes(again) == path.read_bytes()


def test_engine_computes_random_models_as_specified(isa: str) -> None:
    kinds: set[str] = set()
    exact = 0
    for seed in range(150):
        made = RandomModel(seed)
        image = made.image()
        try:
            expected, _ = evaluate(made.model, image)
        except InexactError:
            continue
        logits = Engine(bnn.to_bytes(made.model), isa=isa).run(image)
        assert logits.tolist() == expected.tolist(), f"seed {seed}"
        kinds.update(op.kind for op in made.model.ops)
        exact += 1
    assert exact > 120
    assert kinds == set(bnn.OP_KINDS)


@pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 70, 127, 128, 130])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 2)])
def test_pack_bits_is_the_naive_loop(n: int, lead: tuple[int, ...]) -> None:
    rng = random.Random(n)
    count = int(np.prod(lead))
    flat = [[rng.random() < 0.5 for _ in range(n)] for _ in range(count)]
    words = [[0] * -(-n // 64) for _ in flat]
    for r, c in itertools.product(range(count), range(n)):
        words[r][c // 64] |= flat[r][c] << c % 64
    positive = np.array(flat).reshape(*lead, n)
    packed = bnn.pack_bits(positive)
    assert packed.dtype == np.dtype("<u8")
    assert packed.reshape(count, -1).tolist() == words
    np.testing.assert_array_equal(bnn.unpack_bits(packed, n), positive)


# --- damaged files ---------------------------------------------------------------------------------------------------


def refusals(data: bytes) -> tuple[str, str]:
    """What the numpy reader and the engine say of a file that both must refuse."""
    with pytest.raises(bnn.FormatError) as reader:
        bnn.from_bytes(data)
    with pytest.raises(ValueError, match=r"^the model: ") as engine:
        Engine(data)
    return str(reader.value), str(engine.value)


def test_truncation_at_every_length() -> None:
    for n in range(len(TINY)):
        expected = "magic number missing" if n < 8 else "truncated"
        assert all(expected in message for message in refusals(TINY[:n])), n


def test_truncation_with_size_and_checksum_repaired() -> None:
    for n in range(64, len(TINY)):
        data = File(TINY[:n]).set("header", 0, "file_size", n).repaired()
        for message in refusals(data):
            assert re.search(r"tables end at byte|tensor \d+: ", message), message


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(TINY)
    for at, bit in itertools.product(range(len(TINY)), range(8)):
        data[at] ^= 1 << bit
        for message in refusals(bytes(data)):
            assert NAMES_THE_THING.search(message), (at, bit, message)
        data[at] ^= 1 << bit


def test_messages_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.bnn"
    path.write_bytes(TINY[:100])
    with pytest.raises(bnn.FormatError, match=r"broken\.bnn: truncated: 100 bytes"):
        bnn.read(path)
    with pytest.raises(ValueError, match=r"broken\.bnn: truncated: 100 bytes"):
        Engine(path)
    with pytest.raises(FileNotFoundError):
        bnn.read(tmp_path / "none.bnn")


@pytest.mark.parametrize("data", [b"", b"\x89BNN", b"PK\x03\x04" + bytes(100), TINY.replace(b"\r\n", b"\n", 1)])
def test_not_a_bnn_file(data: bytes) -> None:
    assert all("not a .bnn file (magic number missing)" in message for message in refusals(data))


@pytest.mark.parametrize("major", [0, 2, 256, 65535])
def test_another_major_version_is_refused(major: int) -> None:
    for data in (
        File(TINY).set("header", 0, "major", major).repaired(),
        File(TINY).set("header", 0, "major", major).data,
    ):
        assert all(f"format version {major}.0" in message for message in refusals(bytes(data)))


@pytest.mark.parametrize("minor", [1, 2, 65535])
def test_a_newer_minor_version_is_accepted(minor: int) -> None:
    data = File(TINY).set("header", 0, "minor", minor).repaired()
    assert bnn.from_bytes(data).version == (1, minor)
    logits = Engine(data).run(np.array(EXPECTED["values"], np.float32))
    assert logits.tolist() == EXPECTED["values_logits"]


@pytest.mark.parametrize(
    ("kind", "index", "field", "code", "message"),
    [
        ("header", 0, "numerics", 2, "numerics 2 is unknown"),
        ("value", 2, "kind", 5, "value 2: kind 5 is unknown"),
        ("tensor", 5, "dtype", 7, "tensor 5: dtype 7 is unknown"),
        ("op", 1, "kind", 8, "op 1 'conv1': kind 8 is unknown"),
        ("op", 1, "kind", 0, "op 1 'conv1': kind 0 is unknown"),
        ("op", 1, "activation", 3, "op 1 'conv1': activation 3 is unknown"),
    ],
)
def test_unknown_codes_are_refused_in_a_newer_minor_version(
    kind: str, index: int, field: str, code: int, message: str
) -> None:
    data = File(TINY).set("header", 0, "minor", 2).set(kind, index, field, code).repaired()
    assert all(message in found for found in refusals(data))


@pytest.mark.parametrize(
    ("kind", "index", "field", "number", "message"),
    [
        ("header", 0, "header_size", 72, "header_size is 72, expected 64"),
        ("header", 0, "value_count", 0, "value_count is 0, allowed are 1 to 16384"),
        ("header", 0, "tensor_count", 0, "tensor_count is 0"),
        ("header", 0, "op_count", 16385, "op_count is 16385"),
        ("header", 0, "strings_size", (1 << 22) + 1, "strings_size 4194305"),
        ("header", 0, "metadata_size", (1 << 24) + 1, "metadata_size 16777217"),
        ("header", 0, "metadata_size", 1 << 20, "tables end at byte"),
        ("header", 0, "output", 6, "header field output is 6, there are 6"),
        ("header", 0, "mean", bnn.NONE, "header field mean is 4294967295"),
        ("header", 0, "std", 10, "header field std is 10, there are 10"),
        ("value", 3, "c", 0, "value 3: shape (0, 4, 4), allowed are 1 to 1048576"),
        ("value", 3, "w", (1 << 20) + 1, "value 3: shape (3, 4, 1048577)"),
        ("tensor", 2, "rank", 5, "tensor 2: rank 5"),
        ("tensor", 2, "rank", 3, "tensor 2: "),
        ("tensor", 2, "dim0", 0, "tensor 2: "),
        ("tensor", 2, "dim3", 2, "tensor 2: "),
        ("tensor", 2, "reserved", 1, "tensor 2: "),
        ("tensor", 2, "length", 104, "tensor 2: length 104"),
        ("tensor", 2, "offset", 0, "tensor 2: offset 0"),
        ("tensor", 2, "offset", 1 << 63, "tensor 2: offset 9223372036854775808"),
        ("op", 1, "name_offset", 1 << 31, "op 1: name lies outside the strings"),
        ("op", 1, "name_size", bnn.NONE, "op 1: name lies outside the strings"),
        ("op", 1, "input", bnn.NONE, "op 1 'conv1': no input"),
        ("op", 1, "residual", 6, "op 1 'conv1': residual refers to 6, there are 6"),
        ("op", 1, "weight", 10, "op 1 'conv1': weight refers to 10, there are 10"),
        ("op", 1, "reserved", b"\0" * 7 + b"\1", "op 1 'conv1': reserved bytes are not zero"),
        ("op", 1, "shift", 1, "op 1 'conv1': reserved bytes are not zero"),
    ],
)
def test_hostile_fields(kind: str, index: int, field: str, number: Any, message: str) -> None:
    data = File(TINY).set(kind, index, field, number).repaired()
    assert all(message in found for found in refusals(data))


def zero_padding() -> list[int]:
    """The bytes of the tiny file between its sections."""
    file = File(TINY)
    used = set(range(file.metadata + file.get("header", 0, "metadata_size")))
    for i in range(file.count["tensor"]):
        start = file.get("tensor", i, "offset")
        used.update(range(start, start + file.get("tensor", i, "length")))
    return [at for at in range(len(TINY)) if at not in used]


def test_padding_must_be_zero() -> None:
    places = zero_padding()
    assert len(places) > 100
    for at in places:
        for message in refusals(File(TINY).splice(at, at + 1, b"\x01").repaired()):
            assert re.search(r"tensor \d+: the padding before it is not zero", message)


def test_tail_bits_must_be_zero() -> None:
    start = File(TINY).get("tensor", 5, "offset")
    for word, bit in itertools.product((0, 13, 26), range(3, 64)):
        file = File(TINY)
        file.data[start + 8 * word + bit // 8] |= 1 << bit % 8
        assert all(
            "tensor 5: bits past the last channel are not zero" in message for message in refusals(file.repaired())
        )


@pytest.mark.parametrize("edit", ["extra byte", "extra block", "swapped", "overlap", "misaligned", "hole"])
def test_tensor_data_must_lie_as_documented(edit: str) -> None:
    file = File(TINY)
    offsets = [file.get("tensor", i, "offset") for i in range(file.count["tensor"])]
    message = r"tensor \d+: offset \d+"
    if edit.startswith("extra"):
        file.data += bytes(1 if edit == "extra byte" else 64)
        message = r"tensor data ends at byte"
    elif edit == "swapped":  # mean and std: of the same size, so only the order is wrong
        file.set("tensor", 0, "offset", offsets[1]).set("tensor", 1, "offset", offsets[0])
    elif edit == "overlap":
        file.set("tensor", 1, "offset", offsets[0])
    elif edit == "misaligned":
        file.set("tensor", 9, "offset", offsets[9] - 8)
    else:
        file.splice(offsets[9], offsets[9], bytes(64)).set("tensor", 9, "offset", offsets[9] + 64)
    file.set("header", 0, "file_size", len(file.data))
    for found in refusals(file.repaired()):
        assert re.search(message, found)


def test_names_may_be_any_utf8() -> None:
    for name in ("", "ü", "层", "🂡", "a b", "x" * bnn.MAX_NAME):
        data = with_name(name.encode())
        assert bnn.from_bytes(data).ops[0].name == name
        assert Engine(data).profile(np.zeros((1, 1, 1), np.float32), repeat=1).rows[1].name == name


@pytest.mark.parametrize(
    "name",
    [b"\xff", b"ab\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"a\tb", b"\x7f", b"a\0b"],
)
def test_names_must_be_printable_utf8(name: bytes) -> None:
    assert all("op 0: name is not printable UTF-8" in message for message in refusals(with_name(name)))


def test_names_must_be_short() -> None:
    assert all("op 0: name has 256 bytes" in message for message in refusals(with_name(b"x" * 256)))


@pytest.mark.parametrize("name", [b"\xff", b"a\0b"])
def test_an_error_in_an_op_with_a_strange_name_says_what_is_wrong(name: bytes) -> None:
    data = with_name(name, small_model(act="clamp", clamp=(1.0, 0.0)))
    with pytest.raises(ValueError, match="the model") as e:
        Engine(data)
    assert "clamps to [1, 0]" in str(e.value) or "name is not printable UTF-8" in str(e.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "metadata is not JSON text in UTF-8"),
        (b"{", "metadata is not JSON text in UTF-8"),
        (b"{}}", "metadata is not JSON text in UTF-8"),
        (b'{"arch":"\xff"}', "metadata is not JSON text in UTF-8"),
        (b"\xef\xbb\xbf{}  ", "metadata is not JSON text in UTF-8"),
        (b"{}".decode().encode("utf-16"), "metadata is not JSON text in UTF-8"),
        (b"{'a': 1}", "metadata is not JSON text in UTF-8"),
        (b"[]", "metadata is not a JSON object"),
        (b"12", "metadata is not a JSON object"),
        (b'"labels"', "metadata is not a JSON object"),
        (b"null   ", "metadata is not a JSON object"),
    ],
)
def test_metadata_must_be_a_json_object(text: bytes, message: str) -> None:
    assert all(message in found for found in refusals(with_metadata(text)))


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 99_999 + b"]" * 99_999 + b"}"])
def test_deeply_nested_metadata_is_refused(text: bytes) -> None:
    assert all("metadata" in message for message in refusals(with_metadata(text)))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"labels": "ab"}, "labels is not a list of strings"),
        ({"labels": [1]}, "labels is not a list of strings"),
        ({"labels": {"0": "a"}}, "labels is not a list of strings"),
        ({"labels": ["a", "b"]}, "metadata has 2 labels, the network 1 classes"),
        ({"preprocess": []}, "preprocess.resize must be"),
        ({"preprocess": {"resize": "256"}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": 0}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": 1 << 40}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": 1.5}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": None}}, "preprocess.resize must be"),
    ],
)
def test_metadata_of_the_wrong_type(metadata: dict[str, Any], message: str) -> None:
    model = small_model()
    model.metadata = metadata
    with pytest.raises(ValueError, match=re.escape(message)):
        Engine(bnn.to_bytes(model))


def test_unknown_metadata_is_ignored() -> None:
    model = small_model()
    model.metadata = {"future": [1, {"x": None}], "labels": [], "preprocess": {"future": 1}}
    assert Engine(bnn.to_bytes(model)).labels == []


# --- graphs that make no sense ---------------------------------------------------------------------------------------


def set_op(index: int, **fields: Any) -> Edit:
    def edit(m: bnn.Model) -> None:
        for name, value in fields.items():
            setattr(m.ops[index], name, value)

    return edit


def set_tensor(index: int, array: Any, dtype: str = "f32") -> Edit:
    def edit(m: bnn.Model) -> None:
        m.add_tensor(np.array(array), dtype)
        m.tensors[index] = m.tensors.pop()

    return edit


def set_value(index: int, kind: str, *shape: int) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.values[index] = bnn.Value(kind, *shape)

    return edit


def swap_ops(m: bnn.Model) -> None:
    m.ops[0], m.ops[1] = m.ops[1], m.ops[0]


def drop_op(m: bnn.Model) -> None:
    del m.ops[3]


def repeat_op(m: bnn.Model) -> None:
    m.ops.append(m.ops[3])


def set_output(index: int) -> Edit:
    def edit(m: bnn.Model) -> None:
        m.output = index

    return edit


BAD_GRAPHS: dict[str, tuple[Edit, str]] = {
    "cycle of one": (set_op(1, residual=3), "op 1 'conv1': residual (value 3) is read before it is written"),
    "cycle of two": (set_op(1, residual=4), "op 1 'conv1': residual (value 4) is read before it is written"),
    "order": (swap_ops, "op 0 'conv1': input (value 2) is read before it is written"),
    "never written": (drop_op, "value 5 is never written"),
    "written twice": (repeat_op, "op 4 'fc': out (value 5) is written twice"),
    "input overwritten": (set_op(0, out=0), "op 0 'stem': out (value 0) is written twice"),
    "map and bits in one": (set_op(0, bits=1), "op 0 'stem': bits (value 1) is written twice"),
    "no output": (set_op(3, out=None), "op 3 'fc': has no output"),
    "bconv of a map": (set_op(1, input=1), "op 1 'conv1': input (value 1) is a map, expected bits"),
    "pool of bits": (set_op(2, input=2), "op 2 'pool': input (value 2) is bits, expected a map"),
    "residual of bits": (set_op(1, residual=2), "op 1 'conv1': residual (value 2) is bits, expected a map"),
    "bits in a map": (
        set_op(1, out=None, bits=3),
        "op 1 'conv1': bits (value 3) is a map 3x4x4, computed is bits 3x4x4",
    ),
    "map in bits": (
        set_value(3, "bits", 3, 4, 4),
        "op 1 'conv1': out (value 3) is bits 3x4x4, computed is a map 3x4x4",
    ),
    "output of bits": (set_output(2), "header field output (value 2) must be a map"),
    "input of bits": (set_value(0, "bits", 1, 4, 4), "value 0 (the input) must be a map"),
    "wrong shape": (set_value(4, "map", 3, 2, 3), "op 2 'pool': out (value 4) is a map 3x2x3, computed is a map 3x2x2"),
    "residual shape": (set_op(1, residual=0), "op 1 'conv1': residual (value 0) is 1x4x4, the output 3x4x4"),
    "no weight": (set_op(0, weight=None), "op 0 'stem': weight is missing"),
    "weight dtype": (set_op(1, weight=2), "op 1 'conv1': weight (tensor 2) has dtype 0, expected 2"),
    "weight shape": (set_op(3, weight=2), "op 3 'fc': weight (tensor 2) has shape 3x3x3x1, expected 3x12"),
    "weight of a pool": (set_op(2, weight=2), "op 2 'pool': has a weight, which maxpool does not take"),
    "scale alone": (set_op(0, offset=None), "op 0 'stem': has only one of scale and offset"),
    "offset alone": (set_op(0, scale=None), "op 0 'stem': has only one of scale and offset"),
    "scale dtype": (set_op(0, scale=8), "op 0 'stem': scale (tensor 8) has dtype 0, expected 1"),
    "scale shape": (set_tensor(3, [1.0, 2.0], "f64"), "op 0 'stem': scale (tensor 3) has shape 2, expected 3"),
    "prelu without slope": (set_op(1, slope=None), "op 1 'conv1': slope is missing"),
    "slope without prelu": (set_op(1, act="none"), "op 1 'conv1': has a slope without prelu"),
    "clamp upside down": (set_op(0, clamp=(1.0, -1.0)), "op 0 'stem': clamps to [1, -1]"),
    "clamp from NaN": (set_op(0, clamp=(float("nan"), 1.0)), "op 0 'stem': clamps to ["),
    "clamp to NaN": (set_op(0, clamp=(0.0, float("nan"))), "op 0 'stem': clamps to ["),
    "kernel 0": (set_op(2, kernel=(0, 3)), "op 2 'pool': kernel is 0x3, allowed are 1 to 255"),
    "kernel 256": (set_op(2, kernel=(3, 256)), "op 2 'pool': kernel is 3x256, allowed are 1 to 255"),
    "kernel too large": (set_op(2, kernel=(7, 3)), "op 2 'pool': kernel 7x3 is larger than the padded map"),
    "stride 0": (set_op(2, stride=(2, 0)), "op 2 'pool': stride is 2x0"),
    "padding": (set_op(0, pad=(1, 3)), "op 0 'stem': padding 1x3 is not smaller than the kernel"),
    "maxpool padding": (set_op(2, pad=(2, 1)), "op 2 'pool': is padded by more than half its kernel"),
    "avgpool padding": (set_op(2, kind="avgpool"), "op 2 'pool': is padded, which avgpool does not take"),
    "window of linear": (set_op(3, pad=(0, 1)), "op 3 'fc': has a window, which linear does not take"),
    "channels of linear": (set_op(3, channels=(0, 1)), "op 3 'fc': has channels to pad, which linear does not take"),
    "mean shape": (set_tensor(0, [0.5, 0.5]), "header field mean (tensor 0) must hold one f32 for each of the 1 input"),
    "mean dtype": (set_tensor(0, [0.5], "f64"), "header field mean (tensor 0) must hold one f32"),
    "mean infinite": (set_tensor(0, [float("inf")]), "header field mean holds inf"),
    "std shape": (set_tensor(1, [[0.5]]), "header field std (tensor 1) must hold one f32"),
    "std 0": (set_tensor(1, [0.0]), "header field std holds 0, which is not positive"),
    "std negative": (set_tensor(1, [-1.0]), "header field std holds -1, which is not positive"),
    "std NaN": (set_tensor(1, [float("nan")]), "header field std holds nan"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs_are_refused(name: str) -> None:
    edit, message = BAD_GRAPHS[name]
    model = tiny_model()
    edit(model)
    with pytest.raises(ValueError, match=re.escape(message)):
        Engine(bnn.to_bytes(model))


# --- in a child process ----------------------------------------------------------------------------------------------


def child(*args: str, timeout: float = 60.0, stdin: bytes = b"") -> str:
    """Runs this file as a script; a crash, a hang or an exception there is an assertion failure here."""
    command = [sys.executable, "-X", "faulthandler", __file__, *args]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{args} took longer than {timeout} s") from None
    assert done.returncode == 0, f"{args}: exit code {done.returncode}\n{done.stderr.decode()[-3000:]}"
    return done.stdout.decode()


def load_in_child(data: bytes, megabytes: int = 384, timeout: float = 10.0) -> str:
    """'ran' or the message of a ValueError, in a process that can get only so much more memory."""
    return child("load", str(megabytes), timeout=timeout, stdin=data).strip()


def test_every_field_set_to_every_hostile_number() -> None:
    counts = json.loads(child("sweep", "1024"))
    assert counts["refused"] > 2000
    assert counts["ran"] > 50  # names, unused clamp bounds, NaN weights ...


@pytest.mark.parametrize("seed", [1, 2])
def test_random_mutations(seed: int) -> None:
    counts = json.loads(child("fuzz", "1024", str(seed), "2500"))
    assert counts["refused"] > 1000
    assert counts["ran"] > 100
    assert counts["compared"] > 50


@pytest.mark.parametrize("shape", [(1, 1 << 20, 1 << 20), (1 << 20, 1 << 20, 1 << 20), (1, 1 << 14, (1 << 13) + 1)])
def test_huge_values_are_refused_at_once(shape: tuple[int, int, int]) -> None:
    file = File(bnn.to_bytes(small_model()))
    for index in (0, 1):
        for name, n in zip("chw", shape):
            file.set("value", index, name, n)
    assert "value 0: " in (message := load_in_child(file.repaired()))
    assert "is over the cap of 134217728 elements" in message


def test_shared_and_unused_tensors_are_refused() -> None:
    model = small_model("eltwise", scale=None)
    model.add_tensor(np.ones(1), "f64")
    assert all("tensor 2: is referred to 0 times" in message for message in refusals(bnn.to_bytes(model)))
    model.ops[0].scale = model.ops[0].offset = 2
    assert all("tensor 2: is referred to 2 times" in message for message in refusals(bnn.to_bytes(model)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_constants_must_be_finite(bad: float) -> None:
    model = small_model("eltwise", scale=2, offset=3, slope=4, act="prelu")
    for dtype in ("f64", "f64", "f32"):
        model.add_tensor(np.ones(1), dtype)
    assert load_and_run(bnn.to_bytes(model)) == "ran"
    for index, what in ((2, "scale"), (3, "offset"), (4, "slope")):
        good = model.tensors[index].array
        model.tensors[index].array = np.full_like(good, bad)
        assert f"{what} (tensor {index}) holds NaN or infinity" in load_and_run(bnn.to_bytes(model))
        model.tensors[index].array = good


@pytest.mark.parametrize("dtype", bnn.DTYPES)
def test_huge_tensors_are_refused_at_once(dtype: str) -> None:
    """Among them shapes whose size in bytes is 0 or small modulo 2^32 or 2^64."""
    sides = (1, 3, 1 << 10, 1 << 12, 1 << 16, 1 << 18, 1 << 20)
    model = small_model()
    model.add_tensor(np.zeros((1, 1, 1, 1))) if dtype != "bits" else model.add_bits(np.ones((1, 1, 1, 1), np.bool_))
    model.tensors[2].dtype, model.tensors[2].array = dtype, np.zeros(1, bnn.DTYPES[dtype][1])
    data = bnn.to_bytes(model)
    assert "tensor 2: is referred to 0 times" in load_and_run(data)  # but all else about it is right
    for dims in itertools.product(sides, repeat=4):
        if np.prod(dims) < 256:
            continue
        file = File(data)
        for i, n in enumerate(dims):
            file.set("tensor", 2, f"dim{i}", n)
        size = int(np.prod([*dims[:3], -(-dims[3] // 64) if dtype == "bits" else dims[3]], dtype=object))
        size *= bnn.DTYPES[dtype][1].itemsize
        if size == bnn.DTYPES[dtype][1].itemsize:
            continue
        for length in {size % (1 << 32), size % (1 << 64), file.get("tensor", 2, "length")}:
            for message in refusals(file.set("tensor", 2, "length", length).repaired()):
                assert "tensor 2: " in message


@pytest.mark.parametrize("copies", [3, 4])
def test_maps_that_need_too_much_memory_together_are_refused(copies: int) -> None:
    """The input and its copies, 524 MB each, are all read after the last copy is made; 2,147 MB are allowed."""
    shape = (128, 1024, 1000)
    model = small_model(shape=shape)
    for _ in range(1, copies):
        model.ops.append(bnn.Op("eltwise", "", 0, out=model.add_value("map", *shape)))
    for i in range(copies + 1):
        pool = bnn.Op("maxpool", "", i, kernel=(128, 125), stride=(128, 125))
        pool.out = model.add_value("map", 128, 8, 8)
        model.ops.append(pool)
    message = load_in_child(bnn.to_bytes(model))
    if copies == 3:
        assert message == "too large to run here"
    else:
        assert re.search(r"needs \d+ bytes for its maps, allowed are 2147483648", message)


def test_a_map_at_the_cap_takes_no_memory_before_it_runs() -> None:
    assert load_in_child(bnn.to_bytes(small_model(shape=(128, 1024, 1024)))) == "too large to run here"


def many_long_names() -> bytes:
    """1,000 ops with the same name of 1 MB."""
    model = small_model()
    for i in range(1, 1000):
        model.ops.append(bnn.Op("eltwise", "", i, out=model.add_value("map", 1, 1, 1)))
    model.ops[0].name = "x" * 1_000_000
    file = File(bnn.to_bytes(model))
    for i in range(1000):
        file.set("op", i, "name_offset", 0).set("op", i, "name_size", 1_000_000)
    return file.repaired()


def one_weight_for_all() -> bytes:
    """1,000 layers that share a weight of 1 MB."""
    model = small_model(shape=(512, 1, 1))
    weight = model.add_tensor(np.zeros((512, 512)))
    for i in range(1, 1000):
        model.ops.append(bnn.Op("linear", "", i, out=model.add_value("map", 512, 1, 1), weight=weight))
    return bnn.to_bytes(model)


def wide_pool() -> bytes:
    """A 17 KB file with a 255 x 255 window over one pixel of 2,048 channels."""
    return bnn.to_bytes(small_model("maxpool", (2048, 1, 1), kernel=(255, 255), pad=(127, 127)))


def wide_binary_window() -> bytes:
    """8 MB of binary weights."""
    model = small_model(shape=(1024, 1, 1))
    model.values[1] = bnn.Value("bits", 1024, 1, 1)
    model.ops[0].out, model.ops[0].bits = None, 1
    weight = model.add_bits(np.ones((1, 255, 255, 1024), np.bool_))
    model.output = model.add_value("map", 1, 1, 1)
    model.ops.append(bnn.Op("bconv", "b", 1, out=2, weight=weight, kernel=(255, 255), pad=(127, 127)))
    return bnn.to_bytes(model)


def many_input_channels() -> bytes:
    """8 MB: mean and std of 2^20 channels."""
    return bnn.to_bytes(small_model(shape=(1 << 20, 1, 1)))


@pytest.mark.parametrize(
    "make",
    [
        many_long_names,
        one_weight_for_all,
        wide_pool,
        wide_binary_window,
        many_input_channels,
    ],
)
def test_small_files_do_not_take_much_memory(make: Callable[[], bytes]) -> None:
    data = make()
    assert len(data) < 10_000_000
    assert load_in_child(data)


def test_a_wide_binary_window_loads_in_reasonable_time() -> None:
    """320 KB; the network itself runs in a fraction of a second."""
    side = 200
    model = small_model(shape=(1, side, side))
    model.values[1] = bnn.Value("bits", 1, side, side)
    model.ops[0].out, model.ops[0].bits = None, 1
    weight = model.add_bits(np.ones((1, side, side, 1), np.bool_))
    out = 2 * side - 1
    model.output = model.add_value("map", 1, out, out)
    model.ops.append(bnn.Op("bconv", "b", 1, out=2, weight=weight, kernel=(side, side), pad=(side - 1, side - 1)))
    assert load_in_child(bnn.to_bytes(model), timeout=60.0)


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["fsync", "replace", "chmod"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if broken == "fsync" else Path, broken, fail)
    with pytest.raises(OSError, match="No space left"):
        bnn.write(tiny_model(), path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]
    assert path.read_bytes() == b"old"


def test_a_model_that_cannot_be_serialised_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")
    model = tiny_model()
    model.metadata["object"] = object()
    with pytest.raises(TypeError):
        bnn.write(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]
    assert path.read_bytes() == b"old"


def test_writing_replaces_the_file_and_respects_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")
    before = os.umask(0o027)
    try:
        assert bnn.write(tiny_model(), path) == len(TINY)
    finally:
        os.umask(before)
    assert path.read_bytes() == TINY
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]


def test_writing_to_a_folder_fails_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        bnn.write(tiny_model(), tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# --- the child's side ------------------------------------------------------------------------------------------------


def limit_memory(megabytes: int) -> None:
    """From now on, at most so much more address space; 0 is no limit, as sanitizers need it."""
    if megabytes and sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def load(data: bytes) -> str:
    try:
        engine = Engine(data)
    except ValueError as e:
        return str(e)
    if engine._core.arena_bytes > 1 << 26:
        return "too large to run here"
    engine.run(np.zeros(engine.input_shape, np.float32))
    return "ran"


def hostile_fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every field of every record with every hostile number, and every reference with every index."""
    original = File(data)
    for kind, (_, fields) in RECORDS.items():
        for index, field in itertools.product(range(original.count[kind]), fields):
            if field.type == "bytes" or field.name == "checksum":
                continue
            now = original.get(kind, index, field.name)
            numbers: list[Number] = hostile_numbers(field, now)
            if kind == "op" and field.type == "u32":
                numbers += [n for n in range(max(original.count.values())) if n != now and n not in numbers]
            for number in numbers:
                label = f"{kind} {index} {field.name} = {number}"
                yield label, File(data).set(kind, index, field.name, number).repaired()


def sweep() -> dict[str, int]:
    counts = {"ran": 0, "refused": 0}
    for data in (TINY, *(bnn.to_bytes(RandomModel(seed).model) for seed in (3, 4))):
        for label, changed in hostile_fields(data):
            os.write(2, f"{label}\n".encode())
            counts["ran" if load_and_run(changed) == "ran" else "refused"] += 1
    return counts


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Noise, hostile fields, records copied over others, bytes put in or taken out; not in the names."""
    file = File(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        kind = rng.choice(list(RECORDS))
        size, fields = RECORDS[kind]
        index = rng.randrange(file.count[kind])
        way = rng.randrange(5)
        if way <= 1:
            field = rng.choice([f for f in fields if f.type != "bytes"])
            numbers = hostile_numbers(field, file.get(kind, index, field.name))
            file.set(kind, index, field.name, rng.choice([*numbers, *range(8)]))
        elif way == 2:
            other = file.start(kind, rng.randrange(file.count[kind]))
            file.splice(file.start(kind, index), file.start(kind, index) + size, bytes(file.data[other : other + size]))
        elif way == 3:
            at = rng.randrange(len(file.data))
            if not file.strings <= at < file.metadata:
                file.data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        else:
            at = rng.choice((file.start(kind, index), rng.randrange(64, file.strings), len(data)))
            some = rng.choice((1, 8, size, 64))
            file.splice(at, at + rng.choice((0, some)), bytes(rng.choice((0, some))))
            break  # the records have moved
    if rng.random() < 0.9:
        struct.pack_into("<Q", file.data, 16, len(file.data))
    return file.repaired()


def mutate_model(rng: random.Random, m: bnn.Model) -> None:
    """One change to a model; the file stays well formed, the graph may not."""
    op = rng.choice(m.ops)
    way = rng.randrange(10)
    if way == 0:
        op.kind = rng.choice(list(bnn.OP_KINDS))
    elif way == 1:
        op.act, op.clamp = rng.choice(list(bnn.ACTIVATIONS)), (rng.randint(-2, 1), rng.randint(-1, 2))
    elif way == 2:
        name = rng.choice(("input", "residual", "out", "bits"))
        setattr(op, name, rng.choice([*range(len(m.values)), *([None] if name != "input" else [])]))
    elif way == 3:
        setattr(op, rng.choice(("weight", "scale", "offset", "slope")), rng.choice([None, *range(len(m.tensors))]))
    elif way == 4:
        pair = (rng.choice((0, 1, 1, 2, 3, 255)), rng.choice((0, 1, 1, 2, 3, 6)))
        setattr(op, rng.choice(("kernel", "stride", "pad", "channels")), pair)
    elif way == 5:
        value = rng.choice(m.values)
        setattr(value, rng.choice("chw"), rng.choice((1, 2, 3, 4, 64, 65)))
    elif way == 6:
        value = rng.choice(m.values)
        value.kind = rng.choice(list(bnn.VALUE_KINDS))
    elif way == 7:
        shape = tuple(rng.choice((1, 2, 3, 64, 65)) for _ in range(rng.randint(1, 3)))
        dtype = rng.choice(list(bnn.DTYPES))
        m.add_bits(np.ones(shape, np.bool_)) if dtype == "bits" else m.add_tensor(np.ones(shape), dtype)
        m.tensors[rng.randrange(len(m.tensors) - 1)] = m.tensors.pop()
    elif way == 8:
        i, j = rng.randrange(len(m.ops)), rng.randrange(len(m.ops))
        m.ops[i], m.ops[j] = m.ops[j], m.ops[i]
    else:
        m.output, m.mean = rng.randrange(len(m.values)), rng.choice((0, 0, 1))


def fuzz(seed: int, count: int) -> dict[str, int]:
    """Mutated files; one that the engine takes must also run, and give what the specification says."""
    counts = {"ran": 0, "refused": 0, "compared": 0}
    bases = [TINY, *(bnn.to_bytes(RandomModel(f"{seed} base {i}").model) for i in range(20))]
    for case in range(count):
        os.write(2, f"seed {seed} case {case}\n".encode())
        rng = random.Random(f"{seed} {case}")
        if case % 2:
            counts["ran" if load_and_run(mutated_bytes(rng, rng.choice(bases))) == "ran" else "refused"] += 1
            continue
        made = RandomModel(f"{seed} {case}")
        for _ in range(rng.choice((1, 1, 2))):
            mutate_model(rng, made.model)
        data = bnn.to_bytes(made.model)
        if load_and_run(data) != "ran":
            counts["refused"] += 1
            continue
        counts["ran"] += 1
        image = made.image()
        try:
            expected, _ = evaluate(made.model, image)
        except InexactError:
            continue
        assert (
            Engine(data, threads=rng.choice((1, 1, 3)), isa=rng.choice(TABLES)).run(image).tolist() == expected.tolist()
        )
        counts["compared"] += 1
    return counts


def main(job: str, megabytes: str, *numbers: str) -> None:
    limit_memory(int(megabytes))
    if job == "load":
        print(load(sys.stdin.buffer.read()))
    elif job == "sweep":
        print(json.dumps(sweep()))
    else:
        print(json.dumps(fuzz(*map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
