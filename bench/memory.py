"""Peak resident memory of each engine, in a fresh process that loads the network and runs it a few times.

That process runs this file as a script, as importing the package would load more than numpy.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovsw.bench.entries import Entry

RUNS = 3


def baseline_mb() -> float | None:
    """The peak memory of Python with numpy alone."""
    return _measured({})


def peak_mb(entry: Entry) -> float | None:
    """The peak memory of the entry's engine; None if it fails or runs in a process that cannot be measured."""
    loaded = {"engine": entry.engine, "precision": entry.precision, "files": list(map(str, entry.files))}
    return _measured({**loaded, "threads": entry.threads, "isa": entry.isa, "shape": entry.shape})


def _measured(what: dict[str, object]) -> float | None:
    from ovsw.bench.peers.base import child

    said, _ = child([sys.executable, __file__, json.dumps(what)])
    last = said.split()[-1:]
    return int(last[0]) / 1e6 if last and last[0].isdigit() else None


def main() -> None:
    """The child process: loads and runs the network in its argument and prints its peak memory."""
    del sys.path[0]  # this folder, whose modules are named like others
    import numpy as np

    what = json.loads(sys.argv[1])
    process: int | str = "self"
    if what:
        paths = [Path(path) for path in what["files"]]
        run: Any
        if what["engine"] == "ovsw":
            from ovsw.engine import NO_LIMIT, Engine

            run = Engine(paths[0], what["threads"], what["isa"], NO_LIMIT).run
            images = np.zeros(what["shape"], np.uint8)
        else:
            from ovsw.bench.peers import by_name

            run = by_name(f"{what['engine']}-{what['precision']}").load(paths, what["threads"])
            images = np.zeros(what["shape"], np.float32)
            if hasattr(run, "process"):  # of an engine in another python
                process = run.process.pid
        for _ in range(RUNS):
            run(images)
    print(peak(process))


def peak(process: int | str) -> int:
    """In bytes. Not from getrusage on Linux, which includes the memory that the parent had at the fork."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    most = re.search(r"^VmHWM:\s*([0-9]+) kB$", status, re.MULTILINE)
    return 1024 * int(most[1]) if most else 0


if __name__ == "__main__":
    main()
