"""`ovsw-bench`: the OvSW paper's deployment table for this machine, with our engine and the other installed ones."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ovsw import cpu
from ovsw import format as bnn
from ovsw.bench import compare, context, emulate, families, memory, micro, profile, scaling, training
from ovsw.bench.context import Context
from ovsw.bench.entries import Entry, Ours, load_ours, load_peers, matching_network
from ovsw.bench.measure import Latency, interleave
from ovsw.bench.peers import REFERENCE, Peer, obstacles, select
from ovsw.bench.peers.base import one_line
from ovsw.bench.random_nets import STEMS, random_resnet
from ovsw.bench.result import OURS, Measurement, Network, Result, Skipped, as_json
from ovsw.bench.table import show
from ovsw.bench.topology import IMAGENET, NETWORKS, Topology
from ovsw.commands.base import INTERRUPTED, UsageError, add_engine, add_memory_limit, command, memory_limit, whole
from ovsw.util.files import replace_file
from ovsw.util.progress import Progress
from ovsw.util.text import markdown_table, table, visible

REPEAT, MIN_TIME = 40, 0.3
QUICK_REPEAT, QUICK_MIN_TIME = 6, 0.0
MAX_BATCH = 1024


def options(p: argparse.ArgumentParser) -> None:
    what = p.add_argument_group("what is timed")
    what.add_argument(
        "--arch", metavar="A,B", default=",".join(IMAGENET), help=f"of {', '.join(NETWORKS)} (default: %(default)s)"
    )
    what.add_argument(
        "--stem", choices=STEMS, default=STEMS[0], help="weights of our first convolution (default: %(default)s)"
    )
    what.add_argument("--model", metavar="FILE.bnn", nargs="+", default=[], help="also time these files")
    add_memory_limit(what)
    what.add_argument("--image", metavar="FILE", help="run on this image (default: noise)")
    what.add_argument(
        "--peers", metavar="A,B", help="only these engines, such as ncnn,openvino-int8, or none (default: all)"
    )
    what.add_argument("--list-peers", action="store_true", help="list the other engines and which of them work here")
    how = p.add_argument_group("how")
    add_engine(how)
    how.add_argument(
        "--batch", metavar="N", type=whole(1, MAX_BATCH), default=1, help="images per call; times are per image"
    )
    how.add_argument("--repeat", metavar="N", type=whole(1), help=f"least number of rounds (default: {REPEAT})")
    how.add_argument(
        "--min-time", metavar="S", type=float, help=f"shortest time per engine, in seconds (default: {MIN_TIME})"
    )
    how.add_argument("--pin", metavar="CPU", type=int, nargs="?", const=-1, help="pin to this CPU (default: the last)")
    how.add_argument("--quick", action="store_true", help=f"{QUICK_REPEAT} rounds, without int8, torch and memory")
    more = p.add_argument_group("what else is measured")
    toggle = argparse.BooleanOptionalAction
    more.add_argument("--memory", action=toggle, default=None, help="peak memory (default: unless --quick)")
    more.add_argument(
        "--profile",
        action="store_true",
        help="time each step of each network, and compare it with the best speed of its kernels",
    )
    more.add_argument("--scaling", action="store_true", help="time each network over threads and batch sizes")
    more.add_argument(
        "--emulate", metavar="CPU", help="instead of timing, count instructions on an ARM CPU such as cortex-a76"
    )
    out = p.add_argument_group("results")
    out.add_argument("--no-paper", action="store_true", help="leave out the paper's figures")
    out.add_argument("--json", metavar="FILE.json", help="write everything as JSON")
    out.add_argument(
        "--markdown", metavar="FILE.md", nargs="?", const="-", help="write the tables as Markdown (default: to stdout)"
    )
    out.add_argument("--plot", metavar="FILE.png", help="write the table as a picture")
    out.add_argument("--html", metavar="FILE.html", help="write one page with everything")


@command(
    "ovsw-bench",
    "Time binary networks in ovsw against float and int8 networks in the other engines that are installed.",
    options,
    examples=("--threads 1", "--quick --model my.bnn", "--json a.json --html report.html", "compare a.json b.json"),
    others={"compare": compare.main, "families": families.main, "micro": micro.main, "training": training.main},
)
def main(args: argparse.Namespace) -> int:
    networks = _checked(args)
    peers = select(args.peers)
    if args.list_peers:
        print(list_peers(peers))
        return 0
    if args.emulate:
        emulated = emulate.emulate(args.emulate, networks, args.stem)
        print(emulate.show(emulated))
        if args.json:
            replace_file(args.json, as_json({"emulated": emulated}))
        return 0
    run = BenchRun(args, networks)
    run.all(peers)
    if run.result.rows:
        _write(run.result, args)
    else:
        print(f"{args.prog}: nothing was measured", file=sys.stderr)
    return INTERRUPTED if run.result.context.interrupted else 0


class BenchRun:
    """One run of the command; `result` always holds what has been measured so far."""

    def __init__(self, args: argparse.Namespace, networks: list[str]) -> None:
        cpu.let_idle_threads_sleep()  # those of one engine must not spin while another is timed
        self.args = args
        self.networks = networks
        self.repeat = args.repeat or (QUICK_REPEAT if args.quick else REPEAT)
        self.min_time = args.min_time if args.min_time is not None else QUICK_MIN_TIME if args.quick else MIN_TIME
        self.progress = Progress("ovsw-bench", in_logs=False)
        self.machine = context.Machine()
        self.reference: Peer | None = None
        pinned = _pin(args.pin, args.threads) if args.pin is not None else []
        settings: dict[str, Any] = {"threads": args.threads, "batch": args.batch, "pinned": pinned, "isa": None}
        settings.update(repeat=self.repeat, min_time=self.min_time)
        conditions, start = self.machine.conditions(), self.machine.state()
        warnings = context.warnings(conditions, start)
        self.result = Result(Context(**vars(conditions), **settings, start=start, end=None, warnings=warnings))

    def all(self, peers: list[Peer]) -> None:
        """Measures everything, or until Ctrl-C."""
        measured = self.result.context
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._measure(peers, Path(folder))
        except KeyboardInterrupt:
            measured.interrupted = True
        finally:
            self.progress.clear()
        measured.end = self.machine.state()
        measured.warnings = context.warnings(measured, measured.start, measured.end)

    def _measure(self, peers: list[Peer], folder: Path) -> None:
        groups = self._groups(folder)
        usable = self._usable(peers)
        for network, group in groups.items():
            with tempfile.TemporaryDirectory() as peer_files:
                self._network(network, group, usable if network in NETWORKS else [], Path(peer_files))
        isa, threads, rounds = self.args.isa, self.args.threads, self.repeat
        for one in chain.from_iterable(groups.values()):
            name, data, image = one.entry.network, one.entry.files[0].read_bytes(), one.pixels[0]
            if self.args.profile:
                self._extra("profile", name, partial(profile.profile, data, isa, threads, image, rounds))
            if self.args.scaling:
                self._extra("scaling", name, partial(scaling.scaling, data, isa, image, rounds, name))

    def _extra(self, part: str, network: str, measure: Callable[[], object]) -> None:
        """An error here must not lose what has been measured before."""
        self.progress(f"{network}: {part}")
        try:
            getattr(self.result, part)[network] = measure()
        except Exception as e:
            self.progress.say(f"--{part}, {network}: {one_line(e)}")

    def _groups(self, folder: Path) -> dict[str, list[Ours]]:
        """Our entries by network, which are timed in the same rounds; a user's file joins the network that it is."""
        args = self.args
        how = (args.threads, args.isa, args.image, args.batch)
        groups: dict[str, list[Ours]] = {}
        for network in self.networks:
            path = folder / f"{network}.bnn"
            bnn.write(random_resnet(network, numerics="integer", stem=args.stem), path)
            one = load_ours(network, path, *how, None)
            one.entry.check += f", {args.stem} stem"
            groups[network] = [one]
        for name in args.model:
            like = matching_network(Path(name))
            like = like if like in self.networks else None
            groups.setdefault(like or name, []).append(load_ours(name, Path(name), *how, like, memory_limit(args)))
        return groups

    def _usable(self, peers: list[Peer]) -> list[Peer]:
        """The peers that work here; prints a line about each of the others."""
        why: dict[str, str] = {p.name: m for p in peers if (m := p.missing()) is not None}
        if why:
            self.progress.say(f"not installed: {', '.join(why)}")
        if self.args.quick and self.args.peers is None:
            long = [p.name for p in peers if not p.quick and p.name not in why]
            why.update(dict.fromkeys(long, "left out by --quick"))
        self.progress("trying the engines")
        tried = [p for p in peers if p.name not in why]
        compared = REFERENCE.missing() is None and any(p.comparable for p in tried)
        faults = obstacles(list(dict.fromkeys([*tried, *[REFERENCE] * compared])))
        self.reference = REFERENCE if compared and REFERENCE.name not in faults else None
        why.update({p.name: faults[p.name] for p in tried if p.name in faults})
        for p in tried:
            if p.name in why:
                self.progress.say(f"{p.name}: {why[p.name]}")
        self.result.skipped += [Skipped(p.name, None, why[p.name]) for p in peers if p.name in why]
        return [p for p in peers if p.name not in why]

    def _network(self, network: str, group: list[Ours], peers: list[Peer], folder: Path) -> None:
        entries, shown = [one.entry for one in group], group[0].engine.input.normalised(group[0].pixels)
        self.result.context.isa = entries[0].isa
        own = network not in NETWORKS
        parameters = None if own else Topology(NETWORKS[network]).parameters
        self.result.networks[network] = Network(parameters, own)
        if peers:
            timed, skipped = load_peers(network, peers, self.reference, self.args.threads, folder, shown, self.progress)
            entries += timed
            self.result.skipped += skipped
        self._time(network, entries, parameters)

    def _time(self, network: str, entries: list[Entry], parameters: int | None) -> None:
        times: dict[str, list[float]] = {}
        calls = {e.name: e.call for e in entries}
        rows: list[Measurement] = []
        title = f"{network}: timing {len(calls)} engines,"
        try:
            broken = interleave(calls, times, self.repeat, self.min_time, lambda share: self.progress(title, share, 1))
            for entry in (e for e in entries if e.name in broken):
                peer, why = f"{entry.engine}-{entry.precision}", one_line(broken[entry.name])
                self.result.skipped.append(Skipped(peer, network, why))
                self.progress.say(f"{peer}, {network}: {why}")
        finally:
            timed = [e for e in entries if times.get(e.name)]
            ms = {e.name: Latency.of([1e3 * t / e.batch for t in times[e.name]]) for e in timed}
            base = next((ms[e.name] for e in timed if e.engine == OURS), None)
            rows += [e.row(parameters, ms[e.name], base) for e in timed]
            self.result.rows += rows
        if self.args.memory is True or (self.args.memory is None and not self.args.quick):
            self.result.memory = self.result.memory or {"baseline_mb": memory.baseline_mb()}
            for i, (entry, row) in enumerate(zip(timed, rows)):
                self.progress(f"{network}: memory of {entry.engine} {entry.precision}", i, len(rows))
                row.memory_mb = memory.peak_mb(entry)


def list_peers(peers: list[Peer]) -> str:
    """The output of `--list-peers`."""
    missing = {p.name: p.missing() for p in peers}
    why = obstacles([p for p in peers if missing[p.name] is None])
    rows = [
        (p.name, p.precision, "-" if missing[p.name] else p.version() or "-", missing[p.name] or why.get(p.name, "yes"))
        for p in peers
    ]
    return table(("peer", "precision", "version", "usable"), rows)


def _checked(args: argparse.Namespace) -> list[str]:
    """The networks to time. Raises UsageError for whatever would otherwise fail after all the measuring."""
    networks = list(dict.fromkeys(filter(None, args.arch.split(","))))
    unknown = [n for n in networks if n not in NETWORKS]
    if unknown:
        raise UsageError(f"--arch: unknown network '{unknown[0]}', known are {', '.join(NETWORKS)}")
    if not networks and not args.model:
        raise UsageError("--arch names no network and there is no --model")
    if args.min_time is not None and not 0.0 <= args.min_time <= 3600.0:
        raise UsageError(f"--min-time is {args.min_time:g}, expected 0 to 3600 seconds")
    for option, ending in (("json", ".json"), ("markdown", ".md"), ("plot", ".png"), ("html", ".html")):
        name = getattr(args, option)
        if name is None or (option == "markdown" and name == "-"):
            continue
        path = Path(name)
        if path.suffix != ending:
            raise UsageError(f"--{option}: {name} does not end in {ending}")
        if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"--{option}: cannot write {name}: its folder does not exist or is not writable")
    if (args.plot or args.html) and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot and --html need matplotlib: pip install 'ovsw[bench]'")
    if len(set(args.model)) < len(args.model) or set(args.model) & set(networks):
        raise UsageError("--model: a file is named twice, or like a network of --arch")
    return networks


def _pin(cpu: int, threads: int) -> list[int]:
    """Pins this process and its children to as many CPUs as there are threads; empty if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        print("--pin: not supported on this system, ignored", file=sys.stderr)
        return []
    allowed = sorted(os.sched_getaffinity(0))
    chosen = allowed[-threads:] if cpu < 0 else [c for c in allowed if c >= cpu][:threads]
    if cpu >= 0 and chosen[:1] != [cpu]:
        raise UsageError(f"--pin: CPU {cpu} is not one of {', '.join(map(str, allowed))}")
    os.sched_setaffinity(0, chosen)
    return chosen


def _write(result: Result, args: argparse.Namespace) -> None:
    """Tables to stdout, everything to the files that were asked for."""
    paper = not args.no_paper
    head = context.head(result.context)
    marked = f"```\n{head}\n```\n\n{show(result, paper, markdown_table)}"
    print(marked if args.markdown == "-" else f"{head}\n\n{show(result, paper)}")
    for network, steps in result.profile.items():
        print(f"\n{visible(network)}: {profile.show(steps)}")
    for points in result.scaling.values():
        print(f"\n{scaling.show(points)}")
    if args.json:
        replace_file(args.json, as_json(result))
    if args.markdown not in (None, "-"):
        replace_file(args.markdown, f"{marked}\n".encode())
    if args.plot:
        from ovsw.bench.plot import table_plot

        picture = io.BytesIO()
        table_plot(result, picture, paper)
        replace_file(args.plot, picture.getvalue())
    if args.html:
        from ovsw.bench.report import html

        replace_file(args.html, html(result, paper).encode())
