"""The conditions of a measurement: the machine, its clock, governor, load and temperature, and all versions.

They come from files on Linux, `vcgencmd` on a Raspberry Pi, and `sysctl` and `pmset` on macOS; unknown ones are None.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ovsw
from ovsw import cpu

Ask = Callable[[list[str]], str]

_PI_NOW = {0: "under-voltage", 1: "its clock is capped", 2: "it is throttled", 3: "it is at its soft temperature limit"}
_SINCE_BOOT = 16  # the same bits of vcgencmd get_throttled, shifted by this
_NEAR = 5.0  # degrees below a trip point


def ask(command: list[str]) -> str:
    """The output of a command; "" if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass
class Conditions:
    """The conditions that do not change during a run; the versions of engines are in their rows."""

    date: str
    cpu: str
    machine: str
    cores: int | None
    system: str
    clock_max_mhz: int | None
    governor: str | None
    python: str
    numpy: str
    ovsw: str
    commit: str | None
    tables: list[str]


@dataclass
class State:
    """The conditions that change. `throttled` has the reasons, `throttle_count` the number of times since boot."""

    clock_mhz: int | None
    load: float | None
    temperature_c: float | None
    trip_c: float | None
    throttled: list[str]
    throttle_count: int | None


@dataclass
class Context(Conditions):
    """All conditions, with the settings of the run. `isa` is our kernel table, None before anything is timed."""

    threads: int
    batch: int
    pinned: list[int]
    repeat: int
    min_time: float
    isa: str | None
    start: State
    end: State | None
    warnings: list[str]
    interrupted: bool = False


class Machine:
    """Reads the conditions; tests replace `root`, `ask` and `system`."""

    def __init__(self, root: Path = Path("/"), ask: Ask = ask, system: str = platform.system()) -> None:
        self.root = root
        self.ask = ask
        self.mac = system == "Darwin"
        self.cpu0 = root / "sys/devices/system/cpu/cpu0/cpufreq"

    def conditions(self) -> Conditions:
        return Conditions(
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            cpu=self.cpu(),
            machine=platform.machine(),
            cores=os.cpu_count(),
            system=platform.platform(),
            clock_max_mhz=_mega(self._number(self.cpu0 / "cpuinfo_max_freq"), 1e3),
            governor=self._text(self.cpu0 / "scaling_governor"),
            python=platform.python_version(),
            numpy=np.__version__,
            ovsw=ovsw.__version__,
            commit=commit(Path(ovsw.__file__).parent),
            tables=cpu.supported_isas(),
        )

    def state(self) -> State:
        temperature, trip = self.temperature()
        load = round(os.getloadavg()[0], 2)
        return State(self.clock(), load, temperature, trip, self.throttled(), self.throttle_count())

    def cpu(self) -> str:
        named = self.ask(["sysctl", "-n", "machdep.cpu.brand_string"]) if self.mac else ""
        return named or cpu.name(str(self.root / "proc/cpuinfo"))

    def clock(self) -> int | None:
        if self.mac:
            return _mega(_float(self.ask(["sysctl", "-n", "hw.cpufrequency"])), 1e6)
        current = _mega(self._number(self.cpu0 / "scaling_cur_freq"), 1e3)
        listed = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", self._text(self.root / "proc/cpuinfo") or "", re.MULTILINE)
        return current or (round(float(listed[1])) if listed else None)

    def temperature(self) -> tuple[float | None, float | None]:
        """The temperature of the hottest zone, preferably of the CPU, in degrees, and where it starts to throttle."""
        zones = []
        for zone in sorted((self.root / "sys/class/thermal").glob("thermal_zone*")):
            value = self._number(zone / "temp")
            if value is None:
                continue
            trips = []
            for kind in zone.glob("trip_point_*_type"):
                point = self._number(zone / kind.name.replace("_type", "_temp"))
                if self._text(kind) in ("passive", "hot", "critical") and point is not None and point > 0:
                    trips.append(point / 1e3)
            named = re.search("cpu|pkg|soc|core", self._text(zone / "type") or "", re.IGNORECASE) is not None
            zones.append((named, value / 1e3, min(trips, default=None)))
        if zones:
            _, hottest, trip = max(zones, key=lambda zone: zone[:2])
            return hottest, trip
        measured = re.search(r"temp=([0-9.]+)", self._vcgencmd("measure_temp"))
        return (float(measured[1]) if measured else None), None

    def throttled(self) -> list[str]:
        """The reasons for a throttled CPU, now or since boot, as a Raspberry Pi or a Mac reports them."""
        bits = re.search(r"throttled=(0x[0-9a-fA-F]+)", self._vcgencmd("get_throttled"))
        word = int(bits[1], 16) if bits else 0
        reasons = [text for bit, text in _PI_NOW.items() if word >> bit & 1]
        past = [text for bit, text in _PI_NOW.items() if word >> (bit + _SINCE_BOOT) & 1 and not word >> bit & 1]
        reasons += [f"{text} (since boot, not now)" for text in past]
        limit = re.search(r"CPU_Speed_Limit\s*=\s*([0-9]+)", self.ask(["pmset", "-g", "therm"]) if self.mac else "")
        if limit and int(limit[1]) < 100:
            reasons.append(f"its speed is limited to {limit[1]} %")
        return reasons

    def throttle_count(self) -> int | None:
        """How often x86 cores have been throttled since boot."""
        files = (self.root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        counts = [n for n in map(self._number, files) if n is not None]
        return int(sum(counts)) if counts else None

    def _vcgencmd(self, what: str) -> str:
        return "" if self.mac else self.ask(["vcgencmd", what])

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def _number(self, path: Path) -> float | None:
        return _float(self._text(path) or "")


def warnings(conditions: Conditions, start: State, end: State | None = None) -> list[str]:
    """Reasons to doubt the figures, a line each."""
    doubts = []
    if conditions.governor == "powersave":
        doubts.append("the governor is powersave, which may hold the clock down: cpupower frequency-set -g performance")
    if start.load is not None and start.load > 0.5 * (conditions.cores or 1):
        doubts.append(f"the load was {start.load} at the start: something else is running")
    states = [start] if end is None else [start, end]
    doubts += dict.fromkeys(f"the CPU is held back: {text}" for state in states for text in state.throttled)
    hottest = max(states, key=lambda state: state.temperature_c or 0.0)
    degrees, trip = hottest.temperature_c or 0.0, hottest.trip_c
    if trip is not None and degrees > trip - _NEAR:
        doubts.append(f"{degrees:.0f} degrees, it throttles at {trip:.0f}")
    if end is not None and (end.throttle_count or 0) > (start.throttle_count or 0):
        doubts.append("the CPU was throttled during the run")
    return doubts


def commit(folder: Path) -> str | None:
    """The commit of the checkout that this folder is part of; None if it is not tracked there."""
    git = ["git", "-C", str(folder)]
    if not ask([*git, "ls-files", "--error-unmatch", "__init__.py"]):
        return None
    return ask([*git, "describe", "--always", "--dirty", "--exclude=*"]) or None


def head(c: Context) -> str:
    """The lines above the tables."""
    machine = [f"{c.cpu}, {c.cores} cores"]
    clock = f"{c.start.clock_mhz} MHz" + (f" of {c.clock_max_mhz}" if c.clock_max_mhz else "")
    machine += [clock] if c.start.clock_mhz else []
    machine += [f"governor {c.governor}"] if c.governor else []
    machine += [f"{c.start.temperature_c:.0f} degrees"] if c.start.temperature_c is not None else []
    machine += [f"load {c.start.load}"] if c.start.load is not None else []
    version = f"ovsw {c.ovsw}" + (f" ({c.commit})" if c.commit else "")
    per_image = "" if c.batch == 1 else ", times are per image"
    pinned = f", pinned to CPU {' '.join(map(str, c.pinned))}" if c.pinned else ""
    rounds = f"at least {c.repeat} interleaved rounds and {c.min_time:g} s each"
    lines = [
        ", ".join(machine),
        f"{c.threads} thread(s){pinned}, batch {c.batch}{per_image}, {rounds}; kernels {c.isa}",
        f"{version}, python {c.python}, numpy {c.numpy}, {c.system}, {c.date}",
    ]
    doubts = [*c.warnings, *["interrupted: this is what had been measured by then"] * c.interrupted]
    return "\n".join([*lines, *(f"warning: {line}" for line in doubts)])


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _mega(value: float | None, unit: float) -> int | None:
    return None if value is None else round(value / unit)
