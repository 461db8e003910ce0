"""`ovsw-info`: shows what is in a `.bnn` file or a network of the zoo, and which kernels this CPU runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from typing import Any

from ovsw import cpu, zoo
from ovsw import format as bnn
from ovsw.commands.base import UsageError, add_memory_limit, add_work_limit, command, memory_limit, work_limit
from ovsw.commands.summary import layers
from ovsw.engine import Engine, read_file
from ovsw.util.text import dims, table, visible


def describe(name: str, limit: int | None = None, work: int | None = None) -> dict[str, Any]:
    """Everything `ovsw-info` shows of a file or a network of the zoo, which the engine loads: all rules are checked."""
    path, entry = zoo.resolve(name)
    data = read_file(path)
    try:
        model = bnn.from_bytes(data)
        engine = Engine(data, memory_limit=limit, work_limit=work)
    except ValueError as e:
        raise ValueError(f"{path}: {str(e).replace('the model: ', '')}") from None
    rows = layers(model)
    binary = sum(row.bytes for row in rows if row.bits == 1)
    return {
        "file": str(path),
        "bytes": len(data),
        "format": "{}.{}".format(*model.version),
        "numerics": model.numerics,
        "input": list(engine.input_shape),
        "outputs": [list(model.values[i].shape) for i in model.outputs],
        "classes": engine.num_classes,
        "mean": list(engine.input.mean),
        "std": list(engine.input.std),
        "metadata": engine.metadata,
        "labels": engine.labels,
        "ops": [dataclasses.asdict(row) for row in rows],
        "bytes_binary_layers": binary,
        "bytes_other_layers": sum(row.bytes for row in rows) - binary,
        "memory": dataclasses.asdict(engine.memory),
        **({"zoo": dataclasses.asdict(entry)} if entry else {}),
    }


def describe_cpu() -> dict[str, Any]:
    """The CPU, the kernel tables of this build, and the one that an Engine uses by default."""
    tables = [{"name": name, "supported": supported} for name, supported in cpu.isas().items()]
    return {
        "cpu": cpu.name(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "tables": tables,
        "forced": cpu.forced_isa(),
        "used": cpu.chosen_isa(),
    }


def _cpu_text(info: dict[str, Any]) -> str:
    how = f"forced by OVSW_ISA={info['forced']}" if info["forced"] else "the best for this CPU"
    rows = [(t["name"], "yes" if t["supported"] else "no") for t in info["tables"]]
    about = f"{info['cpu']}, {info['machine']}, {info['cores']} cores\nkernels: {info['used']} ({how})"
    return f"{about}\n\n{table(('table', 'supported'), rows)}"


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", nargs="?", help="a .bnn file, or the name of a network of ovsw-zoo")
    p.add_argument("--cpu", action="store_true", help="show this CPU and the kernel tables it supports")
    add_memory_limit(p)
    add_work_limit(p)
    p.add_argument("--json", action="store_true", help="print everything as JSON")


@command(
    "ovsw-info",
    "Show what is in a .bnn file, or which kernels this CPU supports.",
    options,
    examples=("model.bnn", "cresnet20-cifar10 --json", "--cpu"),
)
def main(args: argparse.Namespace) -> int:
    if bool(args.model) == args.cpu:
        raise UsageError("give a MODEL.bnn, or --cpu")
    info = describe_cpu() if args.cpu else describe(args.model, memory_limit(args), work_limit(args))
    print(json.dumps(info, indent=2) if args.json else (_cpu_text if args.cpu else _text)(info))
    return 0


def _text(info: dict[str, Any]) -> str:
    def numbers(values: list[float]) -> str:
        return ", ".join(f"{v:.3g}" for v in values)

    def window(op: dict[str, Any]) -> str:
        plain = op["window"] == op["stride"] == (1, 1)
        parts = [] if plain else [f"{dims(op['window'])}/{op['stride'][0]}"]
        parts += [f"dilation {op['dilation'][0]}"] if op["dilation"] != (1, 1) else []
        parts += [f"{op['groups']} groups"] if op["groups"] > 1 else []
        return ", ".join(parts) or "-"

    def inputs(op: dict[str, Any]) -> str:
        return ", ".join(dims(shape) for shape in (op["input"], op["second"]) if shape)

    rows = [
        (op["name"], op["op"], inputs(op), dims(op["output"]))
        + (window(op), op["stores"], str(op["bits"] or "-"), f"{op['bytes']:,}")
        for op in info["ops"]
    ]
    metadata = {key: value for key, value in info["metadata"].items() if key != "labels"}
    labels = [visible(label) for label in info["labels"]]
    names = f"{labels[0]}, {labels[1]}, ... {labels[-1]}" if len(labels) > 2 else ", ".join(labels) or "not named"
    is_classifier = len(info["outputs"]) == 1 and info["outputs"][0][1:] == [1, 1]
    lines = [
        f"{visible(info['file'])}: {info['bytes']:,} bytes = {info['bytes'] / 1e6:.2f} MB, format {info['format']}, "
        f"numerics {info['numerics']}",
        f"input {dims(info['input'])}, mean {numbers(info['mean'])}, std {numbers(info['std'])}",
        f"{info['classes']} classes: {names}" if is_classifier else f"outputs {', '.join(map(dims, info['outputs']))}",
        *(visible(f"{key}: {v if isinstance(v, str) else json.dumps(v)}") for key, v in metadata.items()),
        *([_trained(zoo.entry(info["zoo"]["name"]))] if "zoo" in info else []),
        "",
        table(("op", "kind", "input", "output", "window", "stores", "bits", "bytes"), rows, right=(7,)),
        "",
        f"binary layers {info['bytes_binary_layers']:,} bytes, others {info['bytes_other_layers']:,}; "
        f"in memory: weights {info['memory']['weights'] / 1e6:.2f} MB, maps {info['memory']['maps'] / 1e6:.2f} MB, "
        f"in all {sum(info['memory'].values()) / 1e6:.2f} MB",
    ]
    return "\n".join(lines)


def _trained(entry: zoo.Entry) -> str:
    score = f"{entry.accuracy:.2%} of {entry.images:,} test images of {entry.test_set} right"
    how = " ".join([entry.recipe, *entry.settings])
    return f"zoo: {entry.title}, {score} (PyTorch {entry.right_pytorch / entry.images:.2%}); {how}, epoch {entry.epoch}"
