"""Facts about networks: their shape, their classes, and how their images are prepared.

`ovsw.nn` binds these names to modules; the exporter, the trainer and the bench read the same facts. Needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ovsw._version import __version__


@dataclass(frozen=True)
class InputSpec:
    """The image that a network takes, and how it was prepared when the network was evaluated.

    Its shorter side is scaled to `resize`, the centre of `height` x `width` is cut out, pixels are scaled to 0..1 and
    become (v - mean) / std per channel. `labels` are the class names, or the name of a list in `ovsw.labels`.
    """

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int
    labels: str | tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)

    @property
    def preprocess(self) -> dict[str, Any]:
        """The entry of a file's metadata."""
        square = {"crop": self.height} if self.height == self.width else {}
        return {"resize": self.resize, **square}

    def metadata(self, arch: str, num_classes: int, labels: str | list[str]) -> dict[str, Any]:
        """The metadata of a file with this input."""
        about = {"producer": f"ovsw {__version__}", "arch": arch, "num_classes": num_classes}
        return {**about, "preprocess": self.preprocess, "labels": labels}

    def at(self, size: int) -> InputSpec:
        """The spec of a square image of another size; `resize` keeps its ratio to the crop."""
        return replace(self, height=size, width=size, resize=round(size * self.resize / max(self.height, self.width)))

    def normalised(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 pixels (n, h, w, c) as the network takes them: float32 (n, c, h, w)."""
        mean, std = (np.asarray(values, np.float32) for values in (self.mean, self.std))
        x = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class NetworkSpec:
    """A network as its paper has it.

    Attributes:
        module: the class that builds it, in `ovsw.nn`.
        blocks: how many in each stage; VGGSmall has none.
        classifier: the key of the last layer in a checkpoint.
        aliases: its names in the code of its authors, which their checkpoints contain.
        flattened: channels of the map that the classifier takes whole, and by how much it is smaller than the input;
            None where it is averaged first, so that any input size goes with the same weights.
    """

    name: str
    module: str
    blocks: tuple[int, ...]
    num_classes: int
    input: InputSpec
    classifier: str = "fc"
    flattened: tuple[int, int] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The name in lower case, without the suffix for binary weights and activations."""
        return _short(self.name)

    @property
    def dataset(self) -> str:
        return "imagenet" if self.input.labels == "imagenet" else "cifar"

    def input_size(self, features: int) -> int:
        """The side of the input for a classifier with this many features; the usual one if the features do not tell."""
        if self.flattened is not None:
            channels, reduction = self.flattened
            side = math.isqrt(features // channels)
            if side > 0 and side * side * channels == features:
                return reduction * side
        return self.input.height


NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean, std
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
_IMAGENET = InputSpec(3, 224, 224, *NORMALISATIONS["imagenet"], resize=256, labels="imagenet")
_CIFAR = InputSpec(3, 32, 32, *NORMALISATIONS["cifar10"], resize=32)
_CIFAR_AS_IMAGENET = InputSpec(3, 32, 32, *NORMALISATIONS["imagenet"], resize=32)  # RBNN, AdaBin, ReCU
NETWORKS = (
    NetworkSpec("ResNet18_1w1a", "ResNet", (2, 2, 2, 2), 1000, _IMAGENET),
    NetworkSpec("ResNet34_1w1a", "ResNet", (3, 4, 6, 3), 1000, _IMAGENET),
    NetworkSpec("ReActResNet18_1w1a", "ReActResNet", (4, 4, 4, 4), 1000, _IMAGENET),  # counts single convolutions
    NetworkSpec("ReActResNet34_1w1a", "ReActResNet", (6, 8, 12, 6), 1000, _IMAGENET),
    NetworkSpec("cResNet18_1w1a", "CifarResNet18", (2, 2, 2, 2), 100, _CIFAR),
    NetworkSpec("cResNet20_1w1a", "CifarResNet20", (3, 3, 3), 10, _CIFAR, classifier="linear"),
    NetworkSpec("VGGSmall_1w1a", "VGGSmall", (), 10, _CIFAR, flattened=(512, 8)),
    *(
        NetworkSpec(f"{name}_1w1a", module, blocks, 10, _CIFAR_AS_IMAGENET, "linear", aliases=(f"{alias}_1w1a",))
        for name, module, blocks, alias in (
            ("RBNN_cResNet18", "RBNNResNet18", (2, 2, 2, 2), "resnet18"),
            ("RBNN_cResNet20", "RBNNResNet20", (3, 3, 3), "resnet20_bireal"),
            ("RBNN_plain_cResNet20", "RBNNPlainResNet20", (3, 3, 3), "resnet20"),
            ("AdaBin_cResNet18", "AdaBinResNet18", (2, 2, 2, 2), "resnet18"),
            ("AdaBin_cResNet20", "AdaBinResNet20", (3, 3, 3), "resnet20"),
            ("ReCU_cResNet18", "ReCUResNet18", (2, 2, 2, 2), "resnet18"),
            ("ReCU_cResNet20", "ReCUResNet20", (3, 3, 3), "resnet20"),
        )
    ),
    *(
        NetworkSpec(
            *(f"{method}_VGGSmall_1w1a", f"{method}VGGSmall", (), 10, _CIFAR_AS_IMAGENET),
            flattened=(512, 8),
            aliases=("vgg_small_1w1a",),
        )
        for method in ("RBNN", "ReCU")
    ),
    NetworkSpec("BiReal_cResNet20_1w1a", "BiRealResNet20", (3, 3, 3), 10, _CIFAR, "linear"),
    NetworkSpec("BiRealNet18_1w1a", "BiRealNet", (4, 4, 4, 4), 1000, _IMAGENET, aliases=("birealnet18",)),
    NetworkSpec("BiRealNet34_1w1a", "BiRealNet", (6, 8, 12, 6), 1000, _IMAGENET, aliases=("birealnet34",)),
)
FLOAT_NETWORKS = (NetworkSpec("float_cResNet20", "FloatCifarResNet20", (3, 3, 3), 10, _CIFAR, "linear"),)  # teachers


def networks() -> list[str]:
    """The names of the binary networks that `network` knows."""
    return [spec.name for spec in NETWORKS]


def network(name: str) -> NetworkSpec:
    """The spec of a network; case and the suffix `_1w1a` may be left out. Raises ValueError for an unknown name."""
    for spec in (*NETWORKS, *FLOAT_NETWORKS):
        if spec.short == _short(name):
            return spec
    raise ValueError(f"unknown network '{name}'; known are {', '.join(networks())}")


def _short(name: str) -> str:
    return name.lower().removesuffix("_1w1a")
