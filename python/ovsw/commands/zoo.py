"""`ovsw-zoo`: lists the trained networks that come with the package, shows their cards and checks them."""

from __future__ import annotations

import argparse
import dataclasses
import json

from ovsw import zoo
from ovsw.commands.base import command, offer
from ovsw.util.text import dims, table
from ovsw.zoo import EarlierRun, Entry


def card(e: Entry) -> str:
    """The model card of a network, in Markdown."""
    epochs = e.epochs + sum(step.epochs for step in e.before)
    saved = f"the file is epoch {e.epoch} of {e.epochs} of the last run"
    facts = (
        ("task", f"one of {len(e.classes)} classes: {', '.join(e.classes)}"),
        ("input", f"{dims(e.input)}: the centre of a photo, after its shorter side is scaled to {min(e.input[1:])}"),
        ("accuracy", f"{e.accuracy:.2%} of the {e.images:,} test images of {e.test_set}, in the engine"),
        ("accuracy in PyTorch", f"{e.right_pytorch / e.images:.2%}"),
        ("size", f"{e.bytes:,} bytes"),
        ("latency", f"{e.ms:.2f} ms per image, one thread, {e.machine}"),
        ("training", f"{epochs} epochs, {e.deployed_epochs} of them in the arithmetic of the file; {saved}"),
        ("arithmetic", "integer: identical results on every CPU"),
        ("file", f"`{e.file}`, since {e.date}"),
        ("SHA-256", f"`{e.sha256}`"),
    )
    lines = [f"# {e.name}", "", f"{e.title}, a binary network: weights and activations have one bit.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts)]
    lines += ["", "## Use", "", "```bash", f"ovsw-run {e.name} photo.jpg", f"ovsw-zoo {e.name} --check", "```", ""]
    lines += [
        "Use it to try, time and test the engine. It is small, it was trained on public data, and you can check its",
        "answers by eye. Do not use it for decisions.",
    ]
    lines += ["", "## Limits", ""]
    lines += [
        "- It knows only its classes: the answer to any picture is one of them.",
        f"- It was trained and tested only on {e.test_set}. Its accuracy on other photos was not measured.",
        "- Its probabilities are not calibrated.",
    ]
    if e.epoch != e.epochs:
        lines += ["- The epoch may have been chosen by its accuracy on the same test images."]
    lines += ["", "## Accuracy by class", "", "| class | right | of |", "|---|---:|---:|"]
    by_class = zip(e.classes, e.right_by_class, e.images_by_class)
    lines += [f"| {name} | {right:,} | {images:,} |" for name, right, images in by_class]
    lines += ["", "Most frequent mistakes: " + "; ".join(f"{a} taken for {b}, {n}" for a, b, n in e.mistakes) + "."]
    lines += ["", "## Training", "", "```bash", *_training(e), "```"]
    teachers = sorted({teacher for teacher in (*(step.teacher for step in e.before), e.teacher) if teacher})
    if teachers:
        lines += [
            "",
            f"teacher.pth has the weights of a {' and a '.join(teachers)} that was trained on the same images.",
        ]
    return "\n".join(lines) + "\n"


def _training(e: Entry) -> list[str]:
    """The commands of all runs, each with its accuracy in PyTorch."""
    last = EarlierRun(e.recipe, e.settings, e.seed, e.epochs, 100 * e.right_pytorch / e.images, e.teacher)
    lines: list[str] = []
    for i, step in enumerate([*e.before, last], 1):
        words = ["ovsw-train", step.recipe, "--data DIR", *(f"--set {setting}" for setting in step.settings)]
        words += ["--teacher teacher.pth"] * bool(step.teacher)
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
    p.add_argument("--check", action="store_true", help="run them and compare the logits with the index, bit for bit")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


@command(
    "ovsw-zoo",
    "List the trained networks that come with ovsw, or show their cards.",
    options,
    examples=("", "cresnet20-cifar10", "--check", "cresnet20-cifar10 --json"),
)
def main(args: argparse.Namespace) -> int:
    entries = [zoo.entry(name) for name in args.names or zoo.names()]
    checked = {e.name: zoo.check(e.name) for e in entries} if args.check else {}
    if args.json:
        extra = [{"accuracy": e.accuracy, **({"checked": checked[e.name]} if checked else {})} for e in entries]
        print(json.dumps([{**dataclasses.asdict(e), **more} for e, more in zip(entries, extra)], indent=2))
        return 0
    if args.names:
        print("\n".join(map(card, entries)), end="")
    else:
        _list(entries)
    images = zoo.NOISE_IMAGES + len(zoo.pictures())
    for name, isa in checked.items():
        print(f"{name}: file intact, logits of {images} images on {isa} are those of the index")
    return 0


def _list(entries: list[Entry]) -> None:
    rows = [
        (e.name, f"{e.test_set}, {len(e.classes)} classes", f"{e.accuracy:.2%}", f"{e.bytes:,}")
        + (" ".join([e.recipe, *e.settings]), e.sha256[:16])
        for e in entries
    ]
    print(table(("name", "task", "accuracy", "bytes", "recipe", "sha256"), rows, right=(2, 3)))
