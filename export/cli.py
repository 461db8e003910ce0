"""`ovsw-export`: a checkpoint becomes a `.bnn` file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ovsw.cli import command
from ovsw.export.errors import VerifyError
from ovsw.text import dims, table

if TYPE_CHECKING:
    from ovsw.export.pipeline import Report


_WIDTHS = ("int16", "int8")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a list of numbers: '{text}'") from None


def _joined(parts: list[list[float]] | None) -> list[float] | None:
    return None if parts is None else [number for part in parts for number in part]


def _whole(what: str, least: int, most: int = sys.maxsize) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"not {what}: '{text}'")
        return int(text)

    return parse


_SIZE, _COUNT, _SOME = (
    _whole("a size between 8 and 4096", 8, 4096),
    _whole("a count", 0),
    _whole("a number of images", 1),
)


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("checkpoint", metavar="CKPT", help="a trainer's checkpoint or a bare state dict")
    p.add_argument("-o", "--output", metavar="OUT.bnn", required=True, help="the file to write")
    p.add_argument("--arch", metavar="NAME", help="the network, such as ResNet18_1w1a (default: as its keys tell)")
    p.add_argument("--input-size", metavar="N", type=_SIZE, help="side of the square input, if not the usual one")
    p.add_argument("--mean", metavar="X", type=_numbers, nargs="+", help="of the pixels scaled to 0..1, per channel")
    p.add_argument("--std", metavar="X", type=_numbers, nargs="+", help="likewise")
    p.add_argument(
        "--labels",
        metavar="FILE",
        help="class names, one per line; or imagenet, cifar10, none (default: imagenet for its 1000-class networks)",
    )
    p.add_argument(
        "--numerics",
        choices=("auto", "integer", "float"),
        default="auto",
        help="arithmetic of the file (default: integer where the network allows it, else float)",
    )
    p.add_argument("--weights", choices=_WIDTHS, help="real weights in integer files (default: as trained, else int16)")
    p.add_argument("--stem", choices=_WIDTHS, help="those of the first layer (default: as trained, else as --weights)")
    p.add_argument(
        "--zero-weights",
        choices=("refuse", "plus"),
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
    p.add_argument("--max-images", metavar="N", type=_SOME, help="use N of them, evenly spread")
    p.add_argument("--force", action="store_true", help="overwrite OUT.bnn")
    p.add_argument("--json", action="store_true", help="print the report as JSON")


@command(
    "ovsw-export", "Export a binary network's PyTorch checkpoint to one .bnn file, checked against PyTorch.", options
)
def main(args: argparse.Namespace) -> int:
    try:
        from ovsw.export.pipeline import ExportOptions, export
    except ModuleNotFoundError as e:
        raise RuntimeError(f"{e.name} is needed to read checkpoints: pip install 'ovsw[export]'") from None
    args.mean, args.std = _joined(args.mean), _joined(args.std)
    options = ExportOptions(**{field.name: getattr(args, field.name) for field in dataclasses.fields(ExportOptions)})
    try:
        report = export(args.checkpoint, args.output, options)
    except VerifyError as e:
        print(f"ovsw-export: {args.checkpoint}: {e}; nothing was written", file=sys.stderr)
        return 1
    if report.not_integer:
        print(f"ovsw-export: exported as float, integers are not possible: {report.not_integer}", file=sys.stderr)
    for warning in report.warnings:
        print(f"ovsw-export: warning: {warning}", file=sys.stderr)
    print(json.dumps(report.as_dict(), indent=2) if args.json else _text(report))
    return 0


def _text(report: Report) -> str:
    rows = [
        (layer.name, layer.op, dims(layer.output), str(layer.bits or "-"), f"{layer.bytes:,}")
        for layer in report.layers
    ]
    scale = "learned" if report.learned_scale else "derived"
    _, height, width = report.input_shape
    lines = [
        f"{report.arch}: {report.num_classes} classes, input {height}x{width}, {scale} scales, "
        f"numerics {report.numerics}",
        "",
        table(("layer", "op", "output", "bits", "bytes"), rows, right=(4,)),
        "",
        f"{report.bytes:,} bytes = {report.bytes / 1e6:.2f} MB; fp32: {report.fp32_bytes / 1e6:.2f} MB "
        f"({report.fp32_bytes / report.bytes:.1f}x)",
    ]
    check = report.verification
    if check is None:
        lines.append("not verified (--verify 0)")
    else:
        ties = f", {check.ties} set aside (a value too near 0 to have a sign in float32)" if check.ties else ""
        lines.append(
            f"verified against PyTorch on {check.images} random images: largest difference {check.max_error:.1e}{ties}"
        )
    integer = report.integer_verification
    if integer is not None:
        lines[-1] = lines[-1].replace("verified", "in float verified")
        lines.append(
            f"in integers the engine gives the simulation's bits on {integer.images} random images; of those PyTorch "
            f"has the same top-1 on {integer.same_top1}, logits differ by {integer.mean_difference:.2g} on average and "
            f"{integer.max_difference:.2g} at most"
        )
    accuracy = report.accuracy
    if accuracy is not None:
        lines.append(
            f"top-1 on {accuracy.images:,} labelled images: PyTorch {accuracy.pytorch:.2%}, this file "
            f"{accuracy.exported:.2%}, the same answer on {accuracy.agreement:.2%}"
        )
    lines.append(f"wrote {report.output}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(None))
