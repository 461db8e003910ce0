"""The entry points of all commands and of `python -m ovsw`. Nothing is imported before Ctrl-C is handled.

Each name below is a script of pyproject.toml: `main` is `ovsw`, `run` is `ovsw-run` and so on.
"""

from __future__ import annotations

import sys


class Door:
    """Runs the command of this name, or the one that the first argument names. Returns the exit code."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __call__(self, argv: list[str] | None = None) -> int:
        interrupted = False

        def interrupt(number: int, frame: object) -> None:
            nonlocal interrupted
            interrupted = True
            raise KeyboardInterrupt

        try:
            import signal

            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
                signal.signal(signal.SIGINT, interrupt)
            from ovsw.commands.base import dispatch

            code = dispatch(self.name, sys.argv[1:] if argv is None else argv)
            return 130 if interrupted and code else code
        except (Exception, KeyboardInterrupt) as e:
            if not interrupted and not isinstance(e, KeyboardInterrupt):  # C code can make another error of it
                raise
            print(f"{'ovsw' if self.name is None else f'ovsw-{self.name}'}: interrupted", file=sys.stderr)
            return 130


main = Door(None)
bench, demo, export, flips, info = (Door(name) for name in ("bench", "demo", "export", "flips", "info"))
landscape, repro, run, train, zoo = (Door(name) for name in ("landscape", "repro", "run", "train", "zoo"))

if __name__ == "__main__":
    sys.exit(main())
