"""`python -m ovsw.bench.versus`: the binary ResNets against the same networks in float32 in ONNX Runtime.

Both run in this process, turn by turn, so that whatever else the machine does hits both; the verdict is the ratio of
each turn, not of two averages.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw.bench.random_nets import BLOCKS, random_resnet
from ovsw.cli import add_version, command
from ovsw.summary import table


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m ovsw.bench.versus",
        description="Time the binary ResNets against ONNX Runtime fp32, interleaved, batch 1, 224x224.",
    )
    p.add_argument("networks", metavar="NET", nargs="*", default=["resnet18"], help="resnet18, resnet34")
    p.add_argument("--threads", metavar="N", type=int, default=1, help="threads of either (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="one kernel table only (default: each that this CPU supports)")
    p.add_argument("--rounds", metavar="N", type=int, default=40, help="turns (default: %(default)s)")
    add_version(p)
    return p


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each call in each round, taken in turns: a b c, a b c, ..."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: np.array(t) for name, t in times.items()}


def _float_call(network: str, threads: int, values: np.ndarray) -> Callable[[], object]:
    import onnxruntime

    from ovsw.bench.float_nets import float_resnet

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    model = float_resnet(network).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"input": values})


def _engine_call(data: bytes, threads: int, isa: str, pixels: np.ndarray) -> Callable[[], object]:
    engine = Engine(data, threads=threads, isa=isa)
    return lambda: engine.run(pixels)


@command("ovsw.bench.versus")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    unknown = [n for n in args.networks if n not in BLOCKS]
    if unknown or args.rounds < 1:
        raise ValueError(f"unknown network '{unknown[0]}'" if unknown else "--rounds must be at least 1")
    isas = [args.isa] if args.isa else [name for name, supported in _core.tables() if supported]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (224, 224, 3), np.uint8)
    values = rng.normal(size=(1, 3, 224, 224)).astype(np.float32)
    rows = []
    for network in args.networks:
        data = bnn.to_bytes(random_resnet(network))
        base = "onnxruntime fp32"
        calls = {base: _float_call(network, args.threads, values)}
        calls.update({f"ovsw {isa}": _engine_call(data, args.threads, isa, pixels) for isa in isas})
        times = interleaved(calls, args.rounds)
        for name, t in times.items():
            low, mid, high = np.percentile(t, [10, 50, 90])
            ratio = np.percentile(times[base] / t, [10, 50, 90])
            rows.append(
                (network, name, f"{mid:.2f}", f"{low:.2f} .. {high:.2f}")
                + (f"{ratio[1]:.2f}", f"{ratio[0]:.2f} .. {ratio[2]:.2f}")
            )
    print(f"{args.threads} thread(s), batch 1, {args.rounds} interleaved rounds; ratio: fp32 time over this one's\n")
    print(table(("network", "engine", "median ms", "p10 .. p90", "ratio", "p10 .. p90"), rows, right=(2, 4)))
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
