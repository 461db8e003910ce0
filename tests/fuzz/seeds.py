"""Writes the corpus that fuzzing starts from: `python tests/fuzz/seeds.py`, with tests/ in PYTHONPATH.

Random models of `support.graphs`, the fewest small ones that have every feature of the format between them, and the
golden file; and metadata of every kind. Files named after a finding are put beside them by hand and are not touched.
"""

from __future__ import annotations

import json
from pathlib import Path

from ovsw import format as bnn

from support.graphs import FLOAT, INTEGER, features, model_of
from support.models import TINY

CORPUS = Path(__file__).parent / "corpus"
SEEDS = 600
LARGEST = 16384

METADATA = [
    {},
    {"labels": []},
    {"labels": ["no", "sí"], "num_classes": 2, "arch": "tiny", "producer": "ovsw"},
    {"labels": "cifar10", "preprocess": {"resize": 40, "crop": 32}},
    {"labels": "imagenet"},
    {"preprocess": {"resize": 65536}},
    {"preprocess": {"resize": 31.0}, "more": [None, True, False, -0.5e-3, [[], {}], '\U0001f600\n"\\']},
    {"labels": [str(i) for i in range(10)]},
]


def cover() -> dict[str, bytes]:
    """By name: for each numerics, greedily, the model that adds the most features for its size."""
    chosen = {"tiny": TINY}
    for numerics in (FLOAT, INTEGER):
        drawn = []
        for seed in range(SEEDS):
            model, _ = model_of(seed, numerics)
            data = bnn.to_bytes(model)
            if len(data) <= LARGEST:
                drawn.append((features(model), f"{numerics}-{seed}", data))
        missing = set.union(*(found for found, _, _ in drawn))
        while missing:
            found, name, data = max(drawn, key=lambda d: len(d[0] & missing) / (2000 + len(d[2])))
            missing -= found
            chosen[name] = data
    return chosen


def main() -> None:
    (CORPUS / "bnn").mkdir(parents=True, exist_ok=True)
    (CORPUS / "json").mkdir(exist_ok=True)
    for name, data in cover().items():
        (CORPUS / "bnn" / f"{name}.bnn").write_bytes(data)
    for i, metadata in enumerate(METADATA):
        (CORPUS / "json" / f"{i}.json").write_text(json.dumps(metadata, ensure_ascii=i % 2 == 0), encoding="utf-8")


if __name__ == "__main__":
    main()
