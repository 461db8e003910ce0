"""`make faults`: replace_file, ovsw-export and ovsw-train under faults at random moments.

Killed, out of disk, memory, files or threads, hit by signals, in a folder that is read-only: a file has all of its old
content or all of the new, what fails says so in one line, and after the next run nothing is left over.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from ovsw.commands.base import command
from ovsw.export import cli as export_cli
from ovsw.nn import create
from ovsw.train import cli as train_cli
from ovsw.util.files import replace_file
from ovsw.util.text import table

from support.faults import (
    Child,
    Ended,
    fewer_files,
    less_memory,
    many_signals,
    no_processes,
    own_mounts,
    short_files,
    small_disk,
)
from support.training import arguments, assert_same, few_images

OLD = b"old content\n" * 1000


class FindingError(AssertionError):
    """A promise that was broken."""


def demand(condition: object, what: str) -> None:
    if not condition:
        raise FindingError(what)


class Job:
    """One thing to do in a folder, where it leaves `names`; `expected` is what it leaves undisturbed."""

    name: ClassVar[str]
    names: ClassVar[set[str]]

    def __init__(self, material: Path) -> None:
        self.material = material
        began = time.monotonic()
        folder = material / f"{self.name}-whole"
        folder.mkdir()
        ended = Child(partial(self.work, folder), material / "log").wait()
        demand(ended.code == 0, f"{self.name} fails without a fault: {ended.error}")
        self.seconds = time.monotonic() - began
        self.whole = folder
        self.bytes = sum(p.stat().st_size for p in folder.rglob("*"))

    def work(self, folder: Path) -> int:
        raise NotImplementedError

    def put_old(self, folder: Path) -> None:
        (folder / "file").write_bytes(OLD)

    def look(self, folder: Path) -> None:
        """Raises if something is lost or half there."""
        demand((folder / "file").exists(), "the old file is gone")
        data = (folder / "file").read_bytes()
        demand(data in (OLD, (self.whole / "file").read_bytes()), f"{len(data)} bytes are neither the old nor the new")

    def done(self, folder: Path) -> None:
        """After a run without faults: everything is right, and nothing else is there."""
        same = (folder / "file").read_bytes() == (self.whole / "file").read_bytes()
        demand(same, "the next run has another result")
        demand({p.name for p in folder.iterdir()} == {"file"}, f"left over: {[p.name for p in folder.iterdir()]}")


class Replace(Job):
    name = "replace_file"
    content = random.Random(0).randbytes(3_000_000)

    def work(self, folder: Path) -> int:
        @command("replace", "Replace a file.", lambda _: None)
        def main(_: argparse.Namespace) -> int:
            replace_file(folder / "file", self.content)
            return 0

        return main([])


class Export(Job):
    name = "ovsw-export"

    def __init__(self, material: Path) -> None:
        torch.manual_seed(0)
        torch.save(create("cResNet20_1w1a", 10).state_dict(), material / "network.pth")
        super().__init__(material)

    def work(self, folder: Path) -> int:
        source = str(self.material / "network.pth")
        quick = ["--arch", "cResNet20_1w1a", "--mean", "cifar10", "--numerics", "float", "--verify", "1"]
        return export_cli.main([source, "-o", str(folder / "file"), "--force", *quick])


class Train(Job):
    """Each try goes on with what the one before has left."""

    name = "ovsw-train"
    settings = ("data.kind=synthetic", "train.epochs=2", "train.batch=8", "train.lr=0.05", "train.warmup=1")

    def work(self, folder: Path) -> int:
        with few_images(16, 8):
            return train_cli.main(arguments(folder / "run", "--resume", settings=list(self.settings)))

    def put_old(self, folder: Path) -> None:
        pass

    def look(self, folder: Path) -> None:
        for path in (folder / "run").glob("*.pth"):
            try:
                torch.load(path, weights_only=True)
            except Exception as e:
                raise FindingError(f"{path.name} is broken: {e}") from None
        metrics = folder / "run" / "metrics.csv"
        demand(not metrics.exists() or metrics.read_text().endswith("\n"), "metrics.csv is cut short")

    def done(self, folder: Path) -> None:
        assert_same(folder / "run" / "last.pth", self.whole / "run" / "last.pth")
        rows = (folder / "run" / "metrics.csv").read_text().splitlines()
        demand(len(rows) == 3, f"metrics.csv has {len(rows)} lines")
        left = {p.name for p in (folder / "run").iterdir() if not p.name.startswith("events.out.tfevents.")}
        demand(left == {"initial.pth", "last.pth", "model_best.pth", "metrics.csv"}, f"left over: {sorted(left)}")


class Campaign:
    """Counts what came of each fault; findings are kept, and all else goes on."""

    def __init__(self, seed: int, folder: Path, mounts: bool) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.mounts = mounts
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self.findings: list[str] = []

    def kill(self, job: Job, count: int) -> None:
        """Half of them at any moment, half while a file is being replaced."""
        tries = 0
        while self._count("kill -9", job)["killed"] < count and tries < 20 * count:
            with self._place(job) as place:
                killed = 0
                while killed < 5 and self._count("kill -9", job)["killed"] < count:
                    tries += 1
                    at_a_save = tries % 2
                    seconds = self.rng.uniform(0, min(0.02, job.seconds) if at_a_save else job.seconds)
                    child = Child(partial(job.work, place), self.folder / "log")
                    ended = child.kill_after(seconds, self.rng.randint(1, 3) if at_a_save else 0)
                    if not self._judge("kill -9", job, place, ended):
                        break
                    killed += 1
                self._again("kill -9", job, place)
        demand(tries < 20 * count, f"{job.name}: ended {tries} times before it could be killed")

    def full_disk(self, job: Job, count: int) -> None:
        for _ in range(count):
            room = self.rng.randint(32_768, int(1.2 * job.bytes) + 65_536)
            if not self.mounts:
                self._limited("full disk", job, partial(short_files, room))
                continue
            with self._place(job, room) as place:
                ended = Child(partial(job.work, place), self.folder / "log").wait()
                self._judge("full disk", job, place, ended, "No space left on device")
                self.remount(f"size={10 * job.bytes + (1 << 20)}")
                self._again("full disk", job, place)

    def read_only(self, job: Job, count: int) -> None:
        if not self.mounts:
            print("read-only folders: no file system can be mounted here, left out", file=sys.stderr)
            return
        for _ in range(count):
            with self._place(job, 10 * job.bytes + (1 << 20)) as place:
                self.remount("ro")
                ended = Child(partial(job.work, place), self.folder / "log").wait()
                demand(ended.code != 0, "wrote into a read-only folder")
                self._judge("read-only folder", job, place, ended, "Read-only file system")
                self.remount("rw")
                self._again("read-only folder", job, place)

    def memory(self, job: Job, count: int) -> None:
        for _ in range(count):
            self._limited("RLIMIT_AS", job, partial(less_memory, self.rng.uniform(0, 12) ** 2))

    def open_files(self, job: Job, count: int) -> None:
        for _ in range(count):
            self._limited("RLIMIT_NOFILE", job, partial(fewer_files, self.rng.randint(0, 8)))

    def processes(self, job: Job, count: int) -> None:
        for _ in range(count):
            self._limited("RLIMIT_NPROC", job, no_processes)

    def signals(self, job: Job, count: int) -> None:
        for _ in range(count):
            seconds = self.rng.uniform(0.0005, 0.005)
            self._limited("EINTR storm", job, partial(many_signals, seconds), must_succeed=True)

    def _limited(self, fault: str, job: Job, limit: Callable[[], None], must_succeed: bool = False) -> None:
        with self._place(job) as place:
            ended = Child(partial(job.work, place), self.folder / "log", limit).wait()
            self._judge(fault, job, place, ended)
            if must_succeed and ended.code:
                self._finding(fault, job, f"failed: {ended.error}")
            self._again(fault, job, place)

    def _judge(self, fault: str, job: Job, place: Path, ended: Ended, words: str = "") -> bool:
        """Nothing lost, nothing half there, and one line for what failed. Whether it was killed."""
        counts = self._count(fault, job)
        lines = ended.error.splitlines()
        killed = ended.code == -9 and fault == "kill -9"
        counts["faults"] += 1
        counts["killed" if killed else "went through" if ended.code == 0 else "refused"] += 1
        try:
            job.look(place)
            if not killed and ended.code:
                demand(ended.code in (1, 2), f"exit code {ended.code}: {ended.error[-2000:]}")
                demand(len(lines) == 1 and ": error: " in lines[0], f"more than one line: {ended.error[-2000:]}")
                demand(words in lines[0], f"does not say '{words}': {lines[0]}")
        except AssertionError as e:
            self._finding(fault, job, str(e))
        return killed

    def _again(self, fault: str, job: Job, place: Path) -> None:
        """The next run is undisturbed: it succeeds and leaves nothing but its result."""
        ended = Child(partial(job.work, place), self.folder / "log").wait()
        try:
            demand(ended.code == 0, f"the next run fails: {ended.error[-2000:]}")
            job.done(place)
        except AssertionError as e:
            self._finding(fault, job, str(e))

    @contextmanager
    def _place(self, job: Job, room: int | None = None) -> Iterator[Path]:
        """A folder with an old file in it, on a disk of its own if `room` is given."""
        place = self.folder / "place"
        place.mkdir()
        if room is None:
            place.chmod(0o777)
            job.put_old(place)
            (place / "file").exists() and (place / "file").chmod(0o666)
            yield place
        else:
            with small_disk(place, room) as self.remount:
                job.put_old(place)
                yield place
        shutil.rmtree(place)

    def _count(self, fault: str, job: Job) -> Counter[str]:
        return self.counts.setdefault((fault, job.name), Counter())

    def _finding(self, fault: str, job: Job, what: str) -> None:
        self.findings.append(f"{fault}, {job.name}: {what}")
        print(f"FINDING {self.findings[-1]}", file=sys.stderr, flush=True)

    def report(self) -> str:
        heads = ("faults", "killed", "refused", "went through")
        rows = [(*key, *(str(counts[head]) for head in heads)) for key, counts in self.counts.items()]
        total = sum(counts["faults"] for counts in self.counts.values())
        shown = table(("fault", "in", *heads), rows, right=(2, 3, 4, 5))
        return f"{shown}\n{total} faults, {len(self.findings)} findings"


JOBS = (Replace, Export, Train)
FAULTS = ("kill", "full_disk", "memory", "open_files", "processes", "signals", "read_only")


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m campaigns.faults", description=(__doc__ or "").split("\n\n")[1])
    p.add_argument("--count", type=int, default=50, help="of each fault in each job (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    p.add_argument("--jobs", nargs="+", choices=[job.name for job in JOBS], default=[job.name for job in JOBS])
    p.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    args = p.parse_args(argv)
    torch.set_num_threads(1)  # children are forked, without its threads
    mounts = own_mounts()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        campaign = Campaign(args.seed, Path(folder), mounts)
        for job in (job(Path(folder)) for job in JOBS if job.name in args.jobs):
            for fault in args.faults:
                getattr(campaign, fault)(job, args.count)
                print(f"{job.name}, {fault.replace('_', ' ')}: done", file=sys.stderr, flush=True)
    print(campaign.report())
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
