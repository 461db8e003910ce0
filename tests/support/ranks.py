"""Tasks of tests/train/test_distributed.py, as a script for torchrun: each rank saves its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ovsw.datasets import MemorySet
from ovsw.train import augment, trainer
from ovsw.train.recipe import Recipe, load_recipe, set_values

from support.oracle import CIFAR
from support.training import QUICK


def recipe(*settings: str) -> Recipe:
    found = load_recipe("table1-cresnet20")
    set_values(found, [*QUICK, *settings])
    return found


def one_step(folder: Path) -> None:
    """Gradients and weights of one step in float64, batch norm over all ranks."""
    torch.set_default_dtype(torch.float64)
    run = trainer.start(recipe("train.sync_bn=true"), folder, seed=1)
    split = trainer.open_data(run.recipe, None, "train")
    images, labels = next(trainer._train_batches(run.recipe, split, 1, 0, run.world))
    run.model.train()
    loss = torch.nn.functional.cross_entropy(run.forward(images.double()), labels)
    loss.backward()
    grads = {k: p.grad.clone() for k, p in run.model.named_parameters() if p.grad is not None}
    run.ovsw.step()
    run.optimizer.step()
    torch.save({"grads": grads, "state": run.model.state_dict()}, folder / f"{run.world.size}-{run.world.rank}.pt")


def whole_run(folder: Path) -> None:
    """Three epochs of eight steps; every rank saves what it has at the end, and what its batches were.

    It is tested on 300 images of the training set, of which rank 0 has 256 and the other one 44.
    """
    whole = trainer.open_split

    def cut(kind: str, root: Path | None, split: str, **options: Any) -> MemorySet:
        found = whole(kind, root, "train", **options)
        assert isinstance(found, MemorySet)
        n = 128 if split == "train" else 300
        return MemorySet(found.images[:n], found.labels[:n], found.names)

    trainer.open_split = cut
    run = trainer.start(recipe("train.batch=16"), folder, seed=1)
    loss, batches = trainer._loss, []

    def watched(run: trainer.TrainingRun, x: Tensor, y: Tensor, logits: Tensor) -> Tensor:
        found = loss(run, x, y, logits)
        batches.append((found.item(), int((logits.argmax(1) == y).sum()), len(y)))
        return found

    trainer._loss = watched
    trainer.train(run, None, quiet=True)
    split = cut("synthetic", None, "test")
    state = {**run.model.state_dict(), **run.ovsw.state_dict()}
    torch.save(state, folder / f"rank-{run.world.rank}.pt")
    images, labels = (part[256:] if run.world.rank else part[:256] for part in (split.images, split.labels))
    with torch.no_grad():
        logits = run.model.eval()(augment.normalise(images, *CIFAR))
    places = (logits > logits.gather(1, labels[:, None])).sum(1)
    right = [int((places < n).sum()) for n in (1, 5)]
    (folder / f"rank-{run.world.rank}.json").write_text(json.dumps({"batches": batches, "right": right}))


def wait_to_be_killed(folder: Path) -> None:
    run = trainer.start(recipe("train.epochs=1000"), folder, seed=1)
    (folder / f"alive-{run.world.rank}").touch()
    trainer.train(run, None, quiet=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"one_step": one_step, "whole_run": whole_run, "wait_to_be_killed": wait_to_be_killed}[sys.argv[1]](
        Path(sys.argv[2])
    )
