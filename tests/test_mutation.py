"""tools/mutation: which places it finds, that a mutant is found again, what it leaves alone, and a campaign as a whole
over a repository of two functions, of which one is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation import cpp_faults, python_faults, sites
from support import ROOT

PYTHON = '''"""A text with 1 < 2 in it."""
from typing import Optional
LIMIT: Optional[int] = 7

def larger(a: int, b: "int | None" = None) -> "int | None":
    """No place: a < b."""
    assert a > 0
    if a < b and not done(a, b):
        total[0] = max(a, b)
        raise ValueError("1 < 2")
    return a
'''
CPP = """#include <a.h>
static_assert(sizeof(int) < 8, "1 < 2");
// a < b
int larger(int a, int b) {
  assert(a > 0);
  if (a < b && !done(a, b)) { total = std::max(a, 9); }
  return a;  // "1 + 2"
}
"""


def faults(found: list[sites.Place]) -> set[tuple[int, str]]:
    return {(place.lines[0], fault.kind) for place in found for fault in place.faults}


def test_places_in_python() -> None:
    """All on lines 3 and 8 to 11: no text, no annotation, no assertion, no import."""
    assert faults(python_faults.find("export/a.py", PYTHON)) == {
        (3, "NumberReplacer"),
        (8, "AddNot"),
        (8, "ReplaceAndWithOr"),
        (8, "ReplaceComparisonOperator_Lt_Gt"),
        (8, "ReplaceComparisonOperator_Lt_LtE"),
        (8, "ReplaceUnaryOperator_Delete_Not"),
        (8, "swap_arguments"),
        (9, "NumberReplacer"),
        (9, "remove_statement"),
        (9, "swap_function"),
        (10, "remove_statement"),
        (11, "return_none"),
    }


def test_places_in_cpp() -> None:
    assert faults(cpp_faults.find("csrc/a.cc", CPP)) == {
        (6, "constant"),
        (6, "negate"),
        (6, "operator"),
        (6, "remove_statement"),
        (6, "remove_unary"),
        (6, "swap_arguments"),
        (6, "swap_name"),
    }


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("operator", {"a <= b &&", "a > b &&", "a < b ||"}),
        ("swap_arguments", {"done(b, a)"}),  # max does not mind
        ("constant", {"max(a, 10)", "max(a, 8)"}),
        ("negate", {"(!(a < b && !done(a, b)))"}),
        ("remove_statement", {"{ ; }"}),
        ("swap_name", {"std::min("}),
    ],
)
def test_faults_of_cpp(name: str, changed: set[str]) -> None:
    texts = [f.apply() for place in cpp_faults.find("csrc/a.cc", CPP) for f in place.faults if f.kind == name]
    assert len(texts) == len(changed)
    for text in texts:
        assert sum(part in text for part in changed) == 1, text


def repository(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_mutant_is_found_again_where_the_file_has_grown(tmp_path: Path) -> None:
    source = "x = 1\n\ny = 2\nif y:\n    x = 1\n    x = 1\n"
    root = repository(tmp_path, {"export/a.py": source})
    drawn = list(sites.draw(root, sites.places(root, "python"), 0))
    assert len({mutant.name for mutant in drawn}) == len(drawn) >= 5
    for mutant in drawn:
        changed = mutant.into(source)
        assert changed not in (None, source)
        assert mutant.into("# more\n" + source) == f"# more\n{changed}"
    assert all(mutant.into("x = 3\n") is None for mutant in drawn)


def test_draw_depends_on_the_seed_and_on_no_other_file(tmp_path: Path) -> None:
    text = "def f(a, b):\n" + "".join(f"    a += {i} * b\n" for i in range(20))
    root = repository(tmp_path, {"export/a.py": text, "bench/b.py": text})
    places = sites.places(root, "python")
    before = [mutant.name for mutant in sites.draw(root, places, 1)]
    assert before != [mutant.name for mutant in sites.draw(root, places, 2)]
    mixed = [mutant.path for mutant in sites.draw(root, places, 1)][:40]
    assert 5 < mixed.count("bench/b.py") < 35
    repository(root, {"bench/b.py": "x = 1\n"})
    after = {mutant.name for mutant in sites.draw(root, sites.places(root, "python"), 1)}
    assert [name for name in before if name in after][:10] == [
        mutant.name for mutant in sites.draw(root, places, 1) if mutant.path == "export/a.py"
    ][:10]


def test_campaign(tmp_path: Path) -> None:
    """Faults in the tested function are noticed, one that hangs too; the repository stays as it was; a second run has
    nothing to do."""
    root = repository(
        tmp_path / "repository",
        {
            "python/ovsw/__init__.py": "",
            "python/ovsw/count.py": "def count(n):\n    while n > 0:\n        n -= 1\n    return n\n",
            "python/ovsw/other.py": "def other(n):\n    return n + 1\n",
            "export/__init__.py": "",
            "bench/__init__.py": "",
            "tests/test_count.py": "from ovsw.count import count\n\ndef test_count():\n    assert count(3) == 0\n",
            "tests/runtime/test_other.py": "def test_import():\n    import ovsw.other\n",
        },
    )
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code = f"""
import sys, pathlib
import mutation.__main__ as campaign
from mutation import judge
campaign.ROOT = pathlib.Path({str(root)!r})
campaign.WORK = campaign.ROOT / "build" / "mutation"
judge.PRELOADED, judge.SLACK = [], 1
sys.argv = ["mutation", "--only", "python", "--count", "50", "--results", {str(tmp_path / "results.jsonl")!r}]
sys.exit(campaign.main())
"""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-c", code]
    first = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert first.returncode == 1, first.stdout + first.stderr  # survivors that nothing explains
    assert "Traceback" not in first.stderr, first.stderr
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    outcomes = {(r["path"], r["before"].strip(), r["after"].strip()): (r["outcome"], r["by"]) for r in results}
    by = "tests/test_count.py::test_count"
    for (path, _, _), outcome in outcomes.items():
        assert outcome[0] == ("noticed" if path.endswith("count.py") else "survived")
    assert outcomes["python/ovsw/count.py", "return n", "return None"] == ("noticed", by)
    hung = [v for k, v in outcomes.items() if k[1] == "n -= 1" and "SIGXCPU" in v[1]]
    assert hung, outcomes
    assert {path: path.read_bytes() for path in before} == before
    second = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert second.stdout.splitlines()[-2:] == first.stdout.splitlines()[-2:]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(results)
