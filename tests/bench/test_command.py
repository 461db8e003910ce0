"""`ovsw-bench` as a whole: files it writes, peers that break, Ctrl-C, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw.bench import cli
from ovsw.bench.peers import REFERENCE, Peer, Runner
from ovsw.bench.random_nets import random_resnet

from support import HANGS
from support.results import NET, PHOTO, cells, needs_onnx, schema


@needs_onnx
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.md"
    args = ["--arch", NET, "--peers", "onnxruntime,larq", "--quick", "--json", str(out), "--markdown", str(page)]
    assert cli.main([*args, "--isa", "portable"]) == 0
    shown = capsys.readouterr()
    made = json.loads(out.read_text())
    schema(made, cli.QUICK_REPEAT)
    assert {(r["engine"], r["precision"], r["wa"], r["batch"]) for r in made["rows"]} == {
        ("ovsw", "1-bit", "1/1", 1),
        ("onnxruntime", "fp32", "32/32", 1),
        ("onnxruntime", "int8", "8/8", 1),
    }
    ours = made["rows"][0]
    assert (ours["isa"], ours["ratio"]["median"]) == ("portable", 1.0)
    assert ours["file_mb"] == len(bnn.to_bytes(random_resnet(NET, numerics="integer", stem="int8"))) / 1e6
    assert ours["check"] == "integer, int8 stem"
    assert [s["peer"] for s in made["skipped"]] == ["larq-1-bit"]
    assert shown.err == "not installed: larq-1-bit\n"
    assert [c[1] for c in cells(shown.out, "cResNet20")][:4] == ["32/32", "16/16", "8/8", "1/1"]
    assert "kernels portable" in shown.out
    assert "| cResNet20 | 1/1 |" in page.read_text()
    assert cli.main(["compare", str(out), str(out)]) == 0
    assert "0 of 3 rows changed" in capsys.readouterr().out


def test_command_with_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is compared with the network that it has the shape of, the other stands alone."""
    paths = [str(tmp_path / name) for name in ("mine.bnn", "small.bnn", "out.json", "page.html", "table.png")]
    bnn.write(random_resnet(NET, seed=3, numerics="float"), paths[0])
    bnn.write(random_resnet("resnet18", num_classes=10, size=32), paths[1])
    args = ["--arch", NET, "--peers", "none", "--quick", "--memory", "--batch", "2", "--image", PHOTO]
    args += ["--repeat", "2", "--profile", "--scaling", "--html", paths[3], "--plot", paths[4]]
    assert cli.main([*args, "--model", *paths[:2], "--json", paths[2]]) == 0
    made = json.loads(Path(paths[2]).read_text())
    schema(made, 2)
    assert [(r["network"], r.get("like"), r["batch"]) for r in made["rows"]] == [
        (NET, None, 2),
        (paths[0], NET, 2),
        (paths[1], None, 2),
    ]
    assert all(r["memory_mb"] > made["memory"]["baseline_mb"] for r in made["rows"])
    shown = capsys.readouterr().out
    for part in ("profile", "scaling"):
        assert list(made[part]) == [NET, *paths[:2]]
    for network, steps in ((NET, "layer3.2.conv2"), (paths[1], "layer4.1.conv2")):
        assert f"\n{network}: " in shown
        assert steps in [s["name"] for s in made["profile"][network]["steps"]]
        assert f"Where the time goes: {network}" in Path(paths[3]).read_text()
    assert Path(paths[4]).read_bytes()[:4] == b"\x89PNG"
    assert "times are per image" in shown
    for path in paths[:2]:
        assert cells(shown, path)[0][1:3] == ["1/1", f"{Path(path).stat().st_size / 1e6:.2f}"]


class Fake(Peer):
    """Gives the reference's logits, then breaks or is interrupted at its n-th call."""

    def __init__(self, engine: str, stop: int, error: type[BaseException]) -> None:
        super().__init__(engine, "fp32")
        self.stop = stop
        self.error = error

    def version(self) -> str:
        return "1"

    def load(self, files: list[Path], threads: int) -> Runner:
        run, calls = REFERENCE.load(files, threads), 0

        def call(batch: np.ndarray) -> np.ndarray:
            nonlocal calls
            calls += 1
            if calls == self.stop:
                raise self.error("no more")
            return run(batch)

        return call


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peer]]:
    """Peers in the place of the real ones."""
    chosen: list[Peer] = []
    monkeypatch.setattr(cli, "select", lambda names: chosen)
    monkeypatch.setattr(cli, "obstacles", lambda peers: {})
    return iter([chosen])


@needs_onnx
def test_a_peer_that_breaks_later_costs_a_line(
    fakes: Iterator[list[Peer]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(fakes).extend([Fake("breaks", 10, RuntimeError), Fake("holds", -1, RuntimeError)])
    out = tmp_path / "out.json"
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 0
    made = json.loads(out.read_text())
    schema(made, cli.QUICK_REPEAT)
    assert [r["engine"] for r in made["rows"]] == ["ovsw", "holds"]
    assert made["skipped"] == [{"peer": "breaks-fp32", "network": NET, "why": "RuntimeError: no more"}]
    assert capsys.readouterr().err == f"breaks-fp32, {NET}: RuntimeError: no more\n"


class Zeros(Peer):
    def version(self) -> str:
        return "1"

    def load(self, files: list[Path], threads: int) -> Runner:
        return lambda batch: np.zeros((len(batch), 10), np.float32)


@needs_onnx
def test_a_judge_that_dies_is_not_loaded(
    fakes: Iterator[list[Peer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it would take everything with it."""
    next(fakes).append(Zeros("zeros", "fp32"))
    out = tmp_path / "out.json"
    loaded: list[str] = []
    monkeypatch.setattr(cli, "obstacles", lambda peers: dict.fromkeys([REFERENCE.name], "dies of SIGILL"))
    monkeypatch.setattr(REFERENCE, "load", lambda files, threads: loaded.append("judge"))
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["rows"][1]["check"] == "unchecked: no onnxruntime-fp32"
    assert loaded == []


@needs_onnx
@pytest.mark.parametrize(("stop", "rounds"), [(10, 2), (2, None)])
def test_ctrl_c(
    stop: int,
    rounds: int | None,
    fakes: Iterator[list[Peer]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the third round of the second engine: what is there is shown and kept. While loading: nothing is."""
    next(fakes).append(Fake("holds", stop, KeyboardInterrupt))  # 4 checks, a warm-up, 2 calls per round
    out = tmp_path / "out.json"
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 130
    shown = capsys.readouterr()
    if rounds is None:
        assert not out.exists()
        assert shown.err == "ovsw-bench: nothing was measured\n"
        return
    made = json.loads(out.read_text())
    assert {r["engine"]: len(r["latency_ms"]["samples"]) for r in made["rows"]} == {"ovsw": rounds + 1, "holds": rounds}
    assert made["context"]["interrupted"]
    assert "interrupted" in shown.out
    assert f"holds fp32 ({rounds} rounds only)" in shown.out


def test_ctrl_c_of_the_installed_command(tmp_path: Path) -> None:
    """A real signal. Whoever starts the tests in the background may have had it ignored, which children inherit."""
    out = tmp_path / "out.json"
    args = ["--arch", NET, "--peers", "none", "--min-time", "600", "--json", str(out)]
    code = f"""
import os, signal, sys
from ovsw.bench import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
def tell(self, what, done=0, total=0):
    if total == 1 and done > 1e-6:
        os.kill(os.getpid(), signal.SIGINT)
cli.Progress.__call__ = tell
sys.exit(cli.main({args!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "interrupted" in done.stdout
    assert json.loads(out.read_text())["rows"]


def test_list_peers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVSW_LARQ_PYTHON", raising=False)
    assert cli.main(["--list-peers", "--peers", "larq,ncnn-fp32"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["larq-1-bit", "ncnn-fp32"]
    assert "OVSW_LARQ_PYTHON" in lines[0]


def test_pin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 2, 3, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda who, cpus: pinned.append(cpus), raising=False)
    assert cli._pin(-1, 1) == [5]
    assert cli._pin(2, 2) == [2, 3]
    assert pinned == [[5], [2, 3]]
    with pytest.raises(ValueError, match="CPU 1 is not one of 0, 2, 3, 5"):
        cli._pin(1, 1)
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cli._pin(0, 1) == []
    assert len(capsys.readouterr().err.splitlines()) == 1
