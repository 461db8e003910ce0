"""`ovsw-run`: classify images with a `.bnn` model, or with a network of the zoo."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from ovsw import zoo
from ovsw.cli import add_memory_limit, command, memory_limit, message
from ovsw.engine import Engine
from ovsw.text import visible


def options(p: argparse.ArgumentParser) -> None:
    p.usage = "%(prog)s [options] [MODEL] IMG [IMG ...]"
    p.add_argument(
        "inputs",
        metavar="[MODEL] IMG",
        nargs="*",
        help=f"image files; before them a .bnn file or the name of a network of ovsw-zoo (default: {zoo.DEFAULT})",
    )
    p.add_argument("--top", metavar="K", type=int, default=5, help="classes to show (default: %(default)s)")
    p.add_argument("--threads", metavar="N", type=int, default=1, help="threads per image (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="kernel table to use (default: the best for this CPU)")
    add_memory_limit(p)
    p.add_argument("--profile", action="store_true", help="also show where the time goes, for the first image")
    p.add_argument("--json", action="store_true", help="print the result as JSON")


@command("ovsw-run", "Classify images with a .bnn model, or with a trained network that comes with ovsw.", options)
def main(args: argparse.Namespace) -> int:
    """Every image that can be read is classified; those that cannot are named, and the exit code is then 1."""
    if args.top < 1:
        raise ValueError(f"--top is {args.top}, expected at least 1")
    model, images = split(args.inputs)
    entry = zoo.entry(model) if zoo.known(model) else None
    engine = (zoo.load if entry else Engine)(model, threads=args.threads, isa=args.isa, memory_limit=memory_limit(args))
    if entry:
        print(f"ovsw-run: {entry.about}", file=sys.stderr)
    results: list[dict[str, Any]] = []
    for path in images:
        try:
            top = engine.classify(path, args.top)
        except (ValueError, OSError, MemoryError) as e:
            print(f"ovsw-run: error: {message(e)}", file=sys.stderr)
            results.append({"image": path, "error": message(e)})
            continue
        results.append({"image": path, "top": [{"label": label, "probability": p} for label, p in top]})
        if not args.json:
            print(visible(path))
            for label, p in top:
                print(f"  {100 * p:6.2f} %  {visible(label)}")
    if args.json:
        about = {"model": model, "zoo": _known(entry), "isa": engine.isa, "threads": engine.threads}
        print(json.dumps({**about, "results": results}, indent=2))
    good = [result["image"] for result in results if "top" in result]
    if args.profile and good:
        print(f"\n{engine.profile(good[0])}", file=sys.stderr if args.json else sys.stdout)
    return 0 if len(good) == len(images) else 1


def split(inputs: list[str]) -> tuple[str, list[str]]:
    """The model's name or path, and the images. Raises ValueError if there are none."""
    if not inputs:
        raise ValueError("no image given")
    first, rest = inputs[0], inputs[1:]
    if not _is_model(first):
        return zoo.DEFAULT, inputs
    if not rest:
        raise ValueError(f"no image given for the model {first}")
    return first, rest


def _is_model(first: str) -> bool:
    """Whether the first of the inputs is meant as a model; a file that is neither a model nor an image is."""
    path = Path(first)
    if path.suffix.lower() == ".bnn" or zoo.known(first):
        return True
    if path.suffix.lower() in Image.registered_extensions():
        return False
    if not path.exists():
        try:
            zoo.entry(first)
        except ValueError as e:
            raise ValueError(f"{first}: no such image, no such model, and {e}") from None
    try:
        with Image.open(path):
            return False
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return True


def _known(entry: zoo.Entry | None) -> dict[str, Any] | None:
    """What a program should know of a network that it did not choose."""
    if entry is None:
        return None
    return {
        **{"title": entry.title, "sha256": entry.sha256, "classes": list(entry.classes)},
        **{"accuracy": entry.accuracy, "test_set": entry.test_set, "test_images": entry.images},
    }


if __name__ == "__main__":
    sys.exit(main(None))
