"""`ovsw doctor`: what it finds, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import ovsw
from ovsw import Engine, cpu, zoo
from ovsw.commands import doctor

from support import ROOT, TABLES

X86 = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 popcnt avx512f unheard_of\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd evtstrm asimddp\nCPU part\t: 0xd0b\n"


def examined(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, object]:
    assert doctor.main(["--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_all_is_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVSW_ISA", raising=False)
    monkeypatch.setenv("OVSW_WORD", "a\nb")
    found = examined(capsys, 0)
    assert found["problems"] == []
    assert found["ovsw"] == ovsw.__version__
    assert found["platform"] == platform.platform()
    assert found["packages"]["numpy"] == np.__version__ == version("numpy")  # type: ignore[index]
    assert found["isa"] == TABLES[0] == zoo.load().isa
    assert found["environment"]["OVSW_WORD"] == "a\nb"  # type: ignore[index]
    tables = found["tables"]
    assert isinstance(tables, list)
    assert [t["name"] for t in tables] == list(cpu.isas())
    assert [t["name"] for t in tables if t["works"]] == TABLES
    assert [t["name"] for t in tables if t["chosen"]] == TABLES[:1]
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert text.endswith("\nall is well\n")
    assert "OVSW_WORD=a\\nb (not read: OVSW_WORD" in text


def test_a_table_that_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One bit of one logit: found, named, and another table advised if there is one."""
    run = Engine.run

    def wrong(self: Engine, image: object) -> object:
        result = run(self, image)  # type: ignore[arg-type]
        if self.isa == TABLES[0] and result.ndim == 2:
            result.view(np.uint32)[37, 3] ^= 1
        return result

    monkeypatch.setattr(Engine, "run", wrong)
    found = examined(capsys, 1)
    (problem,) = found["problems"]  # type: ignore[misc, attr-defined]
    assert problem["what"].startswith(f"{TABLES[0]}: {zoo.DEFAULT}: its logits")
    wanted = f"set OVSW_ISA={TABLES[1]}, which works" if len(TABLES) > 1 else "--force-reinstall"
    assert wanted in problem["do"]
    assert [t["works"] for t in found["tables"] if t["supported"]] == [False, *[True] * (len(TABLES) - 1)]  # type: ignore[attr-defined]
    assert doctor.main([]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_threads_that_are_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, image: run(self, image) + (self.threads == 2))
    found = examined(capsys, 1)
    assert len(found["problems"]) == len(TABLES)  # type: ignore[arg-type]
    assert "on two threads differ from those on one" in found["problems"][0]["what"]  # type: ignore[index]


def test_a_table_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OVSW_ISA", "abacus")
    found = examined(capsys, 1)
    (problem,) = found["problems"]  # type: ignore[misc, attr-defined]
    assert problem["what"].startswith("OVSW_ISA=abacus is not in this build; ")
    assert problem["do"] == "unset OVSW_ISA"
    assert found["isa"] is None


def test_half_an_installation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cpu, "build_version", lambda: "0.0.7")
    (problem,) = examined(capsys, 1)["problems"]  # type: ignore[misc, attr-defined]
    assert problem == {
        "what": "the compiled module is of version 0.0.7",
        "do": "pip install --force-reinstall ovsw",
    }


def test_numpy_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('libopenblas.so: not\\nthere')")
    command = [sys.executable, "-m", "ovsw", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem: the engine cannot be loaded: ImportError: libopenblas.so: not\\nthere\n" in done.stdout
    assert platform.platform() in done.stdout


def test_features(tmp_path: Path) -> None:
    for text, expected in ((X86, ["popcnt", "avx2", "avx512f"]), (ARM, ["asimd", "asimddp"]), ("", [])):
        (tmp_path / "cpuinfo").write_text(text)
        assert cpu.features(str(tmp_path / "cpuinfo")) == expected
    assert cpu.features(str(tmp_path / "none")) == []


def test_info_knows_what_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for forced in ("", *TABLES):
        monkeypatch.setenv("OVSW_ISA", forced)
        assert cpu.chosen_isa() == (forced or TABLES[0]) == zoo.load().isa
    monkeypatch.setattr(cpu, "isas", lambda: {"best": False, "portable": True})
    for forced, why in (("best", "is not supported by this CPU"), ("x", "is not in this build")):
        monkeypatch.setenv("OVSW_ISA", forced)
        with pytest.raises(ValueError, match=f"OVSW_ISA={forced} {why}; available here: portable"):
            cpu.chosen_isa()
