"""The binary convolution: signs in, signs as weights, one real scale per output channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def sign(x: Tensor) -> Tensor:
    """+1 where x >= 0 (so also for -0.0), -1 elsewhere: the paper's sign, two-valued unlike torch.sign."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


class BinaryConv2d(nn.Conv2d):
    """A convolution of sign(x) with sign(weight), times a scale per output channel; eval mode only for now.

    Padding is 0 *after* the sign, so taps outside the image contribute nothing. The scale is the parameter
    `scaling_factor` if `learned_scale`, otherwise derived from the standardised weight at every call.
    """

    EPS = 1e-5

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        learned_scale: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_in", nonlinearity="relu")
        self.scaling_factor: nn.Parameter | None
        self.register_parameter("scaling_factor", None)
        if learned_scale:
            self.learn_scale()

    def learn_scale(self) -> None:
        """Gives the layer a learned scale, starting at mean|W| of each output channel."""
        self.scaling_factor = nn.Parameter(self.weight.detach().abs().mean(dim=(1, 2, 3)))

    @torch.no_grad()
    def derived_scale(self) -> Tensor:
        """mean|w| of each output channel's standardised weight (unbiased variance)."""
        w = self.weight.flatten(1)
        w = w - w.mean(dim=1, keepdim=True)
        w = w / torch.sqrt(w.var(dim=1, keepdim=True) + self.EPS)
        return w.abs().mean(dim=1)

    def scale(self) -> Tensor:
        """The scale in force, one value per output channel."""
        return self.derived_scale() if self.scaling_factor is None else self.scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("BinaryConv2d: training is not implemented yet, call model.eval() first")
        y = F.conv2d(sign(x), sign(self.weight), None, self.stride, self.padding)
        return y * self.scale().view(1, -1, 1, 1)
