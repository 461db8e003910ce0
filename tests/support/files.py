"""`.bnn` files as bytes: fields found by name and set to anything, and what both readers say of the result."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Union

import numpy as np
import pytest

from ovsw import Engine, _core
from ovsw import format as bnn

from support.format_doc import RECORDS, Field
from support.models import small_model

Number = Union[int, float]


class File:
    """The bytes of a file, its records found by name and number."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.header_size: int = self.get("header", 0, "header_size")
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
            at += self.header_size if table == "header" else size * self.count[table]
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
    r"\bvalue \d+\b|\btensor \d+: |\bop (\d+ )?'|\bop \d+: name|header field (output|mean|std|file_size)|"
    r"output index \d+ is out of range|output is named twice|metadata|"
    r"(value|tensor|op)_count is|(strings|metadata)_size \d+|header_size is|numerics \d+ is unknown|magic number|"
    r"format version|truncated|checksum|tables end at byte|tensor data ends at byte|bytes of memory"
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
    numpy, cpp = refusal(lambda: bnn.from_bytes(data)), refusal(lambda: _core.load(data, 1, ""))
    if numpy and not cpp:  # which reads neither names nor metadata as text
        assert re.search("UTF-8|JSON", numpy), f"only the numpy reader refuses: {numpy}"
    message = refusal(lambda: Engine(data))
    if message:
        assert NAMES_THE_THING.search(message), f"the message names nothing: {message}"
        return message
    engine = Engine(data)
    if engine.memory.maps < 1 << 26:
        engine.run(np.zeros(engine.input_shape, np.float32))
    return "ran"


def refusals(data: bytes) -> tuple[str, str]:
    """What the numpy reader and the engine say of a file that both must refuse."""
    with pytest.raises(bnn.FormatError) as reader:
        bnn.from_bytes(data)
    with pytest.raises(ValueError, match=r"^the model: ") as engine:
        Engine(data)
    return str(reader.value), str(engine.value)
