"""`ovsw completion` in real shells: what they offer for the beginning of a line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ovsw import cpu, zoo
from ovsw.commands import completion
from ovsw.commands.base import COMMANDS
from ovsw.train.recipe import recipes

pytest.importorskip("shtab")

_BASH = r"""
source "$1"; shift
function=$(complete -p ovsw | sed -E 's/.* -F ([^ ]+) .*/\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$function ovsw "${!#}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cat.jpg").write_text("")
    return tmp_path


def offered(shell: str, folder: Path, *words: str) -> set[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not here")
    script = folder / f"script.{shell}"
    if not script.exists():
        import shtab

        script.write_text(shtab.complete(completion.parser(), shell))
    if shell == "fish":
        line = f'source {script}; complete -C "{" ".join(words)}"'
        done = subprocess.run([program, "--no-config", "-c", line], capture_output=True, text=True, check=True)
        return {found.split("\t")[0].rstrip("/") for found in done.stdout.splitlines()}
    command = [program, "--norc", "-c", _BASH, program, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {found.rstrip("/ ") for found in done.stdout.splitlines() if found}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_offers(shell: str, folder: Path) -> None:
    assert offered(shell, folder, "ovsw", "") >= set(COMMANDS)
    assert offered(shell, folder, "ovsw", "r") == {"run", "repro"}
    assert offered(shell, folder, "ovsw", "run", "--t") == {"--top", "--threads"}
    assert offered(shell, folder, "ovsw", "run", "ca") == {"cat.jpg", "cats"}
    assert offered(shell, folder, "ovsw", "run", "--isa", "") == set(cpu.supported_isas())
    assert offered(shell, folder, "ovsw", "train", "--data", "ca") == {"cats"}
    assert offered(shell, folder, "ovsw", "train", "table1") == {
        recipe.name for recipe in recipes() if recipe.name.startswith("table1")
    }
    assert offered(shell, folder, "ovsw", "zoo", "") >= set(zoo.names())
    assert offered(shell, folder, "ovsw", "bench", "") >= {"compare", "families", "micro", "training"}
    assert offered(shell, folder, "ovsw", "bench", "micro", "--r") == {"--rounds"}
    assert offered(shell, folder, "ovsw", "completion", "") >= set(completion.SHELLS)


def test_zsh_takes_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its line editor nothing can be completed; that it is read, and which function it makes, can be seen."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh is not here")
    assert completion.main(["zsh"]) == 0
    (folder / "_ovsw").write_text(capsys.readouterr().out)
    line = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d dump; autoload +X _ovsw; print $_comps[ovsw]"
    done = subprocess.run([zsh, "-f", "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("_ovsw\n", "")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main([shell]) == 0
    script = capsys.readouterr().out
    for option in ("memory-limit", "zero-weights", "resume", "scaling", "redraw", "span"):
        assert re.search(rf"\b{option}\b", script), option
