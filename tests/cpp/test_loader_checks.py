"""A few mutants of the campaign that takes the loader's checks out: the attack files notice them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from campaigns.loader_checks import SOURCES, Bench, build, mutants
from support import ROOT

ONCE_UNNOTICED = ("has_checksum(crc, data, size)", "word >> (channels % 64) == 0")


def test_every_source_has_checks() -> None:
    counts = {path: len(list(mutants(path, (ROOT / path).read_text()))) for path in SOURCES}
    assert min(counts.values()) >= 6
    assert sum(counts.values()) > 150


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
def test_a_missing_check_is_noticed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, build(tmp_path))
    path = "csrc/format/file.cc"
    chosen = [m for m in mutants(path, (ROOT / path).read_text()) if m.shown in ONCE_UNNOTICED]
    assert len(chosen) == len(ONCE_UNNOTICED)
    assert [bench.noticed(m) for m in chosen] == ["wrong"] * len(chosen)
