"""What all commands share (errors in one line, exit codes, --help with examples), and `ovsw`, which starts them.

Exit codes: 0 all is well; 1 something could not be read, computed or written; 2 the command line is wrong; 130 Ctrl-C.
A command's module is imported when the command is called; a missing package is reported in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ovsw._version import __version__
from ovsw.util.text import visible

FAILED, WRONG, INTERRUPTED = 1, 2, 130
MAX_THREADS = 256

Options = Callable[[argparse.ArgumentParser], None]
Body = Callable[[argparse.Namespace], int]


class UsageError(ValueError):
    """The command line is wrong, whatever the files that it names contain."""


@dataclass(frozen=True)
class Command:
    """A command: the module with its `main`, one line on what it does, the extra that installs its packages."""

    module: str
    about: str
    extra: str = ""


COMMANDS = {
    "run": Command("ovsw.commands.run", "classify pictures, with a network that comes with ovsw or one of your own"),
    "demo": Command("ovsw.bench.demo", "classify pictures with a trained network and time large ones"),
    "info": Command("ovsw.commands.info", "show what is in a .bnn file, or which kernels this CPU runs"),
    "zoo": Command("ovsw.commands.zoo", "list the trained networks that come with ovsw"),
    "doctor": Command("ovsw.commands.doctor", "check this machine and installation, for a bug report"),
    "export": Command("ovsw.export.cli", "convert a PyTorch network or an ONNX file to a .bnn file", "export"),
    "train": Command("ovsw.train.cli", "train a binary network with a recipe", "train"),
    "bench": Command("ovsw.bench.cli", "time the engine against the other engines that are installed", "bench"),
    "flips": Command("ovsw.train.flips", "show the silent weights of a training run", "train"),
    "landscape": Command("ovsw.train.landscape", "draw the loss around a trained network", "train"),
    "repro": Command("ovsw.repro.cli", "reproduce the tables and figures of the paper", "train,export,bench"),
    "completion": Command("ovsw.commands.completion", "print a completion script for bash, zsh or fish", "completion"),
}
EXAMPLES = ("ovsw run cat.jpg", "ovsw train --list", "ovsw export model_best.pth -o model.bnn", "ovsw run --help")
_OPTIONAL = ("matplotlib", "onnx", "onnxruntime", "shtab", "tensorboard", "tomli", "torch", "tqdm")


def dispatch(name: str | None, argv: list[str]) -> int:
    """Runs a command by its script's name; `None` is `ovsw` itself, whose first argument names the command."""
    _take_any_character()
    if name is not None:
        return _load(name, f"ovsw-{name}")(argv)
    first, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if first == "help":
        first, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if first in ("-h", "--help"):
        print(overview())
        return 0
    if first == "--version":
        print(f"ovsw {__version__}")
        return 0
    if first not in COMMANDS:
        print(f"ovsw: error: {visible(_unknown(first))}", file=sys.stderr)
        return WRONG
    return _load(first, f"ovsw {first}")(rest, f"ovsw {first}")


def overview() -> str:
    """The text of `ovsw --help`."""
    rows = [f"  {name:<{max(map(len, COMMANDS))}}  {command.about}" for name, command in COMMANDS.items()]
    about = "Binary neural networks from PyTorch to small machines."
    parts = ["usage: ovsw COMMAND [options]", about, "\n".join(["commands:", *rows]), _examples(EXAMPLES)]
    return "\n\n".join([*parts, "ovsw COMMAND --help shows the options of a command, ovsw --version the version"])


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"unknown option {word}; ovsw --help lists the commands"
    if Path(word).exists():
        return f"{word} is not a command; to classify a picture: ovsw run {word}"
    close = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f", did you mean 'ovsw {close[0]}'?" if close else "; ovsw --help lists them"
    return f"unknown command '{word}'{hint}"


def _load(name: str, prog: str) -> Callable[..., int]:
    try:
        return importlib.import_module(COMMANDS[name].module).main
    except Exception as e:
        line = _missing(e, COMMANDS[name].extra) or f"{type(e).__name__}: {message(e)}"
        print(f"{prog}: error: {line}", file=sys.stderr)
        return lambda *arguments: FAILED


def command(
    prog: str,
    description: str,
    options: Options,
    epilog: str = "",
    examples: Sequence[str] = (),
    others: dict[str, Main] | None = None,
) -> Callable[[Body], Main]:
    """Turns a function of the parsed arguments into a command; `args.prog` is the name that it was called by.

    `options` declares the arguments, `examples` are command lines, and `others` are sub-commands by name.
    """
    return lambda body: Main(prog, description, options, body, epilog, examples, others or {})


@dataclass(frozen=True)
class Main:
    """A command. Called with its arguments it returns an exit code; bad input ends in one line on stderr."""

    prog: str
    description: str
    options: Options
    body: Body
    epilog: str = ""
    examples: Sequence[str] = ()
    others: dict[str, Main] = field(default_factory=dict)

    def __call__(self, argv: list[str] | None = None, prog: str | None = None) -> int:
        _take_any_character()
        argv, prog = sys.argv[1:] if argv is None else argv, prog or self.prog
        if argv and argv[0] in self.others:
            return self.others[argv[0]](argv[1:], f"{prog} {argv[0]}")
        parser = Parser(prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.declare(parser)
        try:
            code = self.body(parser.parse_args(argv))
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
            _discard_output()
            return 0
        except KeyboardInterrupt:
            return self._say(prog, "interrupted", INTERRUPTED)
        except UsageError as e:
            return self._say(prog, f"error: {message(e)}", WRONG)
        except ModuleNotFoundError as e:
            known = COMMANDS.get(self.prog.replace("-", " ").removeprefix("ovsw ").split()[0])
            return self._say(prog, f"error: {_missing(e, known.extra if known else '') or message(e)}", FAILED)
        except (
            ValueError,
            OSError,
            RuntimeError,
            MemoryError,
            SystemError,
            ImportError,
        ) as e:  # SystemError: no memory in C
            return self._say(prog, f"error: {message(e)}", FAILED)

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Gives a parser the options, description and examples of this command."""
        parser.description = textwrap.fill(self.description, 100)
        others = "\n".join(["commands:", *(f"  %(prog)s {n}: {main.description}" for n, main in self.others.items())])
        examples = _examples([f"%(prog)s {example}".strip() for example in self.examples])
        parts = [others * bool(self.others), self.epilog.strip(), examples * bool(self.examples)]
        parser.epilog = "\n\n".join(filter(None, parts)) or None
        self.options(parser)
        parser.add_argument("--version", action="version", version=f"ovsw {__version__}")
        parser.set_defaults(prog=parser.prog)

    @staticmethod
    def _say(prog: str, line: str, code: int) -> int:
        print(f"{prog.removeprefix('python -m ')}: {line}", file=sys.stderr)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            return code
        _discard_output()
        return code


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number {bounds}")
        return value

    return parse


def new_file(text: str) -> Path:
    """The type of an option that names a file to write; its folder must exist."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    return path


def isa(text: str) -> str:
    """The type of `--isa`: a kernel table that this build has and this CPU supports."""
    if text not in _isas():
        raise argparse.ArgumentTypeError(
            f"'{text}': unknown instruction set; available on this CPU: {', '.join(_isas())}"
        )
    return text


def _isas() -> list[str]:
    from ovsw import cpu

    return cpu.supported_isas()


def offer(action: argparse.Action, names: Callable[[], list[str]]) -> None:
    """Shell completion offers these names for an argument; other values may be valid too."""
    action.names = names  # type: ignore[attr-defined]


def add_engine(p: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds `--threads` and `--isa`."""
    count = whole(1, MAX_THREADS)
    p.add_argument("--threads", metavar="N", type=count, default=1, help="threads per image (default: %(default)s)")
    about = "kernel table to use (default: the best for this CPU)"
    offer(p.add_argument("--isa", metavar="NAME", type=isa, help=about), _isas)


def add_memory_limit(p: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds `--memory-limit`; `memory_limit` converts it for an Engine."""
    about = "most memory that a model may use (default: 168 MB and 4 x the size of the file)"
    p.add_argument("--memory-limit", metavar="MB", type=whole(1), help=about)


def memory_limit(args: argparse.Namespace) -> int | None:
    return None if args.memory_limit is None else args.memory_limit * 1_000_000


def add_work_limit(p: argparse.ArgumentParser) -> None:
    """Adds `--work-limit`; `work_limit` converts it for an Engine."""
    about = "most work that an image may be, in billions of multiply-adds (default: 1000)"
    p.add_argument("--work-limit", metavar="G", type=whole(1), help=about)


def work_limit(args: argparse.Namespace) -> int | None:
    return None if args.work_limit is None else args.work_limit * 1_000_000_000


def message(e: Exception) -> str:
    """The text of an error, with the file's name if the system raised it; one line, or one for each of its problems."""
    if isinstance(e, MemoryError):
        return visible(str(e) or "out of memory")
    if isinstance(e, OSError) and e.filename is not None and e.strerror:
        return visible(f"{e.filename}: {e.strerror}")
    if problems := getattr(e, "problems", None):
        return "\n  ".join(map(visible, [e.summary, *problems]))  # type: ignore[attr-defined]
    return visible(str(e) or type(e).__name__)


class Parser(argparse.ArgumentParser):
    """Its errors are usage errors, one line each."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _missing(e: Exception, extra: str) -> str:
    """How to install a missing package; "" for other errors."""
    name = (e.name or "").split(".")[0] if isinstance(e, ModuleNotFoundError) else ""
    if name not in _OPTIONAL:
        return ""
    return f"{name} is not installed: pip install 'ovsw[{extra}]'" if extra else f"{name} is not installed"


def _examples(lines: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def _discard_output() -> None:
    """Keeps Python from writing buffered output again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _take_any_character() -> None:
    """Escapes characters that the terminal cannot encode; by default they would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
