"""`ovsw-info` of networks with every op, several outputs and maps as outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw.commands import info
from ovsw.commands.summary import layers

from support.graphs import FLOAT, INTEGER, model_of
from support.models import small_model


def model() -> bnn.Model:
    """A gate, a dilated grouped convolution, a gather; a map and a vector as outputs."""
    m = small_model("avgpool", (4, 6, 6), window=(6, 6))
    m.values[1] = bnn.Value("f32", 4, 1, 1)
    m.ops.append(bnn.Op("mul", "gate", 0, residual=1, out=m.add_value("f32", 4, 6, 6)))
    weight = m.add_tensor(np.ones((8, 3, 3, 2)))
    fields = {"window": (3, 3), "stride": (2, 2), "pad": (2, 2), "dilation": (2, 2)}
    m.ops.append(bnn.Op("conv", "wide", 2, out=m.add_value("f32", 8, 3, 3), weight=weight, **fields))  # type: ignore[arg-type]
    index = m.add_tensor(np.array([7, 0, 0, 1, 2, 2]), "i32")
    m.ops.append(bnn.Op("gather", "part", 3, out=m.add_value("f32", 2, 2, 2), weight=index))
    m.output, m.more_outputs = 4, [1]
    return m


def test_info_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.bnn"
    bnn.write(model(), path)
    assert info.main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "outputs 2x2x2, 4x1x1" in text
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.strip()}
    assert lines["gate"] == "gate mul 4x6x6, 4x1x1 4x6x6 - f32 - 0"
    assert lines["wide"] == "wide conv 4x6x6 8x3x3 3x3/2, dilation 2, 2 groups f32 32 576"
    assert lines["part"] == "part gather 8x3x3 2x2x2 - f32 - 24"
    assert info.main([str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outputs"] == [[2, 2, 2], [4, 1, 1]]
    assert found["ops"][1]["second"] == [4, 1, 1]
    assert (found["ops"][2]["groups"], found["ops"][2]["dilation"]) == (2, [2, 2])
    assert (found["bytes_binary_layers"], found["bytes_other_layers"]) == (0, 576 + 24)


@pytest.mark.parametrize("numerics", [FLOAT, INTEGER])
def test_bytes_of_binary_and_other_layers(numerics: str, tmp_path: Path) -> None:
    both = 0
    for seed in range(30):
        drawn, _ = model_of(seed, numerics)
        bnn.write(drawn, tmp_path / "m.bnn")
        found = info.describe(str(tmp_path / "m.bnn"))
        binary, other = (sum(op["bytes"] for op in found["ops"] if (op["bits"] == 1) == one) for one in (True, False))
        assert (found["bytes_binary_layers"], found["bytes_other_layers"]) == (binary, other)
        both += bool(binary and other)
    assert both


@pytest.mark.parametrize("numerics", [FLOAT, INTEGER])
def test_every_op_has_a_row(numerics: str) -> None:
    for seed in range(30):
        drawn, _ = model_of(seed, numerics)
        rows = layers(drawn)
        assert [row.op for row in rows] == [op.kind for op in drawn.ops]
        assert all((row.bits is not None) == (row.op in ("bconv", "conv", "linear")) for row in rows)
        assert all((row.second is not None) == (row.op in ("mul", "concat")) for row in rows)
