"""libovsw as its users get it: built and installed by CMake alone, the examples built against it, the same answers.

Built once per run, in a temporary folder; the shared and the static library have the same objects. With
OVSW_ARM64=1 in the environment all of it is cross-compiled and runs under qemu-aarch64, and its answers are compared
with those of Python on this machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.cpu import supported_isas

from support import DATA, ROOT
from support.pages import blocks

pytestmark = pytest.mark.slow

TINY = DATA / "tiny.bnn"
ARM64 = os.environ.get("OVSW_ARM64") == "1"
CROSS = [f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake/toolchains/aarch64-linux.cmake'}"] if ARM64 else []
TOOLS = "aarch64-linux-gnu-" if ARM64 else ""
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"] if ARM64 else []
CPUS = ["cortex-a53", "cortex-a72", "cortex-a76", "max"] if ARM64 else ["this CPU"]
LARGEST = 850_000  # bytes of the stripped library on arm64
NO_PYTHON = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("Python", "Python3", "pybind11")]


def execute(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    parts = [str(part) for part in command]
    return subprocess.run(parts, capture_output=True, text=True, env={**os.environ, **environment})


def run(*command: str | Path, **environment: str) -> str:
    """The standard output of a command that must succeed."""
    done = execute(*command, **environment)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the build tree, both libraries installed (`shared`, `static`), and what ctest said of each."""
    if not shutil.which("cmake") and not os.environ.get("CI"):
        pytest.skip("cmake is not installed")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers of one run share it: the first one builds, the others wait
    folder = base / "library"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            build_all(folder)
            (folder / "done").touch()
    return folder


def build_all(folder: Path) -> None:
    build = folder / "build"
    generator = ["-GNinja"] if shutil.which("ninja") else []
    run("cmake", "-S", ROOT, "-B", build, *generator, "-DOVSW_WERROR=ON", *CROSS, *NO_PYTHON)
    for kind, switch, cpus in (("shared", "ON", CPUS), ("static", "OFF", CPUS[-1:])):
        run("cmake", build, f"-DBUILD_SHARED_LIBS={switch}")
        run("cmake", "--build", build, "--parallel", str(os.cpu_count() or 1))
        run("cmake", "--install", build, "--prefix", folder / kind)
        for cpu in cpus:
            ctest = execute("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", QEMU_CPU=cpu)
            (folder / f"{kind}-{cpu}.txt").write_text(ctest.stdout + ctest.stderr)


@pytest.fixture(scope="session")
def shared(library: Path) -> Path:
    """Where the shared library is installed."""
    return library / "shared"


def example(prefix: Path, name: str, folder: Path) -> Path:
    """The folder of an example that was built against an installed library."""
    run("cmake", "-S", ROOT / "examples" / name, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", *CROSS)
    run("cmake", "--build", folder)
    return folder


@pytest.fixture(scope="session")
def classify(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(shared, "c", tmp_path_factory.mktemp("classify")) / "classify"


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """As PPM or PGM, with a comment in the header."""
    height, width, channels = pixels.shape
    kind = {1: "P5", 3: "P6"}[channels]
    path.write_bytes(f"{kind}\n# a comment\n{width} {height}\n255\n".encode() + pixels.tobytes())


def check_answer(classify: Path, model: Path, tmp_path: Path, emulated: str = CPUS[-1], seed: int = 0) -> str:
    """The example's logits on a random picture are those of Python, to the bit; returns what it prints."""
    engine = Engine(model)
    channels, height, width = engine.input_shape
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    write_picture(tmp_path / "picture.ppm", pixels)
    command = [*EMULATOR, classify, "--logits", tmp_path / "logits", model, tmp_path / "picture.ppm"]
    printed = run(*command, QEMU_CPU=emulated)
    assert (tmp_path / "logits").read_bytes() == engine.run(pixels).tobytes()
    expected = "".join(f"{100 * p:6.2f} %  {label}\n" for label, p in engine.classify(pixels))
    assert printed == expected
    return printed


def test_python_is_not_looked_for(library: Path) -> None:
    cache = (library / "build" / "CMakeCache.txt").read_text()
    known = re.findall(r"^(\w*(?:python|pybind)\w*):", cache, re.MULTILINE | re.IGNORECASE)
    assert set(known) <= {"OVSW_PYTHON"} | {option[2:].split("=")[0] for option in NO_PYTHON}
    assert "OVSW_PYTHON:BOOL=OFF" in cache


@pytest.mark.parametrize(("kind", "cpu"), [("static", CPUS[-1]), *(("shared", cpu) for cpu in CPUS)])
def test_the_programs_of_ctest(library: Path, kind: str, cpu: str) -> None:
    shown = (library / f"{kind}-{cpu}.txt").read_text()
    assert "100% tests passed" in shown, shown
    programs = {p.stem.removeprefix("test_") for p in (ROOT / "tests/cpp").glob("test_*.c*")}
    programs |= {p.stem for p in (ROOT / "tests/fuzz").glob("fuzz_*.cc")}
    if ARM64:
        programs -= {"fork"}  # qemu-user cannot do it
    assert programs == set(re.findall(r"Test +#\d+: (\w+)", shown))


def test_what_is_exported_and_needed(shared: Path) -> None:
    """The functions of ovsw.h and nothing else; the C and C++ runtimes and nothing else."""
    (library,) = shared.glob("lib*/**/libovsw.so")
    exported = {line.split()[-1] for line in run(f"{TOOLS}nm", "-D", "--defined-only", library).splitlines()}
    declared = set(re.findall(r"^OVSW_API .*?(ovsw_\w+)\(", (ROOT / "include/ovsw.h").read_text(), re.MULTILINE))
    assert len(declared) > 15
    assert exported == declared
    dynamic = run(f"{TOOLS}readelf", "-d", library)
    needed = set(re.findall(r"\(NEEDED\).*\[([\w+-]+)\.so", dynamic))
    assert needed <= {"libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert re.search(r"\(SONAME\).*\[libovsw\.so\.1\]", dynamic)


@pytest.mark.skipif(not ARM64, reason="the limit is for arm64")
def test_size(shared: Path, tmp_path: Path) -> None:
    (library,) = shared.glob("lib*/**/libovsw.so")
    run(f"{TOOLS}strip", "-o", tmp_path / "stripped", library)
    assert (tmp_path / "stripped").stat().st_size <= LARGEST


def test_answers_on_the_golden_file(classify: Path, tmp_path: Path) -> None:
    assert "sí" in check_answer(classify, TINY, tmp_path)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("name", ["cresnet20", "resnet18"])
def test_answers_of_networks(classify: Path, tmp_path: Path, name: str, numerics: str, cpu: str) -> None:
    model = random_resnet(name, size=32, numerics=numerics)
    (tmp_path / "model.bnn").write_bytes(bnn.to_bytes(model))
    for seed in range(3):
        printed = check_answer(classify, tmp_path / "model.bnn", tmp_path, cpu, seed)
    assert ("class " in printed) == (name == "cresnet20")  # the other one has labels: a list, or the name of one


@pytest.mark.skipif(ARM64 or not shutil.which("valgrind"), reason="valgrind is not installed")
@pytest.mark.parametrize("isa", [isa for isa in supported_isas() if isa != "x86_avx512"])  # which valgrind lacks
@pytest.mark.parametrize("name", ["cresnet20", "resnet18"])
def test_under_valgrind(classify: Path, tmp_path: Path, name: str, isa: str) -> None:
    """No byte is read before it is written, none is lost."""
    (tmp_path / "model.bnn").write_bytes(bnn.to_bytes(random_resnet(name, size=32, numerics="integer")))
    write_picture(tmp_path / "picture.ppm", np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8))
    valgrind = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full")
    run(*valgrind, classify, tmp_path / "model.bnn", tmp_path / "picture.ppm", OVSW_ISA=isa)


def test_every_built_in_label(tmp_path: Path) -> None:
    """The lists that CMake builds in are those of Python."""
    for count, name in ((10, "cifar10"), (1000, "imagenet")):
        model = random_resnet("cresnet20", num_classes=count)
        model.metadata["labels"] = name
        (tmp_path / "model.bnn").write_bytes(bnn.to_bytes(model))
        core = Engine(tmp_path / "model.bnn")._core
        lines = (ROOT / f"python/ovsw/data/{name}_labels.txt").read_text(encoding="utf-8").splitlines()
        assert core.labels == lines


def test_pictures_of_another_size(classify: Path, tmp_path: Path) -> None:
    """The centre is taken and scaled: a picture enlarged three times, with borders, gives the answer of itself."""
    (tmp_path / "model.bnn").write_bytes(bnn.to_bytes(random_resnet("cresnet20", numerics="integer")))
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    large = np.pad(pixels.repeat(3, axis=0).repeat(3, axis=1), ((0, 0), (20, 20), (0, 0)))
    write_picture(tmp_path / "large.ppm", large)
    run(*EMULATOR, classify, "--logits", tmp_path / "logits", tmp_path / "model.bnn", tmp_path / "large.ppm")
    assert (tmp_path / "logits").read_bytes() == Engine(tmp_path / "model.bnn").run(pixels).tobytes()


def test_mistakes_get_one_line(classify: Path, tmp_path: Path) -> None:
    colours = tmp_path / "colours.ppm"
    write_picture(colours, np.zeros((4, 4, 3), np.uint8))
    grey = tmp_path / "grey.pgm"
    write_picture(grey, np.zeros((4, 4, 1), np.uint8))
    (tmp_path / "short.pgm").write_bytes(grey.read_bytes()[:-1])
    (tmp_path / "head.pgm").write_bytes(b"P5 4")
    (tmp_path / "text.pgm").write_bytes(b"P2 1 1 255 7")
    (tmp_path / "damaged.bnn").write_bytes(TINY.read_bytes()[:-1])
    for arguments, words, code in (
        ([], "usage", 2),
        ([TINY], "usage", 2),
        ([tmp_path / "nothing.bnn", grey], "nothing.bnn: no such file", 1),
        ([tmp_path / "damaged.bnn", grey], "damaged.bnn: truncated", 1),
        ([TINY, tmp_path / "nothing.pgm"], "nothing.pgm cannot be opened", 1),
        ([TINY, colours], "has 3 channels, the network takes 1", 1),
        ([TINY, tmp_path / "short.pgm"], "short.pgm is cut short", 1),
        ([TINY, tmp_path / "head.pgm"], "header", 1),
        ([TINY, tmp_path / "text.pgm"], "is not a binary PPM or PGM", 1),
        (["--logits", tmp_path / "no" / "folder", TINY, grey], "cannot be written", 1),
    ):
        done = execute(*EMULATOR, classify, *arguments)
        assert done.returncode == code, arguments
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not done.stdout


@pytest.fixture(scope="session")
def runner(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ovsw-classify`, in a place that the installed folder was moved to."""
    moved = tmp_path_factory.mktemp("runner") / "moved"
    shutil.copytree(shared, moved, symlinks=True)
    return moved / "bin" / "ovsw-classify"


@pytest.mark.parametrize(
    ("mode", "suffix"), [("RGB", "ppm"), ("L", "pgm"), *((m, "bmp") for m in ("RGB", "RGBA", "L", "P"))]
)
def test_the_runner_sees_what_python_sees(runner: Path, tmp_path: Path, mode: str, suffix: str) -> None:
    """Every kind of file, enlarged, made smaller, cut at halves of pixels, thin: a pixel that differs by one shows."""
    rng, paths = np.random.default_rng(1), []
    wide = random_resnet("cresnet20", numerics="float")
    wide.metadata["preprocess"] = {"resize": 39, "crop": 32}
    (tmp_path / "wide.bnn").write_bytes(bnn.to_bytes(wide))
    for height, width in ((32, 32), (39, 40), (40, 61), (7, 5), (1, 1), (230, 310), (3, 9001), (9000, 1)):
        pixels = rng.integers(0, 256, (height, width, {"L": 1, "RGBA": 4}.get(mode, 3)), np.uint8)
        image = Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels)
        paths.append(tmp_path / f"{height}x{width}.{suffix}")
        (image.quantize(32) if mode == "P" else image).save(paths[-1])
    for name in (tmp_path / "wide.bnn", zoo.path("cresnet20-cifar10")):
        engine = Engine(name)
        shown = json.loads(run(*EMULATOR, runner, "--json", "--top", "4", "--threads", "2", name, *paths))
        assert [r["image"] for r in shown["results"]] == [str(p) for p in paths]
        assert shown["threads"] == 2
        for result, path in zip(shown["results"], paths):
            for found, (label, probability) in zip(result["top"], engine.classify(path, 4)):
                assert found["label"] == label, path
                assert found["probability"] == pytest.approx(probability, rel=1e-12), path


def test_the_runner_prints_what_ovsw_run_prints(runner: Path, tmp_path: Path) -> None:
    model, picture, raw = zoo.path("cresnet20-cifar10"), tmp_path / "cat.bmp", tmp_path / "ca\tt.raw"
    Image.open(zoo.pictures()["cat"]).convert("RGB").save(picture)
    raw.write_bytes(np.asarray(Image.open(zoo.pictures()["cat"]).convert("RGB")).tobytes())
    printed = run(*EMULATOR, runner, "--top=3", model, picture)
    assert printed == run(sys.executable, "-m", "ovsw", "run", "--top", "3", model, picture)
    # The pixels themselves give the same, and a name cannot write to the terminal.
    assert run(*EMULATOR, runner, "--top", "3", "--", model, raw).splitlines()[1:] == printed.splitlines()[1:]
    assert "ca\\x09t.raw\n" in run(*EMULATOR, runner, model, raw)
    with picture.open("rb") as stdin:
        command = [str(c) for c in (*EMULATOR, runner, "--top", "3", model, "-")]
        piped = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=True)
    assert piped.stdout.splitlines() == ["-", *printed.splitlines()[1:]]


@pytest.mark.parametrize("output", ["probabilities", "log_probabilities", "logits"])
def test_the_runner_knows_what_an_output_is(runner: Path, tmp_path: Path, output: str) -> None:
    """And for a network of one channel colours become grey as Pillow makes them."""
    changed = bnn.read(TINY)
    changed.metadata.update(output=output, labels=["\u202eno", "yes"], preprocess={"resize": 5, "crop": 4})
    model = tmp_path / "tiny.bnn"
    model.write_bytes(bnn.to_bytes(changed))
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (45, 50, 3), np.uint8))
    image.save(tmp_path / "a.ppm")
    (result,) = json.loads(run(*EMULATOR, runner, "--json", model, tmp_path / "a.ppm"))["results"]
    expected = Engine(model).classify(tmp_path / "a.ppm")
    assert [t["label"] for t in result["top"]] == [label for label, _ in expected]
    np.testing.assert_allclose([t["probability"] for t in result["top"]], [p for _, p in expected], rtol=1e-12)
    assert "\u202e" not in run(*EMULATOR, runner, model, tmp_path / "a.ppm")


def test_mistakes_of_the_runner_get_one_line(runner: Path, tmp_path: Path) -> None:
    model, good = zoo.path("cresnet20-cifar10"), tmp_path / "good.bmp"
    Image.new("RGB", (5, 4)).save(good)
    bmp = bytearray(good.read_bytes())

    def altered(name: str, at: int, *values: int) -> Path:
        (tmp_path / name).write_bytes(bmp[:at] + bytes(values) + bmp[at + len(values) :])
        return tmp_path / name

    (tmp_path / "deep.pgm").write_bytes(b"P5 1 1 65535 ab")
    (tmp_path / "huge.ppm").write_bytes(b"P6 89478485 2 255 ")
    (tmp_path / "short.ppm").write_bytes(b"P6 2 2 255 12345678901")
    (tmp_path / "empty.ppm").write_bytes(b"P6 0 2 255 ")
    (tmp_path / "text.png").write_bytes(b"no picture")
    (tmp_path / "few.raw").write_bytes(b"123")
    (tmp_path / "cut.bnn").write_bytes(TINY.read_bytes()[:-1])
    (tmp_path / "large.bnn").write_bytes(bnn.to_bytes(random_resnet("resnet18", size=32)))
    for arguments, words, code in (
        ([], "usage: ovsw-classify", 2),
        ([model], "usage: ovsw-classify", 2),
        (["--tpo", "1", model, good], "unknown option --tpo", 2),
        (["--top", "0", model, good], "--top is '0'", 2),
        (["--threads=2x", model, good], "--threads is '2x'", 2),
        ([model, good, "--top"], "--top needs a value", 2),
        (["--threads", "257", model, good], "257", 1),
        (["--isa", "mmx", model, good], "mmx", 1),
        (["--memory-limit", "1", tmp_path / "large.bnn", good], "limit", 1),
        ([tmp_path / "no.bnn", good], "no.bnn: no such file", 1),
        ([tmp_path / "cut.bnn", good], "cut.bnn: truncated", 1),
        ([model, tmp_path / "no.ppm"], "no.ppm: cannot be opened", 1),
        ([model, tmp_path], "cannot be read", 1),
        ([model, tmp_path / "deep.pgm"], "deep.pgm: has pixels up to 65535, expected 255", 1),
        ([model, tmp_path / "huge.ppm"], "is too large: 89478485 x 2 pixels", 1),
        ([model, tmp_path / "short.ppm"], "short.ppm: is truncated", 1),
        ([model, tmp_path / "empty.ppm"], "has no pixels", 1),
        ([model, tmp_path / "text.png"], "is not a PPM, PGM or BMP file", 1),
        ([model, tmp_path / "few.raw"], "has 3 bytes, the network takes 3072", 1),
        ([model, altered("cut.bmp", 10, 200)], "is truncated", 1),
        ([model, altered("os2.bmp", 14, 12)], "OS/2", 1),
        ([model, altered("bits.bmp", 28, 4)], "has 4 bits per pixel", 1),
        ([model, altered("rle.bmp", 30, 1)], "is compressed", 1),
        ([model, altered("palette.bmp", 28, 8)], "palette", 1),
        ([model, altered("wide.bmp", 18, 0, 0, 0, 127)], "is too large", 1),
        ([model, altered("negative.bmp", 18, 0, 0, 0, 255)], "its width is", 1),
    ):
        done = execute(*EMULATOR, runner, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not done.stdout
    both = execute(*EMULATOR, runner, "--json", model, good, tmp_path / "few.raw")
    assert both.returncode == 1
    assert [sorted(r) for r in json.loads(both.stdout)["results"]] == [["image", "top"], ["error", "image"]]


def test_static_library(library: Path, tmp_path: Path) -> None:
    """Complete by itself; the program then needs nothing of ours at run time."""
    prefix = library / "static"
    assert [p.name for p in prefix.glob("lib*/**/libovsw.*")] == ["libovsw.a"]
    program = example(prefix, "c", tmp_path / "example") / "classify"
    check_answer(program, TINY, tmp_path)
    assert "libovsw" not in run(f"{TOOLS}readelf", "-d", program)
    about = example(prefix, "cpp", tmp_path / "about") / "about"
    assert "1x4x4 -> 2, numerics float" in run(*EMULATOR, about, TINY)


def test_cpp_example(shared: Path, tmp_path: Path) -> None:
    shown = run(*EMULATOR, example(shared, "cpp", tmp_path) / "about", TINY)
    engine = Engine(TINY)
    (best, _) = engine.classify(np.zeros((4, 4, 1), np.uint8), k=1)[0]
    assert shown.splitlines()[-1] == f"black is: {best}"
    assert f"isa {'arm_neon_dot' if ARM64 else engine.isa}" in shown


def test_the_programs_in_the_docs(shared: Path, tmp_path: Path) -> None:
    """As printed, compiled without CMake; they give the logits of a black picture."""
    (config,) = shared.glob("lib*/**/pkgconfig")
    if shutil.which("pkg-config"):
        flags = run("pkg-config", "--cflags", "--libs", "ovsw", PKG_CONFIG_PATH=str(config)).split()
    else:
        flags = [f"-I{shared / 'include'}", f"-L{config.parent}", "-lovsw"]
    logits = Engine(TINY).run(np.zeros((4, 4, 1), np.uint8))
    text = (ROOT / "docs/c_api.md").read_text()
    for language, compiler, standard in (("c", "gcc", "c99"), ("cpp", "g++", "c++17")):
        (program,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        source = tmp_path / f"program.{language}"
        source.write_text(program)
        warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
        where = f"-Wl,-rpath,{config.parent}"
        run(f"{TOOLS}{compiler}", f"-std={standard}", *warnings, source, *flags, where, "-o", tmp_path / language)
        shown = run(*EMULATOR, tmp_path / language, TINY)
        np.testing.assert_allclose([float(line.split()[-1]) for line in shown.splitlines()], logits, rtol=1e-5)


@pytest.mark.skipif(not ARM64, reason="`make test-arm64` runs it")
def test_the_commands_for_another_machine(tmp_path: Path) -> None:
    """As docs/cross_compile.md has them; the program is one file and answers as here."""
    (cross, emulated) = (b.text for b in blocks("docs/cross_compile.md") if b.not_run == "make test-arm64 runs it")
    run("bash", "-euc", f"cd '{ROOT}'\n" + cross.replace("build/pi", str(tmp_path)))
    program = tmp_path / "install" / "bin" / "ovsw-classify"
    assert "NEEDED" not in run(f"{TOOLS}readelf", "-d", program)
    Image.open(zoo.pictures()["cat"]).convert("RGB").save(tmp_path / "cat.ppm")
    shutil.copy(zoo.path("cresnet20-cifar10"), tmp_path / "model.bnn")
    commands = f"cd '{tmp_path}'\n" + emulated.replace("build/pi", str(tmp_path))
    expected = Engine(tmp_path / "model.bnn").classify(tmp_path / "cat.ppm", 3)
    lines = ["cat.ppm", *(f"  {100 * p:6.2f} %  {label}" for label, p in expected)]
    assert run("bash", "-euc", commands).splitlines() == lines * 2
