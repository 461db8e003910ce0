"""What development installs is pinned, workflows may do little, and an archive depends on its contents alone."""

from __future__ import annotations

import os
import re
import runpy
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

EXTRAS = ("export", "train", "bench", "dev", "docs", "mutation")


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


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_have_few_rights(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE), "rights are given job by job"
    assert "write" not in text
    assert "pull_request_target" not in text
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{action} is not pinned to a commit"


def test_an_sdist_depends_on_names_and_contents_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    import setuptools

    made: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", made.update)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    runpy.run_path(str(ROOT / "setup.py"))
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
