"""Training in the deployed arithmetic: logits are those of the exported file, bit for bit; gradients; refusals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.export import ExportError, export_module, ir, register_layer
from ovsw.export.frontend.torch_module import trace
from ovsw.networks import InputSpec, network
from ovsw.nn import BinaryConv2d, create
from ovsw.train import Deployed, freeze

from support.deploying import Drawn
from support.foreign import HABITS
from support.quantizing import Gentle, integer_model, loaded, randomised, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CIFAR = network("cResNet20").input
WIDTHS: list[dict[str, str]] = [{}, {"weights": "int8"}, {"stem": "int8"}, {"weights": "int8", "stem": "int16"}]


def random_pixels(spec: InputSpec, n: int = 3, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, *spec.shape), generator=torch.Generator().manual_seed(seed)).byte()


def interleaved(pixels: Tensor) -> np.ndarray:
    """As the engine takes them: (n, h, w, c)."""
    return np.ascontiguousarray(pixels.permute(0, 2, 3, 1).numpy())


def assert_bits_of_the_file(model: nn.Module, spec: InputSpec, widths: dict[str, str], n: int = 3) -> None:
    """With gradients and without, from pixels and from normalised images, against the engine and the simulation."""
    freeze(model.train())
    pixels = random_pixels(spec, n)
    normalised = torch.from_numpy(spec.normalised(interleaved(pixels)))
    deployed = Deployed(model, spec, **widths)
    found = [deployed(pixels), deployed(normalised)]
    assert all(logits.requires_grad for logits in found)
    with torch.no_grad():
        found += [deployed(pixels), deployed(normalised)]
    file, _ = integer_model(copy.deepcopy(model), spec.shape, spec.mean, spec.std, **widths)
    expected = Engine(bnn.to_bytes(file)).run(interleaved(pixels))
    values = numerics.simulate_values(file, interleaved(pixels))
    np.testing.assert_array_equal(values[file.output].reshape(len(pixels), -1), expected)
    assert expected.std() > 0.01
    for logits in found:
        np.testing.assert_array_equal(logits.detach().numpy(), expected)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed: int) -> None:
    assert_bits_of_the_file(Drawn(seed), CIFAR, WIDTHS[seed % 4])


@pytest.mark.parametrize("widths", WIDTHS[:2])
@pytest.mark.parametrize("arch", ["cResNet20_1w1a", "VGGSmall_1w1a", "ResNet18_1w1a"])
def test_the_networks_of_the_box(arch: str, widths: dict[str, str]) -> None:
    size = 16 if arch.startswith("V") else 32
    model = loaded(arch, state_of(arch, size), size)
    assert_bits_of_the_file(model, network(arch).input.at(size), widths, n=1)


def test_whatever_the_layout() -> None:
    """Constants come from the same sums as in an export, where weights lie channels first: their last bits count."""
    model = randomised(Gentle(), 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert not model.get_parameter("stem.0.weight").is_contiguous()
    for node in trace(model, CIFAR.shape).nodes:
        assert all(a.flags.c_contiguous for a in vars(node).values() if isinstance(a, np.ndarray)), node.name
    assert_bits_of_the_file(model, CIFAR, {})


def test_a_wide_average_and_a_large_stem() -> None:
    """Sums of either go beyond what float32 holds."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 15, 1, 7), nn.BatchNorm2d(4), nn.Hardtanh(), BinaryConv2d(4, 4, 1), nn.BatchNorm2d(4),
        nn.Hardtanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    assert_bits_of_the_file(randomised(model, 0), CIFAR, {})


def test_under_autocast() -> None:
    """Dots go beyond what bfloat16 holds: 8 bits."""
    deployed = Deployed(freeze(create("cResNet20", 10).train()), CIFAR)
    pixels = random_pixels(CIFAR)
    expected = deployed(pixels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = deployed(pixels)
    np.testing.assert_array_equal(found.detach().numpy(), expected.detach().numpy())


def test_weights_of_zero_count_as_plus() -> None:
    """In the layer's own forward they count nothing, with the sign of zero that recipes have."""
    model = randomised(Gentle(), 4)
    for layer in model.modules():
        if isinstance(layer, BinaryConv2d):
            layer.zero = 0
            with torch.no_grad():
                layer.weight.view(-1)[::7] = 0
    assert_bits_of_the_file(model, CIFAR, {})


def test_scales_of_zero() -> None:
    """From such a layer's result its dots cannot be told."""
    model = randomised(Gentle(), 5)
    with torch.no_grad():
        model.get_parameter("conv.scaling_factor")[::2] = 0
    assert_bits_of_the_file(model, CIFAR, {})


def test_layers_made_known() -> None:
    """What another layer's result is in training, only the layer knows."""

    class Noisy(BinaryConv2d):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            return result + 0.3 * torch.rand_like(result) if self.training else result

    def convert(name: str, inputs: list[ir.Node], shape: ir.Shape, m: Any) -> ir.Node:
        weight, scale = m.weight.detach().numpy(), m.scaling_factor.detach().double().numpy()
        return ir.BinaryConv(name, inputs, shape, m.kernel_size, m.stride, m.padding, weight=weight, scale=scale)

    register_layer(Noisy, convert)
    model = randomised(Gentle(), 6)
    model.get_submodule("conv").__class__ = Noisy
    assert_bits_of_the_file(model, CIFAR, {})


def test_it_follows_the_weights(tmp_path: Any) -> None:
    """Steps of an optimizer, load_state_dict: what counts are the weights at the call."""
    model = freeze(randomised(Gentle(), 7).train())
    deployed = Deployed(model, CIFAR, stem="int8")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = random_pixels(CIFAR, 4), torch.arange(4)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(deployed(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    export_module(model, (1, *CIFAR.shape), tmp_path / "m.bnn", mean=CIFAR.mean, std=CIFAR.std, stem="int8")
    np.testing.assert_array_equal(deployed(x).detach().numpy(), Engine(tmp_path / "m.bnn").run(interleaved(x)))
    other = randomised(Gentle(), 10)
    model.load_state_dict(other.state_dict())
    file, _ = integer_model(other, CIFAR.shape, CIFAR.mean, CIFAR.std, stem="int8")
    np.testing.assert_array_equal(deployed(x).detach().numpy(), numerics.simulate(file, interleaved(x)))


# Gradients: those of the module where each map that the file stores is set to what the file's numbers stand for. The
# numbers are the simulation's; hardtanh's own hooks put them in, in the order of the calls.


def maps_of_clamps(file: bnn.Model, pixels: Tensor) -> list[Tensor]:
    values = numerics.simulate_values(file, interleaved(pixels))
    clamped = [values[op.out] for op in file.ops if op.act == "clamp" and op.out is not None]
    return [torch.from_numpy((n + 0.5) / 32767.5).permute(0, 3, 1, 2).float() for n in clamped]


def by_hooks(model: nn.Module, spec: InputSpec, pixels: Tensor) -> Tensor:
    file, _ = integer_model(copy.deepcopy(model), spec.shape, spec.mean, spec.std)
    logits = torch.from_numpy(numerics.simulate(file, interleaved(pixels)))
    maps = iter(maps_of_clamps(file, pixels))

    def put(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + (next(maps) - output).detach()

    clamps = [m for m in model.modules() if isinstance(m, nn.Hardtanh)]
    handles = [m.register_forward_hook(put) for m in clamps]
    try:
        found = model(torch.from_numpy(spec.normalised(interleaved(pixels))))
    finally:
        for handle in handles:
            handle.remove()
    assert next(maps, None) is None
    return found + (logits - found).detach()


def test_values_in_the_module_are_the_files() -> None:
    """To 1/1000 of a step."""
    model = freeze(loaded("cResNet20_1w1a", state_of("cResNet20_1w1a", 32), 32).train())
    pixels = random_pixels(CIFAR, 2)
    file, _ = integer_model(copy.deepcopy(model), CIFAR.shape, CIFAR.mean, CIFAR.std)
    seen: list[Tensor] = []
    deployed = Deployed(model, CIFAR)
    deployed(pixels)
    for module in model.modules():
        if isinstance(module, nn.Hardtanh):
            module.register_forward_hook(lambda m, x, y: seen.append(y.detach().clone()))
    deployed(pixels)
    expected = maps_of_clamps(file, pixels)
    seen = seen[-len(expected) :]  # those before are of the recording
    for found, stored in zip(seen, expected, strict=True):
        torch.testing.assert_close(found, stored, rtol=0, atol=1e-3 / 32767.5)


@pytest.mark.parametrize("learned", [False, True])
def test_gradients(learned: bool) -> None:
    arch = "cResNet20_1w1a"
    model = loaded(arch, state_of(arch, 32, learned=learned), 32)
    freeze(model.train())
    pixels, y = random_pixels(CIFAR, 4, seed=1), torch.arange(4)
    grads: list[dict[str, Tensor]] = []
    for forward in (lambda: by_hooks(model, CIFAR, pixels), lambda: Deployed(model, CIFAR)(pixels)):
        model.zero_grad()
        F.cross_entropy(forward(), y).backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    expected, found = grads
    rounded = ("linear.weight",)  # reads a map that no hook sets
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, grad in expected.items():
        assert grad.abs().max() > 0, name
        near = (1e-2 if name in rounded else 1e-4) * grad.abs().max().item()
        torch.testing.assert_close(found[name], grad, rtol=1e-3, atol=near, msg=name)


def test_statistics_stay_and_clamps_block() -> None:
    model = freeze(randomised(Gentle(), 9).train())
    before = {name: value.clone() for name, value in model.named_buffers()}
    x = torch.from_numpy(CIFAR.normalised(interleaved(random_pixels(CIFAR)))).requires_grad_()
    Deployed(model, CIFAR)(x).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert x.grad is not None
    assert x.grad.abs().max() > 0
    model.zero_grad()
    with torch.no_grad():
        model.get_parameter("stem.1.bias").fill_(50.0)
    Deployed(model, CIFAR)(x).sum().backward()
    grad = model.get_parameter("stem.0.weight").grad
    assert grad is not None
    assert grad.abs().max() == 0


# Other people's modules.

HALF = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def drawn_habit(name: str) -> tuple[Any, tuple[int, ...], Tensor]:
    model, shape = HABITS[name]()
    model = model.float() if isinstance(model, nn.Module) else model
    pixels = torch.randint(0, 256, (5, *shape[1:]), generator=torch.Generator().manual_seed(3)).byte()
    with torch.no_grad():  # some make their tensors at the first call
        model(pixels[:1] / 255)
    return model, shape, pixels


def outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def backward(model: nn.Module, result: Any) -> dict[str, Tensor]:
    """Gradients of some loss, by parameter."""
    model.zero_grad()
    losses = [(y - torch.arange(y.numel()).view(y.shape) / 8).square().mean() for y in outputs(result)]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_anybodys_module(rest: bool, tmp_path: Any) -> None:
    """Whatever becomes an integer file by default can be trained as that file, and every parameter learns."""
    integer = []
    chosen = [name for i, name in enumerate(HABITS) if (i % 4 == 0) != rest]
    for name in chosen:
        model, shape, pixels = drawn_habit(name)
        report = export_module(model, shape, tmp_path / "m.bnn", **HALF, force=True)
        if report.numerics != "integer":
            continue
        integer.append(name)
        expected = outputs(Engine(tmp_path / "m.bnn").run(interleaved(pixels)))
        if isinstance(model, nn.Module):
            freeze(model.train())
        found = Deployed(model, shape, **HALF)(pixels)
        for got, want in zip(outputs(found), expected, strict=True):
            np.testing.assert_array_equal(got.detach().numpy().reshape(want.shape), want, err_msg=name)
        if isinstance(model, nn.Module) and outputs(found)[0].requires_grad:
            gradients, own = backward(model, found), backward(model, model((pixels / 255 - 0.5) / 0.25))
            assert gradients.keys() == own.keys(), name
            for parameter, gradient in own.items():
                assert bool(gradients[parameter].any()) == bool(gradient.any()), (name, parameter)
    assert len(integer) >= 0.8 * len(chosen), set(chosen) - set(integer)


class Moved(nn.Module):
    """RSign, RPReLU and DoReFa's weights on a stream that nothing clamps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.weights = nn.ParameterList(torch.randn(8, 8, 3, 3) for _ in range(3))
        self.shifts = nn.ParameterList(0.3 * torch.randn(3, 8, 1, 1) for _ in range(3))
        self.slopes = nn.ParameterList(torch.rand(8) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.head = nn.Linear(8, 4)
        for norm in self.norms:
            nn.init.constant_(norm.running_var, 30)  # type: ignore[arg-type]
        self.maps: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for w, shift, slope, norm in zip(self.weights, self.shifts, self.slopes, self.norms):
            soft = (x + shift[0]).clamp(-1, 1)
            bits = soft + (torch.where(x + shift[0] >= 0, 1.0, -1.0) - soft).detach()
            binary = w + (torch.where(w >= 0, 1.0, -1.0) * w.abs().mean() - w).detach()
            y = norm(F.conv2d(bits, binary, padding=1)) + x + shift[1]
            x = self.put(F.prelu(y, slope)) + shift[2]
        return self.head(x.mean((2, 3)))

    def put(self, x: Tensor) -> Tensor:
        return x if self.maps is None else x + (self.maps.pop(0) - x).detach()


def test_gradients_of_anybodys_module(tmp_path: Any) -> None:
    """A reference that shares nothing with Deployed: the simulation's numbers, put in by the module itself. How many
    steps there are is read off the numbers and the module's own values.
    """
    model = Moved().eval()
    pixels = random_pixels(CIFAR, 4, seed=2)
    gradients = backward(model, Deployed(model, CIFAR)(pixels))
    export_module(model, (1, *CIFAR.shape), tmp_path / "m.bnn", mean=CIFAR.mean, std=CIFAR.std)
    file = bnn.read(tmp_path / "m.bnn")
    values = numerics.simulate_values(file, interleaved(pixels))
    stream = [values[op.out].transpose(0, 3, 1, 2) for op in file.ops if op.act == "prelu" and op.out]
    x, own = torch.from_numpy(CIFAR.normalised(interleaved(pixels))), list[Tensor]()
    model.put = lambda y: own.append(y.detach()) or y  # type: ignore[method-assign, func-returns-value]
    model(x)
    del model.put
    steps = float(np.median(stream[0] / own[0].numpy()))
    assert steps > 2**16
    model.maps = [torch.from_numpy(n / steps).float() for n in stream]
    assert len(model.maps) == len(own) == 3
    logits = torch.from_numpy(numerics.simulate(file, interleaved(pixels)))
    result = model(x)
    for name, gradient in backward(model, result + (logits - result).detach()).items():
        torch.testing.assert_close(
            gradients[name], gradient, rtol=1e-3, atol=1e-3 * gradient.abs().max().item(), msg=name
        )


# Refusals.


def test_batch_norms_must_be_frozen() -> None:
    model = create("cResNet20", 10).train()
    deployed = Deployed(model, CIFAR)
    with pytest.raises(ValueError, match=r"batch norm bn1 still updates its statistics; ovsw\.train\.freeze\(model\)"):
        deployed(random_pixels(CIFAR))
    assert int(model.get_buffer("bn1.num_batches_tracked")) == 0
    assert freeze(model) is model
    assert model.get_submodule("layer1.0.conv1").training
    deployed(random_pixels(CIFAR))
    model.eval()
    deployed(random_pixels(CIFAR))


def test_dropouts_must_be_frozen() -> None:
    model = nn.Sequential(randomised(Gentle(), 1), nn.Dropout(0.5)).eval()
    deployed = Deployed(model, CIFAR)
    model[1].train()
    with pytest.raises(ValueError, match="dropout 1 still drops"):
        deployed(random_pixels(CIFAR))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(2, 3, 32, 31), r"float32 \(2, 3, 32, 31\), expected float32 or uint8 \(n, 3, 32, 32\)"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.float64), "float64"),
        (torch.zeros(3, 32, 32), r"\(3, 32, 32\)"),
        ((torch.zeros(1, 3, 32, 32),), "the images are a tuple, expected a tensor"),
        (torch.full((1, 3, 32, 32), float("nan")), "not finite"),
    ],
)
def test_other_images(images: Tensor, words: str) -> None:
    deployed = Deployed(randomised(Gentle(), 1), CIFAR)
    with pytest.raises(ValueError, match=words):
        deployed(images)


def test_networks_without_an_integer_form() -> None:
    with pytest.raises(ExportError, match="SELU"):
        Deployed(nn.Sequential(randomised(Gentle(), 1), nn.SELU()), CIFAR)
    with pytest.raises(ExportError, match=r"stem\.0\.weight is float64, expected float32 weights"):
        Deployed(randomised(Gentle(), 1).double(), CIFAR)
    with pytest.raises(ExportError, match="weights= is 'int4'; known are int16, int8"):
        Deployed(randomised(Gentle(), 1), CIFAR, weights="int4")
    with pytest.raises(ExportError, match="stem= is 'int4'; known are int16, int8"):
        Deployed(randomised(Gentle(), 1), CIFAR, stem="int4")


def test_weights_that_are_not_finite() -> None:
    """Training has gone astray: the layer is named, and nothing is computed from garbage."""
    model = randomised(Gentle(), 1)
    deployed = Deployed(model, CIFAR)
    with torch.no_grad():
        model.get_parameter("norm.weight")[0] = float("nan")
    with pytest.raises(ExportError, match="norm: 1 of 16 values of weight are not finite"):
        deployed(random_pixels(CIFAR))


class Dithered(nn.Module):
    """Something else in training: noise that counts or is overwritten, another shape."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.kind = randomised(Gentle(), 1), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(x)
        if self.training and self.kind == "shape":
            return y[:, :5]
        noise = torch.rand(1, 10) if self.training else torch.zeros(1, 10)
        return y + (noise if self.kind == "noise" else noise.zero_())


def test_modules_that_compute_something_else_in_training() -> None:
    pixels = random_pixels(CIFAR)
    expected = Deployed(Dithered("overwritten").eval(), CIFAR)(pixels)
    deployed = Deployed(freeze(Dithered("overwritten").train()), CIFAR)
    np.testing.assert_array_equal(deployed(pixels).detach().numpy(), expected.detach().numpy())
    for kind, words in (("noise", "random"), ("shape", r"returns \(3, 5\) in training mode")):
        deployed = Deployed(freeze(Dithered(kind).train()), CIFAR)
        with pytest.raises(ExportError, match=words):
            deployed(pixels)
