"""Float networks computed by torchvision's keys, random ReActNet checkpoints."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from support import oracle

REACT18, R20 = "ReActResNet18_1w1a", "cResNet20_1w1a"
TOLERANCE = 1e-4


@functools.cache
def state_of(arch: str, size: int, **options: Any) -> oracle.State:
    return oracle.random_state(arch, 10, np.random.default_rng(size), size=size, **options)


def float_logits(state: dict[str, Tensor], x: Tensor, counts: tuple[int, ...]) -> Tensor:
    """torchvision's ResNet18/34 in eval mode, by its keys."""

    def norm(x: Tensor, key: str) -> Tensor:
        parts = ("weight", "bias", "running_mean", "running_var")
        gamma, beta, mean, var = (state[f"{key}.{part}"][:, None, None] for part in parts)
        return (x - mean) / (var + 1e-5).sqrt() * gamma + beta

    x = norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").clamp(min=0)
    x = F.max_pool2d(x, 3, 2, 1)
    for key in (f"layer{n}.{i}" for n, count in enumerate(counts, 1) for i in range(count)):
        stride = 2 if key in ("layer2.0", "layer3.0", "layer4.0") else 1
        y = norm(F.conv2d(x, state[f"{key}.conv1.weight"], stride=stride, padding=1), f"{key}.bn1").clamp(min=0)
        y = norm(F.conv2d(y, state[f"{key}.conv2.weight"], padding=1), f"{key}.bn2")
        if stride == 2:
            x = norm(F.conv2d(x, state[f"{key}.downsample.0.weight"], stride=2), f"{key}.downsample.1")
        x = (x + y).clamp(min=0)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def randomised(model: torch.nn.Module) -> None:
    """Batch norms with weights of both signs, and statistics of one batch of noise."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.momentum = 1.0
                m.weight.copy_(torch.rand_like(m.weight) * 1.5 - 0.2)
                m.bias.normal_(0, 0.3)
        model.train()(torch.randn(8, 3, 32, 32))
    model.eval()
