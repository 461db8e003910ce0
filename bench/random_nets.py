"""Binarized ResNet18 and ResNet34 with seeded random weights, made with numpy alone.

They have the ops and shapes that `ovsw-export` gives the trained networks (a test compares the two), so they are as
large and take as long; only their answers mean nothing.
"""

from __future__ import annotations

import numpy as np

from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.labels import load_labels

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
_CLAMP = {"act": "clamp", "clamp": (-1.0, 1.0)}


class _Builder:
    """Appends ops with random weights; every method returns the new op's values as (map, bits)."""

    def __init__(self, seed: int, metadata: dict[str, object]) -> None:
        self.rng = np.random.default_rng(seed)
        self.model = bnn.Model([], [], [], output=0, mean=0, std=0, metadata=metadata)

    def affine(self, channels: int, fan_in: int) -> dict[str, int]:
        """A multiplier that gives sums over `fan_in` terms unit size, and a small offset."""
        scale = self.rng.uniform(0.5, 1.5, channels) / np.sqrt(fan_in)
        offset = self.rng.normal(0.0, 0.3, channels)
        return {"scale": self.model.add_tensor(scale, "f64"), "offset": self.model.add_tensor(offset, "f64")}

    def add(self, op: bnn.Op, channels: int, size: int, out: bool = True, bits: bool = True) -> tuple[int, int]:
        if out:
            op.out = self.model.add_value("map", channels, size, size)
        if bits:
            op.bits = self.model.add_value("bits", channels, size, size)
        self.model.ops.append(op)
        return op.out or 0, op.bits or 0

    def conv(self, name: str, x: int, cout: int, k: int, stride: int, **epilogue: object) -> tuple[int, int]:
        """A real convolution with batch norm; stores no bits."""
        cin, size, _ = self.model.values[x].shape
        weight = self.model.add_tensor(self.rng.normal(0.0, 1.0, (cout, k, k, cin)))
        op = bnn.Op("conv", name, x, weight=weight, **self.affine(cout, k * k * cin), **epilogue)  # type: ignore[arg-type]
        op.kernel, op.stride, op.pad = (k, k), (stride, stride), (k // 2, k // 2)
        return self.add(op, cout, (size - 1) // stride + 1, bits=False)

    def bconv(self, name: str, x: int, residual: int, cout: int, stride: int, bits: bool) -> tuple[int, int]:
        cin, size, _ = self.model.values[x].shape
        weight = self.model.add_bits(self.rng.integers(0, 2, (cout, 3, 3, cin), np.uint8).astype(np.bool_))
        affine = self.affine(cout, 9 * cin)
        op = bnn.Op("bconv", name, x, residual=residual, weight=weight, **affine, **_CLAMP)  # type: ignore[arg-type]
        op.kernel, op.stride, op.pad = (3, 3), (stride, stride), (1, 1)
        return self.add(op, cout, (size - 1) // stride + 1, bits=bits)


def random_resnet(name: str, seed: int = 0, num_classes: int = 1000, size: int = 224) -> bnn.Model:
    """A model of "resnet18" or "resnet34"."""
    labels = load_labels("imagenet", 1000) if num_classes == 1000 else []
    metadata = {
        "producer": f"ovsw {__version__}",
        "arch": f"{name} (random weights)",
        "num_classes": num_classes,
        "preprocess": {"resize": round(size * 256 / 224), "crop": size},
        "labels": labels,
    }
    b = _Builder(seed, metadata)
    b.model.mean = b.model.add_tensor(np.array([0.485, 0.456, 0.406]))
    b.model.std = b.model.add_tensor(np.array([0.229, 0.224, 0.225]))
    image = b.model.add_value("map", 3, size, size)
    stem, _ = b.conv("conv1", image, 64, 7, 2, **_CLAMP)
    half = b.model.values[stem].h
    pool = bnn.Op("maxpool", "maxpool", stem, kernel=(3, 3), stride=(2, 2), pad=(1, 1))
    x, bits = b.add(pool, 64, (half - 1) // 2 + 1)
    last = f"layer4.{BLOCKS[name][-1] - 1}.conv2"
    for stage, blocks in enumerate(BLOCKS[name], start=1):
        cout = 32 << stage
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            residual = x if stride == 1 else b.conv(f"{prefix}.downsample.0", x, cout, 1, 2)[0]
            x, bits = b.bconv(f"{prefix}.conv1", bits, residual, cout, stride, bits=True)
            x, bits = b.bconv(f"{prefix}.conv2", bits, x, cout, 1, bits=f"{prefix}.conv2" != last)
    final = b.model.values[x].h
    window = (final, final)
    average = bnn.Op("avgpool", "avgpool", x, kernel=window, stride=window, **b.affine(512, 1))  # type: ignore[arg-type]
    x, _ = b.add(average, 512, 1, bits=False)
    weight = b.model.add_tensor(b.rng.normal(0.0, 1.0, (num_classes, 512)))
    fc = bnn.Op("linear", "fc", x, weight=weight, **b.affine(num_classes, 512))  # type: ignore[arg-type]
    b.model.output, _ = b.add(fc, num_classes, 1, bits=False)
    return b.model
