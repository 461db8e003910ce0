"""This CPU: its name, the instruction sets it has kernels for, and how fast it does the plainest work."""

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
    """Those of `FEATURES` that the system says this CPU has; none where it does not say."""
    named = _fields(cpuinfo)
    found = {*named.get("flags", "").split(), *named.get("Features", "").split()}
    return [feature for feature in FEATURES if feature in found]


def _fields(cpuinfo: str) -> dict[str, str]:
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in fields.items()}


def build_version() -> str:
    """Of the compiled module, which is that of the package unless an installation is half old."""
    return _core.__version__


def isas() -> dict[str, bool]:
    """The kernel tables of this build, the best first, and whether this CPU supports each."""
    return dict(_core.tables())


def supported_isas() -> list[str]:
    """Those that an `Engine` can take here, the best first."""
    return [isa for isa, supported in isas().items() if supported]


def chosen_isa() -> str:
    """The one that an `Engine` takes unless told otherwise. Raises ValueError if OVSW_ISA names none that it can."""
    forced = os.environ.get("OVSW_ISA", "")
    if forced and forced not in supported_isas():
        why = "is not supported by this CPU" if forced in isas() else "is not in this build"
        raise ValueError(f"OVSW_ISA={forced} {why}; {', '.join(supported_isas())} can be used here")
    return forced or supported_isas()[0]


def time_popcount(pixels: int, channels: int, words: int) -> float:
    """Seconds of plain 64-bit popcount dots of so many words, for each pixel and channel."""
    return _core.time_popcount(pixels, channels, words)


def time_copy(size: int, repeat: int) -> float:
    """Seconds in which so many bytes are read and written, by a plain copy, `repeat` times."""
    return _core.time_copy(size, repeat)
