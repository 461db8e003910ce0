"""Reading checkpoints: the one place that opens them, for every command; nothing in a file is executed.

`torch.load(weights_only=True)` lets in tensors and plain values. Trainers also store numpy values, argparse results and
paths; to build such types from a file is not safe (numpy's `dtype.__setstate__` believes any item size, and then arrays
reach beyond their memory), so each becomes an `Inert`.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ovsw.util import pickles

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_MOST_VIEWS = 8  # numbers of a state dict for each byte of its storages
_TRAINING_ONLY = (".weight_prev", ".tracker")
_RUN = {"recipe": dict, "seed": int, "scaler": dict, "rng": list, "metrics": list, "state": dict, "flip_history": dict}


class CheckpointError(ValueError):
    """A file that is not a checkpoint, or not one that can be used; the message names file and fault."""


class Inert:
    """Stands for a value whose type is not let in: can be made from anything, holds nothing, does nothing."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


_INERT = (
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *(("numpy", "ndarray"), ("numpy", "dtype"), ("argparse", "Namespace")),
    *((m, f"{kind}Path") for m in ("pathlib", "pathlib._local") for kind in ("Posix", "PurePosix", "Windows")),
)
# torch finds what a pickle names by the module and name that a class says it has.
_STUBS: list[Any] = [type(name, (Inert,), {"__module__": module, "__slots__": ()}) for module, name in _INERT]


def read(path: Path) -> Any:
    """What a checkpoint file holds. Raises CheckpointError."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    if not path.is_file():
        raise CheckpointError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            return load(file, _STUBS)
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read: {e.strerror or e}") from None
    except Exception as e:  # a damaged file can raise almost anything
        unsafe = re.search(r"GLOBAL (\S+)|unrecognized function (\S+)|unsafe class (\S+)", str(e))
        if isinstance(e, pickle.UnpicklingError) and unsafe:
            name = next(group for group in unsafe.groups() if group)
            raise CheckpointError(
                f"{path}: refused, it holds '{name}', which could execute code; save a state_dict"
            ) from None
        kind = "a TorchScript archive, not a checkpoint" if "TorchScript" in str(e) else "not a PyTorch checkpoint"
        raise CheckpointError(f"{path}: {kind}, or damaged") from None


def load(file: IO[bytes], stubs: Sequence[Any] = ()) -> Any:
    """`torch.load` of tensors and plain values, after a look at what it would take. Raises almost anything."""
    _check_pickles(file)
    file.seek(0)
    with torch.serialization.safe_globals(list(stubs)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_pickles(file: IO[bytes]) -> None:
    """The pickles of a file of `torch.save`, which are members of a zip archive or lie at the start of an older file.

    torch.save packs nothing: a file that does could hold a thousand times its size.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        file.seek(0)
        for _ in range(4):  # magic number, protocol, system, content
            pickles.check(file, size)
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise ValueError("packed")
        for member in members:
            if member.filename.endswith(".pkl"):
                with archive.open(member) as part:
                    pickles.check(part, size)


def state_dict(path: Path, checkpoint: Any) -> dict[str, Tensor]:
    """The weights of a trainer's dict or a bare state dict, in float32, without prefixes and training state.

    `path` is for the messages. Raises CheckpointError.
    """
    mapping = checkpoint
    if isinstance(checkpoint, Mapping):
        inner = [checkpoint[k] for k in _WRAPPERS if isinstance(checkpoint.get(k), Mapping)]
        mapping = next(iter(inner), checkpoint)
    state = {k: v for k, v in mapping.items() if isinstance(v, Tensor)} if isinstance(mapping, Mapping) else {}
    if not state:
        raise CheckpointError(f"{path}: holds no state dict (a mapping of names to tensors)")
    if not all(isinstance(k, str) for k in state):
        raise CheckpointError(f"{path}: holds tensors under keys that are not strings")
    odd = [k for k, v in state.items() if v.is_complex() or v.is_quantized or v.is_meta or v.layout != torch.strided]
    if odd:
        raise CheckpointError(f"{path}: holds complex, quantized, sparse or empty tensors: {', '.join(odd)}")
    _check_sizes(path, state)
    for prefix in _PREFIXES * 2:
        if all(k.startswith(prefix) for k in state):
            state = {k[len(prefix) :]: v for k, v in state.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in state.items() if not k.endswith(_TRAINING_ONLY)}


def _check_sizes(path: Path, state: dict[str, Tensor]) -> None:
    """Views of one storage, and strides of 0, can make more numbers of a file than it holds."""
    storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in state.values()}
    held, numbers = sum(storages.values()), sum(v.numel() for v in state.values())
    if numbers > _MOST_VIEWS * held:
        raise CheckpointError(f"{path}: its tensors have {numbers} numbers, but it holds {held} bytes")


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Around the use of what `read_run` has read: a value of the wrong kind in it is an error that names the file."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as e:
        words = f"{type(e).__name__}: {e}".splitlines()[0]
        raise CheckpointError(f"{path}: was not written by ovsw-train, or is damaged ({words})") from None


def read_run(path: Path) -> dict[str, Any]:
    """A checkpoint of `ovsw-train`: weights under `state_dict`, what else a run needs under `ovsw`."""
    checkpoint = read(path)
    run, weights = (checkpoint.get(k) if isinstance(checkpoint, dict) else None for k in ("ovsw", "state_dict"))
    if not isinstance(weights, dict) or not isinstance(run, dict):
        raise CheckpointError(f"{path}: was not written by ovsw-train")
    odd = [key for key, kind in _RUN.items() if not isinstance(run.get(key), kind)]
    if odd:
        raise CheckpointError(f"{path}: was not written by ovsw-train, or is damaged ({', '.join(odd)})")
    return dict(checkpoint)
