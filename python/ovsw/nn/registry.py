"""The networks of `ovsw.networks` as modules."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ovsw.networks import network
from ovsw.nn.adabin import AdaBinResNet18, AdaBinResNet20
from ovsw.nn.binary import binary_layers
from ovsw.nn.bireal import BiRealNet, BiRealResNet20
from ovsw.nn.float_resnet import FloatCifarResNet20
from ovsw.nn.rbnn import RBNNPlainResNet20, RBNNResNet18, RBNNResNet20, RBNNVGGSmall
from ovsw.nn.react import ReActResNet
from ovsw.nn.recu import ReCUResNet18, ReCUResNet20, ReCUVGGSmall
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
    "RBNN_cResNet18_1w1a": RBNNResNet18,
    "RBNN_cResNet20_1w1a": RBNNResNet20,
    "RBNN_plain_cResNet20_1w1a": RBNNPlainResNet20,
    "RBNN_VGGSmall_1w1a": RBNNVGGSmall,
    "AdaBin_cResNet18_1w1a": AdaBinResNet18,
    "AdaBin_cResNet20_1w1a": AdaBinResNet20,
    "ReCU_cResNet18_1w1a": ReCUResNet18,
    "ReCU_cResNet20_1w1a": ReCUResNet20,
    "ReCU_VGGSmall_1w1a": ReCUVGGSmall,
    "BiReal_cResNet20_1w1a": BiRealResNet20,
    "BiRealNet18_1w1a": BiRealNet,
    "BiRealNet34_1w1a": BiRealNet,
    "float_cResNet20": FloatCifarResNet20,
}


def create(
    name: str,
    num_classes: int | None = None,
    learned_scale: bool = False,
    input_size: int | None = None,
) -> nn.Module:
    """Builds a network with freshly initialised weights, no binary one exactly 0. Raises ValueError for what it does
    not have.
    """
    spec = network(name)
    module = _MODULES[spec.name]
    taken = inspect.signature(module).parameters
    if learned_scale and "learned_scale" not in taken:
        raise ValueError(f"{spec.name} has no choice of learned scales: its method says whether they are")
    options: dict[str, Any] = {
        "num_classes": spec.num_classes if num_classes is None else num_classes,
        "learned_scale": learned_scale,
        "blocks": spec.blocks,
        "input_size": spec.input.height if input_size is None else input_size,
    }
    model = module(**{key: value for key, value in options.items() if key in taken})
    for layer in binary_layers(model).values():
        layer.avoid_zeros()
    return model
