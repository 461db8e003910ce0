"""Binary layers and networks in PyTorch, with the key names of OvSW's and the other methods' own implementations.

from ovsw.nn import create
model = create("ResNet18_1w1a", num_classes=1000)
"""

from ovsw.nn.adabin import AdaBinResNet18, AdaBinResNet20, AdaptiveConv2d, AdaptiveSign, Maxout
from ovsw.nn.binary import BinaryConv2d, BinaryLayer, binary_layers, sign
from ovsw.nn.bireal import BiRealNet, BiRealResNet20
from ovsw.nn.float_resnet import FloatCifarResNet20, FloatResNet, float_network
from ovsw.nn.rbnn import RBNNPlainResNet20, RBNNResNet18, RBNNResNet20, RBNNVGGSmall, RotatedConv2d
from ovsw.nn.react import ReActConv2d, ReActResNet, Shift
from ovsw.nn.recu import RectifiedConv2d, ReCUResNet18, ReCUResNet20, ReCUVGGSmall
from ovsw.nn.registry import create
from ovsw.nn.resnet import CifarResNet18, CifarResNet20, ResNet
from ovsw.nn.vgg import VGGSmall

__all__ = [
    "AdaBinResNet18",
    "AdaBinResNet20",
    "AdaptiveConv2d",
    "AdaptiveSign",
    "BiRealNet",
    "BiRealResNet20",
    "BinaryConv2d",
    "BinaryLayer",
    "CifarResNet18",
    "CifarResNet20",
    "FloatCifarResNet20",
    "FloatResNet",
    "Maxout",
    "RBNNPlainResNet20",
    "RBNNResNet18",
    "RBNNResNet20",
    "RBNNVGGSmall",
    "ReActConv2d",
    "ReActResNet",
    "ReCUResNet18",
    "ReCUResNet20",
    "ReCUVGGSmall",
    "RectifiedConv2d",
    "ResNet",
    "RotatedConv2d",
    "Shift",
    "VGGSmall",
    "binary_layers",
    "create",
    "float_network",
    "sign",
]
