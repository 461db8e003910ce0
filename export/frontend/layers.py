"""Layers that are converted as a whole: those of `ovsw.nn`, and those that users register."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ovsw.export import ir
from ovsw.nn import BinaryConv2d, ReActConv2d

Converter = Callable[[str, list[ir.Node], ir.Shape, Any], ir.Node]


def register_layer(layer: type[nn.Module], converter: Converter) -> None:
    """Makes a layer of your own known to the exporter: `converter(name, inputs, shape, module)` gives its node.

    It is seldom needed: layers that consist of operations that the exporter supports work without it.

    `inputs` are the nodes that the layer reads, `shape` is (channels, height, width) of its result, as torch computes
    it. The converter may chain several nodes of `ovsw.export.ir` (of its first group) and returns the last one, which
    has to compute what `module.forward` computes in eval mode: an export is checked against that before it is written.
    Arrays are numpy, one number per channel; weights are float32 (out, in, height, width). Layers are recognised by
    their exact type, and the exporter does not look inside them. Registering a type again replaces its converter.

    Example: a hardtanh with a learned gain per channel.

        class GainedHardtanh(nn.Module):
            def __init__(self, channels):
                super().__init__()
                self.gain = nn.Parameter(torch.ones(1, channels, 1, 1))

            def forward(self, x):
                return self.gain * nn.functional.hardtanh(x)

        def convert(name, inputs, shape, module):
            clamp = ir.Act(f"{name}.clamp", inputs, shape, "clamp", -1.0, 1.0)
            gain = module.gain.detach().double().numpy().reshape(-1)
            return ir.Affine(name, [clamp], shape, scale=gain, offset=np.zeros_like(gain))

        register_layer(GainedHardtanh, convert)

    A binary convolution is an `ir.BinaryConv` of its latent weights, whose signs are taken, and a scale per channel.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"register_layer takes a subclass of torch.nn.Module, not {layer!r}")
    if not callable(converter):
        raise TypeError(f"register_layer({layer.__name__}): the converter is not callable")
    LAYERS[layer] = converter


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


# Always in one memory layout, because the last bit of numpy's sums depends on it.


def f64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float64).contiguous().numpy()


def f32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


def conv_fault(m: nn.Conv2d) -> str | None:
    if m.groups != 1:
        return f"groups={m.groups}"
    if pair(m.dilation) != (1, 1):
        return f"dilation={m.dilation}"
    if m.padding_mode != "zeros" or isinstance(m.padding, str):
        return f"padding={m.padding!r} with padding_mode={m.padding_mode!r}"
    if any(p >= k for p, k in zip(pair(m.padding), pair(m.kernel_size))):
        return f"padding={m.padding} as large as its kernel {m.kernel_size}"
    return None


def _binary_conv(name: str, inputs: list[ir.Node], shape: ir.Shape, m: BinaryConv2d) -> ir.Node:
    """With its latent weights, so that exact zeros among them are seen, and its scale computed in float64."""
    fault = conv_fault(m)
    if fault:
        return ir.Unsupported(name, inputs, shape, f"binary convolution with {fault} is not supported")
    if not m.binary_weights:
        return ir.Unsupported(name, inputs, shape, "its weights are real: binary_weights is False")
    geometry = (pair(m.kernel_size), pair(m.stride), pair(m.padding))
    return ir.BinaryConv(name, inputs, shape, *geometry, weight=f32(m.weight), scale=f64(_wide(m).scale()))


def _wide(m: BinaryConv2d) -> BinaryConv2d:
    """The layer with its numbers in float64, so that derived scales are, too."""
    wide = copy.copy(m)
    wide._parameters = {
        name: None if p is None else nn.Parameter(p.detach().to("cpu", torch.float64).contiguous(), False)
        for name, p in m._parameters.items()
    }
    return wide


LAYERS: dict[type[nn.Module], Converter] = {BinaryConv2d: _binary_conv, ReActConv2d: _binary_conv}
