"""Tables of an experiment, as Markdown and CSV, with the paper's numbers next to ours; made from its folder alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ovsw.repro import figures
from ovsw.repro.results import Mean, PointResult, Results, load_results
from ovsw.util.files import replace_file, write_csv
from ovsw.util.text import markdown_table, table

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
    layers = [cells for row in results.rows for cells in _layer_cells(row, results.experiment["layers"])]
    pictures = figures.draw(results, folder)
    write_csv(folder / "table.csv", CSV_HEAD, [_numbers(row) for row in results.rows])
    if layers:
        numbers = [n for row in results.rows for n in _layer_numbers(row, results.experiment["layers"])]
        write_csv(folder / "layers.csv", LAYER_CSV_HEAD, numbers)
    replace_file(folder / "table.md", _markdown(results, rows, layers, pictures).encode())
    text = table(_head(results), rows, right=range(1, 6))
    return text if not layers else f"{text}\n\n{table(LAYER_HEAD, layers, right=range(2, 6))}"


def _head(results: Results) -> tuple[str, ...]:
    return (*HEAD, "paper's top-1, %" + (" (not comparable)" if results.experiment["scale"] != "paper" else ""))


def _summary(row: PointResult) -> tuple[Mean, Mean, Mean, Mean]:
    last, best = Mean.of(row.values("test_acc1")), Mean.of(row.values("test_acc1", "best"))
    return last, best, Mean.of(row.values("flip_rate")), Mean.of(row.values("never_flipped"))


def _cells(row: PointResult) -> tuple[str, ...]:
    last, best, flips, never = _summary(row)
    n = f"{last.n}" + (f" (+{row.diverged} diverged)" if row.diverged else "")
    return (row.label, last.text(), best.text(), flips.text(100), never.text(100), n, row.paper or "-")


def _numbers(row: PointResult) -> list[Any]:
    means = _summary(row)
    pairs = [value for mean in means for value in ("" if math.isnan(mean.mean) else mean.mean, _blank(mean.deviation))]
    return [row.label, row.series, _blank(row.x), row.epochs, means[0].n, row.diverged, *pairs, row.paper]


def _layers(row: PointResult, layers: Sequence[str]) -> Iterator[tuple[str, int, Mean, Mean, float | None]]:
    """Each layer's weights, shares of those that never flipped and that changed, and the paper's share of the first."""
    for i, layer in enumerate(layers):
        flips = [run.flips[layer] for run in row.runs if layer in run.flips]
        never, changed = (Mean.of([shares[k] for shares in flips]) for k in (1, 2))
        yield layer, flips[0][0] if flips else 0, never, changed, row.never[i] if i < len(row.never) else None


def _layer_cells(row: PointResult, layers: Sequence[str]) -> list[tuple[str, ...]]:
    return [
        (row.label, layer, f"{weights:,}", never.text(100), changed.text(100), str(never.n))
        + ("-" if paper is None else f"{paper:.2f}",)
        for layer, weights, never, changed, paper in _layers(row, layers)
    ]


def _layer_numbers(row: PointResult, layers: Sequence[str]) -> list[list[Any]]:
    return [
        [row.label, layer, weights, never.n, never.mean, _blank(never.deviation), changed.mean, _blank(paper)]
        for layer, weights, never, changed, paper in _layers(row, layers)
    ]


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _markdown(
    results: Results, rows: list[tuple[str, ...]], layers: list[tuple[str, ...]], pictures: Sequence[str]
) -> str:
    experiment = results.experiment
    seeds = ", ".join(map(str, experiment["seeds"]))
    parts = [
        f"# {experiment['title']}",
        f"`ovsw-repro {experiment['name']} --scale {experiment['scale']}`: {experiment['about']}.",
    ]
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
    parts += [f"![{experiment['title']}]({name})" for name in pictures]
    parts.append(f"**Comparable with the paper**: {experiment['comparable']}.")
    parts.append(f"**Not comparable**: {experiment['different']}.")
    parts.append("Runs, each with `--seed` of the above:")
    parts.append("\n".join(f"- {row.label}: `{row.command}`" for row in results.rows))
    parts.append("All this is made from `runs/` beside it, again by `ovsw-repro --redraw DIR`.")
    return "\n\n".join(parts) + "\n"
