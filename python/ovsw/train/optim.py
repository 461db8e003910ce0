"""Optimisers and the learning-rate schedule of the recipes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ovsw.train.recipe import TrainConfig


class LARS(torch.optim.Optimizer):
    """Layer-wise scaling as in the paper's Algorithm 2: the scale multiplies the step, not what momentum gathers.

    Vectors (batch norm, biases), which the algorithm does not speak of and which may start at 0, take plain SGD steps.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float, eta: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                decay, step = group["weight_decay"], torch.tensor(group["lr"], dtype=p.dtype, device=p.device)
                if p.ndim > 1:
                    weight_norm, grad_norm = torch.linalg.vector_norm(p), torch.linalg.vector_norm(p.grad)
                    step = step * group["eta"] * weight_norm / (grad_norm + decay * weight_norm).clamp(min=1e-12)
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                velocity = self.state[p]["momentum_buffer"]
                velocity.mul_(group["momentum"]).add_(p.grad).add_(p, alpha=decay)
                p.sub_(velocity * step)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Two groups as in the released code: vectors (batch norm, biases, scales), then everything else.

    Where weight decay spares more than vectors, all that is spared is in the first.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    decay, dims = config.weight_decay, max(2, config.decay_dims)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim < dims], "weight_decay": decay if config.decay_dims < 2 else 0.0},
        {"params": [p for p in parameters if p.ndim >= dims], "weight_decay": decay},
    ]
    if config.optimizer == "sgd":
        fused = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)  # one call for all of them
        return torch.optim.SGD(groups, config.lr, momentum=config.momentum, fused=fused)
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, config.lr)
    if config.optimizer == "lars":
        return LARS(groups, config.lr, config.momentum, config.weight_decay, config.lars_eta)
    raise ValueError(f"train.optimizer is '{config.optimizer}'; known are sgd, adam, lars")


def learning_rate(config: TrainConfig, epoch: float) -> float:
    """The rate after `epoch` epochs: linear warm-up, then a cosine down to 1e-5, or ReActNet's line down to 0.

    "cosine" and "linear" are set once per epoch, "smooth" is the cosine set at every step.
    """
    if config.schedule not in ("cosine", "linear", "smooth"):
        raise ValueError(f"train.schedule is '{config.schedule}'; known are cosine, linear, smooth")
    if config.schedule != "smooth":
        epoch = int(epoch)
    if epoch < config.warmup:
        return config.lr * (epoch + (config.schedule != "smooth")) / config.warmup
    steps = max(1, config.epochs - config.warmup)
    if config.schedule == "linear":
        return config.lr * (config.epochs - 1 - epoch) / steps
    progress = (epoch - config.warmup) / steps
    return 0.5 * (1 + math.cos(math.pi * progress)) * config.lr + 1e-5
