"""`ovsw-train`: train a network by a recipe."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ovsw import cpu
from ovsw.commands.base import INTERRUPTED, UsageError, command, offer
from ovsw.train.recipe import load_recipe, recipes, set_values
from ovsw.util.files import locked_folder, made_folder
from ovsw.util.progress import Progress
from ovsw.util.text import table

if TYPE_CHECKING:
    from ovsw.train.trainer import TrainingRun


def options(p: argparse.ArgumentParser) -> None:
    recipe = p.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or a .toml file")
    offer(recipe, lambda: [recipe.name for recipe in recipes()])
    p.add_argument("--list", action="store_true", help="show all recipes with the paper's results")
    p.add_argument("--data", metavar="DIR", help="folder of the data set")
    p.add_argument("-o", "--output", metavar="RUN", help="folder for checkpoints and metrics")
    p.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change the recipe: train.epochs=10")
    p.add_argument("--seed", metavar="N", type=int, help="default: the recipe's first")
    p.add_argument("--init", metavar="FILE", help="checkpoint to start from, as the second of two steps does")
    p.add_argument("--teacher", metavar="FILE", help="weights of the float network that the recipe distils from")
    about = "folder for the teacher's outputs on train.teacher_views, to be shared by runs (default: RUN)"
    p.add_argument("--teacher-cache", metavar="DIR", help=about)
    p.add_argument("--resume", action="store_true", help="continue the run in RUN, if there is one")
    p.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    p.add_argument("--amp", action="store_true", help="mixed precision, on a GPU only")
    p.add_argument("--quiet", action="store_true", help="no progress")


@command(
    "ovsw-train",
    "Train a binary network with OvSW by a recipe.",
    options,
    examples=(
        "--list",
        "table1-cresnet20 --data DIR -o runs/r20 --set train.epochs=10",
        "table1-cresnet20 --data DIR -o runs/r20 --resume",
    ),
)
def main(args: argparse.Namespace) -> int:
    if args.list:
        print(table(("recipe", "what", "paper"), [(r.name, r.title, r.paper) for r in recipes()]))
        return 0
    if not args.recipe or not args.output:
        raise UsageError("a RECIPE and -o RUN are needed; --list shows the recipes")
    recipe = load_recipe(args.recipe)
    set_values(recipe, args.set)
    if args.data is None and recipe.data.kind != "synthetic":
        raise UsageError(f"--data DIR is needed: the recipe trains on {recipe.data.kind}")
    folder = Path(args.output)
    _check_new(folder, args.resume)
    with Progress(args.prog) as progress:
        progress.step("loading torch")
        cpu.let_idle_threads_sleep()
        from ovsw.nn import native
        from ovsw.train import trainer

    native.keep_memory()
    seed = recipe.train.seeds[0] if args.seed is None else args.seed
    given = (args.teacher, args.init, args.data, args.teacher_cache)
    teacher, init, data, cache = (Path(name) if name else None for name in given)
    alone = locked_folder if os.environ.get("RANK", "0") == "0" else nullcontext  # torchrun's processes share a folder
    with made_folder(folder), alone(folder):
        _check_new(folder, args.resume)  # another process may have trained here since
        run = trainer.start(recipe, folder, seed, args.device, args.amp, teacher, init)
        if args.resume:
            trainer.resume(run)
        if not args.quiet:
            _say_what_is_slow(run)
        try:
            trainer.train(run, data, args.quiet, cache)
        except KeyboardInterrupt:
            print(f"{args.prog}: stopped after epoch {run.epoch}; --resume continues from there", file=sys.stderr)
            return INTERRUPTED
    print(f"best test accuracy {run.best:.2f} % in {run.epoch} epochs: {folder / 'model_best.pth'}")
    return 0


def _check_new(folder: Path, resume: bool) -> None:
    if (folder / "last.pth").exists() and not resume:
        raise ValueError(f"{folder}: contains a run already; --resume continues it")


def _say_what_is_slow(run: TrainingRun) -> None:
    """One line on stderr if binary layers train with torch's operators on a CPU."""
    from ovsw.nn import binary_layers, native

    layers = binary_layers(run.model).values()
    slow = sum(not native.has_kernels(layer) for layer in layers)
    if slow and run.device.type == "cpu":
        print(f"{slow} of {len(layers)} binary layers have no training kernels and use torch's", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(None))
