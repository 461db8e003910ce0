"""Builds the extension with CMake and maps the top-level folders into the package `ovsw`.

Metadata is in pyproject.toml. OVSW_TESTING=1 also builds the test-only module, OVSW_TRAIN=0 leaves out the one for
training, OVSW_WERROR=1 makes compiler warnings errors, and CMAKE_ARGS is passed on. With SOURCE_DATE_EPOCH two builds
give the same bytes, sdist and wheel. On macOS ARCHFLAGS names the architecture to build for, and
MACOSX_DEPLOYMENT_TARGET the oldest system (11.0).
"""

import gzip
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent.resolve()
TRAIN = os.environ.get("OVSW_TRAIN") != "0"
TESTING = os.environ.get("OVSW_TESTING") == "1"
MACOS = sys.platform == "darwin"

if sys.platform == "win32":
    sys.exit("ovsw does not build on Windows; use it in WSL 2, as on Linux")


def mac_architecture() -> str:
    """The architecture to build for: a universal Python runs on both, but kernels are compiled for one."""
    flags = shlex.split(os.environ.get("ARCHFLAGS", ""))
    named = [b for a, b in zip(flags, flags[1:]) if a == "-arch"] or [platform.machine()]
    if len(set(named)) != 1:
        sys.exit(f"ovsw builds for one architecture at a time, ARCHFLAGS names {' and '.join(named)}")
    return named[0]


if MACOS:  # otherwise the wheel of a universal Python would name both architectures
    target = os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "11.0")
    os.environ["_PYTHON_HOST_PLATFORM"] = f"macosx-{target}-{mac_architecture()}"


class CMakeBuild(build_ext):
    """Runs CMake once; it installs all extension modules beside each other."""

    def build_extensions(self) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath("ovsw._core")).resolve().parent
        build = Path(self.build_temp).resolve() / f"cmake-{sys.implementation.cache_tag}"
        # pip deletes its build environment afterwards, so paths in the cache of an earlier build may be gone.
        options = [
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            f"-DCMAKE_INSTALL_PREFIX={target}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            "-DOVSW_PYTHON=ON",
            f"-DOVSW_TRAIN={'ON' if TRAIN else 'OFF'}",
            f"-DOVSW_TESTING={'ON' if TESTING else 'OFF'}",
            f"-DOVSW_WERROR={'ON' if os.environ.get('OVSW_WERROR') == '1' else 'OFF'}",
        ]
        if MACOS:
            options.append(f"-DCMAKE_OSX_ARCHITECTURES={mac_architecture()}")
        ninja = shutil.which("ninja")
        if ninja:
            options += ["-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        cmake = shutil.which("cmake") or "cmake"
        build.mkdir(parents=True, exist_ok=True)
        configure = [cmake, "-S", str(ROOT), "-B", str(build), *options]
        if subprocess.run(configure, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            (build / "CMakeCache.txt").unlink(missing_ok=True)  # another generator or compiler: start again
            subprocess.run(configure, check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run([cmake, "--build", str(build), "--parallel", jobs], check=True)
        subprocess.run([cmake, "--install", str(build)], check=True, stdout=subprocess.DEVNULL)


class StableSdist(sdist):
    """An archive with names, contents and one date only; that of setuptools also depends on user, time and order."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None) -> str:  # noqa: A002
        date = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        target = Path(f"{base_name}.tar.gz")
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            target.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(Path(base_dir).rglob("*")):
                archive.add(path, recursive=False, filter=plain)
        return str(target)


class StableWheel(bdist_wheel):
    """A wheel whose file modes do not depend on the umask."""

    def write_wheelfile(self, *args: str, **options: str) -> None:
        super().write_wheelfile(*args, **options)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)


# Two folders outside python/ are part of the package; find_packages does not follow package_dir by itself.
package_dir = {"": "python", "ovsw.export": "export", "ovsw.bench": "bench"}
packages = find_packages("python")
for part in ("export", "bench"):
    packages += [f"ovsw.{part}", *(f"ovsw.{part}.{name}" for name in find_packages(part))]

modules = ["ovsw._core", "ovsw._bench"] + ["ovsw._train"] * TRAIN + ["ovsw._testing"] * TESTING

setup(
    package_dir=package_dir,
    packages=packages,
    package_data={
        "ovsw": ["py.typed", "_core.pyi", "_bench.pyi", "data/*", "data/cifar10/*", "data/zoo/*"],
        "ovsw.bench": ["data/*"],
        "ovsw.repro": ["plan.toml"],
        "ovsw.train": ["recipes/*.toml"],
    },
    include_package_data=False,
    ext_modules=[Extension(name, sources=[]) for name in modules],
    cmdclass={"build_ext": CMakeBuild, "sdist": StableSdist, "bdist_wheel": StableWheel},
)
