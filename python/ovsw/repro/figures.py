"""Pictures of an experiment: accuracies as dots, sweeps, epochs, histograms of silent weights, loss landscapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ovsw.repro.results import Mean, Results
from ovsw.train.flips import epochs_figure, pyplot, save
from ovsw.train.landscape import draw_contours, draw_surface

ALL, NEVER = "#9ecae1", "#de2d26"


def draw(results: Results, folder: Path) -> list[str]:
    """Draws the figures of an experiment. Returns the names of the files; figures without data are left out."""
    names = []
    for kind in results.experiment["figures"]:
        if kind not in KINDS:
            raise ValueError(f"{folder}: unknown figure '{kind}'; known are {', '.join(KINDS)}")
        figure = KINDS[kind](results)
        if figure is not None:
            names.append(f"{kind}.png")
            save(figure, folder / names[-1])
    return names


def _finish(figure: Any, results: Results) -> Any:
    experiment = results.experiment
    figure.suptitle(experiment["title"], fontsize=11)
    seeds = f"{len(experiment['seeds'])} seed{'s' if len(experiment['seeds']) > 1 else ''}"
    inch = 1 / figure.get_figheight()
    figure.text(0.5, 0.06 * inch, f"{experiment['about']}; {seeds}", ha="center", fontsize=7, color="0.35", wrap=True)
    figure.tight_layout(rect=(0, 0.2 * inch, 1, 1))
    return figure


def _dots(results: Results) -> Any:
    """One line per row: every seed, and the mean."""
    figure, axis = pyplot().subplots(figsize=(7, 1.6 + 0.55 * len(results.rows)))
    for i, row in enumerate(results.rows):
        values = row.values("test_acc1")
        axis.plot(values, [i] * len(values), "o", color="#3182bd", alpha=0.6, label="one seed" if i == 0 else None)
        if values:
            mean = Mean.of(values)
            axis.plot([mean.mean], [i], "|", color="black", ms=22, mew=2, label="mean" if i == 0 else None)
            axis.annotate(mean.text(), (mean.mean, i), (0, 13), textcoords="offset points", ha="center", fontsize=8)
    axis.set_yticks(range(len(results.rows)), [row.label for row in results.rows])
    axis.set_ylim(len(results.rows) - 0.4, -0.7)
    axis.margins(x=0.12)
    axis.set_xlabel("test accuracy after the last epoch, %")
    axis.grid(alpha=0.3, axis="x")
    axis.legend(fontsize=8, loc="best", markerscale=0.5)
    return _finish(figure, results)


def _sweep(results: Results) -> Any:
    """Accuracy over the setting that is swept; a reference as a line across, with its deviation."""
    experiment = results.experiment
    figure, axis = pyplot().subplots(figsize=(7, 4.4))
    if experiment["log"]:
        axis.set_xscale("log")
    colours = pyplot().rcParams["axes.prop_cycle"].by_key()["color"]
    series = list(dict.fromkeys(row.series for row in results.rows))
    for name, colour in zip(series, colours):
        mine = [row for row in results.rows if row.series == name]
        if name == experiment["reference"]:
            mean = Mean.of(mine[0].values("test_acc1"))
            if mean.n:
                axis.axhline(mean.mean, color="0.4", ls="--", label=f"{name}: {mean.text()}")
                spread = mean.deviation or 0.0
                axis.axhspan(mean.mean - spread, mean.mean + spread, color="0.4", alpha=0.12, lw=0)
            continue
        mine = sorted(mine, key=lambda row: row.x or 0.0)
        means = [(row.x, Mean.of(row.values("test_acc1"))) for row in mine if row.values("test_acc1")]
        deviations = [mean.deviation or 0.0 for _, mean in means]
        axis.errorbar(
            [x for x, _ in means],
            [m.mean for _, m in means],
            deviations,
            color=colour,
            marker="o",
            capsize=3,
            label=name,
        )
        for row in mine:
            values = row.values("test_acc1")
            axis.plot([row.x] * len(values), values, ".", color=colour, alpha=0.5, ms=5)
            if row.diverged:
                text = f"{row.diverged} of {len(row.runs)}\ndiverged"
                axis.annotate(text, (row.x, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    ticks = sorted({row.x for row in results.rows if row.series != experiment["reference"] and row.x is not None})
    axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axis.minorticks_off()
    axis.set_xlabel(experiment["x_label"])
    axis.set_ylabel("test accuracy after the last epoch, %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _finish(figure, results)


def _epochs(results: Results) -> Any:
    """Accuracy and flip rate after every epoch that all runs of a row have, means over the seeds."""
    means = {}
    for row in results.rows:
        epochs = zip(*(run.metrics for run in row.runs if run.metrics))
        means[row.label] = [{name: fmean(r[name] for r in rows) for name in rows[0]} for rows in epochs]
    return _finish(epochs_figure({label: rows for label, rows in means.items() if rows}), results)


def _histogram(results: Results) -> Any:
    """Initial weights and those that never flipped: a row per layer, a column per method, the same axes in a row."""
    rows = [row for row in results.rows if any(run.histograms for run in row.runs)]
    layers = results.experiment["layers"]
    if not rows:
        return None
    shape = (len(layers), len(rows))
    figure, axes = pyplot().subplots(
        *shape, figsize=(4.6 * shape[1], 3.3 * shape[0] + 0.5), squeeze=False, sharex="row", sharey="row"
    )
    for i, layer in enumerate(layers):
        for j, row in enumerate(rows):
            kept = [run.histograms[layer] for run in row.runs if layer in run.histograms]
            total = sum(h.all.sum() for h in kept)
            share = Mean.of([run.flips[layer][1] for run in row.runs if layer in run.flips])
            sums = (np.sum([getattr(h, name) for h in kept], axis=0) * 100 / total for name in ("all", "never"))
            for values, colour, label in zip(sums, (ALL, NEVER), ("all", f"never flipped: {share.text(100)} %")):
                axes[i, j].stairs(values, kept[0].edges, fill=True, color=colour, label=label)
            axes[i, j].set_title(f"{row.label}: {layer}", fontsize=10)
            axes[i, j].set_xlabel("initial weight")
            axes[i, j].legend(fontsize=8, loc="upper right")
        axes[i, 0].set_ylabel("share of the layer's weights, %")
        top = axes[i, 0].get_ylim()[1]
        axes[i, 0].set_ylim(0, 1.25 * top)
    return _finish(figure, results)


def _landscape(results: Results) -> Any:
    """The surfaces side by side, with the same levels and colours."""
    shown = [(row, run) for row in results.rows for run in row.runs[:1] if run.landscape is not None]
    if not shown:
        return None
    losses = [run.landscape[:, 2] for _, run in shown]  # type: ignore[index]
    low, high = min(v.min() for v in losses), max(v.max() for v in losses)
    levels = np.linspace(low, high, 25)
    figure = pyplot().figure(figsize=(5 * len(shown), 8))
    for i, (row, run) in enumerate(shown):
        points = run.landscape
        assert points is not None
        side = round(len(points) ** 0.5)
        a, b, loss = (points[:, k].reshape(side, side) for k in range(3))
        surface = figure.add_subplot(2, len(shown), 1 + i, projection="3d")
        draw_surface(surface, a, b, loss, vmin=low, vmax=high)
        surface.set_zlim(low, high)
        surface.set_title(f"{row.label}, seed {run.seed}\nloss {loss.min():.2f} to {loss.max():.2f}", fontsize=10)
        draw_contours(figure.add_subplot(2, len(shown), 1 + len(shown) + i), a, b, loss, levels)
    return _finish(figure, results)


KINDS: dict[str, Callable[[Results], Any]] = {
    "dots": _dots,
    "sweep": _sweep,
    "epochs": _epochs,
    "histogram": _histogram,
    "landscape": _landscape,
}
