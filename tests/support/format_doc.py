"""docs/format.md as data: its tables and records, and what the C++ sources say of the same things."""

from __future__ import annotations

import dataclasses
import re

from support import ROOT

DOC = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Field:
    offset: int
    size: int
    type: str
    name: str

    @property
    def code(self) -> str:
        """The field for `struct`."""
        return {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f32": "f", "bytes": f"{self.size}s"}[self.type]


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
