"""Integer files of `ovsw-export`: sizes, options, the command, accuracy on images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.datasets import MemorySet, open_split
from ovsw.export import ExportError, ExportOptions, export
from ovsw.export.accuracy import Answers
from ovsw.export.cli import _text, main
from ovsw.export.errors import NotIntegerError
from ovsw.export.passes.scales import TOP
from ovsw.export.pipeline import Report
from ovsw.export.verify import IntegerVerification, Verification
from ovsw.nn import create

from support import DATA, oracle, shared
from support.quantizing import R20, Gentle, integer_model, loaded, normalisation, randomised, simulated, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(
    ("name", "weights", "most"),
    [
        ("resnet18", "int16", 2_810_000),
        ("resnet18", "int8", 2_150_000),
        ("resnet34", "int16", 4_120_000),
        ("resnet34", "int8", 3_450_000),
    ],
)
def test_sizes(name: str, weights: str, most: int) -> None:
    model = random_resnet(name, numerics="integer", weights=weights)
    numerics.check(model)
    assert len(bnn.to_bytes(model)) <= most
    assert model.metadata["labels"] == "imagenet"
    width = {"int16": "i16", "int8": "i8"}[weights]
    real_ones = [op for op in model.ops if op.kind in ("conv", "linear")]
    assert {model.tensors[op.weight or 0].dtype for op in real_ones} == {width}
    assert {model.tensors[op.weight or 0].dtype for op in model.ops if op.kind == "bconv"} == {"bits"}


def test_an_8_bit_stem() -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics="integer", stem="int8")
    dtypes = [model.tensors[op.weight].dtype for op in model.ops if op.kind != "bconv" and op.weight is not None]
    assert dtypes == ["i8", *["i16"] * 4]


@pytest.mark.parametrize("stem", ["int8", "int16"])
def test_the_largest_weights_of_a_stem(stem: str, isa: str) -> None:
    """A stem whose results are beyond the clamp from one step of a pixel to the next is the last that fits."""
    model = randomised(Gentle(), 0, binary=1e-5)
    images = np.random.default_rng(2).integers(0, 256, (5, 32, 32, 3), np.uint8)
    with torch.no_grad():
        model.stem[0].weight[2, 0, 1, 1] = 60.0  # type: ignore[index]
        model.stem[1].weight[2] = float(torch.sqrt(model.stem[1].running_var[2] + 1e-5))  # type: ignore[index,operator]
    logits, expected, packed, warnings = simulated(model, (3, 32, 32), images, stem=stem)
    assert warnings == []
    counts = 60 * TOP / (255 * oracle.CIFAR[1][0])
    found = packed.tensors[packed.ops[0].weight or 0].array[2].max()
    assert abs(found - counts / {"int8": 256, "int16": 1}[stem]) < 2.5
    assert np.abs(logits - expected).max() < 0.2
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()
    with torch.no_grad():
        model.stem[0].weight[2, 0, 1, 1] *= 2  # type: ignore[index]
    with pytest.raises(NotIntegerError, match=rf"stem.0: 1 channels have weights .* too large for {stem[3:]} bits"):
        simulated(model, (3, 32, 32), images, stem=stem)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet34", marks=pytest.mark.slow), "cresnet20"])
def test_random_networks_are_the_exported_ones(name: str) -> None:
    arch = {"resnet18": "ResNet18_1w1a", "resnet34": "ResNet34_1w1a", "cresnet20": R20}[name]
    mean, std = normalisation(arch)
    size = 64  # at which the last map is more than a pixel
    exported, _ = integer_model(loaded(arch, state_of(arch, size), size), (3, size, size), mean, std)
    random_one = random_resnet(name, num_classes=10, size=size, numerics="integer")
    assert random_one.ops == exported.ops
    assert random_one.values == exported.values
    assert [(t.dtype, t.shape) for t in random_one.tensors] == [(t.dtype, t.shape) for t in exported.tensors]
    assert random_one.version == (1, 1)


# --- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_integer_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(state_of(R20, 32, learned=True), checkpoint)
    code, out, err = run(capsys, str(checkpoint), "-o", str(target), "--json", "--labels", "cifar10")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["numerics"] == "integer"
    assert report["not_integer"] is None
    assert report["labels"] == 10
    assert report["verification"]["images"] == 4
    assert report["integer_verification"]["images"] == 4
    assert report["bytes"] == target.stat().st_size < 66_000
    model = bnn.read(target)
    assert (model.numerics, model.version, model.metadata["labels"]) == ("integer", (1, 1), "cifar10")
    assert Engine(target).labels[1] == "automobile"
    code, out, _ = run(capsys, str(checkpoint), "-o", str(target), "--force", "--weights", "int8", "--verify", "1")
    assert code == 0
    assert "numerics integer" in out
    assert "every op is right on 1 images" in out
    assert bnn.read(target).tensors[bnn.read(target).ops[-1].weight or 0].dtype == "i8"
    code, out, _ = run(capsys, str(checkpoint), "-o", str(target), "--force", "--numerics", "float", "--verify", "1")
    assert code == 0
    assert bnn.read(target).version == (1, 0)


CLAMPLESS = ("cResNet18_1w1a", "VGGSmall_1w1a", "BiRealNet18_1w1a")


@pytest.mark.parametrize(
    "arch", ["ReActResNet18_1w1a", *(pytest.param(name, marks=pytest.mark.slow) for name in CLAMPLESS)]
)
def test_streams_without_a_clamp_are_calibrated(arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target, images = tmp_path / "c.pth", tmp_path / "m.bnn", tmp_path / "images"
    torch.save(create(arch, 10).state_dict(), checkpoint)
    base = (str(checkpoint), "-o", str(target), "--verify", "1", "--zero-weights", "plus", "--stream", "int16")
    base += ("--input-size", "64")
    if arch == "VGGSmall_1w1a":
        base = base[:-2]
    code, out, err = run(capsys, *base, "--numerics", "integer")
    assert code == 0
    assert "synthetic noise; --calibrate measures them on images" in err
    assert "measured on synthetic noise" in out
    assert bnn.read(target).numerics == "integer"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 70, 80, 3), np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(images / f"{i}.png")
    code, out, err = run(capsys, *base, "--force", "--calibrate", str(images), "--weights", "int8")
    assert (code, err) == (0, "")
    assert "measured on 3 images of" in out
    code, _, err = run(capsys, *base, "--force", "--calibrate", str(tmp_path / "nowhere"))
    assert code == 1
    assert "--calibrate: the folder" in err
    code, _, err = run(capsys, *base, "--numerics", "float", "--weights", "int8", "--force")
    assert code == 1
    assert "--weights" in err


def test_accuracy_on_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target, images = tmp_path / "c.pth", tmp_path / "m.bnn", tmp_path / "images"
    state = state_of(R20, 32)
    torch.save(state, checkpoint)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    answers = oracle.logits(R20, state, oracle.prepare(R20, pixels)).argmax(1)
    for label in range(10):
        (images / f"class{label}").mkdir(parents=True)
    labels = [answer if i % 4 else (answer + 1) % 10 for i, answer in enumerate(answers)]  # three in four are right
    for i, (image, label) in enumerate(zip(pixels, labels)):
        Image.fromarray(image).save(images / f"class{label}" / f"{i:02}.png")
    base = (str(checkpoint), "-o", str(target), "--verify", "1", "--force", "--images", str(images))
    code, out, err = run(capsys, *base, "--json")
    assert (code, "of 40 images; --numerics float keeps" in err) == (0, True)  # random weights: few answers are sure
    found = json.loads(out)["accuracy"]
    assert found["images"] == 40
    assert found["pytorch"] == pytest.approx(0.75, abs=0.03)
    given = Engine(target).run(pixels).argmax(1)
    assert found["exported"] == (given == labels).mean()
    assert found["agreement"] == pytest.approx((given == answers).mean(), abs=0.03)
    code, out, _ = run(capsys, *base, "--max-images", "7", "--numerics", "float")
    assert code == 0
    assert "top-1 on 7 labelled images: PyTorch " in out
    assert "the same answer on 100.00%" in out
    (images / "class10").mkdir()
    code, _, err = run(capsys, *base)
    assert code == 1
    assert "has 11 classes, the network has 10" in err
    for folder, words in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "classes")):
        code, _, err = run(capsys, *base[:-1], str(folder))
        assert code == 1
        assert "--images" in err
        assert words in err


def test_accuracy_on_cifar10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared("data", "cifar10")
    checkpoint, target = tmp_path / "c.pth", tmp_path / "m.bnn"
    torch.save(state_of(R20, 32), checkpoint)
    base = (str(checkpoint), "-o", str(target), "--verify", "1", "--max-images", "50")
    code, out, _ = run(capsys, *base, "--images", str(folder), "--json")
    assert code == 0
    found = json.loads(out)["accuracy"]
    split = open_split("cifar10", folder, "test")
    assert isinstance(split, MemorySet)
    pixels, labels = split.images[::200].permute(0, 2, 3, 1).numpy(), split.labels[::200].numpy()
    given = Engine(target).run(pixels).argmax(1)
    answers = oracle.logits(R20, state_of(R20, 32), oracle.prepare(R20, pixels)).argmax(1)
    assert (found["images"], found["exported"]) == (50, (given == labels).mean())
    assert found["pytorch"] == pytest.approx((answers == labels).mean(), abs=0.021)
    assert found["agreement"] == pytest.approx((given == answers).mean(), abs=0.021)


def test_images_of_another_size(tmp_path: Path) -> None:
    folder = shared("data", "cifar10")
    checkpoint = tmp_path / "c.pth"
    torch.save(state_of(R20, 32), checkpoint)
    options = ExportOptions(input_size=40, images=str(folder), verify=1)
    with pytest.raises(ExportError, match="of 3x32x32, the network takes 3x40x40"):
        export(checkpoint, tmp_path / "m.bnn", options)


def test_the_golden_network_in_integers() -> None:
    checkpoint, io = oracle.golden(DATA / "cResNet20_1w1a_sfTrue.npz")
    model = loaded(R20, checkpoint["state_dict"], 32)
    packed, warnings = integer_model(model, (3, 32, 32), io["mean"], io["std"])
    assert warnings == []
    logits = numerics.simulate(packed, io["x_u8"])
    assert (np.abs(logits - io["logits64"]).max(axis=1) < 5e-3).any()
    assert Engine(bnn.to_bytes(packed)).run(io["x_u8"]).tolist() == logits.tolist()


def report_of(ties: int, calibrated: str | None) -> Report:
    return Report(
        *("net.bnn", "net", 10, [(10, 1, 1)], 8, (3, 8, 6), (0.0,), (1.0,), False, "integer", 0, [], 1000, 500),
        verification=Verification(4, ties, 1e-6),
        integer_verification=IntegerVerification(4, 3, 0.5, 0.25, 0.125, [("a", 0.0004), ("b", 0.00002)]),
        accuracy=None,
        not_integer=None,
        calibrated=calibrated,
        answers=None if calibrated is None else Answers(32, 0.96875),
        warnings=[],
    )


@pytest.mark.parametrize("ties", [0, 2])
def test_report_says_where_rounding_decides(ties: int) -> None:
    (line,) = (line for line in _text(report_of(ties, None)).splitlines() if "verified" in line)
    aside = "; on 2 a sign depends on rounding" if ties else ""
    assert line == f"before rounding, verified against PyTorch on 4 images: largest difference 1.0e-06{aside}"


@pytest.mark.parametrize("calibrated", [None, "32 images of a folder"])
def test_report_says_what_scales_were_measured_on(calibrated: str | None) -> None:
    measured = [line for line in _text(report_of(1, calibrated)).splitlines() if "measured on" in line]
    expected = "scales of maps that are not clamped measured on 32 images of a folder; 0.12 of their values saturate"
    assert measured == ([expected] if calibrated else [])


@pytest.mark.parametrize("calibrated", [None, "32 images of a folder"])
def test_report_says_what_rounding_does(calibrated: str | None) -> None:
    lines = _text(report_of(1, calibrated)).splitlines()
    assert "rounding changes signs most often in a 0.04 %, b 0.002 %" in lines
    known = "the same answer as PyTorch on 97% of 32 images"
    unknown = "how many answers are as in PyTorch is not known: --calibrate DIR or --images DIR tells"
    assert (known in lines, unknown in lines) == (calibrated is not None, calibrated is None)
