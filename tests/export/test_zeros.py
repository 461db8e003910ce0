"""Values that are exactly 0: sums of signs, comparisons, and what has no integer form.

`test_random_modules.py` has zeros behind every activation, before every way to write a sign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw.export import ExportError, VerifyError, export_module, reference
from ovsw.export.frontend.torch_module import trace
from ovsw.export.passes import build

from support.random_modules import SIGNS, pictures

pytestmark = pytest.mark.usefixtures("one_torch_thread")
NORMAL = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def logits(model: nn.Module, pixels: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.25)).transpose(0, 3, 1, 2))
    with torch.no_grad():
        found = torch.cat([model.double()(image[None].double()) for image in x]).numpy()
    model.float()
    return found


class Dots(nn.Module):
    """Binary layers without a norm: their sums are often exactly 0."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.sign = SIGNS[sign]
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), torch.randn(8, 8, 3, 3), torch.randn(8, 8, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(self.sign(self.stem(x)), self.one.sign().to(x.dtype), padding=1) * 0.25
        return F.conv2d(self.sign(y), self.two.sign().to(x.dtype)).mean((2, 3))


@pytest.mark.parametrize("sign", [s for s in SIGNS if s != "shifted"])
def test_signs_of_dot_products_that_are_zero(sign: str, tmp_path: Path) -> None:
    """Every one of them: x > 0, x >= 0, and torch.sign, which has three levels."""
    model, pixels = Dots(sign).eval(), pictures((3, 8, 8), 2, 6)
    report = export_module(model, (1, 3, 8, 8), tmp_path / "m.bnn", **NORMAL)  # type: ignore[arg-type]
    assert report.numerics == "integer"
    np.testing.assert_allclose(Engine(tmp_path / "m.bnn").run(pixels), logits(model, pixels), atol=2e-3)


class After(nn.Module):
    """A binary layer, and what a function makes of its result and of the image."""

    def __init__(self, then: Any, channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.stem, self.weight, self.then = nn.Conv2d(channels, 8, 3, padding=1), torch.randn(4, 8, 3, 3).sign(), then
        self.linear, self.pixel = nn.Linear(4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Any:
        bits = torch.where(self.stem(x) > 0, 1.0, -1.0).to(x.dtype)
        return self.then(self, x, F.conv2d(bits, self.weight.to(x.dtype), padding=1) * 0.1)


COMPARISONS = {
    "peaks": lambda m, x, y: y * (F.max_pool2d(y, 3, 1, 1) == y),
    "pixels that are not black": lambda m, x, y: y * (x[:, :1] != 0),
    "black pixels": lambda m, x, y: y + (x[:, :1] == 0),
    "not zero": lambda m, x, y: (y != 0).to(y.dtype) * 2 + y,
}


@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_equal_and_not_equal(name: str, numerics: str, tmp_path: Path) -> None:
    model, pixels = After(COMPARISONS[name]).eval(), pictures((3, 9, 9), 3, 6)
    pixels[:, :2] = 0
    normal = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    export_module(model, (1, 3, 9, 9), tmp_path / "m.bnn", numerics=numerics, **normal)
    with torch.no_grad():
        expected = model(torch.from_numpy(pixels.transpose(0, 3, 1, 2) / np.float32(255))).numpy()
    off = np.abs(Engine(tmp_path / "m.bnn").run(pixels) - expected)
    assert (off > 0.01).mean() < 0.02  # a sign of the stem next to zero


SOFTMAX = {
    "a slice": lambda m, x, y: F.softmax(y, 1)[:, 1:2],
    "scaled up": lambda m, x, y: F.interpolate(F.softmax(y, 1), scale_factor=2.0),
    "cat": lambda m, x, y: torch.cat([F.softmax(y, 1), y], 1),
    "linear": lambda m, x, y: m.linear(F.softmax(y.mean((2, 3)), 1)),
    "negated": lambda m, x, y: -F.log_softmax(y, 1),
    "1 - softmax": lambda m, x, y: 1 - F.softmax(y, 1),
    "mean": lambda m, x, y: F.softmax(y, 1).mean((2, 3)),
    "convolution": lambda m, x, y: m.pixel(F.softmax(y, 1)),
    "sign": lambda m, x, y: F.conv2d(torch.where(F.softmax(y, 1) > 0.25, 1.0, -1.0).to(y.dtype), m.weight[:, :4].to(y)),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_in_the_middle_has_no_integer_form(name: str, tmp_path: Path) -> None:
    """The default is a float file that says why, and is right."""
    model, pixels = After(SOFTMAX[name]).eval(), pictures((3, 8, 8), 4, 4)
    report = export_module(model, (1, 3, 8, 8), tmp_path / "m.bnn", **NORMAL)  # type: ignore[arg-type]
    assert (report.numerics, "softmax" in (report.not_integer or "")) == ("float", True)
    found = np.asarray(Engine(tmp_path / "m.bnn").run(pixels)).reshape(4, -1)
    np.testing.assert_allclose(found, logits(model, pixels).reshape(4, -1), atol=1e-5)


@pytest.mark.parametrize("channels", [2, 3])
def test_two_images_at_once(channels: int, tmp_path: Path) -> None:
    def siamese(m: Any, x: Tensor, y: Tensor) -> Tensor:
        together = m.stem(torch.cat((x[:, :channels], x[:, :channels].flip(3)), 0))
        return (together[:1] - together[1:]).abs().mean((2, 3)) + y.mean((1, 2, 3))[:, None]

    with pytest.raises(ExportError, match=r"it gets 2 images at once .*run the file once for each image") as caught:
        export_module(After(siamese, channels), (1, channels, 8, 8), tmp_path / "m.bnn")
    assert caught.value.problems == []


def test_three_levels_are_named(tmp_path: Path) -> None:
    """torch.sign in the place of numbers: it is 0 in the middle of each row, where a file has two levels."""
    model = After(lambda m, x, y: torch.sign(y - y.flip(3)) * m.pixel(y)[:, :1])
    with pytest.raises(VerifyError, match=r"% of the values that .* reads are exactly at its .*torch.sign\(0\) is 0"):
        export_module(model, (1, 3, 8, 9), tmp_path / "m.bnn", **NORMAL)  # type: ignore[arg-type]
    assert not (tmp_path / "m.bnn").exists()


def test_an_average_of_what_nothing_bounds_is_measured() -> None:
    """Its largest number is not known, which is not the same as 0: it gets all of 16 bits."""

    class Unbounded(After):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return self.linear((F.leaky_relu(y, 0.25) + F.leaky_relu(y.flip(1), 0.5)).mean((2, 3)))

    model = Unbounded(lambda m, x, y: y).eval()
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    built = build(trace(model, (3, 8, 8)), (0.5,) * 3, (0.25,) * 3, {}, "integer", calibration=images)
    (average,) = (low for low in built.lowered if low.fused.value.shape == (4, 1, 1))
    values = reference.values(built.graph, images)[average.fused.value]
    assert average.measured
    assert average.steps * float(values.abs().max()) == pytest.approx(32767.5 / 1.25, rel=0.01)
