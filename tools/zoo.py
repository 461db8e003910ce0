"""Puts a trained network into the zoo, or another in its place, and writes all that depends on it. From the root of
the repository:

    python tools/zoo.py NAME MODEL.bnn RUN --images DIR --before RUN ... --force
    python tools/zoo.py --images DIR

MODEL.bnn was exported from a checkpoint in RUN, a folder of ovsw-train. Both are measured on all test images in DIR
first. The file, the index and a compact checkpoint go to python/ovsw/data/zoo; card, metrics and settings of the runs
to docs/zoo/NAME; what ovsw-demo prints of its pictures to docs/tutorial.md. Without a name, the networks in the zoo are
measured and written again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.bench import demo
from ovsw.bench.context import Machine
from ovsw.bench.measure import interleaved
from ovsw.commands.base import command
from ovsw.commands.zoo import card
from ovsw.datasets import DATASETS, FolderSet, MemorySet
from ovsw.export.accuracy import measure, open_images, some_pixels
from ovsw.export.frontend import checkpoint
from ovsw.export.passes import build
from ovsw.export.source import Source
from ovsw.nn import binary_layers
from ovsw.nn.checkpoint import read_run
from ovsw.train.recipe import changes
from ovsw.util.files import replace_file

MAX_BYTES = 80_000
MISTAKES, REPEAT = 5, 1000
ANSWERS = ("<!-- the demo's answers, by tools/zoo.py -->", "<!-- end of the demo's answers -->")


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", nargs="?", help="such as cresnet20-cifar10")
    p.add_argument("model", metavar="MODEL.bnn", type=Path, nargs="?", help="exported from a checkpoint of the run")
    p.add_argument("run", metavar="RUN", type=Path, nargs="?", help="the run's folder, as ovsw-train leaves it")
    p.add_argument("--images", metavar="DIR", type=Path, required=True, help="the test images, all of them")
    p.add_argument(
        "--before", metavar="RUN", type=Path, nargs="+", default=[], help="what it started from, first first"
    )
    p.add_argument("--title", help="default: the network and its data set")
    p.add_argument("--force", action="store_true", help="replace the network of this name")
    p.add_argument("--tree", metavar="DIR", type=Path, default=Path(), help="the repository (default: this folder)")


@command("tools/zoo.py", "Put a trained network into the zoo, measured in the engine and in PyTorch.", options)
def main(args: argparse.Namespace) -> int:
    folder, docs = args.tree / "python" / "ovsw" / "data" / "zoo", args.tree / "docs"
    if not folder.is_dir() or not docs.is_dir():
        raise ValueError(f"{args.tree}: not a source tree of ovsw, it has no {folder.relative_to(args.tree)} or docs")
    if args.name and not args.run:
        raise ValueError("a name takes a model and a run: NAME MODEL.bnn RUN")
    tutorial = docs / "tutorial.md"
    around = text_around_answers(tutorial) if tutorial.exists() else None
    entries = zoo.read_index(folder) if (folder / zoo.INDEX).exists() else {}
    if args.name:
        entries[args.name] = add(args, entries, folder, docs / "zoo")
    else:
        entries = {name: again(e, folder, args.images) for name, e in entries.items()}
    replace_file(folder / zoo.INDEX, zoo.index_bytes(entries))  # from here on it is the new one
    for old in set(folder.glob("*.bnn")) - {folder / e.file for e in entries.values()}:
        old.unlink()
    for e in entries.values():
        replace_file(docs / "zoo" / e.name / "card.md", card(e).encode())
        print(
            f"{e.about}\nPyTorch: {e.right_pytorch / e.images:.2%}; wrote {folder / e.file} and {docs / 'zoo' / e.name}"
        )
    if around and zoo.DEFAULT in entries:
        entry = entries[zoo.DEFAULT]
        answers = demo.as_table(demo.answers(Engine(folder / entry.file), demo.pictures()))
        shown = f"{ANSWERS[0]}\n```text\n{entry.about}\n\n{answers}\n```\n{ANSWERS[1]}"
        replace_file(tutorial, shown.join(around).encode())
    return 0


def add(args: argparse.Namespace, entries: dict[str, zoo.Entry], folder: Path, docs: Path) -> zoo.Entry:
    """The entry of a new network, whose file and papers are then in their places."""
    if not zoo.NAME.fullmatch(args.name):
        raise ValueError(
            f"the name '{args.name}' must consist of lower-case letters and digits, with single hyphens between them"
        )
    if args.name in entries and not args.force:
        raise ValueError(f"{args.name}: is in the zoo already; --force replaces it")
    data = args.model.read_bytes()
    engine = open_model(args.model, data)
    path = args.run / str(engine.metadata.get("source", "model_best.pth"))
    run = read_run(path)
    papers = {"metrics.csv": (args.run / "metrics.csv").read_bytes()}
    papers |= {f"before-{i}.csv": (earlier / "metrics.csv").read_bytes() for i, earlier in enumerate(args.before, 1)}
    before = tuple(step(earlier) for earlier in args.before)
    source = checkpoint.source(path)
    check_weights(args.model, bnn.from_bytes(data), path, source)
    weights = compact(path)

    entry = measured(args.name, args.title, data, engine, path, run, before, source, args.images)
    config = {
        **{"name": entry.name, "sha256": entry.sha256, "checkpoint": path.name, "epoch": entry.epoch},
        **{"seed": entry.seed, "torch": torch.__version__, "recipe": run["ovsw"]["recipe"]},
    }
    papers["config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    notes = docs / entry.name
    notes.mkdir(parents=True, exist_ok=True)
    for old in {p.name for p in notes.glob("before-*.csv")} - papers.keys():
        (notes / old).unlink()
    for name, content in papers.items():
        replace_file(notes / name, content)
    replace_file(folder / f"{entry.name}.pth", weights)
    replace_file(folder / entry.file, data)
    return entry


def compact(path: Path) -> bytes:
    """A checkpoint in half the bytes, to train on from: weights of binary layers are rounded, but keep their signs."""
    loaded = checkpoint.load(path)
    binary = {f"{name}.weight" for name in binary_layers(loaded.module)}
    state = loaded.module.state_dict()
    smallest = torch.finfo(torch.bfloat16).tiny  # so that nothing that is not 0 becomes 0
    for name in binary:
        state[name] = (state[name].sign() * state[name].abs().clamp(min=smallest)).bfloat16()
    buffer = io.BytesIO()
    torch.save({"arch": loaded.spec.name, "state_dict": state}, buffer)
    return buffer.getvalue()


def again(e: zoo.Entry, folder: Path, images_folder: Path) -> zoo.Entry:
    """The entry of a network that is there, measured once more."""
    engine = Engine(folder / e.file)
    facts = engine_facts(engine, labelled(engine, images_folder))
    if (facts["images"], facts["right"]) != (e.images, e.right):
        raise ValueError(
            f"{e.name}: has {facts['right']:,} of {facts['images']:,} images in {images_folder} right, the index says "
            f"{e.right:,} of {e.images:,}"
        )
    return dataclasses.replace(e, **facts)


def step(run: Path) -> zoo.EarlierRun:
    """What a finished run was."""
    saved = read_run(run / "last.pth")
    recipe = saved["ovsw"]["recipe"]
    return zoo.EarlierRun(
        recipe_name(recipe),
        tuple(changes(recipe)),
        saved["ovsw"]["seed"],
        saved["epoch"],
        saved["curr_acc1"],
        recipe["train"].get("teacher", ""),
    )


def recipe_name(recipe: dict[str, Any]) -> str:
    return Path(recipe["name"]).name if recipe["name"].endswith(".toml") else recipe["name"]


def text_around_answers(page: Path) -> tuple[str, str]:
    """A page before and after the part that shows the demo's answers."""
    begin, end = ANSWERS
    head, marked, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, tail = rest.partition(end)
    if not marked or not ended:
        raise ValueError(f"{page}: has no {begin} ... {end}")
    return head, tail


def open_model(path: Path, data: bytes) -> Engine:
    """The file in the engine, if it may be in the zoo."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: has {len(data):,} bytes, a network of the zoo at most {MAX_BYTES:,}")
    try:
        engine = Engine(data)
    except ValueError as e:
        raise ValueError(f"{path}: {str(e).replace('the model: ', '')}") from None
    if engine.numerics != "integer":
        raise ValueError(f"{path}: is a float file, whose bits differ between machines; export it as an integer file")
    if not engine.labels:
        raise ValueError(f"{path}: has no class names; export it with --labels")
    return engine


def check_weights(model_path: Path, model: bnn.Model, path: Path, source: Source) -> None:
    """Refuses a file that was not exported from the checkpoint: every binary weight must be the same."""
    spec = source.input
    own = build(source.graph, spec.mean, spec.std, {}, "integer")[0]
    in_file, in_checkpoint = (
        {op.name: m.tensors[op.weight].array for op in m.ops if op.kind == "bconv" and op.weight is not None}
        for m in (model, own)
    )
    if in_file.keys() != in_checkpoint.keys():
        raise ValueError(f"{model_path}: is another network than {path}")
    different = [name for name in in_file if not np.array_equal(in_file[name], in_checkpoint[name])]
    if different:
        raise ValueError(f"{model_path}: was not exported from {path}, the weights of {different[0]} differ")


def labelled(engine: Engine, folder: Path) -> MemorySet | FolderSet:
    """The test images, if they are of the network's classes."""
    images = open_images(folder, engine.num_classes)
    if list(images.names) != engine.labels:
        raise ValueError(f"{folder}: its classes are {', '.join(images.names)}; the model's {', '.join(engine.labels)}")
    return images


def engine_facts(engine: Engine, images: MemorySet | FolderSet) -> dict[str, Any]:
    """What the engine makes of the test images, and how fast, as fields of an entry."""
    pixels = some_pixels(images, engine.input, len(images))
    truth, answers = images.labels.numpy(), engine.run(pixels).argmax(axis=1)
    count = len(engine.labels)
    confusion = np.bincount(count * truth + answers, minlength=count * count).reshape(count, count)
    wrong = np.where(np.eye(count, dtype=bool), 0, confusion)
    worst = [divmod(int(i), count) for i in np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]]
    ms = interleaved({"": partial(engine.run, pixels[:1])}, REPEAT)[""]
    return {
        **{"images": len(truth), "right": int(np.trace(confusion))},
        **{"right_by_class": tuple(np.diag(confusion).tolist()), "images_by_class": tuple(confusion.sum(1).tolist())},
        "mistakes": tuple((engine.labels[a], engine.labels[b], int(wrong[a, b])) for a, b in worst if wrong[a, b]),
        **{"ms": round(float(np.median(ms)), 3), "machine": f"{Machine().cpu()}, {engine.isa}"},
        "logits": zoo.logits_checksum(engine),
    }


def measured(
    name: str,
    title: str | None,
    data: bytes,
    engine: Engine,
    path: Path,
    run: dict[str, Any],
    before: tuple[zoo.EarlierRun, ...],
    source: Source,
    images_folder: Path,
) -> zoo.Entry:
    """The entry of a network, with what engine and PyTorch make of all test images."""
    images = labelled(engine, images_folder)
    facts = engine_facts(engine, images)
    count, right = facts["images"], facts["right"]
    right_pytorch = round(count * measure(source.reference, engine.run, images, engine.input, None).pytorch)
    saved, recipe = run["ovsw"], run["ovsw"]["recipe"]
    epochs, deployed = recipe["train"]["epochs"], recipe["train"].get("deployed_epochs", 0)
    if run["epoch"] > epochs - deployed:  # in whose arithmetic the trainer has evaluated it
        right_pytorch = round(run["curr_acc1"] * count / 100)
        if right != right_pytorch:
            raise ValueError(
                f"{path}: was trained in the arithmetic of the file, but of {count:,} images PyTorch had "
                f"{right_pytorch:,} right and the engine has {right:,}"
            )
    digest = hashlib.sha256(data).hexdigest()
    kind = recipe["data"]["kind"]
    test_set = DATASETS[kind].title
    return zoo.Entry(
        name=name,
        title=title or f"{source.name} on {test_set}",
        file=f"{name}-{digest[:8]}.bnn",
        bytes=len(data),
        sha256=digest,
        arch=source.name,
        input=tuple(engine.input_shape),
        classes=tuple(engine.labels),
        test_set=test_set,
        right_pytorch=right_pytorch,
        before=before,
        recipe=recipe_name(recipe),
        settings=tuple(changes(recipe)),
        seed=saved["seed"],
        teacher=recipe["train"].get("teacher", ""),
        epoch=run["epoch"],
        epochs=epochs,
        deployed_epochs=deployed,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **facts,
    )


if __name__ == "__main__":
    sys.exit(main(None))
