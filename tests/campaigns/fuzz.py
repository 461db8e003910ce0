"""`make fuzz`: the libFuzzer targets of tests/fuzz, and every campaign named fuzz_*.py beside this one.

libFuzzer changes bytes; graphs of every shape come from `support.graphs`, other ones for each seed.

Each has the same number of seconds of a CPU, as many at a time as there are cores. What was learnt stays in
build/fuzz/corpus and is where the next run begins; what was found is in build/fuzz/findings, and then the command ends
with 1. A target runs a finding again with `build/fuzz/cmake/tests/fuzz/fuzz_NAME FILE`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ovsw import format as bnn

from support.graphs import FLOAT, INTEGER, model_of

ROOT = Path(__file__).absolute().parents[2]
BUILD = ROOT / "build" / "fuzz"
FINDINGS = BUILD / "findings"
TARGETS = {"load": "bnn", "run": "bnn", "metadata": "json"}  # and their corpus
LARGEST = 32768  # bytes of an input
MODELS = 500  # seeds of random models: hardly three files each
HANGS = 1200  # seconds for one input that take a few thousandths of one: no busy machine comes near


class Report(NamedTuple):
    name: str
    lines: list[str]
    found: bool


def build() -> None:
    """Configures and compiles the targets; says nothing unless that fails."""
    for command in (["cmake", "--preset", "fuzz", "-GNinja"], ["cmake", "--build", "--preset", "fuzz"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def fuzz(name: str, seconds: int, runs: int, seed: int) -> Report:
    """One libFuzzer target, for a time or, if `runs`, for a number of inputs."""
    # With a number of inputs nothing is kept: the same seed is then the same campaign.
    corpus, kind = BUILD / ("corpus" if not runs else "short") / name, TARGETS[name]
    if runs:
        shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir(parents=True, exist_ok=True)
    source = ROOT / "tests" / "fuzz"
    options = {
        "seed": seed,
        "max_len": LARGEST,
        "len_control": 0,
        "rss_limit_mb": 2048,
        "timeout": HANGS,
        "dict": source / f"{kind}.dict",
        "artifact_prefix": f"{FINDINGS}/{name}-",
        "print_final_stats": 1,
    }
    folders = [corpus, source / "corpus" / kind]  # the first one is written to
    if kind == "bnn":
        folders.append(random_models(name, seed or random.randrange(1 << 31), runs // 10 or MODELS))
    command = [str(BUILD / "cmake" / "tests" / "fuzz" / f"fuzz_{name}"), *(f"-{k}={v}" for k, v in options.items())]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0"}
    spent, outputs, code = 0.0, [], 0
    while not code and (not outputs or (not runs and spent < seconds)):
        # libFuzzer counts seconds of the wall: on a busy machine it is started again for those that are left.
        end = f"-runs={runs}" if runs else f"-max_total_time={max(10, round(seconds - spent))}"
        output, code, used = run_target([*command, end, *map(str, folders)], environment)
        outputs.append(output)
        spent += used
    (BUILD / f"{name}.log").write_text("".join(outputs), encoding="utf-8")
    return Report(name, [*summary(name, outputs, code), f"{spent:.0f} seconds of a CPU"], code != 0)


def random_models(target: str, seed: int, count: int) -> Path:
    """A folder of models over every op, valid by construction: no mutation of bytes would come to their shapes."""
    folder = BUILD / "models" / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(seed * MODELS, seed * MODELS + count):
        for numerics, extreme in ((FLOAT, False), (INTEGER, False), (INTEGER, True)):
            data = bnn.to_bytes(model_of(number, numerics, extreme=extreme)[0])
            if len(data) <= LARGEST:
                (folder / f"{numerics}-{extreme}-{number}.bnn").write_bytes(data)
    return folder


def run_target(command: list[str], environment: dict[str, str]) -> tuple[str, int, float]:
    """What it says, its exit code, and the seconds of a CPU that it took."""
    process = subprocess.Popen(
        command,
        cwd=BUILD,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return output, process.returncode, used.ru_utime + used.ru_stime


def summary(name: str, outputs: list[str], code: int) -> list[str]:
    """What libFuzzer's output comes to, run after run."""
    if code:
        return [f"found something, see {BUILD / name}.log", *outputs[-1].splitlines()[-40:]]
    done = [int(n) for output in outputs for n in re.findall(r"stat::number_of_executed_units:\s+(\d+)", output)]
    peak = [int(n) for output in outputs for n in re.findall(r"stat::peak_rss_mb:\s+(\d+)", output)]
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", outputs[-1])
    if len(done) < len(outputs) or not last:
        return ["no figures", *outputs[-1].splitlines()[-20:]]
    edges, features, corpus = last[-1]
    return [
        f"{sum(done)} executions, coverage {edges} edges and {features} features, corpus {corpus}, {max(peak)} MB",
        *re.findall(rf"^{name}: (.*)$", outputs[-1], re.MULTILINE)[-1:],
    ]


def others(seconds: int) -> list[str]:
    """The names of the other campaigns."""
    return sorted(p.stem for p in Path(__file__).parent.glob("fuzz_*.py")) if seconds else []


def campaign(name: str, seconds: int, seed: int) -> Report:
    command = [sys.executable, "-m", f"campaigns.{name}", "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT / "tests", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return Report(name, done.stdout.splitlines()[-40:], done.returncode != 0)


def main() -> int:
    p = argparse.ArgumentParser(prog="campaigns.fuzz", description=__doc__.splitlines()[0])
    p.add_argument("names", nargs="*", help="targets or campaigns (default: all)")
    p.add_argument("--seconds", type=int, default=300, help="of a CPU, for each (default: %(default)s)")
    p.add_argument(
        "--runs", type=int, default=0, help="instead, this many inputs for each libFuzzer target, and no others"
    )
    p.add_argument("--seed", type=int, default=0, help="0: libFuzzer's targets draw one (default)")
    args = p.parse_args()
    known = [*TARGETS, *others(not args.runs)]
    names = args.names or known
    if unknown := [name for name in names if name not in known]:
        p.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    FINDINGS.mkdir(parents=True, exist_ok=True)
    if any(name in TARGETS for name in names):
        build()

    def run(name: str) -> Report:
        if name in TARGETS:
            return fuzz(name, args.seconds, args.runs, args.seed)
        return campaign(name, args.seconds, args.seed)

    found = False
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for report in pool.map(run, names):
            found |= report.found
            print(f"{report.name}: {'FOUND SOMETHING' if report.found else 'no finding'}")
            print("\n".join(f"  {line}" for line in report.lines), flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} seconds of a CPU")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
