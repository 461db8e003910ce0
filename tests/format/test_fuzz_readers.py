"""A short run of the fuzzer of every reader in Python, always with the same inputs; the long one is a campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.fuzz_readers import READERS, fuzz

COUNTS = {"bnn": 800, "checkpoint": 100, "cifar": 200, "idx": 200, "mosaic": 8, "onnx": 80}


@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse_in_words(reader: str, tmp_path: Path) -> None:
    counts, _ = fuzz(reader, 1, COUNTS[reader], 300, tmp_path)
    assert counts["findings"] == 0
    assert sum(counts.values()) == COUNTS[reader]
    tried = counts["refused"] if reader == "mosaic" else min(counts["taken"], counts["refused"])  # it has a checksum
    assert tried > 0, "the damage is too small or too large to try much"
