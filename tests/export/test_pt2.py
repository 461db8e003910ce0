"""Programs of torch.export: read only with leave, and nonsense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend import pt2

from support.comparing import kinds, unsupported
from support.interpret import interpret

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        w = self.weight
        y = F.conv2d(torch.where(x >= 0, 1.0, -1.0), w.sign() * w.abs().mean((1, 2, 3), keepdim=True), None, 2, 1)
        return self.fc(F.relu(y).mean((2, 3)))


def save(path: Path, module: nn.Module, *inputs: Tensor) -> Path:
    torch.export.save(torch.export.export(module.eval(), inputs), path)
    return path


def test_program(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(1, 3, 6, 8)
    source = pt2.source(save(tmp_path / "net.pt2", net, x), allow_unsafe=True)
    assert (source.name, source.input.shape, source.num_classes) == ("net", (3, 6, 8), 4)
    assert unsupported(source.graph) == []
    assert len(kinds(source.graph, ir.BinaryConv)) == 1
    expected = net(x).detach().numpy()
    np.testing.assert_allclose(source.reference(x.numpy()), expected, atol=1e-5)
    (found,) = interpret(source.graph, x.double().numpy())
    np.testing.assert_allclose(found.reshape(1, 4), expected, atol=1e-5)


def test_only_with_leave(tmp_path: Path) -> None:
    path = save(tmp_path / "net.pt2", Net(), torch.randn(1, 3, 6, 8))
    with pytest.raises(ExportError, match=r"may run code that is hidden in it .*allow_unsafe=True"):
        pt2.source(path)


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: save(path, nn.ReLU(), torch.randn(2, 3, 6, 8)), "takes a batch of 2 images"),
        (lambda path: save(path, nn.ReLU(), torch.randn(1, 3)), r"takes an input of \(1, 3\)"),
        (lambda path: save(path, nn.ReLU(), torch.ones(1, 3, 6, 8, dtype=torch.int32)), "expected floats"),
        (lambda path: save(path, Two(), torch.randn(1, 3, 6, 8), torch.randn(1)), "takes 2 inputs"),
        (lambda path: path.write_bytes(b"nonsense"), "is not a program of torch.export"),
        (lambda path: path.write_bytes(b""), "is not a program of torch.export"),
        (lambda path: None, "cannot be read"),
    ],
)
def test_nonsense(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "net.pt2")
    with pytest.raises(ExportError, match=words):
        pt2.source(tmp_path / "net.pt2", allow_unsafe=True)
