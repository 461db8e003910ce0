"""Small ONNX files that would crash the exporter, or take gigabytes or hours: each in a process of its own."""

from __future__ import annotations

import re

import pytest

from attacks.onnx_files import ATTACKS, network
from support.onnx_reading import Outcome, exported

MEGABYTES, SECONDS = 512, 60  # that a file of at most 1 MB may take, above the imports
AT_THE_LIMITS = {  # valid networks, nearly as large as a small file may be
    "deep": lambda: network(64, 32, 12),
    "large": lambda: network(112, 32, 3, extra="Mul"),
    "pooled": lambda: network(112, 32, 3, extra="Pool"),
    "shuffled": lambda: network(112, 32, 3, extra="Gather"),
    "smooth": lambda: network(112, 32, 3, extra="Sigmoid"),
    "windows": lambda: network(64, 64, 4, window=5),
    "wide": lambda: network(24, 480, 2),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("attacks")
    files = {f"{name}.onnx": make for name, (make, _) in ATTACKS.items()}
    files |= {f"{name}-network.onnx": make for name, make in AT_THE_LIMITS.items()}
    for name, make in files.items():
        data = make().SerializeToString()
        assert len(data) <= 1 << 20, name
        (folder / name).write_bytes(data)
    return exported(folder / name for name in files)


def check(outcome: Outcome) -> None:
    assert outcome.grown <= MEGABYTES
    assert outcome.seconds <= SECONDS
    assert not re.search("damaged|a crash|a traceback", outcome.said)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[f"{name}.onnx"]
    check(outcome)
    assert re.search(ATTACKS[name][1], outcome.said)
    assert outcome.said.count("\n") <= 3


@pytest.mark.parametrize("name", AT_THE_LIMITS)
def test_a_network_at_the_limits(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[f"{name}-network.onnx"]
    check(outcome)
    assert outcome.said == "integer"
