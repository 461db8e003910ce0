"""Other engines to compare with, each used only if it is installed: one module per engine, one `Peer` per precision."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from ovsw.bench.peers import executorch, larq, ncnn, onnxruntime, openvino, torch
from ovsw.bench.peers.base import Peer, Runner, child, images, one_line
from ovsw.commands.base import UsageError

__all__ = ["PEERS", "REFERENCE", "Peer", "Runner", "by_name", "obstacles", "select", "try_out"]

PEERS: list[Peer] = [*onnxruntime.PEERS, *openvino.PEERS, *ncnn.PEERS, *torch.PEERS]
PEERS += [*executorch.PEERS, *larq.PEERS]
REFERENCE = PEERS[0]  # the others must give its logits
SMALL = "cresnet20"
_MARK = "obstacle: "
_TRY = "import sys; from ovsw.bench.peers import try_out; try_out(sys.argv[1:])"


def by_name(name: str) -> Peer:
    return next(p for p in PEERS if p.name == name)


def select(names: str | None) -> list[Peer]:
    """The peers of a list such as "ncnn,openvino-int8": an engine alone means all its precisions; None means all."""
    if names is None:
        return PEERS
    chosen: list[Peer] = []
    for name in filter(None, names.split(",")):
        named = [p for p in PEERS if name in (p.name, p.engine)]
        if not named and name != "none":
            known = ", ".join(dict.fromkeys(p.engine for p in PEERS))
            raise UsageError(
                f"--peers: unknown peer '{name}', known are {known}; --list-peers also lists their precisions"
            )
        chosen += [p for p in named if p not in chosen]
    return chosen


def obstacles(peers: list[Peer]) -> dict[str, str]:
    """The reasons why installed peers cannot be used, by name.

    Each engine runs a small network in its own process: an illegal instruction must not end the others.
    """
    engines: dict[str, list[str]] = {}
    for peer in peers:
        peer.prepare_environment()
        engines.setdefault(peer.engine, []).append(peer.name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = {name: why for tried in pool.map(_tried, engines.values()) for name, why in tried.items()}
    return {peer.name: why for peer in peers if (why := faults[peer.name]) is not None}


def _tried(names: list[str]) -> dict[str, str | None]:
    """What is wrong with each peer; after a crash a new process goes on with the next one."""
    faults: dict[str, str | None] = {}
    while len(faults) < len(names):
        left = names[len(faults) :]
        said, death = child([sys.executable, "-c", _TRY, *left])
        whys = [json.loads(line[len(_MARK) :]) for line in said.splitlines() if line.startswith(_MARK)]
        faults.update(zip(left, whys))
        if len(whys) < len(left):
            faults[left[len(whys)]] = death or "ends without a message"
    return faults


def try_out(names: list[str]) -> None:
    """The program of those processes: prints a line for each peer, with what is wrong as JSON."""
    for name in names:
        peer = by_name(name)
        try:
            why = peer.unable()
            if why is None and SMALL in peer.networks and not peer.slow:
                peer.ready(SMALL)(images(SMALL, 1, seed=0)[0])
        except Exception as e:  # whatever an engine may raise
            why = one_line(e)
        print(f"\n{_MARK}{json.dumps(why)}", flush=True)
