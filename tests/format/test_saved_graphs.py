"""Random models over every op, by their seeds: the engine, on every table, against both readings of the text.

To make one smaller, give `model_of` fewer draws.
"""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw import numerics
from ovsw.bounds import READS_I32, WRITES_F32

from support import TABLES
from support.agreement import check_float, check_integer
from support.graphs import FLOAT, INTEGER, features, model_of
from support.models import same_model
from support.second_reading import naive

SEEDS = range(115, 185)  # of each numerics; these have everything


def check_integers(seeds: range, extreme: bool = False) -> None:
    for seed in seeds:
        model, images = model_of(seed, INTEGER, extreme=extreme)
        try:
            check_integer(model, images, TABLES)
        except (AssertionError, ValueError) as e:
            raise AssertionError(f"seed {seed}: {e}") from e


def check_floats(seeds: range) -> int:
    """How many could be compared: in the others a sign hangs on a rounding error."""
    compared = 0
    for seed in seeds:
        model, images = model_of(seed, FLOAT)
        try:
            compared += check_float(model, images[0], TABLES)
        except (AssertionError, ValueError) as e:
            raise AssertionError(f"seed {seed}: {e}") from e
    return compared


@pytest.mark.parametrize("extreme", [False, True])
def test_engine_gives_the_bits_of_the_simulation(extreme: bool) -> None:
    check_integers(SEEDS, extreme)


def test_engine_gives_what_the_text_says() -> None:
    assert check_floats(range(SEEDS.start, SEEDS.stop + 30)) >= len(SEEDS)


@pytest.mark.parametrize("part", range(2))
def test_more_graphs(part: int) -> None:
    check_integers(range(1000 + 75 * part, 1075 + 75 * part))
    check_floats(range(1000 + 75 * part, 1075 + 75 * part))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_graphs(part: int) -> None:
    check_integers(range(2000 + 125 * part, 2125 + 125 * part))
    check_floats(range(2000 + 125 * part, 2125 + 125 * part))


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_simulation_is_the_naive_reading(seed: int, extreme: bool) -> None:
    model, images = model_of(seed, INTEGER, extreme=extreme)
    found = numerics.simulate_values(model, images)
    for n, image in enumerate(images):
        for i, expected in naive(model, image).items():
            written = [op.name for op in model.ops if i in (op.out, op.bits)]
            assert found[i][n].tolist() == np.array(expected).tolist(), (i, written)


@pytest.mark.parametrize("numerics_of", [FLOAT, INTEGER])
@pytest.mark.parametrize("seed", SEEDS)
def test_round_trip(seed: int, numerics_of: str) -> None:
    model, _ = model_of(seed, numerics_of)
    data = bnn.to_bytes(model)
    assert same_model(bnn.from_bytes(data), model)
    assert bnn.to_bytes(bnn.from_bytes(data)) == data


def test_the_seeds_have_everything() -> None:
    """Every op, activation and field, in both numerics where it has both."""
    seen = {of: set().union(*(features(model_of(seed, of)[0]) for seed in SEEDS)) for of in (FLOAT, INTEGER)}
    everywhere = {kind for kind in bnn.OP_KINDS if kind != "to_float"}
    everywhere |= {"act none", "act clamp", "act prelu", "act step", "several outputs"}
    everywhere |= {f"{kind} {what}" for kind in ("conv", "bconv") for what in ("groups", "depthwise", "dilation")}
    everywhere |= {"bconv pad_value", "bconv broken pad_value", "bconv two rows of scale", "bconv two slopes"}
    everywhere |= {"maxpool ceil", "maxpool dilation", "avgpool ceil", "avgpool padded", "avgpool exclude_pad"}
    everywhere |= {"bconv threshold", "conv threshold", "eltwise threshold", "gather hole"}
    everywhere |= {"bconv residual", "conv residual", "eltwise residual", "eltwise spread", "mul spread"}
    assert everywhere - seen[FLOAT] == set()
    assert everywhere - {"round"} - seen[INTEGER] == set()
    assert "act sigmoid" in seen[FLOAT]
    assert {"act table", "to_float", "bconv residual i32"} - seen[INTEGER] == set()
    wide = {f"{kind} wide" for kind in bnn.OP_KINDS if kind not in (*WRITES_F32, "round")}
    wide |= {f"{kind} reads i32" for kind in READS_I32}
    wide |= {"wide none", "wide clamp", "wide prelu", "wide step"}
    assert wide - seen[INTEGER] == set()
