"""Tables of an experiment, as Markdown and CSV, with the paper's numbers next to ours; made from its folder alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ovsw.repro import figures
from ovsw.repro.results import Mean, PointResult, Results, load_results
from ovsw.util.files import replace_file, write_csv
from ovsw.util.text import markdown_table, table

MEANS = ("top1", "best", "flip_rate", "never_flipped")
HEAD = ("row", "top-1, %", "best epoch, %", "flips in the last epoch, %", "never flipped, %", "n")
LAYER_HEAD = ("row", "layer", "weights", "never flipped, %", "other sign than at the start, %", "n", "paper: never, %")
CSV_HEAD = (
    *("row", "series", "x", "epochs", "n", "diverged"),
    *(f"{name}_{part}" for name in MEANS for part in ("mean", "sd")),
    "paper",
)
LAYER_CSV_HEAD = ("row", "layer", "weights", "n", "never_flipped_mean", "never_flipped_sd", "changed_mean", "paper")

Numbers = list[Any]  # a line of a CSV file, in which None is empty
Cells = tuple[str, ...]


def report(folder: Path) -> str:
    """Writes table.md, table.csv and the pictures of an experiment's folder. Returns the table as text."""
    results = load_results(folder)
    rows = [_row(row) for row in results.rows]
    layers = [line for row in results.rows for line in _layers(row, results.experiment["layers"])]
    pictures = figures.draw(results, folder)
    write_csv(folder / "table.csv", CSV_HEAD, [numbers for _, numbers in rows])
    tables = [(_head(results), [cells for cells, _ in rows], range(1, 6))]
    if layers:
        write_csv(folder / "layers.csv", LAYER_CSV_HEAD, [numbers for _, numbers in layers])
        tables.append((LAYER_HEAD, [cells for cells, _ in layers], range(2, 6)))
    marked = [markdown_table(*each) for each in tables]
    replace_file(folder / "table.md", _markdown(results, marked, pictures).encode())
    return "\n\n".join(table(*each) for each in tables)


def _head(results: Results) -> Cells:
    return (*HEAD, "paper's top-1, %" + (" (not comparable)" if results.experiment["scale"] != "paper" else ""))


def _row(row: PointResult) -> tuple[Cells, Numbers]:
    """A row of the table as text and as numbers."""
    last, best = Mean.of(row.values("test_acc1")), Mean.of(row.values("test_acc1", "best"))
    flips, never = Mean.of(row.values("flip_rate")), Mean.of(row.values("never_flipped"))
    n = f"{last.n}" + (f" (+{row.diverged} diverged)" if row.diverged else "")
    cells = (row.label, last.text(), best.text(), flips.text(100), never.text(100), n, row.paper or "-")
    means = (last, best, flips, never)
    pairs = [value for mean in means for value in (None if math.isnan(mean.mean) else mean.mean, mean.deviation)]
    return cells, [row.label, row.series, row.x, row.epochs, last.n, row.diverged, *pairs, row.paper]


def _layers(row: PointResult, layers: Sequence[str]) -> Iterator[tuple[Cells, Numbers]]:
    """The rows of the layers: shares of weights that never flipped and that changed, and the paper's of the first."""
    for layer, paper in zip_longest(layers, row.never[: len(layers)]):
        flips = [run.flips[layer] for run in row.runs if layer in run.flips]
        weights = flips[0][0] if flips else 0
        never, changed = (Mean.of([shares[k] for shares in flips]) for k in (1, 2))
        shown = "-" if paper is None else f"{paper:.2f}"
        cells = (row.label, layer, f"{weights:,}", never.text(100), changed.text(100), str(never.n), shown)
        yield cells, [row.label, layer, weights, never.n, never.mean, never.deviation, changed.mean, paper]


def _markdown(results: Results, tables: Sequence[str], pictures: Sequence[str]) -> str:
    experiment = results.experiment
    seeds = ", ".join(map(str, experiment["seeds"]))
    parts = [
        f"# {experiment['title']}",
        f"`ovsw-repro {experiment['name']} --scale {experiment['scale']}`: {experiment['about']}.",
        *tables,
        f"Seeds {seeds}. Mean ± standard deviation (n - 1) of n runs; without ± there is one run. Top-1 is that of the "
        "last epoch; the best epoch is chosen on the test images and is shown because papers often report it. "
        "Flips and never flipped are shares of all binary weights: other sign than an epoch before, same sign at every "
        "step.",
        *(f"Missing: `{slug}` failed: {reason}" for slug, reason in results.missing.items()),
        *(f"![{experiment['title']}]({name})" for name in pictures),
        f"**Comparable with the paper**: {experiment['comparable']}.",
        f"**Not comparable**: {experiment['different']}.",
        "Runs, each with `--seed` of the above:",
        "\n".join(f"- {row.label}: `{row.command}`" for row in results.rows),
        "All this is made from `runs/` beside it, again by `ovsw-repro --redraw DIR`.",
    ]
    return "\n\n".join(parts) + "\n"
