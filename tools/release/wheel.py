"""`make wheel`: sdist and wheel into a folder, with a bill of materials. With `--arm64` (`make wheel-arm64`) only the
wheel, for ARM, by cross compilation with the kit of tools/arm64.

A wheel of Linux gets the tag of the oldest system that it runs on, by auditwheel. All dates are that of the commit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
KIT = ROOT / "build" / "arm64"
TOOLCHAIN = ROOT / "cmake" / "toolchains" / "aarch64-linux.cmake"


def environment(arm64: bool) -> dict[str, str]:
    commit = ["git", "log", "-1", "--format=%ct"]
    date = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    around = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", date),
    }
    if arm64:
        if sys.version_info[:2] != (3, 11):
            sys.exit(f"the arm64 kit has Python 3.11, this is {sys.version.split()[0]}")
        cross = [f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}", f"-DOVSW_ARM64_SYSROOT={KIT / 'sysroot'}"]
        around["CMAKE_ARGS"] = " ".join([os.environ.get("CMAKE_ARGS", ""), *cross])
        around["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
    return around


def run(*command: str | Path, env: dict[str, str]) -> None:
    done = subprocess.run([str(c) for c in command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description="Build sdist and wheel.")
    p.add_argument("folder", type=Path, help="where they go")
    p.add_argument("--arm64", action="store_true", help="only the wheel, for aarch64")
    args = p.parse_args(argv)
    env = environment(args.arm64)
    os.umask(0o022)  # auditwheel packs folders with the modes that it unpacked them with
    with tempfile.TemporaryDirectory() as scratch:
        kinds = ["--wheel"] if args.arm64 else []  # both, the wheel from the sdist
        run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", scratch, env=env)
        args.folder.mkdir(parents=True, exist_ok=True)
        (wheel,) = Path(scratch).glob("*.whl")
        if "linux" in wheel.name:
            run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(scratch) / "repaired", wheel, env=env)
            (wheel,) = Path(scratch, "repaired").glob("*.whl")
        for file in [wheel, *Path(scratch).glob("*.tar.gz")]:
            target = args.folder / file.name
            target.write_bytes(file.read_bytes())
            print(target)
    return subprocess.run([sys.executable, ROOT / "tools" / "release" / "sbom.py", args.folder], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
