"""Tables of an experiment, as Markdown and CSV, with the paper's numbers beside ours; made from its folder alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ovsw.repro import figures
from ovsw.repro.results import Mean, Results, Row, load_results, write_csv
from ovsw.util.files import replace_file
from ovsw.util.text import table

HEAD = ("row", "top-1, %", "best epoch, %", "flips in the last epoch, %", "never flipped, %", "n")
LAYER_HEAD = ("row", "layer", "weights", "never flipped, %", "other sign than at the start, %", "n", "paper: never, %")
CSV_HEAD = (
    *("row", "series", "x", "epochs", "n", "diverged", "top1_mean", "top1_sd", "best_mean", "best_sd"),
    *("flip_rate_mean", "flip_rate_sd", "never_flipped_mean", "never_flipped_sd", "paper"),
)
LAYER_CSV_HEAD = ("row", "layer", "weights", "n", "never_flipped_mean", "never_flipped_sd", "changed_mean", "paper")


def report(folder: Path) -> str:
    """Writes table.md, table.csv and the pictures of an experiment's folder. Returns the table as text."""
    results = load_results(folder)
    rows = [_cells(row) for row in results.rows]
    layers = [cells for row in results.rows for cells in _layer_cells(row, results.about["layers"])]
    pictures = figures.draw(results, folder)
    write_csv(folder / "table.csv", CSV_HEAD, [_numbers(row) for row in results.rows])
    if layers:
        numbers = [n for row in results.rows for n in _layer_numbers(row, results.about["layers"])]
        write_csv(folder / "layers.csv", LAYER_CSV_HEAD, numbers)
    replace_file(folder / "table.md", _markdown(results, rows, layers, pictures).encode())
    text = table(_head(results), rows, right=range(1, 6))
    return text if not layers else f"{text}\n\n{table(LAYER_HEAD, layers, right=range(2, 6))}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _head(results: Results) -> tuple[str, ...]:
    return (*HEAD, "paper's top-1, %" + (" (not comparable)" if results.about["scale"] != "paper" else ""))


def _summary(row: Row) -> tuple[Mean, Mean, Mean, Mean]:
    last, best = Mean.of(row.values("test_acc1")), Mean.of(row.values("test_acc1", "best"))
    return last, best, Mean.of(row.values("flip_rate")), Mean.of(row.values("never_flipped"))


def _cells(row: Row) -> tuple[str, ...]:
    last, best, flips, never = _summary(row)
    n = f"{last.n}" + (f" (+{row.diverged} diverged)" if row.diverged else "")
    return (row.label, last.text(), best.text(), flips.text(100), never.text(100), n, row.paper or "-")


def _numbers(row: Row) -> list[Any]:
    means = _summary(row)
    x = "" if row.x is None else row.x
    found = [row.label, row.series, x, row.epochs, means[0].n, row.diverged]
    for mean in means:
        found += ["" if math.isnan(mean.mean) else mean.mean, "" if mean.deviation is None else mean.deviation]
    return [*found, row.paper]


def _layer_means(row: Row, layer: str) -> tuple[int, Mean, Mean]:
    found = [run.flips[layer] for run in row.runs if layer in run.flips]
    weights = found[0][0] if found else 0
    return weights, Mean.of([never for _, never, _ in found]), Mean.of([changed for *_, changed in found])


def _layer_cells(row: Row, layers: Sequence[str]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    for i, layer in enumerate(layers):
        weights, never, changed = _layer_means(row, layer)
        paper = f"{row.never[i]:.2f}" if i < len(row.never) else "-"
        cells.append((row.label, layer, f"{weights:,}", never.text(100), changed.text(100), str(never.n), paper))
    return cells


def _layer_numbers(row: Row, layers: Sequence[str]) -> list[list[Any]]:
    found = []
    for i, layer in enumerate(layers):
        weights, never, changed = _layer_means(row, layer)
        deviation = "" if never.deviation is None else never.deviation
        paper = row.never[i] if i < len(row.never) else ""
        found.append([row.label, layer, weights, never.n, never.mean, deviation, changed.mean, paper])
    return found


def _markdown(
    results: Results, rows: list[tuple[str, ...]], layers: list[tuple[str, ...]], pictures: Sequence[str]
) -> str:
    about = results.about
    seeds = ", ".join(map(str, about["seeds"]))
    parts = [f"# {about['title']}", f"`ovsw-repro {about['name']} --scale {about['scale']}`: {about['about']}."]
    parts.append(markdown_table(_head(results), rows, range(1, 6)))
    if layers:
        parts.append(markdown_table(LAYER_HEAD, layers, range(2, 6)))
    parts.append(
        f"Seeds {seeds}. Mean ± standard deviation (n - 1) of n runs; without ± there is one run. Top-1 is that of the "
        "last epoch; the best epoch is chosen on the test images and is shown because papers often report it. "
        "Flips and never flipped are shares of all binary weights: other sign than an epoch before, same sign at every "
        "step."
    )
    for slug, reason in results.missing.items():
        parts.append(f"Missing: `{slug}` failed: {reason}")
    parts += [f"![{about['title']}]({name})" for name in pictures]
    parts.append(f"**Comparable with the paper**: {about['comparable']}.")
    parts.append(f"**Not comparable**: {about['different']}.")
    parts.append("Runs, each with `--seed` of the above:")
    parts.append("\n".join(f"- {row.label}: `{row.command}`" for row in results.rows))
    parts.append("All this is made from `runs/` beside it, again by `ovsw-repro --redraw DIR`.")
    return "\n\n".join(parts) + "\n"
