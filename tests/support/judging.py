"""The judge of foreign networks: torch itself, where rounding decides no sign; and what an export may not change."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

NEAR = 2e-6  # of the largest magnitude: float32 may be wrong on which side of a jump such a value lies


class Jumps(TorchDispatchMode):
    """Notes how far every value is from the point where the operation that reads it jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.distances: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1].rstrip("_")
        if name in ("sign", "sgn", "signbit", "heaviside", "ceil", "abs"):
            self.distances.append(args[0].clone())
        elif name == "copysign":
            self.distances.append(args[1].clone())
        elif name in ("gt", "ge", "lt", "le"):
            self.distances.append(args[0] - args[1])
        elif name == "round":
            self.distances.append(args[0] - args[0].floor() - 0.5)
        return func(*args, **(kwargs or {}))


def results(y: Any) -> list[np.ndarray]:
    """One array per output."""
    return [np.asarray(part) for part in (y if isinstance(y, (tuple, list)) else (y,))]


def judged(model: Callable[[Tensor], Any], images: list[Tensor]) -> list[tuple[Tensor, list[np.ndarray]]]:
    """The images of which no value is near to a jump, and torch's answers.

    A number that is the same for all images comes from the weights: no rounding moves those. Exact zeros come from
    ReLUs and padding, and no rounding makes them anything else.
    """
    answers, noted = [], []
    for x in images:
        with torch.no_grad(), Jumps() as jumps:
            answers.append(model(x.clone()))
        noted.append(jumps.distances)
    chosen = []
    for x, answer, distances in zip(images, answers, noted):
        margin = 1.0
        for i, d in enumerate(distances):
            if d.is_floating_point() and not all(torch.equal(d, other[i]) for other in noted):
                size = d.abs()
                margin = min(margin, float(size.where(size > 0, torch.inf).min() / size.max()))
        if margin > NEAR:
            chosen.append((x, results(answer)))
    return chosen


def temporary_files() -> list[Path]:
    """Without the folder that torch makes for its compiler."""
    return sorted(p for p in Path(tempfile.gettempdir()).iterdir() if not p.name.startswith("torchinductor"))


def snapshot(model: Any) -> Any:
    """What an exporter could change: bits of tensors, modes, hooks, attributes; torch's own state; temporary files."""
    state: list[Any] = [
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        temporary_files(),
    ]
    if isinstance(model, nn.Module):
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            bits = 0 if tensor.is_meta else zlib.crc32(tensor.detach().contiguous().numpy().tobytes())
            state.append((name, tensor.dtype, tensor.requires_grad, tensor.grad, bits))
        for name, module in model.named_modules():
            hooks = [len(v) for k, v in vars(module).items() if k.endswith("_hooks") and isinstance(v, dict)]
            state.append((name, module.training, hooks, sorted(vars(module))))
    return state
