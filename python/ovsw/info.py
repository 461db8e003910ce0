"""`ovsw-info`: what is in a `.bnn` file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ovsw import format as bnn
from ovsw.cli import add_version, command
from ovsw.engine import Engine
from ovsw.summary import layers, table


def describe(path: str) -> dict[str, Any]:
    """Everything `ovsw-info` knows of a file, which is also loaded into the engine: all rules are checked."""
    data = Path(path).read_bytes()
    try:
        model = bnn.from_bytes(data)
        engine = Engine(data)
    except ValueError as e:
        raise ValueError(f"{path}: {str(e).replace('the model: ', '')}") from None
    rows = layers(model)
    binary = sum(row.bytes for row in rows if row.bits == 1)
    return {
        "file": path,
        "bytes": len(data),
        "format": "{}.{}".format(*model.version),
        "numerics": model.numerics,
        "input": list(engine.input_shape),
        "classes": engine.num_classes,
        "mean": model.tensors[model.mean].array.tolist(),
        "std": model.tensors[model.std].array.tolist(),
        "metadata": model.metadata,
        "ops": [dataclasses.asdict(row) for row in rows],
        "bytes_binary_layers": binary,
        "bytes_other_layers": sum(row.bytes for row in rows) - binary,
        "memory": {"maps": engine._core.arena_bytes, "weights": engine._core.weight_bytes},
    }


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="ovsw-info", description="Show what is in a .bnn file.")
    p.add_argument("model", metavar="MODEL.bnn")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    add_version(p)
    return p


@command("ovsw-info")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    info = describe(args.model)
    print(json.dumps(info, indent=2) if args.json else _text(info))
    return 0


def _text(info: dict[str, Any]) -> str:
    def dims(values: list[int]) -> str:
        return "x".join(map(str, values))

    def numbers(values: list[float]) -> str:
        return ", ".join(f"{v:.3g}" for v in values)

    rows = [
        (
            op["name"],
            op["op"],
            dims(op["input"]),
            dims(op["output"]),
            f"{dims(op['kernel'])}/{op['stride'][0]}" if op["kernel"] != (1, 1) or op["stride"] != (1, 1) else "-",
            op["stores"],
            "-" if op["bits"] is None else str(op["bits"]),
            f"{op['bytes']:,}",
        )
        for op in info["ops"]
    ]
    metadata = dict(info["metadata"])
    labels = metadata.pop("labels", [])
    names = f"{labels[0]}, {labels[1]}, ... {labels[-1]}" if len(labels) > 2 else ", ".join(labels) or "not named"
    lines = [
        f"{info['file']}: {info['bytes']:,} bytes = {info['bytes'] / 1e6:.2f} MB, format {info['format']}, "
        f"numerics {info['numerics']}",
        f"input {dims(info['input'])}, mean {numbers(info['mean'])}, std {numbers(info['std'])}",
        f"{info['classes']} classes: {names}",
        *(f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in metadata.items()),
        "",
        table(("op", "kind", "input", "output", "window", "stores", "bits", "bytes"), rows, right=(7,)),
        "",
        f"binary layers {info['bytes_binary_layers']:,} bytes, others {info['bytes_other_layers']:,}; "
        f"in memory: weights {info['memory']['weights'] / 1e6:.2f} MB, maps {info['memory']['maps'] / 1e6:.2f} MB",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(None))
