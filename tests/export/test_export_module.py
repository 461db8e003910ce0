"""`export_module`: any nn.Module of known layers to a file, and layers that a user makes known."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import ExportError, ExportOptions, VerifyError, export, export_module, ir, register_layer
from ovsw.export.frontend.layers import LAYERS
from ovsw.nn import BinaryConv2d, create

from support import oracle
from support.exporting import R20, state_of
from support.judging import snapshot

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SHAPE = (1, 3, 12, 8)
CIFAR: dict[str, Any] = {"mean": oracle.CIFAR[0], "std": oracle.CIFAR[1]}


class Small(nn.Module):
    """A network that fits integers; `layer` comes before its binary convolution."""

    def __init__(self, layer: nn.Module | None = None, channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardtanh())
        self.layer = layer or nn.Identity()
        self.conv = BinaryConv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)
        self.norm.weight.data.normal_()
        self.norm.bias.data.normal_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.stem(x))
        x = F.hardtanh(self.norm(self.conv(x)) + x)
        return self.head(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))


def logits(model: nn.Module, x: np.ndarray) -> np.ndarray:
    double = copy.deepcopy(model).double().eval()
    for module in double.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):  # neither parameter nor buffer
                setattr(module, name, value.double())
    with torch.no_grad():
        return double(torch.from_numpy(x).double()).numpy()


def assert_computes(path: Path, model: nn.Module, shape: tuple[int, ...]) -> None:
    """On one of a few images; others may have a value too near 0 to have a sign in float32."""
    x = np.random.default_rng(0).normal(size=(8, *shape[1:])).astype(np.float32)
    expected = logits(model, x)
    assert expected.std(axis=0).max() > 1e-3
    error = np.abs(Engine(path).run(x) - expected).max(axis=1)
    assert (error < 1e-4 * max(1.0, np.abs(expected).max())).sum() >= 5, error


@pytest.mark.parametrize("training", [True, False])
def test_a_module_is_exported_and_left_as_it_was(training: bool, tmp_path: Path) -> None:
    model = Small().train(training)
    model.norm.eval()  # a mode of its own
    before = snapshot(model)
    report = export_module(model, torch.ones(SHAPE), tmp_path / "m.bnn", numerics="float", **CIFAR)
    assert snapshot(model) == before
    assert_computes(tmp_path / "m.bnn", model, SHAPE)
    assert report.verification is not None
    assert report.verification.images == 4
    assert (report.arch, report.num_classes, report.input_shape) == ("Small", 5, (3, 12, 8))
    assert (report.mean, report.std) == oracle.CIFAR
    assert report.warnings == ["Small was in training mode; exported as in eval mode"] * training
    assert report.parameters == sum(p.numel() for p in model.parameters())
    json.dumps(report.as_dict())


def test_integers_are_the_default(tmp_path: Path) -> None:
    report = export_module(Small(), SHAPE, tmp_path / "m.bnn", name="mine", labels=list("abcde"), resize=20, **CIFAR)
    assert (report.numerics, report.not_integer) == ("integer", None)
    assert report.integer_verification is not None
    engine = Engine(tmp_path / "m.bnn")
    assert engine.labels == list("abcde")
    assert engine.metadata["arch"] == "mine"
    assert engine.metadata["preprocess"] == {"resize": 20}
    assert "source" not in engine.metadata
    narrow = export_module(Small(), SHAPE, tmp_path / "n.bnn", weights="int8", stem="int16", **CIFAR)
    assert narrow.bytes < report.bytes


def test_without_mean_and_std_pixels_go_from_0_to_1(tmp_path: Path) -> None:
    model = Small().eval()
    report = export_module(model, SHAPE, tmp_path / "m.bnn", numerics="float")
    assert report.warnings == ["no mean and std given: pixels are only scaled to 0..1"]
    assert (report.mean, report.std) == ((0.0,) * 3, (1.0,) * 3)
    pixels = np.random.default_rng(0).integers(0, 256, (8, *SHAPE[2:], 3), np.uint8)
    expected = logits(model, (pixels.astype(np.float32) / np.float32(255)).transpose(0, 3, 1, 2))
    error = np.abs(Engine(tmp_path / "m.bnn").run(pixels) - expected).max(axis=1)
    assert (error < 1e-4).sum() >= 5


def test_a_registered_network_gives_the_file_of_its_checkpoint(tmp_path: Path) -> None:
    """Both doors lead to the same file, but for its metadata."""
    model = create(R20, 10)
    model.load_state_dict(state_of(R20, 10), strict=False)
    torch.save(model.state_dict(), tmp_path / "c.pth")
    for numerics in ("float", "integer"):
        export(tmp_path / "c.pth", tmp_path / "a.bnn", ExportOptions(numerics=numerics, verify=1, force=True))
        export_module(model, (1, 3, 32, 32), tmp_path / "b.bnn", numerics=numerics, verify=1, force=True, **CIFAR)
        first, second = bnn.read(tmp_path / "a.bnn"), bnn.read(tmp_path / "b.bnn")
        assert first.metadata != second.metadata
        first.metadata = second.metadata = {}
        assert bnn.to_bytes(first) == bnn.to_bytes(second)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_numbers_of_channels(channels: int, tmp_path: Path) -> None:
    shape = (1, channels, 9, 9)
    model = Small(channels=channels)
    export_module(model, shape, tmp_path / "m.bnn", numerics="float")
    assert_computes(tmp_path / "m.bnn", model, shape)
    report = export_module(model, shape, tmp_path / "i.bnn", mean=[0.5] * channels, std=[0.25] * channels)
    assert report.numerics == "integer"
    with pytest.raises(ExportError, match=f"mean= takes {channels} numbers, one per channel, not 3"):
        export_module(model, shape, tmp_path / "n.bnn", **CIFAR)


def test_wrapped_and_half_precision_modules(tmp_path: Path) -> None:
    model = Small()
    plain = export_module(model, SHAPE, tmp_path / "m.bnn", name="m", verify=1, **CIFAR)
    wrapped = export_module(nn.DataParallel(model), SHAPE, tmp_path / "w.bnn", name="m", verify=1, **CIFAR)
    assert (tmp_path / "m.bnn").read_bytes() == (tmp_path / "w.bnn").read_bytes()
    assert wrapped.layers == plain.layers
    half = copy.deepcopy(model).half()
    export_module(half, SHAPE, tmp_path / "h.bnn", numerics="float", **CIFAR)
    assert_computes(tmp_path / "h.bnn", half.float(), SHAPE)


# What is refused.


def refuses(model: Any, words: str, tmp_path: Path, example: Any = SHAPE, **options: Any) -> ExportError:
    target = tmp_path / "m.bnn"
    with pytest.raises(ExportError, match=words) as caught:
        export_module(model, example, target, **options)
    assert list(tmp_path.iterdir()) == []
    return caught.value


def test_all_problems_are_listed(tmp_path: Path) -> None:
    model = Small(nn.Sequential(nn.GELU(), nn.GroupNorm(2, 8)))
    model.conv.weight.data[0, 0] = 0.0
    model.norm.running_var.fill_(-1.0)  # type: ignore[union-attr,operator]
    model.head.weight.data[1] = torch.nan
    problems = refuses(model, "cannot be exported, 5 problem", tmp_path).problems
    assert [problem.split(":")[0] for problem in problems] == ["layer.0", "layer.1", "conv", "norm", "head"]
    assert "register_layer" in problems[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"example": (3, 12, 8)}, r"example_input has the shape \(3, 12, 8\), expected \(1, channels, height, width\)"),
        ({"example": (2, 3, 12, 8)}, "expected"),
        ({"example": (1, 3, 0, 8)}, "expected"),
        ({"example": torch.zeros(3, 12, 8)}, "expected"),
        ({"example": (1, 5, 12, 8)}, r"Small does not take an input of \(5, 12, 8\): .*to have 3 channels, but got 5"),
        ({"std": (1.0, 0.0, 1.0)}, "std= positive"),
        ({"labels": ["a", "b"]}, "2 names are given, the network has 5 classes"),
        ({"labels": "nowhere.txt"}, "labels: nowhere.txt: no such file"),
        ({"numerics": "fast"}, "numerics= is 'fast'; known are auto, integer, float"),
        ({"weights": "int4"}, "weights= is 'int4'"),
        ({"stem": "int4"}, "stem= is 'int4'"),
        ({"zero_weights": "minus"}, "zero_weights= is 'minus'"),
        ({"numerics": "float", "weights": "int8"}, "weights= and stem= are for integer files"),
        ({"resize": 7}, "the engine refuses the result: .*preprocess.resize"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    refuses(Small(), words, tmp_path, **options)


def test_real_weights_are_refused(tmp_path: Path) -> None:
    model = Small()
    model.conv.binary_weights = False
    refuses(model, "conv: its weights are real", tmp_path)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "m.bnn"
    target.write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export_module(Small(), SHAPE, target)
    assert target.read_text() == "mine"
    export_module(Small(), SHAPE, target, force=True)
    assert Engine(target).num_classes == 5


# Layers of one's own.


class GainedHardtanh(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(-1, 2, channels).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().max()) < 1e-9:  # which the exporter must not look at
            return x
        return self.gain * F.hardtanh(x)


def gained(name: str, inputs: list[ir.Node], shape: ir.Shape, module: GainedHardtanh) -> ir.Node:
    clamp = ir.Act(f"{name}.clamp", inputs, shape, "clamp", -1.0, 1.0)
    gain = module.gain.detach().double().numpy().reshape(-1)
    return ir.Affine(name, [clamp], shape, scale=gain, offset=np.zeros_like(gain))


class ForeignBinary(nn.Module):
    """A binary convolution with attributes of its own names, a plain tensor among them, and numpy inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.latent = torch.randn(channels, channels, 3, 3)
        self.alpha = nn.Parameter(torch.linspace(0.01, 0.1, channels).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        signs = torch.from_numpy(np.where(x.numpy() >= 0, 1.0, -1.0)).to(x.dtype)
        return self.alpha * F.conv2d(signs, torch.sign(self.latent), padding=1)


def foreign(name: str, inputs: list[ir.Node], shape: ir.Shape, module: ForeignBinary) -> ir.Node:
    weight, scale = module.latent.numpy(), module.alpha.detach().double().numpy().reshape(-1)
    return ir.BinaryConv(name, inputs, shape, (3, 3), (1, 1), (1, 1), weight=weight, scale=scale)


@pytest.fixture
def registry() -> Iterator[None]:
    known = dict(LAYERS)
    yield
    LAYERS.clear()
    LAYERS.update(known)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("layer", "converter"), [(GainedHardtanh, gained), (ForeignBinary, foreign)])
def test_registered_layers(layer: type[nn.Module], converter: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Small(layer(8))
    with pytest.raises(ExportError):
        export_module(model, SHAPE, tmp_path / "m.bnn")
    register_layer(layer, converter)
    export_module(model, SHAPE, tmp_path / "m.bnn", numerics="float")
    assert_computes(tmp_path / "m.bnn", model, SHAPE)


@pytest.mark.usefixtures("registry")
def test_a_wrong_converter_is_found(tmp_path: Path) -> None:
    def wrong(name: str, inputs: list[ir.Node], shape: ir.Shape, module: GainedHardtanh) -> ir.Node:
        node = gained(name, inputs, shape, module)
        assert isinstance(node, ir.Affine)
        node.offset = node.offset + 0.3
        return node

    register_layer(GainedHardtanh, wrong)
    with pytest.raises(VerifyError, match="differs from PyTorch"):
        export_module(Small(GainedHardtanh(8)), SHAPE, tmp_path / "m.bnn")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("node", "words"),
    [
        (lambda n, i, s, m: m.missing, "layer: layer of type GainedHardtanh: its converter raises AttributeError: "),
        (lambda n, i, s, m: None, "its converter gave None, not a node of"),
        (lambda n, i, s, m: ir.Act(n, i, (8, 1, 1), "clamp"), r"gave a node of shape \(8, 1, 1\), not a node of"),
        (lambda n, i, s, m: ir.Affine(n, i, s, np.ones(3), np.ones(8)), r"scale has the shape \(3,\), expected \(8,\)"),
        (lambda n, i, s, m: ir.Affine(n, i, s, m.gain, np.ones(8)), "scale is a Parameter, expected a numpy array"),
    ],
)
def test_faults_of_converters_are_listed(node: Any, words: str, tmp_path: Path) -> None:
    register_layer(GainedHardtanh, node)
    refuses(Small(GainedHardtanh(8)), words, tmp_path)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match=r"a subclass of torch.nn.Module, not 3"):
        register_layer(3, gained)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"register_layer\(Small\): the converter is not callable"):
        register_layer(Small, None)  # type: ignore[arg-type]
