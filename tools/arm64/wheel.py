"""`make wheel-arm64` ends with it: pip on an emulated ARM machine installs the wheel, and the networks of the zoo give
the logits of their index, on a CPU without and on one with dot products.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pip

KIT = Path(__file__).absolute().parents[2] / "build" / "arm64"
CPUS = {"cortex-a72": "arm_neon", "cortex-a76": "arm_neon_dot"}
TABLES = {"portable", *CPUS.values()}


def emulated(cpu: str, path: list[Path], *arguments: str) -> str:
    """What the arm64 Python prints, that must succeed; `path` is all that it finds besides its own library."""
    search_path = ":".join(map(str, [KIT / "start", *path, KIT / "site"]))
    guest = [f"PYTHONPATH={search_path}", f"OVSW_ARM64_PYTHON={KIT / 'python'}", "PYTHONDONTWRITEBYTECODE=1"]
    command = ["qemu-aarch64", "-cpu", cpu, "-L", str(KIT / "sysroot")]
    for variable in guest:
        command += ["-E", variable]
    command += [str(KIT / "sysroot/usr/bin/python3.11"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=KIT)
    if done.returncode:
        sys.exit(f"{cpu}: python {' '.join(arguments)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def main(wheel: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tools, target = Path(folder, "tools"), Path(folder, "installed")
        tools.mkdir()
        (tools / "pip").symlink_to(Path(pip.__file__).parent)  # pure Python, and nothing else of this machine's
        options = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", "--target", str(target))
        emulated("cortex-a72", [tools], "-m", "pip", "install", *options, str(Path(wheel).absolute()))
        for cpu, isa in CPUS.items():
            checked = emulated(cpu, [target], "-m", "ovsw", "zoo", "--check").strip().splitlines()[-1]
            print(f"{cpu}: {checked}")
            if f" on {isa} " not in checked:
                sys.exit(f"{cpu}: expected the kernels {isa}")
        code = "import ovsw; from ovsw.cpu import isas; print(ovsw.__file__, *isas())"
        place, *built = emulated("cortex-a72", [target], "-c", code).split()
        if not Path(place).is_relative_to(target) or set(built) != TABLES:
            sys.exit(f"{place}: has the kernels {', '.join(built)}, expected {', '.join(sorted(TABLES))}")
        picture = str(target / "ovsw" / "data" / "cifar10" / "cat.png")
        shown = emulated("cortex-a72", [target], "-m", "ovsw", "run", "--top", "1", picture)
        print(shown.splitlines()[-1].strip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
