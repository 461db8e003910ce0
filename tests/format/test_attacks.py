"""Attack files: the C++ loader by itself and the Python reader by itself refuse each in the words of the index.

`_core.load` is the loader alone: nothing of Python sees the bytes before it.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from ovsw import _core, bounds
from ovsw import format as bnn

from attacks import FILES, INDEX
from attacks.__main__ import ATTACKS, COLUMNS
from attacks.limits import LIMITS
from support import ROOT, TABLES
from support.files import NAMES_THE_THING, refusal
from support.format_doc import rows

ROWS = [line.split("\t") for line in INDEX.read_text(encoding="utf-8").splitlines()]
ENTRIES = {row[0]: dict(zip(COLUMNS, row)) for row in ROWS[1:]}

# Sentences with MUST or a bound that no file can break, and where they are looked after.
ELSEWHERE = (
    "A reader MUST ignore keys that it does not know.",  # test_damaged.test_unknown_metadata_is_ignored
    "A reader MUST accept a newer minor version",  # test_compatibility
    "A reader MUST refuse a file that fails one of these checks",  # all of this
    "A reader MUST NOT follow an offset or allocate memory by a size before these are checked.",  # test_hostile
    "X * N * |M| + 65536 * |O| is then below 2^63 in any file",  # follows from three others
    "|Y| <= 2^50 by the limit of 2^20 on H * W * C.",  # follows from two others
)


def read(data: bytes) -> None:
    """The Python reader, with what it knows of integers."""
    model = bnn.from_bytes(data)
    if model.numerics == "integer":
        bounds.check(model)


def load(data: bytes, isa: str = "portable", memory_limit: int = 0) -> _core.Model:
    return _core.load(data, 1, isa, memory_limit)


def test_the_files_are_what_the_code_says() -> None:
    """`python -m attacks` in tests/ writes them anew."""
    assert {path.name for path in FILES.iterdir()} == {f"{name}.bnn" for name in ATTACKS} == set(ENTRIES)
    assert len(ENTRIES) == len(ROWS) - 1 == len(ATTACKS)
    for name, make in ATTACKS.items():
        assert (FILES / f"{name}.bnn").read_bytes() == make(), name


@pytest.mark.parametrize("name", ENTRIES)
def test_both_refuse(name: str) -> None:
    """Where the Python reader need not, it takes the file (rules 15 to 21 of numerics float, and keys that it does not
    use). The loader checks before it chooses kernels: the table plays no part."""
    data, entry = (FILES / name).read_bytes(), ENTRIES[name]
    assert refusal(lambda: load(data)) == entry["C++"]
    assert NAMES_THE_THING.search(entry["C++"]) or name == "metadata-labels-cifar10.bnn"
    assert refusal(lambda: read(data)) == (None if entry["Python"] == "-" else entry["Python"])


@pytest.mark.parametrize("name", LIMITS)
def test_files_at_a_limit_are_valid(name: str) -> None:
    data = LIMITS[name]()
    read(data)
    for isa in {"portable", TABLES[0]}:
        engine = load(data, isa, memory_limit=1 << 30)
        c, h, w = engine.input_shape
        assert np.isfinite(engine.run(np.zeros((1, h, w, c), np.uint8))).all()


def test_the_most_taps() -> None:
    """A valid file of 999999999 taps has 125 MB of weights: of this one the loader looks at the weight at least."""
    model = bnn.from_bytes(ATTACKS["taps"]())
    model.values[1].c = 333667
    first = bnn.Op("channel_pad", "", 0, out=model.add_value("f32", 131071, 1, 1), channels=(65535, 65535))
    second = bnn.Op("channel_pad", "", 3, out=model.add_value("f32", 262141, 1, 1), channels=(65535, 65535))
    third = bnn.Op("channel_pad", "", 4, out=1, channels=(333667 - 262141 - 65535, 65535))
    model.ops[:1] = [first, second, third]
    model.ops[3].window, model.ops[3].pad = (111, 27), (55, 13)
    message = "op 3 'wide': weight (tensor 2) has shape 1, expected 1x111x27x333667"
    assert refusal(lambda: load(bnn.to_bytes(model))) == message
    model.ops[3].window, model.ops[3].pad = (112, 27), (56, 13)
    message = "op 3 'wide': has 1009009008 inputs per output, expected at most 999999999"
    assert refusal(lambda: load(bnn.to_bytes(model))) == message


# --- every rule has an attack ----------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    """Of paragraphs and lists; headings, tables and formulas have none."""
    blocks = [block for block in re.split(r"\n\s*?\n", text) if not re.match(r"#|\| |    ", block)]
    items = [item for block in blocks for item in re.split(r"\n(?=- |\d+\. )", block)]
    whole = [plain(re.sub(r"^(- |\d+\. )", "", item.strip())) for item in items]
    return [sentence for item in whole for sentence in re.split(r"(?<=\.)\s+(?=[A-Z|`])", item) if sentence]


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def between(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end)]


def rules() -> list[str]:
    """All that a reader MUST check: the list in format.md, other sentences there with MUST, and bounds."""
    form, numbers = document("format.md"), document("numerics.md")
    body = between(form, "## Conventions", "## Rules for writers") + between(form, "## Compatibility", "## Example")
    listed = between(form, "\n1. The file starts", "A reader that shows the tables")
    must = [s for s in sentences(body) if "MUST" in s] + sentences(listed)
    bounded = [
        s for s in sentences(between(numbers, "## Values", "## What the exporter")) if "<=" in s or "There is n" in s
    ]
    return must + bounded


def test_quotes_are_in_the_text() -> None:
    text = plain(document("format.md")) + plain(document("numerics.md"))
    limits = {f"limit `{name}`" for name, _, _ in rows("Limits")}
    quoted = {entry["rule"] for entry in ENTRIES.values()}
    assert {rule for rule in quoted if rule not in text} == limits


def test_every_rule_has_an_attack() -> None:
    found = rules()
    assert len(found) > 70  # or the text is read wrongly
    quotes = {entry["rule"] for entry in ENTRIES.values()}
    without = [
        rule
        for rule in found
        if not any(quote in rule or rule in quote for quote in quotes) and not any(s in rule for s in ELSEWHERE)
    ]
    assert without == []
