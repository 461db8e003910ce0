"""`ovsw-info`: what is in a `.bnn` file, and which kernels this CPU runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ovsw import _core
from ovsw import format as bnn
from ovsw.cli import add_version, command
from ovsw.engine import Engine
from ovsw.labels import resolve_labels
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
        "labels": resolve_labels(model.metadata.get("labels", []), engine.num_classes),
        "ops": [dataclasses.asdict(row) for row in rows],
        "bytes_binary_layers": binary,
        "bytes_other_layers": sum(row.bytes for row in rows) - binary,
        "memory": {"maps": engine._core.arena_bytes, "weights": engine._core.weight_bytes},
    }


def describe_cpu() -> dict[str, Any]:
    """The CPU, the kernel tables of this build, and the one that an Engine takes unless told otherwise."""
    tables = [{"name": name, "supported": supported} for name, supported in _core.tables()]
    forced = os.environ.get("OVSW_ISA", "")
    return {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "tables": tables,
        "forced": forced,
        "used": forced or next(t["name"] for t in tables if t["supported"]),
    }


def cpu_name(cpuinfo: str = "/proc/cpuinfo") -> str:
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    return named.get("model name") or named.get("Model") or f"{platform.machine()} part {named.get('CPU part', '?')}"


def _cpu_text(info: dict[str, Any]) -> str:
    how = f"forced by OVSW_ISA={info['forced']}" if info["forced"] else "the best that this CPU supports"
    rows = [(t["name"], "yes" if t["supported"] else "no") for t in info["tables"]]
    return "\n".join(
        [
            f"{info['cpu']}, {info['machine']}, {info['cores']} cores",
            f"kernels: {info['used']} ({how})",
            "",
            table(("table", "supported"), rows),
        ]
    )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="ovsw-info", description="Show what is in a .bnn file, or what this CPU runs.")
    p.add_argument("model", metavar="MODEL.bnn", nargs="?")
    p.add_argument("--cpu", action="store_true", help="show this CPU and the kernel tables it supports")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    add_version(p)
    return p


@command("ovsw-info")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if bool(args.model) == args.cpu:
        raise ValueError("give a MODEL.bnn, or --cpu")
    info = describe_cpu() if args.cpu else describe(args.model)
    print(json.dumps(info, indent=2) if args.json else (_cpu_text if args.cpu else _text)(info))
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
    metadata = {key: value for key, value in info["metadata"].items() if key != "labels"}
    labels = info["labels"]
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
