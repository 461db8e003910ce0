"""Binary layers and networks in PyTorch, with the key names of the OvSW reference implementation.

from ovsw.nn import create
model = create("ResNet18_1w1a", num_classes=1000)
"""

from ovsw.nn.binary import BinaryConv2d, binary_layers, sign
from ovsw.nn.float_resnet import FloatResNet, float_network
from ovsw.nn.react import ReActConv2d, ReActResNet, Shift
from ovsw.nn.registry import create
from ovsw.nn.resnet import CifarResNet18, CifarResNet20, ResNet
from ovsw.nn.vgg import VGGSmall

__all__ = [
    "BinaryConv2d",
    "CifarResNet18",
    "CifarResNet20",
    "FloatResNet",
    "ReActConv2d",
    "ReActResNet",
    "ResNet",
    "Shift",
    "VGGSmall",
    "binary_layers",
    "create",
    "float_network",
    "sign",
]
