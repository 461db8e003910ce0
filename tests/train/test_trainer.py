"""What the trainer computes, beside the same by hand: steps, losses, accuracies, the columns of metrics.csv, the best.

The network is a small one in float64; gradients come from a second writing of it, optimisers and OvSW are in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.datasets import FolderSet, MemorySet
from ovsw.nn import BinaryConv2d
from ovsw.train import trainer
from ovsw.train.distributed import World
from ovsw.train.recipe import Recipe, load_recipe, set_values

from support.training import few_images, metrics

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TRAIN, TEST, BATCH, EPOCHS, CLASSES = 40, 24, 16, 3, 10  # the last batch of an epoch has 8 images
SMALL = [
    *("data.kind=synthetic", "data.augment=none", f"train.epochs={EPOCHS}", f"train.batch={BATCH}", "train.lr=0.3"),
    *("train.warmup=1", "train.weight_decay=0.02", "ovsw.lam=0.4", "ovsw.gamma=0.03", "ovsw.sigma=0.12"),
    "ovsw.momentum=0.9",
]
Batches = list[tuple[Tensor, Tensor]]


class Small(nn.Module):
    def __init__(self, learned_scale: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1, bias=False)
        self.conv = BinaryConv2d(4, 6, 3, padding=1, learned_scale=learned_scale)
        self.norm = nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(x.double(), 8)
        return self.linear(self.norm(self.conv(self.stem(x))).abs().mean((2, 3)))


def logits_by_hand(state: dict[str, Tensor], x: Tensor, training: bool) -> Tensor:
    """The same network; in training it updates the running statistics in `state`."""
    x = x.double().unflatten(2, (4, 8)).unflatten(4, (4, 8)).mean((3, 5))
    x = torch.einsum("nchw,kc->nkhw", x, state["stem.weight"][:, :, 0, 0])
    if training:
        parts = [s / (((s - s.mean()) ** 2).sum() / (s.numel() - 1) + 1e-5).sqrt() for s in x.detach()]
        x = torch.stack([s * (p / s.detach()) for s, p in zip(x, parts)])
    window = torch.where(x.abs() < 1, 2 * x - x * x.abs(), 0.0)
    a = window - window.detach() + torch.sign(x.detach())
    w = state["conv.weight"]
    standard = w.detach().flatten(1) - w.detach().flatten(1).mean(1, keepdim=True)
    derived = (standard / ((standard**2).sum(1, keepdim=True) / 35 + 1e-5).sqrt()).abs().mean(1)
    scale = state.get("conv.scaling_factor", derived)
    x = F.conv2d(a, w - w.detach() + torch.sign(w.detach()), padding=1) * scale[:, None, None]
    if training:
        n = len(x) * 16
        mean = x.sum((0, 2, 3)) / n
        var = ((x - mean[:, None, None]) ** 2).sum((0, 2, 3)) / n
        for name, value in (("mean", mean), ("var", var * n / (n - 1))):
            state[f"norm.running_{name}"] = 0.9 * state[f"norm.running_{name}"] + 0.1 * value.detach()
    else:
        mean, var = state["norm.running_mean"], state["norm.running_var"]
    x = (x - mean[:, None, None]) / (var + 1e-5).sqrt()[:, None, None]
    x = x * state["norm.weight"][:, None, None] + state["norm.bias"][:, None, None]
    return x.abs().sum((2, 3)) / 16 @ state["linear.weight"].T + state["linear.bias"]


def loss_by_hand(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    target = torch.full_like(logits, smoothing / CLASSES)
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    return -(target * (logits - logits.exp().sum(1, keepdim=True).log())).sum() / len(labels)


class OvSWByHand:
    """AGS and SAD on one weight, as the paper has them."""

    def __init__(self, recipe: Recipe, weight: np.ndarray) -> None:
        self.config = recipe.ovsw
        self.before = weight.copy()
        self.rate = np.ones_like(weight) if recipe.ovsw.track_ones else np.zeros_like(weight)
        self.ever = np.zeros(weight.shape, bool)
        self.silent = 0.0

    def __call__(self, weight: np.ndarray, grad: np.ndarray) -> np.ndarray:
        config = self.config
        grad = grad.copy()
        for k in range(len(weight) if config.ags else 0):
            ratio = np.sqrt((grad[k] ** 2).sum()) / np.sqrt((weight[k] ** 2).sum())
            grad[k] *= config.lam / ratio if ratio < config.lam else 1.0
        flipped = np.sign(weight) != np.sign(self.before)
        self.rate = config.momentum * self.rate + (1 - config.momentum) * flipped
        self.ever |= flipped
        self.before = weight.copy()
        self.silent = float((self.rate < config.sigma).mean())
        return grad + config.gamma * weight * (self.rate < config.sigma) if config.sad else grad


def sgd_by_hand(state: dict[str, np.ndarray], w: np.ndarray, grad: np.ndarray, decay: float, lr: float) -> np.ndarray:
    state["velocity"] = 0.9 * state.get("velocity", 0.0) + grad + decay * w
    return w - lr * state["velocity"]


def adam_by_hand(state: dict[str, Any], w: np.ndarray, grad: np.ndarray, decay: float, lr: float) -> np.ndarray:
    grad = grad + decay * w
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * grad
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * grad**2
    m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
    return w - lr * m / (np.sqrt(v) + 1e-8)


def lars_by_hand(state: dict[str, np.ndarray], w: np.ndarray, grad: np.ndarray, decay: float, lr: float) -> np.ndarray:
    norm = np.sqrt((w**2).sum())
    trust = 0.05 * norm / (np.sqrt((grad**2).sum()) + decay * norm) if w.ndim > 1 else 1.0
    state["velocity"] = 0.9 * state.get("velocity", 0.0) + grad + decay * w
    return w - lr * trust * state["velocity"]


def rate_by_hand(schedule: str, epoch: int, step: int) -> float:
    """Warm-up of one epoch to 0.3, then two more; three steps each."""
    t = epoch + step / 3 if schedule == "smooth" else epoch
    if t < 1:
        return 0.3 * (t if schedule == "smooth" else 1.0)
    return 0.3 * (2 - t) / 2 if schedule == "linear" else 0.15 * (1 + math.cos(math.pi * (t - 1) / 2)) + 1e-5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trainer, "create", lambda name, classes, learned_scale: Small(learned_scale))
    with few_images(TRAIN, TEST):
        yield


def recipe_of(*settings: str) -> Recipe:
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, [*SMALL, *settings])
    return recipe


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Batches]:
    """The batches of every epoch, as the trainer takes them."""
    epochs: list[Batches] = []
    real = trainer._train_batches

    def watch(*args: Any) -> Iterator[tuple[Tensor, Tensor]]:
        epochs.append([])
        for batch in real(*args):
            epochs[-1].append(batch)
            yield batch

    monkeypatch.setattr(trainer, "_train_batches", watch)
    return epochs


def right(logits: Tensor, labels: Tensor, best: int) -> int:
    """How many labels have fewer than so many logits above their own."""
    return sum(sum(v > row[label] for v in row) < best for row, label in zip(logits.tolist(), labels.tolist()))


CASES: dict[str, tuple[list[str], Callable[..., np.ndarray]]] = {
    "ovsw": ([], sgd_by_hand),
    "learned scale": (["network.learned_scale=true"], sgd_by_hand),
    "vanilla": (["ovsw.ags=false", "ovsw.sad=false"], sgd_by_hand),
    "ags": (["ovsw.sad=false", "train.label_smoothing=0.2"], sgd_by_hand),
    "sad": (["ovsw.ags=false", "ovsw.track_ones=true", "ovsw.sigma=0.42", "network.init_scale=0.02"], sgd_by_hand),
    "smooth": (["train.schedule=smooth", "train.decay_dims=2"], sgd_by_hand),
    "linear": (["train.schedule=linear", "train.decay_dims=4", "train.label_smoothing=0.1"], sgd_by_hand),
    "adam": (["train.optimizer=adam", "train.decay_dims=2"], adam_by_hand),
    "lars": (["train.optimizer=lars", "train.lars_eta=0.05"], lars_by_hand),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_what_it_is_by_hand(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine steps: every weight and statistic, and every column of metrics.csv."""
    settings, optimise = CASES[case]
    recipe = recipe_of(*settings)
    epochs = watched(monkeypatch)
    ticks = iter([0.0, 2.0, 10.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    run = trainer.start(recipe, tmp_path, 7)
    state = {k: v.detach().clone() for k, v in run.model.state_dict().items()}
    trainer.train(run, None, quiet=True)

    names = [name for name, _ in run.model.named_parameters()]
    memory: dict[str, dict[str, Any]] = {name: {} for name in names}
    ovsw = OvSWByHand(recipe, state["conv.weight"].numpy())
    test = trainer.open_data(recipe, None, "test")
    assert isinstance(test, MemorySet)
    shown = trainer.augment.normalise(test.images, *(trainer.input_of(recipe).mean, trainer.input_of(recipe).std))
    rows = metrics(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for epoch, (batches, row) in enumerate(zip(epochs, rows)):
        start = torch.sign(state["conv.weight"])
        losses, correct = 0.0, 0
        assert [len(labels) for _, labels in batches] == [16, 16, 8]
        for step, (x, labels) in enumerate(batches):
            for name in names:
                state[name].requires_grad_()
            logits = logits_by_hand(state, x, training=True)
            loss = loss_by_hand(logits, labels, recipe.train.label_smoothing)
            grads = torch.autograd.grad(loss, [state[name] for name in names])
            losses += loss.item() * len(labels)
            correct += right(logits.detach(), labels, 1)
            for name, grad in zip(names, grads):
                weight, g = state[name].detach().numpy(), grad.numpy()
                if name == "conv.weight":
                    g = ovsw(weight, g)
                decay = 0.02 if weight.ndim >= recipe.train.decay_dims else 0.0
                rate = rate_by_hand(recipe.train.schedule, epoch, step)
                state[name] = torch.from_numpy(optimise(memory[name], weight, g, decay, rate))
        assert row["loss"] == pytest.approx(losses / 40, rel=1e-9)
        assert row["train_acc1"] == 100 * correct / 40
        assert row["lr"] == pytest.approx(rate_by_hand(recipe.train.schedule, epoch, 0), abs=1e-12)
        assert row["flip_rate"] == pytest.approx(float((torch.sign(state["conv.weight"]) != start).sum()) / 216)
        assert row["silent_share"] == pytest.approx(ovsw.silent)
        assert row["never_flipped"] == pytest.approx(1 - ovsw.ever.sum() / 216)
        logits = logits_by_hand(state, shown, training=False)
        for column, best in (("test_acc1", 1), ("test_acc5", 5)):
            assert row[column] == pytest.approx(100 * right(logits, test.labels, best) / TEST)
        assert (row["deployed"], row["seconds"]) == (0, 2 + epoch)
    found = run.model.state_dict()
    for name in (*names, "norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(found[name], state[name].detach(), atol=1e-10, rtol=1e-9)
    if case in ("ovsw", "sad"):  # what there is to see
        assert 0.1 < ovsw.ever.mean() < 0.9
        assert 0.05 < ovsw.silent < 0.95


# Images: their order, their labels, and what is done to them


def taken(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> list[list[Tensor]]:
    """The images of each epoch in the order of a run."""
    with monkeypatch.context() as patch:
        epochs = watched(patch)
        trainer.train(trainer.start(recipe_of(*settings), tmp_path, seed), None, quiet=True)
    return [[image for x, _ in batches for image in x] for batches in epochs]


def test_every_epoch_has_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image once with its own label; another order in every epoch and for every seed, the same for the same."""
    recipe = recipe_of()
    split = trainer.open_data(recipe, None, "train")
    assert isinstance(split, MemorySet)
    spec = trainer.input_of(recipe)
    prepared = (split.images.double() / 255 - torch.tensor(spec.mean)[:, None, None]) / torch.tensor(spec.std)[
        :, None, None
    ]
    orders: dict[int, list[list[int]]] = {}
    for seed in (7, 8):
        epochs = watched(monkeypatch)
        trainer.train(trainer.start(recipe, tmp_path / str(seed), seed), None, quiet=True)
        orders[seed] = []
        for batches in epochs:
            x, labels = (torch.cat(parts) for parts in zip(*batches))
            order = torch.cdist(x.double().flatten(1), prepared.flatten(1)).argmin(1)
            torch.testing.assert_close(x.double(), prepared[order], atol=1e-6, rtol=0)
            assert torch.equal(labels, split.labels[order])
            assert sorted(order.tolist()) == list(range(TRAIN))
            orders[seed].append(order.tolist())
    different = [order for found in orders.values() for order in found] + [list(range(TRAIN))]
    assert len({tuple(order) for order in different}) == 2 * EPOCHS + 1
    again = watched(monkeypatch)
    trainer.train(trainer.start(recipe, tmp_path / "again", 7), None, quiet=True)
    for batches, order in zip(again, orders[7]):
        assert torch.equal(torch.cat([labels for _, labels in batches]), split.labels[order])


def test_augmentation_is_of_the_seed_and_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two views of an image are the same in two epochs, all of them in a second run."""
    first, second, again = (
        taken(seed, tmp_path / name, monkeypatch, "data.augment=cifar") for seed, name in ((1, "a"), (2, "b"), (1, "c"))
    )
    for epoch, same in zip(first, again):
        assert all(map(torch.equal, epoch, same))
    views = [image.numpy().tobytes() for run in (first, second) for epoch in run for image in epoch]
    assert len(views) == 2 * EPOCHS * TRAIN
    assert len(set(views)) > 0.95 * len(views)


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_ranks_share_out_each_batch(kind: str, tmp_path: Path) -> None:
    """Each image's label is its number: those of two ranks are the two halves of what one process takes."""
    numbers = torch.arange(24)
    split: MemorySet | FolderSet = MemorySet(torch.zeros(24, 3, 32, 32, dtype=torch.uint8), numbers, [])
    if kind == "folder":
        Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
        split = FolderSet([tmp_path / "one.png"] * 24, numbers, [])
    recipe = recipe_of("train.batch=8", "data.workers=0")
    worlds = World(), World(0, 2), World(1, 2)
    alone, first, second = ([y.tolist() for _, y in trainer._train_batches(recipe, split, 1, 0, w)] for w in worlds)
    assert [len(batch) for batch in alone] == [8, 8, 8]
    assert sorted(number for batch in alone for number in batch) == numbers.tolist()
    assert [one[:4] for one in alone] == first
    assert [one[4:] for one in alone] == second


@pytest.mark.parametrize("setting", ["true", "false"])
def test_channels_last_is_how_weights_lie(setting: str, tmp_path: Path) -> None:
    run = trainer.start(recipe_of(f"train.channels_last={setting}"), tmp_path, 0)
    (weight,) = (p for p in run.model.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last) == (setting == "true")


# Accuracy


def numbered(count: int, labels: list[int]) -> MemorySet:
    """Images that are told apart by their first two pixels."""
    images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) % 256, torch.arange(count) // 256
    return MemorySet(images, torch.tensor(labels), [str(i) for i in range(CLASSES)])


def looked_up(table: Tensor, recipe: Recipe) -> Callable[[Tensor], Tensor]:
    """A network that knows the logits of each of these images."""
    spec = trainer.input_of(recipe)

    def forward(x: Tensor) -> Tensor:
        low, high = ((x[:, 0, 0, i].double() * spec.std[0] + spec.mean[0]) * 255 for i in (0, 1))
        return table[(low.round() + 256 * high.round()).long()]

    return forward


def ranked(places: list[int]) -> tuple[list[int], Tensor]:
    """Labels, and logits among which those of the labels have these places, 0 for the highest."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, len(places)).tolist()
    table = torch.zeros(len(places), CLASSES, dtype=torch.float64)
    for row, label, place in zip(table, labels, places):
        others = rng.permutation([p for p in range(CLASSES) if p != place]).tolist()
        others.insert(label, place)
        row.copy_(-torch.tensor(others))
    return labels, table


def test_evaluate_on_known_logits() -> None:
    """300 images in batches of 256 and 44; so many labels have the highest logit, so many the second, ..."""
    recipe = recipe_of()
    counts = [80, 50, 40, 30, 25, 20, 18, 15, 12, 10]
    places = np.random.default_rng(1).permutation([p for p, n in enumerate(counts) for _ in range(n)]).tolist()
    assert places[256:].count(0) / 44 != pytest.approx(80 / 300, abs=0.01)  # the last batch is not like the others
    labels, table = ranked(places)
    found = trainer.evaluate(looked_up(table, recipe), recipe, numbered(300, labels), torch.device("cpu"), World())
    assert found == {"test_acc1": pytest.approx(100 * 80 / 300), "test_acc5": pytest.approx(100 * 225 / 300)}


def test_evaluate_counts_a_tie_for_one_class_only() -> None:
    recipe = recipe_of()
    split = numbered(200, [i % CLASSES for i in range(200)])
    found = trainer.evaluate(looked_up(torch.zeros(200, CLASSES), recipe), recipe, split, torch.device("cpu"), World())
    assert found == {"test_acc1": 10.0, "test_acc5": 50.0}


def test_evaluate_with_few_classes() -> None:
    recipe = recipe_of()
    table = torch.tensor([[3.0, 2, 1]]).repeat(4, 1)
    split = numbered(4, [0, 0, 0, 2])
    found = trainer.evaluate(looked_up(table, recipe), recipe, split, torch.device("cpu"), World())
    assert found == {"test_acc1": 75.0, "test_acc5": 100.0}


def test_ranks_evaluate_each_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,100 images are five batches, of which one of two ranks has three: sums over ranks, not means of shares."""
    recipe = recipe_of()
    counts = [400, 200, 150, 100, 50, 60, 50, 40, 30, 20]
    labels, table = ranked([p for p, n in enumerate(counts) for _ in range(n)])
    split, network = numbered(1100, labels), looked_up(table, recipe)
    sums: list[tuple[float, ...]] = []
    monkeypatch.setattr(World, "total", lambda self, *values: sums.append(values) or list(values))
    for rank in (0, 1):
        trainer.evaluate(network, recipe, split, torch.device("cpu"), World(rank, 2))
    assert [sum(each) for each in zip(*sums)] == [400, 900]
    monkeypatch.setattr(World, "total", lambda self, *values: [sum(each) for each in zip(*sums)])
    found = trainer.evaluate(network, recipe, split, torch.device("cpu"), World(0, 2))
    assert found == {"test_acc1": pytest.approx(40000 / 1100), "test_acc5": pytest.approx(90000 / 1100)}


# The best epoch


def measured(monkeypatch: pytest.MonkeyPatch, accuracies: list[float]) -> list[dict[str, Tensor]]:
    """Gives these accuracies to the epochs that follow; a run ends when there are no more. Notes the weights."""
    left, seen = iter(accuracies), []

    def evaluate(model: nn.Module, *_: Any) -> dict[str, float]:
        accuracy = next(left, None)
        if accuracy is None:
            raise KeyboardInterrupt
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return {"test_acc1": accuracy, "test_acc5": accuracy + 1}

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    return seen


def assert_best(folder: Path, epoch: int, accuracy: float, weights: dict[str, Tensor]) -> None:
    best = torch.load(folder / "model_best.pth", weights_only=True)
    assert (best["epoch"], best["best_acc1"], best["curr_acc1"], best["curr_acc5"]) == (
        *(epoch, accuracy, accuracy),
        accuracy + 1,
    )
    assert all(torch.equal(best["state_dict"][k], v) for k, v in weights.items())


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [([50, 70, 60, 69.5], 2), ([50, 70, 70, 60], 2), ([0, 0, 0, 0], 1), ([10, 20, 30, 40], 4), ([40, 30, 20, 10], 1)],
)
@pytest.mark.parametrize("stopped", [None, 1, 2, 3])
def test_the_best_epochs_file(
    accuracies: list[float], best: int, stopped: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the first of equal ones, also if the run was stopped and resumed after so many epochs."""
    recipe = recipe_of("train.epochs=4")
    seen = measured(monkeypatch, accuracies[:stopped])
    if stopped is not None:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(trainer.start(recipe, tmp_path, 7), None, quiet=True)
        before = seen
        seen = measured(monkeypatch, accuracies[stopped:])
    run = trainer.start(recipe, tmp_path, 7)
    trainer.resume(run)
    trainer.train(run, None, quiet=True)
    weights = [*before, *seen] if stopped is not None else seen
    assert_best(tmp_path, best, accuracies[best - 1], weights[best - 1])
    last = torch.load(tmp_path / "last.pth", weights_only=True)
    assert (last["epoch"], last["best_acc1"], last["curr_acc1"]) == (4, accuracies[best - 1], accuracies[3])
    assert all(torch.equal(last["state_dict"][k], v) for k, v in weights[3].items())
    assert [(row["epoch"], row["test_acc1"], row["test_acc5"]) for row in metrics(tmp_path)] == [
        (i + 1, a, a + 1) for i, a in enumerate(accuracies)
    ]


# The line under a running epoch


def test_what_is_said_after_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.train(trainer.start(recipe_of("train.epochs=1"), tmp_path, 7), None, quiet=False)
    (row,) = metrics(tmp_path)
    share = {name: 100 * row[name] for name in ("flip_rate", "silent_share", "never_flipped")}
    assert min(share.values()) > 1  # so that another factor shows
    said = (
        f"epoch 1/1: loss {row['loss']:.4f}, train {row['train_acc1']:.2f} %, test {row['test_acc1']:.2f} %, "
        f"flips {share['flip_rate']:.2f} %, silent {share['silent_share']:.1f} %, "
        f"never flipped {share['never_flipped']:.1f} %, "
    )
    assert said in capsys.readouterr().out


def test_the_bar_says_how_long_the_run_will_take(tmp_path: Path) -> None:
    """5 of 20 steps of the second of three epochs took 10 s: 15 more of this one, 20 of the third, 2 s each."""
    run = trainer.start(recipe_of(), tmp_path, 7)
    run.epoch = 1
    run.ovsw.flips, run.ovsw.silent = torch.tensor([27.0]), torch.tensor([54.0])
    said: list[str] = []
    bar = SimpleNamespace(n=4, total=20, format_dict={"elapsed": 10.0}, set_postfix_str=said.append)
    trainer._show(bar, run, 1.2345, 67.89, 0.05)  # type: ignore[arg-type]
    assert said == ["loss 1.234, acc 67.9 %, lr 0.0500, flips 12.500 %, silent 25.0 %, left 01:10"]
