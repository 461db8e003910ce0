"""The recorder: what it sees of a network, what it refuses and where, and that it leaves no trace of itself."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _python_dispatch

from ovsw.export import ExportError, ir
from ovsw.export.frontend import torch_module
from ovsw.export.frontend.recorder import Recorder, record, scope
from ovsw.export.frontend.values import Arranged, Call
from ovsw.networks import InputSpec

from support.comparing import assert_same, kinds

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SPEC = InputSpec(4, 6, 6, (0.0,) * 4, (1.0,) * 4, 6)


def source(model: Any) -> Any:
    return torch_module.source(model, SPEC, type(model).__name__)


def recorded(function: Any) -> list[str]:
    """The operations, and what is returned."""
    found = record(function, torch.randn(1, 4, 6, 6))
    (result,) = found.outputs
    return [*(call.op for call in found.calls if call.op != "constant"), type(result).__name__]


def test_what_it_needs_of_torch() -> None:
    """The interface of dispatch modes is not public: this fails where it changes."""
    mode = _python_dispatch.TorchDispatchMode
    assert issubclass(Recorder, mode)
    assert list(inspect.signature(mode.__torch_dispatch__).parameters) == ["self", "func", "types", "args", "kwargs"]
    seen = []

    class Seeing(mode):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func._schema.name, func.name(), torch.Tag.nondeterministic_seeded in func.tags))
            written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            seen.extend(written)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Seeing():
        torch.ones(2).add_(torch.rand(2))
    assert seen[1:] == [("aten::rand", "aten::rand", True), ("aten::add_", "aten::add_.Tensor", False), "self"]
    composite = torch._C._dispatch_has_kernel_for_dispatch_key
    assert composite("aten::conv2d", "CompositeImplicitAutograd")
    assert not composite("aten::convolution", "CompositeImplicitAutograd")
    assert "torch._dynamo.eval_frame" not in str(inspect.getmodule(Recorder.__torch_dispatch__))


# What is recorded.


def test_only_what_depends_on_the_image() -> None:
    weight = torch.randn(4, 4, 3, 3)

    def network(x: Tensor) -> Tensor:
        centred = weight - weight.mean((1, 2, 3), keepdim=True)
        scale = float(centred.abs().mean())  # numbers of weights are numbers
        if scale > 100:
            centred = centred / scale
        return F.conv2d(x, torch.sign(centred) * scale)

    assert recorded(network) == ["image", "convolution", "Call"]


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x.detach(),
        lambda x: x.data,
        lambda x: x.clone(),
        lambda x: x.view(1, 4, 36).view(1, 4, 6, 6),
        lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
        lambda x: x.double().float(),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: torch.cat([x[:, :1], x[:, 1:]], 1),
        lambda x: torch.zeros_like(x).copy_(x),
        lambda x: x.unsqueeze(0).expand(1, 1, 4, 6, 6)[0],
        lambda x: torch.stack(x.unbind(1), 1),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.flip(1).flip(1),
        lambda x: F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1],
    ],
)
def test_what_moves_no_element_is_nothing(same: Any) -> None:
    assert recorded(lambda x: same(x).relu()) == ["image", "relu", "Call"]


def test_views_see_what_is_written_later() -> None:
    def network(x: Tensor) -> Tensor:
        y = x.clone()
        view, other = y[:, :2], y.data.view(1, 4, 36)
        y.mul_(2)
        view.add_(1)
        return other.view(1, 4, 6, 6) + view.sum(1, keepdim=True)

    assert_same(network)


def test_tensors_that_change_their_memory() -> None:
    def network(x: Tensor) -> Tensor:
        y = x.clone()
        for _ in range(3):  # each time the old memory is free for the next
            y.data = y.data * 2
        return y + torch.ones(1, 4, 6, 6, dtype=x.dtype)

    assert_same(network)


def test_equal_operations_are_one() -> None:
    assert recorded(lambda x: torch.tanh(x) + torch.tanh(x)) == ["image", "tanh", "add", "Call"]


def test_an_elementwise_operation_goes_before_the_order_changes() -> None:
    found = record(lambda x: F.relu(x.permute(0, 2, 3, 1).flatten(1)), torch.randn(1, 4, 6, 6))
    (relu,) = (call for call in found.calls if call.op == "relu")
    (result,) = found.outputs
    assert relu.shape == (1, 4, 6, 6)
    assert isinstance(relu.args[0], Call)
    assert isinstance(result, Arranged)
    assert result.order() is not None


def test_inference_mode() -> None:
    layer = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )

    class Inference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        @torch.inference_mode()
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    found = torch_module.trace(Inference().eval(), (4, 6, 6))
    kinds_found = [type(node) for node in found.nodes]
    assert kinds_found == [ir.Input, ir.Conv, ir.Norm, ir.MaxPool, ir.Flatten, ir.Linear]


def test_scopes_name_what_is_recorded() -> None:
    """For front ends that interpret programs."""

    def program(x: Tensor) -> Tensor:
        with scope("first"):
            x = torch.relu(x)
        with scope("second"):
            return F.conv2d(x, torch.ones(2, 4, 1, 1, dtype=x.dtype)) + 1

    graph = torch_module.trace(program, (4, 6, 6))
    assert [node.name for node in graph.nodes][1:3] == ["first", "second"]
    with scope("alone"):  # without a recorder it is nothing
        pass


# What is refused.


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Sequential(nn.ReLU(), Branching())

    def forward(self, x: Tensor) -> Tensor:
        return self.stage(x)


def noise_once(x: Tensor) -> Tensor:
    return x + torch.randn(4, 1, 1).mul(0.1)


REFUSED: dict[str, tuple[Any, str]] = {
    "if": (Branching(), r"a number or a condition is taken from the image .* \(Branching\), test_recorder.py:\d+"),
    "where it is": (Inner(), r"in stage.1 \(Branching\), test_recorder.py:\d+"),
    "item": (lambda x: x * x.abs().max().item(), "taken from the image"),
    "loop": (lambda x: sum(x for _ in range(int(x.abs().max()) + 1)), "taken from the image"),
    "nonzero": (lambda x: (x > 0).nonzero().float(), "positions are taken from the image"),
    "mask that selects": (lambda x: x[x > 0].sum(), "a mask that depends on the image selects elements; torch.where"),
    "numpy": (lambda x: torch.from_numpy(np.sign(x.detach().numpy())), r"Tensor.numpy\(\) takes values of the image"),
    "tolist": (lambda x: x * sum(x.flatten().tolist()), r"Tensor.tolist\(\)"),
    "dropout": (lambda x: F.dropout(x, 0.5), "random numbers"),
    "randn_like": (lambda x: x + torch.randn_like(x), "randn_like is random"),
    "noise": (noise_once, r"random numbers \(drawn in test_recorder.py:\d+\) are used"),
    "rrelu": (lambda x: F.rrelu(x, training=True), "random"),
    "bits": (lambda x: x.view(torch.int16).view(x.dtype) + 1, "another size"),
    "dict": (lambda x: {"out": x.relu()}, r"a dict with the keys 'out'; .* lambda x: model\(x\)\['out'\]"),
    "None": (lambda x: (x.relu(), None), "NoneType where a tensor is expected"),
    "number": (lambda x: 3, "int where a tensor is expected"),
    "nothing": (lambda x: (), "returns nothing"),
    "constant": (lambda x: torch.ones(1, 3), "does not depend on its input"),
    "two inputs": (lambda x, y: x, "does not take an input of"),
    "not callable": (3, "a module or a function of images is expected, not int"),
    "meta": (nn.Conv2d(4, 4, 1, device="meta"), "weight has no values"),
    "lazy": (nn.LazyConv2d(3, 1), "weight has no values"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_refused(case: str) -> None:
    network, words = REFUSED[case]
    with pytest.raises(ExportError, match=words):
        source(network)
    assert Recorder.active is None


def test_random_numbers_that_are_overwritten_do_not_matter() -> None:
    def network(x: Tensor) -> Tensor:
        layer = nn.Conv2d(4, 2, 1, dtype=x.dtype)  # made, and initialised, at every call
        layer.weight.data.fill_(0.5)
        assert layer.bias is not None
        layer.bias.data.copy_(torch.arange(2.0))
        return layer(x)

    assert source(network).warnings == []


# What is left behind.


class Stateful(nn.Module):
    """As some public networks do it: weights are replaced, counted, hung onto each other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.tied = self.weight
        self.plain = torch.ones(1)
        self.calls = 0
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        self.last = x
        self.weight.data.clamp_(-1e-3, 1e-3)
        if not hasattr(self.weight, "org"):
            self.weight.org = self.weight.data.clone()
        self.weight.data = self.weight.org.sign()
        assert self.tied is self.weight
        return F.conv2d(x.sign(), self.weight) * self.plain


def test_a_network_is_left_as_it_was() -> None:
    model = Stateful()
    before, attributes = model.weight.detach().clone(), sorted(vars(model))
    found = source(model)
    found.reference(np.zeros((2, *SPEC.shape)))
    assert torch.equal(model.weight, before)
    assert sorted(vars(model)) == attributes
    assert (model.calls, float(model.count), model.training) == (0, 0.0, True)
    assert not hasattr(model.weight, "org")
    assert found.warnings == ["Stateful was in training mode; exported as in eval mode"]
    assert len(kinds(found.graph, ir.BinaryConv)) == 1


def test_modes_come_back_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.Sequential(Branching(), nn.Dropout()))
    model[1].eval()
    modes = [m.training for m in model.modules()]
    with pytest.raises(ExportError):
        source(model)
    assert [m.training for m in model.modules()] == modes


class Foreign(nn.Module):
    """Forbids what an exporter has no need of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 1)

    def train(self, mode: bool = True) -> Any:
        raise AssertionError("train() was called")

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("it was copied")

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return self.layer(x)


def test_neither_train_nor_copies_are_needed() -> None:
    assert source(Foreign()).warnings == ["Foreign was in training mode; exported as in eval mode"]


# The reference.


def test_reference_in_float64_where_the_network_takes_it() -> None:
    model = nn.Sequential(nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = np.random.default_rng(0).normal(size=(3, *SPEC.shape))
    found = source(model).reference(x)
    assert found.shape == (3, 3)
    np.testing.assert_allclose(found, model.double()(torch.tensor(x)).detach().numpy(), rtol=1e-13)
    assert source(model.half()).reference(x).dtype == np.float64


def test_reference_in_float32_where_it_does_not() -> None:
    weight = torch.randn(3, 4, 1, 1)
    found = source(lambda x: F.conv2d(x.float(), weight))
    x = np.random.default_rng(0).normal(size=(2, *SPEC.shape))
    assert found.reference(x).shape == (2, 3, 6, 6)
    plain = source(lambda x: F.conv2d(x, weight))  # which raises in float64
    assert plain.reference(x).dtype == np.float32


def test_images_that_know_of_each_other_are_computed_alone() -> None:
    found = source(lambda x: x - x.mean((0, 2, 3), keepdim=True))
    assert "other results for several images at once" in found.warnings[0]
    x = np.random.default_rng(0).normal(size=(2, *SPEC.shape))
    np.testing.assert_allclose(found.reference(x), x - x.mean(axis=(2, 3), keepdims=True), atol=1e-12)


def test_several_results() -> None:
    found = source(lambda x: (x.relu(), x.mean((2, 3))))
    maps, vectors = found.reference(np.ones((2, *SPEC.shape)))
    assert (maps.shape, vectors.shape) == ((2, 4, 6, 6), (2, 4))
    assert [node.shape for node in found.graph.outputs] == [(4, 6, 6), (4, 1, 1)]
