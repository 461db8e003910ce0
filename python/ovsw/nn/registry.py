"""The networks of `ovsw.networks` as modules."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

import ovsw.nn
from ovsw.networks import network
from ovsw.nn.binary import binary_layers


def create(
    name: str,
    num_classes: int | None = None,
    learned_scale: bool = False,
    input_size: int | None = None,
) -> nn.Module:
    """Builds a network with freshly initialised weights, of which no binary one is exactly 0.

    Raises ValueError for an unknown name, and for learned scales where the method decides on them.
    """
    spec = network(name)
    module: type[nn.Module] = getattr(ovsw.nn, spec.module)
    taken = inspect.signature(module).parameters
    if learned_scale and "learned_scale" not in taken:
        raise ValueError(f"learned_scale is not an option of {spec.name}: its method decides how scales are computed")
    options: dict[str, Any] = {
        "num_classes": spec.num_classes if num_classes is None else num_classes,
        "learned_scale": learned_scale,
        "blocks": spec.blocks,
        "input_size": spec.input.height if input_size is None else input_size,
    }
    model = module(**{key: value for key, value in options.items() if key in taken})
    for layer in binary_layers(model).values():
        layer.avoid_zeros()
    return model
