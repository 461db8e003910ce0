"""The binary ResNets: ResNet18/34 for ImageNet, cResNet18 and cResNet20 for CIFAR.

Attribute names are those of the reference implementation: they are the checkpoint's keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import native
from ovsw.nn.binary import BinaryConv2d, Layer, binary_unit, norm_act, with_scale


class TwoConvolutions(nn.Module):
    """What all blocks have: two binary convolutions, each with batch norm."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__()
        self.conv1 = conv(cin, cout, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = conv(cout, cout, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(cout)


class TwoShortcutBlock(TwoConvolutions):
    """A shortcut around *each* convolution (Bi-Real): ImageNet ResNets and cResNet20."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__(cin, cout, stride, conv)
        self.nonlinear = nn.Hardtanh()

    def shortcut(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        y = binary_unit(self.conv1, self.bn1, self.nonlinear, x, self.shortcut(x))
        return binary_unit(self.conv2, self.bn2, self.nonlinear, y, y)


def real_shortcut(cin: int, cout: int, stride: int) -> nn.Sequential | None:
    """Where the shape changes: a real 1x1 convolution and batch norm."""
    if stride == 1 and cin == cout:
        return None
    return nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


class ImageNetBlock(TwoShortcutBlock):
    """Where the shape changes, the shortcut is a real 1x1 convolution with batch norm (key `downsample`)."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__(cin, cout, stride, conv)
        self.downsample = real_shortcut(cin, cout, stride)

    def shortcut(self, x: Tensor) -> Tensor:
        return x if self.downsample is None else self.downsample(x)


class Subsample(nn.Module):
    """Every second pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::2, ::2]


class ChannelPad(nn.Module):
    """Channels of zeros, as many before as after."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, self.channels, self.channels))


class HalvingShortcut(nn.Sequential):
    """Pixels averaged 2x2, or every second one taken, and channels padded with zeros; no parameters."""

    def __init__(self, shrink: nn.Module, channels: int) -> None:
        super().__init__(shrink, ChannelPad(channels))
        self.channels, self.averages = channels, isinstance(shrink, nn.AvgPool2d)

    def forward(self, x: Tensor) -> Tensor:
        cout = x.shape[1] + 2 * self.channels
        done = None if native.watched(self, *self) else native.shortcut(x, cout, self.averages)
        return self[1](self[0](x)) if done is None else done  # type: ignore[no-any-return]


def padded_shortcut(cin: int, cout: int, stride: int, subsample: bool = False) -> nn.Sequential:
    """Without parameters: 2x2 pixels averaged, or every second one taken, and channels padded with zeros."""
    if cin == cout:
        return nn.Sequential()
    if stride == 1:
        return nn.Sequential(ChannelPad((cout - cin) // 2))
    return HalvingShortcut(Subsample() if subsample else nn.AvgPool2d(2, 2), (cout - cin) // 2)


class PaddingBlock(TwoShortcutBlock):
    """Where the shape changes, the shortcut averages 2x2 pixels and pads channels with zeros (no parameters)."""

    subsample = False

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__(cin, cout, stride, conv)
        self.identity = padded_shortcut(cin, cout, stride, self.subsample)

    def shortcut(self, x: Tensor) -> Tensor:
        return self.identity(x)


class SubsamplingBlock(PaddingBlock):
    """The same, with every second pixel in the place of averages."""

    subsample = True


class OneShortcutBlock(TwoConvolutions):
    """*One* shortcut around both convolutions, which is itself a binary 1x1 where the shape changes."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__(cin, cout, stride, conv)
        self.act1 = nn.Hardtanh()
        self.act2 = nn.Hardtanh()
        self.shortcut = self.make_shortcut(cin, cout, stride, conv)

    def make_shortcut(self, cin: int, cout: int, stride: int, conv: Layer) -> nn.Sequential:
        if stride == 1 and cin == cout:
            return nn.Sequential()
        return nn.Sequential(conv(cin, cout, 1, stride, 0), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = binary_unit(self.conv1, self.bn1, self.act1, x)
        return binary_unit(self.conv2, self.bn2, self.act2, y, self.shortcut(x))


class OnePaddingBlock(OneShortcutBlock):
    """Where the shape changes, that shortcut averages 2x2 pixels and pads channels with zeros."""

    subsample = False

    def make_shortcut(self, cin: int, cout: int, stride: int, conv: Layer) -> nn.Sequential:
        return padded_shortcut(cin, cout, stride, self.subsample)


class OneSubsamplingBlock(OnePaddingBlock):
    """The same, with every second pixel in the place of averages."""

    subsample = True


class Staged(nn.Module):
    """What all ResNets have between stem and classifier: blocks in stages `layer1` and so on, averaged over pixels."""

    def add_stages(self, block: type[nn.Module], blocks: Sequence[int], widths: Sequence[int], *conv: Layer) -> None:
        """`blocks` of each of `widths` channels, every stage after the first at half the size; `conv` makes binary
        convolutions, where there are any.
        """
        self.stages = [f"layer{i + 1}" for i in range(len(widths))]
        for name, cin, cout, n in zip(self.stages, (widths[0], *widths), widths, blocks):
            first = block(cin, cout, 1 if cin == cout else 2, *conv)
            self.add_module(name, nn.Sequential(first, *(block(cout, cout, 1, *conv) for _ in range(n - 1))))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def features(self, x: Tensor) -> Tensor:  # (N, channels, height, width)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.avgpool(x)  # (N, channels of the last stage, 1, 1)


FOUR_STAGES, THREE_STAGES = (64, 128, 256, 512), (16, 32, 64)  # channels


class ResNet(Staged):
    """ResNet18/34 for ImageNet: real 7x7 stem, 16 or 32 binary convolutions, batch norm before the classifier."""

    def __init__(self, blocks: Sequence[int], num_classes: int = 1000, learned_scale: bool = False) -> None:
        super().__init__()
        conv = with_scale(BinaryConv2d, learned_scale)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.nonlinear = nn.Hardtanh()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.add_stages(ImageNetBlock, blocks, FOUR_STAGES, conv)
        self.bn2 = nn.BatchNorm1d(512)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1e-8)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 224, 224)
        x = self.maxpool(self.nonlinear(self.bn1(self.conv1(x))))  # (N, 64, 56, 56)
        return self.fc(self.bn2(self.features(x).flatten(1)))  # (N, classes)


class FourStages(Staged):
    """What all ResNet18 for CIFAR have before their classifier: a real 3x3 stem without activation and eight blocks."""

    def __init__(self, block: type[OneShortcutBlock], conv: Layer) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.add_stages(block, (2, 2, 2, 2), FOUR_STAGES, conv)

    def features(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        return super().features(self.bn1(self.conv1(x)))  # (N, 512, 1, 1)


class CifarResNet18(FourStages):
    """cResNet18: one shortcut per block, classifier as a 1x1 convolution."""

    def __init__(self, num_classes: int = 100, learned_scale: bool = False, conv: Layer = BinaryConv2d) -> None:
        super().__init__(OneShortcutBlock, with_scale(conv, learned_scale))
        self.bn2 = nn.BatchNorm2d(512)
        self.fc = nn.Conv2d(512, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn2(self.features(x))).flatten(1)  # (N, classes)


class LinearResNet18(FourStages):
    """The ResNet18 of RBNN and ReCU: as cResNet18, with another classifier."""

    def __init__(self, block: type[OneShortcutBlock], conv: Layer, num_classes: int) -> None:
        super().__init__(block, conv)
        self.linear = nn.Linear(512, num_classes)
        self.bn2 = nn.BatchNorm1d(512)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.bn2(self.features(x).flatten(1)))  # (N, classes)


class CifarResNet20(Staged):
    """cResNet20: 16/32/64 channels, three blocks each, parameter-free shortcuts."""

    def __init__(
        self,
        num_classes: int = 10,
        learned_scale: bool = False,
        conv: Layer = BinaryConv2d,
        block: type[TwoConvolutions] = PaddingBlock,
    ) -> None:
        super().__init__()
        conv = with_scale(conv, learned_scale)
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.nonlinear = nn.Hardtanh()
        self.add_stages(block, (3, 3, 3), THREE_STAGES, conv)
        self.bn2 = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = norm_act(self.bn1, self.nonlinear, self.conv1(x))  # (N, 16, 32, 32)
        return self.linear(self.bn2(self.features(x).flatten(1)))  # (N, classes)
