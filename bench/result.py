"""The result of `ovsw-bench`, from which its tables, pictures, page and JSON are made."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from ovsw.bench.context import Context
from ovsw.bench.measure import Latency, Spread
from ovsw.bench.profile import NetworkProfile
from ovsw.bench.scaling import Scaling

OURS = "ovsw"


@dataclass
class Measurement:
    """One engine at one precision with one network.

    A user's own file is `like` the network that it is compared with. `isa` is our instruction set, `ratio` the latency
    over ours.
    """

    network: str
    wa: str
    engine: str
    precision: str
    version: str
    threads: int
    batch: int
    size_mb: float | None
    file_mb: float
    check: str
    latency_ms: Latency
    ratio: Spread | None
    like: str | None = None
    isa: str | None = None
    memory_mb: float | None = None


@dataclass
class Network:
    """`parameters` are the float network's; a user's `own` file that is like no other has none."""

    parameters: int | None
    own: bool


@dataclass
class Skipped:
    """A peer that was not timed, with one network or, if that is None, with any."""

    peer: str
    network: str | None
    why: str


@dataclass
class Result:
    """A whole run. Profiles and scalings are by network, `memory` has what python with numpy alone takes."""

    context: Context
    networks: dict[str, Network] = field(default_factory=dict)
    rows: list[Measurement] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    memory: dict[str, float | None] = field(default_factory=dict)
    profile: dict[str, NetworkProfile] = field(default_factory=dict)
    scaling: dict[str, Scaling] = field(default_factory=dict)


def as_json(value: Any) -> bytes:
    """The text of a --json file."""
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def plain(value: Any) -> Any:
    """Dataclasses as dicts; None and empty dicts are left out where they are the default."""
    if dataclasses.is_dataclass(value):
        values = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: plain(v) for f, v in values if v or (f.default is not None and f.default_factory is not dict)}
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
