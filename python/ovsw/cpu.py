"""This CPU: its name, the instruction sets it has kernels for, and how fast it does the plainest work."""

from __future__ import annotations

import platform
from pathlib import Path

from ovsw import _core


def name(cpuinfo: str = "/proc/cpuinfo") -> str:
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    return named.get("model name") or named.get("Model") or f"{platform.machine()} part {named.get('CPU part', '?')}"


def isas() -> dict[str, bool]:
    """The kernel tables of this build, the best first, and whether this CPU supports each."""
    return dict(_core.tables())


def supported_isas() -> list[str]:
    """Those that an `Engine` can take here, the best first."""
    return [isa for isa, supported in isas().items() if supported]


def time_popcount(pixels: int, channels: int, words: int) -> float:
    """Seconds of plain 64-bit popcount dots of so many words, for each pixel and channel."""
    return _core.time_popcount(pixels, channels, words)


def time_copy(size: int, repeat: int) -> float:
    """Seconds in which so many bytes are read and written, by a plain copy, `repeat` times."""
    return _core.time_copy(size, repeat)
