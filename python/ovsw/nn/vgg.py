"""VGGSmall for CIFAR: five binary convolutions, max-pools *before* the batch norms, no shortcuts."""

from __future__ import annotations

from torch import Tensor, nn

from ovsw.nn.binary import BinaryConv2d, Layer, with_scale


class VGGSmall(nn.Module):
    """`input_size` fixes the classifier's width (512 x input_size/8 x input_size/8).

    The last activation is a PReLU in OvSW's code, a hardtanh in that of others (`learned_slope=False`).
    """

    def __init__(
        self,
        num_classes: int = 10,
        learned_scale: bool = False,
        input_size: int = 32,
        conv: Layer = BinaryConv2d,
        learned_slope: bool = True,
    ) -> None:
        super().__init__()
        conv = with_scale(conv, learned_scale)
        self.conv0 = nn.Conv2d(3, 128, 3, 1, 1, bias=False)
        self.bn0 = nn.BatchNorm2d(128)
        self.conv1 = conv(128, 128, 3, 1, 1)
        self.bn1 = nn.BatchNorm2d(128)
        self.conv2 = conv(128, 256, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(256)
        self.conv3 = conv(256, 256, 3, 1, 1)
        self.bn3 = nn.BatchNorm2d(256)
        self.conv4 = conv(256, 512, 3, 1, 1)
        self.bn4 = nn.BatchNorm2d(512)
        self.conv5 = conv(512, 512, 3, 1, 1)
        self.bn5 = nn.BatchNorm2d(512)
        self.pooling = nn.MaxPool2d(2, 2)
        self.nonlinear = nn.Hardtanh()
        self.nonlinear5 = nn.PReLU(512) if learned_slope else nn.Hardtanh()
        self.fc = nn.Linear(512 * (input_size // 8) ** 2, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.fc.weight, 0.0, 0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.nonlinear(self.bn0(self.conv0(x)))
        x = self.nonlinear(self.bn1(self.pooling(self.conv1(x))))  # (N, 128, 16, 16)
        x = self.nonlinear(self.bn2(self.conv2(x)))
        x = self.nonlinear(self.bn3(self.pooling(self.conv3(x))))  # (N, 256, 8, 8)
        x = self.nonlinear(self.bn4(self.conv4(x)))
        x = self.nonlinear5(self.bn5(self.pooling(self.conv5(x))))  # (N, 512, 4, 4)
        return self.fc(x.flatten(1))  # (N, classes)
