"""Writes the float ResNets of ovsw.bench.float_nets as files for ncnn, with an input, for the emulated machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ovsw.bench.peers.ncnn_files import to_ncnn


def write(network: str, folder: Path) -> Path:
    """`network`.param, .bin and an input .npy in `folder`; gives back their common stem."""
    from ovsw.bench.float_nets import float_resnet

    stem = folder / network
    param, data = to_ncnn(float_resnet(network))
    stem.with_suffix(".param").write_text(param)
    stem.with_suffix(".bin").write_bytes(data)
    np.save(stem.with_suffix(".npy"), np.random.default_rng(0).normal(size=(3, 224, 224)).astype(np.float32))
    return stem
