"""Pictures beside answers: what a terminal and a page get, read back by their own rules."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw.commands.show import ClassifiedImage, colours, html_page, terminal_picture

QUARTERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [95, 135, 215]]], np.uint8)
LEVELS = (0, 95, 135, 175, 215, 255)  # of xterm's cube


def pixels(lines: list[str]) -> np.ndarray:
    """What a terminal shows: each half block has the colour of its upper half in front and of the lower behind."""
    rows = []
    for line in lines:
        assert line.endswith("\x1b[0m")
        cells = re.findall(r"\x1b\[38;(2;\d+;\d+;\d+|5;\d+);48;(2;\d+;\d+;\d+|5;\d+)m▀", line)
        assert len("".join(f"\x1b[38;{a};48;{b}m▀" for a, b in cells)) == len(line) - 4
        rows += [[colour(upper) for upper, _ in cells], [colour(lower) for _, lower in cells]]
    return np.array(rows)


def colour(code: str) -> tuple[int, ...]:
    kind, *numbers = map(int, code.split(";"))
    if kind == 2:
        return tuple(numbers)
    index = numbers[0] - 16
    return LEVELS[index // 36], LEVELS[index // 6 % 6], LEVELS[index % 6]


@pytest.mark.parametrize("depth", ["truecolor", "24bit", ""])
def test_terminal(depth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These colours are in the cube, too."""
    monkeypatch.setenv("COLORTERM", depth)
    lines = terminal_picture(Image.fromarray(QUARTERS.repeat(50, 0).repeat(50, 1)), 8)
    assert ("38;2;" in lines[0]) == bool(depth)
    np.testing.assert_array_equal(pixels(lines), QUARTERS.repeat(4, 0).repeat(4, 1))


def test_256_colours_are_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLORTERM", raising=False)
    ramp = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2).repeat(2, 0)
    found = pixels(terminal_picture(Image.fromarray(ramp), 256))[0, :, 0]
    apart = np.abs(np.array(LEVELS)[:, None] - np.arange(256))
    np.testing.assert_array_equal(np.abs(found - np.arange(256)), apart.min(axis=0))


@pytest.mark.parametrize(("size", "lines"), [((400, 100), 4), ((1, 5000), 48), ((5000, 1), 1), ((30, 30), 16)])
def test_shape(size: tuple[int, int], lines: int) -> None:
    picture = terminal_picture(Image.new("RGB", size), 32)
    assert len(picture) == lines
    assert {line.count("▀") for line in picture} == {32}


def test_no_columns() -> None:
    with pytest.raises(ValueError, match="0 columns"):
        terminal_picture(Image.new("RGB", (4, 4)), 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours(variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """no-color.org: present and not empty, whatever its value."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colours(Terminal()) == expected
    assert not colours(io.StringIO())


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def images(self) -> list[np.ndarray]:
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(s.split("base64,")[1])))) for s in sources]


def test_page(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    upright = np.rot90(QUARTERS, -1)
    Image.fromarray(QUARTERS).save(tmp_path / "turned.png", exif=turned)
    rows = [
        ClassifiedImage("<script>.png", tmp_path / "turned.png", [("a & b", 0.75), ("\x1b[31m", 0.2), ("c", 0.04)]),
        ClassifiedImage("large", Image.fromarray(QUARTERS.repeat(400, 0).repeat(800, 1)), [("d", 1.0)], "right"),
        ClassifiedImage("bad.jpg", None, note="is not an <image>"),
    ]
    text = html_page(rows, "<title> of mine")
    page = Reader(text)
    assert "script" not in [tag for tag, _ in page.tags]
    for words in ("<script>.png", "a & b", "\\x1b[31m", "75.0 %", "right", "is not an <image>", "<title> of mine"):
        assert words in page.words
    widths = [attributes["style"] for tag, attributes in page.tags if tag == "i"]
    assert widths == ["width:75.0%", "width:20.0%", "width:4.0%", "width:100.0%"]
    small, large = page.images()
    np.testing.assert_array_equal(small, upright)
    assert large.shape == (128, 256, 3)
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import", text)
