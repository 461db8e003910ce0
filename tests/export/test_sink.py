"""Affines that no op takes in: what becomes of them, and that results, ties included, stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.passes import build, legalized
from ovsw.export.passes.fuse import fuse

from support.interpret import interpret

ONE = ((1, 1), (1, 1), (0, 0))


def image(channels: int = 2, size: int = 4) -> ir.Input:
    return ir.Input("x", [], (channels, size, size))


def binary(x: ir.Node, seed: int = 0, **options: object) -> ir.BinaryConv:
    weight = np.random.default_rng(seed).choice(np.float32([-1, 1]), (3, x.shape[0], 1, 1))
    node = ir.BinaryConv("conv", [x], (3, *x.shape[1:]), *ONE, weight, np.ones(3))
    for name, value in options.items():
        setattr(node, name, value)
    return node


def clamp(x: ir.Node) -> ir.Act:
    return ir.Act("act", [x], x.shape, "clamp", -1.0, 1.0)


def affine(x: ir.Node, scale: list[float], offset: list[float], name: str = "affine") -> ir.Affine:
    return ir.Affine(name, [x], x.shape, np.array(scale), np.array(offset))


def kinds(output: ir.Node) -> list[str]:
    """Of the ops of the float file, those that compute something."""
    ops = fuse(legalized(ir.Graph(ir.reachable(output)), "float"))
    return [type(op.core).__name__ for op in ops]


def check(output: ir.Node, images: np.ndarray) -> bnn.Model:
    graph = ir.Graph(ir.reachable(output))
    channels = graph.input_shape[0]
    model = build(graph, [0.0] * channels, [1.0] * channels, {}).model
    (expected,) = interpret(graph, images.astype(np.float64))
    found = Engine(bnn.to_bytes(model)).run(images)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=0, atol=1e-6)
    return model


def test_a_shift_before_a_sign_is_a_threshold_exact_at_ties() -> None:
    """2x - 1 and 1 - 2x are both 0 at 1/2, where both signs are +1; next to it they are opposite."""
    x = clamp(image())
    y = binary(affine(x, [2.0, -2.0], [-1.0, 1.0]))
    half = np.float32(0.5)
    values = np.array([half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(1)), np.float32(-0.5)])
    images = np.broadcast_to(np.tile(values, (4, 1)), (1, 2, 4, 4)).copy()
    model = check(y, images)
    assert kinds(y) == ["NoneType", "Dot"]
    threshold = model.tensors[model.ops[0].threshold or 0].array
    assert threshold.tolist() == [half, np.nextafter(half, np.float32(1))]


def test_a_channel_whose_scale_is_zero_has_one_sign() -> None:
    y = binary(affine(clamp(image()), [0.0, 0.0], [0.25, -0.25]))
    check(y, np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32))


@pytest.mark.parametrize("options", [{"pad_value": 1.0, "pad": (1, 1)}, {"window_scale": np.array([0.5, -1.0, 2.0])}])
def test_inverted_bits_would_be_wrong_beside_padding_and_window_sums(options: dict[str, object]) -> None:
    x = clamp(image())
    y = binary(affine(x, [1.0, -1.0], [0.1, 0.2]), **options)
    if "pad" in options:
        y.window, y.shape = (3, 3), (3, 4, 4)
        y.weight = np.random.default_rng(1).choice(np.float32([-1, 1]), (3, 2, 3, 3))
    check(y, np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32))
    assert kinds(y) == ["NoneType", "NoneType", "Dot"]


def test_a_bias_after_an_activation_goes_into_what_reads_it() -> None:
    """ReActNet's: the sign gets a threshold, the sum an offset of the convolution that it is added to."""
    stem = ir.Conv("stem", [image()], (3, 4, 4), *ONE, np.ones((3, 2, 1, 1), np.float32))
    stream = ir.Act("act", [stem], stem.shape, "prelu", slope=np.full(3, 0.25))
    shifted = affine(stream, [1.0] * 3, [0.3, -0.2, 0.1], "bias")
    y = affine(binary(affine(shifted, [1.0] * 3, [0.1, 0.1, -0.4], "rsign")), [0.5] * 3, [0.0] * 3, "norm")
    total = ir.Add("add", [y, shifted], y.shape)
    pooled = ir.AvgPool("mean", [total], (3, 1, 1), (4, 4), (4, 4), (0, 0))
    model = check(pooled, np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32))
    assert [op.kind for op in model.ops] == ["conv", "bconv", "avgpool"]


def test_a_shift_of_a_sum_goes_into_a_term_of_it() -> None:
    stem = ir.Conv("stem", [image()], (3, 4, 4), *ONE, np.ones((3, 2, 1, 1), np.float32))
    stream = clamp(stem)
    norm = affine(binary(stream), [0.5, -0.25, 1.0], [0.1, 0.2, 0.3], "norm")
    shifted = affine(ir.Add("add", [norm, stream], norm.shape), [1.0] * 3, [0.3, -0.2, 0.1], "bias")
    pooled = ir.AvgPool("mean", [clamp(shifted)], (3, 1, 1), (4, 4), (4, 4), (0, 0))
    model = check(pooled, np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32))
    assert [op.kind for op in model.ops] == ["conv", "bconv", "avgpool"]


def test_two_signs_of_one_map_have_an_op_each() -> None:
    x = clamp(image())
    first, second = binary(affine(x, [1.0, 1.0], [0.2, 0.1])), binary(affine(x, [1.0, 1.0], [-0.2, 0.4]), 1)
    y = ir.Add("add", [first, second], first.shape)
    model = check(y, np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32))
    assert [op.kind for op in model.ops] == ["eltwise", "bconv", "eltwise", "bconv"]


def test_weights_take_what_is_before_them_unless_they_are_padded() -> None:
    x = affine(clamp(image()), [2.0, -3.0], [0.5, 0.25])
    weight = np.random.default_rng(2).normal(size=(3, 2, 3, 3)).astype(np.float32)
    images = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    for pad, shape, ops in (((0, 0), (3, 2, 2), 2), ((1, 1), (3, 4, 4), 3)):
        conv = ir.Conv("conv", [x], shape, (3, 3), (1, 1), pad, weight)
        y = binary(conv)
        check(y, images)
        assert len(kinds(y)) == ops + 1
