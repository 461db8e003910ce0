"""The front end for checkpoints: one of our networks is built and filled with the weights of the file.

The network, its class count and its input size are found by the keys and shapes of the tensors. If they fit several
networks, the name that the trainer wrote beside them decides. Mean, std and class names written by `ovsw-train` go into
the input's spec.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ovsw.export.errors import ExportError
from ovsw.export.frontend import torch_module
from ovsw.export.source import Source
from ovsw.labels import BUILTIN, load_labels
from ovsw.networks import NETWORKS, InputSpec, NetworkSpec, network, networks
from ovsw.nn import BinaryConv2d, binary_layers, create, float_network
from ovsw.nn.checkpoint import read, state_dict
from ovsw.nn.float_resnet import FLOAT_NETWORKS

_SCALE = ".scaling_factor"
_OPTIONAL = (".num_batches_tracked", ".tau")
_VECTORS = (_SCALE, ".alpha", ".tau")  # which trainers keep with more or fewer dimensions of 1
_NAMES = ("arch", "model")  # under which trainers write a network's name


@dataclass
class Loaded:
    """A checkpoint's network with its weights; `deployed` as in `Source`."""

    module: nn.Module
    spec: NetworkSpec
    input: InputSpec
    deployed: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def source(path: Path, arch: str | None = None, input_size: int | None = None) -> Source:
    """Reads a checkpoint and rebuilds its network; `arch` and `input_size` override what the file tells."""
    loaded = load(path, arch, input_size)
    network = torch_module.source(loaded.module, loaded.input, loaded.spec.name, path)
    network.deployed = loaded.deployed
    network.warnings += loaded.warnings
    return network


def load(path: Path, arch: str | None = None, input_size: int | None = None) -> Loaded:
    """The network of a checkpoint, as `source` takes it. Raises ExportError."""
    try:
        checkpoint = read(path)
        if _has_real_weights(checkpoint):
            raise ExportError(f"{path}: its weights are real, it is the first of two training steps; export the second")
        state = state_dict(path, checkpoint)
        spec, others = (network(arch), []) if arch else _find_network(path, state, checkpoint)
    except ValueError as e:
        raise e if isinstance(e, ExportError) else ExportError(str(e)) from None
    size = input_size or _input_size(spec, state)
    image = _input(spec, _classes(spec, state), checkpoint).at(size)
    deployed = _written(checkpoint, "ovsw", "deployed")
    widths = {key: deployed[key] for key in ("weights", "stem") if deployed.get(key) in ("int16", "int8")}
    names = " or ".join(other.name for other in others)
    unsure = [f"{path} is taken for {spec.name}; by its tensors it could be {names}: pass arch= to choose"]
    return Loaded(_filled(path, spec, state, size), spec, image, widths, unsure if others else [])


def _has_real_weights(checkpoint: Any) -> bool:
    """Whether ovsw-train has written it with `network.binary_weights=false`; the tensors alone do not tell."""
    return _written(checkpoint, "ovsw", "recipe", "network").get("binary_weights") is False


def _written(checkpoint: Any, *keys: str) -> Mapping[str, Any]:
    """What ovsw-train wrote beside the weights; empty if it did not."""
    for key in keys:
        checkpoint = checkpoint.get(key) if isinstance(checkpoint, Mapping) else None
    return checkpoint if isinstance(checkpoint, Mapping) else {}


def _input(spec: NetworkSpec, classes: int, checkpoint: Any) -> InputSpec:
    """The network's usual input, changed by what ovsw-train wrote into the checkpoint."""
    written = _written(checkpoint, "ovsw", "input")
    numbers = [_numbers(written.get(key), spec.input.channels) for key in ("mean", "std")]
    mean, std = numbers if all(numbers) else (spec.input.mean, spec.input.std)
    kind = _written(checkpoint, "ovsw", "recipe", "data").get("kind")  # older runs have no more than this
    labels = written.get("labels", kind if kind in BUILTIN else spec.input.labels)
    return replace(spec.input, mean=mean, std=std, labels=_labels(labels, classes))


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    """Finite numbers, one per channel, or none at all."""
    fine = isinstance(values, list) and len(values) == count
    return tuple(values) if fine and all(isinstance(v, float) and math.isfinite(v) for v in values) else ()


def _labels(names: Any, classes: int) -> str | tuple[str, ...]:
    """A built-in list or names, as InputSpec has them; none where there is not one for each class."""
    if isinstance(names, str) and names in BUILTIN:
        try:
            load_labels(names, classes)
            return names
        except ValueError:
            return ()
    fine = isinstance(names, list) and len(names) == classes and all(isinstance(name, str) for name in names)
    return tuple(names) if fine else ()


def _classes(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    weight = state.get(f"{spec.classifier}.weight")
    return spec.num_classes if weight is None or weight.ndim < 2 else max(1, weight.shape[0])


def _input_size(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    weight = state.get(f"{spec.classifier}.weight")
    return spec.input_size(0 if weight is None or weight.ndim != 2 else weight.shape[1])


def _expected(spec: NetworkSpec, state: dict[str, Tensor], input_size: int) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a network; with learned scales, if there are any, as they are learned in all layers then."""
    expected, scales = _shapes(spec.name, _classes(spec, state), input_size)
    return {**expected, **scales} if any(key in state for key in scales) else expected


@lru_cache(maxsize=4 * len(NETWORKS))
def _shapes(name: str, classes: int, input_size: int) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Keys and shapes of a network, and those of its scales if they are learned; kept, as all of them take a second."""
    with torch.device("meta"):
        model = create(name, classes, input_size=input_size)
    layers = binary_layers(model).items()
    scales: dict[str, tuple[int, ...]] = {
        name + _SCALE: (layer.out_channels,) for name, layer in layers if isinstance(layer, BinaryConv2d)
    }
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}, scales


def _adapted(state: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The same numbers in our shapes: vectors of other dimensions, and Bi-Real's `weights`, which are columns."""
    adapted = {}
    for key, value in state.items():
        ours = key[:-1] if key.endswith(".weights") and key[:-1] in expected else key
        shape = expected.get(ours, tuple(value.shape))
        loose = ours != key or ours.endswith(_VECTORS)
        adapted[ours] = value.reshape(shape) if loose and value.numel() == math.prod(shape) else value
    return adapted


def _problems(expected: dict[str, tuple[int, ...]], state: dict[str, Tensor]) -> list[str]:
    return misfits(expected, _adapted(state, expected))


def misfits(expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> list[str]:
    """Every key that is missing, unknown or of the wrong shape."""
    problems = [f"missing: {k} {_dims(v)}" for k, v in expected.items() if k not in state and not k.endswith(_OPTIONAL)]
    for key, value in state.items():
        if key not in expected:
            problems.append(f"unexpected: {key} {_dims(value.shape)}")
        elif tuple(value.shape) != expected[key]:
            problems.append(f"wrong shape: {key} is {_dims(value.shape)}, expected {_dims(expected[key])}")
    return problems


def _find_network(path: Path, state: dict[str, Tensor], checkpoint: Any) -> tuple[NetworkSpec, list[NetworkSpec]]:
    """The network whose keys and shapes these are, and others' that it could be as well; failing that, the nearest one,
    whose misfits are then reported.
    """
    misfits = [len(_problems(_expected(spec, state, _input_size(spec, state)), state)) for spec in NETWORKS]
    fitting = [spec for spec, n in zip(NETWORKS, misfits) if n == 0]
    names = [checkpoint.get(key) for key in _NAMES] if isinstance(checkpoint, Mapping) else []
    named = [spec for spec in fitting if any(name in (spec.name, *spec.aliases) for name in names)]
    if fitting:
        first = (named or fitting)[0]
        return first, [] if named else [spec for spec in fitting if spec.aliases and spec is not first]
    for name in FLOAT_NETWORKS:
        with torch.device("meta"):
            model = float_network(name, _classes(network(name), state))
        expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        if not _problems(expected, state):
            raise ExportError(f"{path}: this network is not binary, its tensors are those of the float {name}")
    arch = next((name for name in names if isinstance(name, str) and name in networks()), None)
    if arch is not None:
        return network(arch), []
    nearest = min(range(len(NETWORKS)), key=misfits.__getitem__)
    if misfits[nearest] > len(state) // 2:
        raise ExportError(
            f"{path}: its {len(state)} tensors fit no known network ({', '.join(networks())}); "
            f"the nearest is {NETWORKS[nearest].name} with {misfits[nearest]} differences (arch= lists them)"
        )
    return NETWORKS[nearest], []


def _filled(path: Path, spec: NetworkSpec, state: dict[str, Tensor], size: int) -> nn.Module:
    expected = _expected(spec, state, size)
    problems = _problems(expected, state)
    if problems:
        kinds = Counter(problem.split(":")[0] for problem in problems)
        counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        raise ExportError(f"{path}: does not fit {spec.name} at input size {size}, keys {counts}:", problems)
    model = create(spec.name, _classes(spec, state), input_size=size)
    for name, layer in binary_layers(model).items():
        if isinstance(layer, BinaryConv2d) and name + _SCALE in state:
            layer.learn_scale()
    model.load_state_dict(_adapted(state, expected), strict=False)
    return model.eval()


def _dims(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"
