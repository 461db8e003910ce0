"""`ovsw-bench training`: a training step with the native kernels and with PyTorch alone, and the cost of OvSW and of
the input pipeline. All of them run in interleaved rounds, each on its own copy of the network.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ovsw import cpu
from ovsw.bench.measure import Spread, interleaved, spread
from ovsw.bench.subcommand import add_options, print_rows
from ovsw.commands.base import command, whole


@dataclass
class StepTime:
    """One part of training; `share` in percent of the plain step's time."""

    network: str
    call: str
    ms: Spread
    share: Spread
    batch: int


def options(p: argparse.ArgumentParser) -> None:
    add_options(p, ("cResNet20", "cResNet18"), rounds=10)
    p.add_argument("--batch", metavar="N", type=whole(1), default=256, help="images per step (default: %(default)s)")
    p.add_argument("--threads", metavar="N", type=whole(1), default=2, help="threads of torch (default: %(default)s)")
    p.add_argument("--learned-scale", action="store_true", help="train the scales as parameters, as in XNOR-Net++")
    p.add_argument("--channels-last", action="store_true", help="also time a step with channels innermost")
    p.add_argument("--compile", action="store_true", help="also time a step through torch.compile")


@command(
    "ovsw-bench training",
    "Time a training step with and without the native kernels, with and without OvSW, and the input pipeline.",
    options,
)
def main(args: argparse.Namespace) -> int:
    cpu.let_idle_threads_sleep()
    try:
        import torch

        from ovsw.nn import native
    except ModuleNotFoundError:
        raise RuntimeError("torch is needed to train: pip install 'ovsw[train]'") from None
    native.keep_memory()
    torch.set_num_threads(args.threads)
    rows = []
    for name in args.networks:
        times = interleaved(_calls(name, args.batch, args.learned_scale, args.channels_last, args.compile), args.rounds)
        for call, t in times.items():
            rows.append(StepTime(name, call, spread(t), spread(100 * t / times["step"]), args.batch))
    cells = [
        (r.network, r.call, f"{r.ms.median:.1f}", r.ms.range(1), f"{1000 * r.batch / r.ms.median:.0f}")
        + (f"{r.share.median:.2f} %", r.share.range())
        for r in rows
    ]
    note = f"batch {args.batch}, {args.threads} thread(s), {args.rounds} interleaved rounds, kernels {native.kernels()}"
    head = ("network", "what", "median ms", "p10 .. p90", "images/s", "share", "p10 .. p90")
    return print_rows(args.json, rows, f"{note}; share: of the plain step", head, cells, right=(2, 4, 5))


def _calls(
    name: str, batch: int, learned_scale: bool, channels_last: bool, compiled: bool
) -> dict[str, Callable[[], object]]:
    import torch
    from torch.nn import functional as F

    from ovsw.networks import network
    from ovsw.nn import create, native
    from ovsw.train import OvSW, augment

    spec = network(name)
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (4 * batch, *spec.input.shape), generator=generator).byte()
    y = torch.randint(0, spec.num_classes, (batch,), generator=generator)

    def batch_of_images() -> torch.Tensor:
        chosen = torch.randperm(len(stored), generator=generator)[:batch]
        return augment.apply(
            stored[chosen], spec.dataset, spec.input.mean, spec.input.std, generator, spec.input.height
        )

    x = batch_of_images()
    torch.manual_seed(0)
    model = create(name, learned_scale=learned_scale).train()

    def step_of(
        model: torch.nn.Module,
        method: bool = False,
        layout: torch.memory_format = torch.contiguous_format,
        through: Callable[..., Any] = lambda model: model,
        isa: str | None = native.kernels(),
    ) -> Callable[[], object]:
        model.to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
        ovsw = OvSW(model) if method else None
        forward, images = through(model), x.contiguous(memory_format=layout)

        def step() -> None:
            optimizer.zero_grad()
            with native.using(isa):
                F.cross_entropy(forward(images), y).backward()  # type: ignore[no-untyped-call]
            if ovsw is not None:
                ovsw.step()
            optimizer.step()

        return step

    calls = {"step": step_of(model), "step with OvSW": step_of(copy.deepcopy(model), method=True)}
    calls["step, torch alone"] = step_of(copy.deepcopy(model), isa=None)

    def evaluation(model: torch.nn.Module, isa: str | None) -> Callable[[], object]:
        def evaluate() -> None:
            with torch.no_grad(), native.using(isa):
                model(x)

        return evaluate

    for what, isa in {"evaluation": native.kernels(), "evaluation, torch alone": None}.items():
        calls[what] = evaluation(copy.deepcopy(model).eval(), isa)
    trained = copy.deepcopy(model)
    F.cross_entropy(trained(x), y).backward()  # type: ignore[no-untyped-call]
    calls["OvSW.step() alone"] = OvSW(trained).step
    calls["input pipeline"] = batch_of_images
    if channels_last:
        calls["step, channels last"] = step_of(copy.deepcopy(model), layout=torch.channels_last)
    if compiled:
        calls["step, torch.compile"] = step_of(copy.deepcopy(model), through=torch.compile)
    return calls
