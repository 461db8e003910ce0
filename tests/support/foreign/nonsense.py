"""What cannot be a `.bnn` file, and words that the refusal must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import SHAPE, Body, Call, Forward, SignConv, binary, lively


@dataclass(frozen=True)
class Nonsense:
    """`make` gives the model and the example; all of `words` are in the message, in any case."""

    make: Callable[[], tuple[Any, Any]]
    words: tuple[str, ...]


NONSENSE: dict[str, Nonsense] = {}


def nonsense(*words: str, example: Any = SHAPE) -> Callable[[Callable[[], Any]], None]:
    def register(make: Callable[[], Any]) -> None:
        def seeded() -> tuple[Any, Any]:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(7)
                return make(), example

        NONSENSE[make.__name__] = Nonsense(seeded, words)

    return register


def body(act: Forward = binary, conv: Callable[..., nn.Module] = SignConv) -> nn.Module:
    return lively(Body(lambda _: act, conv))


class After(nn.Module):
    """A good network and something behind it."""

    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.body, self.then = body(), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.body(x))


@nonsense("not binary")
def float_network() -> Any:
    return body(F.relu, nn.Conv2d)


@nonsense("not binary")
def real_weights_on_signs() -> Any:
    return body(binary, nn.Conv2d)


@nonsense("condition", "image")
def branch_on_the_input() -> Any:
    return After(lambda y: y if y.sum() > 0 else -y)


@nonsense("condition", "image")
def loop_on_the_input() -> Any:
    def until_small(x: Tensor) -> Tensor:
        while x.abs().max() > 1:
            x = x / 2
        return torch.sign(x)

    return body(until_small)


@nonsense("condition", "image")
def item_of_the_input() -> Any:
    return body(lambda x: torch.sign(x - x.mean().item()))


@nonsense("numpy", "image")
def numpy_in_the_middle() -> Any:
    return body(lambda x: torch.from_numpy(x.detach().numpy()).sign())


@nonsense("image", "select")
def selected_by_the_input() -> Any:
    return After(lambda y: y[:, y[0] > 0])


@nonsense("random")
def active_dropout() -> Any:
    return body(lambda x: binary(F.dropout(x, 0.5, training=True)))


@nonsense("random")
def noise() -> Any:
    return body(lambda x: torch.sign(x + 0.1 * torch.randn_like(x)))


@nonsense("random")
def noise_of_a_shape() -> Any:
    """Nothing tells these numbers from weights but a second call."""
    return body(lambda x: torch.sign(x + torch.randn(x.shape)))


@nonsense("random")
def stochastic_signs() -> Any:
    return body(lambda x: torch.bernoulli(torch.sigmoid(x)) * 2 - 1)


@nonsense("batch", "statistics")
def batch_statistics() -> Any:
    return body(lambda x: binary(F.batch_norm(x, None, None, training=True)))


@nonsense("batch", "statistics")
def norm_without_statistics() -> Any:
    norms = nn.ModuleDict({str(c): nn.BatchNorm2d(c, track_running_stats=False) for c in (12, 24)})
    return body(lambda x: binary(norms[str(x.shape[1])](x)))


@nonsense("dict")
def dict_output() -> Any:
    return After(lambda y: {"logits": y})


@nonsense("None")
def no_output() -> Any:
    return After(lambda y: None)


@nonsense("argmax")
def classes_instead_of_logits() -> Any:
    return After(lambda y: y.argmax(1))


@nonsense("does not depend on its input")
def constant_output() -> Any:
    return After(lambda y: torch.ones(1, 5))


@nonsense("layer_norm")
def layer_norm() -> Any:
    return body(lambda x: binary(F.layer_norm(x, x.shape[1:])))


@nonsense("transposed")
def transposed_convolution() -> Any:
    weight = torch.randn(12, 12, 2, 2)
    return body(lambda x: binary(F.conv_transpose2d(x, weight, stride=2)) if x.shape[1] == 12 else binary(x))


@nonsense("gelu", "softplus")
def everything_at_once() -> Any:
    return body(lambda x: binary(F.gelu(x) + F.softplus(x)))


@nonsense("cumsum")
def running_sums() -> Any:
    return body(lambda x: binary(torch.cumsum(x, 3)))


@nonsense("sort")
def sorted_values() -> Any:
    return After(lambda y: y.sort(1).values)


@torch.library.custom_op("foreign::mirror", mutates_args=())
def mirror(x: Tensor) -> Tensor:
    return x.flip(3).clone()


@nonsense("foreign", "mirror")
def custom_operator() -> Any:
    return body(lambda x: binary(torch.ops.foreign.mirror(x)))


class Zeroed(SignConv):
    """Ternary by accident: sign(0) is 0."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.sign()
        w[0, 0, 0, 0] = 0
        return F.conv2d(x, w, None, self.stride, self.padding)


@nonsense("zero")
def exact_zero_weights() -> Any:
    return body(binary, Zeroed)


@nonsense("fc", "not finite")
def nan_weights() -> Any:
    model = body()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")  # type: ignore[index, union-attr]
    return model


@nonsense("meta")
def meta_device() -> Any:
    return body().to("meta")


@nonsense("example_input", "list", example=[[1, 2], [3]])
def list_as_example() -> Any:
    return body()


@nonsense("example_input", example=torch.zeros(3, 16, 16))
def example_without_batch() -> Any:
    return body()


@nonsense("example_input", example="image.png")
def text_as_example() -> Any:
    return body()


@nonsense("function", "OrderedDict")
def state_dict_as_model() -> Any:
    return body().state_dict()


@nonsense("3 channels", example=(1, 4, 16, 16))
def wrong_channels() -> Any:
    return body()


@nonsense("my own words")
def raises_by_itself() -> Any:
    def fail(y: Tensor) -> Tensor:
        raise RuntimeError("my own words")

    return After(fail)


@nonsense("argument", "y")
def needs_two_inputs() -> Any:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    return Two()


@nonsense("another size")
def complex_numbers() -> Any:
    return body(lambda x: torch.fft.fft2(x).real.sign())


@nonsense("not binary")
def nothing_binary_but_signs_at_the_end() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(784, 3), Call(torch.sign))
