"""`ovsw-run`: classify images with a `.bnn` model, or with a network of the zoo."""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from ovsw import zoo
from ovsw.commands.base import (
    UsageError,
    add_engine,
    add_memory_limit,
    add_work_limit,
    command,
    memory_limit,
    message,
    new_file,
    whole,
    work_limit,
)
from ovsw.commands.show import ClassifiedImage, beside, colours, html_page, terminal_picture
from ovsw.engine import Engine
from ovsw.image import FORMATS, ImageSource, read_image
from ovsw.util.files import replace_file
from ovsw.util.progress import Progress
from ovsw.util.text import visible

SHOWN = 3  # answers beside a picture
_COLUMNS = 32  # of a picture in a terminal
_BAR = 20


def options(p: argparse.ArgumentParser) -> None:
    p.usage = "%(prog)s [options] [MODEL] IMG [IMG ...]"
    p.add_argument(
        "inputs",
        metavar="[MODEL] IMG",
        nargs="*",
        help="images: files, folders of them, quoted patterns such as 'cats/*.jpg', or - for one from stdin; before "
        f"them a .bnn file or the name of a network of ovsw zoo (default: {zoo.DEFAULT})",
    )
    p.add_argument("--top", metavar="K", type=whole(1), default=5, help="classes to show (default: %(default)s)")
    add_engine(p)
    add_memory_limit(p)
    add_work_limit(p)
    p.add_argument("--profile", action="store_true", help="also show where the time goes, for the first image")
    p.add_argument("--show", action="store_true", help="draw the pictures, in a terminal with colours")
    p.add_argument("--html", metavar="FILE", type=new_file, help="write a page with the pictures and their answers")
    p.add_argument("--json", action="store_true", help="print the result as JSON")


@command(
    "ovsw-run",
    "Classify images with a .bnn model, or with a trained network that comes with ovsw.",
    options,
    examples=("cat.jpg dog.jpg --top 3", "model.bnn photos/ --html answers.html", "--show - < cat.jpg"),
)
def main(args: argparse.Namespace) -> int:
    """Classifies every image that can be read. The others are reported, and the exit code is then 1."""
    model, inputs = split(args.inputs)
    if args.show and args.json:
        raise UsageError("--show and --json exclude each other")
    path, entry = zoo.resolve(model)
    engine = Engine(
        path, threads=args.threads, isa=args.isa, memory_limit=memory_limit(args), work_limit=work_limit(args)
    )
    if entry:
        print(f"{args.prog}: {entry.about}", file=sys.stderr)
    draws = args.show and colours(sys.stdout)
    if args.show and not draws:
        print(f"{args.prog}: this terminal has no colour support, so pictures are off", file=sys.stderr)
    results: list[dict[str, Any]] = []
    rows: list[ClassifiedImage] = []
    first: ImageSource | None = None
    with Progress(args.prog) as progress:
        for name, problem in expand(inputs):
            try:
                if problem:
                    raise ValueError(problem)
                image: ImageSource = name if name != "-" else read_image(sys.stdin.buffer.read(), name)
                top = engine.classify(image, max(args.top, SHOWN))
                drawn = terminal_picture(image, _COLUMNS) if draws else []
            except (ValueError, OSError, MemoryError) as e:
                print(f"{args.prog}: error: {message(e)}", file=sys.stderr)
                results.append({"image": name, "error": message(e)})
                rows.append(ClassifiedImage(name, None, note=message(e)))
                continue
            first = image if first is None else first
            results.append({"image": name, "top": [{"label": a, "probability": p} for a, p in top[: args.top]]})
            rows.append(ClassifiedImage(name, image, top[:SHOWN]))
            if args.json:
                progress("pictures", len(results))
            elif draws:
                print(*(line.rstrip() for line in beside(drawn, _answer_lines(rows[-1]), _COLUMNS)), "", sep="\n")
            else:
                print(visible(name))
                for label, p in top[: args.top]:
                    print(f"  {100 * p:6.2f} %  {visible(label)}")
    if args.json:
        run = {"model": model, "zoo": _zoo_facts(entry), "isa": engine.isa, "threads": engine.threads}
        print(json.dumps({**run, "results": results}, indent=2))
    if args.html:
        title = f"What {Path(model).name} says of {len(rows)} picture{'s' if len(rows) > 1 else ''}"
        replace_file(args.html, html_page(rows, title).encode())
        print(f"{args.prog}: wrote {visible(str(args.html))}", file=sys.stderr)
    if args.profile and first is not None:
        print(f"\n{engine.profile(first)}", file=sys.stderr if args.json else sys.stdout)
    return 0 if all("top" in result for result in results) else 1


def expand(inputs: list[str]) -> Iterator[tuple[str, str]]:
    """The name of every picture; for an input without pictures, its name and what is wrong with it."""
    for word in inputs:
        path, names, problem = Path(word), [word], ""
        if path.is_dir():
            endings = _endings()
            names = [str(p) for p in path.iterdir() if p.suffix.lower() in endings and p.is_file()]
            problem = "a folder without pictures"
        elif _is_pattern(word):
            names = [p for p in glob.glob(word, recursive=True) if Path(p).is_file()]  # noqa: PTH207
            problem = "matches no file"
        yield from ((name, "") for name in sorted(names)) if names else [(word, f"{word}: {problem}")]


def _endings() -> set[str]:
    """The endings of pictures' names."""
    return {ending for ending, kind in Image.registered_extensions().items() if kind in FORMATS}


def _is_pattern(word: str) -> bool:
    return word != "-" and not Path(word).exists() and bool(set(word) & set("*?["))


def _answer_lines(row: ClassifiedImage) -> list[str]:
    """The lines next to a picture."""
    answers = [f"{100 * p:6.2f} %  {'█' * round(_BAR * p):<{_BAR}}  {visible(label)}" for label, p in row.top]
    return [visible(row.name), "", *answers]


def split(inputs: list[str]) -> tuple[str, list[str]]:
    """The model's name or path, and the images. Raises ValueError if there are none."""
    if not inputs:
        raise UsageError("no image given")
    first, rest = inputs[0], inputs[1:]
    if not _is_model(first):
        return zoo.DEFAULT, inputs
    if not rest:
        raise UsageError(f"no image given for the model {first}")
    return first, rest


def _is_model(first: str) -> bool:
    """Whether the first input names a model; a file that is neither a model nor an image counts as one."""
    path = Path(first)
    if path.suffix.lower() == ".bnn" or zoo.known(first):
        return True
    if first == "-" or path.is_dir() or _is_pattern(first) or path.suffix.lower() in _endings():
        return False
    if not path.exists():
        try:
            zoo.entry(first)
        except ValueError as e:
            raise ValueError(f"{first}: no such image, no such model, and {e}") from None
    try:
        with Image.open(path, formats=FORMATS):
            return False
    except (OSError, KeyError, SyntaxError, Image.DecompressionBombError):  # KeyError: a format that Pillow lacks here
        return True


def _zoo_facts(entry: zoo.Entry | None) -> dict[str, Any] | None:
    """The facts that a program needs about a network of the zoo."""
    if entry is None:
        return None
    return {
        **{"title": entry.title, "sha256": entry.sha256, "classes": list(entry.classes)},
        **{"accuracy": entry.accuracy, "test_set": entry.test_set, "test_images": entry.images},
    }
