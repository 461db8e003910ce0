"""What becomes of a random module (`support.random_modules`): its files, and how they were judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ovsw import Engine
from ovsw.export import ExportError, VerifyError, export_module

from support.random_modules import RandomModule, pictures

NEAR = 1e-4
REFUSALS = {  # by their words: a sign that is always the same, or that has three levels
    "not binary": "refused",
    "is constant": "refused",
    "is larger than the padded map": "refused",
    "torch.sign(0) is 0": "three levels",
}


def outcome(seed: int, folder: Path) -> str:
    """How the network of a seed was exported: "integer", "float", "refused" or "three levels".

    "ties" is a float file of a network with many values exactly at a threshold that integers cannot tell.

    Raises AssertionError where the float file is not what torch computes in float64, or the integer file was wrong.
    """
    model = RandomModule(seed).eval()
    target, channels = folder / "m.bnn", model.shape[0]
    settings = {"mean": (model.mean,) * channels, "std": (model.std,) * channels, "force": True}
    try:
        export_module(model, (1, *model.shape), target, numerics="float", **settings)  # type: ignore[arg-type]
        check_float(model, target, seed)
        report = export_module(model, (1, *model.shape), target, **settings)  # type: ignore[arg-type]
    except (ExportError, VerifyError) as e:
        known = [kind for words, kind in REFUSALS.items() if words in str(e)]
        if not known:
            raise AssertionError(f"seed {seed}: {e}") from None
        return known[0]
    reason = report.not_integer or ""
    if "exactly at the threshold" in reason:
        return "ties"
    assert "not compute" not in reason, f"seed {seed}: {reason}"
    assert "differs" not in reason, f"seed {seed}: {reason}"
    return report.numerics


def check_float(model: RandomModule, file: Path, seed: int) -> None:
    """On every image, if torch itself is sure: float32 and float64 agree on all of them.

    They do not where sums are compared for equality that are equal but for the order of their terms.
    """
    pixels = pictures(model.shape, seed, 6)
    x = ((pixels / np.float32(255) - np.float32(model.mean)) / np.float32(model.std)).transpose(0, 3, 1, 2)
    engine = Engine(file)
    wide, narrow = (np.stack([_torch(model, image, dtype) for image in x]) for dtype in (torch.float64, torch.float32))
    largest = max(1.0, float(np.abs(wide).max()))
    if np.abs(wide - narrow).max() < NEAR * largest:
        found = np.stack([_flat(engine.run(image[None])) for image in pixels])
        error = float(np.abs(found - wide).max()) / largest
        assert error < NEAR, f"seed {seed}: the float file is off by {error:.2g}"


def _torch(model: RandomModule, x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.no_grad():
            found = model.to(dtype)(torch.from_numpy(np.ascontiguousarray(x[None])).to(dtype))
        return _flat(tuple(t.numpy() for t in found) if isinstance(found, tuple) else found.numpy())
    finally:
        torch.set_default_dtype(before)
        model.float()


def _flat(found: object) -> np.ndarray:
    parts = found if isinstance(found, tuple) else (found,)
    return np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])
