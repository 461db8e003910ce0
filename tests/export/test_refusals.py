"""Checkpoints, labels and outputs that `ovsw-export` refuses in a clear line, leaving every file as it was."""

from __future__ import annotations

import pytest
import torch

from support import oracle
from support.exporting import R20, VGG, Folder, edited, fill, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_float_network(wrapped: bool, folder: Folder) -> None:
    """torchvision's keys, written down by hand."""
    state = {"conv1.weight": torch.zeros(64, 3, 7, 7), "fc.weight": torch.zeros(7, 512), "fc.bias": torch.zeros(7)}

    def norm(name: str, channels: int) -> None:
        state.update(
            {f"{name}.{key}": torch.ones(channels) for key in ("weight", "bias", "running_mean", "running_var")}
        )
        state[f"{name}.num_batches_tracked"] = torch.tensor(1)

    norm("bn1", 64)
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name, cin = f"layer{stage}.{block}", width // 2 if stage > 1 and block == 0 else width
            state[f"{name}.conv1.weight"] = torch.zeros(width, cin, 3, 3)
            state[f"{name}.conv2.weight"] = torch.zeros(width, width, 3, 3)
            norm(f"{name}.bn1", width)
            norm(f"{name}.bn2", width)
            if cin != width:
                state[f"{name}.downsample.0.weight"] = torch.zeros(width, cin, 1, 1)
                norm(f"{name}.downsample.1", width)
    folder.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 1} if wrapped else state)
    folder.refuses("c.pth: this network is not binary, its tensors are those of the float resnet18")
    assert len(folder.err.splitlines()) == 1


def test_all_misfits_are_listed_at_once(folder: Folder) -> None:
    state = dict(state_of(R20, 10, learned=True))
    del state["layer2.1.conv2.weight"], state["bn2.running_mean"]
    state["layer1.0.bn1.weight"] = torch.ones(17)
    state["linear.bias"] = torch.zeros(11)
    state["layer1.0.conv1.scaling_factor"] = torch.ones(15)
    state["bn1.scaling_factor"] = torch.ones(16)
    state["extra.weight"] = torch.zeros(2, 3)
    folder.save(state)
    folder.refuses(
        "c.pth: does not fit cResNet20_1w1a",
        "missing: layer2.1.conv2.weight (32, 32, 3, 3)",
        "missing: bn2.running_mean (64)",
        "wrong shape: layer1.0.bn1.weight is (17), expected (16)",
        "wrong shape: linear.bias is (11), expected (10)",
        "wrong shape: layer1.0.conv1.scaling_factor is (15), expected (16)",
        "unexpected: bn1.scaling_factor (16)",
        "unexpected: extra.weight (2, 3)",
    )


def test_values_that_are_not_finite(folder: Folder) -> None:
    edits = {
        "conv1.weight": fill(float("nan"), 0, 5),
        "layer2.0.conv1.weight": fill(float("inf"), 7),
        "layer3.0.bn2.running_mean": fill(float("-inf"), 1, 2, 3),
        "linear.bias": fill(float("nan")),
    }
    folder.save(edited(state_of(R20, 10), edits))
    folder.refuses(
        "conv1: 2 of 432 values of weight",
        "layer2.0.conv1: 1 of 4608 values of weight",
        "layer3.0.bn2: 3 of 64 values of",
        "linear: 10 of 10 values of bias",
    )


def test_output_in_a_missing_folder(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output = folder.path / "nowhere" / "m.bnn"
    folder.refuses("nowhere does not exist")


def test_output_is_a_folder(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output.mkdir()
    folder.refuses("m.bnn: is a folder", options=("--force",))


def test_output_is_the_checkpoint(folder: Folder) -> None:
    folder.save(state_of(R20, 10))
    folder.output.symlink_to(folder.checkpoint)
    folder.refuses("m.bnn: is the checkpoint itself", options=("--force",))
    folder.output = folder.checkpoint
    folder.refuses("c.pth: is the checkpoint itself", options=("--force",))


@pytest.mark.parametrize(
    ("content", "named"), [(b"a\nb\nc\n", "has 3 names, the network has 10"), (b"\xff\xfe\x00", "not a text file")]
)
def test_bad_labels(content: bytes, named: str, folder: Folder) -> None:
    labels = folder.path / "labels.txt"
    labels.write_bytes(content)
    folder.save(state_of(R20, 10))
    folder.refuses("--labels", "labels.txt", named, options=("--labels", str(labels)))


@pytest.mark.parametrize("size", [8, 31, 40, 64])
def test_vggsmall_at_a_wrong_size(size: int, folder: Folder) -> None:
    folder.save(state_of(VGG, 10))
    inputs = 512 * (size // 8) ** 2
    folder.refuses(
        f"does not fit VGGSmall_1w1a at input size {size}",
        f"fc.weight is (10, 8192), expected (10, {inputs})",
        options=("--input-size", str(size)),
    )


def without(state: oracle.State, key: str) -> oracle.State:
    return {k: v for k, v in state.items() if k != key}


PLAIN, LEARNED = state_of(R20, 10), state_of(R20, 10, learned=True)
STEM = PLAIN["conv1.weight"]
NO_CLASSES = {**PLAIN, "linear.weight": torch.zeros(0, 64), "linear.bias": torch.zeros(0)}
NEGATIVE = {"bn1.running_var": fill(-1.0, 0, 1), "layer1.2.bn1.running_var": fill(-0.5, 3)}
# What is saved, options, and what is said.
REFUSED: dict[str, tuple[oracle.State, str, tuple[str, ...]]] = {
    "unknown network": (PLAIN, "--arch ResNet99", ("unknown network 'ResNet99'", *oracle.ARCHS)),
    "another network": (
        PLAIN,
        "--arch VGGSmall",
        ("does not fit VGGSmall_1w1a", "missing: conv0.weight (128, 3, 3, 3)", "unexpected: layer1.0.conv1.weight"),
    ),
    "learned scale": (
        edited(LEARNED, {"layer1.0.conv2.scaling_factor": fill(float("nan"), 4)}),
        "",
        ("layer1.0.conv2: 1 of 16 values of scale",),
    ),
    "a scale is missing": (
        without(LEARNED, "layer1.0.conv1.scaling_factor"),
        "",
        ("missing: layer1.0.conv1.scaling_factor (16)",),
    ),
    "negative variance": (
        edited(PLAIN, NEGATIVE),
        "",
        ("bn1: running_var is negative in 2 of 16", "layer1.2.bn1: running_var is negative in 1 of 16"),
    ),
    "no such labels": (PLAIN, "--labels nowhere.txt", ("--labels", "nowhere.txt")),
    "other labels": (PLAIN, "--labels imagenet", ("imagenet", "1000 names")),
    "an odd size": (PLAIN, "--input-size 33", ("does not take an input of (3, 33, 33)",)),
    "std beyond float32": (PLAIN, "--std 1e-50 1 1 --verify 1", ("--std",)),
    "mean beyond float32": (PLAIN, "--mean 1e39 0 0 --verify 1", ("--mean",)),
    "no classes": (NO_CLASSES, "--verify 1", ("c.pth", "linear.weight")),
    "complex weights": ({**PLAIN, "conv1.weight": STEM.to(torch.complex64)}, "", ("conv1.weight",)),
    "sparse weights": ({**PLAIN, "conv1.weight": STEM.to_sparse()}, "", ("c.pth", "conv1.weight")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, folder: Folder) -> None:
    state, options, words = REFUSED[name]
    folder.save(state)
    folder.refuses(*words, options=tuple(options.split()))
