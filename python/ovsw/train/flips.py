"""`ovsw-flips`: shows silent weights, as tables and as the paper's pictures (Figure 1 and Appendix A)."""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.commands.base import UsageError, command
from ovsw.train.recipe import from_dict
from ovsw.util.files import replace_file, write_csv
from ovsw.util.progress import Progress
from ovsw.util.text import table


@dataclass
class LayerFlips:
    """One binary layer of a run: its latent weights at start and end, and which signs never changed."""

    name: str
    start: np.ndarray
    end: np.ndarray
    never: np.ndarray

    @property
    def never_share(self) -> float:
        return float(self.never.mean())

    @property
    def changed_share(self) -> float:
        """The share of weights whose sign at the end differs from that at the start."""
        return float((np.sign(self.start) != np.sign(self.end)).mean())


def load_run(folder: Path) -> list[LayerFlips]:
    """The binary layers of a run of `ovsw-train`."""
    from ovsw.nn.checkpoint import CheckpointError, damaged, read_run

    runs = [read_run(folder / name) for name in ("initial.pth", "last.pth")]
    if not runs[1]["ovsw"]["flip_history"]:
        raise CheckpointError(f"{folder / 'last.pth'}: has no history of flips")
    with damaged(folder / "last.pth"):
        first, last = (_signed(run) for run in runs)
        history = {name[: -len(".weight")]: ever for name, ever in runs[1]["ovsw"]["flip_history"].items()}
        return [LayerFlips(name, first[name], last[name], ~ever.flatten().numpy()) for name, ever in history.items()]


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.csv; none before the first epoch is finished."""
    path = folder / "metrics.csv"
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as f:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(f)]
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{path}: damaged") from None


def _signed(run: dict[str, Any]) -> dict[str, np.ndarray]:
    """The latent weights of each layer, whose signs are its binary weights."""
    from ovsw.nn import binary_layers, create

    net = from_dict(run["ovsw"]["recipe"]).network
    model = create(net.name, net.num_classes)
    model.load_state_dict(run["state_dict"], strict=False)
    return {name: layer.signed().flatten().numpy() for name, layer in binary_layers(model).items()}


def compare(a: Path, b: Path) -> list[tuple[str, int, float]]:
    """The convolution weights that two checkpoints have in common: name, size, share of signs that differ."""
    import torch

    from ovsw.nn.checkpoint import read, state_dict

    first, second = (state_dict(path, read(path)) for path in (a, b))
    common = [k for k, v in first.items() if v.ndim == 4 and k in second and second[k].shape == v.shape]
    if not common:
        raise ValueError(f"{a} and {b} have no convolution weights in common")
    return [
        (k, v.numel(), float((torch.sign(v) != torch.sign(second[k])).float().mean()))
        for k, v in ((k, first[k]) for k in common)
    ]


def histogram(runs: dict[str, list[LayerFlips]], path: Path) -> None:
    """Histograms of the initial weights of each layer, overlaid with those that never flipped.

    The layers of one run are in two columns; several runs have a column each, with shared axes in a row.
    """
    plt = pyplot()
    beside = len(runs) > 1
    panels = [(name, layer) for layers in zip(*runs.values()) for name, layer in zip(runs, layers)]
    columns = len(runs) if beside else min(2, len(panels))
    rows = -(-len(panels) // columns)
    shared = "row" if beside else "none"
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.5 * columns, 3.6 * rows), squeeze=False, sharex=shared, sharey=shared
    )
    for axis, (name, layer) in zip(axes.flat, panels):
        bins = np.histogram_bin_edges(layer.start, 80)
        axis.hist(layer.start, bins, color="#9ecae1", label="all weights at the start")
        share = f"never flipped: {100 * layer.never_share:.2f} %"
        axis.hist(layer.start[layer.never], bins, color="#de2d26", alpha=0.75, label=share)
        axis.set_title(f"{name}: {layer.name}.weight" if beside else f"{layer.name}.weight")
        axis.set_xlabel("initial weight")
        axis.set_ylabel("count")
        axis.set_ylim(0, 1.25 * axis.dataLim.ymax)  # room for the legend
        axis.legend(loc="upper right", fontsize=8)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.tight_layout()
    save(figure, path)


def epochs_figure(runs: dict[str, list[dict[str, float]]]) -> Any:
    """Accuracy and flip rate over the epochs, for one run or several."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10, 4.2))
    for name, rows in runs.items():
        x = range(1, len(rows) + 1)
        axes[0].plot(x, [row["test_acc1"] for row in rows], marker="o", ms=3, label=name)
        axes[1].plot(x, [100 * row["flip_rate"] for row in rows], marker="o", ms=3, label=name)
    for axis, what in zip(axes, ("test accuracy, %", "weights that flipped in the epoch, %")):
        axis.set_xlabel("epoch")
        axis.set_ylabel(what)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[1].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    return figure


def save(figure: Any, path: Path) -> None:
    """Writes and closes a figure of `pyplot`."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format=path.suffix[1:] or "png")
    pyplot().close(figure)
    replace_file(path, picture.getvalue())


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "inputs", metavar="RUN", nargs="+", help="run folders, drawn side by side, or two checkpoints A.pth B.pth"
    )
    p.add_argument("-o", "--output", metavar="DIR", help="where CSV and PNG files go (default: the first run)")
    p.add_argument("--layers", metavar="NAME", nargs="+", help="layers to draw (default: the last of each stage)")


@command(
    "ovsw-flips",
    "Show the silent weights of runs of ovsw-train, or the signs that differ between two checkpoints.",
    options,
    examples=("runs/r20", "runs/r20 runs/vanilla -o pictures", "runs/r20/initial.pth runs/r20/last.pth"),
)
def main(args: argparse.Namespace) -> int:
    paths = [Path(p) for p in args.inputs]
    if not all(p.exists() for p in paths):
        missing = next(p for p in paths if not p.exists())
        raise FileNotFoundError(f"{missing}: no such file or folder")
    if paths[0].is_file():
        if len(paths) != 2:
            raise UsageError("checkpoints are compared two at a time: A.pth B.pth")
        rows = [(name, f"{n:,}", f"{100 * share:.2f}") for name, n, share in compare(*paths)]
        print(table(("weight", "size", "signs that differ, %"), rows, right=(1, 2)))
        return 0
    names = [p.resolve().name for p in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"two runs are called {next(n for n in names if names.count(n) > 1)}; rename one folder")
    with Progress(args.prog) as progress:
        progress.step("loading torch and the runs")
        runs = {name: load_run(p) for name, p in zip(names, paths)}
    if len({tuple((layer.name, layer.start.size) for layer in layers) for layers in runs.values()}) > 1:
        raise ValueError(f"{', '.join(map(str, paths))}: are runs of different networks")
    without = [p for p in paths if not (p / "metrics.csv").is_file()]
    if without:
        raise FileNotFoundError(f"{without[0] / 'metrics.csv'}: no such file")
    output = Path(args.output) if args.output else paths[0]
    if not output.is_dir():
        raise ValueError(f"the folder {output} does not exist")
    chosen = {name: _chosen(layers, args.layers) for name, layers in runs.items()}
    shown = [
        (name,) * (len(runs) > 1)
        + (layer.name, str(layer.start.size), f"{100 * layer.never_share:.2f}", f"{100 * layer.changed_share:.2f}")
        for name, layers in runs.items()
        for layer in layers
    ]
    head = ("run",) * (len(runs) > 1) + ("layer", "weights", "never flipped, %", "other sign than at the start, %")
    print(table(head, shown, right=range(len(head) - 3, len(head))))
    write_csv(output / "flips.csv", head, shown)
    histogram(chosen, output / "flips.png")
    figure = epochs_figure({name: read_metrics(p) for name, p in zip(names, paths)})
    figure.tight_layout()
    save(figure, output / "flips_epochs.png")
    print(f"wrote flips.csv, flips.png and flips_epochs.png to {output}")
    return 0


def _chosen(layers: list[LayerFlips], names: list[str] | None) -> list[LayerFlips]:
    by_name = {layer.name: layer for layer in layers}
    if names:
        unknown = [n for n in names if n not in by_name]
        if unknown:
            raise ValueError(f"no binary layer '{unknown[0]}'; there are {', '.join(by_name)}")
        return [by_name[n] for n in names]
    stages = {layer.name.split(".")[0]: layer for layer in layers}  # the last of each
    return list(stages.values())
