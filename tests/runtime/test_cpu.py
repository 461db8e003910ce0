"""What is said of this CPU, and that nothing but two modules reaches into the compiled one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine, cpu
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.util.text import dims, table

from support import ROOT


def test_only_two_modules_use_the_compiled_one() -> None:
    users = set()
    for folder in ("python", "export", "bench", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            if re.search(r"\bovsw\._core\b|from ovsw import [^\n]*\b_core\b|engine\._core\b", path.read_text()):
                users.add(str(path.relative_to(ROOT)))
    assert users == {"python/ovsw/engine.py", "python/ovsw/cpu.py"}


def test_isas() -> None:
    assert list(cpu.isas())[-1] == "portable"
    assert cpu.isas()["portable"]
    assert cpu.supported_isas() == [name for name in cpu.isas() if cpu.isas()[name]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name : Some CPU @ 2 GHz\nprocessor : 1\n", "Some CPU @ 2 GHz"),
        ("CPU part : 0xd0b\n\nModel : Raspberry Pi 5 Model B Rev 1.0\n", "Raspberry Pi 5 Model B Rev 1.0"),
        ("CPU part : 0xd0b\n", r"\w+ part 0xd0b"),
    ],
)
def test_name(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert re.fullmatch(name, cpu.name(str(tmp_path / "cpuinfo")))
    assert cpu.name(str(tmp_path / "none"))


def test_steps_of_an_engine() -> None:
    model = random_resnet("cresnet20", numerics="integer")
    engine = Engine(bnn.to_bytes(model))
    assert [(s.name, s.op, s.window) for s in engine.steps] == [
        ("input", "input", (1, 1)),
        *((op.name, op.kind, op.window) for op in model.ops),
    ]
    assert [s.output for s in engine.steps[1:]] == [model.values[_written(op)].shape for op in model.ops]
    seconds = engine.time_steps(np.zeros((32, 32, 3), np.uint8), 3)
    assert seconds.shape == (3, len(engine.steps))
    assert (seconds >= 0.0).all()
    assert engine.memory.weights > sum(model.tensors[op.weight].array.nbytes for op in model.ops if op.weight)
    assert engine.memory.maps >= 16 * 32 * 32 * 2


def _written(op: bnn.Op) -> int:
    ref = op.out if op.out is not None else op.bits
    assert ref is not None
    return ref


def test_table_and_dims() -> None:
    shown = table(("name", "n"), [("a", "1"), ("longer", "100")], right=(1,))
    assert shown == "name      n\n------  ---\na         1\nlonger  100"
    assert dims((64, 56, 56)) == "64x56x56"
