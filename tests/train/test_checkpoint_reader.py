"""The checkpoint reader: what is not a tensor or plain data is inert, and every command says the same of a bad file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ovsw.export.cli import main as export_main
from ovsw.nn.checkpoint import CheckpointError, read, read_run
from ovsw.nn.torch_file import Inert
from ovsw.train import cli, flips, landscape

from support import pickles
from support.training import arguments

pytestmark = pytest.mark.usefixtures("one_torch_thread")

READ = """
import sys
from pathlib import Path
from ovsw.nn.checkpoint import CheckpointError, read
from ovsw.nn.torch_file import Inert
try:
    content = read(Path(sys.argv[1]))
    print(content["state_dict"]["a"].tolist(), content["epoch"], [isinstance(x, Inert) for x in content["beside"]])
except CheckpointError as e:
    print(e)
"""


def test_a_dtype_cannot_grow_under_an_array(tmp_path: Path) -> None:
    """With numpy's own classes the array claims a gigabyte after this, of which 8 bytes are there."""
    path = tmp_path / "c.pth"
    pickles.save_with(path, {"state_dict": {"a": torch.ones(2)}, "epoch": 3}, pickles.grown_array(1 << 30))
    assert pickles.in_child(READ, path) == "[1.0, 1.0] 3 [True, True, True]"


def test_nothing_beyond_an_array_can_be_copied(tmp_path: Path) -> None:
    """bytearray is among what torch lets in: with numpy's own classes it copies whatever the array claims to have."""
    path = tmp_path / "c.pth"
    pickles.save_with(path, {"state_dict": {"a": torch.ones(2)}, "epoch": 3}, pickles.copy_of_grown_array(1 << 30))
    assert pickles.in_child(READ, path) == f"{path}: not a PyTorch checkpoint, or damaged"


@pytest.mark.parametrize(
    "value",
    [np.float64(1.5), np.arange(3), np.array(["a"]), np.zeros(2, "f4,i2"), Path("x"), argparse.Namespace(a=Path("y"))],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_types_are_inert(value: object, tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(2)}, "x": value, "epoch": 3, "best": 87.5, "t": ["u"]}, tmp_path / "c")
    content = read(tmp_path / "c")
    assert type(content["x"]) is Inert
    assert vars(Inert).keys() <= {"__module__", "__doc__", "__slots__"}  # it can do nothing
    assert content["state_dict"]["a"].tolist() == [1, 1]
    assert {key: content[key] for key in ("epoch", "best", "t")} == {"epoch": 3, "best": 87.5, "t": ["u"]}


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, "no such file"),
    "folder": (lambda path: path.mkdir(), "not a file"),
    "text": (lambda path: path.write_text("hello") and None, "not a PyTorch checkpoint, or damaged"),
    "module": (
        lambda path: torch.save({"state_dict": {}, "x": pickles.Bomb(path.with_name("mark"))}, path),
        "refused, it holds 'posix.system', which could execute code; save a state_dict",
    ),
    "script": (
        lambda path: torch.jit.save(torch.jit.script(torch.nn.ReLU()), path),  # type: ignore[no-untyped-call]
        "a TorchScript archive, not a checkpoint, or damaged",
    ),
}
NO_RUN: dict[str, Any] = {
    "a list": [1],
    "a state dict": {"conv1.weight": torch.zeros(1)},
    "no recipe": {"state_dict": {}, "ovsw": {"seed": 1}},
    "no weights": {"ovsw": {"recipe": {}, "seed": 1}},
    "inert": {"state_dict": {}, "ovsw": np.float64(1)},
}


def commands(path: Path, folder: Path) -> dict[str, Callable[[], int]]:
    """All that read a checkpoint, given this one."""
    again = ["--set", "train.second_step=true"]
    teach = ["--set", "train.teacher=resnet18"]
    return {
        "ovsw-export": lambda: export_main([str(path), "-o", str(folder / "m.bnn")]),
        "ovsw-train --init": lambda: cli.main(arguments(folder / "a", "--init", str(path), *again)),
        "ovsw-train --teacher": lambda: cli.main(arguments(folder / "b", "--teacher", str(path), *teach)),
        "ovsw-landscape": lambda: landscape.main([str(path), "-o", str(folder / "l.png")]),
    }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore")
def test_every_command_says_the_same(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.pth"
    make, words = FAULTS[fault]
    make(path)
    for name, run in commands(path, tmp_path).items():
        assert run() == 1, name
        assert capsys.readouterr().err == f"{name.split()[0]}: error: {path}: {words}\n"
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("fault", ["text", "module"])
def test_runs_and_comparisons_say_the_same(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = FAULTS[fault]
    for name in ("initial.pth", "last.pth"):
        make(tmp_path / name)
    first, last = tmp_path / "initial.pth", tmp_path / "last.pth"
    assert cli.main(arguments(tmp_path, "--resume")) == 1
    assert capsys.readouterr().err == f"ovsw-train: error: {last}: {words}\n"
    for given in ([str(tmp_path)], [str(first), str(last)]):
        assert flips.main(given) == 1
        assert capsys.readouterr().err == f"ovsw-flips: error: {first}: {words}\n"


@pytest.mark.parametrize("content", NO_RUN)
def test_what_is_no_run(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "last.pth"
    torch.save(NO_RUN[content], path)
    with pytest.raises(CheckpointError, match=r"last.pth: was not written by ovsw-train"):
        read_run(path)
    assert cli.main(arguments(tmp_path, "--resume")) == 1
    assert capsys.readouterr().err.startswith(f"ovsw-train: error: {path}: was not written by ovsw-train")
    assert landscape.main([str(path), "-o", str(tmp_path / "l.png")]) == 1
    assert capsys.readouterr().err.startswith(f"ovsw-landscape: error: {path}: was not written by ovsw-train")
