"""Damaged input for every reader in Python: `.bnn` files, checkpoints, CIFAR, IDX and WebP sets, ONNX files.

    python -m campaigns.fuzz_readers [READER ...] [--seconds S | --count N] [--seed S] [--keep DIR]

Each reader runs in a child process with a limit on memory and on seconds of a CPU per input. It may take the input or
refuse it with its own error; anything else (another exception, a crash, a hang, too much memory) is a finding: the
input is kept and the exit code is 1. A `.bnn` file must also be taken or refused by both readers alike.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import ROOT

MEGABYTES, SECONDS = 1024, 30  # that one input may take
MOST = 20  # findings of one reader, then it ends
Case = Callable[[random.Random, Path], "tuple[bytes, Callable[[], str]]"]  # input, and what reads it


class Finding(Exception):  # noqa: N818
    """What is wrong, in words."""


# --- the readers: each makes an input and reads it -------------------------------------------------------------------


def bnn_case() -> Case:
    from ovsw import _core, bounds
    from ovsw import format as bnn

    from support.files import refusal
    from support.graphs import FLOAT, INTEGER, model_of
    from support.hostile import mutate_model, mutated_bytes
    from support.models import TINY
    from support.two_readers import disagreement

    bases = [TINY, *(bnn.to_bytes(model_of(i, numerics)[0]) for i in range(35) for numerics in (FLOAT, INTEGER))]

    def python(data: bytes) -> None:
        model = bnn.from_bytes(data)
        if model.numerics == "integer":
            bounds.check(model)

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        base = rng.choice(bases)
        if rng.random() < 0.5:
            data = mutated_bytes(rng, base)
        else:
            model = bnn.from_bytes(base)
            for _ in range(rng.choice((1, 1, 2, 3))):
                mutate_model(rng, model)
            try:
                data = bnn.to_bytes(model)
            except (ValueError, KeyError, IndexError, TypeError):  # what the writer itself does not take
                data = base

        def read() -> str:
            found = refusal(lambda: python(data))
            other = refusal(lambda: _core.load(data, 1, "portable"))
            if words := disagreement(data, found, other):
                raise Finding(words)
            return "taken" if other is None else "refused"

        return data, read

    return case


def checkpoint_case() -> Case:
    import io

    import torch

    from ovsw.nn.checkpoint import CheckpointError, read, read_run, state_dict

    from support import mutations

    torch.set_num_threads(1)
    weights = {"conv1.weight": torch.ones(4, 3, 3, 3), "bn1.bias": torch.zeros(4).half(), "n": torch.tensor(3)}
    run = {"recipe": {"a": 1}, "seed": 1, "scaler": {}, "rng": [torch.zeros(8, dtype=torch.uint8)], "metrics": [{}]}
    bases = []
    for content in (weights, {"state_dict": weights, "epoch": 3, "ovsw": {**run, "state": {}, "flip_history": {}}}):
        for new in (True, False):
            buffer = io.BytesIO()
            torch.save(content, buffer, _use_new_zipfile_serialization=new)
            bases.append((new, buffer.getvalue()))

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        new, base = rng.choice(bases)
        data = mutations.zipped(rng, base) if new else mutations.noise(rng, base)
        path = folder / "c.pth"

        def reads() -> str:
            path.write_bytes(data)
            try:
                content = read(path)
                state_dict(path, content)
                read_run(path)
            except CheckpointError:
                return "refused"
            return "taken"

        return data, reads

    return case


def cifar_case() -> Case:
    import pickle

    import numpy as np

    from ovsw.datasets import DataError, open_split

    from support import mutations

    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    meta = pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, 2)
    bases = [pickle.dumps({b"data": pixels, b"labels": [0, 9]}, protocol) for protocol in (0, 2, 4)]
    bases.append(pickle.dumps({b"data": np.asfortranarray(pixels), b"labels": [0, 9]}, 2))

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        of_meta = rng.random() < 0.2
        data = mutations.pickled(rng, meta if of_meta else rng.choice(bases))
        (folder / "batches.meta").write_bytes(data if of_meta else meta)
        (folder / "test_batch").write_bytes(bases[0] if of_meta else data)
        return data, lambda: split_words(lambda: open_split("cifar10", folder, "test"), DataError)

    return case


def split_words(open_it: Callable[[], Any], error: type[Exception]) -> str:
    """Reads a set; what is taken must be whole."""
    try:
        found = open_it()
    except error:
        return "refused"
    labels = found.labels
    whole = len(found.images) == len(labels) > 0 and 0 <= int(labels.min()) <= int(labels.max()) < len(found.names)
    if not whole or tuple(found.images.shape[1:]) != (3, 32, 32):
        raise Finding(
            f"took {tuple(found.images.shape)} images, labels {labels.tolist()[:5]}, {len(found.names)} names"
        )
    return "taken"


def idx_case() -> Case:
    import gzip
    import struct

    from ovsw.datasets import DataError, open_split

    from support import mutations

    images = struct.pack(">4I", 0x803, 3, 28, 28) + bytes(range(256)) * 9 + bytes(48)
    labels = struct.pack(">2I", 0x801, 3) + bytes([0, 9, 2])
    names = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        for path in folder.iterdir():
            path.unlink()
        which, packed = rng.randrange(2), rng.random() < 0.5
        base = (images, labels)[which]
        head = mutations.noise(rng, base[:16])
        plain = head + base[16:] if rng.random() < 0.6 else mutations.noise(rng, base)
        data = gzip.compress(plain, mtime=0) if packed else plain
        if packed and rng.random() < 0.3:
            data = mutations.noise(rng, data)
        (folder / (names[which] + (".gz" if packed else ""))).write_bytes(data)
        (folder / names[1 - which]).write_bytes((images, labels)[1 - which])
        return data, lambda: split_words(lambda: open_split("fashion-mnist", folder, "test"), DataError)

    return case


def mosaic_case() -> Case:
    import hashlib
    import io

    import numpy as np
    from PIL import Image

    from ovsw.datasets import DataError, open_split

    from support import mutations

    pixels = np.zeros((1600, 1600, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", lossless=True)
    tiles = pixels.reshape(50, 32, 50, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
    labels = io.BytesIO()
    np.savez(labels, test=np.arange(2500, dtype=np.uint8) % 10, names=np.array([f"c{i}" for i in range(10)]))
    digest = hashlib.sha256(tiles.tobytes()).hexdigest()
    base = {
        "manifest.json": json.dumps({"test": {"sha256_pixels": digest}}).encode(),
        "labels.npz": labels.getvalue(),
        "test_0.webp": buffer.getvalue(),
    }

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        chosen = rng.choice(list(base))
        packed = chosen == "labels.npz" and rng.random() < 0.7
        data = mutations.zipped(rng, base[chosen]) if packed else mutations.noise(rng, base[chosen])
        for name, content in {**base, chosen: data}.items():
            (folder / name).write_bytes(content)
        return data, lambda: split_words(lambda: open_split("cifar10", folder, "test"), DataError)

    return case


def onnx_case() -> Case:
    import io

    import onnx
    import torch

    from ovsw.export.errors import ExportError
    from ovsw.export.frontend import onnx_file

    from support import mutations

    torch.set_num_threads(1)
    weight = onnx.numpy_helper.from_array(torch.ones(4, 3, 3, 3).numpy(), "w")
    shape = onnx.numpy_helper.from_array(torch.tensor([1, 4]).numpy(), "s")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="conv"),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        onnx.helper.make_node("Reshape", ["c", "s"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    float_ = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", float_, [1, 3, 8, 8])], [value("y", float_, [1, 4])], [weight, shape]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    buffer = io.BytesIO()
    onnx.save(model, buffer)

    def case(rng: random.Random, folder: Path) -> tuple[bytes, Callable[[], str]]:
        data = mutations.noise(rng, buffer.getvalue())
        path = folder / "m.onnx"

        def read() -> str:
            path.write_bytes(data)
            try:
                onnx_file.source(path)
            except ExportError:
                return "refused"
            return "taken"

        return data, read

    return case


READERS: dict[str, Callable[[], Case]] = {
    "bnn": bnn_case,
    "checkpoint": checkpoint_case,
    "cifar": cifar_case,
    "idx": idx_case,
    "mosaic": mosaic_case,
    "onnx": onnx_case,
}


# --- the child -------------------------------------------------------------------------------------------------------


def limit(megabytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def overtime(*_: object) -> None:
    raise Finding(f"took more than {SECONDS} seconds of a CPU")


def child(reader: str, seed: int, first: int, count: int, seconds: float) -> int:
    """Reads inputs from number `first` on; says on stdout which one is next, and what was found."""
    import warnings

    warnings.simplefilter("ignore")
    case = READERS[reader]()
    counts: Counter[str] = Counter()
    signal.signal(signal.SIGVTALRM, overtime)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limit(MEGABYTES)
        began = time.process_time()
        number = first
        while number < first + count and time.process_time() - began < seconds and counts["findings"] < MOST:
            print(json.dumps({"next": number, "cpu": time.process_time()}), flush=True)
            _, read = case(random.Random(f"{seed} {reader} {number}"), folder)
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                counts[read()] += 1
            except BaseException as e:  # whatever a reader lets out is what we look for
                print(json.dumps({"finding": f"{type(e).__name__}: {e}"[:500], "number": number}), flush=True)
                counts["findings"] += 1
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            number += 1
    print(json.dumps({"counts": counts, "next": number, "cpu": time.process_time()}), flush=True)
    return 0


# --- the parent ------------------------------------------------------------------------------------------------------


def fuzz(reader: str, seed: int, count: int, seconds: float, keep: Path) -> tuple[Counter[str], float]:
    """Children one after another, each until its end or its crash; returns what they counted, and seconds of a CPU."""
    total: Counter[str] = Counter()
    cpu, first, last = 0.0, 0, count
    make = READERS[reader]()
    while first < last and cpu < seconds and total["findings"] < MOST:
        with tempfile.TemporaryDirectory() as name:
            batch = min(last - first, 20000)
            command = [sys.executable, "-m", "campaigns.fuzz_readers", "--child", reader, str(seed), str(first)]
            command += [str(batch), str(seconds - cpu)]
            environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            for line in (line for line in lines if "finding" in line):
                save(keep, make, f"{seed} {reader} {line['number']}", line["finding"])
            if not any("next" in line for line in lines):
                raise SystemExit(f"{reader}: the child did not start:\n{done.stderr[-2000:]}")
            end = next(line for line in reversed(lines) if "next" in line)
            cpu += end["cpu"]
            if done.returncode == 0:
                first = end["next"]
                total.update(end["counts"])
            else:
                words = f"the reader died, exit code {done.returncode}: {done.stderr[-300:]}"
                save(keep, make, f"{seed} {reader} {end['next']}", words)
                total.update({"findings": 1, "refused": end["next"] - first})
                first = end["next"] + 1
    return total, cpu


def save(keep: Path, make: Case, case: str, words: str) -> None:
    """The input of a finding, made anew from its name."""
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        data, _ = make(random.Random(case), Path(name))
    path = keep / case.replace(" ", "-")
    path.write_bytes(data)
    print(f"FOUND {path}: {words}", flush=True)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        return child(argv[1], int(argv[2]), int(argv[3]), int(argv[4]), float(argv[5]))
    p = argparse.ArgumentParser(prog="python -m campaigns.fuzz_readers", description=__doc__.split("\n")[0])
    p.add_argument("readers", nargs="*", default=list(READERS), metavar="READER", help=f"of {', '.join(READERS)}")
    p.add_argument("--seconds", type=float, default=60, help="of a CPU, for each reader (default: %(default)s)")
    p.add_argument("--count", type=int, default=10**9, help="inputs at most, for each reader")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--keep", type=Path, default=Path("findings"), help="folder for inputs that found something")
    args = p.parse_args(argv)
    if unknown := [reader for reader in args.readers if reader not in READERS]:
        p.error(f"unknown reader {unknown[0]}; known are {', '.join(READERS)}")
    findings = 0
    for reader in args.readers:
        counts, cpu = fuzz(reader, args.seed, args.count, args.seconds, args.keep)
        findings += counts["findings"]
        inputs = sum(counts.values())
        words = ", ".join(f"{counts[key]} {key}" for key in ("taken", "refused", "findings"))
        print(f"{reader}: {inputs} inputs in {cpu:.0f} seconds of a CPU: {words}", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
