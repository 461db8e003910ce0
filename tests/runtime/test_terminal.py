"""What files say reaches the terminal as text: hostile labels, names and file names through the real commands."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from ovsw import Engine
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.util.text import table, visible

from support import ROOT
from support.models import small_model
from support.terminal import sent

PHOTO = ROOT / "bench" / "data" / "cat.jpg"
TITLE = "\x1b]0;owned\x07"
RED = "\x1b[31m"
BACK = "a\rb\x08\x7f"
CSI = "\x9b2J"
BIDI = "\u202egnp.exe\u2066\u200f\u061c"
LINES = "two\nlines\u2028three\x85four"
HOSTILE = (TITLE, RED, BACK, CSI, BIDI, LINES, "\ufeff\u200b\u00ad", "\U000e0041")
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that says hostile things wherever a file can, and pictures with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    network = random_resnet("resnet18", num_classes=10, size=32)
    network.metadata["labels"] = [f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(10)]
    network.metadata["arch"] = f"net {RED}{LINES}"
    network.metadata[f"key {TITLE}"] = [f"value {BIDI}"]
    network.metadata[f"words {TITLE}"] = f"{CSI}{LINES}"
    for i, op in enumerate(network.ops):  # what a name may not hold, the format refuses
        op.name = f"op {i} {CSI} {BIDI} \u2028"
    bnn.write(network, folder / f"net {RED}.bnn")
    for name in (os.fsencode(f"{RED}{LINES}.jpg"), b"latin \xe4 \x9b2J.jpg"):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(PHOTO.read_bytes())  # noqa: PTH118
    (folder / f"bad {RED}\n.jpg").write_text("no picture")
    return folder


def assert_tame(output: bytes) -> str:
    """UTF-8 of which a terminal obeys the ends of lines alone."""
    text = output.decode()
    wild = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} - {"\n"}
    assert not wild, (wild, text)
    return text


def in_pipe(*command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program, *rest = command
    environment = {**os.environ, "PYTHONUTF8": "0", **environment}
    return subprocess.run([str(BIN / program), *rest], capture_output=True, timeout=900, env=environment)


def in_terminal(*command: str) -> tuple[int, bytes]:
    """Exit code, and what a terminal got from stdout and stderr, without its own carriage returns and the line of
    progress that is drawn over itself.
    """
    master, slave = pty.openpty()
    program, *rest = command
    process = subprocess.Popen([str(BIN / program), *rest], stdout=slave, stderr=slave, stdin=slave)
    os.close(slave)
    output = sent(master)
    return process.wait(timeout=900), re.sub(rb"\r[ -~]*(?=\r)|\r", b"", output)


def commands(folder: Path) -> dict[str, tuple[int, list[str]]]:
    """Of each command its expected exit code."""
    (model,) = map(str, folder.glob("*.bnn"))
    pictures = sorted(map(str, folder.glob("*.jpg")))
    assert len(pictures) == 3
    missing = str(folder / f"no {RED}{LINES}")
    return {
        "run": (1, ["ovsw-run", model, *pictures, "--top", "10", "--profile"]),
        "run, no model": (1, ["ovsw-run", f"{missing}.bnn", *pictures]),
        "run, no options": (2, ["ovsw-run", f"--{RED}{LINES}"]),
        "info": (0, ["ovsw-info", model]),
        "info, nothing": (1, ["ovsw-info", missing]),
        "zoo": (1, ["ovsw-zoo", f"{RED}{LINES}"]),
        "export": (1, ["ovsw-export", f"{missing}.pth", "-o", str(folder / "out.bnn")]),
        "bench": (0, ["ovsw-bench", "--arch", "none", "--model", model, "--peers", "none", "--quick", "--repeat", "1"]),
    }


def test_commands_in_a_pipe_and_in_a_terminal(folder: Path) -> None:
    for what, (code, command) in commands(folder).items():
        if what == "bench":
            continue
        piped = in_pipe(*command)
        assert piped.returncode == code, (what, piped.stderr)
        text = assert_tame(piped.stdout) + assert_tame(piped.stderr)
        assert "Traceback" not in text
        assert "\\x1b" in text, what
        shown_code, shown = in_terminal(*command)
        assert shown_code == code
        assert "Traceback" not in assert_tame(shown)


def test_every_hostile_label_is_one_line(folder: Path) -> None:
    _, command = commands(folder)["run"]
    lines = in_pipe(*command).stdout.decode().splitlines()
    labels = [line for line in lines if re.match(r" +[\d.]+ %  ", line)]
    assert len(labels) == 20  # ten of each picture that can be read
    for i, name in enumerate(HOSTILE):
        escaped = name.encode("unicode_escape").decode()
        assert any(line.endswith(f"%  {escaped} {i}") for line in labels), name


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_any_encoding_of_the_terminal(folder: Path, encoding: str) -> None:
    """A label that it does not have is escaped; nothing is lost, nothing ends."""
    network = random_resnet("resnet18", num_classes=10, size=32)
    network.metadata["labels"] = [f"Käse \u65e5 {i}" for i in range(10)]
    bnn.write(network, folder / "labels.net")
    done = in_pipe("ovsw-run", str(folder / "labels.net"), str(PHOTO), PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    words = {"ascii": "K\\xe4se \\u65e5", "latin-1": "Käse \\u65e5", "utf-16": "Käse \u65e5"}[encoding]
    assert done.stdout.decode(encoding).count(words) == 5
    done = in_pipe("ovsw-info", str(folder / "labels.net"), LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert b"10 classes: K" in done.stdout


def test_json_stays_json(folder: Path) -> None:
    """And has what the file says, to the letter; a picture that cannot be read is an entry too."""
    code, command = commands(folder)["run"]
    for environment in ({}, {"PYTHONIOENCODING": "ascii"}):
        done = in_pipe(*command, "--json", **environment)
        assert done.returncode == code
        results = {result["image"]: result for result in json.loads(done.stdout)["results"]}
        assert list(results) == command[2:5]
        labels = Engine(command[1]).labels
        for path, result in results.items():
            if "bad" in path:
                assert set(result) == {"image", "error"}
                assert result["error"].startswith(visible(path))
            else:
                assert sorted(top["label"] for top in result["top"]) == sorted(labels)
    done = in_pipe("ovsw-info", command[1], "--json")
    assert json.loads(done.stdout)["metadata"]["arch"] == f"net {RED}{LINES}"


def test_bench_with_a_hostile_file(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    _, command = commands(folder)["bench"]
    command[2] = "resnet18"
    outputs = [str(folder / name) for name in ("page.html", "table.md", "plot.png", "all.json")]
    files = [x for pair in zip(("--html", "--markdown", "--plot", "--json"), outputs) for x in pair]
    done = in_pipe(*command, "--profile", *files)
    assert done.returncode == 0, done.stderr
    assert_tame(done.stdout)
    assert_tame(done.stderr)
    assert "\\x1b" in assert_tame(Path(outputs[0]).read_bytes())
    assert "\\x1b" in assert_tame(Path(outputs[1]).read_bytes())
    json.loads(Path(outputs[3]).read_text())


def test_errors_of_the_engine_are_tame() -> None:
    """The C++ side quotes names that the format allows."""
    made = small_model()
    for op in made.ops:
        op.name = f"{CSI}{BIDI}\u2028 \u00e4\u65e5\U0001f600"
        op.input = 10**6
    with pytest.raises(ValueError, match=r"\\x9b2J\\u202egnp") as e:
        Engine(bnn.to_bytes(made))
    assert_tame(str(e.value).encode())
    assert "\u00e4\u65e5\U0001f600" in str(e.value)


def test_visible() -> None:
    for point in (*range(0x3000), *range(0xD7F0, 0x11000), 0x1F600, *range(0xE0000, 0xE0080), 0x10FFFF):
        text = visible(f"a{chr(point)}b")
        assert_tame(text.encode())
        assert "\n" not in text
        assert text in (f"a{chr(point)}b", "a" + chr(point).encode("unicode_escape").decode() + "b")
    assert visible("Käse, \u65e5\u672c \\ ~") == "Käse, \u65e5\u672c \\ ~"
    assert visible("abcdefghij", 6) == "ab..ij"
    assert table(("head",), [("a\nb",)]) == "head\n----\na\\nb"
