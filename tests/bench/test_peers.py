"""Other engines as peers: those installed here agree with ONNX Runtime, the rest cost one line each."""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ovsw.bench import peers
from ovsw.bench.entries import BITS, load_peers
from ovsw.bench.peers import PEERS, REFERENCE, Peer, Runner, by_name, larq, obstacles, select
from ovsw.bench.peers.base import batches, child, error, fault, float_bytes, images, one_line
from ovsw.bench.topology import NETWORKS
from ovsw.util.progress import Progress

NET = "cresnet20"


@pytest.fixture(scope="module")
def judge() -> np.ndarray:
    why = REFERENCE.missing()
    if why:
        pytest.skip(why)
    run = REFERENCE.ready(NET)
    return np.concatenate([run(image) for image in images(NET, 4, seed=0)])


def test_registry_imports_no_engine() -> None:
    code = "import sys, ovsw.bench.peers; print(*{m.split('.')[0] for m in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    engines = {m for peer in PEERS for m in peer.modules} | {"nncf", "larq_compute_engine"}
    assert not engines & set(found.stdout.split())


def test_registry() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert all(peer.precision in BITS for peer in PEERS)
    for peer in PEERS:
        why = peer.missing()
        assert why is None or (why and "\n" not in why)
    assert select(None) == PEERS
    assert select("none") == []
    assert [p.name for p in select("ncnn-fp16,onnxruntime,ncnn-fp16")] == [
        "ncnn-fp16",
        "onnxruntime-fp32",
        "onnxruntime-int8",
    ]
    with pytest.raises(ValueError, match="unknown peer 'tensorrt'"):
        select("ncnn,tensorrt")


@functools.cache
def obstacle(peer: Peer) -> str | None:
    return obstacles([peer]).get(peer.name)


@pytest.mark.parametrize("peer", PEERS, ids=lambda p: p.name)
def test_version(peer: Peer) -> None:
    if why := peer.missing():
        pytest.skip(why)
    assert re.match(r"\d+\.\d+(\.\w+)*( without AMX)?", peer.version())


@pytest.mark.filterwarnings("ignore")  # those of the engines
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("peer", [p for p in PEERS if p.comparable], ids=lambda p: p.name)
def test_agrees(peer: Peer, batch: int, judge: np.ndarray) -> None:
    if peer.engine == "torch-compiled":
        pytest.skip("compiling takes a minute")
    why = peer.missing() or obstacle(peer)
    if why:
        assert "fails with code" not in why, why  # ours to mend; a wheel that crashes on an old CPU is not
        pytest.skip(why)
    run = peer.ready(NET, batch=batch)
    shown = batches(NET, batch, 4, seed=0)
    assert [len(images) for images in shown] == [batch] * (4 // batch)
    kept = [image.copy() for image in shown]
    found = np.concatenate([run(image) for image in shown])
    assert fault(found, judge, peer.precision) is None
    assert np.array_equal(found, np.concatenate([run(image) for image in shown]))
    assert all(map(np.array_equal, shown, kept))


def test_fault(judge: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    spread = np.linalg.norm(judge - judge.mean(axis=0)) / np.sqrt(judge.size)
    noise = rng.normal(size=judge.shape).astype(np.float32) * spread
    for precision, good in {"fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2, "int8": 0.2}.items():
        assert fault(judge + good * noise, judge, precision) is None
        assert "differs from" in str(fault(judge + noise, judge, precision))
        assert "differs from" in str(fault(judge[::-1], judge, precision))  # answers to other images
    assert "shape" in str(fault(judge[:, :5], judge, "int8"))
    assert "not finite" in str(fault(np.full_like(judge, np.nan), judge, "int8"))
    close = np.array([[1.0, 1.0 + 1e-6], [9.0, -9.0]])
    assert "top-1" in str(fault(close[:, :] + [[2e-6, 0.0], [0.0, 0.0]], close, "fp32"))
    assert error(judge, judge) == 0.0


def test_child() -> None:
    assert child([sys.executable, "-c", "print('so'); raise SystemExit(3)"]) == ("so\n", None)
    suicide = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"
    assert child([sys.executable, "-c", suicide]) == ("", "dies of SIGILL")
    assert "more than" in str(child([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.5)[1])


SITE = """
import os, signal
from ovsw.bench import peers
from ovsw.bench.peers import Peer

class Fake(Peer):
    def unable(self):
        return "not on this CPU" if self.precision == "fp16" else None

    def ready(self, network, threads=1, batch=1):
        print("noise", end="")
        if self.precision == "int8":
            os.kill(os.getpid(), signal.SIGILL)
        if self.precision == "bf16":
            raise RuntimeError("a fault\\nof two lines")
        return lambda images: images

peers.PEERS[:] = [Fake("fake", p) for p in ("fp32", "int8", "fp16", "bf16")]
"""


def test_obstacles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that dies takes none of the others with it."""
    (tmp_path / "fakes.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("ovsw.bench.peers._TRY", "import fakes; " + peers._TRY)
    found = obstacles([Peer("fake", precision) for precision in ("fp32", "int8", "fp16", "bf16")])
    assert found == {
        "fake-int8": "dies of SIGILL",
        "fake-fp16": "not on this CPU",
        "fake-bf16": "RuntimeError: a fault of two lines",
    }


class Fake(Peer):
    """Adds to the reference's logits; or breaks."""

    def __init__(self, name: str, off: float | None) -> None:
        super().__init__(name, "fp32")
        self.off = off

    def load(self, files: list[Path], threads: int) -> Runner:
        if self.off is None:
            raise KeyError("a fault\nof two lines")
        run, off = REFERENCE.load(files, threads), self.off
        return lambda image: run(image) + np.float32(off)


def test_broken_and_wrong_peers_cost_a_line(
    judge: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes: list[Peer] = [Fake("broken", None), Fake("wrong", 100.0), Fake("right", 0.0)]
    entries, skipped = load_peers(NET, fakes, REFERENCE, 1, tmp_path, images(NET, 1, seed=0)[0], Progress("ovsw-bench"))
    assert [e.engine for e in entries] == ["right"]
    assert [s.peer for s in skipped] == ["broken-fp32", "wrong-fp32"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "KeyError" in lines[0]
    assert "differs from onnxruntime-fp32" in lines[1]


INTERPRETER = """
import time
import numpy as np
time.perf_counter_ns = iter(range(0, 10**12, 3_000_000)).__next__  # 3 ms from one look to the next
print("noise that must not get into the answers")

class Interpreter:
    def __init__(self, model, num_threads, use_indirect_bgemm, use_xnnpack):
        if model != b"model":
            raise ValueError("bad model")
        self.input_shapes = [(1, 224, 224, 3)]

    def predict(self, image):
        return image.mean(axis=(0, 1, 2))[None]
"""


@pytest.fixture
def fake_larq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "larq_compute_engine" / "tflite" / "python"
    package.mkdir(parents=True)
    (package / "interpreter.py").write_text(INTERPRETER)
    model = tmp_path / "model.tflite"
    model.write_bytes(b"model")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OVSW_LARQ_PYTHON", sys.executable)
    monkeypatch.setenv("OVSW_LARQ_MODEL_RESNET18", str(model))
    monkeypatch.delenv("OVSW_LARQ_MODEL_RESNET34", raising=False)
    return model


def test_larq_child(fake_larq: Path) -> None:
    (peer,) = larq.PEERS
    assert peer.missing() is None
    run = peer.ready("resnet18")
    assert isinstance(run, larq.Child)
    for batch in batches("resnet18", 2, 4, seed=0):
        np.testing.assert_allclose(run(batch), batch.mean(axis=(2, 3)), rtol=1e-4, atol=1e-5)
        assert run.seconds == pytest.approx(2 * 0.003)  # of two images
    run.close()
    with pytest.raises(FileNotFoundError, match="OVSW_LARQ_MODEL_RESNET34"):
        peer.ready("resnet34")
    fake_larq.write_bytes(b"other")
    with pytest.raises(RuntimeError, match="ValueError: bad model"):
        peer.ready("resnet18")


def test_larq_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVSW_LARQ_PYTHON", raising=False)
    assert "OVSW_LARQ_PYTHON" in str(larq.PEERS[0].missing())
    monkeypatch.setenv("OVSW_LARQ_PYTHON", "/nowhere/python")
    assert "no such file" in str(larq.PEERS[0].missing())


def test_float_networks_have_the_input_of_the_paper() -> None:
    onnx = pytest.importorskip("onnx")

    for network, batch in (("resnet18", 1), (NET, 1), (NET, 3)):
        model = onnx.load_from_string(float_bytes(network, batch))
        (shape,) = ([d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input)
        assert shape == [batch, 3, *NETWORKS[network].input.shape[1:]]


def test_ncnn_files_of_a_network_with_pads() -> None:
    onnx = pytest.importorskip("onnx")
    from ovsw.bench.peers.ncnn_files import to_ncnn

    param, _ = to_ncnn(onnx.load_from_string(float_bytes(NET)))
    pads = [line.split()[6:] for line in param.splitlines() if line.startswith("Padding")]
    assert pads == [["0=0", "1=0", "2=0", "3=0", f"7={n}", f"8={n}"] for n in (8, 16)]


@pytest.mark.parametrize("fails", ["load_param", "load_model", None])
def test_ncnn_that_cannot_load(fails: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of its two files may be one that it does not take: it returns a code then."""

    class Net:
        opt = SimpleNamespace()

        def load_param(self, path: str) -> int:
            return -1 if fails == "load_param" else 0

        def load_model(self, path: str) -> int:
            return -1 if fails == "load_model" else 0

    monkeypatch.setitem(sys.modules, "ncnn", SimpleNamespace(Net=Net))
    files = [Path("net.param"), Path("net.bin")]
    if fails is None:
        assert callable(by_name("ncnn-fp32").load(files, 1))
    else:
        with pytest.raises(RuntimeError, match="cannot load the network"):
            by_name("ncnn-fp32").load(files, 1)


def test_errors_of_others_are_short() -> None:
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(ValueError("x" * 160)) == "ValueError: " + "x" * 160
    assert one_line(ValueError("x" * 161)) == "ValueError: " + "x" * 157 + "..."
