"""Reading checkpoints: the one place that opens them, for every command; `torch_file` has the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ovsw.nn.torch_file import OddTensor, RefusedError, read_torch_file

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_TRAINING_ONLY = (".weight_prev", ".tracker")
_RUN = {"recipe": dict, "seed": int, "scaler": dict, "rng": list, "metrics": list, "state": dict, "flip_history": dict}


class CheckpointError(ValueError):
    """A file that is not a checkpoint, or not one that can be used; the message names file and fault."""


def read(path: Path) -> Any:
    """What a checkpoint file holds. Raises CheckpointError."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    if not path.is_file():
        raise CheckpointError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            return read_torch_file(file)
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read: {e.strerror or e}") from None
    except RefusedError as e:
        raise CheckpointError(f"{path}: {e}") from None
    except Exception as e:  # a damaged file can raise almost anything
        kind = "a TorchScript archive, not a checkpoint" if "TorchScript" in str(e) else "not a PyTorch checkpoint"
        raise CheckpointError(f"{path}: {kind}, or damaged") from None


def state_dict(path: Path, checkpoint: Any) -> dict[str, Tensor]:
    """The weights of a trainer's dict or a bare state dict, in float32, without prefixes and training state.

    `path` is for the messages. Raises CheckpointError.
    """
    mapping = checkpoint
    if isinstance(checkpoint, Mapping):
        inner = [checkpoint[k] for k in _WRAPPERS if isinstance(checkpoint.get(k), Mapping)]
        mapping = next(iter(inner), checkpoint)
    entries = dict(mapping) if isinstance(mapping, Mapping) else {}
    odd = [str(k) for k, v in entries.items() if isinstance(v, OddTensor) or (isinstance(v, Tensor) and v.is_complex())]
    if odd:
        raise CheckpointError(f"{path}: holds complex, quantized, sparse or empty tensors: {', '.join(odd)}")
    state = {k: v for k, v in entries.items() if isinstance(v, Tensor)}
    if not state:
        raise CheckpointError(f"{path}: holds no state dict (a mapping of names to tensors)")
    if not all(isinstance(k, str) for k in state):
        raise CheckpointError(f"{path}: holds tensors under keys that are not strings")
    for prefix in _PREFIXES * 2:
        if all(k.startswith(prefix) for k in state):
            state = {k[len(prefix) :]: v for k, v in state.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in state.items() if not k.endswith(_TRAINING_ONLY)}


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """For code that uses the result of `read_run`: a value of the wrong kind becomes an error that names the file."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as e:
        words = f"{type(e).__name__}: {e}".splitlines()[0]
        raise CheckpointError(f"{path}: was not written by ovsw-train, or is damaged ({words})") from None


def read_run(path: Path) -> dict[str, Any]:
    """A checkpoint of `ovsw-train`: weights under `state_dict`, what else a run needs under `ovsw`."""
    return check_run(path, read(path))


def check_run(path: Path, checkpoint: Any) -> dict[str, Any]:
    """The same of what a file holds; `path` is for the messages. Raises CheckpointError."""
    run, weights = (checkpoint.get(k) if isinstance(checkpoint, dict) else None for k in ("ovsw", "state_dict"))
    if not isinstance(weights, dict) or not isinstance(run, dict):
        raise CheckpointError(f"{path}: was not written by ovsw-train")
    odd = [key for key, kind in _RUN.items() if not isinstance(run.get(key), kind)]
    if odd:
        raise CheckpointError(f"{path}: was not written by ovsw-train, or is damaged ({', '.join(odd)})")
    return dict(checkpoint)
