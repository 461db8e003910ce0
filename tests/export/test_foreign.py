"""Other people's networks: each is exported exactly, whatever it is written like, or refused in one clear sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.export import ExportError, Report, export_module

from support.foreign import HABITS, HARD
from support.foreign.nonsense import NONSENSE
from support.foreign.nonsense import make as make_nonsense
from support.judging import judged, results, snapshot, temporary_files

pytestmark = [pytest.mark.usefixtures("one_torch_thread", "own_temporary_folder")]
TOLERANCE = 1e-4  # of the largest number of an output
CHANGES_ITSELF = {"CentredAndClamped"}  # each call of it writes weights


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def made(network: Any) -> tuple[Any, torch.Tensor, list[torch.Tensor]]:
    """A model that ran before, an example in its precision, images."""
    model, shape = network()
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    dtype = parameters[0].dtype if parameters else torch.float32
    generator = torch.Generator().manual_seed(1)
    images = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(8)]
    with torch.no_grad():
        model(images[0].clone())
    return model, torch.zeros(shape, dtype=dtype), images


def check_float(model: Any, file: Path, images: list[torch.Tensor]) -> None:
    chosen = judged(model, images)
    assert len(chosen) >= 3
    engine = Engine(file)
    for x, expected in chosen:
        found = results(engine.run(x.float().numpy()))
        assert len(found) == len(expected)
        for got, want in zip(found, expected):
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize("name", HABITS)
def test_float_file_is_exact(name: str, tmp_path: Path) -> None:
    model, example, images = made(HABITS[name])
    before = snapshot(model)
    report = export_module(model, example, tmp_path / "m.bnn", numerics="float")
    if name not in CHANGES_ITSELF:
        assert snapshot(model) == before
    assert report.numerics == "float"
    assert any(op.kind == "bconv" for op in bnn.read(tmp_path / "m.bnn").ops)
    check_float(model, tmp_path / "m.bnn", images)


@pytest.mark.parametrize("name", HABITS)
def test_default_file_is_what_it_says(name: str, tmp_path: Path) -> None:
    """Integers: the engine gives the simulation's bits, and both stay near to torch."""
    model, example, _ = made(HABITS[name])
    mean, std = (0.5,) * 3, (0.25,) * 3
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (6, *example.shape[2:], 3), dtype=np.uint8)
    normal = np.ascontiguousarray(
        ((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.25)).transpose(0, 3, 1, 2)
    )
    report = export_module(model, example, tmp_path / "m.bnn", mean=mean, std=std, calibration=normal)
    assert report.numerics == "integer", report.not_integer
    check_integers(model, report, pixels, normal, example.dtype)


def check_integers(model: Any, report: Report, pixels: np.ndarray, normal: np.ndarray, dtype: torch.dtype) -> None:
    file = Path(report.output)
    found = results(Engine(file).run(pixels))
    for got, simulated in zip(found, results(numerics.simulate(bnn.read(file), pixels))):
        np.testing.assert_array_equal(got, simulated)
    with torch.no_grad():
        answers = [results(model(torch.from_numpy(x[None]).to(dtype))) for x in normal]
    for got, *wanted in zip(found, *answers):
        want = np.concatenate(wanted)
        spread = np.abs(want - want.mean(axis=0)).max()  # what tells one image from another
        assert np.abs(got - want).mean() < 0.25 * spread, (np.abs(got - want).max(), spread)


@pytest.mark.parametrize("name", HARD)
def test_exact_or_refused(name: str, tmp_path: Path) -> None:
    model, example, images = made(HARD[name])
    before = snapshot(model)
    try:
        export_module(model, example, tmp_path / "m.bnn", numerics="float")
    except ExportError:
        assert not (tmp_path / "m.bnn").exists()
    else:
        check_float(model, tmp_path / "m.bnn", images)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused(name: str, tmp_path: Path) -> None:
    model, example = make_nonsense(name)
    before = snapshot(model)
    with pytest.raises(ExportError) as caught:
        export_module(model, example, tmp_path / "m.bnn")
    message = str(caught.value).lower()
    assert [word for word in NONSENSE[name][1] if word.lower() not in message] == [], message
    assert snapshot(model) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "temporary"]
    assert temporary_files() == []


def test_training_mode_changes_nothing(tmp_path: Path) -> None:
    """The file is that of eval mode, and the module stays as it was."""
    model, example, _ = made(HABITS["sequential_only"])
    export_module(model, example, tmp_path / "eval.bnn", numerics="float")
    model.train()
    model[1].eval()
    before = snapshot(model)
    export_module(model, example, tmp_path / "train.bnn", numerics="float")
    assert snapshot(model) == before
    assert (tmp_path / "train.bnn").read_bytes() == (tmp_path / "eval.bnn").read_bytes()


def test_same_network_same_file(tmp_path: Path) -> None:
    """Nothing in an export is random, and it draws none of the caller's random numbers."""
    before = torch.get_rng_state()
    for name in ("a", "b"):
        model, example, _ = made(HABITS["React"])
        export_module(model, example, tmp_path / name)
    assert torch.equal(torch.get_rng_state(), before)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_everything_wrong_is_named_at_once_with_its_line(tmp_path: Path) -> None:
    model, example = make_nonsense("everything at once")
    with pytest.raises(ExportError) as caught:
        export_module(model, example, tmp_path / "m.bnn")
    message = str(caught.value)
    assert "nonsense.py:" in message
    assert "act1" in message
    assert "act2" in message
    assert len(caught.value.problems) == 4
