"""`ovsw-export`: makes a `.bnn` file from a checkpoint, a network in Python, an ONNX file or a torch.export program."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from ovsw.commands.base import UsageError, command
from ovsw.export.errors import ExportError, VerifyError
from ovsw.export.options import CHOICES, WIDTHS, ExportOptions, check_target
from ovsw.util.progress import Progress
from ovsw.util.text import dims, table, visible

if TYPE_CHECKING:
    from ovsw.export.pipeline import Prepared, Report


def _normalisation(parts: list[str] | None) -> str | list[float] | None:
    """Numbers, separated by commas or blanks, or one name."""
    if parts is None:
        return None
    words = " ".join(parts).replace(",", " ").split()
    try:
        return [float(word) for word in words]
    except ValueError:
        return " ".join(words)


def _shape(text: str) -> tuple[int, int, int]:
    sides = text.lower().split("x")
    if len(sides) != 3 or not all(side.isdigit() and 1 <= int(side) <= 4096 for side in sides):
        raise argparse.ArgumentTypeError(f"not a shape such as 3x32x32: '{text}'")
    channels, height, width = map(int, sides)
    return channels, height, width


def _whole(what: str, least: int, most: int = sys.maxsize) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"not {what}: '{text}'")
        return int(text)

    return parse


_SIZE, _COUNT = _whole("a size between 8 and 4096", 8, 4096), _whole("a number of images", 1)


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "source",
        metavar="SOURCE",
        help="a trainer's checkpoint or a bare state dict; FILE.py:NAME, a module or a function without arguments that "
        "returns one (this runs the code in FILE.py); an .onnx file; a .pt2 program of torch.export",
    )
    p.add_argument("-o", "--output", metavar="OUT", help="file to write: OUT.bnn, or OUT.onnx for a float ONNX model")
    p.add_argument("--arch", metavar="NAME", help="network, such as ResNet18_1w1a (default: found by its keys)")
    p.add_argument("--input-size", metavar="N", type=_SIZE, help="side of the square input, if not the usual one")
    p.add_argument("--input", metavar="CxHxW", type=_shape, help="shape of the image that the network of FILE.py takes")
    p.add_argument(
        "--mean",
        metavar="X",
        nargs="+",
        help="mean of the pixels scaled to 0..1, per channel; or imagenet, cifar10, cifar100, none (default: "
        "taken from the checkpoint or its network; required for other sources)",
    )
    p.add_argument(
        "--std", metavar="X", nargs="+", help="standard deviation, in the same form; a name for --mean sets both"
    )
    p.add_argument(
        "--labels",
        metavar="FILE",
        help="class names, one per line; or imagenet, cifar10, none (default: imagenet for its 1000-class networks)",
    )
    p.add_argument(
        "--numerics",
        choices=CHOICES["numerics"],
        default="auto",
        help="arithmetic of the file (default: integer where the network allows it, else float)",
    )
    p.add_argument(
        "--weights",
        metavar="int16|int8|CKPT",
        action="append",
        help="width of real weights in integer files (default: as trained, else int16); with FILE.py:NAME also a "
        "checkpoint to load into the network",
    )
    p.add_argument(
        "--stem",
        choices=CHOICES["stem"],
        help="width of the first layer (default: as trained, else as --weights, or int24 where it costs little)",
    )
    p.add_argument(
        "--stream",
        choices=CHOICES["stream"],
        default="auto",
        help="width of residual streams that no clamp bounds (default: %(default)s, which is int32)",
    )
    p.add_argument(
        "--zero-weights",
        choices=CHOICES["zero_weights"],
        default="refuse",
        help="binary weights that are exactly 0: refuse (default), or take their sign as +1",
    )
    p.add_argument(
        "--verify", metavar="N", type=_COUNT, default=4, help="images to compare with PyTorch (default: %(default)s)"
    )
    p.add_argument(
        "--images",
        metavar="DIR",
        help="labelled images, CIFAR or one folder per class: report the accuracy of PyTorch and of the file",
    )
    p.add_argument(
        "--calibrate",
        dest="calibration",
        metavar="DIR",
        help="images that determine the scales of integer maps without a clamp (default: some of --images, else "
        "synthetic noise, with a warning)",
    )
    p.add_argument(
        "--explain",
        nargs="?",
        const="-",
        metavar="OUT.svg",
        help="show the network as it was read, after each pass, and the plan: as tables, and as a picture in OUT.svg",
    )
    p.add_argument(
        "--allow-unsafe",
        action="store_true",
        help="read the .pt2 program with torch.export.load, which may run code in it",
    )
    p.add_argument(
        "--no-limits",
        action="store_true",
        help="convert the .onnx file however much memory and time it takes",
    )
    p.add_argument("--max-images", metavar="N", type=_COUNT, help="use N of the labelled images, evenly spread")
    p.add_argument("--force", action="store_true", help="overwrite existing files")
    p.add_argument("--json", action="store_true", help="print the report as JSON")


@command(
    "ovsw-export",
    "Export a binary network to one .bnn file, checked against the original.",
    options,
    examples=(
        "model_best.pth -o model.bnn",
        "net.py:make --weights ckpt.pth --input 3x32x32 --mean cifar10 -o model.bnn",
        "model_best.pth --explain model.svg",
    ),
)
def main(args: argparse.Namespace) -> int:
    if args.output is None and args.explain is None:
        raise UsageError("nothing to do: -o OUT.bnn writes a file, --explain shows what would be in it")
    chosen = _chosen(args)
    with Progress(args.prog) as progress:
        progress.step("loading torch")
        from ovsw.export.pipeline import run

        def explain(prepared: Prepared) -> None:
            if args.explain is not None:
                progress.clear()
                _explain(prepared, args.explain)

        try:
            if args.explain not in (None, "-"):
                check_target(args.explain, args.force, args.source)
            report = run(args.source, args.output, chosen, progress.step, explain)
        except ExportError as e:
            raise ExportError(_with_options(e.summary), list(map(_with_options, e.problems))) from None
        except VerifyError as e:
            progress.clear()
            print(f"{args.prog}: {visible(f'{args.source}: {e}')}; nothing was written", file=sys.stderr)
            return 1
        progress.clear()
    if report is not None:
        report.warnings = list(map(_with_options, report.warnings))
        _print(report, args)
    return 0


def _chosen(args: argparse.Namespace) -> ExportOptions:
    """The options; --weights is a width, or a checkpoint, or both."""
    words = args.weights or []
    widths, checkpoints = [w for w in words if w in WIDTHS], [w for w in words if w not in WIDTHS]
    if len(widths) > 1 or len(checkpoints) > 1:
        raise UsageError(f"--weights is given as {', '.join(words)}: at most one width and one checkpoint")
    args.weights, args.checkpoint = next(iter(widths), None), next(iter(checkpoints), None)
    args.mean, args.std = _normalisation(args.mean), _normalisation(args.std)
    return ExportOptions(**{field.name: getattr(args, field.name) for field in fields(ExportOptions)})


def _with_options(message: str) -> str:
    """A message with options instead of parameters: `mean=`, and `mean:` at its beginning, become --mean."""
    names = "|".join(field.name for field in fields(ExportOptions))

    def option(match: re.Match[str]) -> str:
        first, name, word, shape = match.groups()
        name = {"calibration": "calibrate", "checkpoint": "weights"}.get(first or name, first or name)
        return " ".join(filter(None, (f"--{name.replace('_', '-')}", word, (shape or "").replace(", ", "x"))))

    return re.sub(rf'^({names})(?=:)|(?<![\w/.-])({names})=(?:True|"(\w+)"|\(([\d, ]+)\))?(?!\w)', option, message)


def _explain(prepared: Prepared, target: str) -> None:
    """The tables to stdout; a picture to `target`, unless that is "-"."""
    from ovsw.export.explain import explain, table
    from ovsw.export.explain_svg import svg
    from ovsw.util.files import replace_file

    explanation = explain(prepared.source.graph, prepared.chosen.model, prepared.chosen.lowered)
    print(table(explanation, verbose=True))
    if target != "-":
        replace_file(target, svg(explanation).encode())


def _print(report: Report, args: argparse.Namespace) -> None:
    if report.not_integer:
        reason = visible(report.not_integer)
        print(f"{args.prog}: exported as float, integers are not possible: {reason}", file=sys.stderr)
    for warning in report.warnings:
        print(f"{args.prog}: warning: {visible(warning)}", file=sys.stderr)
    print(json.dumps(report.as_dict(), indent=2) if args.json else _text(report))


def _text(report: Report) -> str:
    rows = [
        (layer.name, layer.op, dims(layer.output), str(layer.bits or "-"), f"{layer.bytes:,}")
        for layer in report.layers
    ]
    scale = "learned" if report.learned_scale else "derived"
    _, height, width = report.input_shape
    lines = [
        f"{visible(report.arch)}: {report.num_classes} classes, input {height}x{width}, {scale} scales, "
        f"numerics {report.numerics}",
        "",
        table(("layer", "op", "output", "bits", "bytes"), rows, right=(4,)),
        "",
        f"{report.bytes:,} bytes = {report.bytes / 1e6:.2f} MB; fp32: {report.fp32_bytes / 1e6:.2f} MB "
        f"({report.fp32_bytes / report.bytes:.1f}x)",
    ]
    check = report.verification
    if check is not None:
        ties = f"; on {check.ties} a sign depends on rounding" if check.ties else ""
        lines.append(
            f"verified against PyTorch on {check.images} images: largest difference {check.max_error:.1e}{ties}"
        )
    integer = report.integer_verification
    if integer is not None:
        lines[-1] = lines[-1].replace("verified", "before rounding, verified")
        lines.append(
            f"in integers every op is right on {integer.images} images; PyTorch has the same top-1 on "
            f"{integer.same_top1} of them, logits differ by {integer.mean_difference:.2g} on average and "
            f"{integer.max_difference:.2g} at most"
        )
    if integer is not None and integer.rounding:
        largest = ", ".join(f"{visible(name)} {100 * share:.2g} %" for name, share in integer.rounding[:3])
        lines.append(f"rounding changes signs most often in {largest}")
    if integer is not None and report.calibrated is not None:
        lines.append(
            f"scales of maps that are not clamped measured on {visible(report.calibrated)}; {integer.saturated:.2g} of "
            "their values saturate"
        )
    accuracy = report.accuracy
    if accuracy is not None:
        lines.append(
            f"top-1 on {accuracy.images:,} labelled images: PyTorch {accuracy.pytorch:.2%}, this file "
            f"{accuracy.exported:.2%}, the same answer on {accuracy.agreement:.2%}"
        )
    elif report.answers is not None:
        lines.append(f"the same answer as PyTorch on {report.answers.same:.0%} of {report.answers.images} images")
    elif integer is not None:
        lines.append("how many answers are as in PyTorch is not known: --calibrate DIR or --images DIR tells")
    lines.append(f"wrote {visible(str(report.output))}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(None))
