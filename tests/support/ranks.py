"""Tasks of tests/train/test_distributed.py, as a script for torchrun: each rank saves its results."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ovsw.train import trainer
from ovsw.train.recipe import Recipe, load_recipe, set_values

from support.training import QUICK, few_images


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
    """Three epochs of eight steps; every rank saves what it has at the end."""
    run = trainer.start(recipe("train.batch=16"), folder, seed=1)
    with few_images(128, 32):
        trainer.train(run, None, quiet=True)
    state = {**run.model.state_dict(), **run.ovsw.state_dict()}
    torch.save(state, folder / f"rank-{run.world.rank}.pt")


def wait_to_be_killed(folder: Path) -> None:
    run = trainer.start(recipe("train.epochs=1000"), folder, seed=1)
    (folder / f"alive-{run.world.rank}").touch()
    trainer.train(run, None, quiet=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"one_step": one_step, "whole_run": whole_run, "wait_to_be_killed": wait_to_be_killed}[sys.argv[1]](
        Path(sys.argv[2])
    )
