"""Damaged files: every fault is found, and the message says where."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, _core
from ovsw import format as bnn

from support.files import NAMES_THE_THING, File, load_and_run, refusals, with_metadata, with_name
from support.models import TINY, small_model


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


@pytest.mark.parametrize(
    ("kind", "index", "field", "code", "message"),
    [
        ("header", 0, "numerics", 2, "numerics 2 is unknown"),
        ("value", 2, "kind", 5, "value 2: kind 5 is unknown"),
        ("tensor", 5, "dtype", 7, "tensor 5: dtype 7 is unknown"),
        ("op", 1, "kind", 15, "op 1 'conv1': kind 15 is unknown"),
        ("op", 1, "kind", 0, "op 1 'conv1': kind 0 is unknown"),
        ("op", 1, "activation", 6, "op 1 'conv1': activation 6 is unknown"),
    ],
)
def test_unknown_codes_are_refused_in_a_newer_minor_version(
    kind: str, index: int, field: str, code: int, message: str
) -> None:
    data = File(TINY).set("header", 0, "minor", bnn.MINOR + 1).set(kind, index, field, code).repaired()
    assert all(message in found for found in refusals(data))


@pytest.mark.parametrize(
    ("kind", "index", "field", "number", "message"),
    [
        ("header", 0, "header_size", 60, "header_size is 60, expected 64"),
        ("header", 0, "header_size", 66, "header_size is 66, expected 64"),
        ("header", 0, "header_size", 64 + 4 * 1024, "header_size is 4160, expected 64"),
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
        ("op", 1, "threshold", 11, "op 1 'conv1': threshold refers to 10, there are 10"),
        ("op", 1, "threshold", bnn.NONE, "op 1 'conv1': threshold refers to 4294967294, there are 10"),
        ("op", 1, "flags", 4, "op 1 'conv1': reserved bytes are not zero"),
        ("op", 1, "flags", 1 << 15, "op 1 'conv1': reserved bytes are not zero"),
        ("op", 1, "shift", 1, "op 1 'conv1': reserved bytes are not zero"),
    ],
)
def test_hostile_fields(kind: str, index: int, field: str, number: Any, message: str) -> None:
    data = File(TINY).set(kind, index, field, number).repaired()
    assert all(message in found for found in refusals(data))


def two_outputs() -> bnn.Model:
    model = small_model()
    model.ops.append(bnn.Op("eltwise", "copy", 1, out=model.add_value("f32", 1, 1, 1)))
    model.more_outputs = [2]
    return model


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, "a further output is value 3, there are 3"),
        (bnn.NONE, "a further output is value 4294967295"),
        (1, "an output is named twice"),
    ],
)
def test_further_outputs(index: int, message: str) -> None:
    data = bnn.to_bytes(two_outputs())
    assert File(data).header_size == 68
    assert load_and_run(data) == "ran"
    for found in refusals(File(data).splice(64, 68, index.to_bytes(4, "little")).repaired()):
        assert message in found


def test_too_many_outputs() -> None:
    model = small_model()
    for i in range(1, 1025):
        model.ops.append(bnn.Op("eltwise", "", i, out=model.add_value("f32", 1, 1, 1)))
    model.more_outputs = list(range(2, 1025))
    assert load_and_run(bnn.to_bytes(model)) == "ran"
    model.more_outputs.append(1025)
    assert all("header_size is 4160" in message for message in refusals(bnn.to_bytes(model)))


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
        ({"preprocess": {"resize": 40000}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": 17}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": 1.5}}, "preprocess.resize must be"),
        ({"preprocess": {"resize": None}}, "preprocess.resize must be"),
    ],
)
def test_metadata_of_the_wrong_type(metadata: dict[str, Any], message: str) -> None:
    model = small_model()
    model.metadata = metadata
    with pytest.raises(ValueError, match=re.escape(message)):
        _core.Engine(bnn.to_bytes(model), 1, "")
    if "preprocess" in metadata:
        with pytest.raises(bnn.FormatError, match=re.escape(message)):
            bnn.from_bytes(bnn.to_bytes(model))


def test_an_image_may_be_scaled_to_16_times_the_input() -> None:
    model = small_model(shape=(1, 3, 2))
    model.metadata = {"preprocess": {"resize": 48}}
    assert Engine(bnn.to_bytes(model)).input.resize == 48
    assert bnn.from_bytes(bnn.to_bytes(model)).metadata == model.metadata


def test_unknown_metadata_is_ignored() -> None:
    model = small_model()
    model.metadata = {"future": [1, {"x": None}], "labels": [], "preprocess": {"future": 1}}
    assert Engine(bnn.to_bytes(model)).labels == []


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
