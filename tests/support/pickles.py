"""Hostile pickles, written opcode by opcode: numpy objects whose state no honest program would store."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from support import HANGS

NONE, TRUE, FALSE, EMPTY_DICT = b"N", b"\x88", b"\x89", b"}"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def raw(value: bytes) -> bytes:
    return b"C" + bytes([len(value)]) + value


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def several(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def named(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def call(name: str, *args: bytes) -> bytes:
    return named(name) + several(*args) + b"R"


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", 9000 + index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", 9000 + index)


def dtype_state(names: bytes = NONE, fields: bytes = NONE, size: int = -1) -> bytes:
    return several(number(3), text("|"), NONE, names, fields, number(size), number(1), number(0))


def grown_array(size: int) -> bytes:
    """An array of 8 bytes; the item size of its dtype is set to `size` once it is there. (dtype, array, dtype)"""
    dtype = call("numpy.dtype", text("S8"), FALSE, TRUE) + put(0)
    array = call("numpy.ndarray", several(number(1)), get(0)) + put(1)
    return several(dtype, array, get(0) + dtype_state(size=size) + b"b")


def copy_of_grown_array(size: int) -> bytes:
    """The same, and a copy of the `size` bytes that the array now claims to have."""
    return several(grown_array(size), call("builtins.bytearray", get(1)))


def array_of_pointers(address: int) -> bytes:
    """An array whose dtype has a field of objects, and whose bytes are an address."""
    objects = call("numpy.dtype", text("O8"), FALSE, TRUE)
    fields = EMPTY_DICT + text("f") + several(objects, number(0)) + b"s"
    dtype = call("numpy.dtype", text("V8"), FALSE, TRUE) + dtype_state(several(text("f")), fields, 8) + b"b"
    array = call("numpy.core.multiarray._reconstruct", named("numpy.ndarray"), several(number(0)), raw(b"b"))
    return array + several(number(1), several(number(1)), dtype, FALSE, raw(struct.pack("<Q", address))) + b"b"


def save_with(path: Path, checkpoint: dict[str, Any], opcodes: bytes) -> None:
    """Saves a checkpoint that also holds the object of these opcodes, under "beside"."""
    torch.save({**checkpoint, "beside": "PLACEHOLDER"}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in parts if name.endswith("data.pkl"))
    assert parts[name].count(text("PLACEHOLDER")) == 1
    parts[name] = parts[name].replace(text("PLACEHOLDER"), opcodes)
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)


def _run(code: str, args: list[str], out: Path, err: Path) -> None:
    """The child's side: standard output and errors go to files."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    faulthandler.enable()
    sys.argv = ["-c", *args]
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})


def in_child(code: str, *args: object) -> str:
    """What a program prints, whose sys.argv[1:] are `args`; a crash of it is an assertion failure here.

    The child is forked from a process that has loaded torch once, which takes longer than most of these programs.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch", "ovsw.nn.checkpoint", "ovsw.datasets"])
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        child = server.Process(target=_run, args=(code, list(map(str, args)), out, err))
        child.start()
        child.join(HANGS)
        assert child.exitcode == 0, f"exit code {child.exitcode}\n{err.read_text()[-3000:]}"
        return out.read_text().strip()


class Bomb:
    """What a hostile pickle holds: loading it runs a command, which makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.target}",))
