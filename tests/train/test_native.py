"""The native training kernels against torch in float64, on every table of this CPU: values, gradients, statistics."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import _core
from ovsw.nn import BinaryConv2d, ReActConv2d, binary_layers, create, native
from ovsw.nn.adabin import AdaBinPaddingBlock
from ovsw.nn.binary import binary_unit, with_scale
from ovsw.nn.bireal import BiRealBlock
from ovsw.nn.react import ReActBlock
from ovsw.nn.resnet import padded_shortcut
from ovsw.train import OvSW

from support import HANGS

TABLES = [name for name, supported in _core.tables() if supported]
TOLERANCE = 3e-6  # of the largest number, in float32

# Images, channels in and out, height, width, stride. Full rows, packs that are not full, odd sizes, one pixel.
SHAPES = [
    (5, 16, 16, 32, 32, 1),
    (3, 16, 32, 32, 32, 2),
    (7, 32, 48, 16, 16, 1),
    (9, 48, 16, 16, 16, 2),
    (13, 64, 64, 8, 8, 1),
    (3, 16, 16, 7, 7, 1),
    (4, 16, 32, 7, 7, 2),
    (2, 16, 16, 5, 31, 2),
    (33, 16, 16, 1, 1, 1),
    (2, 16, 16, 3, 1, 2),
    (2, 16, 16, 5, 56, 1),
    (3, 16, 32, 4, 64, 2),
    (2, 16, 16, 3, 33, 1),
]


@pytest.fixture(params=TABLES)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


class Layers(nn.Module):
    """One unit: hardtanh(norm(conv(x)) + residual)."""

    def __init__(self, cin: int, cout: int, stride: int, learned: bool) -> None:
        super().__init__()
        self.conv = BinaryConv2d(cin, cout, 3, stride, 1, learned)
        self.norm = nn.BatchNorm2d(cout)
        self.act = nn.Hardtanh(-0.8, 1.2)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        return binary_unit(self.conv, self.norm, self.act, x, residual)


def assert_near(got: Tensor | None, expected: Tensor | None) -> None:
    assert (got is None) == (expected is None)
    if got is not None and expected is not None:
        scale = float(expected.detach().abs().max())
        tolerance = TOLERANCE if expected.ndim else 1e-3  # one number for a whole layer is what large sums leave
        assert float((got.detach().double() - expected.detach()).abs().max()) <= tolerance * max(scale, 1e-6)


def assert_same_steps(model: nn.Module, *inputs: Tensor | None) -> None:
    """The module natively in float32, by every table, and with torch in float64: result, gradients, buffers."""
    exact = copy.deepcopy(model).double()
    wide = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    if len(inputs) > 1 and inputs[1] is inputs[0]:
        wide[1] = wide[0]
    with native.using(None):
        expected = exact(*wide)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
        (expected * weights).sum().backward()
    for isa in TABLES:
        own = copy.deepcopy(model)
        for x in inputs:
            if x is not None:
                x.grad = None
        with native.using(isa):
            calls = count_calls(own)
            result = own(*inputs)
            (result * weights).sum().backward()
        assert calls() > 0, f"{isa}: the native kernels were not used"
        assert_near(result, expected)
        for x, y in zip(inputs, wide):
            if x is not None and y is not None:
                assert_near(x.grad, y.grad)
        for (name, p), q in zip(own.named_parameters(), exact.parameters()):
            assert p.grad is not None, name
            assert_near(p.grad, q.grad)
        for b, c in zip(own.buffers(), exact.buffers()):
            assert_near(b, c.double())


def count_calls(model: nn.Module):
    """How many binary convolutions have gone through the native kernels since."""
    graph: list[int] = []

    def note(_: nn.Module, __: object, result: Tensor) -> None:
        seen, queue = set(), [result.grad_fn]
        while queue:
            node = queue.pop()
            if node is not None and node not in seen:
                seen.add(node)
                graph.append(type(node).__name__ == "_UnitBackward")
                queue += [n for n, _ in node.next_functions]

    model.register_forward_hook(note)
    return lambda: sum(graph)


# What is added: the input itself where it has the shape of the result, another map, nothing.
UNITS = [(s, r) for s in SHAPES for r in ("own", "other", "none") if r != "own" or (s[5] == 1 and s[1] == s[2])]


@pytest.mark.parametrize(("shape", "residual"), UNITS, ids=str)
def test_unit(shape: tuple[int, ...], residual: str) -> None:
    n, cin, cout, h, w, stride = shape
    torch.manual_seed(sum(shape))
    model = Layers(cin, cout, stride, learned=residual == "other")
    x = torch.randn(n, cin, h, w, requires_grad=True)
    size = (n, cout, (h - 1) // stride + 1, (w - 1) // stride + 1)
    other = {"own": x, "other": torch.randn(size, requires_grad=True), "none": None}[residual]
    assert_same_steps(model, x, other)


def varied(block: nn.Module) -> nn.Module:
    """With no parameter at its first value, where a missing gradient or shift could go unnoticed."""
    with torch.no_grad():
        for name, p in block.named_parameters():
            if name.endswith("alpha_a"):
                p.fill_(0.7)
            elif p.ndim < 2 or name.endswith("bias"):
                p.add_(0.3 * torch.randn(p.shape))
            else:
                p.add_(0.2 * p.std())  # so that filters have a mean
    return block


BLOCKS = {
    "Bi-Real": lambda cin, cout, stride: BiRealBlock(cin, cout, stride, ReActConv2d),
    "Bi-Real, learned scale": lambda cin, cout, stride: BiRealBlock(cin, cout, stride, with_scale(ReActConv2d, True)),
    "ReActNet": lambda cin, cout, stride: ReActBlock(cin, cout, stride, ReActConv2d),
    "AdaBin": AdaBinPaddingBlock,
}


@pytest.mark.parametrize("shape", [(5, 16, 16, 32, 32, 1), (3, 16, 32, 16, 16, 2), (2, 32, 32, 8, 56, 1)], ids=str)
@pytest.mark.parametrize("method", BLOCKS)
def test_blocks_of_other_methods(method: str, shape: tuple[int, ...]) -> None:
    n, cin, cout, h, w, stride = shape
    torch.manual_seed(7)
    block = varied(BLOCKS[method](cin, cout, stride))
    assert_same_steps(block, torch.randn(n, cin, h, w, requires_grad=True))


@pytest.mark.parametrize("method", BLOCKS)
def test_evaluation(method: str, isa: str) -> None:
    """Without gradients an eval-mode network takes the kernels, too, with the statistics gathered before."""
    torch.manual_seed(8)
    block = varied(BLOCKS[method](16, 32, 2)).eval()
    x = torch.randn(3, 16, 16, 16)
    with torch.no_grad():
        with native.using(None):
            expected = copy.deepcopy(block).double()(x.double())
        with native.using(isa):
            assert_near(block(x), expected)
            assert native.unit(next(iter(binary_layers(block).values())), x) is not None
    assert native.unit(next(iter(binary_layers(block).values())), x) is None  # with gradients torch is asked


def test_recu_cuts_gradients_of_large_weights() -> None:
    torch.manual_seed(0)
    conv = BinaryConv2d(16, 16, 3, 1, 1)
    conv.tau = 0.9
    x = torch.randn(4, 16, 8, 8, requires_grad=True)
    assert_same_steps(nn.Sequential(conv), x)
    conv(x).sum().backward()
    assert int((conv.weight.grad == 0).sum()) > 10


@pytest.mark.parametrize(("name", "units"), [("cResNet20", 18), ("cResNet18", 16), ("VGGSmall", 5)])
def test_networks_take_the_native_way(name: str, units: int) -> None:
    """Every binary 3x3 of the networks."""
    model = create(name)
    calls = count_calls(model)
    model(torch.randn(2, 3, 32, 32))
    assert calls() == units


def test_a_whole_network() -> None:
    """All gradients of cResNet20, where no activation is so near to 0 that float32 gives it another sign."""
    torch.manual_seed(0)
    fresh = create("cResNet20")
    exact = copy.deepcopy(fresh).double()
    x, y = torch.randn(32, 3, 32, 32), torch.arange(32) % 10
    with native.using(None):
        F.cross_entropy(exact(x.double()), y).backward()
    for isa in TABLES:
        model = copy.deepcopy(fresh)
        calls = count_calls(model)
        with native.using(isa):
            F.cross_entropy(model(x), y).backward()
        assert calls() == 18
        for (name, p), q in zip(model.named_parameters(), exact.named_parameters()):
            scale = float(q[1].grad.abs().max())
            assert float((p.grad - q[1].grad).abs().max()) < 2e-5 * scale, (isa, name)


@pytest.mark.parametrize("subsample", [False, True])
def test_halving_shortcuts(subsample: bool) -> None:
    """The same numbers as torch's, for averages but for the order of four additions."""
    shortcut = padded_shortcut(16, 48, 2, subsample)
    x = torch.randn(3, 16, 6, 10, requires_grad=True)
    y, other = x.detach().clone().requires_grad_(), torch.randn(3, 48, 3, 5)
    result = shortcut(x)
    assert type(result.grad_fn).__name__ == "_ShortcutBackward"
    (result * other).sum().backward()
    with native.using(None):
        expected = shortcut(y)
        (expected * other).sum().backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(x.grad, y.grad)
    assert torch.equal(shortcut(x[:, :, :5, :]), shortcut[1](shortcut[0](x[:, :, :5, :])))  # odd: torch


def test_step_of_ovsw() -> None:
    """AGS and SAD on weights natively and with torch: gradients, flips and state, over steps that flip signs."""
    torch.manual_seed(0)
    models = [nn.Sequential(BinaryConv2d(16, 32, 3, 1, 1), BinaryConv2d(32, 16, 3, 1, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    methods = [OvSW(m, lam=0.5, gamma=0.1, sigma=0.05, momentum=0.9) for m in models]
    for step in range(5):
        for layer, twin in zip(*models):
            layer.weight.grad = torch.randn(layer.weight.shape) * 0.02 * (step + 1)
            twin.weight.grad = layer.weight.grad.clone()
        methods[0].step()
        with native.using(None):
            methods[1].step()
        for layer, twin in zip(*models):
            torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
            with torch.no_grad():
                layer.weight -= layer.weight.grad
                twin.weight.copy_(layer.weight)
        torch.testing.assert_close(methods[0].ratio, methods[1].ratio)
        assert methods[0].step_flip_rate() == methods[1].step_flip_rate()
        assert methods[0].silent_share() == methods[1].silent_share()
        assert methods[0].never_flipped() == methods[1].never_flipped()
    assert 0 < methods[0].step_flip_rate() < 1
    assert 0 < methods[0].silent_share() < 1


def one_step(shape: tuple[int, ...], isa: str) -> list[Tensor]:
    """Result, gradients and statistics of one unit, always from the same numbers."""
    n, cin, cout, h, w, stride = shape
    torch.manual_seed(0)
    model = Layers(cin, cout, stride, learned=True)
    x = torch.randn(n, cin, h, w, requires_grad=True)
    with native.using(isa):
        y = model(x, x if (cin, stride) == (cout, 1) else None)
        y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[list-item]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tables_and_threads_give_the_same_bits(shape: tuple[int, ...]) -> None:
    """Every instruction set adds in the same order: a run goes on elsewhere as it would have here."""
    before, results = torch.get_num_threads(), []
    try:
        for isa, threads in itertools.product(TABLES, (1, 2, 5)):
            torch.set_num_threads(threads)
            results.append(one_step(shape, isa))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_after_a_fork() -> None:
    """A child has none of the threads of its parent, and trains all the same."""
    code = """
import os, torch
from ovsw.nn import BinaryConv2d
torch.set_num_threads(3)
conv, x = BinaryConv2d(16, 16, 3, 1, 1), torch.randn(9, 16, 8, 8)
expected = conv(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(conv(x), expected) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS)
    assert ran.stdout == "0\n", ran.stderr


@pytest.mark.parametrize("where", ["activation", "weight"])
@pytest.mark.parametrize("zero", [0, 1])
def test_exact_zeros(where: str, zero: int, isa: str) -> None:
    """A sign of 0 has no bit: such a layer is left to torch. With sign(0) = +1 the kernels take it."""
    torch.manual_seed(0)
    model = Layers(16, 16, 1, learned=False)
    model.conv.zero = zero
    x = torch.randn(3, 16, 8, 8)
    with torch.no_grad():
        (x if where == "activation" else model.conv.weight).view(-1)[5] = 0.0
    exact = copy.deepcopy(model).double()
    with native.using(None):
        expected = exact(x.double(), x.double())
    with native.using(isa):
        native_result = native.unit(model.conv, x, model.norm, model.act, x)
        assert (native_result is None) == (zero == 0)
        tracked = int(model.norm.num_batches_tracked)
        result = model(x, x) if native_result is None else native_result
    assert_near(result, expected)
    assert int(model.norm.num_batches_tracked) == tracked + (native_result is None)


def test_what_is_left_to_torch() -> None:
    conv, norm, act = BinaryConv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.Hardtanh()
    x = torch.randn(2, 16, 8, 8)
    assert native.unit(conv, x, norm, act, x) is not None
    with native.using(None):
        assert native.unit(conv, x, norm, act, x) is None
    assert native.unit(conv, x.double(), norm, act) is None
    assert native.unit(conv, torch.randn(2, 16, 8, 65), norm, act) is None
    assert native.unit(conv, x, norm.eval(), act) is None
    norm.train()
    assert native.unit(conv.eval(), x, norm, act) is None
    conv.train()
    assert native.unit(BinaryConv2d(16, 16, 1), x) is None
    assert native.unit(BinaryConv2d(16, 24, 3, 1, 1), x) is None
    assert native.unit(conv, x, nn.BatchNorm2d(16, track_running_stats=False), act) is None
    seen: list[Tensor] = []
    handle = norm.register_forward_hook(lambda m, i, o: seen.append(o))
    assert native.unit(conv, x, norm, act, x) is None  # somebody wants to see what is between
    binary_unit(conv, norm, act, x, x)
    assert len(seen) == 1
    handle.remove()
    conv.binary_weights = False
    assert native.unit(conv, x) is None


def test_layouts_do_not_matter() -> None:
    torch.manual_seed(0)
    model = Layers(16, 16, 1, learned=False)
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 8, 8)
    a = model(x, x)
    b = twin(*[x.contiguous(memory_format=torch.channels_last)] * 2)
    g = torch.randn(a.shape)
    a.backward(g)
    b.backward(g.contiguous(memory_format=torch.channels_last))
    assert torch.equal(a, b)
    assert torch.equal(model.conv.weight.grad, twin.conv.weight.grad)


def test_addresses_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors over somebody else's memory may lie anywhere; the kernels get them aligned."""
    addresses: list[int] = []
    address = native._address
    monkeypatch.setattr(native, "_address", lambda t: addresses.append(address(t)) or addresses[-1])
    x = torch.randn(2, 16, 8, 8)
    moved = torch.frombuffer(bytearray(b"x" + x.numpy().tobytes()), dtype=torch.float32, offset=1).view(x.shape)
    assert moved.data_ptr() % 4
    model = Layers(16, 16, 1, learned=False)
    assert_same_steps(model, moved.requires_grad_(), moved.detach().requires_grad_())
    assert [a for a in addresses if a % 4] == []


@pytest.mark.parametrize(
    ("name", "slow"), [("cResNet20", 0), ("AdaBin_cResNet20", 0), ("cResNet18", 3), ("RBNN_cResNet20", 18)]
)
def test_layers_without_kernels_are_known(name: str, slow: int) -> None:
    """cResNet18 has three binary 1x1 convolutions; RBNN turns its weights."""
    layers = binary_layers(create(name, 10)).values()
    assert sum(not native.has_kernels(layer) for layer in layers) == slow
