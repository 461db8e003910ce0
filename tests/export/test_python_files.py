"""`ovsw-export FILE.py:NAME`: somebody's own network on the command line, ONNX beside it, and what goes wrong there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export.cli import main

CODE = """
import torch
from torch import nn
from helper import SIGN

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        y = nn.functional.conv2d(SIGN(x), self.weight.sign(), padding=1)
        return self.fc((self.norm(y) + x).mean((2, 3)))

def make():
    return Net()

torch.manual_seed(0)
ready = Net().eval()

def broken():
    raise KeyError("no such thing")

def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("import torch\nSIGN = torch.sign\n")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", ["make", "Net", "ready"])
def test_a_network_of_a_file(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (f"{folder / 'net.py'}:{name}", "--input", "3x6x5", "--mean", "none", "-o", folder / "m.bnn")
    code, out, err = run(capsys, *given)
    assert code == 0, err
    assert "verified against PyTorch" in out
    engine = Engine(folder / "m.bnn")
    assert (engine.input_shape, engine.num_classes, engine.numerics) == ((3, 6, 5), 4, "integer")
    assert engine.metadata["arch"] == name


def test_weights_are_loaded_into_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util
    import sys

    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("net_of_the_test", folder / "net.py")
    assert spec is not None
    assert spec.loader is not None
    code_of = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code_of)
    sys.path.remove(str(folder))
    torch.manual_seed(3)
    model = code_of.make().eval()
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, folder / "c.pth")
    given = (f"{folder / 'net.py'}:make", "--weights", folder / "c.pth", "--input", "3x6x6", "--mean", "none")
    code, _, err = run(capsys, *given, "-o", folder / "m.bnn", "--numerics", "float")
    assert (code, err) == (0, "")
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(Engine(folder / "m.bnn").run(x), expected, rtol=0, atol=1e-4)
    code, _, err = run(capsys, *given, "--weights", "int8", "-o", folder / "m.bnn", "--force")
    assert code == 0, err
    file = bnn.read(folder / "m.bnn")
    assert file.tensors[file.ops[-1].weight or 0].dtype == "i8"
    assert file.metadata["source"] == "c.pth"
    code, _, err = run(capsys, *given, "-o", folder / "m.onnx")
    assert (code, err) == (0, "")
    for numerics in ("float", "integer"):  # the same file, to the last byte of its metadata
        for source, target in ((given, "a.bnn"), ((folder / "m.onnx",), "b.bnn")):
            code, _, err = run(capsys, *source, "-o", folder / target, "--numerics", numerics, "--force")
            assert code == 0, err
        assert (folder / "a.bnn").read_bytes() == (folder / "b.bnn").read_bytes()


def test_onnx_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (f"{folder / 'net.py'}:ready", "--input", "3x6x6", "--mean", "cifar10", "--labels", "none")
    code, _, err = run(capsys, *given, "-o", folder / "m.onnx")
    assert (code, err) == (0, "")
    for numerics in ("float", "integer"):
        for source, target in ((given, "a.bnn"), ((folder / "m.onnx",), "b.bnn")):
            code, _, err = run(capsys, *source, "-o", folder / target, "--numerics", numerics, "--force")
            assert code == 0, err
        a, b = (bnn.read(folder / name) for name in ("a.bnn", "b.bnn"))
        assert a.ops == b.ops
        assert all(np.array_equal(s.array, t.array) for s, t in zip(a.tensors, b.tensors))


def test_explain_needs_no_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (f"{folder / 'net.py'}:ready", "--input", "3x6x6", "--mean", "none")
    code, out, _ = run(capsys, *given, "--explain", folder / "m.svg")
    assert code == 0
    assert "recorded:" in out
    assert "bconv" in out
    assert (folder / "m.svg").read_text().count("<svg") == 1
    code, _, err = run(capsys, *given, "--explain", folder / "m.svg")
    assert code == 1
    assert "exists already" in err


USAGE = ("not a shape such as 3x32x32: '3x6'", "at most one width and one checkpoint")  # wrong whatever the files are


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("net.py:make", ("--mean", "none"), "--input 3x32x32"),
        ("net.py:make", ("--input", "3x6x6"), "how are its images normalised? --mean and --std take"),
        ("net.py:make", ("--input", "3x6", "--mean", "none"), "not a shape such as 3x32x32: '3x6'"),
        ("nothing.py:make", ("--input", "3x6x6", "--mean", "none"), "no such file"),
        ("net.py:nothing", ("--input", "3x6x6", "--mean", "none"), "has no nothing; it has SIGN, Net, make, ready"),
        ("net.py:broken", ("--input", "3x6x6", "--mean", "none"), "broken() fails, it is called without arguments"),
        ("net.py:number", ("--input", "3x6x6", "--mean", "none"), "number() gives a int, expected a torch.nn.Module"),
        ("syntax.py:make", ("--input", "3x6x6", "--mean", "none"), "cannot be imported: SyntaxError"),
        ("net.py:make", ("--input", "5x6x6", "--mean", "none"), "5"),
        ("net.py:make", ("--input", "3x6x6", "--mean", "mars"), "'mars' is neither numbers nor one of imagenet"),
        (
            "net.py:make",
            ("--weights", "a", "--weights", "b", "--input", "3x6x6"),
            "at most one width and one checkpoint",
        ),
        ("net.py:make", ("--weights", "{}/net.py", "--input", "3x6x6", "--mean", "none"), "net.py"),
        ("net.pth", ("--input", "3x6x6"), "only networks given as FILE.py:NAME take --input"),
    ],
)
def test_one_clear_error(
    source: str, options: tuple[str, ...], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "syntax.py").write_text("def make(:\n")
    before = sorted(folder.iterdir())
    given = [option.replace("{}", str(folder)) for option in options]
    code, out, err = run(capsys, folder / source, *given, "-o", folder / "m.bnn")
    assert code == (2 if words in USAGE else 1)
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert sorted(p for p in folder.iterdir() if p.name != "__pycache__") == before


def test_nothing_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, f"{folder / 'net.py'}:make")
    assert code == 2
    assert "nothing to do: -o OUT.bnn writes a file" in err


def test_weights_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"fc.weight": torch.zeros(4, 9), "other": torch.zeros(2)}, folder / "c.pth")
    given = (f"{folder / 'net.py'}:make", "--weights", folder / "c.pth", "--input", "3x6x6", "--mean", "none")
    code, _, err = run(capsys, *given, "-o", folder / "m.bnn")
    assert code == 1
    for words in (
        "unexpected: other (2)",
        "wrong shape: fc.weight is (4, 9), expected (4, 8)",
        "missing: stem.weight",
    ):
        assert words in err
    assert not (folder / "m.bnn").exists()
    lines = err.splitlines()
    assert lines[0].endswith(f"{len(lines) - 1} problem(s):")
    assert len(lines) > 2
    assert all(line.startswith("  ") for line in lines[1:])
