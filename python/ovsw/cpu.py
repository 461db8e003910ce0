"""This CPU: its name, its cores, and the kernel tables that it can run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ovsw import _core

FEATURES = (
    *("popcnt", "avx2", "fma", "bmi2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512vbmi"),
    *("avx512_bitalg", "avx512_vpopcntdq", "avx512_vnni", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "sve", "sve2"),
)


def name(cpuinfo: str = "/proc/cpuinfo") -> str:
    named = _fields(cpuinfo)
    if not named:
        return platform.processor() or platform.machine()
    return named.get("model name") or named.get("Model") or f"{platform.machine()} part {named.get('CPU part', '?')}"


def features(cpuinfo: str = "/proc/cpuinfo") -> list[str]:
    """Those of `FEATURES` that the system reports; none where it reports nothing."""
    fields = _fields(cpuinfo)
    listed = {*fields.get("flags", "").split(), *fields.get("Features", "").split()}
    return [feature for feature in FEATURES if feature in listed]


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fields(cpuinfo: str) -> dict[str, str]:
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in fields.items()}


def build_version() -> str:
    """The version of the compiled module, which differs from the package's if only one of them was updated."""
    return _core.__version__


def isas() -> dict[str, bool]:
    """The kernel tables of this build, fastest first, and whether this CPU supports each."""
    return dict(_core.tables())


def supported_isas() -> list[str]:
    """The tables that an `Engine` can use on this CPU, fastest first."""
    return [isa for isa, supported in isas().items() if supported]


def forced_isa() -> str:
    """The table that the environment variable OVSW_ISA names; "" if it is not set."""
    return os.environ.get("OVSW_ISA", "")


def chosen_isa() -> str:
    """The table that an `Engine` uses by default. Raises ValueError if OVSW_ISA names one that cannot be used here."""
    forced = forced_isa()
    if forced and forced not in supported_isas():
        why = "is not supported by this CPU" if forced in isas() else "is not in this build"
        raise ValueError(f"OVSW_ISA={forced} {why}; available here: {', '.join(supported_isas())}")
    return forced or supported_isas()[0]


def let_idle_threads_sleep() -> None:
    """Idle OpenMP threads, such as torch's, sleep instead of spinning on cores that our own threads need.

    Call it before torch is imported: OpenMP reads the variables when it is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
