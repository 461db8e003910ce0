"""Step 1, load: a checkpoint file becomes one of our networks with its weights in it.

The file is read with `weights_only=True` and nothing else. The network, its class count and its input size are found
from the keys and shapes.
"""

from __future__ import annotations

import argparse
import math
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ovsw.export.errors import ExportError
from ovsw.nn import NetworkSpec, binary_layers, create, network, networks

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_TRAINING_ONLY = (".weight_prev", ".tracker")
_OPTIONAL = ".num_batches_tracked"
_SCALE = ".scaling_factor"


@dataclass
class Loaded:
    """A network in eval mode, and what is known of its input."""

    spec: NetworkSpec
    model: nn.Module
    num_classes: int
    input_size: int
    learned_scale: bool


def load(path: Path, arch: str | None = None, input_size: int | None = None) -> Loaded:
    """Reads a checkpoint and rebuilds its network; `arch` and `input_size` override what is found."""
    checkpoint = _read(path)
    if _has_real_weights(checkpoint):
        raise ExportError(f"{path}: its weights are real, it is the first of two training steps; export the second")
    state = _state_dict(path, checkpoint)
    try:
        spec = network(arch) if arch else _find_network(path, state, checkpoint)
    except ValueError as e:
        raise e if isinstance(e, ExportError) else ExportError(str(e)) from None
    return _fill(path, spec, state, input_size)


def _read(path: Path) -> Any:
    if not path.exists():
        raise ExportError(f"{path}: no such file")
    if not path.is_file():
        raise ExportError(f"{path}: not a file")
    try:
        with torch.serialization.safe_globals(_plain_data()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # a damaged file can raise almost anything
        unsafe = re.search(r"GLOBAL (\S+)|unrecognized function (\S+)|unsafe class (\S+)", str(e))
        if isinstance(e, pickle.UnpicklingError) and unsafe:
            name = next(group for group in unsafe.groups() if group)
            raise ExportError(
                f"{path}: refused, it holds '{name}', which could execute code; save a state_dict"
            ) from None
        kind = "a TorchScript archive, not a checkpoint" if "TorchScript" in str(e) else "not a PyTorch checkpoint"
        raise ExportError(f"{path}: {kind}, or damaged") from None


def _plain_data() -> list[Any]:
    """Types that trainers put beside the weights and that hold data only: numpy values, argparse results, paths."""
    multiarray = (getattr(np, "_core", None) or np.core).multiarray
    functions = [multiarray.scalar, multiarray._reconstruct]
    aliases = [(f, f"numpy.{core}.multiarray.{f.__name__}") for f in functions for core in ("core", "_core")]
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefdUS"}
    return [argparse.Namespace, PosixPath, *aliases, np.ndarray, np.dtype, *dtypes]


def _state_dict(path: Path, checkpoint: Any) -> dict[str, Tensor]:
    """The weights of a trainer's dict or a bare state dict, in float32, without prefixes and training state."""
    found = checkpoint
    if isinstance(checkpoint, Mapping):
        inner = [checkpoint[k] for k in _WRAPPERS if isinstance(checkpoint.get(k), Mapping)]
        found = next(iter(inner), checkpoint)
    state = {k: v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not state:
        raise ExportError(f"{path}: holds no state dict (a mapping of names to tensors)")
    if not all(isinstance(k, str) for k in state):
        raise ExportError(f"{path}: holds tensors under keys that are not strings")
    odd = [k for k, v in state.items() if v.is_complex() or v.is_quantized or v.is_meta or v.layout != torch.strided]
    if odd:
        raise ExportError(f"{path}: holds complex, quantized, sparse or empty tensors:", odd)
    for prefix in _PREFIXES * 2:
        if all(k.startswith(prefix) for k in state):
            state = {k[len(prefix) :]: v for k, v in state.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in state.items() if not k.endswith(_TRAINING_ONLY)}


def _has_real_weights(checkpoint: Any) -> bool:
    """Whether ovsw-train has written it with `network.binary_weights=false`; the tensors alone do not tell."""
    for key in ("ovsw", "recipe", "network"):
        checkpoint = checkpoint.get(key) if isinstance(checkpoint, Mapping) else None
    return isinstance(checkpoint, Mapping) and checkpoint.get("binary_weights") is False


def _classes(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    weight = state.get(f"{spec.classifier}.weight")
    return spec.num_classes if weight is None or weight.ndim < 2 else max(1, weight.shape[0])


def _input_size(spec: NetworkSpec, state: dict[str, Tensor]) -> int:
    """VGGSmall's classifier shows the size of its input; the others pool globally and take their usual one."""
    weight = state.get(f"{spec.classifier}.weight")
    if spec.name.startswith("VGGSmall") and weight is not None and weight.ndim == 2:
        side = math.isqrt(weight.shape[1] // 512)
        if side > 0 and side * side * 512 == weight.shape[1]:
            return 8 * side
    return spec.input_size


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


def _fill(path: Path, spec: NetworkSpec, state: dict[str, Tensor], input_size: int | None) -> Loaded:
    size = input_size or _input_size(spec, state)
    problems = _problems(spec, state, size)
    if problems:
        kinds = Counter(problem.split(":")[0] for problem in problems)
        counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        raise ExportError(f"{path}: does not fit {spec.name} at input size {size}, keys {counts}:", problems)
    num_classes = _classes(spec, state)
    model = create(spec.name, num_classes, input_size=size)
    learned = False
    for name, layer in binary_layers(model).items():
        if name + _SCALE in state:
            layer.learn_scale()
            state[name + _SCALE] = state[name + _SCALE].reshape(-1)
            learned = True
    model.load_state_dict(state, strict=False)
    return Loaded(spec, model.eval(), num_classes, size, learned)


def _dims(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"
