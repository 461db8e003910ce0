"""The front end for checkpoints: a file becomes one of our networks with its weights in it.

The network, its class count and its input size are found from the keys and shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ovsw.export.errors import ExportError
from ovsw.export.frontend import torch_module
from ovsw.export.source import Source
from ovsw.networks import NetworkSpec, network, networks
from ovsw.nn import binary_layers, create
from ovsw.nn.checkpoint import read, state_dict

_OPTIONAL = ".num_batches_tracked"
_SCALE = ".scaling_factor"


def source(path: Path, arch: str | None = None, input_size: int | None = None) -> Source:
    """Reads a checkpoint and rebuilds its network; `arch` and `input_size` override what the file tells."""
    try:
        checkpoint = read(path)
        if _has_real_weights(checkpoint):
            raise ExportError(f"{path}: its weights are real, it is the first of two training steps; export the second")
        state = state_dict(path, checkpoint)
        spec = network(arch) if arch else _find_network(path, state, checkpoint)
    except ValueError as e:
        raise e if isinstance(e, ExportError) else ExportError(str(e)) from None
    size = input_size or _input_size(spec, state)
    given = spec.input.at(size)
    if _classes(spec, state) != spec.num_classes:
        given = replace(given, labels=())
    found = torch_module.source(_filled(path, spec, state, size), given, spec.name, path)
    deployed = _written(checkpoint, "ovsw", "deployed")
    found.deployed = {key: deployed[key] for key in ("weights", "stem") if deployed.get(key) in ("int16", "int8")}
    return found


def _has_real_weights(checkpoint: Any) -> bool:
    """Whether ovsw-train has written it with `network.binary_weights=false`; the tensors alone do not tell."""
    return _written(checkpoint, "ovsw", "recipe", "network").get("binary_weights") is False


def _written(checkpoint: Any, *keys: str) -> Mapping[str, Any]:
    """What ovsw-train has written beside the weights, if it has."""
    for key in keys:
        checkpoint = checkpoint.get(key) if isinstance(checkpoint, Mapping) else None
    return checkpoint if isinstance(checkpoint, Mapping) else {}


def _classes(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    weight = state.get(f"{spec.classifier}.weight")
    return spec.num_classes if weight is None or weight.ndim < 2 else max(1, weight.shape[0])


def _input_size(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    weight = state.get(f"{spec.classifier}.weight")
    return spec.input_size(0 if weight is None or weight.ndim != 2 else weight.shape[1])


def _problems(spec: NetworkSpec, state: dict[str, Tensor], input_size: int) -> list[str]:
    """Every key that is missing, unknown or of the wrong shape."""
    with torch.device("meta"):
        model = create(spec.name, _classes(spec, state), input_size=input_size)
    expected = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    scales = {name + _SCALE: layer.out_channels for name, layer in binary_layers(model).items()}
    problems = [f"missing: {k} {_dims(v)}" for k, v in expected.items() if k not in state and not k.endswith(_OPTIONAL)]
    if any(key in state for key in scales):  # learned in one layer, learned in all
        problems += [f"missing: {key} ({n})" for key, n in scales.items() if key not in state]
    for key, value in state.items():
        if key in scales:
            if value.numel() != scales[key]:
                problems.append(f"wrong shape: {key} is {_dims(value.shape)}, expected ({scales[key]})")
        elif key not in expected:
            problems.append(f"unexpected: {key} {_dims(value.shape)}")
        elif tuple(value.shape) != expected[key]:
            problems.append(f"wrong shape: {key} is {_dims(value.shape)}, expected {_dims(expected[key])}")
    return problems


def _find_network(path: Path, state: dict[str, Tensor], checkpoint: Any) -> NetworkSpec:
    """The network whose keys and shapes these are; failing that, the nearest one, whose misfits are then reported."""
    specs = [network(name) for name in networks()]
    misfits = [len(_problems(spec, state, _input_size(spec, state))) for spec in specs]
    nearest = min(range(len(specs)), key=misfits.__getitem__)
    if misfits[nearest] == 0:
        return specs[nearest]
    named = checkpoint.get("arch") if isinstance(checkpoint, Mapping) else None
    if isinstance(named, str) and named in networks():
        return network(named)
    if misfits[nearest] > len(state) // 2:
        raise ExportError(
            f"{path}: its {len(state)} tensors are those of no known network ({', '.join(networks())}); "
            f"the nearest is {specs[nearest].name} with {misfits[nearest]} differences (--arch lists them)"
        )
    return specs[nearest]


def _filled(path: Path, spec: NetworkSpec, state: dict[str, Tensor], size: int) -> nn.Module:
    problems = _problems(spec, state, size)
    if problems:
        kinds = Counter(problem.split(":")[0] for problem in problems)
        counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        raise ExportError(f"{path}: does not fit {spec.name} at input size {size}, keys {counts}:", problems)
    model = create(spec.name, _classes(spec, state), input_size=size)
    for name, layer in binary_layers(model).items():
        if name + _SCALE in state:
            layer.learn_scale()
            state[name + _SCALE] = state[name + _SCALE].reshape(-1)
    model.load_state_dict(state, strict=False)
    return model.eval()


def _dims(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"
