"""Attacks on the container (rules 1 to 14 and 22 of docs/format.md): fields of tests/data/tiny.bnn changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ovsw import format as bnn

from attacks import Attack
from support.files import File, with_metadata, with_name
from support.models import TINY, small_model, tiny_model

R1 = "The file starts with `magic` and has at least 64 bytes."
R2 = "`major` is 1."
R3 = "`file_size` is the size of the file."
R4 = "`checksum` is right."
R5 = "`header_size` is 64 or more by a multiple of 4, and the number of outputs keeps to the limit."
R6 = "`value_count`, `tensor_count`, `op_count`, `strings_size` and `metadata_size` keep to the limits."
R7 = "The tables, the strings and the metadata end inside the file."
R8 = "`numerics` is known."
R8B = "`output` and the further outputs refer to values, each to another one, `mean` and `std` to tensors."
R9 = "Every value has a known `kind`, and dimensions and elements within the limits."
R10 = (
    "Every tensor has a known `dtype`, a `rank` from 1 to 4, dimensions within the limits, zeros past the rank and in "
    "`reserved`."
)
R11 = "Every tensor has the `length` that its shape takes, and the `offset` that [Layout](#layout) gives."
R11B, R11C = "It ends inside the file.", "The padding before it is zero."
R11D = "The last tensor ends where the file ends."
R12 = "Tail bits of `bits` tensors are zero."
R13 = "Every name lies inside the strings, keeps to the limit and is UTF-8 without control characters."
R14 = (
    "Every op has zeros in the bits of `flags` that have no meaning (and, with numerics `float`, in `shift`), a known "
    "`kind` and a known `activation`."
)
R14B, R14C = "Its references are none or refer to a value or tensor.", "It has an input."
R22 = "A reader that uses the metadata: it is a JSON object in UTF-8, and the keys in use have their types."
JSON = (
    "The metadata is one JSON object in UTF-8, by the letter of RFC 8259: no `NaN` or `Infinity`, no half of a "
    "surrogate pair; it is at most 100 objects and lists deep."
)
RESIZE = "If given, it MUST be a whole number, not less than the larger side of the input and at most 16 times it."
LABELS = "`labels` MUST be empty or have one string, without U+0000, for each channel of the first output."
NAMED = (
    "A reader that uses the labels MUST refuse a name that it does not know and a list whose length is not that of the "
    "first output."
)
MAJOR = "A reader MUST refuse a file of another major version, and say which versions it reads."
NEWER = "Where it refuses a file of a newer minor version, it MUST say so."
UNKNOWN = (
    "It MUST refuse a value kind, op kind, dtype, activation or numerics that it does not know, and reserved bytes "
    "that are not zero."
)


def row(name: str) -> str:
    """The row of a limit."""
    return f"limit `{name}`"


def fields(*changes: tuple[str, int, str, Any], base: bytes = TINY) -> Callable[[], bytes]:
    """The tiny file with fields set to other numbers."""

    def make() -> bytes:
        file = File(base)
        for change in changes:
            file.set(*change)
        return file.repaired()

    return make


def field(name: str, rule: str, kind: str, index: int, what: str, number: Any) -> Attack:
    where = what if kind == "header" else f"{kind} {index}: {what}"
    return Attack(name, rule, f"{where} = {number}", fields((kind, index, what, number)))


def metadata(name: str, rule: str, text: bytes) -> Attack:
    shown = text if len(text) < 60 else text[:50] + b"..."
    return Attack(f"metadata-{name}", rule, f"metadata = {shown!r}", lambda: with_metadata(text))


def newer(*change: Any) -> Callable[[], bytes]:
    """In a file of version 1.3."""
    return fields(("header", 0, "minor", 3), change)


def cut(size: int) -> bytes:
    return TINY[:size]


def long_file() -> bytes:
    return TINY + b"\0"


def repaired(data: bytes) -> bytes:
    return File(data).set("header", 0, "file_size", len(data)).repaired()


def flipped() -> bytes:
    """A bit of a weight: nothing but the checksum sees it."""
    data = bytearray(TINY)
    data[0x440 + 2] ^= 1
    return bytes(data)


def two_outputs(index: int) -> bytes:
    model = small_model()
    model.ops.append(bnn.Op("eltwise", "copy", 1, out=model.add_value("f32", 1, 1, 1)))
    model.more_outputs = [2]
    return File(bnn.to_bytes(model)).splice(64, 68, struct.pack("<I", index)).repaired()


def byte(at: int, value: int) -> Callable[[], bytes]:
    return lambda: File(TINY).splice(at, at + 1, bytes([value])).repaired()


def large_tensor() -> bytes:
    """2^40 elements, and the length that they would take."""
    file = File(TINY).set("tensor", 2, "rank", 2).set("tensor", 2, "dim2", 0).set("tensor", 2, "dim3", 0)
    file.set("tensor", 2, "dim0", 1 << 20).set("tensor", 2, "dim1", 1 << 20).set("tensor", 2, "length", 1 << 42)
    return file.repaired()


def wrapped_tensor() -> bytes:
    """2^20 x 2^20 x 2^20 x 16 f32 are 2^66 bytes, which 64 bits take for 0."""
    file = File(TINY).set("tensor", 2, "dim0", 1 << 20).set("tensor", 2, "dim1", 1 << 20)
    return file.set("tensor", 2, "dim2", 1 << 20).set("tensor", 2, "dim3", 16).set("tensor", 2, "length", 0).repaired()


def shifted_tensor() -> bytes:
    """A hole of 64 bytes before the last tensor."""
    file = File(TINY)
    at = file.get("tensor", 9, "offset")
    return repaired(bytes(file.splice(at, at, bytes(64)).set("tensor", 9, "offset", at + 64).data))


def integer_tiny(what: str) -> bytes:
    """With numerics integer the op record has a shift; it refers to a tensor that is not there."""
    return File(TINY).set("header", 0, "numerics", 1).set("op", 0, what, 10).repaired()


ATTACKS = [
    Attack("magic", R1, "the first byte is 0x88", lambda: b"\x88" + TINY[1:]),
    Attack("empty", R1, "no bytes", lambda: b""),
    Attack("seven-bytes", R1, "cut after 7 bytes", lambda: cut(7)),
    Attack("header-cut", R1, "cut after 63 bytes", lambda: cut(63)),
    field("major-0", R2, "header", 0, "major", 0),
    field("major-2", MAJOR, "header", 0, "major", 2),
    Attack("cut", R3, "the last byte is missing", lambda: cut(len(TINY) - 1)),
    Attack("too-long", R3, "a byte too many", long_file),
    field("file-size", R3, "header", 0, "file_size", 1 << 63),
    Attack("checksum", R4, "a bit of a weight is flipped", flipped),
    field("header-size-60", R5, "header", 0, "header_size", 60),
    field("header-size-66", R5, "header", 0, "header_size", 66),
    field("outputs-1025", row("outputs"), "header", 0, "header_size", 64 + 4 * 1024),
    field("no-values", R6, "header", 0, "value_count", 0),
    field("no-tensors", R6, "header", 0, "tensor_count", 0),
    field("no-ops", R6, "header", 0, "op_count", 0),
    field("values-16385", row("count"), "header", 0, "value_count", 16385),
    field("tensors-16385", row("count"), "header", 0, "tensor_count", 16385),
    field("ops-16385", row("count"), "header", 0, "op_count", 16385),
    field("strings-size", row("strings"), "header", 0, "strings_size", (1 << 22) + 1),
    field("metadata-size", row("metadata"), "header", 0, "metadata_size", (1 << 24) + 1),
    field("tables-past-end", R7, "header", 0, "metadata_size", 1 << 11),
    field("numerics-2", R8, "header", 0, "numerics", 2),
    field("output-6", R8B, "header", 0, "output", 6),
    field("mean-10", R8B, "header", 0, "mean", 10),
    field("std-10", R8B, "header", 0, "std", 10),
    Attack("further-output-3", R8B, "the second output is value 3 of 3", lambda: two_outputs(3)),
    Attack("output-twice", R8B, "both outputs are value 1", lambda: two_outputs(1)),
    field("value-kind-5", R9, "value", 2, "kind", 5),
    field("value-kind-integer", "In files with numerics `float` values are `f32` or `bits`.", "value", 2, "kind", 2),
    *(field(f"value-{side}-0", R9, "value", 3, side, 0) for side in "chw"),
    *(field(f"value-{side}-large", row("dim"), "value", 3, side, (1 << 20) + 1) for side in "chw"),
    Attack(
        "value-elements",
        row("elements"),
        "value 3 is 1 x 1048576 x 129",
        fields(("value", 3, "c", 1), ("value", 3, "h", 1 << 20), ("value", 3, "w", 129)),
    ),
    Attack(
        "value-pixels",
        row("elements"),
        "value 3 is 1048576 x 1048576 x 1048576",
        fields(*(("value", 3, side, 1 << 20) for side in "chw")),
    ),
    field("dtype-7", R10, "tensor", 5, "dtype", 7),
    field("rank-0", R10, "tensor", 2, "rank", 0),
    field("rank-5", R10, "tensor", 2, "rank", 5),
    field("dim-0", R10, "tensor", 2, "dim1", 0),
    field("dim-large", row("dim"), "tensor", 2, "dim1", (1 << 20) + 1),
    field("dim-past-rank", R10, "tensor", 0, "dim1", 1),
    field("tensor-reserved", R10, "tensor", 2, "reserved", 1),
    field("length", R11, "tensor", 2, "length", 104),
    Attack("large-tensor", R11, "tensor 2 is 1048576 x 1048576 and says so", large_tensor),
    Attack("wrapped-tensor", R11, "tensor 2 has 2^64 elements, 2^66 bytes", wrapped_tensor),
    field("offset-0", R11, "tensor", 2, "offset", 0),
    Attack("hole", R11, "64 zero bytes more before tensor 9", shifted_tensor),
    Attack("tensor-past-end", R11B, "the last 8 bytes of tensor 9 are missing", lambda: repaired(cut(len(TINY) - 8))),
    Attack("tensor-behind-end", R11B, "cut after the metadata, before tensor 0", lambda: repaired(cut(0x3B4))),
    Attack("padding", R11C, "the byte before tensor 3 is 1", byte(0x4BF, 1)),
    Attack("rest", R11D, "a byte after the last tensor", lambda: repaired(long_file())),
    Attack("tail-bit", R12, "bit 3 of a row of 3 channels is set", byte(0x540, 0x0B)),
    Attack("tail-bit-last", R12, "bit 63 of the last row of 3 channels is set", byte(0x617, 0x80)),
    field("name-offset", R13, "op", 1, "name_offset", 16),
    field("name-size", R13, "op", 3, "name_size", 3),
    Attack("name-256", row("name"), "a name of 256 bytes", lambda: with_name(b"x" * 256)),
    Attack("name-latin1", R13, "a name that is not UTF-8: 0xff", lambda: with_name(b"\xff")),
    Attack("name-surrogate", R13, "a name that is half of a surrogate pair", lambda: with_name(b"\xed\xa0\x80")),
    Attack("name-control", R13, "a name with U+001F", lambda: with_name(b"a\x1fb")),
    Attack("name-delete", R13, "a name with U+007F", lambda: with_name(b"\x7f")),
    field("flags-4", R14, "op", 1, "flags", 4),
    field("float-shift", R14, "op", 1, "shift", 1),
    field("op-kind-0", R14, "op", 1, "kind", 0),
    field("op-kind-15", UNKNOWN, "op", 1, "kind", 15),
    Attack("newer-op-kind", NEWER, "minor = 3, op 1: kind = 15", newer("op", 1, "kind", 15)),
    Attack("newer-flags", NEWER, "minor = 3, op 1: flags = 4", newer("op", 1, "flags", 4)),
    field("activation-6", R14, "op", 1, "activation", 6),
    *(field(f"op-{what}-6", R14B, "op", 1, what, 6) for what in ("input", "residual", "out", "bits")),
    *(field(f"op-{what}-10", R14B, "op", 1, what, 10) for what in ("weight", "scale", "offset", "slope")),
    field("op-threshold-11", R14B, "op", 1, "threshold", 11),
    Attack("op-shift-10", R14B, "numerics = 1, op 0: shift = 10", lambda: integer_tiny("shift")),
    field("op-no-input", R14C, "op", 1, "input", bnn.NONE),
    metadata("empty", R22, b""),
    metadata("list", R22, b"[]"),
    metadata("open", JSON, b"{"),
    metadata("rest", JSON, b"{}}"),
    metadata("latin1", JSON, b'{"arch":"\xff"}'),
    metadata("nan", JSON, b'{"a":NaN}'),
    metadata("minus", JSON, b'{"a":-}'),
    metadata("point", JSON, b'{"a":1.}'),
    metadata("exponent", JSON, b'{"a":1e}'),
    metadata("leading-zero", JSON, b'{"a":01}'),
    metadata("literal", JSON, b'{"a":nul}'),
    metadata("no-colon", JSON, b'{"a" 1}'),
    metadata("no-string", JSON, b"{1:1}"),
    metadata("open-string", JSON, b'{"a'),
    metadata("control", JSON, b'{"a":"\n"}'),
    metadata("escape", JSON, b'{"a":"\\x"}'),
    metadata("hex", JSON, b'{"a":"\\u12g4"}'),
    metadata("short-hex", JSON, b'{"a":"\\u12'),
    metadata("first-half", JSON, b'{"a":"\\ud800"}'),
    metadata("two-first-halves", JSON, b'{"a":"\\ud800\\ud800"}'),
    metadata("second-half", JSON, b'{"a":"\\udc00"}'),
    metadata("depth-101", JSON, b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"),
    metadata("preprocess-list", R22, b'{"preprocess":[]}'),
    metadata("resize-text", RESIZE, b'{"preprocess":{"resize":"256"}}'),
    metadata("resize-part", RESIZE, b'{"preprocess":{"resize":1.5}}'),
    metadata("resize-small", RESIZE, b'{"preprocess":{"resize":0}}'),
    metadata("resize-large", RESIZE, b'{"preprocess":{"resize":17}}'),
    metadata("resize-huge", RESIZE, b'{"preprocess":{"resize":9223372036854775808}}'),
    metadata("labels-number", R22, b'{"labels":3}'),
    metadata("labels-of-numbers", R22, b'{"labels":[1]}'),
    metadata("labels-zero", LABELS, b'{"labels":["\\u0000"]}'),
    metadata("labels-two", LABELS, b'{"labels":["a","b"]}'),
    metadata("labels-unknown", NAMED, b'{"labels":"birds"}'),
    metadata("labels-cifar10", NAMED, b'{"labels":"cifar10"}'),
]
assert bnn.to_bytes(tiny_model()) == TINY
