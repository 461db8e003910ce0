"""`ovsw-zoo`: lists the trained networks that come with the package, shows their cards and checks them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from ovsw import zoo
from ovsw.commands.base import command, offer
from ovsw.util.text import dims, table
from ovsw.zoo import Entry, Step


def card(e: Entry) -> str:
    """All that one should know of a network before one uses it, in Markdown."""
    epochs = e.epochs + sum(step.epochs for step in e.before)
    saved = f"epoch {e.epoch} of the last run's {e.epochs} was taken"
    facts = (
        ("task", f"one of {len(e.classes)} classes: {', '.join(e.classes)}"),
        ("input", f"{dims(e.input)}; of a photo the centre, its shorter side scaled to {min(e.input[1:])}"),
        ("accuracy", f"{e.accuracy:.2%} of the {e.images:,} test images of {e.test_set}, in the engine"),
        ("the same in PyTorch", f"{e.right_pytorch / e.images:.2%}"),
        ("size", f"{e.bytes:,} bytes"),
        ("latency", f"{e.ms:.2f} ms for an image on one thread of {e.machine}"),
        ("training", f"{epochs} epochs, {e.deployed_epochs} of them in the arithmetic of the file; {saved}"),
        ("arithmetic", "integers, the same bits on every CPU"),
        ("file", f"`{e.file}`, since {e.date}"),
        ("SHA-256", f"`{e.sha256}`"),
    )
    lines = [f"# {e.name}", "", f"{e.title}, a binary network: weights and activations of one bit.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts)]
    lines += ["", "## Use", "", "```bash", f"ovsw-run {e.name} photo.jpg", f"ovsw-zoo {e.name} --check", "```", ""]
    lines += [
        "It is there to try the engine, to measure it and to test it: small, trained on public data, with an answer",
        "that can be checked by eye. It is not meant for decisions about anything or anybody.",
    ]
    lines += ["", "## Limits", ""]
    lines += [
        "- It knows its classes and nothing else: one of them is the answer to any picture whatever.",
        f"- It was trained and measured on {e.test_set} alone; photos of other kinds were not measured.",
        "- What it calls probability is not calibrated.",
        "- The epoch may have been chosen by the same test images (`ovsw-train` has no others).",
    ]
    lines += ["", "## Accuracy by class", "", "| class | right | of |", "|---|---:|---:|"]
    by_class = zip(e.classes, e.right_by_class, e.images_by_class)
    lines += [f"| {name} | {right:,} | {images:,} |" for name, right, images in by_class]
    lines += ["", "Most frequent mistakes: " + "; ".join(f"{a} taken for {b}, {n}" for a, b, n in e.mistakes) + "."]
    lines += ["", "## Training", "", "```bash", *_training(e), "```"]
    return "\n".join(lines) + "\n"


def _training(e: Entry) -> list[str]:
    """The commands of all runs, each with its accuracy in PyTorch."""
    last = Step(e.recipe, e.settings, e.seed, e.epochs, 100 * e.right_pytorch / e.images)
    lines: list[str] = []
    for i, step in enumerate([*e.before, last], 1):
        words = ["ovsw-train", step.recipe, "--data DIR", *(f"--set {setting}" for setting in step.settings)]
        words += [f"--init run{i - 1}/last.pth"] * (i > 1) + [f"--seed {step.seed}", f"-o run{i}"]
        lines.append(f"# {step.accuracy:.2f} %")
        lines.append("")
        for word in words:
            if len(lines[-1]) + len(word) > 110:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {word}" if lines[-1] else word
    return [line.replace('"', "") for line in lines]


def options(p: argparse.ArgumentParser) -> None:
    shown = p.add_argument(
        "names", metavar="NETWORK", nargs="*", help="networks whose cards to show (default: a list of all)"
    )
    offer(shown, zoo.names)
    p.add_argument("--check", action="store_true", help="run them: are the logits those of the index, bit for bit?")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


@command(
    "ovsw-zoo",
    "List the trained networks that come with ovsw, or show their cards.",
    options,
    examples=("", "cresnet20-cifar10", "--check", "cresnet20-cifar10 --json"),
)
def main(args: argparse.Namespace) -> int:
    found = [zoo.entry(name) for name in args.names or zoo.names()]
    checked = {e.name: zoo.check(e.name) for e in found} if args.check else {}
    if args.json:
        extra = [{"accuracy": e.accuracy, **({"checked": checked[e.name]} if checked else {})} for e in found]
        print(json.dumps([{**dataclasses.asdict(e), **more} for e, more in zip(found, extra)], indent=2))
        return 0
    if args.names:
        print("\n".join(map(card, found)), end="")
    else:
        _list(found)
    images = zoo.NOISE_IMAGES + len(zoo.pictures())
    for name, isa in checked.items():
        print(f"{name}: file intact, logits of {images} images on {isa} are those of the index")
    return 0


def _list(found: list[Entry]) -> None:
    rows = [
        (e.name, f"{e.test_set}, {len(e.classes)} classes", f"{e.accuracy:.2%}", f"{e.bytes:,}")
        + (" ".join([e.recipe, *e.settings]), e.sha256[:16])
        for e in found
    ]
    print(table(("name", "task", "accuracy", "bytes", "recipe", "sha256"), rows, right=(2, 3)))


if __name__ == "__main__":
    sys.exit(main(None))
