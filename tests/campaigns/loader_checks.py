"""Takes the checks out of the C++ loader one by one; each time tests/attacks must notice.

    python -m campaigns.loader_checks [--only N,...] [--sources FILE ...]

Every condition that a check asks for, and every part of one that is joined by &&, is taken for true; every refusal by
itself is left out. The file is compiled anew, linked with the rest of libovsw into tests/cpp/test_attacks, and run.
What goes unnoticed is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

SOURCES = (
    "csrc/format/file.cc",
    "csrc/graph/graph.cc",
    "csrc/graph/bounds.cc",
    "csrc/runtime/metadata.cc",
    "csrc/base/json.cc",
)
# Without these parts the next one refuses in the same words, after a look at memory that is not there: work for ASan.
EXPLAINED = ("size >= sizeof kMagic  (a part)", "resize  (a part)")
CALL = re.compile(r"(?<![\w.>:~])(check|require|refuse|refuse_labels|fail)\(")
DEFINITION = re.compile(r"(void|noreturn\]\] void) (\w+::)?(check|require|refuse|refuse_labels|fail)\($")


@dataclass(frozen=True)
class Mutant:
    """`text[begin:end]` becomes `new`."""

    path: str
    text: str
    begin: int
    end: int
    new: str
    line: int
    shown: str


def closing(text: str, at: int) -> int:
    """Where the parenthesis that opens at `at` closes; strings and characters are passed over."""
    depth = 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|[(){}\[\]]', text[at:]):
        if token.group() in "([{":
            depth += 1
        elif token.group() in ")]}":
            depth -= 1
            if depth == 0:
                return at + token.start()
    raise ValueError(f"nothing closes {text[at : at + 40]!r}")


def parts(text: str, begin: int, end: int, separator: str) -> list[tuple[int, int]]:
    """What lies between separators that are in no brackets."""
    found, depth, start = [], 0, begin
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[(){}\[\]]|&&|,', text[begin:end]):
        if token.group() in "([{":
            depth += 1
        elif token.group() in ")]}":
            depth -= 1
        elif token.group() == separator and depth == 0:
            found.append((start, begin + token.start()))
            start = begin + token.end()
    return [*found, (start, end)]


def mutants(path: str, text: str) -> Iterator[Mutant]:
    for call in CALL.finditer(text):
        line_start = text.rfind("\n", 0, call.start()) + 1
        name, end = call.group(1), closing(text, call.end() - 1)
        line = text.count("\n", 0, call.start()) + 1
        if DEFINITION.search(text[line_start : call.end()]) or text[line_start : call.end()].strip().startswith("//"):
            continue
        arguments = parts(text, call.end(), end, ",")
        first = text[slice(*arguments[0])].strip()
        if first in ("condition", "!has"):  # the helpers themselves
            continue
        if name in ("fail", "refuse_labels") or (name == "refuse" and len(arguments) == 1):
            yield Mutant(path, text, call.start(), end + 1, "(void)0", line, text[call.start() : end + 1])
            continue
        if name == "require" and first == "op":
            arguments = arguments[1:]
        begin, stop = arguments[0]
        shown = text[begin:stop].strip()
        yield Mutant(path, text, begin, stop, f"({shown}) {'&& false' if name == 'refuse' else '|| true'}", line, shown)
        joined = parts(text, begin, stop, "&&")
        for a, b in joined if len(joined) > 1 and name != "refuse" else []:
            yield Mutant(path, text, a, b, " true ", line, f"{text[a:b].strip()}  (a part)")


def build(folder: Path) -> dict[str, str]:
    """Builds the library and test_attacks; returns the compile command of each source."""
    configure = ["cmake", "-S", ROOT, "-B", folder, "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    for command in (configure, ["cmake", "--build", folder, "--parallel", "2", "--target", "test_attacks"]):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    entries = json.loads((folder / "compile_commands.json").read_text())
    return {str(Path(e["file"]).relative_to(ROOT)): e["command"] for e in entries if str(ROOT) in e["file"]}


class Bench:
    """A folder in which the mutants of one file are compiled, linked and run."""

    def __init__(self, folder: Path, commands: dict[str, str]) -> None:
        self.folder, self.commands = folder, commands
        built = [path for path in folder.rglob("*.o") if "/tests/" not in str(path)]  # in the library most are hidden
        self.objects = [*built, next(folder.rglob("test_attacks.cc.o"))]

    def noticed(self, mutant: Mutant) -> str:
        """How: "wrong" messages, a crash, a hang, or "" if it went by."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            source, object_, program = (Path(name) / part for part in ("mutant.cc", "mutant.o", "test"))
            source.write_text(mutant.text[: mutant.begin] + mutant.new + mutant.text[mutant.end :])
            words = shlex.split(self.commands[mutant.path])
            words = [word for word in words if not word.startswith(("-W", "-O", "-flto", "-fno-fat"))]
            words[words.index("-o") + 1] = str(object_)
            words[words.index("-c") + 1] = str(source)
            if subprocess.run([*words, "-w", "-O0"], cwd=self.folder, capture_output=True).returncode:
                raise SystemExit(f"{mutant.path}:{mutant.line}: the mutant does not compile: {mutant.shown}")
            others = [path for path in self.objects if not str(path).endswith(f"{mutant.path}.o")]
            link = ["c++", *others, object_, "-lpthread", "-o", program]
            linked = subprocess.run([str(part) for part in link], capture_output=True, text=True)
            if linked.returncode:
                raise SystemExit(linked.stderr[-2000:])
            try:
                ran = subprocess.run([str(program), str(ROOT / "tests/data")], capture_output=True, timeout=120)
            except subprocess.TimeoutExpired:
                return "hangs"
            return "" if ran.returncode == 0 else "crash" if ran.returncode < 0 else "wrong"


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m campaigns.loader_checks", description=__doc__.split("\n")[0])
    p.add_argument("--sources", nargs="+", default=SOURCES, help="files of the loader (default: all five)")
    p.add_argument("--only", default="", help="numbers of mutants, as printed")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--list", action="store_true", help="print the mutants, build nothing")
    args = p.parse_args()
    found = [m for path in args.sources for m in mutants(path, (ROOT / path).read_text())]
    chosen = {int(n) for n in args.only.split(",") if n} or set(range(len(found)))
    if args.list:
        for i, m in enumerate(found):
            print(i, f"{m.path}:{m.line}:", " ".join(m.shown.split()))
        return 0
    results, unnoticed = [], 0
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(args.jobs) as pool:
        bench = Bench(Path(name), build(Path(name)))
        for i, how in zip(sorted(chosen), pool.map(lambda i: bench.noticed(found[i]), sorted(chosen))):
            results.append(how)
            if not how:
                unnoticed += found[i].shown not in EXPLAINED
                known = ", as is known" if found[i].shown in EXPLAINED else ""
                words = " ".join(found[i].shown.split())
                print(f"unnoticed {i}{known}: {found[i].path}:{found[i].line}: {words}", flush=True)
    counts = {how or "unnoticed": results.count(how) for how in set(results)}
    print(f"{len(results)} mutants: {counts}")
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
