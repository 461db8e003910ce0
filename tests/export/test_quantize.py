"""What the exporter chooses for integers, op by op, against float64."""

from __future__ import annotations

import functools
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ovsw import format as bnn
from ovsw import numerics
from ovsw.bench.random_nets import random_resnet
from ovsw.export import ir
from ovsw.export.ops.fused import Fused
from ovsw.export.passes.lower import lower
from ovsw.export.passes.pack import pack
from ovsw.export.passes.quantize import Quantizer, quantize
from ovsw.export.passes.scales import TOP
from ovsw.image import load_pixels

from support import ROOT, oracle
from support.evaluator import activation, affine
from support.quantizing import R20, integer_model, integer_ops, loaded, normalisation, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_signs_are_exact() -> None:
    """With scales that 15 bits hold, a binary layer rounds what it stores to half a step, and its signs not at all."""
    ops = integer_ops(loaded(R20, state_of(R20, 32), 32), (3, 32, 32))
    for op in [op for op in ops if isinstance(op.core, ir.Dot)]:
        assert op.affine is not None
        unit = 2.0 ** (np.floor(np.log2(np.abs(op.affine.scale) * TOP)) - 14) / TOP
        op.affine.scale = np.clip(np.round(op.affine.scale / unit), -32767, 32767) * unit
    mean, std = oracle.CIFAR
    reference = pack(lower(ops), [ops[-1].value], mean, std, {})
    lowered, _ = quantize(ops, mean, std)
    model = pack(lowered, [ops[-1].value], mean, std, {}, "integer")
    images = np.random.default_rng(5).integers(0, 256, (8, 32, 32, 3), np.uint8)
    values = numerics.simulate_values(model, images)
    maps = {op.out: integer for op, integer in zip(model.ops, lowered)}

    def real(ref: int | None, n: int) -> np.ndarray:
        assert ref is not None
        assert maps[ref].centre is not None
        return (values[ref][n] + maps[ref].centre) / maps[ref].steps

    seen = 0
    for (op, other), n in itertools.product(zip(model.ops, reference.ops), range(len(images))):
        if op.kind != "bconv":
            continue
        signs = np.where(values[op.input][n], 1.0, -1.0)
        t = affine(reference, other, signs, real(op.residual, n), lambda products: None)
        expected = activation(reference, other, t)
        if op.bits is not None:
            assert ((values[op.bits][n] == (expected >= 0)) | (np.abs(expected) < 1e-9)).all(), op.name
            seen += int((np.abs(expected) < 0.5 / TOP).sum())
        assert (np.abs(real(op.out, n) - expected) * TOP < 0.5001).all(), op.name
    assert seen > 5  # that half a step would have turned


def test_the_stream_is_clamped_and_reaches_its_ends() -> None:
    model = random_resnet("cresnet20", numerics="integer")
    images = np.random.default_rng(5).integers(0, 256, (4, 32, 32, 3), np.uint8)
    values = numerics.simulate_values(model, images)
    for op in model.ops:
        if op.act == "clamp" and op.out is not None:
            assert op.clamp == (-32768, 32767)
            assert values[op.out].min() == -32768
            assert values[op.out].max() == 32767


def test_a_stream_that_convolutions_read_leaves_them_bits() -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics="integer")
    clamps = {op.name: op.clamp for op in model.ops if op.act == "clamp"}
    last = {name for name in clamps if name.startswith("layer4")}
    assert {clamps[name] for name in last} == {(-32768, 32767)}
    assert {clamps[name] for name in clamps.keys() - last} == {(-8192, 8191)}


@functools.cache
def stem_of(arch: str, size: int, mean: Any, std: Any, **options: str) -> tuple[bnn.Model, list[Fused], float]:
    """The integer model, the ops it was made of, and the steps per unit of its first map; shared by tests."""
    ops = integer_ops(loaded(arch, state_of(arch, size), size), (3, size, size))
    lowered, _ = quantize(ops, mean, std, **options)
    return pack(lowered, [ops[-1].value], mean, std, {}, "integer"), ops, lowered[0].steps


@pytest.mark.parametrize(("arch", "size"), [(R20, 32), ("ResNet18_1w1a", 48)])
@pytest.mark.parametrize("kind", ["mean", "black", "white", "border", "noise"])
def test_borders_of_the_stem(arch: str, size: int, kind: str) -> None:
    """A pixel outside counts as a normalised 0, not as a black pixel."""
    mean, std = normalisation(arch)
    model, ops, top = stem_of(arch, size, mean, std)
    image = np.zeros((1, size, size, 3), np.uint8)
    if kind == "mean":
        image[:] = np.rint(np.array(mean) * 255)
    elif kind == "white":
        image[:] = 255
    elif kind == "border":
        image[:, [0, -1]] = image[:, :, [0, -1]] = 255
    elif kind == "noise":
        image[:] = np.random.default_rng(0).integers(0, 256, image.shape)
    core, affine = ops[0].core, ops[0].affine
    assert isinstance(core, ir.Conv)
    assert affine is not None
    weight, shift = (model.tensors[i].array.astype(np.float64) for i in (model.ops[0].weight, model.ops[0].shift))  # type: ignore[index]
    steps = weight.transpose(0, 3, 1, 2) / 2.0 ** shift[:, None, None, None]  # of the stream per step of a pixel
    wanted = core.weight * affine.scale[:, None, None, None] / (255 * np.float64(np.float32(std))[:, None, None]) * top
    assert (np.abs(steps - wanted).max(axis=(1, 2, 3)) <= 2.5 / 2**shift).all()
    assert (np.abs(weight).max(axis=(1, 2, 3)) > 16383).all()  # no bit is wasted

    (ph, pw), (sh, sw) = core.pad, core.stride
    padded = np.zeros((1, 3, size + 2 * ph, size + 2 * pw))
    centred = (image - 255 * np.float32(mean).astype(np.float64)).transpose(0, 3, 1, 2)
    padded[:, :, ph : ph + size, pw : pw + size] = centred
    y = F.conv2d(torch.from_numpy(padded), torch.from_numpy(steps), stride=(sh, sw)).numpy()
    expected = np.clip(y + affine.offset[:, None, None] * top, -top, top)
    found = numerics.simulate_values(model, image)[model.ops[0].out or 0].transpose(0, 3, 1, 2) + 0.5
    error = np.abs(found - expected)
    assert error[:, :, ph:-ph, pw:-pw].max() < 0.51
    assert (error < 0.52 + np.abs(steps).sum(axis=(1, 2, 3))[:, None, None] / 512).all()  # z has steps of 1/256
    if kind == "mean":  # hardly anything but the offset, at the border as elsewhere
        flat = np.clip(affine.offset, -1, 1)[:, None, None] * top
        assert np.abs(found - flat).max() < 0.03 * top


@pytest.mark.parametrize(("arch", "size", "gain"), [(R20, 32, 2.0), ("ResNet18_1w1a", 224, 3.0)])
@pytest.mark.parametrize("stem", ["int16", "int8"])
def test_errors_of_a_stem_cancel_on_a_photo(arch: str, size: int, gain: float, stem: str) -> None:
    """Against each weight rounded by itself, in as many bits."""
    mean, std = normalisation(arch)
    model, ops, top = stem_of(arch, size, mean, std, stem=stem)
    core, affine = ops[0].core, ops[0].affine
    assert isinstance(core, ir.Conv)
    assert affine is not None
    exact = core.weight * affine.scale[:, None, None, None] / (255 * np.float64(np.float32(std))[:, None, None]) * top
    shift = model.tensors[model.ops[0].shift or 0].array.astype(np.float64)[:, None, None, None]
    unit = {"int16": 1, "int8": 256}[stem] / 2**shift
    together = model.tensors[model.ops[0].weight or 0].array.transpose(0, 3, 1, 2) * unit
    photo = load_pixels(ROOT / "bench" / "data" / "cat.jpg", 3, size, (size, size))
    centred = torch.from_numpy((photo - 255 * np.array(mean)).transpose(2, 0, 1)[None])

    def error(weight: np.ndarray) -> float:
        return float(F.conv2d(centred, torch.from_numpy(weight - exact), stride=core.stride).square().mean().sqrt())

    assert gain * error(together) < error(np.round(exact / unit) * unit)


def agreement(arch: str, state: oracle.State, size: int, n: int, **options: str) -> tuple[float, np.ndarray]:
    """Share of equal top-1, and the largest difference of each image's logits, between simulation and oracle."""
    mean, std = normalisation(arch)
    model, _ = integer_model(loaded(arch, state, size), (3, size, size), mean, std, **options)
    numerics.check(model)
    images = oracle.pick_images(arch, state, np.random.default_rng(1), n, 8 * n, size)
    logits = numerics.simulate(model, images)
    expected = oracle.logits(arch, state, oracle.prepare(arch, images))
    assert expected.std(axis=0).max() > 0.05
    return float((logits.argmax(1) == expected.argmax(1)).mean()), np.abs(logits - expected).max(axis=1)


def test_logits_where_no_sign_falls_the_other_way() -> None:
    """Random networks are chaotic; among images with wide margins some keep all signs, and those are near."""
    same, differences = agreement(R20, state_of(R20, 32), 32, 12)
    assert (differences < 5e-3).sum() >= 3
    assert same >= 0.5


@pytest.mark.parametrize(("peak", "steps"), [(32767 / 1024, 1024), (32768 / 1024, 512), (1.0, 16384), (0.0, 2.0**30)])
def test_steps_before_a_classifier_are_the_most_that_fit(peak: float, steps: float) -> None:
    """A power of two by which the largest value is 32767 at most; never beyond those of the smallest peak."""
    quantizer: Any = SimpleNamespace(scales=SimpleNamespace(for_linear=lambda op: True), warnings=[])
    assert Quantizer.for_classifier(quantizer, SimpleNamespace(act=None, name="x"), peak) == steps
    assert quantizer.warnings == []


def test_the_table_of_a_sigmoid_by_hand() -> None:
    """257 points over all that 16 bits hold, here in steps of 1/2048 from 0.25 of a step on."""
    quantizer: Any = SimpleNamespace(scales=SimpleNamespace(after=lambda op: 30000.0))
    lowered: Any = SimpleNamespace(centre=np.array([0.25, 0.25]), sum_steps=2048.0, constants={})
    op: Any = SimpleNamespace(value=SimpleNamespace(shape=(2, 1, 1)))
    Quantizer.beyond(quantizer, op, SimpleNamespace(kind="sigmoid"), lowered)  # type: ignore[arg-type]
    kind, table = lowered.constants["slope"]
    assert (kind, lowered.act, len(table)) == ("i16", "table", 257)
    for i in (0, 1, 100, 128, 129, 255, 256):
        assert table[i] == round(30000 / (1 + math.exp(-((i - 128) * 256 + 0.25) / 2048)))
