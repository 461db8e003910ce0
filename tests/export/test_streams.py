"""Residual streams that nothing clamps: 32 bits by default, and what that is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import export_module
from ovsw.export.frontend.torch_module import trace
from ovsw.export.passes import build

from support.random_modules import BinaryConv

pytestmark = pytest.mark.usefixtures("one_torch_thread")
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)


class Stream(nn.Module):
    """Binary layers on a stream without a clamp, as Bi-Real and ReActNet have it."""

    def __init__(self, prelu: bool = False, clamp: bool = False, shortcut: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convs = nn.ModuleList(BinaryConv(16, 3, True) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(6))
        self.acts = nn.ModuleList(nn.PReLU(16) for _ in range(6)) if prelu else [nn.Identity()] * 6
        self.shortcut = nn.Conv2d(16, 16, 1) if shortcut else None
        self.clamp, self.last = clamp, nn.Linear(16, 10)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean, 0, 4)
            nn.init.uniform_(norm.running_var, 20, 90)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem(x)) if self.clamp else self.stem(x)
        for i, (conv, norm, act) in enumerate(zip(self.convs, self.norms, self.acts)):
            through = x if self.shortcut is None or i != 3 else self.shortcut(x)
            x = act(norm(conv(torch.where(x >= 0, 1.0, -1.0).to(x))) + through)
            x = F.hardtanh(x) if self.clamp else x
        return self.last(x.mean((2, 3)))


def exact(model: nn.Module, pixels: np.ndarray) -> np.ndarray:
    x = (torch.from_numpy(pixels).double() / 255 - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    with torch.no_grad():
        return model.double()(x.permute(0, 3, 1, 2)).numpy()


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), np.uint8)


def exported(model: nn.Module, path: Path, **options: Any) -> tuple[bnn.Model, np.ndarray]:
    report = export_module(model.float(), (1, 3, 16, 16), path, mean=MEAN, std=STD, force=True, **options)
    assert report.numerics == "integer", report.not_integer
    return bnn.read(path), Engine(path).run(pixels(64))


@pytest.mark.parametrize("prelu", [False, True])
def test_32_bits_are_closer(prelu: bool, tmp_path: Path) -> None:
    """A sign here and there is another one with 16 bits, and then all that follows."""
    model = Stream(prelu).eval()
    expected = exact(model, pixels(64))
    far, rounding = {}, {}  # images of which a sign came out differently; the share of such signs in the worst op
    for stream in ("auto", "int16"):
        file, logits = exported(model, tmp_path / "m.bnn", stream=stream)
        options: dict[str, Any] = {"verify": 128, "calibration": pixels(128), "mean": MEAN, "std": STD, "force": True}
        report = export_module(model.float(), (1, 3, 16, 16), tmp_path / "m.bnn", stream=stream, **options)
        assert report.integer_verification
        rounding[stream] = max((share for _, share in report.integer_verification.rounding), default=0.0)
        assert ("i32" in {value.kind for value in file.values}) == (stream == "auto")
        assert file.version == ((1, 3) if stream == "auto" else (1, 2 if prelu else 1))
        far[stream] = int((np.abs(logits - expected).mean(axis=1) > 5e-4).sum())
    assert far["int16"] >= 12
    assert far["auto"] <= far["int16"] // 5, far
    assert rounding["int16"] > rounding["auto"]


def test_a_clamped_stream_keeps_its_bytes(tmp_path: Path) -> None:
    model = Stream(clamp=True).eval()
    for stream in ("auto", "int16"):
        exported(model, tmp_path / f"{stream}.bnn", stream=stream)
    assert (tmp_path / "auto.bnn").read_bytes() == (tmp_path / "int16.bnn").read_bytes()


def test_a_convolution_reads_a_stream_in_16_bits(tmp_path: Path) -> None:
    model = Stream(shortcut=True).eval()
    file, logits = exported(model, tmp_path / "m.bnn")
    conv = next(op for op in file.ops if op.name == "shortcut")
    narrowed = next(op for op in file.ops if op.out == conv.input)
    assert (narrowed.kind, file.values[narrowed.input].kind, file.values[conv.input].kind) == ("avgpool", "i32", "i16")
    expected = exact(model, pixels(64))
    assert np.median(np.abs(logits - expected)) < 1e-3 * np.abs(expected).max()


class Squared(Stream):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(torch.where(x >= 0, 1.0, -1.0).to(x))) + x
        return self.last((x * x).mean((2, 3)))


def test_a_stream_times_itself(tmp_path: Path) -> None:
    """One of the factors has 32 bits, the other 16."""
    model = Squared().eval()
    _, logits = exported(model, tmp_path / "m.bnn", calibration=pixels(32))
    expected = exact(model, pixels(64))
    assert np.median(np.abs(logits - expected)) < 2e-3 * np.ptp(expected, axis=0).mean()


def test_an_average_of_a_moved_stream(tmp_path: Path) -> None:
    """A large offset between the stream and the average must not take bits from the average's multiplier."""
    model = Stream().eval()
    model.last = nn.Sequential(nn.BatchNorm1d(16), model.last)
    nn.init.constant_(model.last[0].running_mean, -8.0)
    file, logits = exported(model.eval(), tmp_path / "m.bnn")
    mean = next(op for op in file.ops if op.kind == "avgpool")
    assert file.values[mean.input].kind == "i32"
    assert np.abs(file.tensors[mean.scale].array).min() >= 1 << 12
    expected = exact(model, pixels(64))
    assert np.median(np.abs(logits - expected)) < 2e-3 * np.ptp(expected, axis=0).mean()


@pytest.mark.parametrize("doublings", [4, 8, 12])
def test_an_average_of_a_stream_far_below_its_bound(doublings: int, tmp_path: Path) -> None:
    """Grey images are measured, of which a stem that sees colours alone makes little, but others might be coloured."""
    model = Stream().eval()
    model.stem = nn.Conv2d(3, 16, 1)
    with torch.no_grad():
        grey = (128 / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
        weight = torch.randn(16, 3) * 2**doublings
        model.stem.weight.copy_((weight - (weight @ grey)[:, None] * grey / (grey @ grey)).view(16, 3, 1, 1))
    model.last = nn.Sequential(nn.BatchNorm1d(16), model.last)
    nn.init.normal_(model.last[0].running_mean, 0, 3)
    exported(model.eval(), tmp_path / "m.bnn", calibration=np.full((32, 16, 16, 3), 128, np.uint8))


def test_a_bright_stem_leaves_room(tmp_path: Path) -> None:
    """The loader's bound on sums over pixels counts their zero points apart, so it is larger than what they can be."""
    model = Stream(prelu=True).eval()
    for norm in model.norms:
        norm.running_var.fill_(1e4)
    for _ in range(8):  # steps are powers of two, which leave more room or less
        with torch.no_grad():
            model.stem.weight *= 2 ** (1 / 8)
        exported(model, tmp_path / "m.bnn", numerics="integer")


def test_a_clamped_network_has_no_stem_of_24_bits(tmp_path: Path) -> None:
    report = export_module(Stream(clamp=True), (1, 3, 16, 16), tmp_path / "m.bnn", mean=MEAN, std=STD, stem="int24")
    assert "the stem has 16 bits: 24 are for networks with a 32-bit stream" in report.warnings


@pytest.mark.parametrize("stem", ["int24", "int16", "int8"])
def test_widths_of_the_stem(stem: str) -> None:
    """Both convolutions of a stem of 24 bits together have the real weights; one of 16 or 8 bits rounds them."""
    model = Stream().eval()
    images = np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32)
    built = build(trace(model, (3, 16, 16)), MEAN, STD, {}, "integer", calibration=images, stem=stem)
    total = np.zeros((16, 3, 3, 3))
    stems = [low for op, low in zip(built.model.ops, built.lowered) if op.input == 0]
    for low in stems:
        kind, weight = low.constants["weight"]
        shift = low.constants["shift"][1][:, None, None, None]
        total += weight * (256 if kind == "i8" else 1) * 2.0**-shift / low.sum_steps * 255 * np.array(STD)
    real = model.stem.weight.detach().double().numpy().transpose(0, 2, 3, 1)
    off = np.abs(total - real).max() / np.abs(real).max()
    assert len(stems) == (2 if stem == "int24" else 1)
    low, high = {"int24": (0, 2.0**-24), "int16": (2.0**-19, 2.0**-13), "int8": (2.0**-11, 2.0**-5)}[stem]
    assert low <= off < high
