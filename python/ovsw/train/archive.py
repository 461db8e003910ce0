"""A run in one small file, from which it can be resumed to the same weights, bit for bit.

    python -m ovsw.train.archive pack RUN FILE
    python -m ovsw.train.archive unpack FILE RUN

Nothing is lost that a resume or `ovsw-flips` reads: of the weights before the last step, `weight_prev`, only the signs
count and are kept. `model_best.pth` comes back if the last epoch was the best; TensorBoard's files are left out. The
file is a checkpoint of `torch.save` in an xz stream, which has a checksum; in it floats lie by significance (all first
bytes, then all second ones, ...), as their exponents compress and their fractions do not.
"""

from __future__ import annotations

import argparse
import copy
import io
import lzma
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ovsw.commands.base import command
from ovsw.nn.checkpoint import check_run, damaged, read_run
from ovsw.nn.torch_file import read_torch_file
from ovsw.train.recipe import changes
from ovsw.util.files import new_folder, replace_file

VERSION = 1
_RATIO, _FREE = 16, 1 << 24  # bytes that an archive may unpack to: so many for each of its own, and so many more
_PICKLE = 1 << 18  # bytes that its pickle may have more than the archive
_KEYS = ("version", "files", "best_is_last", "metrics")
_FILES = ("initial.pth", "last.pth")
_KIND, _PREVIOUS = "ovsw.archive", ".weight_prev"


def pack(run: Path, file: Path, force: bool = False) -> list[str]:
    """Writes the archive of a run's folder, after it was unpacked again and compared; returns what is in it."""
    if file.exists() and not force:
        raise ValueError(f"{file}: exists already; --force overwrites it")
    if not run.is_dir():
        raise ValueError(f"{run}: not a folder of ovsw-train")
    first, last = (read_run(run / name) for name in _FILES)
    best = run / "model_best.pth"
    content = {
        "version": VERSION,
        "files": dict(zip(_FILES, (first, last))),
        "best_is_last": best.is_file() and read_run(best)["epoch"] == last["epoch"],
        "metrics": (run / "metrics.csv").read_bytes().decode(),
    }
    buffer = io.BytesIO()
    torch.save(_mapped(content, _encode), buffer)
    data = lzma.compress(buffer.getvalue())
    if difference := _difference(content, _content(file, data)):
        raise RuntimeError(f"{run}: cannot be packed without loss, {difference} would change")
    replace_file(file, data)
    return [*_checkpoints(content), "metrics.csv"]


def unpack(file: Path, run: Path) -> list[str]:
    """Makes a run's folder of an archive, whole or not at all; returns the names of its files."""
    if run.exists():
        raise ValueError(f"{run}: exists already")
    content = _content(file, file.read_bytes())
    with new_folder(run) as folder:
        for name, checkpoint in _checkpoints(content).items():
            buffer = io.BytesIO()
            torch.save(checkpoint, buffer)
            replace_file(folder / name, buffer.getvalue())
        replace_file(folder / "metrics.csv", content["metrics"].encode())
    return [*_checkpoints(content), "metrics.csv"]


def resume(run: Path) -> str:
    """The command that continues a run, without --data."""
    about = read_run(run / "last.pth")["ovsw"]
    recipe = about["recipe"]
    with damaged(run / "last.pth"):
        settings = [part for change in changes(recipe) for part in ("--set", change)]
        teacher = ["--teacher", "FILE"] if recipe["train"].get("teacher") else []
    return shlex.join(
        ["ovsw-train", recipe["name"], *settings, *teacher, "--seed", str(about["seed"]), "-o", str(run), "--resume"]
    )


def _checkpoints(content: dict[str, Any]) -> dict[str, Any]:
    """The checkpoints of an archive under their names."""
    files = content["files"]
    return {**files, "model_best.pth": files["last.pth"]} if content["best_is_last"] else files


def _content(file: Path, data: bytes) -> dict[str, Any]:
    """What an archive holds. Raises ValueError; `file` is for the message."""
    try:
        room = _RATIO * len(data) + _FREE
        found = read_torch_file(io.BytesIO(_unpacked(data, room)), len(data) + _PICKLE)
        if found["version"] == VERSION:
            files = found["files"]
            if not isinstance(files, dict) or tuple(files) != _FILES:  # their keys become names of files
                raise ValueError(f"it holds other files than {' and '.join(_FILES)}")
            if not isinstance(found["metrics"], str):
                raise ValueError("its metrics are not a text")
            if _decoded_size(files) > room:
                raise ValueError(f"its tensors take more than {room} bytes")
            content = {key: _mapped(found[key], _decode) for key in _KEYS}
            for checkpoint in content["files"].values():
                check_run(file, checkpoint)
            return content
    except Exception as e:  # a damaged file can raise almost anything
        raise ValueError(f"{file}: not an archive of a run, or damaged ({type(e).__name__})") from None
    raise ValueError(f"{file}: an archive of version {found['version']}, this is for version {VERSION}")


def _unpacked(data: bytes, most: int) -> bytes:
    """An xz stream's content; one that unpacks to much more than archives do is refused before it is all there."""
    stream = lzma.LZMADecompressor()
    found = stream.decompress(data, most + 1)
    if not stream.eof or len(found) > most:
        raise ValueError(f"it unpacks to more than {most} bytes, or is cut short")
    return found


def _mapped(value: Any, change: Callable[[Any, str], Any], key: str = "") -> Any:
    """A copy of nested dicts and lists; `change` gets every value with its key and gives it back, or another."""
    changed = change(value, key)
    if changed is not value:
        return changed
    if isinstance(value, dict):
        copied = copy.copy(value)  # a state dict is of another type, with attributes
        copied.update({k: _mapped(v, change, str(k)) for k, v in value.items()})
        return copied
    return [_mapped(v, change, key) for v in value] if isinstance(value, list) else value


def _encode(value: Any, key: str) -> Any:
    """A tensor of floats, signs or booleans as one of bytes that compresses well."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.bool):
        return value
    last = value.ndim == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
    flat = value.contiguous().numpy().reshape(-1)
    about = {"shape": list(value.shape), "channels_last": last}
    if key.endswith(_PREVIOUS):
        return {_KIND: "signs", **about, "data": _bytes(np.packbits([flat > 0, flat == 0]))}
    if value.dtype == torch.bool:
        return {_KIND: "bits", **about, "data": _bytes(np.packbits(flat))}
    return {_KIND: "floats", **about, "data": _bytes(flat.view(np.uint8).reshape(-1, 4).T)}


def _decoded_size(value: Any) -> int:
    """The bytes of all tensors that `_decode` would make: a few zeros can stand for many, and be named many times."""
    if isinstance(value, dict) and _KIND in value:
        if min(value["shape"], default=0) < 0:
            raise ValueError(f"a tensor of {value['shape']}")
        return math.prod(value["shape"]) * (1 if value[_KIND] == "bits" else 4)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_decoded_size, inner))


def _decode(value: Any, key: str) -> Any:
    if not isinstance(value, dict) or _KIND not in value:
        return value
    shape, data = value["shape"], value["data"].numpy()
    count = math.prod(shape)
    bits = {"signs": 2, "bits": 1, "floats": 32}[value[_KIND]]
    if data.dtype != np.uint8 or data.size != -(-count * bits // 8):
        raise ValueError(f"{key}: {data.size} bytes are not a tensor of {shape}")
    if value[_KIND] == "signs":
        positive, zero = np.unpackbits(data, count=2 * count).reshape(2, count).astype(np.int8)
        flat = (2 * positive - 1 + zero).astype(np.float32)
    elif value[_KIND] == "bits":
        flat = np.unpackbits(data, count=count).astype(bool)
    else:
        flat = np.ascontiguousarray(data.reshape(4, count).T).view(np.float32)
    tensor = torch.from_numpy(flat.reshape(shape))
    return tensor.contiguous(memory_format=torch.channels_last) if value["channels_last"] else tensor


def _bytes(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1))


def _difference(a: Any, b: Any, key: str = "") -> str | None:
    """Where two contents differ in anything but the sizes of `weight_prev`."""
    if type(a) is not type(b):
        return key
    if isinstance(a, dict):
        if list(a) != list(b) or getattr(a, "_metadata", None) != getattr(b, "_metadata", None):
            return key
        return next(filter(None, (_difference(a[k], b[k], str(k)) for k in a)), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return key
        return next(filter(None, (_difference(x, y, key) for x, y in zip(a, b))), None)
    if isinstance(a, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or _layout(a) != _layout(b):
            return key
        if key.endswith(_PREVIOUS):
            return None if torch.equal(torch.sign(a), b) else key
        first, second = (t.contiguous().flatten().view(torch.uint8) for t in (a, b))  # NaN is itself there
        return None if torch.equal(first, second) else key
    return None if repr(a) == repr(b) else key


def _layout(tensor: Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]


def options(p: argparse.ArgumentParser) -> None:
    commands = p.add_subparsers(dest="what", metavar="pack|unpack", required=True)
    packing = commands.add_parser("pack", help="make an archive of a run")
    packing.add_argument("run", metavar="RUN", type=Path, help="a folder of ovsw-train")
    packing.add_argument("file", metavar="FILE", type=Path, help="the archive to write")
    packing.add_argument("--force", action="store_true", help="overwrite FILE")
    unpacking = commands.add_parser("unpack", help="make a run of an archive, for ovsw-train --resume")
    unpacking.add_argument("file", metavar="FILE", type=Path, help="an archive")
    unpacking.add_argument("run", metavar="RUN", type=Path, help="the folder to make")


@command("python -m ovsw.train.archive", "Keep a run of ovsw-train in one small file that it can resume from.", options)
def main(args: argparse.Namespace) -> int:
    if args.what == "pack":
        names = pack(args.run, args.file, args.force)
        print(f"wrote {args.file}: {args.file.stat().st_size:,} bytes that hold {', '.join(names)}")
    else:
        names = unpack(args.file, args.run)
        print(f"wrote {', '.join(names)} to {args.run}. Continue the run with --data DIR and:\n  {resume(args.run)}")
    if "model_best.pth" not in names:
        print("model_best.pth is of an earlier epoch and left out")
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
