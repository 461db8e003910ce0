"""The trainer, in one file: build, run epochs, evaluate, save. On a CPU or GPUs, in one process or under torchrun.

Everything random in an epoch (order, augmentation) comes from the seed and the epoch's number, and a checkpoint is
written whole or not at all at the end of each. So a run that is killed at any moment loses the epoch under way, and
`--resume` continues to the same weights, bit for bit.
"""

from __future__ import annotations

import io
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from ovsw.commands.base import UsageError
from ovsw.datasets import DataError, FolderSet, MemorySet, Split, open_split
from ovsw.export.errors import ExportError
from ovsw.labels import load_labels
from ovsw.networks import InputSpec, network
from ovsw.nn import BinaryConv2d, binary_layers, create, float_network
from ovsw.nn.checkpoint import damaged, read, read_run, state_dict
from ovsw.nn.float_resnet import FLOAT_NETWORKS
from ovsw.train import augment
from ovsw.train.deployed import Deployed, freeze
from ovsw.train.distributed import World, join_world, sync_batch_norms
from ovsw.train.method import OvSW
from ovsw.train.optim import learning_rate, make_optimizer
from ovsw.train.recipe import Recipe, TrainConfig, as_dict, input_of
from ovsw.train.views import Views, open_views
from ovsw.util.files import replace_file, write_csv

METRICS = (
    *("epoch", "lr", "loss", "train_acc1", "test_acc1", "test_acc5"),
    *("flip_rate", "silent_share", "never_flipped", "deployed", "seconds"),
)


@dataclass
class TrainingRun:
    """The parts of a run and its progress."""

    recipe: Recipe
    folder: Path
    seed: int
    device: torch.device
    model: nn.Module
    forward: Callable[[Tensor], Tensor]  # the model, wrapped if there are several processes
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ovsw: OvSW
    integer_model: Deployed | None = None  # the model as its exported file computes; for the deployed epochs
    teacher: nn.Module | None = None
    teacher_crc: int = 0
    views: Views | None = None  # with the teacher's outputs, if those are not computed anew in every step
    world: World = field(default_factory=World)
    epoch: int = 0
    best: float = 0.0
    metrics: list[dict[str, float]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of the data set that it is trained on

    @property
    def deployed(self) -> Deployed | None:
        """The model of the current epoch, if that is a deployed one."""
        return self.integer_model if self.epoch >= self.first_deployed else None

    @property
    def first_deployed(self) -> int:
        return self.recipe.train.epochs - self.recipe.train.deployed_epochs


def start(
    recipe: Recipe,
    folder: Path,
    seed: int,
    device: str = "cpu",
    amp: bool = False,
    teacher: Path | None = None,
    init: Path | None = None,
) -> TrainingRun:
    """A fresh run, ready to train or to be resumed.

    `init` is a checkpoint to start from, `teacher` the weights of the float network that the recipe distils from.
    """
    config = recipe.train
    if amp and not device.startswith("cuda"):
        raise UsageError("--amp needs a GPU: half precision on this device is far slower than float32")
    if bool(config.teacher) != (teacher is not None):
        needs = f"distils from {config.teacher}: --teacher FILE gives its weights"
        raise UsageError(f"the recipe {needs if config.teacher else 'has no teacher'}")
    if config.second_step and init is None and not (folder / "last.pth").is_file():
        raise UsageError("the recipe is the second of two steps: --init FILE gives the checkpoint of the first")
    _check_deployed(config, amp)
    input_of(recipe)
    world = join_world(device)
    if device == "cuda" and world.size > 1:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.manual_seed(seed)
    model = build_model(recipe)
    if init is not None:
        _load_weights(model, init)
    layout = torch.channels_last if config.channels_last else torch.preserve_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]
    ovsw = OvSW(  # with both parts off it only counts, so that vanilla runs report flips and silence, too
        model,
        recipe.ovsw.lam,
        recipe.ovsw.gamma if recipe.ovsw.sad else 0.0,
        recipe.ovsw.sigma,
        recipe.ovsw.momentum,
        ags=recipe.ovsw.ags,
        track_ones=recipe.ovsw.track_ones,
        layers=binary_layers(model).values(),  # a float network has none
    )
    optimizer = make_optimizer(model, config)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    forward: nn.Module = DistributedDataParallel(model) if world.size > 1 else model
    if config.compile:
        forward = torch.compile(forward)  # type: ignore[assignment]
    run = TrainingRun(recipe, folder, seed, torch.device(device), model, forward, optimizer, scaler, ovsw, world=world)
    if config.deployed_epochs:
        run.integer_model = _deployed(run)
    if teacher is not None:
        build = float_network if config.teacher in FLOAT_NETWORKS else create  # torchvision's, or one of ours
        run.teacher = build(config.teacher, recipe.network.num_classes)
        _load_weights(run.teacher, teacher)
        run.teacher.to(device, memory_format=layout).eval()  # type: ignore[call-overload]
        run.teacher_crc = zlib.crc32(teacher.read_bytes())
    return run


def _check_deployed(config: TrainConfig, amp: bool) -> None:
    """Refuses settings that exclude deployed epochs, before the first epoch."""
    if not 0 <= config.deployed_epochs <= config.epochs:
        raise UsageError(
            f"train.deployed_epochs is {config.deployed_epochs}, expected 0 to {config.epochs}, the number of epochs"
        )
    for key, known in (("weights", ("int16", "int8")), ("stem", ("int16", "int8", ""))):
        if (width := getattr(config, f"deployed_{key}")) not in known:
            raise UsageError(f"train.deployed_{key} is '{width}'; known are int16, int8")
    other = {
        "train.compile": config.compile,
        "train.sync_bn": config.sync_bn,
        "--amp": amp,
        "torchrun": int(os.environ.get("WORLD_SIZE", "1")) > 1,
    }
    for what, used in other.items():
        if used and config.deployed_epochs:
            raise UsageError(f"train.deployed_epochs is {config.deployed_epochs}, which cannot be combined with {what}")


def _deployed(run: TrainingRun) -> Deployed:
    name, config = run.recipe.network.name, run.recipe.train
    try:
        stem = config.deployed_stem or None
        return Deployed(run.model, input_of(run.recipe), weights=config.deployed_weights, stem=stem)
    except ExportError as e:
        raise ValueError(f"train.deployed_epochs: {name} has no integer form: {_one_line(e)}") from None


def _one_line(e: ExportError) -> str:
    more = f" (and {len(e.problems) - 1} more)" if len(e.problems) > 1 else ""
    return (e.problems[0] if e.problems else str(e)) + more


def _load_weights(model: nn.Module, path: Path) -> None:
    """Fills a model from a checkpoint or a bare state dict; everything but the weights is ignored."""
    state = state_dict(path, read(path))
    own = model.state_dict()
    optional = (".scaling_factor", ".num_batches_tracked")
    expected = {key: value for key, value in own.items() if key in state or not key.endswith(optional)}
    wrong = [key for key, value in expected.items() if getattr(state.get(key), "shape", None) != value.shape]
    if wrong:
        raise ValueError(
            f"{path}: does not fit the network: {len(wrong)} of {len(expected)} tensors are missing or have another "
            f"shape, the first is {wrong[0]} {tuple(expected[wrong[0]].shape)}"
        )
    model.load_state_dict({**own, **{key: state[key] for key in expected}})
    for name, layer in binary_layers(model).items():
        if isinstance(layer, BinaryConv2d) and layer.learned_scale and f"{name}.scaling_factor" not in state:
            layer.learn_scale()


def build_model(recipe: Recipe) -> nn.Module:
    """The recipe's network with fresh weights."""
    net = recipe.network
    model = create(net.name, net.num_classes, learned_scale=net.learned_scale and net.binary_weights)
    for layer in binary_layers(model).values():
        if net.init == "uniform":
            nn.init.kaiming_uniform_(layer.weight, mode="fan_in", nonlinearity="relu")
            layer.avoid_zeros()
        elif net.init != "normal":
            raise ValueError(f"network.init is '{net.init}'; known are normal, uniform")
        with torch.no_grad():
            layer.weight.mul_(net.init_scale)
        layer.zero = net.sign_zero
        if isinstance(layer, BinaryConv2d):
            layer.tau = net.recu_tau or None
            layer.binary_weights = net.binary_weights
        elif net.recu_tau or not net.binary_weights:
            raise ValueError(f"network.recu_tau and network.binary_weights=false cannot be used with {net.name}")
    if recipe.train.sync_bn:
        sync_batch_norms(model)
    return model


def train(run: TrainingRun, data: Path | None, quiet: bool = False, teacher_cache: Path | None = None) -> None:
    """Runs the epochs that are left; `initial.pth` keeps the weights from before the first.

    `teacher_cache` is a folder for the teacher's outputs on `train.teacher_views`; by default the run's own.
    Ctrl-C loses the epoch under way like any other end; what was finished is saved already.
    """
    recipe = run.recipe
    train_set, test_set = (open_data(recipe, data, split) for split in ("train", "test"))
    run.labels = train_set.names
    if recipe.train.teacher_views and run.epoch < recipe.train.epochs:
        run.views = _views(run, train_set, teacher_cache or run.folder, quiet or run.world.rank > 0)
    board = SummaryWriter(str(run.folder), purge_step=run.epoch + 1) if run.world.rank == 0 else None
    if run.epoch == 0:
        _save(run, "initial.pth", {})
    else:
        _write_metrics(run)  # killed between the two, a run has its last row in the checkpoint alone
    while run.epoch < recipe.train.epochs:
        began = time.perf_counter()
        row = {"epoch": run.epoch + 1, "lr": learning_rate(recipe.train, run.epoch)}
        signs = [torch.sign(layer.signed()) for layer in binary_layers(run.model).values()]
        row.update(_train_epoch(run, train_set, quiet))
        after = [torch.sign(layer.signed()) for layer in binary_layers(run.model).values()]
        flips = sum(int((a != b).sum()) for a, b in zip(signs, after))
        row["flip_rate"] = flips / max(1, sum(a.numel() for a in after))
        row["silent_share"] = run.ovsw.silent_share()
        row["never_flipped"] = run.ovsw.never_flipped()
        run.model.eval()
        row.update(evaluate(run.deployed or run.model, recipe, test_set, run.device, run.world))
        row["deployed"] = int(run.deployed is not None)
        row["seconds"] = time.perf_counter() - began
        # The best accuracy starts again with the first deployed epoch, as earlier ones measured another function.
        best = row["test_acc1"] > run.best or not run.metrics or row["deployed"] != run.metrics[-1].get("deployed", 0)
        run.best = row["test_acc1"] if best else run.best
        run.epoch += 1
        run.metrics.append(row)
        accuracies = {"curr_acc1": row["test_acc1"], "curr_acc5": row["test_acc5"]}
        if best:
            _save(run, "model_best.pth", accuracies)
        _save(run, "last.pth", accuracies)
        _write_metrics(run)
        if board is not None:
            for name in METRICS[1:]:
                board.add_scalar(name, row[name], run.epoch)
            board.flush()
        run.world.wait()
        if not quiet and run.world.rank == 0:
            tqdm.write(
                f"epoch {run.epoch}/{recipe.train.epochs}: loss {row['loss']:.4f}, train {row['train_acc1']:.2f} %, "
                f"test {row['test_acc1']:.2f} %, flips {100 * row['flip_rate']:.2f} %, "
                f"silent {100 * row['silent_share']:.1f} %, never flipped {100 * row['never_flipped']:.1f} %, "
                f"{row['seconds']:.0f} s"
            )


def _views(run: TrainingRun, split: Split, folder: Path, quiet: bool) -> Views:
    """The views that the recipe asks for, with the teacher's outputs on them."""
    if not isinstance(split, MemorySet) or run.teacher is None:
        raise UsageError(f"train.teacher_views needs a data set that is held in memory, not '{run.recipe.data.kind}'")
    config, classes = run.recipe.train, run.recipe.network.num_classes
    about, shape = f"{config.teacher} {run.teacher_crc:08x}", (config.teacher_views, classes)
    return open_views(folder, run.teacher, about, split.images, shape, input_of(run.recipe), quiet)


def open_data(recipe: Recipe, data: Path | None, split: str) -> Split:
    """One part of the recipe's data set, whose classes must be those of its network."""
    classes, size = recipe.network.num_classes, network(recipe.network.name).input.height
    held_out = recipe.data.held_out
    part = "train" if held_out else split
    images = open_split(recipe.data.kind, data, part, num_classes=classes, size=size, broken=recipe.data.broken)
    if held_out:
        images = _without(images, held_out, split)
    if len(images.names) != classes:
        raise DataError(f"{data}: has {len(images.names)} classes, network.num_classes is {classes}")
    if recipe.data.limit < 0:
        raise DataError(f"data.limit is {recipe.data.limit}, expected a number of images, or 0 for all")
    return images.first(recipe.data.limit) if 0 < recipe.data.limit < len(images) else images


def _without(train: Split, held_out: int, split: str) -> Split:
    """The training images that are used, or those that are held out; always the same ones."""
    if not 0 < held_out < len(train):
        raise DataError(
            f"data.held_out is {held_out}, expected 1 to {len(train) - 1}: there are {len(train)} training images"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    chosen = torch.sort(order[held_out:] if split == "train" else order[:held_out]).values
    return train.chosen(chosen)


def _measure_norms(run: TrainingRun, split: Split) -> None:
    """Gives batch norms the statistics of a whole epoch, before they are frozen: running averages are those of the last
    few batches, and of weights that have changed since.
    """
    norms = [module for module in run.model.modules() if isinstance(module, BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        for images, *_ in _train_batches(run.recipe, split, run.seed, run.epoch, run.world, run.views):
            run.model(images.to(run.device))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def _train_epoch(run: TrainingRun, split: Split, quiet: bool) -> dict[str, float]:
    recipe = run.recipe
    layers = list(binary_layers(run.model).values())
    run.model.train()
    if run.deployed is not None:
        if run.epoch == run.first_deployed:
            _measure_norms(run, split)
        freeze(run.model)
        for layer in layers if not recipe.train.deployed_signs else ():
            layer.weight.requires_grad_(False)
    for layer in layers:
        layer.begin_epoch()
    forward = run.deployed or run.forward
    where = f"in epoch {run.epoch + 1}; the last checkpoint is intact"
    loss_sum, correct, seen = 0.0, 0.0, 0.0
    batches = _train_batches(recipe, split, run.seed, run.epoch, run.world, run.views)
    count = -(-len(split) // recipe.train.batch)
    title = f"epoch {run.epoch + 1}/{recipe.train.epochs}"
    with _Bar(batches, total=count, leave=False, disable=quiet or run.world.rank > 0, desc=title) as bar:
        for step, (images, labels, *known) in enumerate(bar):
            lr = learning_rate(recipe.train, run.epoch + step / count)
            for group in run.optimizer.param_groups:
                group["lr"] = lr
            over = run.epoch + (step / count if recipe.train.schedule == "smooth" else 0)
            for layer in layers:
                layer.set_progress(over / recipe.train.epochs)
            x, y = images.to(run.device), labels.to(run.device)
            if recipe.train.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            try:
                with torch.autocast(run.device.type, enabled=run.scaler.is_enabled()):
                    logits = forward(x)
                    loss = _loss(run, x, y, logits, *known)
            except ExportError as e:  # weights can grow without bound if the rate is too high for frozen batch norms
                raise RuntimeError(f"the weights no longer have an integer form {where}: {_one_line(e)}") from None
            run.optimizer.zero_grad()
            run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            run.scaler.unscale_(run.optimizer)
            run.ovsw.step()
            run.scaler.step(run.optimizer)
            run.scaler.update()
            value = loss.item()
            if not np.isfinite(value):
                raise RuntimeError(f"the loss is {value} {where}")
            loss_sum += value * len(y)
            correct += int((logits.argmax(1) == y).sum())
            seen += len(y)
            if not bar.disable:
                _show(bar, run, loss_sum / seen, 100 * correct / seen, lr)
    loss_sum, correct, seen = run.world.total(loss_sum, correct, seen)
    return {"loss": loss_sum / seen, "train_acc1": 100 * correct / seen}


def _loss(run: TrainingRun, x: Tensor, y: Tensor, logits: Tensor, known: Tensor | None = None) -> Tensor:
    """Cross-entropy with the labels, with a teacher's outputs, or with both. `known` are outputs from the cache."""
    config = run.recipe.train
    hard = F.cross_entropy(logits, y, label_smoothing=config.label_smoothing)
    if run.teacher is None:
        return hard
    with torch.no_grad():
        outputs = run.teacher(x) if known is None else known.to(x.device)
        targets = torch.softmax(outputs / config.temperature, dim=1)
    soft = F.cross_entropy(logits / config.temperature, targets) * config.temperature
    return config.distil * soft + (1 - config.distil) * hard if config.distil < 1 else soft


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no monitor thread, which would warn where threads are limited


def _show(bar: _Bar, run: TrainingRun, loss: float, accuracy: float, lr: float) -> None:
    """The bar's line. Flips are those of the last step, `left` is for the whole run."""
    done, total = bar.n + 1, bar.total or 1
    epochs_left = run.recipe.train.epochs - run.epoch - done / total
    seconds_left = bar.format_dict["elapsed"] / done * total * epochs_left
    bar.set_postfix_str(
        f"loss {loss:.3f}, acc {accuracy:.1f} %, lr {lr:.4f}, flips {100 * run.ovsw.step_flip_rate():.3f} %, "
        f"silent {100 * run.ovsw.silent_share():.1f} %, left {tqdm.format_interval(seconds_left)}"
    )


def _train_batches(
    recipe: Recipe, split: Split, seed: int, epoch: int, world: World, views: Views | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """This rank's part of augmented batches, whose order depends on the seed and the epoch alone.

    Each is images and labels, and with `views` the teacher's outputs on those images.
    A set in memory is augmented as in one process and then shared out, so that the number of processes changes nothing.
    From a folder each rank decodes its own part only.
    """
    spec = input_of(recipe)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(split), generator=generator)
    batches = torch.split(order, recipe.train.batch)
    if isinstance(split, FolderSet):
        batches = tuple(world.share(batch) for batch in batches)
        generator.manual_seed((seed * 1_000_003 + epoch) * 1009 + world.rank)
    crops = (recipe.data.crop, seed * 1_000_003 + epoch)
    first = torch.randint(2, (len(split),), generator=torch.Generator().manual_seed(seed))  # mirrored in epoch 0
    settings = (recipe.data.augment, spec.mean, spec.std, generator, spec.height, recipe.data.crop)
    for indices, images in _images(split, batches, recipe.data.workers, spec, crops):
        y, mirrored = split.labels[indices], (first[indices] + epoch) % 2
        if views is None:
            batch: tuple[Tensor, ...] = (augment.apply(images, *settings, mirrored=mirrored == 1), y)
        else:
            chosen = views.draw(indices, mirrored if recipe.data.augment == "cifar-alternate" else None, generator)
            x = augment.normalise(views.take(images, indices, chosen), spec.mean, spec.std)
            batch = (x, y, views.outputs_on(indices, chosen))
        if isinstance(split, MemorySet):
            batch = tuple(world.share(part) for part in batch)
        if len(batch[1]):
            yield batch


_Crops = Optional[tuple[Sequence[float], int]]  # shares of the area of random crops, and a seed


def _images(
    split: Split, batches: Sequence[Tensor], workers: int, spec: InputSpec, crops: _Crops
) -> Iterator[tuple[Tensor, Tensor]]:
    """(indices, uint8 images) of each batch; a folder is decoded by worker processes."""
    if isinstance(split, MemorySet):
        for indices in batches:
            yield indices, split.images[indices]
        return
    decoded = _Decoded(split, spec, crops)
    loader = DataLoader(decoded, batch_sampler=[b.tolist() for b in batches], num_workers=workers)
    try:
        yield from zip(batches, loader)
    except DataError as e:  # a worker's error carries its whole traceback in the message
        raise DataError(str(e).strip().splitlines()[-1].rpartition("DataError: ")[2]) from None


class _Decoded(Dataset[Tensor]):
    """An image folder for a DataLoader: random resized crops, or the centre."""

    def __init__(self, split: FolderSet, spec: InputSpec, crops: _Crops) -> None:
        self.split, self.spec, self.crops = split, spec, crops

    def __getitem__(self, index: int) -> Tensor:
        scale, seed = self.crops or (None, 0)
        return self.split.load(index, self.spec.height, self.spec.resize, scale, np.random.default_rng([seed, index]))


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor], recipe: Recipe, split: Split, device: torch.device, world: World
) -> dict[str, float]:
    """Top-1 and top-5 accuracy in percent; each rank takes every n-th batch."""
    spec = input_of(recipe)
    top1 = top5 = 0.0
    batches = torch.split(torch.arange(len(split)), 256)[world.rank :: world.size]
    for indices, images in _images(split, batches, recipe.data.workers, spec, None):
        logits = forward(augment.normalise(images, spec.mean, spec.std).to(device)).cpu()
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == split.labels[indices][:, None]
        top1 += int(ranked[:, 0].sum())
        top5 += int(ranked.any(dim=1).sum())
    top1, top5 = world.total(top1, top5)
    return {"test_acc1": 100 * top1 / len(split), "test_acc5": 100 * top5 / len(split)}


def _save(run: TrainingRun, name: str, accuracies: dict[str, float]) -> None:
    """A checkpoint in the reference implementation's form, with what a resume needs under `ovsw`. Rank 0 writes."""
    rng = run.world.gather(_rng_state(run.device))
    if run.world.rank > 0:
        return
    state = run.model.state_dict()
    watched = run.ovsw.state_dict()
    if run.recipe.ovsw.sad:  # where the reference has these buffers too
        state.update(watched)
    checkpoint = {
        "epoch": run.epoch,
        "arch": run.recipe.network.name,
        "state_dict": state,
        "best_acc1": run.best,
        **accuracies,
        "optimizer": run.optimizer.state_dict(),
        "ovsw": {
            "recipe": as_dict(run.recipe),
            "seed": run.seed,
            "scaler": run.scaler.state_dict(),
            "rng": rng,
            "teacher": run.teacher_crc,
            "metrics": run.metrics,
            "deployed": _widths(run),
            "input": _input(run),
            "state": {} if run.recipe.ovsw.sad else watched,
            "flip_history": run.ovsw.flip_history(),
        },
    }
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    replace_file(run.folder / name, buffer.getvalue())


def _widths(run: TrainingRun) -> dict[str, str]:
    """The widths with which a file of these weights computes what the last epoch did; empty if it was not deployed.

    `ovsw-export` uses them as defaults.
    """
    if not run.metrics or not run.metrics[-1].get("deployed"):
        return {}
    config = run.recipe.train
    return {"weights": config.deployed_weights, "stem": config.deployed_stem or config.deployed_weights}


def _input(run: TrainingRun) -> dict[str, Any]:
    """How images are prepared, and the names of the classes; `ovsw-export` writes them to the file."""
    spec = input_of(run.recipe)
    return {"mean": list(spec.mean), "std": list(spec.std), "labels": _known_labels(run.labels)}


def _known_labels(names: list[str]) -> str | list[str]:
    """The names of classes, or the name of the built-in list; ImageNet's folders are named by WordNet ids."""
    if len(names) == 1000 and (names[0], names[-1]) == ("n01440764", "n15075141"):
        return "imagenet"
    return "cifar10" if names == load_labels("cifar10", 10) else names


def _rng_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def resume(run: TrainingRun) -> None:
    """Continues a run from its `last.pth`. Recipe and seed must be the same."""
    path = run.folder / "last.pth"
    if not path.is_file():
        return  # killed in the first epoch: a fresh run is the same
    checkpoint = read_run(path)
    with damaged(path):
        _restore(run, path, checkpoint)


def _restore(run: TrainingRun, path: Path, checkpoint: dict[str, Any]) -> None:
    saved, now, usual = checkpoint["ovsw"]["recipe"], as_dict(run.recipe), as_dict(Recipe())
    changed = [
        f"{section}.{key} {was!r} -> {value!r}"
        for section in ("network", "data", "train", "ovsw")
        for key, value in now[section].items()
        if (was := saved[section].get(key, usual[section][key])) != value and (section, key) != ("data", "workers")
    ]
    if changed or checkpoint["ovsw"]["seed"] != run.seed:
        raise ValueError(f"{path}: is of another recipe or seed: {', '.join(changed) or checkpoint['ovsw']['seed']}")
    if checkpoint["ovsw"].get("teacher", 0) != run.teacher_crc:
        raise ValueError(f"{path}: was trained with another teacher")
    state = {**checkpoint["state_dict"], **checkpoint["ovsw"]["state"]}
    run.ovsw.load_state_dict(state)
    run.ovsw.load_flip_history(checkpoint["ovsw"]["flip_history"])
    watched = run.ovsw.state_dict()
    run.model.load_state_dict({k: v for k, v in state.items() if k not in watched})
    run.optimizer.load_state_dict(checkpoint["optimizer"])
    run.scaler.load_state_dict(checkpoint["ovsw"]["scaler"])
    states = checkpoint["ovsw"]["rng"]
    if run.world.rank < len(states):  # networks draw nothing; another number of processes changes no result by it
        (torch.cuda if run.device.type == "cuda" else torch).set_rng_state(states[run.world.rank].cpu())
    run.epoch, run.best, run.metrics = checkpoint["epoch"], checkpoint["best_acc1"], checkpoint["ovsw"]["metrics"]


def _write_metrics(run: TrainingRun) -> None:
    if run.world.rank > 0:
        return
    write_csv(run.folder / "metrics.csv", METRICS, ([row.get(name, "") for name in METRICS] for row in run.metrics))
