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
from ovsw.export.frontend.checkpoint import misfits
from ovsw.export.source import Source, plain_input
from ovsw.nn.checkpoint import read, state_dict

_SOURCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_python(text: str) -> bool:
    return _SOURCE.fullmatch(text) is not None


def source(text: str, shape: tuple[int, int, int] | None, weights: Path | None) -> Source:
    """Runs the code in the file: callers must trust it."""
    match = _SOURCE.fullmatch(text)
    assert match is not None
    path, name = Path(match["file"]), match["name"]
    if shape is None:
        raise ExportError(f"{text}: which image does it take? Pass input=, such as input=(3, 32, 32)")
    model = _imported(path, name)
    if weights is not None:
        _load(model, text, weights)
    network = torch_module.source(model, plain_input(*shape), name, weights)
    network.asks_normalisation = True
    return network


def _imported(path: Path, name: str) -> Any:
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
        network = model()
    except Exception as e:
        raise ExportError(f"{path}:{name}() fails, it is called without arguments: {_line(e)}") from None
    if not callable(network):
        raise ExportError(f"{path}:{name}() gives a {type(network).__name__}, expected a torch.nn.Module")
    return network.eval() if isinstance(network, nn.Module) else network


def _load(model: Any, text: str, weights: Path) -> None:
    if not isinstance(model, nn.Module):
        raise ExportError(f"{text}: not a torch.nn.Module, so {weights} cannot be loaded into it")
    try:
        state = state_dict(weights, read(weights))
    except ValueError as e:
        raise ExportError(str(e)) from None
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    problems = misfits(expected, state)
    if problems:
        raise ExportError(f"{weights}: does not fit {text}, {len(problems)} problem(s):", problems)
    with torch.no_grad():
        model.load_state_dict(state, strict=False)


def _line(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0]}" if str(e).strip() else type(e).__name__
