"""The networks by name, with what a checkpoint does not say: input size and the pixels' normalisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ovsw.nn.react import ReActResNet
from ovsw.nn.resnet import CifarResNet18, CifarResNet20, ResNet
from ovsw.nn.vgg import VGGSmall


@dataclass(frozen=True)
class NetworkSpec:
    """How to build a network and how its images were prepared when it was evaluated.

    `resize` over `input_size` is what the shorter side is scaled to before the centre crop, relative to the crop.
    """

    name: str
    build: Callable[..., nn.Module]
    num_classes: int
    input_size: int
    classifier: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize_ratio: float = 1.0

    @property
    def dataset(self) -> str:
        return "imagenet" if self.input_size == 224 else "cifar"


_IMAGENET: dict[str, Any] = {
    "num_classes": 1000,
    "input_size": 224,
    "classifier": "fc",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "resize_ratio": 256 / 224,
}
_CIFAR: dict[str, Any] = {
    "input_size": 32,
    "mean": (0.491, 0.482, 0.447),
    "std": (0.247, 0.243, 0.262),
}
_SPECS = (
    NetworkSpec("ResNet18_1w1a", partial(ResNet, (2, 2, 2, 2)), **_IMAGENET),
    NetworkSpec("ResNet34_1w1a", partial(ResNet, (3, 4, 6, 3)), **_IMAGENET),
    NetworkSpec("ReActResNet18_1w1a", partial(ReActResNet, (4, 4, 4, 4)), **_IMAGENET),
    NetworkSpec("ReActResNet34_1w1a", partial(ReActResNet, (6, 8, 12, 6)), **_IMAGENET),
    NetworkSpec("cResNet18_1w1a", CifarResNet18, 100, classifier="fc", **_CIFAR),
    NetworkSpec("cResNet20_1w1a", CifarResNet20, 10, classifier="linear", **_CIFAR),
    NetworkSpec("VGGSmall_1w1a", VGGSmall, 10, classifier="fc", **_CIFAR),
)


def networks() -> list[str]:
    """The names that `network` and `create` know."""
    return [spec.name for spec in _SPECS]


def network(name: str) -> NetworkSpec:
    """The spec of a network; case and the suffix `_1w1a` may be left out. Raises ValueError for an unknown name."""
    for same in (lambda spec: spec.name == name, lambda spec: _short(spec.name) == _short(name)):
        for spec in _SPECS:
            if same(spec):
                return spec
    raise ValueError(f"unknown network '{name}'; known are {', '.join(networks())}")


def create(
    name: str,
    num_classes: int | None = None,
    learned_scale: bool = False,
    input_size: int | None = None,
) -> nn.Module:
    """Builds a network with freshly initialised weights."""
    spec = network(name)
    options: dict[str, Any] = {"learned_scale": learned_scale}
    options["num_classes"] = spec.num_classes if num_classes is None else num_classes
    if input_size is not None and "input_size" in inspect.signature(spec.build).parameters:
        options["input_size"] = input_size
    return spec.build(**options)


def _short(name: str) -> str:
    name = name.lower()
    return name[: -len("_1w1a")] if name.endswith("_1w1a") else name
