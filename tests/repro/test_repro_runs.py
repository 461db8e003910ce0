"""A small plan from end to end: trained in children, killed and taken up again, tables judged by metrics.csv alone."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ovsw.nn import create
from ovsw.repro import pool
from ovsw.repro.cli import main
from ovsw.repro.pool import Job, PoolLimits, run_jobs
from ovsw.repro.runs import locked, read_metrics

from support import HANGS
from support.training import tiny_cifar

pytestmark = pytest.mark.slow

PLAN = """
[scales.cpu]
about = "two epochs of a few images"
recipe = "table1-cresnet20"
set = ["train.epochs=2", "train.batch=32", "train.warmup=1"]
seeds = [46, 47]

[experiments.sweep]
title = "A sweep"
comparable = "nothing"
different = "everything"
figures = ["dots", "sweep", "epochs", "histogram"]
x = "ovsw.lam"
x_label = "lambda"
reference = "vanilla"
layers.cpu = ["layer3.2.conv2", "layer1.0.conv1"]
cpu = [
  { label = "vanilla", set = ["ovsw.ags=false", "ovsw.sad=false"], paper = "65.23", never = [54.07] },
  { label = "OvSW", paper = "69.77", never = [2.03] },
]

[experiments.rest]
title = "The loss around one run, and a run that diverges"
comparable = "nothing"
different = "everything"
figures = ["landscape", "sweep"]
x = "train.lr"
one_seed = true
cpu = [
  { label = "OvSW", series = "OvSW" },
  { label = "too fast", series = "OvSW", set = ["train.lr=1e38"] },
]

[experiments.taught]
title = "A teacher, and two steps"
about = "one epoch"
comparable = "nothing"
different = "everything"
figures = ["dots"]
unscaled = true
one_seed = true
set = ["data.held_out=16", "train.epochs=1", "train.batch=32", "train.warmup=0"]
cpu = [
  { label = "teacher", set = ["train.teacher=float_cResNet20", "train.teacher_views=2"] },
  { label = "two steps", set = ["train.second_step=true"], first = ["network.binary_weights=false", "ovsw.ags=false"] },
]
"""
OVSW = "cresnet20-epochs2-batch32-warmup1-s46"


def arguments(folder: Path, output: str) -> list[str]:
    where = ["--plan", str(folder / "plan.toml"), "--data", str(folder / "data"), "-o", str(folder / output)]
    return [*where, "--teacher", str(folder / "teacher.pth"), "--jobs", "1", "--grid", "2", "--images", "8"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plan, data and `out`, in which everything was run."""
    folder = tmp_path_factory.mktemp("repro")
    (folder / "plan.toml").write_text(PLAN)
    tiny_cifar(folder / "data", 16)
    torch.save(create("float_cResNet20").state_dict(), folder / "teacher.pth")
    assert main(["all", *arguments(folder, "out")]) == 0
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def test_runs_leave_what_they_should(finished: Path) -> None:
    runs = sorted(p.parent.name for p in (finished / "out" / "runs").glob("*/config.json"))
    assert len(runs) == 8  # OvSW of seed 46 once
    assert OVSW in runs
    for name in runs:
        config = json.loads((finished / "out" / "runs" / name / "config.json").read_text())
        assert config["recipe"]["train"]["batch"] == 32
        assert name.endswith(f"-s{config['seed']}")
        assert f"--seed {config['seed']}" in config["command"]


def test_the_second_step_starts_from_the_first(finished: Path) -> None:
    (first,) = (finished / "out" / "runs").glob("*-binary_weights-off-*")
    (second,) = (finished / "out" / "runs").glob("*-second_step-on-*")
    end, start = (
        torch.load(run / name, weights_only=True)["state_dict"]["layer1.0.conv1.weight"]
        for run, name in ((first, "last.pth"), (second, "initial.pth"))
    )
    assert torch.equal(end, start)
    assert [row["row"] for row in rows(finished / "out" / "taught" / "table.csv")] == ["teacher", "two steps"]


def test_runs_share_the_outputs_of_the_teacher(finished: Path) -> None:
    (cache,) = (finished / "out" / "runs" / "teacher").iterdir()
    assert np.load(cache).shape == (64, 2, 10)  # 80 training images, 16 of them held out


def test_reports_come_as_soon_as_runs_are_done(finished: Path) -> None:
    """The first table is there before the last run has ended, and a landscape, which computes, is made after it."""
    (last,) = (finished / "out" / "runs").glob("*-second_step-on-*")
    ended = (last / "last.pth").stat().st_mtime_ns
    assert (finished / "out" / "sweep" / "table.md").stat().st_mtime_ns < ended
    assert (finished / "out" / "rest" / "table.md").stat().st_mtime_ns > ended


def test_a_table_that_cannot_be_written_ends_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished / "other" / "sweep"
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text('{"scale": "paper"}')
    assert main(["all", *arguments(finished, "other"), "--runs", str(finished / "out" / "runs")]) == 1
    assert "sweep: " in (error := capsys.readouterr().err)
    assert "holds results of scale paper" in error
    assert (finished / "other" / "taught" / "table.md").is_file()


def test_a_limit_of_time(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *arguments(finished, "short"), "--hours", "1e-9"]) == 0
    assert "stopped after 1e-09 hours; the same command continues" in capsys.readouterr().err
    assert not list((finished / "short").rglob("*.pth"))


def test_table_is_that_of_the_metrics(finished: Path) -> None:
    table = {row["row"]: row for row in rows(finished / "out" / "sweep" / "table.csv")}
    slugs = {"OvSW": OVSW[:-4], "vanilla": OVSW[:-4] + "-ags-off-sad-off"}
    for label, slug in slugs.items():
        found = [rows(finished / "out" / "runs" / f"{slug}-s{seed}" / "metrics.csv") for seed in (46, 47)]
        assert [len(f) for f in found] == [2, 2]
        last = np.array([float(f[-1]["test_acc1"]) for f in found])
        best = np.array([max(float(r["test_acc1"]) for r in f) for f in found])
        never = np.array([float(f[-1]["never_flipped"]) for f in found])
        row = table[label]
        assert (row["n"], row["epochs"], row["diverged"]) == ("2", "2", "0")
        for name, values in (("top1", last), ("best", best), ("never_flipped", never)):
            assert float(row[f"{name}_mean"]) == pytest.approx(values.mean())
            assert float(row[f"{name}_sd"]) == pytest.approx(values.std(ddof=1))
        shown = f"| {label} | {last.mean():.2f} ± {last.std(ddof=1):.2f} |"
        assert shown in (finished / "out" / "sweep" / "table.md").read_text()
    assert "not comparable" in (finished / "out" / "sweep" / "table.md").read_text()


def test_one_run_has_no_deviation_and_a_diverged_one_no_accuracy(finished: Path) -> None:
    one, fast = rows(finished / "out" / "rest" / "table.csv")
    assert one["n"] == "1"
    assert one["top1_sd"] == ""
    assert (fast["n"], fast["diverged"], fast["top1_mean"]) == ("0", "1", "")
    text = (finished / "out" / "rest" / "table.md").read_text()
    assert "| too fast | - |" in text
    assert "0 (+1 diverged)" in text


def test_histograms_count_the_weights(finished: Path) -> None:
    """Against the checkpoints, weight by weight."""
    run = finished / "out" / "runs" / OVSW
    start = torch.load(run / "initial.pth", weights_only=True)["state_dict"]["layer3.2.conv2.weight"]
    ever = torch.load(run / "last.pth", weights_only=True)["ovsw"]["flip_history"]["layer3.2.conv2.weight"]
    kept = finished / "out" / "sweep" / "runs" / OVSW
    bins = [row for row in rows(kept / "histogram.csv") if row["layer"] == "layer3.2.conv2"]
    edges = [float(row["from"]) for row in bins] + [float(bins[-1]["to"])]
    expected = np.zeros((2, len(bins)), int)
    for weight, flipped in zip(start.flatten().tolist(), ever.flatten().tolist()):
        i = min(max(sum(weight >= edge for edge in edges) - 1, 0), len(bins) - 1)
        expected[0, i] += 1
        expected[1, i] += not flipped
    assert [int(row["all"]) for row in bins] == expected[0].tolist()
    assert [int(row["never"]) for row in bins] == expected[1].tolist()
    flips = {row["layer"]: row for row in rows(kept / "flips.csv")}
    assert float(flips["layer3.2.conv2"]["never_flipped"]) == pytest.approx(1 - ever.float().mean().item())
    assert len(flips) == 18


def test_redrawn_without_the_runs(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of the light parts gives the same tables and pictures, and holds no weights."""
    for name in ("sweep", "rest"):
        copy = tmp_path / name
        shutil.copytree(finished / "out" / name, copy)
        assert not list(copy.rglob("*.pth"))
        assert sum(p.stat().st_size for p in (copy / "runs").rglob("*") if p.is_file()) < 200_000
        made = [p for p in copy.iterdir() if p.suffix in (".md", ".csv", ".png")]
        before = {p.name: p.read_bytes() for p in made}
        for path in made:
            path.unlink()
        assert main(["--redraw", str(copy)]) == 0
        assert {p.name: p.read_bytes() for p in copy.iterdir() if p.name in before} == before
    assert {"dots.png", "sweep.png", "epochs.png", "histogram.png"} <= {p.name for p in (tmp_path / "sweep").iterdir()}
    with Image.open(tmp_path / "rest" / "landscape.png") as image:
        assert min(image.size) > 400
    capsys.readouterr()
    assert main(["table3", "--redraw", str(tmp_path / "sweep")]) == 1
    assert "holds sweep, not table3" in capsys.readouterr().err


def test_a_second_call_trains_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in (finished / "out" / "runs").rglob("*.pth")}
    assert main(["all", *arguments(finished, "out")]) == 0
    assert {p: p.stat().st_mtime_ns for p in (finished / "out" / "runs").rglob("*.pth")} == before
    assert "epochs to train" not in capsys.readouterr().err


def test_metrics_cut_short_are_completed(finished: Path, tmp_path: Path) -> None:
    """Killed between the last checkpoint and metrics.csv: nothing is left to train, but the row must come back."""
    shutil.copytree(finished / "out" / "runs", tmp_path / "out" / "runs")
    run = tmp_path / "out" / "runs" / OVSW
    whole = read_metrics(run)
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert main(["rest", *arguments(finished, "x"), "--runs", str(tmp_path / "out" / "runs"), "--seeds", "46"]) == 0
    assert read_metrics(run) == whole


def children(folder: Path) -> list[int]:
    """Processes whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def wait_for(what: str, condition: Callable[[], object]) -> None:
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, f"waited {HANGS} s for {what}"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see the children")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)])
def test_kill_and_resume(number: signal.Signals, code: int, finished: Path, tmp_path: Path) -> None:
    """kill -9 and SIGTERM end the children too; the same command goes on, to the metrics of an unbroken run."""
    for name in ("plan.toml", "teacher.pth"):
        shutil.copy(finished / name, tmp_path)
    (tmp_path / "data").symlink_to(finished / "data")
    command = ["sweep", *arguments(tmp_path, "out"), "--seeds", "46"]
    process = subprocess.Popen([sys.executable, "-m", "ovsw", "repro", *command], stderr=subprocess.DEVNULL)
    vanilla = tmp_path / "out" / "runs" / f"{OVSW[:-4]}-ags-off-sad-off-s46"
    wait_for("the first epoch", lambda: read_metrics(vanilla) or process.poll() is not None)
    process.send_signal(number)
    assert process.wait() == code
    wait_for("the end of the children", lambda: not children(tmp_path))
    for name in (vanilla.name, OVSW):  # the second run is taken from the fixture if it has not begun
        if not (tmp_path / "out" / "runs" / name).exists():
            shutil.copytree(finished / "out" / "runs" / name, tmp_path / "out" / "runs" / name)
    assert main(command) == 0
    for name in (vanilla.name, OVSW):
        a, b = (read_metrics(folder / "out" / "runs" / name) for folder in (finished, tmp_path))
        assert [{**row, "seconds": 0} for row in a] == [{**row, "seconds": 0} for row in b]


def test_all_leaves_out_what_has_no_data(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = (
        PLAN
        + """
[experiments.elsewhere]
title = "Another data set"
comparable = "nothing"
different = "everything"
cpu = [{ label = "OvSW", set = ["data.kind=fashion-mnist"] }]
"""
    )
    (tmp_path / "plan.toml").write_text(other)
    for name in ("data", "teacher.pth"):
        (tmp_path / name).symlink_to(finished / name)
    options = [*arguments(tmp_path, "out"), "--runs", str(finished / "out" / "runs")]
    assert main(["all", *options]) == 1
    assert "elsewhere was left out: " in capsys.readouterr().err
    assert (tmp_path / "out" / "sweep" / "table.md").is_file()
    assert main(["elsewhere", *options]) == 1
    assert "holds no t10k-images-idx3-ubyte" in capsys.readouterr().err


def test_one_command_at_a_time(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(finished / "out" / "runs"):
        assert main(["rest", *arguments(finished, "out")]) == 1
    assert "another ovsw-repro is running there" in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / OVSW
    shutil.copytree(finished / "out" / "runs" / OVSW, run)
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["train"]["lr"] = 0.2
    (run / "config.json").write_text(json.dumps(config))
    assert main(["rest", *arguments(finished, "y"), "--runs", str(tmp_path)]) == 1
    assert f"{run}: holds a run of another recipe" in capsys.readouterr().err


def test_a_failed_job_says_why(tmp_path: Path) -> None:
    reasons: dict[str, str] = {}
    jobs = [
        Job("bad", "ovsw.commands.info", (str(tmp_path / "x.bnn"),), tmp_path / "log"),
        Job("none", "ovsw.none", (), tmp_path / "n"),
    ]
    run_jobs(jobs, PoolLimits(jobs=2), lambda job, reason: reasons.update({job.name: reason}))
    assert reasons["bad"].startswith("ovsw-info: error: ")
    assert "x.bnn: no such file" in reasons["bad"]
    assert reasons["none"] == "ModuleNotFoundError: No module named 'ovsw.none'"


def test_a_second_step_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others start before it."""
    events: list[str] = []

    class Child:
        stdin = None

        def __init__(self, job: Job, limits: PoolLimits) -> None:
            self.looks = 2
            events.append(f"start {job.name}")

        def poll(self) -> int | None:
            self.looks -= 1
            return None if self.looks else 0

    monkeypatch.setattr(pool, "_start", Child)
    jobs = [Job("a", "", (), tmp_path), Job("b", "", (), tmp_path, after="a"), Job("c", "", (), tmp_path, after="x")]
    run_jobs(jobs, PoolLimits(jobs=2), lambda job, reason: events.append(f"end {job.name}"))
    assert events == ["start a", "start c", "end a", "end c", "start b", "end b"]


def test_table4_is_that_of_the_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--bench", "--quick --peers none --arch cresnet20", "-o", str(tmp_path)]
    assert main(["table4", *options]) == 0
    (ours,) = (row for row in rows(tmp_path / "table4" / "table.csv") if row["engine"] == "ovsw")
    measured = json.loads((tmp_path / "table4" / "bench.json").read_text())["rows"][0]["latency_ms"]
    assert float(ours["latency_ms"]) == measured["median"]
    paper = [row for row in rows(tmp_path / "table4" / "table.csv") if "paper" in row["engine"]]
    assert ("resnet18", "1/1", "7.97") in [(row["network"], row["wa"], row["latency_ms"]) for row in paper]
    assert "| Network | W/A |" in (tmp_path / "table4" / "table.md").read_text()
    assert main(["table4", "--bench", "--arch nothing", "-o", str(tmp_path / "b")]) == 1
    assert "ovsw-bench ended with exit code 2" in capsys.readouterr().err
