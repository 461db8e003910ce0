"""Every command and the mistakes that users make with it: one line on stderr, the right exit code, nothing left over.

0 all is well, 1 something could not be read, computed or written, 2 the command line is wrong, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import ovsw
from ovsw import __main__ as door
from ovsw.commands.base import COMMANDS

from support import HANGS, ROOT

BIN = Path(sys.executable).parent
PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")
SCRIPTS = [name for name in COMMANDS if name not in ("doctor", "completion")]
SMALL = "table1-cresnet20 --set data.kind=synthetic"

# What it is given in an empty folder that has `text`, a file of words, and `folder`; exit code, and words it must say.
MISTAKES = [
    ("run", "", 2, "no image given"),
    ("run", "nothing.jpg", 1, "nothing.jpg: no such image"),
    ("run", "cresnet20-cifar10", 2, "no image given for the model cresnet20-cifar10"),
    ("run", "nothing.bnn", 2, "no image given for the model nothing.bnn"),
    ("run", "nothing.bnn PHOTO", 1, "nothing.bnn: no such file"),
    ("run", "nothing.bin PHOTO", 1, "nothing.bin: no such image, no such model, and no network"),
    ("run", "cresnet20-cifar1 PHOTO", 1, "did you mean 'cresnet20-cifar10'?"),
    ("run", "text", 2, "no image given for the model text"),
    ("run", "text PHOTO", 1, "text: not a .bnn file"),
    ("run", "folder", 1, "folder: a folder without pictures"),
    ("run", "no*.jpg", 1, "no*.jpg: matches no file"),
    ("run", "PHOTO --top 0", 2, "--top: '0'"),
    ("run", "PHOTO --threads 1e9", 2, "--threads: '1e9'"),
    ("run", "PHOTO --isa abacus", 2, "--isa: 'abacus'"),
    ("run", "PHOTO --memory-limit 0", 2, "--memory-limit: '0' is not a whole number of at least 1"),
    ("run", "PHOTO --work-limit 0", 2, "--work-limit: '0' is not a whole number of at least 1"),
    ("run", "PHOTO --html folder", 2, "--html: folder is a folder"),
    ("run", "PHOTO --html nowhere/a.html", 2, "--html: the folder nowhere does not exist"),
    ("run", "PHOTO --show --json", 2, "exclude each other"),
    ("demo", "nothing.jpg", 1, "nothing.jpg: no such image"),
    ("demo", "--repeat 0", 2, "--repeat: '0'"),
    ("demo", "--save nowhere", 2, "--save: the folder nowhere does not exist"),
    ("info", "", 2, "give a MODEL.bnn, or --cpu"),
    ("info", "nothing.bnn", 1, "nothing.bnn: no such file"),
    ("info", "folder", 1, "folder: is a folder"),
    ("info", "text", 1, "text: "),
    ("zoo", "alexnet", 1, "no network 'alexnet' in the zoo"),
    ("export", "nothing.pth", 2, "nothing to do"),
    ("export", "a.pth -o a.bnn --verify 0", 2, "--verify"),
    ("train", "", 2, "a RECIPE and -o RUN are needed"),
    ("train", "tabel1 -o out", 1, "no recipe 'tabel1'"),
    ("train", "table1-cresnet20 -o out", 2, "--data DIR is needed"),
    ("train", f"{SMALL} --set train.batch=0 -o out", 2, "train.batch is 0"),
    ("train", f"{SMALL} --set train.epochs=0 -o out", 2, "train.epochs is 0"),
    ("train", f"{SMALL} --set train.epochs=many -o out", 2, "train.epochs"),
    ("train", f"{SMALL} --seed one -o out", 2, "--seed"),
    ("bench", "--arch alexnet", 2, "unknown network 'alexnet'"),
    ("bench", "--batch 100000", 2, "--batch: '100000' is not a whole number from 1 to 1024"),
    ("bench", "--threads 1000", 2, "--threads: '1000' is not a whole number from 1 to 256"),
    ("bench", "--repeat 0", 2, "--repeat: '0' is not a whole number"),
    ("bench", "--min-time -1", 2, "--min-time is -1"),
    ("bench", "--peers tensorrt", 2, "unknown peer 'tensorrt'"),
    ("bench", "--isa abacus --arch cresnet20 --peers none", 2, "abacus"),
    ("bench", "--json out.txt", 2, ".json"),
    ("bench", "--plot out.gif", 2, ".png"),
    ("bench", "--html out.pdf", 2, ".html"),
    ("bench", "--model PHOTO --arch cresnet20", 1, "cat.jpg"),
    ("bench", "--image nothing.jpg --arch cresnet20", 1, "nothing.jpg"),
    ("bench", "--json nowhere/a.json", 2, "nowhere/a.json"),
    ("bench", "--peers none --arch cresnet20 --model nothing.bnn", 1, "nothing.bnn: No such file"),
    ("bench compare", "text nothing.json", 1, "text: not a result of ovsw-bench --json"),
    ("bench compare", "text", 2, "B.json"),
    ("bench families", "--rounds 0", 2, "--rounds: '0' is not a whole number of at least 1"),
    ("bench micro", "--numerics fp8", 2, "invalid choice: 'fp8'"),
    ("bench training", "--batch 0", 2, "--batch: '0' is not a whole number of at least 1"),
    ("flips", "", 2, "RUN"),
    ("flips", "nothing", 1, "nothing: no such file or folder"),
    ("landscape", "nothing.pth", 2, "-o"),
    ("landscape", "nothing.pth -o a.png --grid 1", 2, "--grid: '1'"),
    ("landscape", "nothing.pth -o a.png --span -1", 2, "--span is -1"),
    ("landscape", "nothing.pth -o a.txt", 2, "a.txt ends in none of"),
    ("landscape", "nothing.pth -o nowhere/a.png", 1, "the folder nowhere does not exist"),
    ("repro", "", 2, "an EXPERIMENT is needed"),
    ("repro", "tabel3", 1, "did you mean 'table3'?"),
    ("repro", "table2", 1, "table2: not possible at scale cpu: ImageNet"),
    ("repro", "methods", 2, "--data DIR is needed: the runs train on cifar10"),
    ("repro", "figure7", 1, "a diagram: nothing to run"),
    ("repro", "table3 --set train.epoch=3", 2, "did you mean 'epochs'"),
    ("repro", "table3 --jobs 0", 2, "--jobs: '0' is not"),
    ("repro", "figure4 --grid 1", 2, "--grid: '1' is not"),
    ("repro", "table3 --hours 0", 2, "--hours is 0, expected more than 0"),
    ("repro", "zoo --data .", 2, "--teacher FILE is needed: the weights of float_cResNet20"),
    ("repro", "zoo --teacher nowhere.pth", 1, "nowhere.pth: no such file"),
    ("repro", "zoo --scale paper", 1, "zoo: runs at scale cpu only"),
    ("repro", "chaos --model nowhere.pth", 1, "nowhere.pth: no such file"),
    ("repro", "--redraw .", 1, "neither experiment.json nor chaos.json"),
    ("repro", "table3 --plan text", 1, "text: not a plan"),
    ("repro", "table3 --plan empty.toml", 1, "empty.toml: lacks 'scales'"),
    ("repro", "table99", 1, "no experiment 'table99'"),
    ("repro", "table3 --nice 20", 2, "--nice: '20'"),
    ("repro", "table3 --set train.batch=0", 2, "train.batch is 0"),
    ("repro", "--redraw nowhere", 1, "nowhere: no such folder"),
    ("doctor", "me", 2, "unrecognized arguments: me"),
    ("completion", "tcsh", 2, "tcsh"),
    ("completion", "", 2, "shell"),
]
TORCH = [
    ("export", "nothing.pth -o a.bnn", 1, "nothing.pth: no such file"),
    ("export", "folder -o a.bnn", 1, "folder"),
    ("export", "text -o a.bnn", 1, "text: not a PyTorch checkpoint"),
    ("train", "table1-cresnet20 --data nowhere -o out", 1, "--data: the folder nowhere does not exist"),
    ("train", "table1-cresnet20 --data folder -o runs/out", 1, "folder"),
    ("train", f"{SMALL} --set network.name=AlexNet -o runs/out", 1, "AlexNet"),
    ("train", f"{SMALL} -o text", 1, "text"),
    ("train", f"{SMALL} --set train.epoch=1 -o out", 2, "did you mean 'epochs'"),
    ("train", f"{SMALL} --set train.seeds=[] -o out", 2, "train.seeds is empty"),
    ("train", f"{SMALL} --set train.lr=nan -o out", 2, "train.lr is nan, expected 0 or more"),
    ("train", f"{SMALL} --set network.num_classes=0 -o out", 2, "network.num_classes is 0, expected at least 1"),
    ("train", f"{SMALL} --set train.optimizer=bop -o out", 1, "'bop'; known are sgd, adam, lars"),
    ("train", f"{SMALL} --amp -o out", 2, "--amp needs a GPU"),
    ("repro", "table3 --amp", 2, "--amp needs a GPU"),
    ("flips", "folder", 1, "initial.pth: no such file"),
    ("flips", "text text", 1, "text: not a PyTorch checkpoint"),
    ("landscape", "nothing.pth -o a.png", 1, "nothing.pth: no such file"),
    ("repro", "table3 --data nowhere -o out", 1, "the folder nowhere does not exist"),
    ("repro", "chaos --model text --data folder -o out", 1, "text: not a PyTorch checkpoint"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text").write_text("words")
    (tmp_path / "empty.toml").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # pytest keeps its own answer to Ctrl-C
    return tmp_path


def refused(name: str, arguments: str, code: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    given = [PHOTO if word == "PHOTO" else word for word in arguments.split()]
    assert door.main([*name.split(), *given]) == code
    captured = capsys.readouterr()
    told = ("it knows 10 classes", "results in out")  # before anything was tried
    (error,) = (line for line in captured.err.splitlines() if not any(some in line for some in told))
    assert error.startswith(f"ovsw {name}: error: ")
    assert words in error
    assert captured.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("name", "arguments", "code", "words"), MISTAKES)
def test_mistakes(
    name: str, arguments: str, code: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(name, arguments, code, words, folder, capsys)


@pytest.mark.parametrize(("name", "arguments", "code", "words"), TORCH)
def test_mistakes_that_torch_sees(
    name: str, arguments: str, code: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    refused(name, arguments, code, words, folder, capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_version_and_unknown_options(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By both names; help ends in examples that begin with the name that was called."""
    for prog, call in ((f"ovsw {name}", lambda *a: door.main([name, *a])), (f"ovsw-{name}", getattr(door, name, None))):
        if call is None:
            continue
        arguments = (lambda *a: a) if prog.startswith("ovsw ") else (lambda *a: (list(a),))
        for option, words in (("--help", f"usage: {prog} "), ("--version", f"ovsw {ovsw.__version__}\n")):
            with pytest.raises(SystemExit) as end:
                call(*arguments(option))
            assert end.value.code == 0
            shown = capsys.readouterr().out
            assert shown.startswith(words)
            if option == "--help":
                examples = re.search(r"\nexamples:\n((  .*\n)+)$", shown)
                assert examples
                lines = examples[1].splitlines()
                assert len(lines) >= 2
                assert all(line == f"  {prog}" or line.startswith(f"  {prog} ") for line in lines)
        assert call(*arguments("--nonsense")) == 2
        assert capsys.readouterr().err.startswith(f"{prog}: error: ")


def test_overview(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert door.main(arguments) == 0
        shown = capsys.readouterr().out
        for name, command in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(command.about)}$", shown, re.MULTILINE)
    assert door.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ovsw {ovsw.__version__}\n"
    with pytest.raises(SystemExit):
        door.main(["help", "zoo"])
    assert capsys.readouterr().out.startswith("usage: ovsw zoo ")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("inof", "unknown command 'inof', did you mean 'ovsw info'?"),
        ("xyzzy", "unknown command 'xyzzy'; ovsw --help lists them"),
        ("--nonsense", "unknown option --nonsense; ovsw --help lists the commands"),
        ("text", "text is not a command; to classify a picture: ovsw run text"),
        ("\x1b[31m", "unknown command '\\x1b[31m'; ovsw --help lists them"),
    ],
)
def test_no_command(word: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main([word]) == 2
    assert capsys.readouterr().err == f"ovsw: error: {said}\n"


def test_scripts_are_installed() -> None:
    """`python -m ovsw` and a script as processes; that the others lead to their command."""
    found = {e.name: e.load() for e in distribution("ovsw").entry_points}
    assert found.keys() == {"ovsw", *(f"ovsw-{name}" for name in SCRIPTS)}
    for name in SCRIPTS:
        assert found[f"ovsw-{name}"].name == name
    for command in ([str(BIN / "ovsw")], [sys.executable, "-m", "ovsw"]):
        shown = subprocess.run([*command, "run", "--help"], capture_output=True, text=True, check=True).stdout
        assert shown.startswith("usage: ovsw run ")
    shown = subprocess.run([str(BIN / "ovsw-run"), "--help"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("usage: ovsw-run ")


# --- what is not installed --------------------------------------------------------------------------------------------


def process(*arguments: str, packages: Path | None = None, **how: object) -> subprocess.CompletedProcess[str]:
    """`packages` hides the installed ones of the same names."""
    environment = {**os.environ, "PYTHONPATH": str(packages or "")}
    command = [
        sys.executable,
        "-c",
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from ovsw.__main__ import main; sys.exit(main())",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=environment, **how)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """Packages whose import fails as that of one which is not there."""
    for name in ("matplotlib", "onnx", "shtab", "tensorboard", "torch", "tqdm"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module {name}', name='{name}')")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        ("export a.pth -o a.bnn", "torch", "export"),
        (f"train {SMALL} -o out", "torch", "train"),
        ("flips .", "torch", "train"),
        ("landscape a.pth -o a.png", "torch", "train"),
        ("repro table3 --data .", "torch", "train,export,bench"),
        ("completion bash", "shtab", "completion"),
    ],
)
def test_without_a_package(arguments: str, missing: str, extra: str, without: Path) -> None:
    done = process(*arguments.split(), packages=without, cwd=without)
    name = arguments.split()[0]
    assert done.stderr == f"ovsw {name}: error: {missing} is not installed: pip install 'ovsw[{extra}]'\n"
    assert (done.returncode, done.stdout) == (1, "")
    assert not (without / "out").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_without_any_package(name: str, without: Path) -> None:
    done = process(name, "--help", packages=without)
    assert done.stderr == ""
    assert done.stdout.startswith(f"usage: ovsw {name} ")


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

_INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
_SWALLOWED = f"try:\n    {_INTERRUPT}\nexcept KeyboardInterrupt:\n    raise ImportError('numpy failed to import')"


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("argparse", "run PHOTO"),
        ("numpy", "run PHOTO"),
        ("PIL", "run PHOTO"),
        ("numpy", "zoo"),
        ("torch", "export text -o a.bnn"),
        ("torch", f"train {SMALL} -o out"),
        ("torch", "landscape text -o a.png"),
        ("matplotlib", "bench --peers none --arch cresnet20 --quick --plot a.png"),
    ],
)
@pytest.mark.parametrize("code", [_INTERRUPT, _SWALLOWED], ids=["raised", "swallowed"])
def test_interrupted_while_it_imports(package: str, arguments: str, code: str, tmp_path: Path) -> None:
    """Some imports, in C, make another error of it."""
    packages, folder = tmp_path / "packages", tmp_path / "folder"
    packages.mkdir()
    folder.mkdir()
    (packages / f"{package}.py").write_text(code)
    given = [PHOTO if word == "PHOTO" else word for word in arguments.split()]
    done = process(*given, packages=packages, cwd=folder)
    assert done.returncode == 130, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert list(folder.iterdir()) == []


def test_interrupted_at_work(tmp_path: Path) -> None:
    """While it waits for a picture from stdin."""
    command = [str(BIN / "ovsw"), "run", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_default_interrupt
    ) as child:
        assert child.stderr
        assert "it knows 10 classes" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        assert child.wait(timeout=HANGS) == 130
    assert rest == "ovsw run: interrupted\n"


def test_interrupted_in_a_network_of_the_user(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(f"def make():\n    {_INTERRUPT}\n")
    given = ["export", "net.py:make", "--input", "3x8x8", "--mean", "none", "-o", "a.bnn"]
    done = process(*given, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "ovsw export: interrupted\n")
    assert not (tmp_path / "a.bnn").exists()


def _default_interrupt() -> None:
    """Whoever starts the tests in the background may have had it ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# --- outputs that fail ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([str(BIN / "ovsw"), "zoo"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "ovsw zoo: error: [Errno 28] No space left on device\n")


def test_a_reader_that_has_seen_enough() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([str(BIN / "ovsw"), "zoo", "--json"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_has_left() -> None:
    """Such as `head`: no error, and nothing is said when Python ends and writes what it still has."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ovsw", "zoo", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=HANGS)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_nobody_reads_is_not_tried_again() -> None:
    """What is left in the buffer when the reader has gone must not be an error when Python ends."""
    code = """
import os
from ovsw.commands import base as cli
read, write = os.pipe()
os.dup2(write, 1)
os.close(read)
os.close(write)
print("something")
cli._discard_output()
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", code], env=buffered, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
