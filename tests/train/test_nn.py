"""The networks: sizes, key names and forward pass of the reference implementation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ovsw.networks import network, networks
from ovsw.nn import BinaryConv2d, binary_layers, create, sign

from support import DATA, shared

ALL = [
    *("ResNet18_1w1a", "ResNet34_1w1a", "ReActResNet18_1w1a", "ReActResNet34_1w1a"),
    *("cResNet18_1w1a", "cResNet20_1w1a", "VGGSmall_1w1a"),
    *("RBNN_cResNet18_1w1a", "RBNN_cResNet20_1w1a", "RBNN_plain_cResNet20_1w1a"),
    *("AdaBin_cResNet18_1w1a", "AdaBin_cResNet20_1w1a", "ReCU_cResNet18_1w1a", "ReCU_cResNet20_1w1a"),
    *("RBNN_VGGSmall_1w1a", "ReCU_VGGSmall_1w1a"),
    *("BiReal_cResNet20_1w1a", "BiRealNet18_1w1a", "BiRealNet34_1w1a"),
]


def test_sign() -> None:
    x = torch.tensor([-2.0, -1e-45, -0.0, 0.0, 1e-45, 3.0])
    assert sign(x).tolist() == [-1, -1, 1, 1, 1, 1]
    assert sign(x.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("arch", "classes", "parameters", "binary", "convolutions", "keys"),
    [
        ("ResNet18_1w1a", 1000, 11_690_536, 10_985_472, 16, 127),
        ("ResNet34_1w1a", 1000, 21_798_696, 21_086_208, 32, 223),
        ("cResNet18_1w1a", 10, 11_174_986, 11_157_504, 19, 127),
        ("cResNet18_1w1a", 100, 11_221_156, 11_157_504, 19, 127),
        ("cResNet20_1w1a", 10, 269_850, 267_264, 18, 121),
        ("cResNet20_1w1a", 100, 275_700, 267_264, 18, 121),
        ("VGGSmall_1w1a", 10, 4_660_618, 4_571_136, 5, 39),
        ("VGGSmall_1w1a", 100, 5_397_988, 4_571_136, 5, 39),
    ],
)
def test_counts(arch: str, classes: int, parameters: int, binary: int, convolutions: int, keys: int) -> None:
    with torch.device("meta"):
        model, learned = create(arch, classes), create(arch, classes, learned_scale=True)
    layers = [m for m in model.modules() if isinstance(m, BinaryConv2d)]
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(m.weight.numel() for m in layers) == binary
    assert len(layers) == convolutions
    assert len(model.state_dict()) == keys
    assert len(learned.state_dict()) == keys + convolutions


def test_binary_convolution_by_hand() -> None:
    """One output pixel at a border, written out: padding counts nothing, the sign is of the raw weight."""
    torch.manual_seed(0)
    layer = BinaryConv2d(2, 3, 3, 1, 1).eval()
    with torch.no_grad():
        layer.weight += 0.3  # channel means that change the sign of the standardised weight
    x = torch.randn(1, 2, 4, 4)
    y = layer(x)
    for k in range(3):
        w = layer.weight[k].double()
        standard = (w - w.mean()) / torch.sqrt(w.var() + 1e-5)
        dot = (np.sign(x[0, :, :2, :2].numpy()) * np.sign(layer.weight[k, :, 1:, 1:].detach().numpy())).sum()
        assert y[0, k, 0, 0].item() == pytest.approx(dot * standard.abs().mean().item(), abs=1e-5)
    layer.learn_scale()
    assert layer.scaling_factor is not None
    assert torch.equal(layer.scaling_factor, layer.weight.abs().mean(dim=(1, 2, 3)))
    with torch.no_grad():
        layer.scaling_factor.fill_(-2.0)
    assert set(layer(x).unique().tolist()) <= {-2.0 * n for n in range(-18, 19)}


def test_zero_is_plus_or_zero() -> None:
    layer = BinaryConv2d(1, 1, 1).eval()
    with torch.no_grad():
        layer.weight.fill_(0.0)
    layer.learn_scale()
    layer.scaling_factor.data.fill_(1.0)  # type: ignore[union-attr]
    x = torch.tensor([[[[2.0, -2.0, 0.0]]]])
    assert layer(x).flatten().tolist() == [1, -1, 1]
    layer.zero = 0
    assert layer(x).flatten().tolist() == [0, 0, 0]


def test_registry() -> None:
    assert networks() == ALL
    assert network("resnet18").name == "ResNet18_1w1a"
    assert network("CRESNET18").name == "cResNet18_1w1a"
    with pytest.raises(ValueError, match=r"unknown network 'AlexNet'; known are ResNet18_1w1a, .*VGGSmall_1w1a"):
        network("AlexNet")


@pytest.mark.parametrize("arch", ALL)
def test_forward_shapes(arch: str) -> None:
    size = 32 if network(arch).dataset == "cifar" else 64
    with torch.no_grad(), torch.device("meta"):  # shapes alone, without numbers
        assert create(arch, 7).eval()(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_forward_of_another_size() -> None:
    with torch.no_grad():
        assert create("VGGSmall", 7, input_size=40).eval()(torch.randn(1, 3, 40, 40)).shape == (1, 7)


def test_initialisation() -> None:
    """ImageNet networks start with tiny batch-norm weights, VGGSmall with fan-out weights."""
    model = create("ResNet18_1w1a", 10)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(torch.all(m.weight == 1e-8) for m in norms)
    layer = model.get_submodule("layer4.1.conv2")
    assert isinstance(layer, BinaryConv2d)
    assert layer.weight.std().item() == pytest.approx((2 / 4608) ** 0.5, rel=0.02)
    vgg = create("VGGSmall_1w1a").get_submodule("conv2")
    assert isinstance(vgg, BinaryConv2d)
    assert vgg.weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)


def reference_keys(path: object) -> tuple[dict[str, object], list[str]]:
    with np.load(str(path)) as f:
        meta = json.loads(str(f["meta"]))
    keys = [k for k, _, _ in meta["keys"] if not k.endswith((".weight_prev", ".tracker"))]
    return meta, keys


@pytest.mark.parametrize("arch", ["cResNet20_1w1a", "VGGSmall_1w1a", "RBNN_cResNet20_1w1a"])
def test_no_weight_is_drawn_as_zero(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the generator gives an exact 0 the weight is tiny and positive; no other weight or draw is another."""
    real = nn.init.kaiming_normal_

    def with_zeros(tensor: Tensor, **options: Any) -> Tensor:
        real(tensor, **options)
        with torch.no_grad():
            tensor.view(-1)[[0, 5]] = 0.0
        return tensor

    torch.manual_seed(1)
    plain = dict(create(arch).named_parameters())
    expected_draw = torch.rand(1)
    monkeypatch.setattr(nn.init, "kaiming_normal_", with_zeros)
    torch.manual_seed(1)
    model = create(arch)
    assert torch.equal(torch.rand(1), expected_draw)
    for name in binary_layers(model):
        found, before = (p[f"{name}.weight"].detach().flatten() for p in (dict(model.named_parameters()), plain))
        assert (found[[0, 5]] > 0).all()
        assert found[[0, 5]].max() <= found.abs().min()
        others = torch.ones(len(found), dtype=torch.bool)
        others[[0, 5]] = False
        assert torch.equal(found[others], before[others])


def test_key_order_of_the_small_golden() -> None:
    meta, keys = reference_keys(DATA / "cResNet20_1w1a_sfTrue.npz")
    assert list(create(str(meta["arch"]), learned_scale=True).state_dict()) == keys


@pytest.mark.parametrize("name", ["ResNet18_1w1a", "cResNet18_1w1a", "cResNet20_1w1a", "VGGSmall_1w1a"])
def test_key_order_of_the_goldens(name: str) -> None:
    meta, keys = reference_keys(shared("golden", f"{name}.npz"))
    assert list(create(str(meta["arch"])).state_dict()) == keys
