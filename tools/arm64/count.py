"""`python tools/arm64/count.py`: counts the instructions of one inference on emulated ARM CPUs, for ovsw and for ncnn.

Counts are exact and repeat to the instruction (one thread, warm; another folder may shift them by 0.02 %, as memcpy
depends on alignment). Times are a model made of those counts and of published or measured throughputs; no wait for
memory or for an earlier result is in it, so it is a lower bound.
"""

from __future__ import annotations

import argparse
import bisect
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ovsw.util.text import dims, table

HERE = Path(__file__).absolute().parent
OUT = HERE.parents[1] / "build" / "arm64"
CLASSES = ("vector", "vector load", "vector store", "load", "store", "branch", "scalar")


@dataclass(frozen=True)
class Core:
    """A CPU for the model: what it does in one cycle."""

    name: str
    ghz: float
    decode: float  # instructions of any kind
    loads: float  # of up to 16 bytes
    vector: float  # vector instructions that `slow` does not name
    counted: tuple[str, ...]  # the emulated CPUs that choose the same code
    slow: dict[str, float] = field(default_factory=dict)


# Vector throughputs: FADD, FMUL and the integer multiplies are taken to be like FMLA, which was measured.
_A72 = dict.fromkeys(("fmla", "fmls", "fmul", "fadd", "fsub", "mla", "mul", "smlal", "smlal2", "smull", "smull2"), 1.0)
_A72.update({"cnt": 1.0, "uadalp": 1.0, "addv": 0.5, "sshl": 0.5, "scvtf": 0.5})
_A76 = {"uadalp": 1.0, "addv": 0.5, "scvtf": 0.5}
CORES = (
    Core("Apple M1", 3.2, decode=8, loads=3, vector=4, counted=("cortex-a76",)),
    Core("Pi 5 (A76)", 2.4, decode=4, loads=2, vector=2, counted=("cortex-a76",), slow=_A76),
    Core("Pi 4 (A72)", 1.5, decode=3, loads=1, vector=1.5, counted=("cortex-a72", "cortex-a53"), slow=_A72),
)

# What qemu 7.2 cannot disassemble, of the instructions that fast code is made of: mask, value, mnemonic.
_ARMV8_2 = (
    (0xBF20FC00, 0x0E009400, "sdot"),
    (0xBF20FC00, 0x2E009400, "udot"),
    (0xBF00F400, 0x0F00E000, "sdot"),
    (0xBF00F400, 0x2F00E000, "udot"),
    (0xBFE0FC00, 0x0E400C00, "fmla"),
    (0xBFC0F400, 0x0F001000, "fmla"),
)


def instruction_class(word: int) -> str:
    """By the top level of the A64 encoding table: bits 28..25, then 26 for vector registers and 22 for loads."""
    group = word >> 25 & 15
    if group & 14 == 10:
        return "branch"
    if group & 7 == 7:
        return "vector"  # and scalar floating point, which runs on the same pipes
    if group & 5 == 4:
        vector = word >> 26 & 1
        load = word >> 22 & 1 or word & 0x3B000000 == 0x18000000  # a literal
        if not vector and word & 0x3A000000 == 0x38000000 and word >> 23 & 1:
            load = 1  # with sign extension
        return ("vector " if vector else "") + ("load" if load else "store")
    return "scalar"


def load_units(word: int) -> int:
    """Loads of up to 16 bytes that an instruction of a load class stands for."""
    if word & 0xFFC00000 in (0xACC00000, 0xAD400000, 0xADC00000, 0xAC400000):
        return 2  # ldp, ldnp of q registers
    if word & 0xBF600000 == 0x0C400000:  # ld1 to ld4 of whole registers
        return {0: 4, 2: 4, 4: 3, 6: 3, 8: 2, 10: 2}.get(word >> 12 & 15, 1)
    return 1


def mnemonic(word: int, name: str) -> str:
    if name != ".byte":
        return name
    return next((known for mask, value, known in _ARMV8_2 if word & mask == value), name)


@dataclass
class Counts:
    """What icount.c wrote about one run; everything but `regions` is of the last region."""

    regions: list[int] = field(default_factory=list)
    threads: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    vector: Counter[str] = field(default_factory=Counter)  # by mnemonic
    loads: int = 0
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)  # (file, function)

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    def milliseconds(self, core: Core) -> float:
        """The model: whichever of vector instructions, loads and instructions in all takes longest."""
        vector = sum(n / core.slow.get(name, core.vector) for name, n in self.vector.items())
        return max(vector, self.loads / core.loads, self.total / core.decode) / core.ghz / 1e6


def parse(text: str) -> Counts:
    """Reads icount.c's file."""
    counts = Counts()
    blocks: list[tuple[int, int]] = []
    places = Places()
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "region":
            counts.regions.append(int(words[0]))
        elif kind == "threads":
            counts.threads = int(words[0])
        elif kind == "map":
            places.add(words)
        elif kind == "block":
            times = int(words[1])
            blocks.append((int(words[0], 16), times * (len(words) - 2)))
            for item in words[2:]:
                code, _, name = item.partition(":")
                word = int(code, 16)
                group = instruction_class(word)
                counts.classes[group] += times
                if group == "vector":
                    counts.vector[mnemonic(word, name)] += times
                elif group.endswith("load"):
                    counts.loads += times * load_units(word)
    for pc, n in blocks:
        counts.functions[places.name(pc)] += n
    return counts


class Places:
    """Which file and function an address belongs to; a block counts for the function that it begins in."""

    def __init__(self) -> None:
        self.maps: list[tuple[int, int, int, str]] = []

    def add(self, words: list[str]) -> None:
        """A line of /proc/self/maps: range, protection, offset, device, inode, path."""
        begin, end = (int(x, 16) for x in words[0].split("-"))
        self.maps.append((begin, end, int(words[2], 16), " ".join(words[5:])))

    def name(self, pc: int) -> tuple[str, str]:
        for begin, end, offset, path in self.maps:
            if begin <= pc < end:
                base = next((b for b, _, o, p in self.maps if p == path and o == 0), begin - offset)
                starts, ends, names = symbols(path)
                i = bisect.bisect_right(starts, pc - base) - 1
                known = i >= 0 and pc - base < ends[i]
                return Path(path).name, names[i] if known else "?"
        return "?", "?"


@cache
def symbols(path: str) -> tuple[list[int], list[int], list[str]]:
    """Functions of an arm64 ELF file: begin and end relative to its first segment, and name; stripped ones have few."""

    def tool(name: str, *args: str) -> list[str]:
        done = subprocess.run([f"aarch64-linux-gnu-{name}", *args, path], capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    segments = [int(line.split()[2], 16) for line in tool("readelf", "-lW") if line.split()[:1] == ["LOAD"]]
    first = min(segments, default=0) & ~0xFFF
    sized: dict[int, tuple[int, str]] = {}
    for option in ("-CS", "-CSD"):
        for line in tool("nm", option):
            if m := re.match(r"([0-9a-f]+) ([0-9a-f]+) [tTwWiV] (.+)", line):
                sized[int(m[1], 16) - first] = (int(m[2], 16), m[3])
    starts = sorted(sized)
    return starts, [s + sized[s][0] for s in starts], [sized[s][1] for s in starts]


def measure(cpu: str, engine: str, network: str, *options: str) -> tuple[dict[str, Any], Counts]:
    """Runs guest.py with one engine; says what ran, and its counts."""
    report = OUT / "icount.txt"
    # Nothing of the caller's environment: it moves the guest's stack, and with it what memcpy does about alignment.
    env = {"PATH": "/usr/bin:/bin", "QEMU_CPU": cpu, "QEMU_RAND_SEED": "1"}
    env["QEMU_PLUGIN"] = f"{OUT}/icount.so,out={report}"
    if engine == "ncnn":
        env["PYTHONPATH"] = str(OUT / "site-peers")
    command = [str(OUT / "python"), str(HERE / "guest.py"), engine, network, *options, f"--marks={OUT}/marks.so"]
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode or not report.is_file():
            raise RuntimeError(f"{engine} {network} on {cpu} failed with exit code {done.returncode}")
        counts = parse(report.read_text())
    finally:
        report.unlink(missing_ok=True)
    if counts.threads != 1:
        raise RuntimeError(f"{engine} {network} ran {counts.threads} threads: such counts are not exact")
    if counts.regions[-1] != counts.total:
        raise RuntimeError(f"{engine} {network}: blocks sum up to {counts.total}, counted {counts.regions[-1]}")
    return json.loads(done.stdout.splitlines()[-1]), counts


def by_step(cpu: str, call: tuple[str, ...]) -> list[dict[str, Any]]:
    """The steps of one inference of ovsw with their instructions, and how many those are for 128 multiply-adds."""
    about, counts = measure(cpu, *call, "--steps")
    steps = about["steps"]
    counted = counts.regions[-len(steps) - 1 : -1]  # the last region is what follows the last step
    for step, n in zip(steps, counted):
        step.update(instructions=n, per_128_macs=round(128 * n / step["macs"], 3) if step["macs"] else None)
    return steps


def step_lines(steps: list[dict[str, Any]]) -> list[str]:
    binary = [s for s in steps if s["op"] == "bconv"]
    both = {key: sum(s[key] for s in binary) for key in ("macs", "instructions")}
    rows = []
    for s in steps:
        output, ratio = dims(s["output"]), s["per_128_macs"]
        rows.append([s["name"], s["op"], output, str(s["instructions"]), f"{ratio:.3f}" if ratio else "-"])
    if binary:
        ratio = 128 * both["instructions"] / both["macs"]
        rows.append(["all binary convolutions", "bconv", "", str(both["instructions"]), f"{ratio:.3f}"])
    return table(("step", "op", "output", "instructions", "per 128 MACs"), rows, right=(3, 4)).splitlines()


def row(about: dict[str, Any], network: str, cpu: str, counts: Counts) -> dict[str, Any]:
    """What --json writes for one run."""
    kernels = [
        {"file": file, "function": name, "instructions": n} for (file, name), n in counts.functions.most_common(30)
    ]
    return {
        **about,
        "network": network,
        "cpu": cpu,
        "instructions": counts.total,
        "classes": {name: counts.classes[name] for name in CLASSES},
        "vector": dict(counts.vector.most_common()),
        "loads of 16 bytes": counts.loads,
        "kernels": kernels,
        "counted": counts.regions,
        "model ms": {core.name: round(counts.milliseconds(core), 3) for core in CORES if cpu in core.counted},
    }


def millions(n: int) -> str:
    return f"{n / 1e6:.2f}"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = "names separated by commas (default: %(default)s)"
    p.add_argument("--cpu", default="cortex-a72,cortex-a76", help=f"CPUs of qemu-aarch64, {names}")
    p.add_argument("--network", default="resnet18", help=f"resnet18, resnet34 or .bnn files, {names}")
    p.add_argument("--engine", default="ovsw,ncnn-fp32,ncnn-fp16", help=f"ovsw, ncnn-fp32, ncnn-fp16, {names}")
    p.add_argument("--stem", default="int8", help="weights of ovsw's first convolution, int8 or int16 (default: int8)")
    p.add_argument("--isa", help="the kernel table of ovsw (default: the best on each CPU)")
    p.add_argument("--json", metavar="FILE", type=Path, help="also write all rows to FILE")
    p.add_argument("--steps", action="store_true", help="also the instructions of each step of ovsw, per 128 MACs")
    p.add_argument("--functions", metavar="N", type=int, default=6, help="of each run, to show (default: %(default)s)")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if not (OUT / "marks.so").is_file():
        print("count.py: run tools/arm64/setup first (with --peers for ncnn)", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    details: list[str] = []
    lines: list[list[str]] = []
    for network in args.network.split(","):
        name = Path(network).name
        for engine in args.engine.split(","):
            if engine == "ovsw":
                call = ("ovsw", network, f"--stem={args.stem}", *([f"--isa={args.isa}"] if args.isa else []))
            elif network.endswith(".bnn"):
                continue  # ncnn has no such network
            else:
                from ncnn_net import write

                call = ("ncnn", str(write(network, OUT)), f"--precision={engine.partition('-')[2]}")
            for cpu in args.cpu.split(","):
                about, counts = measure(cpu, *call)
                rows.append(row(about, name, cpu, counts))
                label = f"{about['engine']} {about['precision']}"
                numbers = [counts.total, *(counts.classes[c] for c in CLASSES)]
                modelled = [f"{counts.milliseconds(core):.2f}" if cpu in core.counted else "-" for core in CORES]
                lines.append([name, label, cpu, *map(millions, numbers), *modelled])
                summary = f"{label}, {name}, {cpu}: {counts.total} instructions"
                print(summary, file=sys.stderr)
                details.append(f"\n{summary}")
                for (file, function), n in counts.functions.most_common(args.functions):
                    details.append(f"  {100 * n / counts.total:5.1f} %  {n:>13}  {file}: {function[:110]}")
                if args.steps and engine == "ovsw":
                    rows[-1]["steps"] = steps = by_step(cpu, call)
                    details += ["", *step_lines(steps)]
    print("Millions of instructions of one inference, 1 thread; ms are a MODEL made of these counts, not a measurement")
    head = ("network", "engine", "CPU", "all", *CLASSES, *(f"{core.name} ms" for core in CORES))
    print(table(head, lines, right=range(3, len(head))))
    print("\n".join(details))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"count.py: {error}")
