"""Accuracies that an export measures and what they lead to, and the images that scales are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from ovsw import format as bnn
from ovsw.datasets import FolderSet, MemorySet
from ovsw.export import ExportError, accuracy, calibration, export_module, ir, verify
from ovsw.export.frontend import torch_module
from ovsw.export.passes.calibrate import measured
from ovsw.networks import InputSpec
from ovsw.nn import BinaryConv2d

SPEC = InputSpec(2, 6, 6, (0.5, 0.4), (0.25, 0.2), 6)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 6, 2), np.uint8)
    return SPEC.normalised(pixels)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.binary, self.linear = nn.Conv2d(3, 8, 3), BinaryConv2d(8, 8, 3, padding=1), nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.hardtanh(self.binary(F.hardtanh(self.stem(x)))).flatten(1))


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


@pytest.mark.parametrize(
    ("pytorch", "exported", "agreement", "lost", "words"),
    [
        (0.90, 0.895, 0.93, False, None),
        (0.90, 0.87, 0.95, False, "is right on 87.0% of 2,000 images, PyTorch on 90.0%"),
        (0.90, 0.899, 0.80, False, "the same answer as PyTorch on only 80% of 2,000 images"),
        (0.52, 0.10, 0.10, True, "is right on 10.0%"),
        (0.52, 0.30, 0.50, False, "is right on 30.0%"),
        (0.11, 0.09, 0.99, False, "is right on 9.0%"),
        (0.11, 0.10, 0.99, False, None),
    ],
)
def test_what_a_measured_accuracy_leads_to(
    pytorch: float, exported: float, agreement: float, lost: bool, words: str | None
) -> None:
    found = accuracy.Accuracy(2000, pytorch, exported, agreement)
    assert found.is_lost(10) == lost
    assert words in (found.warning() or "") if words else found.warning() is None


def test_a_file_that_has_lost_the_networks_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it is float, and says why; with images that have no labels, other answers are a warning."""
    model = Small().eval()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 6, 6, 3), np.uint8)
    with torch.no_grad():
        labels = model(torch.from_numpy(pixels.transpose(0, 3, 1, 2) / np.float32(255))).argmax(1).tolist()
    for i, (image, label) in enumerate(zip(pixels, labels)):
        (tmp_path / "images" / f"class{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "images" / f"class{label}" / f"{i}.png")
    for label in range(5):
        (tmp_path / "images" / f"class{label}").mkdir(exist_ok=True)
    monkeypatch.setattr(
        verify.IntegerCandidate, "logits", lambda self, images: np.eye(5)[np.zeros(len(images), int) + 4]
    )
    settings: dict[str, Any] = {"mean": "none", "force": True}
    target = tmp_path / "m.bnn"
    report = export_module(model, (1, 3, 6, 6), target, images=str(tmp_path / "images"), **settings)
    assert (report.numerics, "in integers it is right on" in (report.not_integer or "")) == ("float", True)
    assert report.accuracy is not None
    assert report.accuracy.exported == 1.0
    assert [w for w in report.warnings if "this file is float: in integers it is right on" in w]
    report = export_module(model, (1, 3, 6, 6), target, calibration=pixels, **settings)
    assert report.numerics == "integer"
    assert any("gives the same answer as PyTorch on only" in w for w in report.warnings)
    report = export_module(model, (1, 3, 6, 6), target, calibration=pixels[:15], **settings)
    assert not any("gives the same answer as PyTorch" in w for w in report.warnings)


# Images that scales are measured on


def test_calibration_images(images: np.ndarray) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 6, 6, 2), np.uint8)
    expected = ((pixels / 255 - np.array([0.5, 0.4])) / np.array([0.25, 0.2])).transpose(0, 3, 1, 2)
    found = calibration.calibration_images(pixels, None, SPEC)
    np.testing.assert_allclose(found.images, expected, atol=1e-6)
    assert (found.origin, found.synthetic) == ("3 images", False)
    np.testing.assert_array_equal(calibration.calibration_images(torch.from_numpy(images), None, SPEC).images, images)
    broken = images.copy()
    broken[3, 1, 2, 3] = np.nan
    with pytest.raises(ExportError, match="hold values that are not finite"):
        calibration.calibration_images(broken, None, SPEC)
    labelled = calibration.calibration_images(None, numbered(80), SPEC)
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
        calibration.calibration_images(given, None, SPEC)


def test_calibration_images_of_a_folder(tmp_path: Path) -> None:
    """32 of 70, evenly spread over the sorted names."""
    for i in range(70):
        Image.fromarray(np.full((6, 6, 3), i, np.uint8)).save(tmp_path / f"{i:02}.png")
    spec = InputSpec(3, 6, 6, (0.0,) * 3, (1.0,) * 3, 6)
    found = calibration.calibration_images(str(tmp_path), None, spec)
    assert np.rint(found.images[:, 0, 0, 0] * 255).astype(int).tolist() == [i * 70 // 32 for i in range(32)]
    assert found.origin == f"32 images of {tmp_path}"


def test_synthetic_calibration_images() -> None:
    """Noise in blocks of 1, 2, 4 and 8 pixels over the whole range."""
    spec = InputSpec(3, 16, 12, (0.0,) * 3, (1.0 / 255,) * 3, 16)
    found = calibration.calibration_images(None, None, spec)
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


# The precision in which the original is run


@pytest.mark.parametrize(("factor", "wide"), [(1.0, True), (1.05, True), (-1.0, False)])
def test_float64_is_used_where_it_is_the_same_function(factor: float, wide: bool) -> None:
    """With millions of signs float32 and float64 never quite agree; another function altogether is told apart."""

    def network(x: torch.Tensor) -> torch.Tensor:
        y = F.adaptive_avg_pool2d(x, 2).flatten(1)
        return y * (factor if x.dtype == torch.float64 else 1.0)

    assert (torch_module.Runner(network, "n", (3, 6, 6)).dtype == torch.float64) == wide
