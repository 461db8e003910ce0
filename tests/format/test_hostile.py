"""Files that mean harm: every field with every hostile number, mutations, and sizes that would eat the machine."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from ovsw import format as bnn

from support.files import File, load_and_run, refusals
from support.hostile import child, load_in_child
from support.models import small_model


def test_every_field_set_to_every_hostile_number() -> None:
    counts = json.loads(child("sweep", "1024", "300"))
    assert counts["refused"] > 2000
    assert counts["ran"] > 50  # names, unused clamp bounds, NaN weights ...


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_mutations(seed: int) -> None:
    counts = json.loads(child("fuzz", "1024", "300", str(seed), "2500"))
    assert counts["refused"] > 1000
    assert counts["ran"] > 100
    assert counts["compared"] > 50


@pytest.mark.parametrize("dtype", bnn.DTYPES)
def test_huge_tensors_are_refused_at_once(dtype: str) -> None:
    """Among them shapes whose size in bytes is 0 or small modulo 2^32 or 2^64."""
    sides = (1, 3, 1 << 10, 1 << 12, 1 << 16, 1 << 18, 1 << 20)
    model = small_model()
    model.add_tensor(np.zeros((1, 1, 1, 1))) if dtype != "bits" else model.add_bits(np.ones((1, 1, 1, 1), np.bool_))
    model.tensors[2].dtype, model.tensors[2].array = dtype, np.zeros(1, bnn.DTYPES[dtype][1])
    data = bnn.to_bytes(model)
    assert "tensor 2: is referred to 0 times" in load_and_run(data)  # but all else about it is right
    for dims in itertools.product(sides, repeat=4):
        if np.prod(dims) < 256:
            continue
        file = File(data)
        for i, n in enumerate(dims):
            file.set("tensor", 2, f"dim{i}", n)
        size = int(np.prod([*dims[:3], -(-dims[3] // 64) if dtype == "bits" else dims[3]], dtype=object))
        size *= bnn.DTYPES[dtype][1].itemsize
        if size == bnn.DTYPES[dtype][1].itemsize:
            continue
        for length in {size % (1 << 32), size % (1 << 64), file.get("tensor", 2, "length")}:
            for message in refusals(file.set("tensor", 2, "length", length).repaired()):
                assert "tensor 2: " in message


def test_a_map_at_the_cap_takes_no_memory_before_it_is_allowed() -> None:
    message = load_in_child(bnn.to_bytes(small_model(shape=(128, 1024, 1024))))
    assert "bytes of memory (maps 10737" in message


def test_a_wide_binary_window_loads_in_reasonable_time() -> None:
    """320 KB; the network itself runs in a fraction of a second."""
    side = 200
    model = small_model(shape=(1, side, side))
    model.values[1] = bnn.Value("bits", 1, side, side)
    model.ops[0].out, model.ops[0].bits = None, 1
    weight = model.add_bits(np.ones((1, side, side, 1), np.bool_))
    out = 2 * side - 1
    model.output = model.add_value("f32", 1, out, out)
    model.ops.append(bnn.Op("bconv", "b", 1, out=2, weight=weight, window=(side, side), pad=(side - 1, side - 1)))
    assert load_in_child(bnn.to_bytes(model), seconds=60)
