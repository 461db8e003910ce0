"""Files that could crash the interpreter or eat the machine are loaded in a child process: this module as a script.

`child` and `load_in_child` are the parent's side, all else is the child's.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ovsw import Engine
from ovsw import format as bnn

from support import HANGS, ROOT, TABLES
from support.agreement import check_float
from support.files import File, Number, hostile_numbers, load_and_run
from support.format_doc import RECORDS
from support.graphs import FLOAT, INTEGER, model_of
from support.models import TINY


def child(*args: str, stdin: bytes = b"") -> str:
    """Runs this module as a script; a crash, a hang or an exception there is an assertion failure here.

    The seconds of a CPU that it may take are among its arguments: those of the wall say how busy the machine is.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "support.hostile", *args]
    try:
        done = subprocess.run(command, cwd=ROOT / "tests", input=stdin, capture_output=True, timeout=HANGS, check=False)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{args} hangs") from None
    assert done.returncode == 0, f"{args}: exit code {done.returncode}\n{done.stderr.decode()[-3000:]}"
    return done.stdout.decode()


def load_in_child(data: bytes, megabytes: int = 384, seconds: int = 10) -> str:
    """'ran' or the message of a ValueError, in a process that can get only so much more memory and time."""
    return child("load", str(megabytes), str(seconds), stdin=data).strip()


# --- the child's side ------------------------------------------------------------------------------------------------


def limit_memory(megabytes: int) -> None:
    """From now on, at most so much more address space; 0 is no limit, as sanitizers need it."""
    if megabytes and sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def load(data: bytes) -> str:
    try:
        engine = Engine(data)
    except ValueError as e:
        return str(e)
    if engine.memory.maps > 1 << 26:
        return "too large to run here"
    engine.run(np.zeros(engine.input_shape, np.float32))
    return "ran"


def hostile_fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every field of every record with every hostile number, and every reference with every index."""
    original = File(data)
    for kind, (_, fields) in RECORDS.items():
        for index, field in itertools.product(range(original.count[kind]), fields):
            if field.type == "bytes" or field.name == "checksum":
                continue
            now = original.get(kind, index, field.name)
            numbers: list[Number] = hostile_numbers(field, now)
            if kind == "op" and field.type == "u32":
                numbers += [n for n in range(max(original.count.values())) if n != now and n not in numbers]
            for number in numbers:
                label = f"{kind} {index} {field.name} = {number}"
                yield label, File(data).set(kind, index, field.name, number).repaired()


def sweep() -> dict[str, int]:
    counts = {"ran": 0, "refused": 0}
    models = [model_of(1, numerics)[0] for numerics in (FLOAT, INTEGER)]
    for data in (TINY, *map(bnn.to_bytes, models)):
        for label, changed in hostile_fields(data):
            os.write(2, f"{label}\n".encode())
            counts["ran" if load_and_run(changed) == "ran" else "refused"] += 1
    return counts


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Noise, hostile fields, records copied over others, bytes put in or taken out; not in the names."""
    file = File(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        kind = rng.choice(list(RECORDS))
        size, fields = RECORDS[kind]
        index = rng.randrange(file.count[kind])
        way = rng.randrange(5)
        if way <= 1:
            field = rng.choice([f for f in fields if f.type != "bytes"])
            numbers = hostile_numbers(field, file.get(kind, index, field.name))
            file.set(kind, index, field.name, rng.choice([*numbers, *range(8)]))
        elif way == 2:
            other = file.start(kind, rng.randrange(file.count[kind]))
            file.splice(file.start(kind, index), file.start(kind, index) + size, bytes(file.data[other : other + size]))
        elif way == 3:
            at = rng.randrange(len(file.data))
            if not file.strings <= at < file.metadata:
                file.data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        else:
            at = rng.choice((file.start(kind, index), rng.randrange(64, file.strings), len(data)))
            some = rng.choice((1, 8, size, 64))
            file.splice(at, at + rng.choice((0, some)), bytes(rng.choice((0, some))))
            break  # the records have moved
    if rng.random() < 0.9:
        struct.pack_into("<Q", file.data, 16, len(file.data))
    return file.repaired()


def mutate_model(rng: random.Random, m: bnn.Model) -> None:
    """One change to a model; the file stays well formed, the graph may not."""
    op = rng.choice(m.ops)
    way = rng.randrange(12)
    if way == 0:
        op.kind = rng.choice(list(bnn.OP_KINDS))
    elif way == 1:
        op.act, op.clamp = rng.choice(list(bnn.ACTIVATIONS)), (rng.randint(-2, 1), rng.randint(-1, 2))
    elif way == 2:
        name = rng.choice(("input", "residual", "out", "bits"))
        setattr(op, name, rng.choice([*range(len(m.values)), *([None] if name != "input" else [])]))
    elif way == 3:
        name = rng.choice(("weight", "scale", "offset", "slope", "threshold"))
        setattr(op, name, rng.choice([None, *range(len(m.tensors))]))
    elif way == 4:
        pair = (rng.choice((0, 1, 1, 2, 3, 255)), rng.choice((0, 1, 1, 2, 3, 6)))
        setattr(op, rng.choice(("window", "stride", "pad", "channels")), pair)
    elif way == 5:
        value = rng.choice(m.values)
        setattr(value, rng.choice("chw"), rng.choice((1, 2, 3, 4, 64, 65)))
    elif way == 6:
        value = rng.choice(m.values)
        value.kind = rng.choice(list(bnn.VALUE_KINDS))
    elif way == 7:
        shape = tuple(rng.choice((1, 2, 3, 64, 65)) for _ in range(rng.randint(1, 3)))
        dtype = rng.choice(list(bnn.DTYPES))
        m.add_bits(np.ones(shape, np.bool_)) if dtype == "bits" else m.add_tensor(np.ones(shape), dtype)
        m.tensors[rng.randrange(len(m.tensors) - 1)] = m.tensors.pop()
    elif way == 8:
        i, j = rng.randrange(len(m.ops)), rng.randrange(len(m.ops))
        m.ops[i], m.ops[j] = m.ops[j], m.ops[i]
    elif way == 9:
        op.dilation = (rng.choice((1, 2, 3, 256)), rng.choice((1, 2, 4)))
        setattr(op, rng.choice(("ceil", "exclude_pad")), True)
    elif way == 10:
        op.pad_value = rng.choice((1.0, -0.5, 1025.0, float("nan"), float("inf")))
        m.more_outputs = [rng.randrange(len(m.values))]
    else:
        m.output, m.mean = rng.randrange(len(m.values)), rng.choice((0, 0, 1))


def fuzz(seed: int, count: int) -> dict[str, int]:
    """Mutated files; one that the engine takes must also run, and give what the specification says."""
    counts = {"ran": 0, "refused": 0, "compared": 0}
    models = [model_of(i, numerics)[0] for i in range(20) for numerics in (FLOAT, INTEGER)]
    bases = [TINY, *map(bnn.to_bytes, models)]
    for case in range(count):
        os.write(2, f"seed {seed} case {case}\n".encode())
        rng = random.Random(f"{seed} {case}")
        if case % 2:
            counts["ran" if load_and_run(mutated_bytes(rng, rng.choice(bases))) == "ran" else "refused"] += 1
            continue
        model, images = model_of(rng.getrandbits(32), FLOAT)
        for _ in range(rng.choice((1, 1, 2))):
            mutate_model(rng, model)
        if load_and_run(bnn.to_bytes(model)) != "ran":
            counts["refused"] += 1
            continue
        counts["ran"] += 1
        counts["compared"] += check_float(model, images[0], [rng.choice(TABLES)])
    return counts


def main(job: str, megabytes: str, seconds: str, *numbers: str) -> None:
    limit_memory(int(megabytes))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    if job == "load":
        print(load(sys.stdin.buffer.read()))
    elif job == "sweep":
        print(json.dumps(sweep()))
    else:
        print(json.dumps(fuzz(*map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
