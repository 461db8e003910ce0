"""Damaged files: every cut and every flipped bit is found, and the message says where.

tests/attacks has a file for every rule.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.files import NAMES_THE_THING, File, refusals, with_metadata, with_name
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


def test_names_may_be_any_utf8() -> None:
    for name in ("", "ü", "层", "🂡", "a b", "x" * bnn.MAX_NAME):
        data = with_name(name.encode())
        assert bnn.from_bytes(data).ops[0].name == name
        assert Engine(data).profile(np.zeros((1, 1, 1), np.float32), repeat=1).rows[1].name == name


@pytest.mark.parametrize("name", [b"\xff", b"a\0b"])
def test_an_error_in_an_op_with_a_strange_name_says_what_is_wrong(name: bytes) -> None:
    data = with_name(name, small_model(act="clamp", clamp=(1.0, 0.0)))
    with pytest.raises(ValueError, match="the model") as e:
        Engine(data)
    assert "clamps to [1, 0]" in str(e.value) or "name is not printable UTF-8" in str(e.value)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 99_999 + b"]" * 99_999 + b"}"])
def test_deeply_nested_metadata_is_refused(text: bytes) -> None:
    assert all("metadata" in message for message in refusals(with_metadata(text)))


def test_an_image_may_be_scaled_to_16_times_the_input() -> None:
    model = small_model(shape=(1, 3, 2))
    model.metadata = {"preprocess": {"resize": 48}}
    assert Engine(bnn.to_bytes(model)).input.resize == 48
    assert bnn.from_bytes(bnn.to_bytes(model)).metadata == model.metadata


def test_unknown_metadata_is_ignored() -> None:
    model = small_model()
    model.metadata = {"future": [1, {"x": None}], "labels": [], "preprocess": {"future": 1}}
    assert Engine(bnn.to_bytes(model)).labels == []
