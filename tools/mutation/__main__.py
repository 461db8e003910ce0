"""The campaign: draws mutants, puts each into a copy of the tree, runs the tests that may notice, prints the table.

Results are lines of JSON in build/mutation/results.jsonl; a campaign that was interrupted goes on where it was. After a
change to the tree it judges only what has no result yet, and with --again those that survived.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import itertools
import json
import os
import sys
import traceback
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from mutation import judge, sites, survey, trees

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
SURVIVORS = Path(__file__).with_name("survivors.toml")
# Which tests judge C++, in the order in which they are asked; coverage does not see which of them run a line.
CPP_TESTS = {
    "kernels/train": ("tests/train/test_native.py",),
    "csrc/train": ("tests/train/test_native.py",),
    "csrc/binding/train.cc": ("tests/train/test_native.py",),
    "csrc/c_api": ("tests/cpp/",),
    "include": ("tests/cpp/",),
    "": ("tests/kernels/", "tests/format/", "tests/runtime/", "tests/cpp/"),
}
# Tests that name another kernel table than those a folder is compiled for need not be asked.
OTHER_TABLES = {
    "kernels/x86_avx2/": ("portable", "x86_avx512"),
    "kernels/x86_avx512/": ("portable", "x86_avx2"),
    "kernels/x86/": ("portable",),
}
PYTHON_TESTS = {
    "python/ovsw/nn": ("tests/train/", "tests/export/"),
    "python/ovsw/datasets": ("tests/train/",),
    "python/ovsw/train": ("tests/train/",),
    "python/ovsw/repro": ("tests/repro/",),
    "export": ("tests/export/",),
    "bench": ("tests/bench/",),
    "python/ovsw": ("tests/runtime/", "tests/format/"),
}


class Results:
    """The last line about each mutant counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            result = json.loads(line)
            self.lines[result["name"]] = result

    def outcome(self, mutant: sites.Mutant) -> str:
        return str(self.lines.get(mutant.name, {}).get("outcome", ""))

    def add(self, mutant: sites.Mutant, outcome: str, **more: Any) -> None:
        result = {"name": mutant.name, "room": mutant.room, "outcome": outcome, **asdict(mutant), **more}
        self.lines[mutant.name] = result
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(result) + "\n")


class Campaign:
    """One language: its copy of the tree, its share of the draw."""

    def __init__(self, language: str, args: argparse.Namespace, lane: int | None) -> None:
        self.language, self.args, self.lane = language, args, lane
        self.results = Results(args.results)
        self.survey = survey.Survey(WORK / "survey")
        self.tree = WORK / f"part{(lane or 0) + 1}" / f"{language}-tree"
        trees.make_tree(ROOT, self.tree)
        if language == "cpp":
            self.build = trees.Build(self.tree)
            said = self.build.build()
            assert said is None, said
            self.clean = self.build.code()
        self.killers: Counter[str] = Counter(
            r["by"] for r in self.results.lines.values() if r["outcome"] == "noticed" and r["by"] in self.survey.seconds
        )

    def judge(self, mutant: sites.Mutant) -> str:
        """The outcome, which is also noted."""
        path = trees.place_in(self.tree, mutant.path)
        source = (ROOT / mutant.path).read_text()
        changed = mutant.into(source)
        if changed is None:
            self.results.add(mutant, "gone")
            return "gone"
        before = path.stat()
        path.write_text(changed)
        if self.language == "python":  # a time of its own: compiled files are never taken for those of another mutant
            os.utime(path, (int(mutant.name, 16),) * 2)
        try:
            return self.judge_changed(mutant)
        finally:
            path.write_text(source)
            if self.language == "python":
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def judge_changed(self, mutant: sites.Mutant) -> str:
        started = judge.cpu_seconds()
        if self.language == "cpp" and not mutant.path.startswith(("include/", "csrc/c_api/")):
            if said := self.build.build():
                self.results.add(mutant, "invalid", said=said[-300:])
                return "invalid"
            if self.build.code() == self.clean:
                self.results.add(mutant, "equivalent")
                return "equivalent"
        batches = self.batches(mutant)
        ran, by = 0, ""
        for batch in batches:
            by, count = judge.run_tests(self.tree, batch, sum(self.survey.seconds[test] for test in batch))
            ran += count
            if by:
                break
        outcome = "noticed" if by else "survived"
        if by:
            self.killers[by] += 1
        spent = round(judge.cpu_seconds() - started, 1)
        self.results.add(mutant, outcome, by=by, ran=ran, chosen=sum(map(len, batches)), seconds=spent)
        return outcome

    def batches(self, mutant: sites.Mutant) -> list[list[str]]:
        seconds, budget = self.survey.seconds, self.args.budget
        if self.language == "python":
            tests = self.survey.tests_of(mutant.path, *mutant.lines)
            if not tests:
                tests = self.of_folders(next(t for room, t in PYTHON_TESTS.items() if mutant.path.startswith(room)))
            return judge.in_order(tests, seconds, budget)
        folders = next(t for room, t in CPP_TESTS.items() if mutant.path.startswith(room))
        others = next((tables for room, tables in OTHER_TABLES.items() if mutant.path.startswith(room)), ())
        tests = {test for test in self.of_folders(folders) if not any(table in test for table in others)}
        known = [test for test, _ in self.killers.most_common() if test in tests][:12]
        return [b for b in (known, *judge.in_order(tests - set(known), seconds, budget)) if b]

    def of_folders(self, folders: tuple[str, ...]) -> set[str]:
        return {test for test in self.survey.seconds if test.startswith(folders)}

    def run(self, mutants: list[sites.Mutant], count: int) -> None:
        """Judges until `count` of the draw are noticed or survive; a lane leaves out those of the others."""
        judged = 0
        for i, mutant in enumerate(mutants):
            if judged >= count:
                break
            outcome = self.results.outcome(mutant)
            ours = self.lane is None or i % self.args.jobs == self.lane
            if ours and (outcome in ("", "gone") or (outcome == "survived" and self.again())):
                outcome = self.judge(mutant)
                show(self.results.lines[mutant.name], judged, count)
            judged += outcome in ("noticed", "survived") or (not ours and not outcome)

    def again(self) -> bool:
        """Whether survivors are judged again: by the lanes, not once more at the end."""
        return self.args.again and (self.args.jobs == 1 or self.lane is not None)


def show(result: dict[str, Any], judged: int, count: int) -> None:
    by = result.get("by") or ""
    print(f"{judged + 1:4}/{count} {result['outcome']:10} {result['path']}:{result['lines'][0]} {result['kind']} {by}")
    sys.stdout.flush()


def verify_killers(campaign: Campaign) -> list[str]:
    """Tests that noticed a mutant but fail without one, too: what they said does not count."""
    killers = sorted(test for test in campaign.killers if test in campaign.survey.seconds)
    trees.make_tree(ROOT, campaign.tree)
    if campaign.language == "cpp":
        campaign.build.build()
    failing = []
    estimate = sum(campaign.survey.seconds[test] for test in killers)
    left = killers
    while left:
        by, _ = judge.run_tests(campaign.tree, left, estimate)
        if not by:
            break
        failing.append(by)
        left = left[left.index(by) + 1 :] if by in left else []
    return failing


def drawn(language: str, args: argparse.Namespace) -> list[sites.Mutant]:
    """The draw, as far as it may be needed: kept beside the results until the code or the faults change."""
    count = shares(args.count)[language] * (3 if language == "cpp" else 1)  # some do not compile, or change nothing
    how = [Path(__file__).with_name(name) for name in ("sites.py", f"{language}_faults.py")]
    read = [ROOT / name for name in sites.files(ROOT, language)] + how
    state = hashlib.sha256(b"".join(path.read_bytes() for path in read)).hexdigest()
    kept = WORK / f"drawn-{language}-{args.seed}-{count}.json"
    if kept.exists() and (content := json.loads(kept.read_text()))["state"] == state:
        return [sites.Mutant(**{**m, "lines": tuple(m["lines"])}) for m in content["mutants"]]
    mutants = list(itertools.islice(sites.draw(ROOT, sites.places(ROOT, language), args.seed), count))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"state": state, "mutants": [asdict(mutant) for mutant in mutants]}))
    return mutants


def shares(count: int) -> dict[str, int]:
    """How many mutants of each language, by lines of code."""
    lines = {k: sum((ROOT / f).read_text().count("\n") for f in sites.files(ROOT, k)) for k in sites.SUFFIXES}
    python = round(count * lines["python"] / sum(lines.values()))
    return {"python": python, "cpp": count - python}


def table(lines: list[dict[str, Any]], explained: dict[str, str]) -> str:
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        outcome = line["outcome"]
        rows[line["room"]][outcome] += 1
        rows[line["room"]]["explained"] += outcome == "survived" and line["name"] in explained
    text = ["room                     equal code  judged  noticed  survived  explained  noticed %"]
    total: Counter[str] = sum(rows.values(), Counter())
    for room in (*sorted(rows), "all"):
        row = total if room == "all" else rows[room]
        judged = row["noticed"] + row["survived"]
        share = 100 * row["noticed"] / judged if judged else 0.0
        text.append(
            f"{room:24} {row['equivalent']:>10} {judged:>7} {row['noticed']:>8} {row['survived']:>9}"
            f" {row['explained']:>10} {share:>9.1f}%"
        )
    left = total["noticed"] + total["survived"] - total["explained"]
    if left:
        text.append(f"without those explained in {SURVIVORS.name}: {100 * total['noticed'] / left:.1f}% of {left}")
    return "\n".join(text)


def explanations() -> dict[str, str]:
    if not SURVIVORS.exists():
        return {}
    return {entry["name"]: entry["why"] for entry in tomllib.loads(SURVIVORS.read_text()).get("survivor", [])}


def in_lanes(language: str, args: argparse.Namespace, mutants: list[sites.Mutant]) -> None:
    """Several processes at once, each with a copy of the tree and every n-th mutant; one at the end for the rest."""
    lanes = []
    for lane in range(args.jobs if args.jobs > 1 else 0):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.setsid()
                Campaign(language, args, lane).run(mutants, shares(args.count)[language])
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        lanes.append(pid)
    for pid in lanes:
        os.waitpid(pid, 0)
    campaign = Campaign(language, args, None)
    campaign.run(mutants, shares(args.count)[language])
    for test in verify_killers(campaign):
        print(f"{test} fails without a mutant, too: what it noticed does not count")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to judge (default 300)")
    parser.add_argument("--seed", type=int, default=13, help="of the draw (default 13)")
    parser.add_argument("--only", choices=("python", "cpp"), help="judge those of one language")
    parser.add_argument("--again", action="store_true", help="judge survivors again")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests per mutant (default 60)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants judged at a time (default 1)")
    parser.add_argument("--survey", action="store_true", help="find out anew which tests run which line")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--results", type=Path, default=WORK / "results.jsonl", help="where results are kept")
    return parser.parse_args()


def main() -> int:
    args = parse()
    languages = [args.only] if args.only else list(sites.SUFFIXES)
    share = shares(args.count)
    if not args.table:
        if args.survey or not (WORK / "survey").exists():
            trees.make_tree(ROOT, WORK / "tree")
            survey.run(WORK / "tree", WORK / "survey")
        judge.preload()
        for language in languages:
            in_lanes(language, args, drawn(language, args))
    results = Results(args.results)
    lines = []
    for language in languages:
        judged = 0
        for mutant in drawn(language, args):
            line = results.lines.get(mutant.name)
            if line is not None and judged < share[language]:
                lines.append(line)
                judged += line["outcome"] in ("noticed", "survived")
        if judged < share[language]:
            print(f"{language}: {share[language] - judged} of {share[language]} are not judged yet")
    why = explanations()
    survivors = [line for line in lines if line["outcome"] == "survived"]
    for line in survivors:
        print(f"survived: {line['name']} {line['path']}:{line['lines'][0]} {line['kind']}: {why.get(line['name'], '')}")
        print("".join(f"  - {text}\n" for text in line["before"].splitlines()), end="")
        print("".join(f"  + {text}\n" for text in line["after"].splitlines()), end="")
    print(table(lines, why))
    print(f"{sum(line.get('seconds', 0) for line in lines) / 60:.0f} minutes of CPU time for these, builds and all")
    return int(any(line["name"] not in why for line in survivors))


if __name__ == "__main__":
    sys.exit(main())
