"""Goldens: what the reference implementation itself computed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine

from support import DATA, oracle, shared
from support.exporting import TOLERANCE, Folder

pytestmark = pytest.mark.usefixtures("one_torch_thread")

OVSW_GOLDENS = ("ResNet18_1w1a", "cResNet18_1w1a", "cResNet20_1w1a", "cResNet20_1w1a_sfTrue", "VGGSmall_1w1a")


def assert_golden(model: Path, io: dict[str, np.ndarray]) -> None:
    x, expected = oracle.prepare("", io["x_u8"], io["mean"], io["std"]), io["logits64"]
    for threads in (1, 2):
        engine = Engine(model, threads=threads)
        assert np.abs(engine.run(x) - expected).max() < TOLERANCE
        assert np.abs(engine.run(x[1]) - expected[1]).max() < TOLERANCE
        assert np.abs(engine.run(io["x_u8"]) - expected).max() < TOLERANCE


def test_golden_in_the_repository(folder: Folder) -> None:
    checkpoint, io = oracle.golden(DATA / "cResNet20_1w1a_sfTrue.npz")
    model = folder.export(checkpoint)
    assert folder.out.startswith("cResNet20_1w1a: 10 classes, input 32x32, learned scales")
    assert_golden(model, io)


@pytest.mark.parametrize("name", OVSW_GOLDENS)
def test_golden(name: str, folder: Folder) -> None:
    spec = importlib.util.spec_from_file_location("expand", shared("golden", "expand.py"))
    assert spec is not None
    assert spec.loader is not None
    expand = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(expand)
    checkpoint, meta = expand.load_golden(shared("golden", f"{name}.npz"))
    with np.load(shared("golden", f"{name}.io.npz")) as io:
        arrays = dict(io)
    model = folder.export(checkpoint, "--verify", "1")
    folder.checkpoint.unlink()  # up to 180 MB, which pytest would keep
    assert folder.out.startswith(f"{meta['arch']}: {meta['num_classes']} classes")
    assert_golden(model, arrays)


@pytest.mark.parametrize("name", OVSW_GOLDENS)
def test_oracle_is_the_reference(name: str) -> None:
    """The oracle judges everything below, so it is held to far less than the tolerance."""
    local = DATA / f"{name}.npz"
    checkpoint, io = oracle.golden(local if local.exists() else shared("golden", f"{name}.npz"))
    arch = name.replace("_sfTrue", "")
    x = oracle.prepare(arch, io["x_u8"], io["mean"], io["std"])[:1]
    assert np.abs(oracle.logits(arch, checkpoint["state_dict"], x) - io["logits64"][:1]).max() < 1e-11
    assert np.abs(oracle.min_margin(arch, checkpoint["state_dict"], x) - io["min_margin"][:1]).max() < 1e-11
