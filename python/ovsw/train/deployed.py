"""Training in the deployed arithmetic: a network whose forward is that of its integer file, to the last bit.

    deployed = Deployed(model, network("cResNet20").input, weights="int8")
    freeze(model.train())  # batch norms keep their statistics from here on
    F.cross_entropy(deployed(x), y).backward()  # and optimizer.step(), as with model(x)

`export_module(model, ..., weights="int8")` then writes the file whose logits `deployed(x)` has. At every call the
exporter's own passes make that file's constants of the weights as they are now, and `ovsw.train.integers` computes with
them. Gradients are those of the module itself at these values: rounding is passed straight through.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend.torch_module import unwrapped
from ovsw.export.ops.fused import Lowered
from ovsw.export.passes import legalized
from ovsw.export.passes.fuse import fuse
from ovsw.export.passes.quantize import WIDTHS, quantize
from ovsw.export.validate import validate
from ovsw.networks import InputSpec
from ovsw.nn import BinaryConv2d
from ovsw.train.augment import normalise
from ovsw.train.calls import converted, in_eval, recorded
from ovsw.train.integers import Integers, meaning, pixels, unknown

_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd


def freeze(model: nn.Module) -> nn.Module:
    """Puts batch norms and dropouts of a model into eval mode and leaves the rest as it is; `train()` undoes it.

    Weights and biases of batch norms stay trainable.
    """
    for module in model.modules():
        if isinstance(module, (_NORMS, _DROPOUTS)):
            module.eval()
    return model


class Deployed:
    """Computes the logits that a module's integer file will have, differentiably.

        deployed = Deployed(model, InputSpec(3, 32, 32, mean, std, resize=32), stem="int8")
        logits = deployed(images)  # float32 (n, classes)

    Args:
        model: any module that has an integer form, on any device. Its weights may change between calls.
        spec: the image it takes, with mean and std of the normalisation.
        weights, stem: width of the real weights and of those on pixels, "int16" or "int8", as for an export.

    Raises ExportError, naming the layers, if the module has no integer form; so does a call, should the weights grow
    out of all bounds.
    """

    def __init__(self, model: nn.Module, spec: InputSpec, weights: str = "int16", stem: str | None = None) -> None:
        for what, width in (("weights", weights), ("stem", stem or weights)):
            if width not in WIDTHS:
                raise ExportError(f"{what} is {width!r}; known are {', '.join(WIDTHS)}")
        self.model, self.spec, self.weights, self.stem = unwrapped(model), spec, weights, stem
        for name, parameter in self.model.named_parameters():
            if parameter.dtype != torch.float32:
                raise ExportError(f"{name} is {_kind(parameter)}, expected float32 weights")
        calls = recorded(in_eval(self.model, torch.float32), spec.shape).graph
        self.calls = fx.GraphModule(self.model, calls)
        self._lowered()

    def __call__(self, images: Tensor) -> Tensor:
        """The logits of normalised float32 images (n, channels, height, width), or of uint8 pixels of that shape.

        Normalised values are rounded to pixels first. Raises ValueError if a batch norm or dropout is not frozen.
        """
        self._check(images)
        with torch.autocast(images.device.type, enabled=False):  # half precision does not hold the sums
            return self._logits(images)

    def _logits(self, images: Tensor) -> Tensor:
        ops, anchors, layers = self._lowered()
        spec, as_pixels = self.spec, images.dtype == torch.uint8
        image = images.float() if as_pixels else pixels(images.detach(), spec.mean, spec.std)
        integers = Integers(ops, image, spec.mean)
        if not torch.is_grad_enabled():
            for op in ops:
                logits = integers.value(op.fused.value)
            return logits
        x = normalise(images, spec.mean, spec.std) if as_pixels else images
        return _Surrogate(self.calls, integers, anchors, layers).run(x).flatten(1)

    def _check(self, images: Tensor) -> None:
        if tuple(images.shape[1:]) != self.spec.shape or images.dtype not in (torch.float32, torch.uint8):
            shape = ", ".join(map(str, self.spec.shape))
            got = f"{_kind(images)} {tuple(images.shape)}"
            raise ValueError(f"the images are {got}, expected float32 or uint8 (n, {shape})")
        if images.dtype == torch.float32 and not torch.isfinite(images).all():
            raise ValueError("the images hold values that are not finite")
        for name, module in self.model.named_modules():
            if module.training and isinstance(module, _NORMS):
                raise ValueError(f"batch norm {name} still updates its statistics; ovsw.train.freeze(model) stops that")
            if module.training and isinstance(module, _DROPOUTS):
                raise ValueError(f"dropout {name} still drops; ovsw.train.freeze(model) stops that")

    def _lowered(self) -> tuple[list[Lowered], dict[fx.Node, Lowered], dict[str, ir.BinaryConv]]:
        """The ops of the file that an export would write now; which of them gives the value of which call; and the
        binary layers whose dots can be told from their results.
        """
        graph, nodes = converted(self.calls)
        validate(graph, zero_weights="plus")
        legal = legalized(graph, "integer")
        ops, _ = quantize(fuse(legal), self.spec.mean, self.spec.std, self.weights, self.stem)
        for op in ops:
            if (what := unknown(op)) is not None:
                raise ExportError(f"{op.fused.name}: {what} is not available in training in the deployed arithmetic")
        waiting = {op.fused.value: op for op in ops}
        anchors = {}
        for call, node in nodes.items():
            anchor = waiting.pop(legal.became[node], None) if node in legal.became else None
            if anchor is not None:
                anchors[call] = anchor
        calls = Counter(call.target for call in nodes)
        layers = {
            node.name: node
            for call, node in nodes.items()
            if isinstance(node, ir.BinaryConv) and calls[call.target] == 1 and self._tells_dots(call, node, ops)
        }
        return ops, anchors, layers

    def _tells_dots(self, call: fx.Node, node: ir.BinaryConv, ops: list[Lowered]) -> bool:
        """Whether a layer's result is dots times its scale, all signs as in the file or a whole filter inverted."""
        layer = self.calls.get_submodule(str(call.target)) if call.op == "call_module" else None
        plain = type(layer) is BinaryConv2d and layer.tau is None
        if not plain or not ((np.abs(node.scale) > 1e-20).all() and (node.weight != 0).all()):
            return False
        dot = next(op.fused.core for op in ops if isinstance(op.fused.core, ir.Dot) and op.fused.core.name == node.name)
        inverted = (dot.positive != (node.weight > 0)).reshape(len(node.weight), -1)  # type: ignore[union-attr]
        return bool((inverted == inverted[:, :1]).all())


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _Surrogate(fx.Interpreter):
    """The module's own calls, with each value that an op of the file has replaced by that one."""

    def __init__(
        self,
        calls: fx.GraphModule,
        integers: Integers,
        anchors: dict[fx.Node, Lowered],
        layers: dict[str, ir.BinaryConv],
    ) -> None:
        super().__init__(calls)
        self.integers, self.anchors, self.layers = integers, anchors, layers

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_module" and n.target in self.layers:
            self.integers.scaled[str(n.target)] = (value.detach(), self.layers[str(n.target)])
        op = self.anchors.get(n)
        if op is None:
            return value
        exact = meaning(op, self.integers.value(op.fused.value))
        return _Replaced.apply(value, exact.reshape(value.shape))  # type: ignore[no-untyped-call]


class _Replaced(torch.autograd.Function):
    """Another value, with the gradient passed straight through."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, exact: Tensor) -> Tensor:
        return exact

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
