"""What `ovsw run` takes and shows: folders, patterns, stdin, pages, pictures in a terminal; and progress."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ovsw import zoo
from ovsw.commands import run
from ovsw.util import progress
from ovsw.util.progress import Progress

from support import ROOT
from support.terminal import sent

PHOTO = ROOT / "bench" / "data" / "cat.jpg"
OVSW = str(Path(sys.executable).parent / "ovsw")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """c.PNG, a.jpg, b.png and no pictures beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    shutil.copy(PHOTO, tmp_path / "in" / "a.jpg")
    shutil.copy(zoo.pictures()["dog"], tmp_path / "in" / "b.png")
    shutil.copy(zoo.pictures()["frog"], tmp_path / "in" / "c.PNG")
    shutil.copy(zoo.pictures()["frog"], tmp_path / "in" / "deep" / "d.png")
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    return tmp_path


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["in"], ["in/a.jpg", "in/b.png", "in/c.PNG"]),
        (["in/*.png"], ["in/b.png"]),
        (["in/[ab].*", "in/deep"], ["in/a.jpg", "in/b.png", "in/deep/d.png"]),
        (["in/**/*.png"], ["in/b.png", "in/deep/d.png"]),
        (["in/d*"], None),
        (["in/c.PNG", "in/a.jpg"], ["in/c.PNG", "in/a.jpg"]),
    ],
)
def test_inputs(
    inputs: list[str], expected: list[str] | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ([], [zoo.DEFAULT]):
        assert run.main([*model, *inputs, "--json"]) == (1 if expected is None else 0)
        results = json.loads(capsys.readouterr().out)["results"]
        assert [r["image"] for r in results] == (expected or inputs)
        for r in results if expected else []:
            assert [(t["label"], t["probability"]) for t in r["top"]] == zoo.load().classify(r["image"], 5)


def test_a_file_whose_name_is_a_pattern(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(PHOTO, "[ab]*.jpg")
    assert run.main(["[ab]*.jpg", "--json"]) == 0
    assert [r["image"] for r in json.loads(capsys.readouterr().out)["results"]] == ["[ab]*.jpg"]


def test_stdin(folder: Path) -> None:
    """Turned as its EXIF says, like a file."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(PHOTO) as image:
        image.save("turned.jpg", exif=exif)
    for name, code in (("turned.jpg", 0), ("in/notes.txt", 1), (os.devnull, 1)):
        with Path(name).open("rb") as file:
            done = subprocess.run([OVSW, "run", "-", "--json"], stdin=file, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        (result,) = json.loads(done.stdout)["results"]
        assert result["image"] == "-"
        if code:
            assert done.stderr.endswith(
                b"ovsw run: error: -: is not an image that Pillow can read (UnidentifiedImageError)\n"
            )
        else:
            assert [(t["label"], t["probability"]) for t in result["top"]] == zoo.load().classify("turned.jpg", 5)


def test_cut_off_in_stdin(folder: Path) -> None:
    data = PHOTO.read_bytes()[:3000]
    done = subprocess.run([OVSW, "run", "-"], input=data, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"ovsw run: error: -: cannot be decoded" in done.stderr


def test_html(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All pictures, good and bad, with the three best answers however many are printed."""
    assert run.main(["in", "in/notes.txt", "--html", "page.html", "--top", "1"]) == 1
    captured = capsys.readouterr()
    assert len(re.findall(r"^  +[\d.]+ %", captured.out, re.MULTILINE)) == 3
    assert captured.err.endswith("ovsw-run: wrote page.html\n")
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == 4
    assert page.count("<img ") == 3
    assert "in/notes.txt: is not an image" in page
    for name in ("in/a.jpg", "in/b.png", "in/c.PNG"):
        answers = zoo.load().classify(name, 3)
        part = page.split(f"<b>{name}</b>")[1].split("</figure>")[0]
        assert re.findall(r"<th>(.*?)</th><td>(.*?)</td>", part) == [(a, f"{100 * p:.1f} %") for a, p in answers]


def shown(*arguments: str, **environment: str) -> str:
    """What a terminal gets."""
    master, slave = pty.openpty()
    known = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLORTERM")}
    with subprocess.Popen(
        [OVSW, *arguments], stdout=slave, stderr=subprocess.DEVNULL, env={**known, "TERM": "xterm", **environment}
    ):
        os.close(slave)
        output = sent(master)
    return output.decode()


def test_pictures_in_a_terminal(folder: Path) -> None:
    text = shown("run", "in/a.jpg", "--show", COLORTERM="truecolor")
    assert text.count("\x1b[38;2;") == text.count("▀") == 32 * len([line for line in text.splitlines() if "▀" in line])
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    for label, p in zoo.load().classify("in/a.jpg", 3):
        assert re.search(rf"▀{{32}}  +{100 * p:.2f} %  █* +{label}$", plain, re.MULTILINE)
    assert "\x1b" not in shown("run", "in/a.jpg", "--show", NO_COLOR="1")
    assert "\x1b" not in shown("run", "in/a.jpg")
    done = subprocess.run([OVSW, "run", "in/a.jpg", "--show"], capture_output=True, check=True)
    assert b"\x1b" not in done.stdout
    assert b"this terminal has no colour support" in done.stderr


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by hand: nothing in the first two seconds, then often in a terminal and seldom in a log."""
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    for terminal in (True, False):
        monkeypatch.setattr(sys, "stderr", Stream(terminal))
        said = []
        with Progress("ovsw x") as tell:
            for done in range(1, 1301):
                now += 0.125
                before = sys.stderr.getvalue()  # type: ignore[attr-defined]
                tell("points", done, 1300)
                if sys.stderr.getvalue() != before:  # type: ignore[attr-defined]
                    said.append(done)
        assert said == [*range(16, 1301, 2)] if terminal else said == [16, 496, 976]
        text = sys.stderr.getvalue()  # type: ignore[attr-defined]
        assert text.endswith("\r") if terminal else text.endswith(" s\n")
        assert "ovsw x: points 976 of 1,300, 75 %, 122 s" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_quick_leaves_nothing(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(terminal))
    with Progress("ovsw x") as tell:
        tell("points", 1, 2)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    with Progress("ovsw x") as tell:
        tell.step("loading \x1b")
    expected = "\rovsw x: loading \\x1b ...\r" + " " * 24 + "\r" if terminal else ""
    assert sys.stderr.getvalue() == expected  # type: ignore[attr-defined]
