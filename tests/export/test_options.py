"""The options of `ovsw-export`."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import ExportError, ExportOptions
from ovsw.export import export as export_step
from ovsw.export.cli import main
from ovsw.export.passes import Built, build

from support import oracle
from support.exporting import R20, TOLERANCE, VGG, Folder, assert_runs, case_of, edited, fill, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("form", ["words", "commas", "both"])
def test_mean_and_std(form: str, folder: Folder) -> None:
    mean, std = (0.1, 0.55, 0.9), (0.5, 0.3, 0.21)
    state = state_of(R20, 10)

    def written(v: tuple[float, ...]) -> list[str]:
        forms = {"words": [*map(str, v)], "commas": [",".join(map(str, v))], "both": [f"{v[0]},", f"{v[1]}, {v[2]}"]}
        return forms[form]

    engine = folder.engine(state, "--mean", *written(mean), "--std", *written(std), "--verify", "1")
    images = oracle.pick_images(R20, state, np.random.default_rng(3), 3, 12, mean=mean, std=std)
    x = oracle.prepare(R20, images, mean, std)
    expected = oracle.logits(R20, state, x)
    assert np.abs(engine.run(images) - expected).max() < TOLERANCE
    assert np.abs(engine.run(x) - expected).max() < TOLERANCE
    usual = oracle.logits(R20, state, oracle.prepare(R20, images))
    assert np.abs(usual - expected).max() > 0.1


def test_labels_file(folder: Folder) -> None:
    names = [f"class {c} é" for c in "abcdefghij"]
    labels = folder.path / "labels.txt"
    labels.write_text("\r\n".join(names) + "\r\n\r\n", encoding="utf-8")
    engine = folder.engine(state_of(R20, 10), "--labels", str(labels), "--verify", "1")
    assert engine.labels == names
    assert {label for label, _ in engine.classify(case_of(R20, 10).x[0], 10)} == set(names)


def test_input_size(folder: Folder) -> None:
    case = case_of(R20, 10, size=20)
    assert_runs(folder.export(case.state, "--input-size", "20"), case)
    engine = Engine(folder.output)
    assert engine.input_shape == (3, 20, 20)
    assert engine.metadata["preprocess"] == {"resize": 20, "crop": 20}


@pytest.mark.parametrize("name", ["cResNet20_1w1a", "cresnet20", "CRESNET20_1W1A"])
def test_arch_by_name(name: str, folder: Folder) -> None:
    assert folder.engine(state_of(R20, 10), "--arch", name, "--verify", "1").metadata["arch"] == R20


@pytest.mark.parametrize("count", [1, 6])
def test_verify(count: int, folder: Folder) -> None:
    folder.export(state_of(R20, 10), "--verify", str(count), "--json")
    assert json.loads(folder.out)["verification"]["images"] == count
    folder.export(state_of(R20, 10), "--verify", str(count), "--force")
    assert f"verified against PyTorch on {count} images" in folder.out


@pytest.mark.parametrize(("arch", "parameters", "binary"), [(R20, 269_850, 18), (VGG, 4_660_618, 5)])
def test_json(arch: str, parameters: int, binary: int, folder: Folder) -> None:
    model = bnn.read(folder.export(state_of(arch, 10, learned=True), "--json", "--verify", "1"))
    report = json.loads(folder.out)
    assert report["arch"] == arch
    assert report["num_classes"] == 10
    assert report["learned_scale"] is True
    assert report["output"] == str(folder.output)
    assert report["bytes"] == folder.output.stat().st_size
    assert report["parameters"] == parameters
    assert report["fp32_bytes"] == 4 * parameters
    assert report["warnings"] == []
    assert report["verification"]["max_error"] < TOLERANCE
    assert [layer["name"] for layer in report["layers"]] == [op.name for op in model.ops]
    assert sum(layer["bits"] == 1 for layer in report["layers"]) == binary
    constants = sum(tensor.array.nbytes for tensor in model.tensors)
    assert sum(layer["bytes"] for layer in report["layers"]) == constants - 2 * 3 * 4  # mean and std
    for layer in report["layers"]:
        if layer["bits"] == 1:
            (cin, _, _), (cout, _, _) = layer["input"], layer["output"]
            assert layer["bytes"] >= cout * 9 * -(-cin // 64) * 8


def test_force(folder: Folder) -> None:
    folder.output.write_bytes(b"precious")
    folder.save(state_of(R20, 10))
    folder.refuses("m.bnn: exists already; --force")
    assert folder.output.read_bytes() == b"precious"
    assert folder.run("--force", "--verify", "1") == 0
    assert Engine(folder.output).num_classes == 10
    assert sorted(p.name for p in folder.path.iterdir()) == ["c.pth", "m.bnn"]


def test_force_keeps_the_old_file_if_the_export_fails(folder: Folder) -> None:
    folder.output.write_bytes(b"precious")
    folder.save(edited(state_of(R20, 10), {"conv1.weight": fill(float("nan"), 0)}))
    folder.refuses("conv1", options=("--force",))
    assert folder.output.read_bytes() == b"precious"


def test_a_wrong_export_is_not_written(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **options: Any) -> Built:
        built = build(*args, **options)
        scale = built.model.tensors[built.model.ops[5].scale or 0]
        scale.array = abs(scale.array) * 2
        return built

    monkeypatch.setattr(sys.modules[export_step.__module__], "build", wrong)
    folder.save(state_of(R20, 10))
    before = folder.contents()
    assert folder.run() == 1
    assert "differs from PyTorch" in folder.err
    assert "nothing was written" in folder.err
    assert folder.contents() == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--mean", "0.5", "0.5"), "--mean takes 3 numbers"),
        (("--std", "0.5,0.5,0.5,0.5"), "--std takes 3 numbers"),
        (("--std", "0.5", "0", "0.5"), "--std positive"),
        (("--std", "0.5", "nan", "0.5"), "--std positive"),
        (("--mean", "0.5", "inf", "0.5"), "--mean takes finite"),
        (("--mean", "0.5", "x", "0.5"), "--mean: '0.5 x 0.5' is neither numbers nor one of imagenet"),
        (("--input-size", "0"), "not a size"),
        (("--input-size", "-3"), "not a size"),
        (("--input-size", "99999"), "not a size"),
        (("--verify", "some"), "not a number of images: 'some'"),
        (("--numerics", "magic"), "'magic'"),
        (("--zero-weights", "minus"), "'minus'"),
        (("--nonsense",), "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options(options: tuple[str, ...], named: str, folder: Folder) -> None:
    """What no file can need is wrong usage; how many numbers a mean has depends on the network."""
    folder.save(state_of(R20, 10))
    folder.refuses(named, options=options, code=1 if options[0] in ("--mean", "--std") else 2)


def test_devices_are_no_files_to_overwrite(folder: Folder) -> None:
    """Nothing is lost in /dev/null, so no --force is asked for; /dev/full says why it fails."""
    folder.save(state_of(R20, 10))
    quick = ("--mean", "cifar10", "--numerics", "float", "--verify", "1")
    assert main([str(folder.checkpoint), "-o", "/dev/null", *quick]) == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert main([str(folder.checkpoint), "-o", "/dev/full", *quick]) == 1
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.parametrize("what", ["source", "output"])
def test_only_onnx_files_need_onnx(
    what: str, folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.save(state_of(R20, 10))
    for name in [name for name in sys.modules if name.split(".")[0] == "onnx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    path = folder.output.with_suffix(".onnx")
    source, output = (path, folder.output) if what == "source" else (folder.checkpoint, path)
    assert main([str(source), "-o", str(output), "--mean", "cifar10"]) == 1
    assert capsys.readouterr().err == (
        f"ovsw-export: error: {path}: onnx is needed for such files: pip install 'ovsw[onnx]'\n"
    )
    quick = ("--mean", "cifar10", "--numerics", "float", "--verify", "1")
    assert main([str(folder.checkpoint), "-o", str(folder.output), *quick]) == 0


def test_a_file_called_onnx_is_onnx(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    folder.save(state_of(R20, 10))
    monkeypatch.chdir(folder.path)
    assert main([str(folder.checkpoint), "-o", ".onnx", "--verify", "1"]) == 0
    assert onnx.load(folder.path / ".onnx").producer_name == "ovsw"


def test_options_of_other_sources_are_refused(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.refuses("c.pth: only programs of torch.export take --allow-unsafe", options=("--allow-unsafe",))
    with pytest.raises(ExportError, match=r"only programs of torch\.export take allow_unsafe="):
        export_step(folder.checkpoint, folder.output, ExportOptions(allow_unsafe=True))
