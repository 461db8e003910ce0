"""The way into csrc/train: binary units for training on a CPU, several times as fast as torch's own operators.

A unit is `hardtanh(norm(conv(x)) + residual)`, or the convolution alone. `unit` gives None for whatever the native
kernels do not take (another device or type, evaluation, wide maps, hooks, a sign of 0): the caller then computes the
same with torch. OVSW_NATIVE=0 in the environment switches them off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

try:
    from ovsw import _train
except ImportError:  # built without it
    _train = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from ovsw.nn.binary import BinaryConv2d

_WINDOW = ((3, 3), (1, 1))  # size and padding
_INFINITY = float("inf")


class _State:
    """The kernels in use, or None."""

    kernels: Any = None


def use(isa: str | None) -> None:
    """Takes the kernels of an instruction set, "" for the best of this CPU, None for torch's own operators."""
    _State.kernels = None if isa is None or _train is None else _train.Kernels(isa)


use(None if os.environ.get("OVSW_NATIVE") == "0" else os.environ.get("OVSW_ISA", ""))


def kernels() -> str | None:
    """The name of the kernels in use."""
    return None if _State.kernels is None else _State.kernels.name


def keep_memory() -> None:
    """For a process that trains: freed memory stays with it, as the next step asks for the same again."""
    if _train is not None:
        _train.keep_memory()


@contextlib.contextmanager
def using(isa: str | None) -> Iterator[None]:
    """`use` for a while."""
    before = _State.kernels
    use(isa)
    try:
        yield
    finally:
        _State.kernels = before


def unit(
    conv: BinaryConv2d,
    x: Tensor,
    norm: nn.BatchNorm2d | None = None,
    act: nn.Hardtanh | None = None,
    residual: Tensor | None = None,
) -> Tensor | None:
    """act(norm(conv(x)) + residual) for a batch in training, or None if that is not for these kernels."""
    if _State.kernels is None or type(x) is not Tensor or not _takes(conv, x):
        return None
    if norm is not None and not _is_plain_norm(norm):
        return None
    modules = [m for m in (conv, norm, act) if m is not None] if norm is not None else []
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules):
        return None
    if residual is not None and (residual.dtype != torch.float32 or type(residual) is not Tensor):
        return None
    limits = (-_INFINITY, _INFINITY) if act is None else (float(act.min_val), float(act.max_val))
    added = None if residual is x else residual
    affine = (None, None) if norm is None else (norm.weight, norm.bias)
    try:
        return _Unit.apply(  # type: ignore[no-untyped-call]
            *(x, added, conv.latent(), conv.scale(), *affine, norm, limits),
            *(conv.stride[0], conv.EPS, conv.zero == 0, residual is x),
        )
    except _ZeroSignError:
        return None


def _takes(conv: BinaryConv2d, x: Tensor) -> bool:
    """Whether the layer, as it is now, and its input are what the kernels compute."""
    block = _train.BLOCK
    return (
        conv.native
        and conv.training
        and conv.binary_weights
        and (conv.kernel_size, conv.padding) == _WINDOW
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.in_channels % block == conv.out_channels % block == 0
        and x.ndim == 4
        and x.shape[0] > 0
        and 0 < x.shape[3] <= _train.MAX_WIDTH
        and x.device.type == conv.weight.device.type == "cpu"
        and x.dtype == conv.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _is_plain_norm(norm: nn.BatchNorm2d) -> bool:
    """Whether it is a batch norm over the batch at hand, on this process alone."""
    return (
        type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
    )


class _ZeroSignError(Exception):
    """An activation or weight is exactly 0, where that has no sign."""


def _plain(tensor: Tensor) -> Tensor:
    """As the kernels read it: without gaps, and aligned, which torch.frombuffer does not see to."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % tensor.element_size() == 0 else tensor.clone()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        scale: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        norm: nn.BatchNorm2d | None,
        limits: tuple[float, float],
        stride: int,
        eps: float,
        zeros_matter: bool,
        adds_input: bool,
    ) -> Tensor:
        x, weight, scale = _plain(x), _plain(weight), _plain(scale)
        n, cin, h, w = x.shape
        cout = len(weight)
        shape = (n, cin, cout, h, w, stride)
        size = (n, cout, (h - 1) // stride + 1, (w - 1) // stride + 1)
        dots = torch.empty(size, dtype=torch.int16)
        deviation, y = torch.empty(n), torch.empty(size)
        moments = torch.empty(3 * cout, dtype=torch.float64)
        added = x if adds_input else None if residual is None else _plain(residual)
        about = None
        if norm is not None:
            parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
            about = (*map(_address, parts), norm.eps, norm.momentum)
        kernels, threads = _State.kernels, torch.get_num_threads()
        done = kernels.forward(
            *(shape, threads, _address(x), _address(weight), _address(scale), _address(added), about, *limits),
            *(eps, zeros_matter, _address(dots), _address(deviation), _address(moments), _address(y)),
        )
        if not done:
            raise _ZeroSignError
        if norm is not None:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
        ctx.save_for_backward(x, weight, scale, norm_weight, dots, deviation, moments, y)
        ctx.about = (kernels, shape, limits, residual is not None, adds_input)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, norm_weight, dots, deviation, moments, y = ctx.saved_tensors
        kernels, shape, limits, adds_residual, adds_input = ctx.about
        needs = ctx.needs_input_grad
        grad_y = _plain(grads[0])
        grad_x = torch.empty_like(x) if needs[0] else None
        grad_weight = torch.empty_like(weight)
        grad_scale = torch.empty_like(scale) if needs[3] else None
        grad_norm = None if norm_weight is None else torch.empty(2, len(scale))
        grad_residual = torch.empty_like(grad_y) if adds_residual and needs[1] else None
        clamped = y if limits[0] > -_INFINITY or limits[1] < _INFINITY else None
        kernels.backward(
            *(shape, torch.get_num_threads(), _address(x), _address(deviation), _address(weight), _address(scale)),
            *(_address(grad_y), _address(norm_weight), _address(moments), _address(clamped), _address(dots), *limits),
            *(adds_input, _address(grad_x), _address(grad_weight), _address(grad_scale), _address(grad_norm)),
            _address(grad_residual),
        )
        of_norm = (None, None) if grad_norm is None else (grad_norm[0], grad_norm[1])
        return (grad_x, grad_residual, grad_weight, grad_scale, *of_norm, *[None] * 6)
