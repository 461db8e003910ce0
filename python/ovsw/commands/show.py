"""Pictures with their answers: in a terminal, with half blocks, and as a self-contained HTML page."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as html_escape
from itertools import zip_longest
from typing import TextIO

import numpy as np
from PIL import Image

from ovsw.image import ImageSource, load_image
from ovsw.util.text import visible

_RESET = "\x1b[0m"
_TALL = 3  # height over width at most; taller pictures are squeezed
_SIDE = 256  # pixels of a page's pictures


@dataclass(frozen=True)
class ClassifiedImage:
    """A picture with its answers: `top` is the result of `Engine.classify`, `note` a line below it."""

    name: str
    image: ImageSource | None
    top: Sequence[tuple[str, float]] = ()
    note: str = ""


def colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours; NO_COLOR switches them off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_picture(image: ImageSource, columns: int) -> list[str]:
    """Lines of `columns` characters, each of two pixels, in 256 colours unless COLORTERM promises more."""
    if columns < 1:
        raise ValueError(f"a picture of {columns} columns, expected at least 1")
    picture = load_image(image, 3)
    rows = max(1, round(min(picture.height / picture.width, _TALL) * columns / 2))
    small = picture.resize((columns, 2 * rows), Image.Resampling.BOX)
    code = _rgb if os.environ.get("COLORTERM") in ("truecolor", "24bit") else _cube
    pixels = np.asarray(small).tolist()
    return [
        "".join(f"\x1b[38;{code(upper)};48;{code(lower)}m▀" for upper, lower in zip(*pair)) + _RESET
        for pair in zip(pixels[::2], pixels[1::2])
    ]


def beside(picture: Sequence[str], texts: Sequence[str], columns: int, room: int = 0) -> list[str]:
    """A picture of `columns` columns with lines of text to its right, which are at least `room` columns wide."""
    pairs = zip_longest(picture, texts)
    return [f"{left or ' ' * columns}  {(right or '').ljust(room)}" for left, right in pairs]


def _rgb(pixel: list[int]) -> str:
    return "2;{};{};{}".format(*pixel)


def _cube(pixel: list[int]) -> str:
    """The nearest of six levels in each of red, green and blue: 0, 95, 135, 175, 215, 255."""
    red, green, blue = (0 if value < 48 else max(1, round((value - 55) / 40)) for value in pixel)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def html_page(rows: Iterable[ClassifiedImage], title: str) -> str:
    """A page with every picture and its answers: no scripts, no requests, everything escaped."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", '<div class="rows">', *map(_figure, rows), "</div>"])
    return page(title, _STYLE, body)


def page(title: str, style: str, body: str) -> str:
    """An HTML document that loads nothing but the pictures inside it; `body` is HTML, `title` is text."""
    return _PAGE.format(title=escape(title), style=style, body=body)


def escape(text: str) -> str:
    return html_escape(visible(text))


def _figure(row: ClassifiedImage) -> str:
    shown = "" if row.image is None else f'<img alt="{escape(row.name)}" src="{_data(row.image)}">'
    answers = "".join(
        f"<tr><th>{escape(label)}</th><td>{100 * p:.1f} %</td>"
        f'<td class="bar"><i style="width:{100 * min(max(p, 0.0), 1.0):.1f}%"></i></td></tr>'
        for label, p in row.top
    )
    answers = answers and f"<table>{answers}</table>"
    note = row.note and f"<p>{escape(row.note)}</p>"
    return f"<figure>{shown}<figcaption><b>{escape(row.name)}</b>{answers}{note}</figcaption></figure>"


def _data(image: ImageSource) -> str:
    """The picture, scaled down, as a data URL; PNG keeps small ones exact."""
    picture = load_image(image, 3)
    kind = "png" if max(picture.size) <= _SIDE // 2 else "jpeg"
    picture.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(file, kind)  # a copy without EXIF, which could turn it once more
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #e4e7eb; --mark: #1c7ed6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181b; --soft: #30363d; --mark: #4dabf7; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--paper);
       font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; }
.rows { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1.2rem; }
figure { display: flex; gap: 1rem; margin: 0; align-items: flex-start; }
img { width: 9rem; height: 9rem; flex: none; object-fit: contain; image-rendering: pixelated; background: var(--soft); }
figcaption { flex: 1; min-width: 0; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 400; }
td { text-align: right; white-space: nowrap; padding-left: 0.6rem; }
td.bar { width: 45%; }
i { display: block; height: 0.8rem; background: var(--mark); border-radius: 2px; }
p { margin: 0.3rem 0; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
