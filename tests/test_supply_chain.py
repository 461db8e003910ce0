"""What development installs is pinned, workflows may do little, and an archive depends on its contents alone."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXTRAS = ("export", "onnx", "train", "bench", "dev", "docs", "mutation")


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_everything_that_development_needs_is_pinned_with_checksums() -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements" / "dev.txt").read_text().strip())
    pinned = set()
    for block in blocks:
        assert re.match(r"[A-Za-z0-9._-]+==[^ ]+ (; [^\\]+)?\\\n", block), block[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", block), block[:80]
        pinned.add(name_of(block))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in EXTRAS:
        wanted += project["project"]["optional-dependencies"][extra]
    assert {name_of(r) for r in wanted} - pinned == {"torch"}  # pinned in constraints.txt


def test_torch_is_pinned_in_one_place() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ['torch==2.13.0; python_version >= "3.10"']


def test_the_pinned_torch_is_one_that_the_extras_take() -> None:
    from packaging.requirements import Requirement

    pin = Requirement((ROOT / "constraints.txt").read_text().splitlines()[-1])
    (version,) = (s.version for s in pin.specifier)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [r for lines in extras.values() for r in map(Requirement, lines) if r.name == "torch"]
    assert len(asked) == 2
    assert all(r.specifier.contains(version) for r in asked)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_have_few_rights(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE), "rights are given job by job"
    assert "write" not in text
    assert "pull_request_target" not in text
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{action} is not pinned to a commit"


def settings(monkeypatch: pytest.MonkeyPatch, platform: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of setup.py, and what it gives to setuptools, on another system."""
    setuptools = pytest.importorskip("setuptools")
    for name in ("bdist_wheel", "build_ext", "sdist"):  # which look at this system when they are loaded
        importlib.import_module(f"setuptools.command.{name}")
    made: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", made.update)
    with monkeypatch.context() as there:
        there.setattr(sys, "platform", platform)
        names = runpy.run_path(str(ROOT / "setup.py"))
    return names, made


def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        settings(monkeypatch, "win32")
    words = "ovsw does not build on Windows; use it in WSL 2, as on Linux"
    assert refused.value.code == words
    cmake = shutil.which("cmake")
    if not cmake:
        pytest.skip("cmake is not installed")
    compiler = ["-DCMAKE_CXX_COMPILER_FORCED=ON", "-DCMAKE_CXX_COMPILER=/bin/true", "-DCMAKE_SYSTEM_NAME=Windows"]
    configure = [cmake, "-S", str(ROOT), "-B", str(tmp_path), *compiler]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("flags", "target", "expected"),
    [
        ("", None, "macosx-11.0-arm64"),  # a universal Python builds for the machine that it runs on
        ("-arch arm64", "12.3", "macosx-12.3-arm64"),
        ("-arch x86_64 -O2", None, "macosx-11.0-x86_64"),
        ("-arch arm64 -arch x86_64", None, None),
    ],
)
def test_a_mac_wheel_says_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, flags: str, target: str | None, expected: str | None
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setenv("ARCHFLAGS", flags)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "macosx-10.13-universal2")
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", target or "")
    if target is None:
        monkeypatch.delenv("MACOSX_DEPLOYMENT_TARGET")
    if expected is None:
        with pytest.raises(SystemExit, match="one architecture at a time, ARCHFLAGS names arm64 and x86_64"):
            settings(monkeypatch, "darwin")
        return
    names, _ = settings(monkeypatch, "darwin")
    assert os.environ["_PYTHON_HOST_PLATFORM"] == expected
    assert names["mac_architecture"]() == expected.split("-")[-1]


def test_an_sdist_depends_on_names_and_contents_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    _, made = settings(monkeypatch, sys.platform)
    archives = []
    for i, order in enumerate((("a.txt", "b.txt"), ("b.txt", "a.txt"))):
        folder = tmp_path / str(i) / "ovsw-1"
        folder.mkdir(parents=True)
        for name in order:
            (folder / name).write_text(name)
            os.utime(folder / name, (i, time.time()))
            (folder / name).chmod((0o600, 0o664)[i])
        monkeypatch.chdir(folder.parent)
        archives.append(made["cmdclass"]["sdist"].make_archive(SimpleNamespace(), "out/x", "gztar", base_dir="ovsw-1"))
        archives[-1] = folder.parent / archives[-1]
    first, second = (path.read_bytes() for path in archives)
    assert first == second
    with tarfile.open(archives[0]) as archive:
        assert [(m.name, m.mtime, m.mode) for m in archive] == [
            ("ovsw-1/a.txt", 1700000000, 0o644),
            ("ovsw-1/b.txt", 1700000000, 0o644),
        ]


def test_a_bill_of_materials_names_what_a_wheel_holds_and_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = ("Name: x", "Version: 1.0", "License-Expression: MIT", "Requires-Dist: numpy>=1.22")
        archive.writestr("x-1.0.dist-info/METADATA", "\n".join([*lines, 'Requires-Dist: torch; extra == "train"', ""]))
    found = runpy.run_path(str(ROOT / "tools" / "release" / "sbom.py"))["bill"](wheel)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/x@1.0"
    assert [part["name"] for part in found["components"]] == ["pybind11", "numpy"]
