"""Models written and read again, computed as specified, and files that are replaced whole or not at all."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.evaluator import InexactError, evaluate
from support.models import FIRST, TINY, RandomModel, same_model, tiny_model


@pytest.mark.parametrize("seed", range(40))
def test_random_models_survive_a_round_trip(tmp_path: Path, seed: int) -> None:
    model = RandomModel(seed).model
    path = tmp_path / "model.bnn"
    size = bnn.write(model, path)
    again = bnn.read(path)
    assert size == path.stat().st_size
    assert same_model(model, again)
    assert bnn.to_bytes(again) == path.read_bytes()


def test_engine_computes_random_models_as_specified(isa: str) -> None:
    kinds: set[str] = set()
    exact = 0
    for seed in range(150):
        made = RandomModel(seed)
        image = made.image()
        try:
            expected = evaluate(made.model, image).outputs
        except InexactError:
            continue
        logits = Engine(bnn.to_bytes(made.model), isa=isa).run(image)
        assert logits.tolist() == expected.tolist(), f"seed {seed}"
        kinds.update(op.kind for op in made.model.ops)
        exact += 1
    assert exact > 120
    assert kinds == set(FIRST)


@pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 70, 127, 128, 130])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 2)])
def test_pack_bits_is_the_naive_loop(n: int, lead: tuple[int, ...]) -> None:
    rng = random.Random(n)
    count = int(np.prod(lead))
    flat = [[rng.random() < 0.5 for _ in range(n)] for _ in range(count)]
    words = [[0] * -(-n // 64) for _ in flat]
    for r, c in itertools.product(range(count), range(n)):
        words[r][c // 64] |= flat[r][c] << c % 64
    positive = np.array(flat).reshape(*lead, n)
    packed = bnn.pack_bits(positive)
    assert packed.dtype == np.dtype("<u8")
    assert packed.reshape(count, -1).tolist() == words
    np.testing.assert_array_equal(bnn.unpack_bits(packed, n), positive)


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["fsync", "replace", "chmod"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if broken == "fsync" else Path, broken, fail)
    with pytest.raises(OSError, match="No space left"):
        bnn.write(tiny_model(), path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]
    assert path.read_bytes() == b"old"


def test_a_model_that_cannot_be_serialised_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")
    model = tiny_model()
    model.metadata["object"] = object()
    with pytest.raises(TypeError):
        bnn.write(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]
    assert path.read_bytes() == b"old"


def test_writing_replaces_the_file_and_respects_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")
    before = os.umask(0o027)
    try:
        assert bnn.write(tiny_model(), path) == len(TINY)
    finally:
        os.umask(before)
    assert path.read_bytes() == TINY
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["model.bnn"]


def test_writing_to_a_folder_fails_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        bnn.write(tiny_model(), tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
