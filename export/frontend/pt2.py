"""The front end for programs of torch.export (`.pt2`)."""

from __future__ import annotations

from pathlib import Path

import torch

from ovsw.export.errors import ExportError
from ovsw.export.frontend import torch_module
from ovsw.export.source import Source, plain_input
from ovsw.networks import InputSpec
from ovsw.util.text import first_line


def source(path: Path, allow_unsafe: bool = False) -> Source:
    """Reads a program with one image input. `allow_unsafe`: reading it may run code that is hidden in it.

    torch.export.load unpickles what it cannot read otherwise and evaluates expressions, and cannot be told not to.
    """
    if not allow_unsafe:
        raise ExportError(
            f"{path}: reading a .pt2 program may run code that is hidden in it (torch.export.load unpickles); "
            "allow_unsafe=True reads it anyway, for files that you made yourself or trust"
        )
    try:
        program = torch.export.load(str(path))
    except OSError as e:
        raise ExportError(f"{path}: cannot be read: {e.strerror or e}") from None
    except Exception as e:  # zip, json, pickle and torch each have their own
        raise ExportError(f"{path}: is not a program of torch.export: {first_line(e)}") from None
    network = torch_module.source(program.module(), _input(path, program), path.stem, path)
    network.asks_normalisation = True
    return network


def _input(path: Path, program: torch.export.ExportedProgram) -> InputSpec:
    """The image that the program was exported for, with a batch of 1 or any."""
    names = program.graph_signature.user_inputs
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    if len(values) != 1 or not isinstance(values[0], torch.Tensor):
        raise ExportError(f"{path}: takes {len(names)} inputs, expected one, the image")
    (image,) = values
    shape = tuple(n if isinstance(n, int) else None for n in image.shape)
    text = ", ".join("?" if n is None else str(n) for n in shape)
    if len(shape) != 4 or not image.is_floating_point() or None in shape[1:]:
        raise ExportError(f"{path}: takes an input of ({text}), expected floats (n, channels, height, width)")
    if shape[0] not in (None, 1):
        raise ExportError(f"{path}: takes a batch of {shape[0]} images; export it for 1")
    channels, height, width = (int(n) for n in shape[1:] if n is not None)
    return plain_input(channels, height, width)
