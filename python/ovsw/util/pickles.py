"""Looks through a pickle before it is loaded: what its opcodes would build, without building it.

Loaders decide which names a pickle may use, but not how much memory and time it takes. A high memo index allocates all
lower ones. A tuple that holds the tuple before it twice, forty times over, takes practically for ever to hash. Tuples
nested a hundred thousand deep overflow the stack.
"""

from __future__ import annotations

import pickletools
from typing import IO

MAX_TUPLE = 10_000  # values in a tuple and the tuples in it
MIN_MEMO = 1 << 16  # memo entries that any pickle may have, besides one for each of its bytes
MAX_ALL = 50_000_000  # values in any object, counted as often as they are reached

_UNHASHABLE = {"LIST", "DICT", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"}


class _Object:
    """An object that a pickle builds: how many values it holds, and how many of them its hash depends on."""

    __slots__ = ("all", "hashed")

    def __init__(self, all_: int, hashed: int) -> None:
        self.all, self.hashed = all_, hashed
        self.check()

    def check(self) -> None:
        if self.hashed > MAX_TUPLE or self.all > MAX_ALL:
            raise ValueError(f"an object of {max(self.hashed, self.all)} values")


def check(stream: IO[bytes], most: int) -> None:
    """Reads one pickle of a stream, of `most` bytes at most, to its end. Raises ValueError with what is wrong."""
    stack: list[_Object] = []
    marks: list[int] = []
    memo: dict[int, _Object] = {}
    try:
        start = stream.tell()
        for op, arg, place in pickletools.genops(stream):
            if (place or 0) - start > most:
                raise ValueError(f"a pickle of more than {most} bytes")
            if "PUT" in op.name or op.name == "MEMOIZE":
                index = len(memo) if op.name == "MEMOIZE" else int(arg or 0)
                if not 0 <= index <= most + MIN_MEMO:
                    raise ValueError(f"memo index {index}")
                memo[index] = stack[-1]
            elif "GET" in op.name:
                stack.append(memo[int(arg or 0)])
            elif op.name == "DUP":
                stack.append(stack[-1])
            elif op.name == "MARK":
                marks.append(len(stack))
            elif op.name == "POP" and marks and marks[-1] == len(stack):
                marks.pop()
            elif op.name != "STOP":
                _apply(op, stack, marks)
    except LookupError:
        raise ValueError("a reference to a missing value") from None


def _apply(op: pickletools.OpcodeInfo, stack: list[_Object], marks: list[int]) -> None:
    """Takes an opcode's arguments from the stack and pushes its result."""
    marked = pickletools.markobject in op.stack_before
    first = marks.pop() if marked else len(stack) - len(op.stack_before)
    if first < 0 or first > len(stack):
        raise LookupError
    taken = stack[first:]
    del stack[first:]
    held = sum(item.all for item in taken)
    if op.name in ("APPENDS", "SETITEMS", "ADDITEMS"):
        stack[-1].all += held
        stack[-1].check()
    elif op.name in ("APPEND", "SETITEM", "BUILD"):
        taken[0].all = held
        taken[0].check()
        stack.append(taken[0])
    elif op.stack_after:
        hashed = 0 if op.name in _UNHASHABLE else sum(item.hashed for item in taken)
        stack.append(_Object(1 + held, 1 + hashed))
