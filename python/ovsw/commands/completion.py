"""`ovsw completion`: prints a script with which a shell completes commands, options and file names; shtab writes it."""

from __future__ import annotations

import argparse
import contextlib
import importlib

from ovsw.commands.base import COMMANDS, Main, command

SHELLS = ("bash", "zsh", "fish")
_FILES = ("CKPT", "FILE", "IMG", "MODEL", "OUT", "RUN", "SOURCE", ".json")
_EPILOG = """
bash:  ovsw completion bash > ~/.local/share/bash-completion/completions/ovsw
zsh:   ovsw completion zsh > "${fpath[1]}/_ovsw"
fish:  ovsw completion fish > ~/.config/fish/completions/ovsw.fish
"""


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("shell", choices=SHELLS, help="your shell")


@command(
    "ovsw completion",
    "Print a completion script for your shell.",
    options,
    _EPILOG,
    ("bash > ovsw.bash", "zsh > _ovsw"),
)
def main(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(parser(), args.shell))
    return 0


def parser() -> argparse.ArgumentParser:
    """A parser of all commands, for completion only."""
    everything = argparse.ArgumentParser("ovsw", description="Binary neural networks from PyTorch to small machines.")
    everything.add_argument("--version", action="store_true", help="show the version")
    commands = everything.add_subparsers(dest="command")
    for name, known in COMMANDS.items():
        part = commands.add_parser(name, help=known.about)
        with contextlib.suppress(ModuleNotFoundError):  # without its packages, only its name is completed
            _declare(part, importlib.import_module(known.module).main)
    return everything


def _declare(part: argparse.ArgumentParser, main: Main) -> None:
    """Gives a parser what a command takes, its sub-commands included."""
    main.declare(part)
    _complete(part)
    if main.others:
        commands = part.add_subparsers()
        for name, other in main.others.items():
            _declare(commands.add_parser(name, help=other.description), other)


def _complete(part: argparse.ArgumentParser) -> None:
    """Tells shtab what each argument is: one of some names, a folder or a file, by its metavar."""
    import shtab

    for action in part._actions:
        word, names = str(action.metavar or ""), getattr(action, "names", None)
        if names is not None:
            action.choices = names()
        elif word == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif any(file in word for file in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
