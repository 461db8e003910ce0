"""Attacks on the container (rules 1 to 14 and 22 of docs/format.md): fields of tests/data/tiny.bnn changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ovsw import format as bnn

from support.files import File, with_metadata, with_name
from support.models import TINY, small_model, tiny_model


def fields(*changes: tuple[str, int, str, Any], base: bytes = TINY) -> Callable[[], bytes]:
    """The tiny file with fields set to other numbers."""

    def make() -> bytes:
        file = File(base)
        for change in changes:
            file.set(*change)
        return file.repaired()

    return make


def metadata(text: bytes) -> Callable[[], bytes]:
    return lambda: with_metadata(text)


def newer(*change: Any) -> Callable[[], bytes]:
    """In a file of version 1.4."""
    return fields(("header", 0, "minor", 4), change)


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


ATTACKS: dict[str, Callable[[], bytes]] = {
    "magic": lambda: b"\x88" + TINY[1:],
    "empty": lambda: b"",
    "seven-bytes": lambda: cut(7),
    "header-cut": lambda: cut(63),
    "major-0": fields(("header", 0, "major", 0)),
    "major-2": fields(("header", 0, "major", 2)),
    "cut": lambda: cut(len(TINY) - 1),
    "too-long": long_file,
    "file-size": fields(("header", 0, "file_size", 1 << 63)),
    "checksum": flipped,
    "header-size-60": fields(("header", 0, "header_size", 60)),
    "header-size-66": fields(("header", 0, "header_size", 66)),
    "outputs-1025": fields(("header", 0, "header_size", 64 + 4 * 1024)),
    "no-values": fields(("header", 0, "value_count", 0)),
    "no-tensors": fields(("header", 0, "tensor_count", 0)),
    "no-ops": fields(("header", 0, "op_count", 0)),
    "values-16385": fields(("header", 0, "value_count", 16385)),
    "tensors-16385": fields(("header", 0, "tensor_count", 16385)),
    "ops-16385": fields(("header", 0, "op_count", 16385)),
    "strings-size": fields(("header", 0, "strings_size", (1 << 22) + 1)),
    "metadata-size": fields(("header", 0, "metadata_size", (1 << 24) + 1)),
    "tables-past-end": fields(("header", 0, "metadata_size", 1 << 11)),
    "numerics-2": fields(("header", 0, "numerics", 2)),
    "output-6": fields(("header", 0, "output", 6)),
    "mean-10": fields(("header", 0, "mean", 10)),
    "std-10": fields(("header", 0, "std", 10)),
    "further-output-3": lambda: two_outputs(3),
    "output-twice": lambda: two_outputs(1),
    "value-kind-5": fields(("value", 2, "kind", 5)),
    "value-kind-integer": fields(("value", 2, "kind", 2)),
    **{f"value-{side}-0": fields(("value", 3, side, 0)) for side in "chw"},
    **{f"value-{side}-large": fields(("value", 3, side, (1 << 20) + 1)) for side in "chw"},
    "value-elements": fields(("value", 3, "c", 1), ("value", 3, "h", 1 << 20), ("value", 3, "w", 129)),
    "value-pixels": fields(*(("value", 3, side, 1 << 20) for side in "chw")),
    "dtype-7": fields(("tensor", 5, "dtype", 7)),
    "rank-0": fields(("tensor", 2, "rank", 0)),
    "rank-5": fields(("tensor", 2, "rank", 5)),
    "dim-0": fields(("tensor", 2, "dim1", 0)),
    "dim-large": fields(("tensor", 2, "dim1", (1 << 20) + 1)),
    "dim-past-rank": fields(("tensor", 0, "dim1", 1)),
    "tensor-reserved": fields(("tensor", 2, "reserved", 1)),
    "length": fields(("tensor", 2, "length", 104)),
    "large-tensor": large_tensor,
    "wrapped-tensor": wrapped_tensor,
    "offset-0": fields(("tensor", 2, "offset", 0)),
    "hole": shifted_tensor,
    "tensor-past-end": lambda: repaired(cut(len(TINY) - 8)),
    "tensor-behind-end": lambda: repaired(cut(948)),
    "padding": byte(1215, 1),
    "rest": lambda: repaired(long_file()),
    "tail-bit": byte(1344, 11),
    "tail-bit-last": byte(1559, 128),
    "name-offset": fields(("op", 1, "name_offset", 16)),
    "name-size": fields(("op", 3, "name_size", 3)),
    "name-256": lambda: with_name(b"x" * 256),
    "name-latin1": lambda: with_name(b"\xff"),
    "name-surrogate": lambda: with_name(b"\xed\xa0\x80"),
    "name-control": lambda: with_name(b"a\x1fb"),
    "name-delete": lambda: with_name(b"\x7f"),
    "flags-4": fields(("op", 1, "flags", 4)),
    "float-shift": fields(("op", 1, "shift", 1)),
    "op-kind-0": fields(("op", 1, "kind", 0)),
    "op-kind-16": fields(("op", 1, "kind", 16)),
    "newer-op-kind": newer("op", 1, "kind", 16),
    "newer-flags": newer("op", 1, "flags", 4),
    "activation-6": fields(("op", 1, "activation", 6)),
    **{f"op-{what}-6": fields(("op", 1, what, 6)) for what in ("input", "residual", "out", "bits")},
    **{f"op-{what}-10": fields(("op", 1, what, 10)) for what in ("weight", "scale", "offset", "slope")},
    "op-threshold-11": fields(("op", 1, "threshold", 11)),
    "op-shift-10": lambda: integer_tiny("shift"),
    "op-no-input": fields(("op", 1, "input", bnn.NONE)),
    "metadata-empty": metadata(b""),
    "metadata-list": metadata(b"[]"),
    "metadata-open": metadata(b"{"),
    "metadata-rest": metadata(b"{}}"),
    "metadata-latin1": metadata(b'{"arch":"\xff"}'),
    "metadata-nan": metadata(b'{"a":NaN}'),
    "metadata-minus": metadata(b'{"a":-}'),
    "metadata-point": metadata(b'{"a":1.}'),
    "metadata-exponent": metadata(b'{"a":1e}'),
    "metadata-leading-zero": metadata(b'{"a":01}'),
    "metadata-literal": metadata(b'{"a":nul}'),
    "metadata-no-colon": metadata(b'{"a" 1}'),
    "metadata-no-string": metadata(b"{1:1}"),
    "metadata-open-string": metadata(b'{"a'),
    "metadata-control": metadata(b'{"a":"\n"}'),
    "metadata-escape": metadata(b'{"a":"\\x"}'),
    "metadata-hex": metadata(b'{"a":"\\u12g4"}'),
    "metadata-short-hex": metadata(b'{"a":"\\u12'),
    "metadata-first-half": metadata(b'{"a":"\\ud800"}'),
    "metadata-two-first-halves": metadata(b'{"a":"\\ud800\\ud800"}'),
    "metadata-second-half": metadata(b'{"a":"\\udc00"}'),
    "metadata-depth-101": metadata(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"),
    "metadata-preprocess-list": metadata(b'{"preprocess":[]}'),
    "metadata-resize-text": metadata(b'{"preprocess":{"resize":"256"}}'),
    "metadata-resize-part": metadata(b'{"preprocess":{"resize":1.5}}'),
    "metadata-resize-small": metadata(b'{"preprocess":{"resize":0}}'),
    "metadata-resize-large": metadata(b'{"preprocess":{"resize":17}}'),
    "metadata-resize-huge": metadata(b'{"preprocess":{"resize":9223372036854775808}}'),
    "metadata-labels-number": metadata(b'{"labels":3}'),
    "metadata-labels-of-numbers": metadata(b'{"labels":[1]}'),
    "metadata-labels-zero": metadata(b'{"labels":["\\u0000"]}'),
    "metadata-labels-two": metadata(b'{"labels":["a","b"]}'),
    "metadata-labels-unknown": metadata(b'{"labels":"birds"}'),
    "metadata-labels-cifar10": metadata(b'{"labels":"cifar10"}'),
}
assert bnn.to_bytes(tiny_model()) == TINY
