"""Calls the kernels of csrc/train: binary units for training on a CPU, faster than with PyTorch's operators.

A unit is `act(norm(conv(x)) + residual)`, or the convolution alone. A binary layer describes its computation by a
`Plan`. `unit` returns None where the native kernels do not apply (another device or type, wide maps, hooks, a sign of
0), and the caller computes the same with PyTorch. OVSW_NATIVE=0 in the environment switches the kernels off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import Tensor, nn

from ovsw import cpu

try:
    from ovsw import _train
except ImportError:  # built without it
    _train = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from ovsw.nn.binary import BinaryLayer

_WINDOW = ((3, 3), (1, 1))  # size and padding
_INFINITY = float("inf")


class _State:
    """The kernels in use, or None."""

    kernels: Any = None


def use(isa: str | None) -> None:
    """Selects the kernels of an instruction set; "" for the best on this CPU, None for PyTorch's operators."""
    _State.kernels = None if isa is None or _train is None else _train.Kernels(isa)


use(None if os.environ.get("OVSW_NATIVE") == "0" else cpu.forced_isa())


def kernels() -> str | None:
    """The name of the kernels in use."""
    return None if _State.kernels is None else _State.kernels.name


def keep_memory() -> None:
    """Keeps freed memory in the process, as the next training step needs as much again."""
    if _train is not None:
        _train.keep_memory()


@contextlib.contextmanager
def using(isa: str | None) -> Iterator[None]:
    """`use` within a block."""
    before = _State.kernels
    use(isa)
    try:
        yield
    finally:
        _State.kernels = before


@dataclass(frozen=True)
class Plan:
    """How a layer computes: scale * sum of (w + ratio) * (s + level), with s = sign(x + shift) and w = sign(weight).

    The gradient of s is that of Bi-Real's polynomial with u = (x + shift) / width: 2 - 2|u| where that is positive.
    """

    weight: Tensor  # its gradient is that of w
    scale: Tensor  # per output channel
    width: Tensor | None = None  # a single number; None: 1
    divides: bool = False  # instead: width is each image's standard deviation, as a constant
    eps: float = 0.0  # of that deviation
    shift: Tensor | None = None  # per input channel
    ratio: Tensor | None = None  # per output channel
    level: Tensor | None = None  # a single number, with a ratio


@dataclass(frozen=True)
class Slopes:
    """An activation: t = v + before, then (above if t > 0 else below) * t + after, with values per channel.

    None is 0 for `before` and `after`, 1 for `above`.
    """

    below: Tensor
    above: Tensor | None = None
    before: Tensor | None = None
    after: Tensor | None = None


Act = Union[nn.Hardtanh, Slopes, None]


def unit(
    conv: BinaryLayer,
    x: Tensor,
    norm: nn.BatchNorm2d | None = None,
    act: Act = None,
    residual: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor | None:
    """act(norm(conv(x + shift)) + residual), or None if the kernels do not apply."""
    if _bypassed() or type(x) is not Tensor or not _takes(conv, x):
        return None
    if norm is not None and (not _is_plain_norm(norm, conv.training) or watched(conv, norm, act)):
        return None
    if residual is not None and (residual.dtype != torch.float32 or type(residual) is not Tensor):
        return None
    plan = conv.plan()
    if plan is None:
        return None
    if shift is not None:
        plan = replace(plan, shift=shift.reshape(-1))
    slopes = _four_slopes(act) if isinstance(act, Slopes) else (None,) * 4
    limits = (-_INFINITY, _INFINITY) if act is None or isinstance(act, Slopes) else _limits(act)
    affine = (None, None) if norm is None else (norm.weight, norm.bias)
    try:
        return _Unit.apply(  # type: ignore[no-untyped-call]
            *(x, None if residual is x else residual, plan.weight, plan.scale, plan.width, plan.shift),
            *(plan.ratio, plan.level, *affine, *slopes),
            _Settings(norm, limits, conv.stride[0], plan.divides, plan.eps, conv.zero == 0, residual is x),
        )
    except _ZeroSignError:
        return None


def norm_act(norm: nn.BatchNorm2d, act: nn.Hardtanh, x: Tensor) -> Tensor | None:
    """act(norm(x)) of any maps, or None if the kernels do not apply."""
    if _bypassed() or type(x) is not Tensor or not _is_plain(x) or x.ndim != 4 or not x.numel():
        return None
    if not _is_plain_norm(norm, norm.training) or (torch.is_grad_enabled() and not norm.training) or watched(norm, act):
        return None
    return _NormAct.apply(x, norm.weight, norm.bias, norm, _limits(act))  # type: ignore[no-untyped-call]


def watched(*modules: object) -> bool:
    """Whether any of these modules has hooks, which need its call."""
    real = [m for m in modules if isinstance(m, nn.Module)]
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in real)


def _bypassed() -> bool:
    """Whether the kernels are off, or torch's operators are cast, compiled, traced or replaced, as by the exporter."""
    return (
        _State.kernels is None
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
    )


def _limits(act: nn.Hardtanh) -> tuple[float, float]:
    return float(act.min_val), float(act.max_val)


def _four_slopes(act: Slopes) -> tuple[Tensor, ...]:
    above = torch.ones_like(act.below) if act.above is None else act.above
    zeros = torch.zeros_like(act.below)
    before, after = (zeros if t is None else t.reshape(-1) for t in (act.before, act.after))
    return before, above, act.below, after


def has_kernels(conv: BinaryLayer) -> bool:
    """Whether there are kernels for a layer of this kind; the size of its maps may still be too large for them."""
    return _State.kernels is not None and _has_sizes(conv) and conv.plan() is not None


def _has_sizes(conv: BinaryLayer) -> bool:
    block = _train.BLOCK
    return (
        (conv.kernel_size, conv.padding) == _WINDOW
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.in_channels % block == conv.out_channels % block == 0
    )


def _takes(conv: BinaryLayer, x: Tensor) -> bool:
    """Whether the kernels support this layer and its input."""
    return (
        _has_sizes(conv)
        and x.ndim == 4
        and x.shape[0] > 0
        and 0 < x.shape[3] <= _train.MAX_WIDTH
        and x.device.type == conv.weight.device.type == "cpu"
        and x.dtype == conv.weight.dtype == torch.float32
        and (conv.training or not torch.is_grad_enabled())
    )


def _is_plain_norm(norm: nn.BatchNorm2d, training: bool) -> bool:
    """Whether it is a batch norm over the batch at hand, on this process alone, or by its statistics in evaluation."""
    return (
        type(norm) is nn.BatchNorm2d
        and norm.training == training
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
    )


def derived_scale(weight: Tensor, eps: float) -> Tensor:
    """mean|w| of each filter's standardised weight, for a `Plan`."""
    weight, scale = _plain(weight.detach()), torch.empty(len(weight))
    _train.derived_scale(_address(weight), len(weight), weight[0].numel(), eps, _address(scale))
    return scale


def takes_step(weight: Tensor, state: tuple[Tensor, ...]) -> bool:
    """Whether `ovsw_step` can be used."""
    tensors = [weight, *state[:3], *(() if weight.grad is None else (weight.grad,))]
    return not _bypassed() and all(_is_plain(t) for t in tensors) and state[3].is_contiguous()


def ovsw_step(settings: tuple[float, ...], weight: Tensor, state: tuple[Tensor, ...]) -> tuple[float, int, int]:
    """AGS and SAD on one weight's gradient: mean gradient ratio, silent weights, flipped weights.

    `state` is what the sign is taken of, the running flip rate, that sign's source at the step before, and the mask of
    weights that ever flipped.
    """
    signed, *others = map(_address, state)
    shape = (len(weight), weight[0].numel())
    counts: tuple[float, int, int] = _train.ovsw_step(
        settings, (*shape, _address(weight), signed, _address(weight.grad), *others)
    )
    return counts


def shortcut(x: Tensor, cout: int, average: bool) -> Tensor | None:
    """Every second pixel, or averages of 2x2, with channels of zeros before and after; None if they do not apply."""
    n, cin, h, w = x.shape
    if _bypassed() or type(x) is not Tensor or not _is_plain(x) or h % 2 or w % 2 or n == 0:
        return None
    return _Shortcut.apply(x, (n, cin, cout, (cout - cin) // 2, h, w, average))  # type: ignore[no-untyped-call]


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
        and tensor.data_ptr() % 4 == 0
    )


class _ZeroSignError(Exception):
    """An activation or weight is exactly 0, where that has no sign."""


@dataclass(frozen=True)
class _Settings:
    """The settings of a unit that are not tensors."""

    norm: nn.BatchNorm2d | None
    limits: tuple[float, float]  # of the clamp
    stride: int
    divides: bool
    eps: float
    zeros_matter: bool
    adds_input: bool


def _plain(tensor: Tensor) -> Tensor:
    """Contiguous and aligned, as the kernels need it; torch.frombuffer does not align."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % tensor.element_size() == 0 else tensor.clone()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _norm_of(norm: nn.BatchNorm2d | None) -> tuple[float, ...] | None:
    if norm is None:
        return None
    parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    assert norm.momentum is not None
    return (*map(_address, parts), norm.eps, norm.momentum, norm.training)


def _count_batch(norm: nn.BatchNorm2d | None) -> None:
    if norm is not None and norm.training:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """Of these arguments all but `settings` are tensors, or None where the unit has no such part."""
        x, residual, weight, scale, width, shift, ratio, level, norm_weight, _norm_bias, *act_slopes, settings = (
            arguments
        )
        x, weight, scale = _plain(x), _plain(weight), _plain(scale)
        slopes = tuple(None if t is None else _plain(t.detach()) for t in act_slopes)
        n, cin, h, w = x.shape
        cout, stride, norm = len(weight), settings.stride, settings.norm
        shape = (n, cin, cout, h, w, stride)
        size = (n, cout, (h - 1) // stride + 1, (w - 1) // stride + 1)
        bits = torch.empty(n * _train.words(shape), dtype=torch.int32)
        dots, y = torch.empty(size, dtype=torch.int16), torch.empty(size)
        z = None if ratio is None else torch.empty(size)
        deviation = torch.empty(n) if settings.divides else torch.ones(n) if width is None else width.expand(n).clone()
        moments = torch.empty(5 * cout, dtype=torch.float64)
        added = x if settings.adds_input else None if residual is None else _plain(residual)
        shifts, ratios = (None if t is None else _plain(t.detach()) for t in (shift, ratio))
        parts = (x, shifts, weight, scale, ratios)
        conv = (*map(_address, parts), 0.0 if level is None else level.item())
        act = (*settings.limits, *map(_address, slopes))
        kernels, threads = _State.kernels, torch.get_num_threads()
        results = tuple(map(_address, (bits, dots, z, deviation, moments, y)))
        signs = (settings.eps, settings.divides, settings.zeros_matter)
        if not kernels.forward(shape, threads, conv, _norm_of(norm), _address(added), act, signs, results):
            raise _ZeroSignError
        _count_batch(norm)
        if any(ctx.needs_input_grad):
            clamped = y if settings.limits != (-_INFINITY, _INFINITY) else None
            kept = added if slopes[0] is not None and not settings.adds_input else None
            ctx.save_for_backward(
                *(x, weight, scale, shifts, ratios, norm_weight, bits, dots, z, deviation, moments, clamped, kept),
                *slopes,
            )
            ctx.about = (kernels, shape, conv[-1], settings, residual is not None)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, shifts, ratios, norm_weight, bits, dots, z, deviation, moments, clamped, kept, *slopes = (
            ctx.saved_tensors
        )
        kernels, shape, level, settings, adds_residual = ctx.about
        needs, cin, cout = ctx.needs_input_grad, shape[1], shape[2]
        grad_y = _plain(grads[0])
        has_slopes = slopes[0] is not None
        g = torch.empty_like(grad_y) if clamped is not None or has_slopes else grad_y
        grad_x = torch.empty_like(x) if needs[0] else None
        grad_weight = torch.empty_like(weight)
        grad_scale = torch.empty_like(scale) if needs[3] else None
        grad_norm = None if norm_weight is None else torch.empty(2, cout)
        grad_shift = torch.empty(cin + 1) if grad_x is not None and (needs[4] or needs[5]) else None
        grad_ratio = None if ratios is None else torch.empty(cout + 1)
        grad_act = torch.empty(4, cout) if has_slopes else None
        added = x if settings.adds_input else kept
        kernels.backward(
            *(shape, torch.get_num_threads()),
            (*map(_address, (x, shifts, weight, scale, ratios)), level),
            tuple(map(_address, (bits, dots, z, deviation, moments, norm_weight, added))),
            (*settings.limits, *map(_address, slopes)),
            (_address(clamped), _address(grad_y)),
            settings.adds_input,
            tuple(map(_address, (g, grad_x, grad_weight, grad_scale, grad_norm, grad_shift, grad_ratio, grad_act))),
        )
        of_width = grad_shift[cin] if needs[4] and grad_shift is not None else None
        of_shift = grad_shift[:cin] if needs[5] and grad_shift is not None else None
        of_ratio, of_level = (None, None) if grad_ratio is None else (grad_ratio[:cout], grad_ratio[cout])
        of_norm = (None, None) if grad_norm is None else (grad_norm[0], grad_norm[1])
        of_act = (None,) * 4 if grad_act is None else tuple(grad_act)
        of_residual = g if adds_residual and needs[1] and not settings.adds_input else None
        return (
            *(grad_x, of_residual, grad_weight, grad_scale, of_width, of_shift, of_ratio, of_level),
            *(*of_norm, *of_act, None),
        )


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, limits: tuple[float, float]
    ) -> Tensor:
        n, c, pixels = len(x), x.shape[1], x[0, 0].numel()
        y, moments = torch.empty_like(x), torch.empty(5 * c, dtype=torch.float64)
        act, kernels = (*limits, 0, 0, 0, 0), _State.kernels
        maps = tuple(map(_address, (x, moments, y)))
        kernels.norm_forward(n, c, pixels, torch.get_num_threads(), _norm_of(norm), act, maps)
        _count_batch(norm)
        ctx.save_for_backward(x, weight, moments, y)
        ctx.about = (kernels, (n, c, pixels), act)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, moments, y = ctx.saved_tensors
        kernels, shape, act = ctx.about
        grad_y, grad_norm = _plain(grads[0]), torch.empty(2, len(weight))
        grad_x = torch.empty_like(x)
        maps = tuple(map(_address, (x, moments, weight, y, grad_y, grad_x, grad_x, grad_norm)))
        kernels.norm_backward(*shape, torch.get_num_threads(), act, maps)
        return grad_x, grad_norm[0], grad_norm[1], None, None


class _Shortcut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        n, _, cout, _, h, w, _ = shape
        y = torch.empty(n, cout, h // 2, w // 2)
        _train.shortcut_forward(shape, torch.get_num_threads(), _address(x), _address(y))
        ctx.shape = shape
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad_y = _plain(grads[0])
        n, cin, _, _, h, w, _ = ctx.shape
        grad_x = torch.empty(n, cin, h, w)
        _train.shortcut_backward(ctx.shape, torch.get_num_threads(), _address(grad_y), _address(grad_x))
        return grad_x, None
