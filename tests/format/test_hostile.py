"""Files that mean harm: every field with every hostile number, mutations, and sizes that would eat the machine."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

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


@pytest.mark.parametrize("shape", [(1, 1 << 20, 1 << 20), (1 << 20, 1 << 20, 1 << 20), (1, 1 << 14, (1 << 13) + 1)])
def test_huge_values_are_refused_at_once(shape: tuple[int, int, int]) -> None:
    file = File(bnn.to_bytes(small_model()))
    for index in (0, 1):
        for name, n in zip("chw", shape):
            file.set("value", index, name, n)
    assert "value 0: " in (message := load_in_child(file.repaired()))
    assert "is over the cap of 134217728 elements" in message


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


@pytest.mark.parametrize("copies", [3, 7])
def test_maps_that_need_too_much_memory_together_are_refused(copies: int) -> None:
    """The input and its copies, 16 MB each, are all read after the last copy is made."""
    shape = (128, 128, 250)
    model = small_model(shape=shape)
    for _ in range(1, copies):
        model.ops.append(bnn.Op("eltwise", "", 0, out=model.add_value("f32", *shape)))
    for i in range(copies + 1):
        pool = bnn.Op("maxpool", "", i, window=(128, 125), stride=(128, 125))
        pool.out = model.add_value("f32", 128, 1, 2)
        model.ops.append(pool)
    message = load_in_child(bnn.to_bytes(model))
    if copies == 3:
        assert message == "ran"
    else:
        assert re.search(r"needs \d+ bytes of memory \(maps 13107\d{4}, ", message)


def test_a_map_at_the_cap_takes_no_memory_before_it_is_allowed() -> None:
    message = load_in_child(bnn.to_bytes(small_model(shape=(128, 1024, 1024))))
    assert "bytes of memory (maps 10737" in message


def many_long_names() -> bytes:
    """1,000 ops with the same name of 1 MB."""
    model = small_model()
    for i in range(1, 1000):
        model.ops.append(bnn.Op("eltwise", "", i, out=model.add_value("f32", 1, 1, 1)))
    model.ops[0].name = "x" * 1_000_000
    file = File(bnn.to_bytes(model))
    for i in range(1000):
        file.set("op", i, "name_offset", 0).set("op", i, "name_size", 1_000_000)
    return file.repaired()


def one_weight_for_all() -> bytes:
    """1,000 layers that share a weight of 1 MB."""
    model = small_model(shape=(512, 1, 1))
    weight = model.add_tensor(np.zeros((512, 512)))
    for i in range(1, 1000):
        model.ops.append(bnn.Op("linear", "", i, out=model.add_value("f32", 512, 1, 1), weight=weight))
    return bnn.to_bytes(model)


def wide_pool() -> bytes:
    """A 17 KB file with a 255 x 255 window over one pixel of 2,048 channels."""
    return bnn.to_bytes(small_model("maxpool", (2048, 1, 1), window=(255, 255), pad=(127, 127)))


def wide_binary_window() -> bytes:
    """8 MB of binary weights."""
    model = small_model(shape=(1024, 1, 1))
    model.values[1] = bnn.Value("bits", 1024, 1, 1)
    model.ops[0].out, model.ops[0].bits = None, 1
    weight = model.add_bits(np.ones((1, 255, 255, 1024), np.bool_))
    model.output = model.add_value("f32", 1, 1, 1)
    model.ops.append(bnn.Op("bconv", "b", 1, out=2, weight=weight, window=(255, 255), pad=(127, 127)))
    return bnn.to_bytes(model)


def many_input_channels() -> bytes:
    """8 MB: mean and std of 2^20 channels."""
    return bnn.to_bytes(small_model(shape=(1 << 20, 1, 1)))


@pytest.mark.parametrize(
    "make",
    [
        many_long_names,
        one_weight_for_all,
        wide_pool,
        wide_binary_window,
        many_input_channels,
    ],
)
def test_small_files_do_not_take_much_memory(make: Callable[[], bytes]) -> None:
    data = make()
    assert len(data) < 10_000_000
    assert load_in_child(data)


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
