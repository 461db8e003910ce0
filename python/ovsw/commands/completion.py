"""`ovsw completion`: the script by which a shell completes commands, options and file names. shtab writes it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys

from ovsw.commands.base import COMMANDS, Main, command

SHELLS = ("bash", "zsh", "fish")
_FILES = ("CKPT", "FILE", "IMG", "MODEL", "OUT", "RUN", "SOURCE", ".json")
_EPILOG = """
bash:  ovsw completion bash > ~/.local/share/bash-completion/completions/ovsw
zsh:   ovsw completion zsh > "${fpath[1]}/_ovsw"
fish:  ovsw completion fish > ~/.config/fish/completions/ovsw.fish
"""


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("shell", choices=SHELLS, help="the shell that it is for")


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
    """All commands in one, as far as a shell wants to know them."""
    everything = argparse.ArgumentParser("ovsw", description="Binary neural networks from PyTorch to small machines.")
    everything.add_argument("--version", action="store_true", help="show the version")
    commands = everything.add_subparsers(dest="command")
    for name, known in COMMANDS.items():
        part = commands.add_parser(name, help=known.about)
        with contextlib.suppress(ModuleNotFoundError):  # of one that cannot be called here the name must do
            main: Main = importlib.import_module(known.module).main
            main.declare(part)
            _complete(part)
    return everything


def _complete(part: argparse.ArgumentParser) -> None:
    """Says what the arguments of a command are: names that it offers, or files, going by the words of its help."""
    import shtab

    for action in part._actions:
        word, names = str(action.metavar or ""), getattr(action, "names", None)
        if names is not None:
            action.choices = names()
        elif word == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif any(file in word for file in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main(None))
