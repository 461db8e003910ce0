"""The networks of `ovsw.networks` as modules."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ovsw.networks import network
from ovsw.nn.react import ReActResNet
from ovsw.nn.resnet import CifarResNet18, CifarResNet20, ResNet
from ovsw.nn.vgg import VGGSmall

_MODULES: dict[str, type[nn.Module]] = {
    "ResNet18_1w1a": ResNet,
    "ResNet34_1w1a": ResNet,
    "ReActResNet18_1w1a": ReActResNet,
    "ReActResNet34_1w1a": ReActResNet,
    "cResNet18_1w1a": CifarResNet18,
    "cResNet20_1w1a": CifarResNet20,
    "VGGSmall_1w1a": VGGSmall,
}


def create(
    name: str,
    num_classes: int | None = None,
    learned_scale: bool = False,
    input_size: int | None = None,
) -> nn.Module:
    """Builds a network with freshly initialised weights."""
    spec = network(name)
    module = _MODULES[spec.name]
    options: dict[str, Any] = {
        "num_classes": spec.num_classes if num_classes is None else num_classes,
        "learned_scale": learned_scale,
        "blocks": spec.blocks,
        "input_size": spec.input.height if input_size is None else input_size,
    }
    taken = inspect.signature(module).parameters
    return module(**{key: value for key, value in options.items() if key in taken})
