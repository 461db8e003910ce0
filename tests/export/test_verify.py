"""Proofs and measurements of an export on made-up networks: which differences pass, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import (
    ExportError,
    ExportOptions,
    VerifyError,
    calibration,
    export_module,
    ir,
    verify,
)
from ovsw.export.frontend import torch_module
from ovsw.export.passes import build
from ovsw.export.pipeline import prepare
from ovsw.export.source import Source
from ovsw.networks import InputSpec
from ovsw.nn import BinaryConv2d

SPEC = InputSpec(2, 6, 6, (0.5, 0.4), (0.25, 0.2), 6)


# The original against the graph, and that against the engine or, in integers, against every op


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.binary, self.linear = nn.Conv2d(2, 8, 3), BinaryConv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.hardtanh(self.binary(F.hardtanh(self.stem(x))) * 0.1)
        return self.linear(y.mean((2, 3))), y


@pytest.fixture(scope="module")
def source() -> Source:
    return torch_module.source(TwoOutputs().eval(), SPEC, "two")


def built(source: Source, numerics: str, images: np.ndarray | None = None) -> Any:
    return build(source.graph, SPEC.mean, SPEC.std, {}, numerics, calibration=images)


def differing(source: Source, by: Callable[[int], Any], output: int = 0) -> Source:
    """An original whose output differs by so much on its n-th image."""
    seen = 0

    def reference(x: np.ndarray) -> Any:
        nonlocal seen
        found = [np.array(part) for part in source.reference(x)]
        if x.dtype == np.float64:
            found[output].reshape(1, -1)[:, -1] += by(seen) * max(1.0, *(np.abs(part).max() for part in found))
            seen += 1
        return tuple(found)

    return replace(source, reference=reference)


@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("output", [0, 1])
def test_a_graph_that_is_not_the_original(numerics: str, output: int, source: Source, images: np.ndarray) -> None:
    """One number of either output, by more than float64 rounds, on one image; less is no fault."""
    candidate = built(source, numerics, images)

    def check(original: Source) -> verify.Verification:
        if numerics == "float":
            return verify.verify(original, SPEC, verify.Candidate(candidate), 3)
        given = calibration.Calibration(images, "some images")
        return verify.verify_integer(original, SPEC, verify.IntegerCandidate(candidate, given), 3)[0]

    assert (check(source).images, check(source).ties) == (3, 0)
    assert check(differing(source, lambda n: 5e-7 * (n == 2), output)).images == 3
    with pytest.raises(VerifyError, match="differs from PyTorch by 2e-06 of the largest output"):
        check(differing(source, lambda n: 2e-6 * (n == 2), output))
    for value in (np.nan, np.inf):
        with pytest.raises(VerifyError, match="the original gives values that are not finite"):
            check(differing(source, lambda n, value=value: value if n == 1 else 0.0, output))


def test_an_engine_on_a_float_file_that_differs(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """By 1e-4 of the largest number, in the last one of the second output."""
    right, candidate = verify.Candidate.outputs, verify.Candidate(built(source, "float"))

    def verified(off: float) -> verify.Verification:
        monkeypatch.setattr(candidate, "outputs", lambda images: right(candidate, images) + off * np.eye(132)[-1])
        return verify.verify(source, SPEC, candidate, 2)

    assert verified(0.9e-4).max_error == pytest.approx(0.9e-4, rel=0.01)
    for off in (1.1e-4, np.nan):
        with pytest.raises(VerifyError, match="differs from PyTorch"):
            verified(off)


def test_which_signs_rounding_explains() -> None:
    """Those of values next to the threshold, as a share of the map's largest number."""
    sign = ir.Sign("s", [], (1, 1, 4), np.array([0.5]), np.array([True]))
    x = torch.tensor([[[[0.5 + 1e-5, 0.5, -3.0, 0.4]]]], dtype=torch.float64)

    def refused(*places: int, found: list[float] | None = None) -> str | None:
        differ = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
        differ[..., list(places)] = True
        try:
            verify._refuse_far(sign, x, differ, None if found is None else np.float32([[[found]]]))
        except VerifyError as e:
            return str(e)
        return None

    assert refused(0) is None
    assert refused(0, found=[0.5, 0.5, -3.0, 0.4]) is None
    assert "1 of 4 signs differ from PyTorch's; the values are up to 0.1 away" in (refused(0, 3) or "")
    assert "exactly at the threshold" in (refused(1, found=[0.6, 0.5, -3.0, 0.4]) or "")
    assert refused(1, found=[0.6, 0.5 + 1e-6, -3.0, 0.4]) is None
    assert "exactly at the threshold" in (refused(1) or "")  # a quarter of all, and nothing is known of the engine's


def test_a_sign_that_rounding_decides_changes_nothing_else(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's sign is taken over, the rest of the network compared; it is counted as a tie."""
    right, flipped = ir.Sign.compute, torch.zeros(0)

    def compute(sign: ir.Sign, *inputs: torch.Tensor) -> torch.Tensor:
        nonlocal flipped
        bits = right(sign, *inputs)
        if sign.name.startswith("hardtanh"):
            flipped = inputs[0]
            bits.reshape(-1)[int(inputs[0].abs().argmin())] ^= True
        return bits

    monkeypatch.setattr(ir.Sign, "compute", compute)
    candidate, sample = verify.Candidate(built(source, "float")), np.zeros((1, 2, 6, 6), np.float32)
    sample[0, 0, 2:, 2:] = 1.5
    watch = verify._Watch(candidate)
    monkeypatch.setattr(verify, "_NEAR", 1.0)
    error, tie = watch.compare(verify._Sample(np.zeros(0), sample, np.zeros(0), {}))
    assert (error < 1e-6, tie) == (True, True)
    monkeypatch.setattr(verify, "_NEAR", 0.0)
    with pytest.raises(VerifyError, match="1 of 128 signs differ from PyTorch's"):
        watch.compare(verify._Sample(np.zeros(0), sample, np.zeros(0), {}))
    assert flipped.numel() == 128


def test_images_of_a_proof() -> None:
    """Given ones first; then noise, all pixel values, black borders, flat areas; then more noise, all different."""
    given = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 2), np.uint8)
    spec = replace(SPEC, height=32, width=32)
    found = [image for image, _ in zip(verify._pictures(spec, given), range(9))]
    assert all(image.shape == (1, 32, 32, 2) and image.dtype == np.uint8 for image in found)
    np.testing.assert_array_equal(np.concatenate(found[:2]), given)
    own = np.concatenate(found[2:])
    assert len(np.unique(own)) == 256
    assert len({image.tobytes() for image in own}) == 7
    assert (own[1:, :3] == 0).all(axis=(1, 2, 3)).any()  # a border
    assert ((own[:, :-1] == own[:, 1:]).mean(axis=(1, 2, 3)) > 0.7).sum() == 2  # flat areas


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 6, 2), np.uint8)
    return SPEC.normalised(pixels)


@pytest.fixture
def candidate(source: Source, images: np.ndarray) -> verify.IntegerCandidate:
    given = calibration.Calibration(images, "some images")
    return verify.IntegerCandidate(built(source, "integer", images), given)


def test_differences_of_an_integer_file(
    source: Source, candidate: verify.IntegerCandidate, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all images: half of them the calibration's, as pixels."""
    seen: list[np.ndarray] = []
    right = candidate.outputs
    monkeypatch.setattr(candidate, "outputs", lambda pixels: seen.append(pixels) or right(pixels))
    _, found = verify.verify_integer(source, SPEC, candidate, 5)
    (pixels,) = seen
    expected = (images[:3].astype(np.float64) * np.array([0.25, 0.2])[:, None, None] + [[[0.5]], [[0.4]]]) * 255
    np.testing.assert_array_equal(pixels[:3], np.rint(expected).transpose(0, 2, 3, 1))
    wanted = [part.reshape(5, -1) for part in source.reference(SPEC.normalised(pixels).astype(np.float64))]
    difference = np.abs(right(pixels) - np.concatenate(wanted, axis=1))
    assert found.max_difference == pytest.approx(difference.max())
    assert found.mean_difference == pytest.approx(difference.mean())
    assert found.same_top1 == int((right(pixels)[:, :4].argmax(1) == wanted[0].argmax(1)).sum())
    assert (found.images, found.saturated) == (5, 0.0)


def test_an_engine_on_an_integer_file_that_differs(
    source: Source, candidate: verify.IntegerCandidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one bit, on an image that is simulated: the first half of them."""
    right = candidate.outputs
    for place in ((0, 0), (2, -1)):

        def outputs(pixels: np.ndarray, place: tuple[int, int] = place) -> np.ndarray:
            found = right(pixels)
            found[place] = np.nextafter(found[place], np.float32(np.inf))
            return found

        monkeypatch.setattr(candidate, "outputs", outputs)
        with pytest.raises(VerifyError, match="the engine differs from the simulation on 1 of 3 images"):
            verify.verify_integer(source, SPEC, candidate, 5)


def test_an_op_that_is_wrong_by_one_step(source: Source, candidate: verify.IntegerCandidate, tmp_path: Path) -> None:
    """It is named; and by default the file becomes float, which says why."""
    record = next(op for op in candidate.model.ops if op.kind == "bconv")
    assert record.offset is not None
    assert record.shift is not None
    offset, shift = (candidate.model.tensors[i] for i in (record.offset, record.shift))
    offset.array[3] += 1 << int(shift.array[3])
    with pytest.raises(VerifyError, match=r"1 op does not compute what the network does: binary: \d+ of \d+ values"):
        verify.verify_integer(source, SPEC, candidate, 2)
    prepared = prepare(source, ExportOptions(mean=SPEC.mean, std=SPEC.std))
    prepared.integer = candidate
    report = prepared.write(tmp_path / "m.bnn")
    assert (report.numerics, bnn.read(tmp_path / "m.bnn").numerics) == ("float", "float")
    assert "binary: " in (report.not_integer or "")
    assert any("this file is float: in integers 1 op does not" in warning for warning in report.warnings)


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
