"""`ovsw-export` in a folder, random checkpoints with the oracle's answer, and ways to edit them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ovsw import Engine
from ovsw.export.cli import main

from support import oracle

TOLERANCE = 1e-4
R20, VGG = "cResNet20_1w1a", "VGGSmall_1w1a"


class Folder:
    """A folder with a checkpoint `c.pth`, and the command that makes `m.bnn` of it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys
        self.checkpoint, self.output = path / "c.pth", path / "m.bnn"
        self.out = self.err = ""

    def save(self, checkpoint: Any, **options: Any) -> None:
        torch.save(checkpoint, self.checkpoint, **options)

    def run(self, *options: str) -> int:
        """In float unless the options say otherwise: integers round, test_integer_export.py judges those."""
        if "--numerics" not in options:
            options = (*options, "--numerics", "float")
        self.capsys.readouterr()
        code = main([str(self.checkpoint), "-o", str(self.output), *options])
        self.out, self.err = self.capsys.readouterr()
        return code

    def export(self, checkpoint: Any, *options: str) -> Path:
        self.save(checkpoint)
        assert self.run(*options) == 0, self.err
        assert f"wrote {self.output}" in self.out or "--json" in options
        return self.output

    def engine(self, checkpoint: Any, *options: str) -> Engine:
        return Engine(self.export(checkpoint, *options))

    def contents(self) -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in self.path.rglob("*")}

    def refuses(self, *named: str, options: tuple[str, ...] = (), code: int = 1) -> None:
        """One line with `named` on stderr and nothing on stdout, this exit code, and every file as it was."""
        before = self.contents()
        assert (self.run(*options), self.err) == (code, self.err)
        assert "ovsw-export: error: " in self.err
        assert [n for n in named if n not in self.err] == [], self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        assert self.contents() == before


@dataclass(frozen=True)
class Case:
    """A random checkpoint, images on which it can be judged, and the oracle's answer."""

    arch: str
    state: oracle.State
    images: np.ndarray
    x: np.ndarray
    expected: np.ndarray


def judged(arch: str, state: oracle.State, size: int | None = None, n: int = 3, tries: int = 12) -> Case:
    images = oracle.pick_images(arch, state, np.random.default_rng(7), n, tries, size)
    x = oracle.prepare(arch, images)
    expected = oracle.logits(arch, state, x)
    assert expected.std(axis=0).max() > 0.05  # not constants, which any network would give
    return Case(arch, state, images, x, expected)


@functools.cache
def state_of(arch: str, classes: int = 10, **options: Any) -> oracle.State:
    """Shared by tests: edit copies only."""
    return oracle.random_state(arch, classes, np.random.default_rng(classes), **options)


@functools.cache
def case_of(arch: str, classes: int = 10, **options: Any) -> Case:
    return judged(arch, state_of(arch, classes, **options), options.get("size"))


def edited(state: oracle.State, edits: Mapping[str, Callable[[Tensor], Any]]) -> oracle.State:
    """A copy of a state dict with some tensors changed in place."""
    changed = dict(state)
    for key, edit in edits.items():
        changed[key] = state[key].clone()
        edit(changed[key])
    return changed


def fill(value: float, *where: Any) -> Callable[[Tensor], None]:
    """Sets the elements at flat positions (all, if none are given)."""

    def edit(tensor: Tensor) -> None:
        tensor.view(-1)[list(where) if where else slice(None)] = value

    return edit


def norms(state: oracle.State) -> list[str]:
    return [k[: -len(".running_var")] for k in state if k.endswith(".running_var")]


def assert_runs(model: Path, case: Case) -> None:
    for threads in (1, 2):
        engine = Engine(model, threads=threads)
        assert engine.run(case.x).shape == case.expected.shape
        assert np.abs(engine.run(case.x) - case.expected).max() < TOLERANCE
        assert np.abs(engine.run(case.x[0]) - case.expected[0]).max() < TOLERANCE
