"""`ovsw-landscape`: the loss around a trained network along two random, filter-normalised directions (Figure 4)."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ovsw.commands.base import UsageError, command, whole
from ovsw.train.flips import pyplot, save
from ovsw.train.recipe import from_dict, input_of
from ovsw.util.files import write_csv
from ovsw.util.progress import Progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_KINDS = (".png", ".svg", ".pdf")


def direction(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction in which every filter has the norm of the network's own; vectors stay as they are."""
    import torch

    steps = {}
    for name, p in model.named_parameters():
        step = torch.zeros_like(p)
        if p.ndim > 1:
            step = torch.randn(p.shape, generator=generator).to(p)
            axes = list(range(1, p.ndim))
            norm = torch.linalg.vector_norm(step, dim=axes, keepdim=True).clamp_(min=1e-12)
            step *= torch.linalg.vector_norm(p.detach(), dim=axes, keepdim=True) / norm
        steps[name] = step
    return steps


def surface(
    model: nn.Module, x: Tensor, y: Tensor, grid: int, span: float, seed: int = 0, progress: Progress | None = None
) -> np.ndarray:
    """The loss on a grid x grid raster of [-span, span]^2; the network is put back as it was."""
    import torch
    from torch.nn import functional as F

    generator = torch.Generator().manual_seed(seed)
    one, two = direction(model, generator), direction(model, generator)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = np.linspace(-span, span, grid)
    losses = np.empty((grid, grid))
    model.eval()
    with torch.no_grad():
        for i, a in enumerate(steps):
            for j, b in enumerate(steps):
                for name, p in model.named_parameters():
                    p.copy_(start[name] + float(a) * one[name] + float(b) * two[name])
                losses[i, j] = F.cross_entropy(model(x), y).item()
                if progress is not None:
                    progress("points", i * grid + j + 1, grid * grid)
        for name, p in model.named_parameters():
            p.copy_(start[name])
    return losses


def picture(losses: np.ndarray, span: float, title: str, path: Path) -> None:
    plt: Any = pyplot()
    steps = np.linspace(-span, span, len(losses))
    a, b = np.meshgrid(steps, steps, indexing="ij")
    figure = plt.figure(figsize=(11, 4.6))
    draw_surface(figure.add_subplot(1, 2, 1, projection="3d"), a, b, losses)
    draw_contours(figure.add_subplot(1, 2, 2), a, b, losses, 20)
    figure.suptitle(title)
    figure.tight_layout()
    save(figure, path)


def draw_surface(axis: Any, a: np.ndarray, b: np.ndarray, losses: np.ndarray, **limits: float) -> None:
    axis.plot_surface(a, b, losses, cmap="viridis", linewidth=0, **limits)
    axis.set(xlabel="direction 1", ylabel="direction 2", zlabel="loss")


def draw_contours(axis: Any, a: np.ndarray, b: np.ndarray, losses: np.ndarray, levels: int | np.ndarray) -> None:
    filled = axis.contourf(a, b, losses, levels, cmap="viridis")
    axis.plot(0, 0, "r+", ms=10)
    axis.set(xlabel="direction 1", ylabel="direction 2")
    axis.figure.colorbar(filled, ax=axis, label="loss")


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("checkpoint", metavar="CKPT", type=Path, help="last.pth or model_best.pth of a run")
    p.add_argument("--data", metavar="DIR", type=Path, help="folder of the data set")
    out = "the picture; a .csv file with the same name is written, too"
    p.add_argument("-o", "--output", metavar="OUT.png", type=Path, required=True, help=out)
    p.add_argument("--grid", metavar="N", type=whole(2), default=21, help="points per axis (default: %(default)s)")
    p.add_argument(
        "--span", metavar="X", type=float, default=1.0, help="each axis goes from -X to X (default: %(default)s)"
    )
    p.add_argument("--images", metavar="N", type=whole(1), default=512, help="test images (default: %(default)s)")


@command(
    "ovsw-landscape",
    "Draw the loss around a checkpoint of ovsw-train, along two filter-normalised directions.",
    options,
    examples=("runs/r20/last.pth --data DIR -o loss.png", "runs/r20/last.pth --data DIR -o loss.png --grid 9"),
)
def main(args: argparse.Namespace) -> int:
    output: Path = args.output
    if not 0 < args.span < math.inf:
        raise UsageError(f"--span is {args.span:g}, expected a positive number")
    if output.suffix.lower() not in _KINDS:
        raise UsageError(f"-o: {output} ends in none of {', '.join(_KINDS)}")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist")
    with Progress(args.prog) as progress:
        progress.step("loading torch")
        from ovsw.datasets import MemorySet
        from ovsw.nn.checkpoint import damaged, read_run
        from ovsw.train import augment
        from ovsw.train.trainer import build_model, open_data

    checkpoint = read_run(args.checkpoint)
    with damaged(args.checkpoint):
        recipe = from_dict(checkpoint["ovsw"]["recipe"])
        spec = input_of(recipe)
        model = build_model(recipe)
        known = model.state_dict()
        model.load_state_dict({k: v for k, v in checkpoint["state_dict"].items() if k in known})
    split = open_data(recipe, args.data, "test")
    if not isinstance(split, MemorySet):
        raise ValueError(f"data set '{recipe.data.kind}' is not held in memory; choose one that is, such as cifar10")
    x = augment.normalise(split.images[: args.images], spec.mean, spec.std)
    with Progress(args.prog) as progress:
        losses = surface(model, x, split.labels[: args.images], args.grid, args.span, progress=progress)
    steps = np.linspace(-args.span, args.span, args.grid)
    points = [(a, b, losses[i, j]) for i, a in enumerate(steps) for j, b in enumerate(steps)]
    write_csv(output.with_suffix(".csv"), ("direction 1", "direction 2", "loss"), points)
    picture(losses, args.span, f"{recipe.network.name}, {args.images} test images", output)
    print(f"loss {losses.min():.3f} to {losses.max():.3f}; wrote {output} and {output.with_suffix('.csv')}")
    return 0
