"""The house itself: who may use whom, one version, no torch at import, wheels that work alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ovsw
from ovsw import _core, zoo

from support import ROOT


@cache
def levels() -> dict[str, set[str]]:
    """The table of CONTRIBUTING.md: part -> what it may use."""
    rows = re.findall(r"^\| `([^`]+)` \|[^|]+\| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rows) >= 13
    table = {part: set(uses.replace("`", "").split()) - {"-"} for part, uses in rows}
    of_isa = table.pop("kernels/<isa>")
    for path in ROOT.glob("kernels/*/isa.cmake"):
        shares = re.findall(r"\bSHARES\s+(\w+)", path.read_text())
        table.setdefault(f"kernels/{path.parent.name}", of_isa | {f"kernels/{folder}" for folder in shares})
    return table


def part_of(path: str) -> str:
    """The row of the table that a file belongs to: the longest prefix."""
    found = [part for part in levels() if path == part or path.startswith(part + "/")]
    assert found, f"{path} belongs to no part of the table in CONTRIBUTING.md"
    return max(found, key=len)


def package_of(part: str) -> str:
    """How a folder is imported: export/passes is ovsw.export.passes."""
    below = part.removeprefix("python/ovsw").strip("/")
    return ".".join(["ovsw", *below.split("/")]) if below else "ovsw"


def files(*folders: str, suffixes: tuple[str, ...]) -> list[str]:
    paths = (p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)
    return sorted(str(p.relative_to(ROOT)) for p in paths)


def test_includes_go_down() -> None:
    for path in files("csrc", "kernels", suffixes=(".cc", ".h")):
        part = part_of(path)
        for included in re.findall(r'#include "([^"]+)"', (ROOT / path).read_text()):
            assert (ROOT / included).is_file(), f"{path} includes {included} by another path than from the root"
            target = part_of(included)
            assert target == part or target in levels()[part], f"{path} may not include {included}"


def imported(path: str) -> Iterator[str]:
    """The full names of what a Python file imports."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_down() -> None:
    places = {package_of(part): part for part in levels() if part.startswith(("python/", "export", "bench"))}
    for path in files("python", "export", "bench", suffixes=(".py",)):
        part = part_of(path)
        for name in imported(path):
            if name.split(".")[0] in sys.stdlib_module_names | {"__future__"}:
                continue
            package = max((p for p in places if name == p or name.startswith(p + ".")), key=len, default="")
            target = places.get(package, name.split(".")[0])
            assert target == part or target in levels()[part], f"{path} may not import {name}"


def test_tests_are_short_and_import_no_others() -> None:
    """What two test modules need is in tests/support."""
    for path in files("tests", suffixes=(".py",)):
        assert len((ROOT / path).read_text().splitlines()) <= 500, path
        others = [name for name in imported(path) if re.search(r"(^|\.)(test_\w+|conftest)(\.|$)", name)]
        assert others == [], f"{path} imports {others}"


def test_one_cmake_target_per_level() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    for folder in (p for p in (ROOT / "csrc").iterdir() if p.name not in ("binding", "cli")):
        target = re.search(rf"ovsw_level\({folder.name} SOURCES ([^)]*?) USES ([^)]*)\)", cmake)
        assert target, f"csrc/{folder.name} has no target"
        sources = {Path(s).name for s in target[1].split()}
        assert sources == {p.name for p in folder.glob("*.cc")}, f"csrc/{folder.name}: sources differ"


def test_one_version_string() -> None:
    assert _core.__version__ == ovsw.__version__
    mentions = subprocess.run(
        ["git", "grep", "-lF", f'"{ovsw.__version__}"', "--", "*.py", "*.toml", "*.txt", "*.h", "*.cc"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if mentions.returncode > 1:
        pytest.skip("not a git checkout")
    assert mentions.stdout.split() == ["python/ovsw/_version.py"]


def test_the_changelog_and_the_citation_have_the_version() -> None:
    newest = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [newest, *cited] == [ovsw.__version__] * 2


@pytest.mark.parametrize(
    "module",
    ["ovsw", "ovsw.format", "ovsw.commands.run", "ovsw.commands.info", "ovsw.commands.zoo", "ovsw.bench.cli"],
)
def test_import_needs_numpy_and_pillow_only(module: str) -> None:
    """No torch, no onnx: nothing outside the standard library but numpy and PIL is loaded."""
    code = f"""
import sys
before = set(sys.modules)
import {module}
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(n for n in new if n not in sys.stdlib_module_names))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(found.stdout)) - {"ovsw", "numpy", "PIL"}
    editable = {name for name in loaded if name.startswith("__editable__")}
    assert loaded <= editable | {"cython_runtime", "_cython_3_0_8", "_distutils_hack"}, loaded


def test_arrays_are_run_without_pillow() -> None:
    """Nor with the modules that read and write whole files: a third of the time that a small program starts in."""
    code = f"""
import sys
import numpy as np
from ovsw import Engine
engine = Engine({str(zoo.path("cresnet20-cifar10"))!r})
engine.run(np.zeros((32, 32, 3), np.uint8))
print(sorted(name for name in ("PIL", "ovsw.format", "ovsw.util.files", "hashlib") if name in sys.modules))
engine.run({str(ROOT / "bench/data/cat.jpg")!r})
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.slow
def test_tests_run_from_an_unpacked_sdist(tmp_path: Path) -> None:
    """It has all that git has, but what only repositories need; every test is found in it, and one room runs."""
    source = copy_of_tree(tmp_path / "source")
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:] + built.stdout[-3000:]
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(tmp_path)
    home = tmp_path / archive.name.removesuffix(".tar.gz")
    listed = subprocess.run(["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True).stdout.split()
    missing = [name for name in listed if not (home / name).exists()]
    assert [name for name in missing if not name.startswith((".ci/", ".docker", ".git"))] == []
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    found = subprocess.run([*pytest_, "--collect-only", "-qq"], cwd=home, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert "tests/kernels/test_integer.py" in found.stdout
    room = subprocess.run([*pytest_, "tests/format/test_document.py"], cwd=home, capture_output=True, text=True)
    assert room.returncode == 0, room.stdout[-3000:]
    assert re.search(r"\d+ passed", room.stdout)


def copy_of_tree(source: Path) -> Path:
    """The working tree, as git has it, not the last commit."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    changed = subprocess.run(["git", "diff", "HEAD", "--binary"], cwd=ROOT, capture_output=True, check=True).stdout
    if changed:
        subprocess.run(["git", "apply", "--index"], cwd=source, input=changed, check=True)
    return source


@pytest.mark.slow
def test_wheel_works_without_torch(tmp_path: Path) -> None:
    """`python -m build` gives a wheel that runs in an empty venv: no torch, no test-only module."""
    source = copy_of_tree(tmp_path / "source")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(source)]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:] + built.stdout[-3000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (tmp_path / "models").mkdir()
    demo = [str(venv / "bin" / "ovsw-demo"), "--repeat", "1", "--save", str(tmp_path / "models")]
    shown = subprocess.run(demo, capture_output=True, text=True, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "resnet34" in shown.stdout
    model = str(tmp_path / "models" / "resnet18.bnn")
    info = subprocess.run([str(venv / "bin" / "ovsw-info"), model], capture_output=True, text=True, cwd=tmp_path)
    assert info.returncode == 0, info.stderr
    assert "layer4.1.conv2" in info.stdout
    zoo = [str(venv / "bin" / "ovsw-zoo"), "--check"]  # the files of the trained networks, and the pictures
    checked = subprocess.run(zoo, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "cresnet20-cifar10: file intact" in checked.stdout
    code = f"""
import sys, importlib.util, numpy as np, ovsw
logits = ovsw.Engine({model!r}).run(np.zeros((224, 224, 3), np.uint8))
assert logits.shape == (1000,) and np.isfinite(logits).all()
assert "torch" not in sys.modules and importlib.util.find_spec("torch") is None
assert importlib.util.find_spec("ovsw._testing") is None
print(ovsw.__file__)
"""
    ran = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert str(venv) in ran.stdout
