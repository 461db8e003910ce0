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
        times = interleaved(_calls(name, args), args.rounds)
        for call, t in times.items():
            rows.append(StepTime(name, call, spread(t), spread(100 * t / times["step"]), args.batch))
    cells = [
        (r.network, r.call, *r.ms.cells(1), f"{1000 * r.batch / r.ms.median:.0f}", *r.share.cells(unit=" %"))
        for r in rows
    ]
    note = f"batch {args.batch}, {args.threads} thread(s), {args.rounds} interleaved rounds, kernels {native.kernels()}"
    head = ("network", "what", "median ms", "p10 .. p90", "images/s", "share", "p10 .. p90")
    return print_rows(args.json, rows, f"{note}; share: of the plain step", head, cells, right=(2, 4, 5))


def _calls(name: str, args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """The parts of training; whatever changes a network has its own copy."""
    import torch
    from torch.nn import functional as F

    from ovsw.networks import network
    from ovsw.nn import create, native
    from ovsw.train import OvSW, augment

    spec, batch = network(name), args.batch
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
    model = create(name, learned_scale=args.learned_scale).train()

    def step_of(
        method: bool = False,
        layout: torch.memory_format = torch.contiguous_format,
        through: Callable[..., Any] = lambda trained: trained,
        isa: str | None = native.kernels(),
    ) -> Callable[[], object]:
        trained = copy.deepcopy(model).to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(trained.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
        ovsw = OvSW(trained) if method else None
        forward, images = through(trained), x.contiguous(memory_format=layout)

        def step() -> None:
            optimizer.zero_grad()
            with native.using(isa):
                F.cross_entropy(forward(images), y).backward()  # type: ignore[no-untyped-call]
            if ovsw is not None:
                ovsw.step()
            optimizer.step()

        return step

    evaluated, with_gradients = copy.deepcopy(model).eval(), copy.deepcopy(model)
    F.cross_entropy(with_gradients(x), y).backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def evaluate(isa: str | None = native.kernels()) -> None:
        with native.using(isa):
            evaluated(x)

    calls: dict[str, Callable[[], object]] = {
        "step": step_of(),
        "step with OvSW": step_of(method=True),
        "step, torch alone": step_of(isa=None),
        "evaluation": evaluate,
        "evaluation, torch alone": lambda: evaluate(None),
        "OvSW.step() alone": OvSW(with_gradients).step,
        "input pipeline": batch_of_images,
    }
    if args.channels_last:
        calls["step, channels last"] = step_of(layout=torch.channels_last)
    if args.compile:
        calls["step, torch.compile"] = step_of(through=torch.compile)
    return calls
