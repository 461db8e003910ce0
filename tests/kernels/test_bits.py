"""Integer files give the same bytes on every table, for any number of threads, and in the simulation: for good.

The networks have the ops and shapes of the real ones; every constant in them comes from integer arithmetic alone, so
that they are the same on every machine too.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import isqrt

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet

# SHA-256 of the float32 logits of ten images. A change here is a change of docs/numerics.md.
HASHES = {
    "resnet18": "c3d3d458b92d997c82ada5257f334fa312783f1acb9dba4a182a13c832b419a2",
    "resnet34 int8": "48edaec3d83e215ebb72394af5964d46bae3cf30cabcfad8a3e91bb615d000a3",
    "cresnet20": "e8c0a682b1644a1e11773f98e6bb212872275866f0e0dd27214066d3794b7f8b",
}


def noise(seed: int, count: int) -> np.ndarray:
    """`count` 64-bit numbers: SplitMix64 of a counter."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def between(seed: int, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Whole numbers from low to high."""
    count = int(np.prod(shape))
    return (noise(seed, count) % np.uint64(high - low + 1)).astype(np.int64).reshape(shape) + low


@lru_cache(maxsize=1)
def network(name: str) -> bnn.Model:
    """A network whose sums are about as large as the stream is wide."""
    arch, _, weights = name.partition(" ")
    model = random_resnet(arch, numerics="integer", weights=weights or "int16")
    for index, op in enumerate(model.ops):
        seed = 8 * index
        taps = int(np.prod(model.tensors[op.weight].shape[1:])) if op.weight is not None else int(np.prod(op.window))

        def put(ref: int | None, values: np.ndarray) -> None:
            assert ref is not None
            tensor = model.tensors[ref]
            tensor.array = np.ascontiguousarray(values, tensor.array.dtype)

        if op.kind == "bconv":
            assert op.weight is not None
            weight = model.tensors[op.weight]
            tail = np.uint64(
                (1 << (weight.shape[3] - 1) % 64 + 1) - 1
            )  # of the last word, which is the only one with one
            put(op.weight, noise(seed, weight.array.size).reshape(weight.array.shape) & tail)
            channels = weight.shape[:1]
            put(op.scale, between(seed + 1, channels, 1 << 14, (1 << 15) - 1))
            shift = isqrt(taps).bit_length() - 1
            put(op.shift, np.full(channels, shift))
            put(op.offset, between(seed + 2, channels, -(1 << (13 + shift)), 1 << (13 + shift)))
        elif op.kind in ("conv", "linear"):
            assert op.weight is not None
            shape, narrow = model.tensors[op.weight].shape, model.tensors[op.weight].dtype == "i8"
            pixels = op.input == 0
            most = 127 if narrow else 900 if pixels or op.kind == "linear" else 255
            put(op.weight, between(seed, shape, -most, most))
            shift = (isqrt(taps) * ((64 if narrow else 2) if pixels else 128)).bit_length() - 1
            put(op.shift, np.full(shape[:1], (1 if narrow else 4) if op.kind == "linear" else shift))
            put(op.offset, between(seed + 2, shape[:1], -(1 << 14), 1 << 14))
            if op.kind == "linear":
                put(op.scale, np.array([2.0**-20]))
        elif op.scale is not None:
            channels = model.tensors[op.scale].shape
            put(op.scale, between(seed, channels, -30000, 30000) if taps > 4 else np.full(channels, 1))
            put(op.shift, np.full(channels, 20 if taps > 4 else 2))
            put(op.offset, between(seed + 2, channels, 0, 1 << 20) if taps > 4 else np.full(channels, 2))
    for ref, value in ((model.mean, 0.46875), (model.std, 0.25)):
        model.tensors[ref].array = np.full_like(model.tensors[ref].array, value)
    return model


@pytest.mark.parametrize("name", HASHES)
def test_the_same_bytes_everywhere(name: str, isa: str) -> None:
    model = network(name)
    numerics.check(model)
    c, h, w = model.values[0].shape
    images = between(1, (10, h, w, c), 0, 255).astype(np.uint8)
    data = bnn.to_bytes(model)
    for threads in (1, 2, 3, 4):
        logits = Engine(data, threads=threads, isa=isa).run(images)
        assert np.ptp(logits) > 0, "a network that computes nothing proves nothing"
        assert len(np.unique(logits.argmax(axis=1))) > 2
        assert hashlib.sha256(logits.tobytes()).hexdigest() == HASHES[name], f"{isa}, {threads} threads"


@pytest.mark.parametrize("name", HASHES)
def test_the_same_bytes_in_the_simulation(name: str) -> None:
    model = network(name)
    c, h, w = model.values[0].shape
    images = between(1, (10, h, w, c), 0, 255).astype(np.uint8)
    logits = numerics.simulate(model, images)
    assert hashlib.sha256(logits.tobytes()).hexdigest() == HASHES[name]
