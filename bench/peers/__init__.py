"""Other engines to compare with, each used only if it is installed: one module per engine, one `Peer` per precision."""

from __future__ import annotations

import sys

from ovsw.bench.peers import larq, ncnn, onnxruntime, openvino, torch
from ovsw.bench.peers.base import Peer, Runner, death, images

__all__ = ["PEERS", "REFERENCE", "Peer", "Runner", "crash", "select", "try_out"]

PEERS: list[Peer] = [*onnxruntime.PEERS, *openvino.PEERS, *ncnn.PEERS, *torch.PEERS, *larq.PEERS]
REFERENCE = PEERS[0]  # judges the others
SMALL = "cresnet20"


def select(names: str | None) -> list[Peer]:
    """The peers of a list such as "ncnn,openvino-int8": an engine alone means all its precisions; None means all."""
    if names is None:
        return PEERS
    chosen: list[Peer] = []
    for name in filter(None, names.split(",")):
        found = [p for p in PEERS if name in (p.name, p.engine)]
        if not found and name != "none":
            known = ", ".join(dict.fromkeys(p.engine for p in PEERS))
            raise ValueError(f"--peers: unknown peer '{name}', known are {known} and, with a precision, --list-peers")
        chosen += [p for p in found if p not in chosen]
    return chosen


def crash(peer: Peer) -> str | None:
    """None if the peer lives through a small network in a process of its own; else how it dies.

    An engine that meets an instruction that this machine does not have must not take the others with it.
    """
    if SMALL not in peer.networks:
        return None
    return death([sys.executable, "-c", f"from ovsw.bench.peers import try_out; try_out({peer.name!r})"])


def try_out(name: str) -> None:
    """What `crash` runs; exceptions are no concern of it, the main process will meet them too."""
    (peer,) = (p for p in PEERS if p.name == name)
    peer.load(SMALL, 1)(images(SMALL, 1, seed=0)[0])
