"""Puts a trained network into the zoo, or another in its place. From the root of the repository:

    python tools/zoo.py NAME MODEL.bnn RUN --images DIR

MODEL.bnn was exported from a checkpoint in RUN, a folder of ovsw-train. Both are measured on all test images in DIR
first. The file and the index go to python/ovsw/data/zoo, metrics and settings of the run to docs/zoo/NAME.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.cli import command
from ovsw.export.accuracy import measure, open_images
from ovsw.export.frontend import checkpoint
from ovsw.export.passes import build
from ovsw.export.source import Source
from ovsw.files import replace_file
from ovsw.nn.checkpoint import read_run
from ovsw.train.recipe import changes

MAX_BYTES = 80_000
TEST_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion-mnist": "Fashion-MNIST"}


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", help="such as cresnet20-cifar10")
    p.add_argument("model", metavar="MODEL.bnn", type=Path, help="exported from a checkpoint of the run")
    p.add_argument("run", metavar="RUN", type=Path, help="the run's folder, as ovsw-train leaves it")
    p.add_argument("--images", metavar="DIR", type=Path, required=True, help="the test images, all of them")
    p.add_argument("--title", help="default: the network and its data set")
    p.add_argument("--force", action="store_true", help="replace the network of this name")
    p.add_argument("--tree", metavar="DIR", type=Path, default=Path(), help="the repository (default: this folder)")


@command("tools/zoo.py", "Put a trained network into the zoo, measured in the engine and in PyTorch.", options)
def main(args: argparse.Namespace) -> int:
    folder, docs = args.tree / "python" / "ovsw" / "data" / "zoo", args.tree / "docs"
    if not folder.is_dir() or not docs.is_dir():
        raise ValueError(f"{args.tree}: not a source tree of ovsw, it has no {folder.relative_to(args.tree)} or docs")
    if not zoo.NAME.fullmatch(args.name):
        raise ValueError(f"the name '{args.name}' is not of small letters and digits, with hyphens between them")
    entries = zoo.read_index(folder) if (folder / zoo.INDEX).exists() else {}
    if args.name in entries and not args.force:
        raise ValueError(f"{args.name}: is in the zoo already; --force replaces it")
    data = args.model.read_bytes()
    engine = open_model(args.model, data)
    path = args.run / str(engine.metadata.get("source", "model_best.pth"))
    run = read_run(path)
    metrics = (args.run / "metrics.csv").read_bytes()
    source = checkpoint.source(path)
    check_weights(args.model, bnn.from_bytes(data), path, source)

    entry = measured(args.name, args.title, data, engine, path, run, source, args.images)
    config = {
        **{"name": entry.name, "sha256": entry.sha256, "checkpoint": path.name, "epoch": entry.epoch},
        **{"seed": entry.seed, "torch": torch.__version__, "recipe": run["ovsw"]["recipe"]},
    }
    notes = docs / "zoo" / entry.name
    notes.mkdir(parents=True, exist_ok=True)
    replace_file(notes / "metrics.csv", metrics)
    replace_file(notes / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    replace_file(folder / entry.file, data)
    entries[entry.name] = entry
    replace_file(folder / zoo.INDEX, zoo.index_bytes(entries))  # from here on it is the new one
    for old in set(folder.glob("*.bnn")) - {folder / e.file for e in entries.values()}:
        old.unlink()
    print(f"{entry.about}\nPyTorch: {entry.right_pytorch / entry.images:.2%}; wrote {folder / entry.file} and {notes}")
    return 0


def open_model(path: Path, data: bytes) -> Engine:
    """The file in the engine, if it may be in the zoo."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: has {len(data):,} bytes, a network of the zoo at most {MAX_BYTES:,}")
    try:
        engine = Engine(data)
    except ValueError as e:
        raise ValueError(f"{path}: {str(e).replace('the model: ', '')}") from None
    if engine.numerics != "integer":
        raise ValueError(f"{path}: computes in float, not with the same bits on every machine; export it as integer")
    if not engine.labels:
        raise ValueError(f"{path}: has no class names; export it with --labels")
    return engine


def check_weights(model_path: Path, model: bnn.Model, path: Path, source: Source) -> None:
    """Refuses a file that was not exported from the checkpoint: every binary weight must be the same."""
    spec = source.input
    own = build(source.graph, spec.mean, spec.std, {}, "integer")[0]
    mine, theirs = (
        {op.name: m.tensors[op.weight].array for op in m.ops if op.kind == "bconv" and op.weight is not None}
        for m in (model, own)
    )
    if mine.keys() != theirs.keys():
        raise ValueError(f"{model_path}: is another network than {path}")
    different = [name for name in mine if not np.array_equal(mine[name], theirs[name])]
    if different:
        raise ValueError(f"{model_path}: was not exported from {path}, the weights of {different[0]} differ")


def measured(
    name: str,
    title: str | None,
    data: bytes,
    engine: Engine,
    path: Path,
    run: dict[str, Any],
    source: Source,
    images_folder: Path,
) -> zoo.Entry:
    """The entry of a network, with what engine and PyTorch make of all test images."""
    images = open_images(images_folder, engine.num_classes)
    if list(images.names) != engine.labels:
        raise ValueError(
            f"{images_folder}: its classes are {', '.join(images.names)}; the model's {', '.join(engine.labels)}"
        )
    found = measure(source.reference, engine.run, images, engine.input, None)
    right, right_pytorch = (round(share * found.images) for share in (found.exported, found.pytorch))
    saved, recipe = run["ovsw"], run["ovsw"]["recipe"]
    epochs, deployed = recipe["train"]["epochs"], recipe["train"].get("deployed_epochs", 0)
    if run["epoch"] > epochs - deployed:  # in whose arithmetic the trainer has evaluated it
        right_pytorch = round(run["curr_acc1"] * found.images / 100)
        if right != right_pytorch:
            raise ValueError(
                f"{path}: was trained in the arithmetic of the file, but of {found.images:,} images PyTorch had "
                f"{right_pytorch:,} right and the engine has {right:,}"
            )
    digest = hashlib.sha256(data).hexdigest()
    kind = recipe["data"]["kind"]
    test_set = TEST_SETS.get(kind, kind)
    return zoo.Entry(
        name=name,
        title=title or f"{source.name} on {test_set}",
        file=f"{name}-{digest[:8]}.bnn",
        bytes=len(data),
        sha256=digest,
        arch=source.name,
        classes=tuple(engine.labels),
        test_set=test_set,
        images=found.images,
        right=right,
        right_pytorch=right_pytorch,
        recipe=Path(recipe["name"]).name if recipe["name"].endswith(".toml") else recipe["name"],
        settings=tuple(changes(recipe)),
        seed=saved["seed"],
        epoch=run["epoch"],
        epochs=epochs,
        deployed_epochs=deployed,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        logits=zoo.logits_checksum(engine),
    )


if __name__ == "__main__":
    sys.exit(main(None))
