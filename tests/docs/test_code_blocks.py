"""Every code block of README and docs, run as printed, page by page in one folder; support/pages.py says how."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ovsw import zoo

from support import HANGS, ROOT, pages
from support.exporting import R20, state_of
from support.pages import PAGES, Block
from support.training import tiny_cifar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NATIVE = "ovsw-classify"  # without Python: tests/cpp/test_library.py runs it
LANGUAGES = {"bash", "python", "text", "c", "cpp", "cmake", "toml"}
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def checkpoint(path: Path) -> None:
    import torch

    torch.save({"state_dict": dict(state_of(R20, 10))}, path)


def picture(name: str) -> Callable[[Path], None]:
    return lambda path: Image.open(ROOT / name).convert("RGB").save(path)


def folder_of_pictures(path: Path) -> None:
    shutil.copytree(ROOT / "python" / "ovsw" / "data" / "cifar10", path, ignore=shutil.ignore_patterns("*.md"))


def trained(path: Path) -> None:
    import torch

    path.mkdir(parents=True)
    torch.save({"state_dict": dict(state_of(R20, 10))}, path / "model_best.pth")


STAND_INS: dict[str, Callable[[Path], Any]] = {
    "DIR": lambda path: tiny_cifar(path, 16),
    "cat.jpg": picture("bench/data/cat.jpg"),
    "dog.jpg": picture("python/ovsw/data/cifar10/dog.png"),
    "photo.jpg": picture("bench/data/cat.jpg"),
    "photos": folder_of_pictures,
    "model.bnn": lambda path: path.write_bytes(zoo.path("cresnet20-cifar10").read_bytes()),
    "model_best.pth": checkpoint,
    "RUN": trained,
}


class Shell:
    """Runs the blocks of one page; Python's share their names."""

    def __init__(self, folder: Path, commands: Path = BIN) -> None:
        self.folder = folder
        self.commands = commands
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> str:
        """What it prints; of one that `fails`, its error."""
        text = block.text
        for old, new in block.swaps:
            text = text.replace(old, new)
        if block.file:
            (self.folder / block.file).write_text(text)
        return self.python(block, text) if block.language == "python" else self.bash(block, text)

    def bash(self, block: Block, text: str) -> str:
        environment = {**os.environ, "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
        script = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            script, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
        )
        assert (done.returncode != 0) == block.fails, f"{block}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr if block.fails else done.stdout

    def python(self, block: Block, text: str) -> str:
        code = compile(text, str(block), "exec")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if not block.fails:
                exec(code, self.names)
                return out.getvalue()
            with pytest.raises((ValueError, RuntimeError, OSError)) as caught:
                exec(code, self.names)
        return f"{caught.type.__name__}: {caught.value}"


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in pages.stand_ins(page):
        STAND_INS[name](folder / name)
    shell = Shell(folder)
    printed: str | None = None
    for block in pages.blocks(page):
        if block.slow and not slow:
            return
        if block.output:
            assert printed is not None, f"{block}: no block before it was run"
            assert pages.matches(block.text, printed), f"{block} was:\n{printed}"
        elif block.not_run is None and block.language in ("bash", "python"):
            printed = shell.run(block)
        else:
            printed = None


def is_slow(page: str) -> bool:
    return any(block.slow for block in pages.blocks(page))


@pytest.mark.parametrize("page", [p for p in PAGES if pages.blocks(p)])
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if is_slow(p)])
def test_slow_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch, slow=True)


@pytest.mark.skipif("OVSW_ARM64" not in os.environ, reason="needs the emulator: make test-arm64")
@pytest.mark.parametrize(("cpu", "isa"), [("cortex-a72", "arm_neon"), ("cortex-a76", "arm_neon_dot")])
def test_the_pi_page_on_an_emulated_cpu(cpu: str, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With commands that start an arm64 Python, as tools/arm64/setup makes it."""
    page, python = "docs/raspberry_pi.md", ROOT / "build" / "arm64" / "python"
    commands, folder = tmp_path / "bin", tmp_path / "home"
    commands.mkdir()
    folder.mkdir()
    for name, entry in SCRIPTS.items():
        module, function = entry.split(":")
        call = f"import sys; from {module} import {function}; sys.exit({function}())"
        (commands / name).write_text(f'#!/bin/sh\nexec {python} -c "{call}" "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("QEMU_CPU", cpu)
    for name in pages.stand_ins(page):
        STAND_INS[name](folder / name)
    shell = Shell(folder, commands)
    printed = []
    for block in pages.blocks(page):
        if block.language == "python":
            run = [str(python), "-c", block.text]
            printed.append(subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout)
        elif block.not_run is None:
            printed.append(shell.run(block))
    assert len(printed) == 3
    assert printed[-1].split()[-1] == isa


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page: str) -> None:
    """A known language, a reason if it is not run, and for text the block that printed it, a tool or a test."""
    for block in pages.blocks(page):
        assert block.language in LANGUAGES, f"{block}: ```{block.language}"
        assert block.not_run is None or len(block.not_run) > 9, f"{block}: not run, but why?"
        assert not block.output or block.language == "text", f"{block}: an output is text"
        assert block.language != "text" or block.output or block.checked, f"{block}: who checks this text?"
        if block.language in ("c", "cpp", "cmake"):  # tests/cpp/test_library.py compiles them
            assert page == "docs/c_api.md"


class ParsedError(Exception):
    """Ends a command as soon as its arguments are read."""


def parse(command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the command's own parser accepts these arguments."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        real(self, *args, **kwargs)
        raise ParsedError

    module, function = SCRIPTS[command].split(":")
    main = getattr(importlib.import_module(module), function)
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        try:
            main(arguments)
        except ParsedError:
            return True
        except SystemExit as e:  # --help, --version
            return e.code in (0, None)
    return False


@pytest.mark.parametrize("page", PAGES)
def test_blocks_that_are_not_run_could_be(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their shell and Python are well formed, their options and make targets exist."""
    makefile = (ROOT / "Makefile").read_text()
    for block in pages.blocks(page):
        if block.language == "python":
            compile(block.text, str(block), "exec")
        if block.language != "bash":
            continue
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        for words in pages.commands(block):
            if words[0] in SCRIPTS:
                assert parse(words[0], words[1:], monkeypatch), f"{block}: {' '.join(words)}"
            if words[0].startswith("ovsw-") and words[0] != NATIVE:
                assert words[0] in SCRIPTS, f"{block}: there is no {words[0]}"
            if words[0] == "make":
                for target in (w for w in words[1:] if "=" not in w):
                    assert re.search(rf"^[^\n=#]*\b{target}\b[^\n=]*:", makefile, re.MULTILINE), (
                        f"{block}: make {target}"
                    )


@pytest.mark.parametrize("page", PAGES)
def test_options_in_the_text_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = pages.FENCE.sub("", pages.text_of(page))
    for span in re.findall(r"`(ovsw-[^`]+)`", text):
        command, *words = span.split()
        if command == NATIVE:
            continue
        assert command in SCRIPTS, f"{page}: `{span}`"
        options = {w.split("=")[0] for w in words if w.startswith("--")}
        if options:
            module, function = SCRIPTS[command].split(":")
            with contextlib.suppress(SystemExit):
                getattr(importlib.import_module(module), function)(["--help"])
            known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
            assert options <= known, f"{page}: `{span}`"
