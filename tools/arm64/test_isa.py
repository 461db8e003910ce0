"""Run by test.py under each emulated CPU: the tables that this CPU must choose, refuse and really execute; the zoo.

Forcing a table that the CPU lacks would end in SIGILL, so that the other tests pass under cortex-a72 also proves that
arm_neon has no ARMv8.2 instruction on their way.
"""

from __future__ import annotations

import os
import platform

import numpy as np
import pytest

from ovsw import Engine, cpu, zoo
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet

CPU = os.environ["QEMU_CPU"]
DOT = {"cortex-a53": False, "cortex-a72": False, "cortex-a76": True, "max": True}[CPU]


@pytest.fixture(scope="module")
def small() -> bytes:
    return bnn.to_bytes(random_resnet("resnet18", num_classes=10, size=32))


def test_this_is_arm() -> None:
    assert platform.machine() == "aarch64"


def test_tables() -> None:
    assert cpu.isas() == {"arm_neon_dot": DOT, "arm_neon": True, "portable": True}


def test_the_best_table_is_chosen(small: bytes) -> None:
    assert Engine(small).isa == ("arm_neon_dot" if DOT else "arm_neon")


def test_a_table_that_the_cpu_lacks_is_refused(small: bytes) -> None:
    if DOT:
        assert Engine(small, isa="arm_neon_dot").isa == "arm_neon_dot"
    else:
        with pytest.raises(RuntimeError, match=r"arm_neon_dot.*not supported by this CPU"):
            Engine(small, isa="arm_neon_dot")


def test_every_table_answers_alike(small: bytes) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    answers = {name: Engine(small, isa=name).run(pixels).tobytes() for name in cpu.supported_isas()}
    assert len(answers) == 2 + DOT
    assert len(set(answers.values())) == 1


@pytest.mark.parametrize("isa", cpu.supported_isas())
@pytest.mark.parametrize("name", zoo.names())
def test_trained_networks_answer_as_on_x86(name: str, isa: str) -> None:
    """The index has the SHA-256 of the logits of 110 images, made where the network was added."""
    assert zoo.check(name, isa=isa) == isa
