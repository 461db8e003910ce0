"""Copies of the repository to mutate in, so that nothing that ends a campaign can leave a fault in the original.

A copy is a package of its own: python/ovsw in it, with export/ and bench/ inside, comes before the installed one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULES = ("_core", "_bench", "_train", "_testing")


def place_in(tree: Path, name: str) -> Path:
    """Where a file of the repository is in the copy: export/ and bench/ inside the package, as when installed."""
    return tree / "python" / "ovsw" / name if name.startswith(("export/", "bench/")) else tree / name


def make_tree(root: Path, tree: Path) -> None:
    """Brings `tree` to the state of the working tree; files that are equal keep their time."""
    tree.mkdir(parents=True, exist_ok=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    names += [str(path.relative_to(root)) for path in (root / "python" / "ovsw").glob("_*.so")]
    copies = {place_in(tree, name): root / name for name in names if (root / name).is_file()}
    for path in list(tree.rglob("*")) if tree.exists() else []:
        if path.is_file() and not path.is_symlink() and path not in copies and path.suffix != ".pyc":
            path.unlink()
    for copy, original in copies.items():
        if not copy.exists() or copy.read_bytes() != original.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy(original, copy)
    for room in ("export", "bench"):
        link(tree / room, Path("python") / "ovsw" / room)
    link(tree.parent / "shared", root.parent / "shared")


def link(at: Path, target: Path) -> None:
    if not at.is_symlink():
        at.symlink_to(target)


def environment(tree: Path) -> dict[str, str]:
    """For tests and what they start: the copy's package, one thread, ccache."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tree / "python"),
        "OMP_NUM_THREADS": "1",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache" if shutil.which("ccache") else "",
        "CCACHE_BASEDIR": str(tree.parent),
        "CCACHE_NOHASHDIR": "1",
    }


class Build:
    """The extension modules of a copy, built beside it with the flags of a release."""

    def __init__(self, tree: Path) -> None:
        import pybind11

        self.tree, self.folder = tree, tree.parent / f"{tree.name}-build"
        options = ["-GNinja", "-DOVSW_PYTHON=ON", "-DOVSW_TESTING=ON", f"-DPython_EXECUTABLE={sys.executable}"]
        options += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
        self.environment = {k: v for k, v in environment(tree).items() if v}
        command = ["cmake", "-S", str(tree), "-B", str(self.folder), *options]
        subprocess.run(command, check=True, env=self.environment, stdout=subprocess.DEVNULL)

    def build(self) -> str | None:
        """Builds and installs into the copy; what the compiler said, or None if all went well."""
        done = subprocess.run(["ninja", "-C", str(self.folder)], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            return done.stdout[-2000:]
        for path in self.modules():
            target = self.tree / "python" / "ovsw" / path.name
            target.unlink(missing_ok=True)  # never written over: a process may have it mapped
            shutil.copy(path, target)
        return None

    def modules(self) -> list[Path]:
        return [path for name in MODULES for path in self.folder.glob(f"{name}.*.so")]

    def code(self) -> list[bytes]:
        """What was linked: equal if and only if the compiler made the same code."""
        return [path.read_bytes() for path in self.modules()]
