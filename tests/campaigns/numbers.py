"""Whether the engine computes what others compute, on random graphs: `python -m campaigns.numbers --help`.

Each kind of graph has a judge that shares no code with the engine: torch in float64, ONNX Runtime on the graph's own
ONNX file, the simulation of docs/numerics.md. A seed is one graph; the first ones are others than the test suite's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support import TABLES
from support.agreement import check_integer as check_file
from support.graphs import INTEGER, model_of
from support.module_judges import outcome
from support.random_networks import Network, check_float, check_integer, check_onnx_runtime

FIRST = 1_000_000


@dataclass
class Tally:
    """Of one judge: graphs tried, how many it could judge, and what was wrong."""

    tried: int = 0
    judged: int = 0
    wrong: list[str] = field(default_factory=list)


def torch_judges(seed: int) -> bool:
    network = Network.of(seed)
    check_float(network)
    return network.stable


def onnx_runtime_judges(seed: int) -> bool:
    network = Network.of(seed)
    check_onnx_runtime(network)
    return network.stable


def simulation_judges_network(seed: int) -> bool:
    return check_integer(Network.of(seed))


def torch_judges_module(seed: int) -> bool:
    """A PyTorch module with its float file, and every op of its integer file; refused ones are tried but not judged."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(seed, Path(folder)) in ("integer", "float", "ties")


def simulation_judges_file(seed: int, extreme: bool = False) -> bool:
    check_file(*model_of(seed, INTEGER, extreme=extreme), TABLES)
    return True


def simulation_judges_extreme_file(seed: int) -> bool:
    return simulation_judges_file(seed, extreme=True)


# Name, judge, and how many graphs it must have judged before the campaign ends.
KINDS: list[tuple[str, Callable[[int], bool], int]] = [
    ("float networks, torch", torch_judges, 1000),
    ("float networks, ONNX Runtime", onnx_runtime_judges, 200),
    ("integer networks, simulation", simulation_judges_network, 1000),
    ("PyTorch modules, torch and op by op", torch_judges_module, 2000),
    ("integer files, simulation", simulation_judges_file, 1000),
    ("integer files of extreme constants, simulation", simulation_judges_extreme_file, 1000),
]


def campaign(judge: Callable[[int], bool], wanted: int, first: int) -> Tally:
    """Goes on until so many graphs were judged; a network that hangs on a rounding error is tried but not judged."""
    tally = Tally()
    while tally.judged < wanted and tally.tried < 4 * wanted + 20:
        try:
            tally.judged += judge(first + tally.tried)
        except Exception as e:  # whatever it is, it is a finding, and the next graph may tell more
            tally.wrong.append(f"seed {first + tally.tried}: {type(e).__name__}: {str(e)[:300]}")
        tally.tried += 1
        if len(tally.wrong) == 20:
            break
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.numbers", description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="X times as many graphs (default 1)")
    parser.add_argument("--seed", type=int, default=FIRST, help="the first graph (default %(default)s)")
    args = parser.parse_args(argv)
    ok = True
    for name, judge, count in KINDS:
        wanted, start = max(1, round(args.share * count)), time.process_time()
        tally = campaign(judge, wanted, args.seed)
        ok &= not tally.wrong and tally.judged >= wanted
        seconds = time.process_time() - start
        print(
            f"{name}: {tally.judged} judged of {tally.tried}, {len(tally.wrong)} wrong, tables {' '.join(TABLES)}, "
            f"{seconds:.0f} s of a CPU",
            flush=True,
        )
        for line in tally.wrong:
            print(f"  {line}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
