"""The campaign of numbers in short, and that it notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovsw import Engine

from campaigns import numbers
from support import agreement, module_judges, random_networks


def test_a_short_campaign_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers.main(["--share", "0.02", "--seed", "7000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == ["20", "4", "20", "40", "20", "20"]


class Wrong:
    """An engine whose last number of the last image is off by so much that a judge must see it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.engine = Engine(*args, **options)

    def run(self, images: np.ndarray) -> Any:
        found = self.engine.run(images)
        outputs = [np.array(part) for part in (found if isinstance(found, tuple) else (found,))]
        last = outputs[-1].reshape(-1)
        last[-1] += 2e-4 * max(1.0, float(np.abs(last).max()))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def test_a_wrong_number_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(random_networks, "Engine", Wrong)
    monkeypatch.setattr(agreement, "Engine", Wrong)
    monkeypatch.setattr(module_judges, "Engine", Wrong)
    assert numbers.main(["--share", "0.002", "--seed", "7000"]) == 1
    counts = [line.split(", ")[-3] for line in capsys.readouterr().out.splitlines() if "judged of" in line]
    assert len(counts) == len(numbers.KINDS)
    assert "0 wrong" not in counts
