"""What cannot be a `.bnn` file, and words that the refusal must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import SHAPE, Body, Call, Forward, SignConv, binary, lively


def body(act: Forward = binary, conv: Callable[..., nn.Module] = SignConv) -> nn.Module:
    return lively(Body(lambda _: act, conv))


class After(nn.Module):
    """A good network and something behind it."""

    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.body, self.then = body(), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.body(x))


def norm_without_statistics() -> nn.Module:
    norms = nn.ModuleDict({str(c): nn.BatchNorm2d(c, track_running_stats=False) for c in (12, 24)})
    return body(lambda x: binary(norms[str(x.shape[1])](x)))


@torch.library.custom_op("foreign::mirror", mutates_args=())
def mirror(x: Tensor) -> Tensor:
    return x.flip(3).clone()


class Zeroed(SignConv):
    """Ternary by accident: sign(0) is 0."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.sign()
        w[0, 0, 0, 0] = 0
        return F.conv2d(x, w, None, self.stride, self.padding)


def nan_weights() -> nn.Module:
    model = body()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")  # type: ignore[index, union-attr]
    return model


def fail(y: Tensor) -> Tensor:
    raise RuntimeError("my own words")


# How the model is made, and what the message says, in any case; test_recorder.py and test_operations.py have more.
NONSENSE: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "float network": (lambda: body(F.relu, nn.Conv2d), ("not binary",)),
    "real weights on signs": (lambda: body(binary, nn.Conv2d), ("not binary",)),
    "signs at the end": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(784, 3), Call(torch.sign)),
        ("not binary",),
    ),
    # Nothing tells these numbers from weights but a second call.
    "noise of a shape": (lambda: body(lambda x: torch.sign(x + torch.randn(x.shape))), ("random",)),
    "stochastic signs": (lambda: body(lambda x: torch.bernoulli(torch.sigmoid(x)) * 2 - 1), ("random",)),
    "batch statistics": (
        lambda: body(lambda x: binary(F.batch_norm(x, None, None, training=True))),
        ("batch", "statistics"),
    ),
    "norm without statistics": (norm_without_statistics, ("batch", "statistics")),
    "classes instead of logits": (lambda: After(lambda y: y.argmax(1)), ("argmax",)),
    "everything at once": (lambda: body(lambda x: binary(F.gelu(x) + F.softplus(x))), ("gelu", "softplus")),
    "running sums": (lambda: body(lambda x: binary(torch.cumsum(x, 3))), ("cumsum",)),
    "sorted values": (lambda: After(lambda y: y.sort(1).values), ("sort",)),
    "custom operator": (lambda: body(lambda x: binary(torch.ops.foreign.mirror(x))), ("foreign", "mirror")),
    "exact zero weights": (lambda: body(binary, Zeroed), ("zero",)),
    "NaN weights": (nan_weights, ("fc", "not finite")),
    "list as example": (body, ("example_input", "list")),
    "example without batch": (body, ("example_input",)),
    "text as example": (body, ("example_input",)),
    "wrong channels": (body, ("3 channels",)),
    "state dict as model": (lambda: body().state_dict(), ("function", "OrderedDict")),
    "raises by itself": (lambda: After(fail), ("my own words",)),
    "complex numbers": (lambda: body(lambda x: torch.fft.fft2(x).real.sign()), ("another size",)),
}
EXAMPLES: dict[str, Any] = {
    "list as example": [[1, 2], [3]],
    "example without batch": torch.zeros(3, 16, 16),
    "text as example": "image.png",
    "wrong channels": (1, 4, 16, 16),
}


def make(name: str) -> tuple[Any, Any]:
    """A model, always with the same numbers, and the example that the exporter is given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return NONSENSE[name][0](), EXAMPLES.get(name, SHAPE)
