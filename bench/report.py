"""`ovsw-bench --html`: a result as one self-contained page: no scripts, no requests, pictures inside.

Names come from users and other engines, so everything except our own tags is escaped.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ovsw.bench import plot, profile, scaling, table
from ovsw.bench.result import Result, plain
from ovsw.commands.show import escape, page

_NUMBER = re.compile(r"-|[\d.]+(x| %)?( \.\. [\d.]+)?")
_LONG = 24  # characters that a line of a table may be broken after
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #f1f3f5; --line: #d5d9de; --mark: #c92a2a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --soft: #22262b; --line: #3a4047; --mark: #ff8787; }
  img { filter: invert(0.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--paper);
       font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 0.3rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem; }
p { margin: 0.4rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.22rem 0.6rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { background: var(--soft); }
th.number, td.number { text-align: right; }
td.text { white-space: normal; min-width: 10rem; }
tr.ours td { font-weight: 600; }
tr.paper td { font-style: italic; background: var(--soft); }
.warning { color: var(--mark); font-weight: 600; }
img { display: block; margin: 1rem 0; max-width: 100%; min-width: 34rem; height: auto; }
@media (max-width: 40rem) { table { font-size: 0.75rem; } th, td { padding: 0.2rem 0.4rem; } }
"""


def html(result: Result, paper: bool = True) -> str:
    """The whole page; `paper` adds the figures of the OvSW paper to the table and its picture."""
    context = result.context
    cpu = escape(context.cpu)
    body = [
        f"<h1>ovsw-bench: {cpu}</h1>",
        _lines([f"{context.threads} thread(s), batch {context.batch}, {context.date}"]),
        _lines((f"Warning: {text}" for text in context.warnings), "warning"),
    ]
    if result.rows:
        body += ["<h2>Deployment</h2>", _table(table.HEAD, table.cells(result, paper), _kind)]
        body += [_picture(plot.table_plot, result, "latency of the engines", paper=paper)]
        body += ["<h2>All engines timed</h2>", _lines(["x ovsw: an engine's time over ovsw's in the same round."])]
        body += [_table(table.ALL_HEAD, table.all_cells(result))]
    if baseline := result.memory.get("baseline_mb"):
        alone = f"python with numpy alone has {baseline:.0f} MB"
        body.append(_lines([f"Peak: of a process of its own for each; {alone}."]))
    for network, steps in result.profile.items():
        body += [f"<h2>Where the time goes: {escape(network)}</h2>", _lines(profile.head(steps))]
        body += [_picture(plot.steps_plot, steps, f"time of each step of {network}", network=network)]
        body += [_picture(plot.roofline, steps, f"roofline of {network}", network=network)]
        body += ["<h3>By op</h3>", _table(profile.OP_HEAD, profile.op_cells(steps))]
        body += ["<h3>By step</h3>", _table(profile.STEP_HEAD, profile.step_cells(steps))]
    for network, points in result.scaling.items():
        body += [f"<h2>Threads and batches: {escape(network)}</h2>", _lines(scaling.head(points))]
        body += [_picture(plot.scaling_plot, points, f"images per second of {network}")]
        body += [_table(scaling.HEAD, scaling.cells(points))]
    if result.skipped:
        rows = [(s.peer, s.network or "all", s.why) for s in result.skipped]
        body += ["<h2>Not timed</h2>", _table(("engine", "network", "why"), rows)]
    body += ["<h2>Context</h2>", _table(("what", "value"), _flat(plain(context)))]
    return page(f"ovsw-bench: {context.cpu}", _STYLE, "\n".join(filter(None, body)))


def _lines(lines: Iterable[str], name: str = "") -> str:
    return "\n".join(f"<p{_class(name)}>{escape(line)}</p>" for line in lines)


def _kind(cells: Sequence[str]) -> str:
    """Of a row of the deployment table."""
    return "paper" if cells[-1] == table.PAPER_ENGINE else "ours" if cells[1] == "1/1" else ""


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], kind: Callable[[Sequence[str]], str] = lambda cells: ""
) -> str:
    body = list(rows)
    kinds = ["number" if all(map(_NUMBER.fullmatch, column)) else "" for column in zip(*body)]
    titles = "".join(f"<th{_class(name)}>{escape(text)}</th>" for text, name in zip(head, kinds))
    lines = "\n".join(f"<tr{_class(kind(row))}>{''.join(map(_cell, row, kinds))}</tr>" for row in body)
    return f'<div class="wide"><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def _cell(text: str, kind: str) -> str:
    return f"<td{_class('text' if len(text) > _LONG else kind)}>{escape(text)}</td>"


def _class(name: str | None) -> str:
    return f' class="{name}"' if name else ""


def _picture(draw: Callable[..., None], what: object, about: str, **options: Any) -> str:
    file = io.BytesIO()
    draw(what, file, **options)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<div class="wide"><img alt="{escape(about)}" src="data:image/png;base64,{data}"></div>'


def _flat(context: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Key and value of everything that is known."""
    rows = []
    for key, value in context.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}: ")
        elif value not in (None, []):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((prefix + key.replace("_", " "), shown))
    return rows
