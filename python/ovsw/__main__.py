"""The door of every command, `python -m ovsw` included: it imports nothing until Ctrl-C can be answered by one line.

Each name below is a script of pyproject.toml: `main` is `ovsw`, `run` is `ovsw-run` and so on.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from types import FrameType
from typing import NoReturn


def enter(name: str | None, argv: list[str] | None = None) -> int:
    """Runs the command of this name, or that which the first argument says. Ends in an exit code, whatever happens."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    script = "ovsw" if name is None else f"ovsw-{name}"
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
            signal.signal(signal.SIGINT, interrupt)
        from ovsw.cli import dispatch

        code = dispatch(name, sys.argv[1:] if argv is None else argv)
        return 130 if interrupted and code else code
    except (Exception, KeyboardInterrupt) as e:
        if not interrupted and not isinstance(
            e, KeyboardInterrupt
        ):  # what is written in C can make another error of it
            raise
        print(f"{script}: interrupted", file=sys.stderr)
        return 130


main = partial(enter, None)
bench, demo, export, flips, info = (partial(enter, name) for name in ("bench", "demo", "export", "flips", "info"))
landscape, repro, run, train, zoo = (partial(enter, name) for name in ("landscape", "repro", "run", "train", "zoo"))

if __name__ == "__main__":
    sys.exit(main())
