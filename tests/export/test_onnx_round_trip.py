"""Checkpoints written as ONNX: ONNX Runtime computes their logits, and read back they give the same `.bnn` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ovsw import format as bnn
from ovsw.export import onnx_out
from ovsw.export.errors import NotIntegerError
from ovsw.export.frontend import checkpoint, onnx_file
from ovsw.export.passes import build
from ovsw.export.source import Source
from ovsw.export.verify import Candidate

from support.exporting import judged, state_of

NETWORKS = [
    ("cResNet20_1w1a", None, {}),
    ("cResNet20_1w1a", None, {"learned": True}),
    ("VGGSmall_1w1a", None, {}),
    ("ResNet18_1w1a", 32, {}),
    ("ReActResNet18_1w1a", 32, {}),
]


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda p: f"{p[0]}{'-learned' if p[2] else ''}")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Source, Path]:
    arch, size, options = request.param
    folder = tmp_path_factory.mktemp("onnx")
    state = state_of(arch, **options)
    torch.save(dict(state), folder / "c.pth")
    source = checkpoint.source(folder / "c.pth", arch, size)
    (folder / "m.onnx").write_bytes(onnx_out.to_bytes(source.graph, source.input, source.name))
    return (arch, state, size), source, folder / "m.onnx"


def test_onnx_runtime_gives_the_float_files_logits(written: tuple[Any, Source, Path]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    (arch, state, size), source, path = written
    case = judged(arch, state, size)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"input": case.x})
    engine = Candidate(build(source.graph, source.input.mean, source.input.std, {})).engine
    np.testing.assert_allclose(got, case.expected, 1e-4, 1e-4)
    np.testing.assert_allclose(got, engine.run(case.x), 1e-4, 1e-4)


def files(source: Source) -> dict[str, bytes]:
    """The float file and the integer one, if there is one."""
    spec, result = source.input, {}
    for numerics in ("float", "integer"):
        try:
            result[numerics] = bnn.to_bytes(build(source.graph, spec.mean, spec.std, {}, numerics)[0])
        except NotIntegerError as e:
            result[numerics] = str(e).encode()
    return result


def test_checkpoint_to_onnx_to_bnn_is_checkpoint_to_bnn(written: tuple[Any, Source, Path]) -> None:
    _, source, path = written
    back = onnx_file.source(path)
    assert (back.name, back.input) == (source.name, source.input)
    assert files(back) == files(source)
