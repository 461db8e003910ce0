"""Proofs and measurements of an export on made-up networks: which differences pass, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.datasets import FolderSet, MemorySet
from ovsw.export import ExportError, VerifyError, accuracy, calibration, export_module, ir, verify
from ovsw.export.passes.calibrate import measured
from ovsw.networks import InputSpec
from ovsw.nn import BinaryConv2d

from support.integers import small

SPEC = InputSpec(2, 6, 6, (0.5, 0.4), (0.25, 0.2), 6)


# Float files: the engine against the original


def verified(
    logits: np.ndarray, off: Callable[[int], np.ndarray | float], count: int
) -> tuple[verify.Verification, list[np.ndarray]]:
    """Of an original with these logits, and an engine that is off by so much on image number n."""
    seen: list[np.ndarray] = []

    def reference(x: np.ndarray) -> np.ndarray:
        assert (x.dtype, x.shape) == (np.float64, (1, 2, 6, 6))
        seen.append(x)
        return logits[None]

    def outputs(x: np.ndarray) -> np.ndarray:
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, seen[-1])
        return logits[None] + off(len(seen) - 1)

    source: Any = SimpleNamespace(input=SPEC, reference=reference)
    candidate: Any = SimpleNamespace(outputs=outputs)
    return verify.verify(source, candidate, count), seen


@pytest.mark.parametrize(("logits", "allowed"), [([0.01, -0.02, 0.0], 1e-4), ([3.0, -50.0, 2.0], 5e-3)])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_how_much_a_float_file_may_differ(logits: list[float], allowed: float, place: int, sign: int) -> None:
    """By 1e-4 of the largest logit, whatever its sign, or of 1; in any of them."""
    off = sign * allowed * np.eye(3)[place]
    found, _ = verified(np.array(logits), lambda n: 0.99 * off, 3)
    assert (found.images, found.ties) == (3, 0)
    assert found.max_error == pytest.approx(0.99 * allowed)
    with pytest.raises(VerifyError, match="differs from PyTorch on 4 images"):
        verified(np.array(logits), lambda n: 1.01 * off, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite(value: float) -> None:
    broken = np.array([0.0, value, 0.0])
    with pytest.raises(VerifyError, match="differs from PyTorch"):
        verified(np.ones(3), lambda n: broken, 1)
    found, _ = verified(np.ones(3), lambda n: broken if n == 0 else 0.0, 1)
    assert (found.images, found.ties) == (1, 1)


def test_images_are_drawn_until_enough_agree() -> None:
    """Every third is off; the largest difference is that of those that agree."""
    found, seen = verified(np.ones(3), lambda n: 0.5 if n % 3 == 0 else 1e-5 * (3 - n % 3), 6)
    assert (found.images, found.ties) == (6, 3)
    assert found.max_error == pytest.approx(2e-5)
    assert len(seen) == 9
    assert len({x.tobytes() for x in seen}) == 9
    values = np.concatenate(seen)
    assert (abs(values.mean()), values.std()) == (pytest.approx(0.0, abs=0.2), pytest.approx(1.0, abs=0.2))


@pytest.mark.parametrize(("count", "most"), [(1, 3), (3, 3), (5, 5)])
def test_how_many_may_be_ties(count: int, most: int) -> None:
    found, _ = verified(np.ones(3), lambda n: 0.5 if n < most else 0.0, count)
    assert (found.images, found.ties) == (count, most)
    with pytest.raises(VerifyError, match=rf"on {most + 1} images \(max error {', '.join(['0.5'] * (most + 1))}\)"):
        verified(np.ones(3), lambda n: 0.5 if n <= most else 0.0, count)


def test_every_output_counts() -> None:
    """The second one, a map, is off in its last pixel."""
    first, second = np.ones((1, 2)), np.ones((1, 2, 3, 3))
    for off, words in ((0.0, None), (1.0, "differs from PyTorch")):
        wrong = second.copy()
        wrong[0, 1, 2, 2] += off
        source: Any = SimpleNamespace(input=SPEC, reference=lambda x: (first, second))
        candidate: Any = SimpleNamespace(outputs=lambda x, wrong=wrong: verify._joined((first, wrong)))
        if words is None:
            assert verify.verify(source, candidate, 1).images == 1
        else:
            with pytest.raises(VerifyError, match=words):
                verify.verify(source, candidate, 1)


# Integer files: the engine against the simulation, and that against the original


def checked(
    images: np.ndarray,
    difference: np.ndarray,
    count: int,
    engine_off: dict[tuple[int, int], float] | None = None,
    seen: list[np.ndarray] | None = None,
    synthetic: bool = False,
) -> verify.IntegerVerification:
    """Of the network of `small` on normalised images, and an original that differs from it by so much."""
    model = small()
    engine = Engine(bnn.to_bytes(model))

    def reference(x: np.ndarray) -> np.ndarray:
        assert x.dtype == np.float64
        return engine.run(x.astype(np.float32)) + difference

    def outputs(pixels: np.ndarray) -> np.ndarray:
        assert pixels.dtype == np.uint8
        if seen is not None:
            seen.append(pixels)
        found = engine.run(pixels)
        for at, off in (engine_off or {}).items():
            found[at] += off
        return found

    given = calibration.Calibration(images, "some images", synthetic)
    candidate: Any = SimpleNamespace(model=model, outputs=outputs, calibration=given, measured=[])
    source: Any = SimpleNamespace(reference=reference)
    return verify.verify_integer(source, SPEC, candidate, count)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 6, 2), np.uint8)
    return SPEC.normalised(pixels)


def test_differences_of_an_integer_file(images: np.ndarray) -> None:
    logits = Engine(bnn.to_bytes(small())).run(images[:4]).astype(np.float64)
    difference = np.zeros((4, 4))
    difference[0, 2], difference[1, 0] = -3.0, 1.0  # the original has that much more
    best = logits.argmax(1)
    difference[2, (best[2] + 1) % 4] = 1e4
    found = checked(images, difference, 4)
    same = int(((logits + difference).argmax(1) == best).sum())
    assert (found.images, found.same_top1) == (4, same)
    assert same < 4
    assert found.max_difference == 1e4
    assert found.mean_difference == pytest.approx((3 + 1 + 1e4) / 16)
    assert found.saturated == 0.0


def test_images_of_an_integer_proof(images: np.ndarray) -> None:
    """The first of those that are given, as pixels; noise like normalised images in the place of synthetic ones."""
    seen: list[np.ndarray] = []
    for synthetic in (False, True):
        checked(images, np.zeros((4, 4)), 4, seen=seen, synthetic=synthetic)
    given, noise = seen
    expected = (images[:4].astype(np.float64) * np.array([0.25, 0.2])[:, None, None] + [[[0.5]], [[0.4]]]) * 255
    np.testing.assert_array_equal(given, np.rint(expected).transpose(0, 2, 3, 1))
    assert noise.shape == (4, 6, 6, 2)
    values = (noise / 255 - np.array([0.5, 0.4])) / np.array([0.25, 0.2])
    assert (values.mean(), values.std()) == (pytest.approx(0.0, abs=0.25), pytest.approx(1.0, abs=0.25))


def test_an_engine_that_differs_in_one_number(images: np.ndarray) -> None:
    none = np.zeros((5, 4))
    assert checked(images, none, 5).same_top1 == 5
    for at in ((0, 0), (4, 3)):
        with pytest.raises(VerifyError, match="the engine differs from the simulation on 1 of 5 images"):
            checked(images, none, 5, {at: 0.5})
    with pytest.raises(VerifyError, match="on 2 of 5 images"):
        checked(images, none, 5, {(1, 0): 0.5, (3, 0): 0.5, (3, 1): 0.5})


def test_an_original_with_one_value_that_is_not_finite(images: np.ndarray) -> None:
    for value in (np.nan, np.inf):
        difference = np.zeros((3, 4))
        difference[1, 2] = value
        with pytest.raises(VerifyError, match="the original gives values that are not finite"):
            checked(images, difference, 3)


def test_saturated() -> None:
    """Numbers at either end of their range over all; the 0 of a ReLU is no such end."""
    values = {
        0: np.array([[0, 0, 50, 100, 120]]),
        1: np.array([[-32768, -32768, 32767, 0, 1, 2, 3, 32766, -32767, 9]]),
        2: np.array([[-7, -8, 7, 6, 0]]),
    }
    ops = [
        SimpleNamespace(out=0, act="clamp", clamp=(0, 100)),
        SimpleNamespace(out=1, act="none", clamp=(0, 0)),
        SimpleNamespace(out=2, act="clamp", clamp=(-7, 7)),
        SimpleNamespace(out=None, act="none", clamp=(0, 0)),
    ]

    def share(*chosen: int) -> float:
        candidate: Any = SimpleNamespace(measured=[ops[i] for i in chosen])
        return verify._saturated(candidate, values)

    assert share(0) == pytest.approx(2 / 5)
    assert share(1) == pytest.approx(3 / 10)
    assert share(2) == pytest.approx(3 / 5)
    assert share(0, 1, 2, 3) == pytest.approx(8 / 20)
    assert share() == 0.0


# Accuracy on labelled images


def numbered(count: int) -> MemorySet:
    """Images that are told apart by their second pixel, labels in ascending order, three classes."""
    pixels = torch.zeros(count, 2, 6, 6, dtype=torch.uint8)
    pixels[:, 1, 0, 1] = torch.arange(count)
    return MemorySet(pixels, torch.arange(count) * 3 // count, ["a", "b", "c"])


def test_accuracies_and_agreement() -> None:
    """Of 120 images in batches of 50: the original is wrong on every 3rd, the file on every 5th and 4th."""
    data = numbered(120)
    labels = data.labels.numpy()
    sizes: list[int] = []

    def answer(numbers: np.ndarray, wrong: np.ndarray, by: int) -> np.ndarray:
        return np.eye(3)[(labels[numbers] + np.where(wrong, by, 0)) % 3]

    def reference(x: np.ndarray) -> tuple[np.ndarray, str]:
        assert (x.dtype, x.shape[1:]) == (np.float32, (2, 6, 6))
        numbers = np.rint((x[:, 1, 0, 1] * 0.2 + 0.4) * 255).astype(int)
        return answer(numbers, numbers % 3 == 0, 1), "another output"

    def run(pixels: np.ndarray) -> np.ndarray:
        assert (pixels.dtype, pixels.shape[1:]) == (np.uint8, (6, 6, 2))
        sizes.append(len(pixels))
        numbers = pixels[:, 0, 1, 1].astype(int)
        return answer(numbers, (numbers % 5 == 0) | (numbers % 4 == 0), 2)

    def shares(numbers: list[int]) -> tuple[float, ...]:
        first = [n % 3 != 0 for n in numbers]
        second = [n % 5 != 0 and n % 4 != 0 for n in numbers]
        return tuple(sum(part) / len(numbers) for part in (first, second, [a and b for a, b in zip(first, second)]))

    found = accuracy.measure(reference, run, data, SPEC, None)
    assert (found.pytorch, found.exported, found.agreement) == pytest.approx(shares(list(range(120))))
    assert len({round(share, 3) for share in (found.pytorch, found.exported, found.agreement)}) == 3
    assert (found.images, sizes) == (120, [50, 50, 20])
    found = accuracy.measure(reference, run, data, SPEC, 7)  # one in seventeen, over all classes
    assert found.images == 7
    assert (found.pytorch, found.exported, found.agreement) == pytest.approx(shares([0, 17, 34, 51, 68, 85, 102]))
    assert accuracy.measure(reference, run, data, SPEC, 500).images == 120


def test_accuracy_on_files(tmp_path: Path) -> None:
    """Each file with the label of its own folder."""
    for label, name in enumerate(("b", "a", "c")):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(np.full((6, 6, 3), 100 * label + i, np.uint8)).save(tmp_path / name / f"{i}.png")
    data = accuracy.open_images(tmp_path, 3)
    assert isinstance(data, FolderSet)
    spec = InputSpec(3, 6, 6, (0.0,) * 3, (1.0,) * 3, 6)
    seen: list[int] = []

    def run(pixels: np.ndarray) -> np.ndarray:
        seen.extend(pixels[:, 0, 0, 0].tolist())
        return np.eye(3)[pixels[:, 0, 0, 0] // 100]  # 0, 1, 2 for b, a, c, whose labels are 1, 0, 2

    found = accuracy.measure(lambda x: np.eye(3)[np.full(len(x), 2)], run, data, spec, None)
    assert seen == [100, 101, 0, 1, 200, 201]
    assert (found.pytorch, found.exported, found.agreement) == pytest.approx((1 / 3, 1 / 3, 1 / 3))


# Images that scales are measured on


def test_calibration_images(images: np.ndarray) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 6, 6, 2), np.uint8)
    expected = ((pixels / 255 - np.array([0.5, 0.4])) / np.array([0.25, 0.2])).transpose(0, 3, 1, 2)
    found = calibration.calibration(pixels, None, SPEC)
    np.testing.assert_allclose(found.images, expected, atol=1e-6)
    assert (found.origin, found.synthetic) == ("3 images", False)
    np.testing.assert_array_equal(calibration.calibration(torch.from_numpy(images), None, SPEC).images, images)
    broken = images.copy()
    broken[3, 1, 2, 3] = np.nan
    with pytest.raises(ExportError, match="hold values that are not finite"):
        calibration.calibration(broken, None, SPEC)
    labelled = calibration.calibration(None, numbered(80), SPEC)
    chosen = np.rint((labelled.images[:, 1, 0, 1] * 0.2 + 0.4) * 255).astype(int).tolist()
    assert chosen == [i * 80 // 32 for i in range(32)]
    assert (labelled.origin, labelled.synthetic) == ("32 of the labelled images", False)


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((3, 6, 6, 2), np.float32),  # the axes of pixels
        np.zeros((3, 2, 6, 6), np.uint8),
        np.zeros((3, 2, 6, 6), np.int32),
        np.zeros((3, 2, 6, 5), np.float32),
        np.zeros((0, 2, 6, 6), np.float32),
        np.zeros((0, 6, 6, 2), np.uint8),
        np.zeros((2, 6, 6), np.float32),
    ],
    ids=lambda given: f"{given.dtype} {given.shape}",
)
def test_calibration_images_that_are_none(given: np.ndarray) -> None:
    with pytest.raises(
        ExportError, match=r"^calibration: the images are .*, expected uint8 \(n, 6, 6, 2\) or normalised"
    ):
        calibration.calibration(given, None, SPEC)


def test_calibration_images_of_a_folder(tmp_path: Path) -> None:
    """32 of 70, evenly spread over the sorted names."""
    for i in range(70):
        Image.fromarray(np.full((6, 6, 3), i, np.uint8)).save(tmp_path / f"{i:02}.png")
    spec = InputSpec(3, 6, 6, (0.0,) * 3, (1.0,) * 3, 6)
    found = calibration.calibration(str(tmp_path), None, spec)
    assert np.rint(found.images[:, 0, 0, 0] * 255).astype(int).tolist() == [i * 70 // 32 for i in range(32)]
    assert found.origin == f"32 images of {tmp_path}"


def test_synthetic_calibration_images() -> None:
    """Noise in blocks of 1, 2, 4 and 8 pixels over the whole range."""
    spec = InputSpec(3, 16, 12, (0.0,) * 3, (1.0 / 255,) * 3, 16)
    found = calibration.calibration(None, None, spec)
    pixels = np.rint(found.images)
    assert found.synthetic
    assert pixels.shape == (8, 3, 16, 12)
    assert (pixels.min(), pixels.max()) == (pytest.approx(0, abs=5), pytest.approx(255, abs=5))
    for image, block in zip(pixels, (1, 2, 4, 8, 1, 2, 4, 8)):
        coarse = image[:, ::block, ::block]
        np.testing.assert_array_equal(coarse.repeat(block, 1).repeat(block, 2)[:, :16, :12], image)
        assert len(np.unique(coarse)) > 0.6 * min(coarse.size, 256)


def test_ranges_are_the_largest_of_all_images() -> None:
    """Whatever their sign and their place; more nodes than a file may have outputs."""
    image = ir.Input("x", [], (2, 6, 6))
    nodes: list[ir.Node] = []
    for i in range(bnn.MAX_OUTPUTS + 3):
        scale, offset = np.array([1.0 + i, -2.0]), np.array([0.5, 0.25 * i])
        nodes.append(ir.Affine(f"n{i}", [image], (2, 6, 6), scale, offset))
    graph = ir.Graph([image, *nodes], {}, nodes)
    given = np.random.default_rng(0).normal(size=(4, 2, 6, 6)).astype(np.float32)
    given[2, 1, 5, 5] = 40.0  # -80 after it
    found = measured(graph, given, nodes)
    for i, node in enumerate(nodes):
        exact = given * np.array([1.0 + i, -2.0])[:, None, None] + np.array([0.5, 0.25 * i])[:, None, None]
        assert found[node] == pytest.approx(np.abs(exact).max(), rel=1e-6)


# Variances and normalisations at the edge


class Normed(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=eps)
        self.binary, self.linear = BinaryConv2d(8, 8, 3, padding=1), nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.hardtanh(self.binary(F.hardtanh(self.norm(self.stem(x))))).flatten(1))


def normed(eps: float, variance: float) -> Normed:
    torch.manual_seed(0)
    model = Normed(eps).eval()
    assert model.norm.running_var is not None
    model.norm.running_var[3] = variance
    return model


def test_a_variance_of_zero(tmp_path: Path) -> None:
    """Is that of a channel that never changed, and right with an eps; without one it is refused, by name."""
    model = normed(1e-5, 0.0)
    export_module(
        model, (1, 3, 6, 6), tmp_path / "m.bnn", numerics="float", **dict.fromkeys(("mean", "std"), "cifar10")
    )
    x = torch.randn(3, 3, 6, 6)
    with torch.no_grad():
        expected = model(x).numpy()
    np.testing.assert_allclose(Engine(tmp_path / "m.bnn").run(x.numpy()), expected, atol=1e-4)
    for eps, variance, words in (
        (0.0, 0.0, "norm: running_var + eps is 0 in 1 of 8 channels"),
        (1e-5, -1e-9, "norm: running_var is negative in 1 of 8 channels"),
    ):
        with pytest.raises(ExportError) as refusal:
            export_module(normed(eps, variance), (1, 3, 6, 6), tmp_path / "refused.bnn", mean="cifar10", std="cifar10")
        assert refusal.value.problems == [words]
    assert not (tmp_path / "refused.bnn").exists()


@pytest.mark.parametrize("bad", [0.0, -0.25, float("nan"), float("inf")])
def test_a_std_that_is_none(bad: float, tmp_path: Path) -> None:
    """One among good ones."""
    with pytest.raises(ExportError, match="--std positive ones"):
        export_module(normed(1e-5, 1.0), (1, 3, 6, 6), tmp_path / "m.bnn", mean=(0.5,) * 3, std=(0.25, bad, 0.25))


def test_weights_with_one_value_that_is_not_finite(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf")):
        model = normed(1e-5, 1.0)
        with torch.no_grad():
            model.linear.weight[2, 7] = value
        with pytest.raises(ExportError) as refusal:
            export_module(model, (1, 3, 6, 6), tmp_path / "m.bnn", mean="cifar10", std="cifar10")
        assert "linear: 1 of 640 values of weight are not finite" in "".join(refusal.value.problems)
