"""The ResNets that the bench makes, binary (`random_nets`) and float (`float_nets`), as a list of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ovsw.networks import NetworkSpec, network

IMAGENET = ("resnet18", "resnet34")  # those of the paper's deployment table
NETWORKS = {name: network(name) for name in (*IMAGENET, "cresnet20")}


@dataclass(frozen=True)
class Block:
    """Two convolutions of 3x3, the first of them with `stride`; where that is 2, the shortcut changes shape as well."""

    name: str
    cin: int
    cout: int
    stride: int


@dataclass(frozen=True)
class Topology:
    """A stem, which for ImageNet ends in a 3x3 max-pool of stride 2, blocks, global average and classifier.

    Shortcuts are 1x1 convolutions for ImageNet; for CIFAR they average 2x2 pixels and pad with zero channels.
    """

    spec: NetworkSpec

    @property
    def imagenet(self) -> bool:
        return self.spec.dataset == "imagenet"

    @property
    def stem(self) -> tuple[int, int, int]:
        """Channels, side of the window, stride."""
        return (64, 7, 2) if self.imagenet else (16, 3, 1)

    def blocks(self) -> Iterator[Block]:
        cin = first = self.stem[0]
        for stage, count in enumerate(self.spec.blocks):
            for block in range(count):
                cout = first << stage
                yield Block(f"layer{stage + 1}.{block}", cin, cout, 2 if stage and not block else 1)
                cin = cout

    @property
    def parameters(self) -> int:
        """Of the float network, as papers count them: with a batch norm's weight and bias for each channel."""

        def conv(cin: int, cout: int, k: int) -> int:
            return cout * (k * k * cin + 2)

        cout, window, _ = self.stem
        total = conv(self.spec.input.channels, cout, window)
        for b in self.blocks():
            total += conv(b.cin, b.cout, 3) + conv(b.cout, b.cout, 3)
            total += conv(b.cin, b.cout, 1) if b.stride == 2 and self.imagenet else 0
            cout = b.cout
        return total + (cout + 1) * self.spec.num_classes
