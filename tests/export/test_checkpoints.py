"""The same weights in every wrapping give the same file; what is no checkpoint is refused and never executed."""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ovsw.export.cli import main as export_main

from support import DATA, oracle
from support.exporting import R20, Folder, assert_runs, judged, state_of
from support.pickles import Bomb

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def trainer(state: oracle.State, **more: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "arch": "whatever",
        "state_dict": OrderedDict(state),
        "best_acc1": 87.5,
        "curr_acc1": "Not evaluated",
        **more,
    }


def renamed(state: oracle.State, prefix: str) -> oracle.State:
    return {prefix + key: value for key, value in state.items()}


def with_optimizer(state: oracle.State) -> dict[str, Any]:
    parameters = [nn.Parameter(v.clone()) for k, v in state.items() if k.endswith((".weight", ".bias"))]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


WRAPPINGS: dict[str, Callable[[oracle.State], Any]] = {
    "trainer": trainer,
    "model_state_dict": lambda s: {"model_state_dict": s, "epoch": 1},
    "model": lambda s: {"model": s},
    "module.": lambda s: trainer(renamed(s, "module.")),
    "_orig_mod.": lambda s: renamed(s, "_orig_mod."),
    "_orig_mod.module.": lambda s: renamed(s, "_orig_mod.module."),
    "module._orig_mod.": lambda s: renamed(s, "module._orig_mod."),
    "optimizer": lambda s: trainer(s, optimizer=with_optimizer(s)),
    "no counters": lambda s: {k: v for k, v in s.items() if not k.endswith("num_batches_tracked")},
    "buffers": lambda s: {
        **s,
        **{k.replace("weight", "weight_prev"): v * -1 for k, v in s.items() if ".conv" in k and k.endswith("weight")},
        **{k.replace("weight", "tracker"): v * 0 for k, v in s.items() if ".conv" in k and k.endswith("weight")},
    },
    "numpy scalars": lambda s: trainer(
        s, best=np.float64(1.5), n=np.int64(3), f=np.float32(2.5), i=np.int32(-1), pair=(np.float64(1), [np.int64(2)])
    ),
    "namespace": lambda s: trainer(s, args=argparse.Namespace(lr=0.1, arch="x", gpu=None, sizes=[1, 2])),
    "parameters": lambda s: {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in s.items()},
    "float64": lambda s: {k: v.double() if v.is_floating_point() else v for k, v in s.items()},
    "another order": lambda s: dict(reversed(list(s.items()))),
    "not contiguous": lambda s: {k: v.mT.contiguous().mT if v.ndim > 1 else v for k, v in s.items()},
    "scales as 4d": lambda s: {k: v.view(-1, 1, 1, 1) if k.endswith("scaling_factor") else v for k, v in s.items()},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of the same weights without any wrapping."""
    folder = tmp_path_factory.mktemp("plain")
    torch.save(state_of(R20, 10, learned=True), folder / "c.pth")
    arguments = [str(folder / "c.pth"), "-o", str(folder / "m.bnn"), "--numerics", "float", "--verify", "1"]
    assert export_main(arguments) == 0
    return (folder / "m.bnn").read_bytes()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappings(wrapping: str, folder: Folder, plain: bytes) -> None:
    state = state_of(R20, 10, learned=True)
    assert folder.export(WRAPPINGS[wrapping](state), "--verify", "1").read_bytes() == plain


def test_derived_and_learned_scales_make_different_files(folder: Folder, plain: bytes) -> None:
    """Or the test above would prove little."""
    state = state_of(R20, 10, learned=True)
    derived = {k: v for k, v in state.items() if not k.endswith("scaling_factor")}
    assert folder.export(derived, "--verify", "1").read_bytes() != plain


def test_old_file_layout(folder: Folder) -> None:
    state = state_of(R20, 10)
    plain = folder.export(state, "--verify", "1").read_bytes()
    folder.save(trainer(state), _use_new_zipfile_serialization=False)
    assert folder.run("--verify", "1", "--force") == 0
    assert folder.output.read_bytes() == plain


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, folder: Folder) -> None:
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state_of(R20, 10, learned=True).items()}
    plus = ("--zero-weights", "plus")  # float16 makes zeros of the smallest
    assert_runs(folder.export(state, *plus), judged(R20, state))


def test_numpy_scalars_of_numpy_1(folder: Folder) -> None:
    folder.save({"state_dict": state_of(R20, 10), "best": np.float64(87.5)})
    with zipfile.ZipFile(folder.checkpoint) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(folder.checkpoint, "w") as new:
        for name, part in parts.items():
            new.writestr(name, part.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert folder.run("--verify", "1") == 0, folder.err


@pytest.mark.parametrize(
    "value",
    [
        np.bool_(True),
        np.float16(1),
        np.uint8(1),
        np.str_("x"),
        np.arange(3.0),
        Path("x"),
        argparse.Namespace(o=Path("y")),
    ],
    ids=repr,
)
def test_plain_data_beside_the_weights(value: object, folder: Folder) -> None:
    folder.save({"state_dict": state_of(R20, 10), "x": value})
    assert folder.run("--verify", "1") == 0, folder.err


# What is no checkpoint.


@pytest.mark.parametrize("content", ["empty", "jpeg", "text", "zeros", "bnn", "numpy"])
def test_not_a_checkpoint(content: str, folder: Folder) -> None:
    if content == "bnn":
        data = folder.export(state_of(R20, 10), "--verify", "1").read_bytes()
        folder.output.unlink()
    else:
        jpeg = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xdb" + bytes(range(200))
        known = {"empty": b"", "jpeg": jpeg, "text": b"hello world\n", "zeros": bytes(1000)}
        data = known[content] if content in known else (DATA / "cResNet20_1w1a_sfTrue.npz").read_bytes()
    folder.checkpoint.write_bytes(data)
    folder.refuses("c.pth")
    assert "(101)" not in folder.err
    assert "weights_only" not in folder.err


def test_truncated(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    data = folder.checkpoint.read_bytes()
    for length in (1, 50, 1000, len(data) // 2, len(data) - 1000, len(data) - 1):
        folder.checkpoint.write_bytes(data[:length])
        folder.refuses("c.pth")


@pytest.mark.parametrize("kind", ["zip", "legacy", "beside the weights", "bare"])
def test_hostile_pickle_is_not_executed(kind: str, folder: Folder) -> None:
    mark = folder.path / "mark"
    bomb = Bomb(mark)
    if kind == "bare":
        folder.checkpoint.write_bytes(pickle.dumps(bomb, protocol=2))
    else:
        content = {"state_dict": state_of(R20, 10), "args": bomb} if kind == "beside the weights" else bomb
        folder.save(content, _use_new_zipfile_serialization=kind != "legacy")
    folder.refuses("c.pth", *(("posix.system", "could execute code") if kind != "bare" else ()))
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(bomb)) == 0  # the bomb works
    assert mark.exists()


def test_pickled_module(folder: Folder) -> None:
    folder.save(nn.Sequential(nn.Linear(2, 2)))
    folder.refuses("c.pth: refused", "torch.nn.modules.container.Sequential", "save a state_dict")


@pytest.mark.parametrize(
    "value", [None, 3, "text", [1, 2], torch.zeros(3), {}, {"state_dict": {}}, {"epoch": 3, "loss": 0.5}], ids=str
)
def test_no_state_dict(value: Any, folder: Folder) -> None:
    folder.save(value)
    folder.refuses("c.pth: holds no state dict")


def test_tensors_of_no_network(folder: Folder) -> None:
    folder.save({"a.weight": torch.zeros(3, 3), "b.weight": torch.zeros(5)})
    folder.refuses("c.pth: its 2 tensors fit no known network", *oracle.ARCHS)


def test_truncated_old_layout(folder: Folder) -> None:
    folder.save(state_of(R20, 10), _use_new_zipfile_serialization=False)
    data = folder.checkpoint.read_bytes()
    for length in range(0, 20000, 97):
        folder.checkpoint.write_bytes(data[:length])
        folder.refuses("c.pth")


def test_damaged_old_layout(folder: Folder) -> None:
    folder.save({"conv1.weight": torch.zeros(3)}, _use_new_zipfile_serialization=False)
    data = folder.checkpoint.read_bytes()
    at = data.rindex(b"q\x01a.") - 3  # in the list of storage keys behind the pickle
    folder.checkpoint.write_bytes(data[:at] + b"x" + data[at + 1 :])
    folder.refuses("c.pth")
