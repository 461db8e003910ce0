"""`make wheel` ends with it: for each wheel in a folder a software bill of materials beside it, in CycloneDX's JSON.

It names what is inside (the package, pybind11's headers) and what is needed at run time, and nothing that changes from
build to build: the wheel's checksum stands for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path


def component(name: str, release: str | None) -> dict[str, object]:
    at = f"@{release}" if release else ""
    component: dict[str, object] = {"type": "library", "name": name, "purl": f"pkg:pypi/{name.lower()}{at}"}
    return {**component, "version": release} if release else component


def bill(wheel: Path) -> dict[str, object]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(name))
    needed = [r for r in about.get_all("Requires-Dist", []) if "extra ==" not in r]
    package = component(about["Name"], about["Version"])
    package["licenses"] = [{"expression": about["License-Expression"]}]
    package["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": package},
        "components": [
            {
                **component("pybind11", version("pybind11")),
                "description": "headers, compiled in",
            },
            *(component(re.split(r"[ <>=!~;\[]", r)[0], None) for r in needed),
        ],
    }


def main(folder: str) -> int:
    wheels = sorted(Path(folder).glob("*.whl"))
    for wheel in wheels:
        target = wheel.with_suffix(".cdx.json")
        target.write_text(json.dumps(bill(wheel), indent=2) + "\n")
        print(target)
    if not wheels:
        sys.exit(f"{folder}: no wheel")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
