"""The front end for a network in a Python file: FILE.py:NAME is imported and called, weights are loaded into it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ovsw.export.errors import ExportError
from ovsw.export.frontend import torch_module
from ovsw.export.source import Source
from ovsw.networks import InputSpec
from ovsw.nn.checkpoint import read, state_dict

_SOURCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_python(text: str) -> bool:
    return _SOURCE.fullmatch(text) is not None


def source(text: str, shape: tuple[int, int, int] | None, weights: Path | None) -> Source:
    """Runs the code in the file: that is for whoever names it to decide."""
    match = _SOURCE.fullmatch(text)
    assert match is not None
    path, name = Path(match["file"]), match["name"]
    if shape is None:
        raise ExportError(f"{text}: which image does it take? --input CxHxW, such as --input 3x32x32, says so")
    model = _made(path, name)
    if weights is not None:
        _load(model, text, weights)
    channels, height, width = shape
    spec = InputSpec(channels, height, width, (0.0,) * channels, (1.0,) * channels, max(height, width))
    found = torch_module.source(model, spec, name, weights)
    found.asks_normalisation = True
    return found


def _made(path: Path, name: str) -> Any:
    """The module that FILE.py:NAME is, or makes when it is called without arguments."""
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[path.stem] = code  # pickles and dataclasses look a module up by its name
    try:
        spec.loader.exec_module(code)
    except Exception as e:
        raise ExportError(f"{path}: cannot be imported: {_line(e)}") from None
    finally:
        sys.path.remove(folder)
    if not hasattr(code, name):
        known = ", ".join(n for n, value in vars(code).items() if callable(value) and n[0] != "_") or "nothing"
        raise ExportError(f"{path}: has no {name}; it has {known}")
    model = getattr(code, name)
    if isinstance(model, nn.Module):
        return model
    try:
        made = model()
    except Exception as e:
        raise ExportError(f"{path}:{name}() fails, it is called without arguments: {_line(e)}") from None
    if not callable(made):
        raise ExportError(f"{path}:{name}() gives a {type(made).__name__}, expected a torch.nn.Module")
    return made.eval() if isinstance(made, nn.Module) else made


def _load(model: Any, text: str, weights: Path) -> None:
    if not isinstance(model, nn.Module):
        raise ExportError(f"{text}: is no torch.nn.Module, so {weights} cannot be loaded into it")
    try:
        state = state_dict(weights, read(weights))
    except ValueError as e:
        raise ExportError(str(e)) from None
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    problems = [f"missing: {key} {shape}" for key, shape in expected.items() if _is_needed(key) and key not in state]
    for key, value in state.items():
        if key not in expected:
            problems.append(f"unexpected: {key} {tuple(value.shape)}")
        elif tuple(value.shape) != expected[key]:
            problems.append(f"wrong shape: {key} is {tuple(value.shape)}, expected {expected[key]}")
    if problems:
        raise ExportError(f"{weights}: does not fit {text}, {len(problems)} problem(s):", problems)
    with torch.no_grad():
        model.load_state_dict(state, strict=False)


def _is_needed(key: str) -> bool:
    return not key.endswith(".num_batches_tracked")


def _line(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0]}" if str(e).strip() else type(e).__name__
