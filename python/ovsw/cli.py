"""What the commands share: one line per error, exit codes, --version."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from typing import Protocol

from ovsw._version import __version__


class Main(Protocol):
    """A command's main function; None means the process's own arguments."""

    def __call__(self, argv: list[str] | None = None) -> int: ...


def command(name: str) -> Callable[[Main], Main]:
    """Wraps a main function: bad input ends in `name: error: ...` on stderr and exit code 2, never in a traceback."""

    def wrap(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: list[str] | None = None) -> int:
            try:
                return main(argv)
            except BrokenPipeError:  # the reader, such as `head`, has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
            except KeyboardInterrupt:
                return 130
            except (ValueError, OSError, RuntimeError) as e:
                print(f"{name}: error: {message(e)}", file=sys.stderr)
                return 2

        return run

    return wrap


def message(e: Exception) -> str:
    """The text of an error; the system's own say which file they are about."""
    if isinstance(e, OSError) and e.filename is not None and e.strerror:
        return f"{e.filename}: {e.strerror}"
    return str(e) or type(e).__name__


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"ovsw {__version__}")
