"""`ovsw-run`: classify images with a `.bnn` model."""

from __future__ import annotations

import argparse
import json
import sys

from ovsw.cli import command, message
from ovsw.engine import Engine


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL.bnn")
    p.add_argument("images", metavar="IMG", nargs="+", help="image files")
    p.add_argument("--top", metavar="K", type=int, default=5, help="classes to show (default: %(default)s)")
    p.add_argument("--threads", metavar="N", type=int, default=1, help="threads per image (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="kernel table to use (default: the best for this CPU)")
    p.add_argument("--profile", action="store_true", help="also show where the time goes, for the first image")
    p.add_argument("--json", action="store_true", help="print the result as JSON")


@command("ovsw-run", "Classify images with a .bnn model.", options)
def main(args: argparse.Namespace) -> int:
    """Every image that can be read is classified; those that cannot are named, and the exit code is then 2."""
    if args.top < 1:
        raise ValueError(f"--top is {args.top}, expected at least 1")
    engine = Engine(args.model, threads=args.threads, isa=args.isa)
    results, failed = [], False
    for path in args.images:
        try:
            top = engine.classify(path, args.top)
        except (ValueError, OSError) as e:
            print(f"ovsw-run: error: {message(e)}", file=sys.stderr)
            failed = True
            continue
        results.append({"image": path, "top": [{"label": label, "probability": p} for label, p in top]})
        if not args.json:
            print(path)
            for label, p in top:
                print(f"  {100 * p:6.2f} %  {label}")
    if args.json:
        about = {"model": args.model, "isa": engine.isa, "threads": engine.threads}
        print(json.dumps({**about, "results": results}, indent=2))
    if args.profile and results:
        print(f"\n{engine.profile(results[0]['image'])}", file=sys.stderr if args.json else sys.stdout)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main(None))
