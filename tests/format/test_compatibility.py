"""The promise of docs/format.md: files of every version give the same bits for ever; newer ones are refused or taken in
words that say so.

tests/data/compat has files with their outputs, each written and run by the package as it was when its version was new:
`first` (1.0), `integers` (1.1), `prelu` (the first of 1.2), `everything` (all of 1.2), `round` and `wide` (1.3).
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, _core, metadata
from ovsw import format as bnn

from support import DATA
from support.files import File, refusal
from support.format_doc import rows
from support.models import EXPECTED, TINY, small_model

FOLDER = DATA / "compat"
FILES: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def image(engine: _core.Model) -> np.ndarray:
    """Pixels for integers; for float, values whose sums are exact in any order."""
    c, h, w = engine.input_shape
    n = np.arange(c * h * w)
    if engine.numerics == "integer":
        return (n * 37 % 256).astype(np.uint8).reshape(h, w, c)
    return ((n * 7 % 17 - 8) * 0.5).astype(np.float32).reshape(c, h, w)


@pytest.mark.parametrize("name", FILES)
def test_old_files_give_the_same_bits(name: str, isa: str) -> None:
    """In the order of the text: row, column, channel."""
    engine = _core.load((FOLDER / name).read_bytes(), 1, isa)
    assert engine.run(image(engine)[None]).astype("<f4").tobytes().hex() == FILES[name]["outputs"]


@pytest.mark.parametrize("name", FILES)
def test_old_files_are_written_again_as_they_were(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    model = bnn.from_bytes(data)
    assert f"{model.version[0]}.{model.version[1]}" == FILES[name]["format"]
    assert bnn.to_bytes(model) == data


def test_there_are_files_of_every_version() -> None:
    assert {path.name for path in FOLDER.glob("*.bnn")} == set(FILES)
    kinds = {(bnn.read(FOLDER / name).numerics, about["format"]) for name, about in FILES.items()}
    assert {("float", f"1.{minor}") for minor in range(bnn.MINOR + 1)} <= kinds
    assert {("integer", f"1.{minor}") for minor in range(1, bnn.MINOR + 1)} <= kinds


# --- newer files -----------------------------------------------------------------------------------------------------


def newer(minor: int = bnn.MINOR + 1) -> bytes:
    """A file that says of itself that it is newer, with two keys that nobody knows."""
    model = small_model()
    model.metadata = {"arch": "a", "colour": 1, "taste": {}}
    return File(bnn.to_bytes(model)).set("header", 0, "minor", minor).repaired()


@pytest.mark.parametrize("minor", [bnn.MINOR + 1, 65535])
def test_a_newer_minor_version_is_taken_and_says_what_is_passed_over(minor: int, tmp_path: Path) -> None:
    path = tmp_path / "new.bnn"
    path.write_bytes(newer(minor))
    words = (
        rf"new.bnn: format version 1.{minor} is newer than 1.3, but the file uses nothing that is unknown here; "
        "its metadata 'colour', 'taste' is ignored$"
    )
    with pytest.warns(UserWarning, match=words):
        engine = Engine(path)
    assert engine.run(np.ones((1, 1, 1), np.float32)).tolist() == [1.0]
    with pytest.warns(UserWarning, match=words):
        assert bnn.read(path).version == (1, minor)


def test_a_newer_file_without_news_computes_the_same() -> None:
    data = File(TINY).set("header", 0, "minor", bnn.MINOR + 1).repaired()
    with pytest.warns(UserWarning, match="the model: format version 1.4 is newer than 1.3, .* unknown here$"):
        engine = Engine(data)
    assert engine.run(np.array(EXPECTED["values"], np.float32)).tolist() == EXPECTED["values_logits"]


@pytest.mark.parametrize("minor", range(bnn.MINOR + 1))
def test_known_versions_do_not_warn(minor: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Engine(newer(minor))


def test_a_refusal_of_a_newer_file_says_so() -> None:
    """But a damaged file is damaged, whatever its version field has become."""
    advice = "; the file is of format version 1.4, this reader knows 1.3: install a newer ovsw"
    data = File(TINY).set("header", 0, "minor", 4).set("op", 1, "kind", 16).repaired()
    for found in (refusal(lambda: bnn.from_bytes(data)), refusal(lambda: _core.load(data, 1, ""))):
        assert found == "op 1 'conv1': kind 16 is unknown" + advice
    flipped = bytes(File(TINY).set("header", 0, "minor", 4).data)
    for found in (refusal(lambda: bnn.from_bytes(flipped)), refusal(lambda: _core.load(flipped, 1, ""))):
        assert found == "checksum mismatch: the file is damaged"


def test_a_newer_major_version_says_what_to_install() -> None:
    for major, words in ((2, "format version 2.0, this reader knows 1.x: install a newer ovsw"),
                         (0, "format version 0.0, this reader knows 1.x")):  # fmt: skip
        data = File(TINY).set("header", 0, "major", major).repaired()
        for found in (refusal(lambda d=data: bnn.from_bytes(d)), refusal(lambda d=data: _core.load(d, 1, ""))):
            assert found == words


def test_the_known_keys_are_those_of_the_text() -> None:
    assert {name.split(".")[0] for name, _, _ in rows("Metadata")} == metadata.KEYS
