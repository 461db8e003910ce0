"""What the commands share: one line per error, exit codes, --version, output that no character can break."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn, Optional

from ovsw._version import __version__
from ovsw.text import visible

Main = Callable[[Optional["list[str]"]], int]  # None means the arguments of the process


def command(
    prog: str, description: str, options: Callable[[argparse.ArgumentParser], None], epilog: str | None = None
) -> Callable[[Callable[[argparse.Namespace], int]], Main]:
    """Makes a main function of one that takes the arguments as parsed; `options` declares them.

    Bad input ends in `name: error: ...` on stderr and exit code 2, never in a traceback.
    """

    def wrap(body: Callable[[argparse.Namespace], int]) -> Main:
        def main(argv: list[str] | None = None) -> int:
            _take_any_character()
            parser = _Parser(prog=prog, description=description, epilog=epilog)
            options(parser)
            parser.add_argument("--version", action="version", version=f"ovsw {__version__}")
            try:
                return body(parser.parse_args(argv))
            except BrokenPipeError:  # the reader, such as `head`, has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
            except KeyboardInterrupt:
                return 130
            except (ValueError, OSError, RuntimeError, MemoryError, SystemError) as e:  # the last: memory ran out in C
                print(f"{prog.removeprefix('python -m ')}: error: {message(e)}", file=sys.stderr)
                return 2

        return main

    return wrap


def add_memory_limit(p: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--memory-limit`, of commands that load a file of the user's; `memory_limit` is what an Engine takes of it."""
    p.add_argument(
        "--memory-limit", metavar="MB", type=int, help="memory that a model may take (default: 168 and 4 x its size)"
    )


def memory_limit(args: argparse.Namespace) -> int | None:
    if args.memory_limit is not None and args.memory_limit < 1:
        raise ValueError(f"--memory-limit is {args.memory_limit}, expected at least 1")
    return None if args.memory_limit is None else args.memory_limit * 1_000_000


def message(e: Exception) -> str:
    """The text of an error, on one line; the system's own say which file they are about."""
    if isinstance(e, MemoryError):
        return visible(str(e) or "out of memory")
    if isinstance(e, OSError) and e.filename is not None and e.strerror:
        return visible(f"{e.filename}: {e.strerror}")
    return visible(str(e) or type(e).__name__)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


def _take_any_character() -> None:
    """What the terminal's encoding does not have is escaped; by default it would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
