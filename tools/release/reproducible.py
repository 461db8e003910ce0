"""`make reproducible`: what `make wheel` gives, built twice, from two clones in other places, with another umask, time
zone and language around them; exit 1 if a byte differs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
AROUND = (
    {"umask": 0o022, "TZ": "UTC", "LANG": "C.UTF-8", "folder": "a"},
    {"umask": 0o077, "TZ": "Asia/Tokyo", "LANG": "C", "folder": "another place/b"},
)


def build(home: Path, around: dict[str, object]) -> dict[str, bytes]:
    """The names and bytes of what a clone of HEAD gives."""
    clone = home / str(around["folder"])
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    env = {**os.environ, "TZ": str(around["TZ"]), "LANG": str(around["LANG"])}
    command = [sys.executable, "tools/release/wheel.py", "dist"]
    mask = os.umask(int(str(around["umask"])))
    try:
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
    finally:
        os.umask(mask)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return {path.name: path.read_bytes() for path in sorted((clone / "dist").iterdir())}


def differing(name: str, first: bytes, second: bytes, home: Path) -> list[str]:
    """Members of a wheel that differ, by name."""
    if not name.endswith(".whl"):
        return []
    contents = []
    for data in (first, second):
        path = home / "compared.whl"
        path.write_bytes(data)
        with zipfile.ZipFile(path) as archive:
            contents.append({e.filename: (archive.read(e), e.date_time, e.external_attr) for e in archive.infolist()})
    return sorted(n for n in {*contents[0], *contents[1]} if contents[0].get(n) != contents[1].get(n))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        first, second = (build(home, around) for around in AROUND)
        if list(first) != list(second) or len(first) != 3:
            sys.exit(f"other files: {', '.join(first)} and {', '.join(second)}")
        same = True
        for name, data in first.items():
            same &= data == second[name]
            verdict = "the same twice" if data == second[name] else "DIFFERS"
            print(f"{name}: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}, {verdict}")
            for member in [] if data == second[name] else differing(name, data, second[name], home):
                print(f"  {member}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
