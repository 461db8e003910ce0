"""How much memory a reader takes for a file, measured in a child process, and what it says of the file."""

from __future__ import annotations

from pathlib import Path

from support import pickles

MOST = 512  # MB that any file of at most 1 MB may take
_READERS = {
    "archive": "from ovsw.train import archive; archive.unpack(path, path.with_name('unpacked'))",
    "checkpoint": "from ovsw.nn.checkpoint import read, state_dict; state_dict(path, read(path))",
    "cifar": "from ovsw.datasets import open_split; open_split('cifar10', path.parent, 'test')",
    "fashion-mnist": "from ovsw.datasets import open_split; open_split('fashion-mnist', path.parent, 'test')",
    "flips": "from ovsw.train import flips; flips.load_run(path.parent)",
    "picture": "from ovsw.image import load_pixels; load_pixels(path, 3, 256, (224, 224))",
}
_CODE = """
import re, resource, sys
from pathlib import Path
import ovsw.datasets, ovsw.nn.checkpoint, ovsw.train.archive, ovsw.train.flips
from support.hostile import limit_memory

path = Path(sys.argv[1])
limit_memory(6 * {most})
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {reader}
    said = "read"
except (ValueError, OSError, MemoryError) as e:
    said = type(e).__name__ + ": " + str(e)[:300]
unit = 1 if sys.platform == "darwin" else 1024
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit // 1_000_000, said)
"""


def peak(reader: str, path: Path) -> tuple[int, str]:
    """The MB that reading this file takes above the imports, and "read" or the error; a crash is a failure here."""
    printed = pickles.in_child(_CODE.format(most=MOST, reader=_READERS[reader]), path)
    megabytes, _, said = printed.partition(" ")
    return int(megabytes), said


def assert_small(reader: str, path: Path) -> str:
    """Checks that a file of at most 1 MB takes little memory; returns what the reader says of it."""
    assert path.stat().st_size <= 1 << 20
    megabytes, said = peak(reader, path)
    assert megabytes < MOST, f"{reader}: {megabytes} MB, {said}"
    return said
