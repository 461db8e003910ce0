"""`Engine`: what it takes, what it refuses, and that threads change nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw import Engine, _core, _testing, cpu
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet

from support import TABLES


@pytest.fixture(scope="module")
def small() -> bytes:
    """A ResNet18 of 32x32 input and 10 classes: all ops of the large one, quick."""
    return bnn.to_bytes(random_resnet("resnet18", num_classes=10, size=32))


@pytest.fixture(scope="module")
def engine(small: bytes) -> Engine:
    return Engine(small)


def pixels(n: int = 1, size: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), np.uint8)


def normalised(x: np.ndarray) -> np.ndarray:
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return ((x.astype(np.float32) / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)


def test_properties(engine: Engine) -> None:
    assert engine.input_size == 32
    assert engine.input_shape == (3, 32, 32)
    assert engine.num_classes == 10
    assert engine.threads == 1
    assert engine.labels == []
    assert engine.isa == TABLES[0]
    assert "resnet18" in repr(engine)


def test_pixels_and_values_agree(engine: Engine) -> None:
    x = pixels(3)
    np.testing.assert_array_equal(engine.run(x), engine.run(normalised(x)))


def test_batches_are_their_images(engine: Engine) -> None:
    x = pixels(4)
    batch = engine.run(x)
    assert batch.shape == (4, 10)
    assert batch.dtype == np.float32
    for i in range(4):
        np.testing.assert_array_equal(engine.run(x[i]), batch[i])
    np.testing.assert_array_equal(engine.run(list(x)), batch)


def test_paths_and_pil_images(small: bytes, tmp_path: Path) -> None:
    """Resized and cropped as the file says; here it says nothing, so 32x32 images are taken as they are."""
    model = bnn.from_bytes(small)
    del model.metadata["preprocess"]
    engine = Engine(bnn.to_bytes(model))
    x = pixels(2)
    images = [Image.fromarray(image) for image in x]
    images[0].save(tmp_path / "image.png")
    expected = engine.run(x)
    np.testing.assert_array_equal(engine.run(images), expected)
    np.testing.assert_array_equal(engine.run(images[1]), expected[1])
    for path in (tmp_path / "image.png", str(tmp_path / "image.png")):
        np.testing.assert_array_equal(engine.run(path), expected[0])


def test_strided_and_foreign_arrays(engine: Engine) -> None:
    """Views are copied, tensors are taken through __array__."""
    x = pixels(2)
    np.testing.assert_array_equal(engine.run(x[:, ::-1].copy()), engine.run(x[:, ::-1]))
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(engine.run(torch.from_numpy(normalised(x))), engine.run(x))


@pytest.mark.parametrize("numerics", ["float", "integer"])
def test_values_at_any_address(numerics: str) -> None:
    """Whether that is a mistake in C++, `make check-sanitizers` says."""
    engine = Engine(bnn.to_bytes(random_resnet("cresnet20", numerics=numerics)))
    values = normalised(pixels(2))
    moved = np.frombuffer(b"x" + values.tobytes(), np.float32, offset=1).reshape(values.shape)
    assert not moved.flags.aligned
    np.testing.assert_array_equal(engine.run(moved), engine.run(values))


def test_threads_and_tables_change_nothing(small: bytes) -> None:
    x = pixels(2)
    expected = Engine(small).run(x)
    for isa in TABLES:
        for threads in (1, 2, 3, 7):
            engine = Engine(small, threads=threads, isa=isa)
            assert (engine.isa, engine.threads) == (isa, threads)
            np.testing.assert_array_equal(engine.run(x), expected)


def test_one_engine_in_several_threads(small: bytes) -> None:
    engine = Engine(small, threads=2)
    x = pixels(8)
    expected = engine.run(x)
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not np.array_equal(engine.run(x[i]), expected[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_gil_is_released() -> None:
    """Python code in another thread advances while one long call computes."""
    engine = Engine(bnn.to_bytes(random_resnet("resnet18", num_classes=10, size=128)))
    x = pixels(40, 128)
    ticks = most = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    for _ in range(100):  # once is enough, unless the machine has no time for the other thread
        before = ticks
        engine.run(x)
        most = max(most, ticks - before)
        if most > 10:
            break
    done.set()
    ticker.join()
    assert most > 10


def test_classify(small: bytes) -> None:
    model = bnn.from_bytes(small)
    model.metadata["labels"] = [f"kind {i}" for i in range(10)]
    engine = Engine(bnn.to_bytes(model))
    x = pixels(2)
    logits = engine.run(x).astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    top = engine.classify(x[0], k=3)
    assert [label for label, _ in top] == [f"kind {i}" for i in np.argsort(-logits[0])[:3]]
    np.testing.assert_allclose([p for _, p in top], -np.sort(-probabilities[0])[:3], rtol=1e-6)
    assert engine.classify(x, k=3)[0] == top
    assert len(engine.classify(x[0], k=50)) == 10
    assert Engine(small).classify(x[0], k=1)[0][0] == f"class {logits[0].argmax()}"


def test_profile(engine: Engine) -> None:
    profile = engine.profile(pixels()[0], repeat=3)
    assert [row.name for row in profile.rows[:3]] == ["input", "conv1", "maxpool"]
    assert len(profile.rows) == 1 + len(bnn.from_bytes(bnn.to_bytes(random_resnet("resnet18", 0, 10, 32))).ops)
    assert profile.rows[1].macs == 16 * 16 * 64 * 49 * 3
    text = str(profile)
    assert "layer4.1.conv2" in text
    assert "GMAC/s" in text


def test_profile_by_hand(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of each step over the rounds, and the median of the rounds' sums; the first round warms up."""
    n = len(engine.steps)
    seconds = np.outer([90.0, 1.0, 2.0, 4.0], np.arange(1, n + 1)) * 1e-6
    seconds[:, 0] = [90e-3, 9e-3, 1e-3, 2e-3]
    monkeypatch.setattr(Engine, "time_steps", lambda self, image, repeat: seconds[:repeat])
    profile = engine.profile(pixels()[0], repeat=3)
    assert [row.ms for row in profile.rows] == pytest.approx([2.0, *(2e-3 * i for i in range(2, n + 1))])
    rest = sum(range(2, n + 1)) * 1e-3
    assert profile.total_ms == pytest.approx(np.median([9 + rest, 1 + 2 * rest, 2 + 4 * rest]))
    conv = profile.rows[1]
    assert conv.gmacs == pytest.approx(16 * 16 * 64 * 49 * 3 / 4e-6 / 1e9)
    shown = [line.split() for line in str(profile).splitlines() if line.startswith("conv1")]
    assert shown[0][-3:] == ["0.004", f"{100 * 0.004 / profile.total_ms:.1f}", f"{conv.gmacs:.1f}"]


def test_marks(engine: Engine, small: bytes) -> None:
    """Before the input is read, after that, and after each step."""
    calls: list[None] = []
    mark = ctypes.CFUNCTYPE(None)(lambda: calls.append(None))
    address = ctypes.cast(mark, ctypes.c_void_p).value
    assert address is not None
    _testing.Model(small, engine.isa).run(pixels(), address)
    assert len(calls) == 1 + len(engine.steps)


class BytesPath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"model.bnn"


class Elsewhere:
    """Like a tensor that numpy cannot reach."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("it is on another machine\nand more")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.zeros((32, 32, 3), np.float64), "float64"),
        (np.zeros((32, 32, 3), np.int64), "int64"),
        (np.zeros((3, 32, 32), np.uint8), "(3, 32, 32)"),
        (np.zeros((32, 32, 3), np.float32), "(32, 32, 3)"),
        (np.zeros((32, 31, 3), np.uint8), "(32, 31, 3)"),
        (np.zeros((32, 32), np.uint8), "(32, 32)"),
        (np.zeros((32, 32, 4), np.uint8), "(32, 32, 4)"),
        (np.zeros((1, 1, 3, 32, 32), np.float32), "(1, 1, 3, 32, 32)"),
        (np.zeros((0, 3, 32, 32), np.float32), "(0, 3, 32, 32)"),
        (np.full((3, 32, 32), np.nan, np.float32), "3072 values"),
        (np.full((3, 32, 32), np.inf, np.float32), "NaN or infinite"),
        (np.array(["cat"]), "dtype"),
        (3, "int"),
        (None, "NoneType"),
        ([], "empty"),
        ([[np.zeros((32, 32, 3), np.uint8)]], "it cannot hold lists"),
        (Image.new("RGB", (5, 0)), "the image of 5x0 has no pixels"),
        (Elsewhere(), "cannot take a Elsewhere as an image: it is on another machine"),
        ([np.zeros((1, 32, 32, 3), np.uint8)], "batches"),
        ([np.zeros((32, 32, 3), np.uint8), np.zeros((3, 32, 32), np.float32)], "mix"),
    ],
)
def test_refused_images(engine: Engine, bad: object, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        engine.run(bad)  # type: ignore[arg-type]
    assert words in str(refusal.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite(engine: Engine, value: float) -> None:
    """The last of all, in the second of two images."""
    x = np.zeros((2, 3, 32, 32), np.float32)
    x[1, 2, 31, 31] = value
    with pytest.raises(ValueError, match="the image has 1 values that are NaN or infinite"):
        engine.run(x)


def test_ctrl_c_ends_a_long_call(engine: Engine) -> None:
    """Between two images. All times are those of the CPU."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    began = time.process_time()
    expected = engine.run(pixels(50))
    n = round(50 * 3 / (time.process_time() - began))
    x, before = np.repeat(pixels(1), n, axis=0), signal.signal(signal.SIGPROF, interrupt)
    began = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.1)
        with pytest.raises(KeyboardInterrupt):
            engine.run(x)
        assert time.process_time() - began < 1.5  # of 3 seconds
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    np.testing.assert_array_equal(engine.run(pixels(50)), expected)


def unnormalised(numerics: str) -> bytes:
    """A network that was exported without mean and std."""
    model = random_resnet("cresnet20", numerics=numerics)
    for index, value in ((model.mean, 0), (model.std, 1)):
        model.tensors[index].array[:] = value
    return bnn.to_bytes(model)


@pytest.mark.parametrize(("numerics", "warned"), [("integer", True), ("float", False)])
def test_values_that_pixels_cannot_be(numerics: str, warned: bool) -> None:
    """A float file that normalises nothing may take anything; an integer file would clamp most of these values."""
    engine = Engine(unnormalised(numerics))
    x = np.random.default_rng(0).normal(size=(3, 32, 32)).astype(np.float32)
    engine.run(np.abs(x).clip(0, 1))
    words = r"the model: 6\d % of an image's values are outside -0.01 to 1.01, to which they are clamped. Pass"
    with pytest.warns(UserWarning, match=words) if warned else nullcontext():
        engine.run(x)
    engine.run([x, x])  # no second time


def test_floats_of_0_to_255(small: bytes) -> None:
    engine = Engine(small)
    with pytest.warns(UserWarning, match=r"9\d % of an image's values are outside -2.13 to 2.65. Pass"):
        engine.classify(pixels()[0].transpose(2, 0, 1).astype(np.float32))


def test_models_come_from_files_only() -> None:
    """`__new__` alone would make one of memory that nobody has written."""
    with pytest.raises(TypeError, match=r"_core\.load makes models"):
        _core.Model.__new__(_core.Model)
    with pytest.raises(TypeError, match=r"_core\.load makes models"):
        _core.Model()
    with pytest.raises(TypeError, match="not safe"):
        object.__new__(_core.Model)


def test_refused_options(small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (0, -1, 1000, 2**70, True, 1.5, "2"):
        with pytest.raises(ValueError, match="threads"):
            Engine(small, threads=threads)  # type: ignore[arg-type]
    for model in (None, 3, BytesPath()):
        with pytest.raises(ValueError, match=r"expected the path of a .bnn file or its bytes"):
            Engine(model)  # type: ignore[arg-type]
    for k in ("3", 1.5, True):
        with pytest.raises(ValueError, match=r"k is .*, expected a whole number"):
            Engine(small).classify(np.zeros((32, 32, 3), np.uint8), k=k)  # type: ignore[arg-type]
    for repeat in (0, 2**70, "3"):
        with pytest.raises(ValueError, match=r"repeat is .*, expected"):
            Engine(small).profile(np.zeros((32, 32, 3), np.uint8), repeat=repeat)  # type: ignore[arg-type]
    for isa in (3, "\udcff"):
        with pytest.raises(ValueError, match=r"isa is .*, expected the name of a kernel table"):
            Engine(small, isa=isa)  # type: ignore[arg-type]
    known = "arm_neon, arm_neon_dot, portable, x86_avx2, x86_avx512"
    with pytest.raises(ValueError, match=f"unknown instruction set 'abacus'; known: {known}"):
        Engine(small, isa="abacus")
    unsupported = [name for name, supported in cpu.isas().items() if not supported]
    for name in unsupported:
        with pytest.raises(RuntimeError, match="not supported by this CPU"):
            Engine(small, isa=name)
    monkeypatch.setenv("OVSW_ISA", "portable")
    assert Engine(small).isa == "portable"
    monkeypatch.setenv("OVSW_ISA", "abacus")
    with pytest.raises(ValueError, match="abacus"):
        Engine(small)


def test_metadata_is_optional(small: bytes) -> None:
    model = bnn.from_bytes(small)
    model.metadata = {}
    assert Engine(bnn.to_bytes(model)).run(pixels()[0]).shape == (10,)
