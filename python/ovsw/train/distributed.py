"""Several processes (torchrun): who is who, and batch norm over the whole batch on any device."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    def share(self, batch: Tensor) -> Tensor:
        """This rank's equal part of a batch; a remainder that cannot be shared out is dropped."""
        part = len(batch) // self.size
        return batch[self.rank * part : (self.rank + 1) * part]

    def total(self, *values: float) -> list[float]:
        """Sums over all ranks."""
        if self.size == 1:
            return list(values)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        return [float(s) for s in sums]

    def gather(self, value: Tensor) -> list[Tensor]:
        """Every rank's value, in order."""
        if self.size == 1:
            return [value]
        values: list[Tensor] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def join_world(device: str) -> World:
    """The processes that torchrun has started; alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return World(dist.get_rank(), size)


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch norm with the statistics of all ranks together. Unlike torch's own it also works on a CPU."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() not in (2, 4):
            raise ValueError(f"expected a 2-D or 4-D input, got {input.dim()}-D")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self._check_input_dim(input)
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(input)
        axes = [d for d in range(input.dim()) if d != 1]
        count = torch.full((1,), float(input.numel() // input.shape[1]), dtype=input.dtype, device=input.device)
        sums = all_reduce(torch.cat([input.sum(axes), count]))  # type: ignore[no-untyped-call]
        n = sums[-1].detach()
        mean = sums[:-1] / n
        shape = (1, -1) + (1,) * (input.dim() - 2)
        centred = input - mean.view(shape)
        var = all_reduce(centred.square().sum(axes)) / n  # type: ignore[no-untyped-call]
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_((var * n / (n - 1)).to(self.running_var.dtype), self.momentum)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        scaled = centred * torch.rsqrt(var + self.eps).view(shape)
        return scaled * self.weight.view(shape) + self.bias.view(shape)


def sync_batch_norms(model: nn.Module) -> None:
    """Turns every batch norm of a model into a `SyncBatchNorm`, in place; keys and values stay."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.__class__ = SyncBatchNorm  # type: ignore[assignment]
