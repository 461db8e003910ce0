"""Random checkpoints through `ovsw-export` and the engine, against the oracle; values at the edge."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine

from support import oracle
from support.exporting import R20, VGG, Folder, assert_runs, case_of, edited, fill, judged, norms, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(
    ("arch", "size", "options"),
    [
        (R20, 32, {}),
        (R20, 32, {"learned": True}),
        (R20, 32, {"learned": True, "negative_alpha": True}),
        (VGG, 32, {}),
        (VGG, 32, {"learned": True, "negative_alpha": True}),
        ("cResNet18_1w1a", 32, {"learned": True, "negative_alpha": True}),
        ("ResNet18_1w1a", 64, {}),
        ("ResNet34_1w1a", 32, {"learned": True, "negative_alpha": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_network(arch: str, size: int, options: dict[str, bool], folder: Folder) -> None:
    case = case_of(arch, 10, size=size, **options)
    assert_runs(folder.export(case.state, "--input-size", str(size), "--verify", "1"), case)
    folder.checkpoint.unlink()
    assert folder.out.startswith(f"{arch}: 10 classes, input {size}x{size}, ")
    assert ("learned scales" in folder.out) == options.get("learned", False)


@pytest.mark.parametrize("classes", [1, 2, 7, 37, 100, 1000])
def test_class_counts(classes: int, folder: Folder) -> None:
    case = case_of(R20, classes)
    assert_runs(folder.export(case.state, "--verify", "1"), case)
    engine = Engine(folder.output)
    assert engine.num_classes == classes
    assert engine.metadata["num_classes"] == classes
    assert engine.labels == []


def test_imagenet_labels_come_with_1000_classes(folder: Folder) -> None:
    options = ("--input-size", "32", "--verify", "1")
    engine = folder.engine(state_of("ResNet18_1w1a", 1000, size=32), *options)
    assert len(engine.labels) == 1000
    assert folder.engine(state_of("ResNet18_1w1a", 10, size=64), *options, "--force").labels == []


def test_vggsmall_shows_its_input_size(folder: Folder) -> None:
    case = case_of(VGG, 10, size=16)
    assert_runs(folder.export(case.state), case)
    assert Engine(folder.output).input_shape == (3, 16, 16)


# Values at the edge.


@pytest.mark.parametrize("arch", [R20, VGG])
@pytest.mark.parametrize("value", [0.0, 1e-8, -1e-8])
def test_tiny_norm_weights(arch: str, value: float, folder: Folder) -> None:
    state = state_of(arch, 10, learned=True, negative_alpha=True)
    state = edited(state, {f"{n}.weight": fill(value, 0, 3, 5) for n in norms(state)})
    assert_runs(folder.export(state, "--verify", "1"), judged(arch, state))
    assert folder.err == ""


@pytest.mark.parametrize(("arch", "size"), [(R20, 32), (VGG, 32), ("ResNet18_1w1a", 32)])
def test_norms_as_initialised(arch: str, size: int, folder: Folder) -> None:
    """All norms at 1e-8 with bias 0, as the ImageNet networks start: the whole stream is of that size."""
    case = case_of(arch, 10, norm_weight=1e-8, size=size)
    assert_runs(folder.export(case.state, "--input-size", str(size), "--verify", "1"), case)


@pytest.mark.parametrize("norm", ["layer1.1.bn1", "layer2.0.bn1", "layer3.2.bn2"])
def test_one_norm_as_initialised(norm: str, folder: Folder) -> None:
    """At layer2.0 half of the shortcut's channels are zero padding: the sign hangs on the tiny term alone."""
    state = edited(state_of(R20, 10), {f"{norm}.weight": fill(1e-8), f"{norm}.bias": fill(0.0)})
    assert_runs(folder.export(state), judged(R20, state))


@pytest.mark.parametrize("arch", [R20, VGG])
def test_tiny_variance(arch: str, folder: Folder) -> None:
    state = state_of(arch, 10)
    state = edited(state, {f"{n}.running_var": fill(1e-12, 1, 4) for n in norms(state) if n != "bn5"})
    assert_runs(folder.export(state, "--verify", "1"), judged(arch, state))


def test_dead_channels_count_as_plus_one(folder: Folder) -> None:
    names = ("bn0", "bn3")
    state = edited(
        state_of(VGG, 10), {f"{n}.{part}": fill(0.0, 2, 9, 10) for n in names for part in ("weight", "bias")}
    )
    assert_runs(folder.export(state, "--verify", "1"), judged(VGG, state))
    warnings = folder.err.splitlines()
    assert len(warnings) == 2
    for name, warning in zip(names, warnings):
        assert warning.startswith(f"ovsw-export: warning: {name}: 3 channels are always 0")


def test_zero_weights(folder: Folder) -> None:
    edits = {
        "layer1.0.conv1.weight": fill(0.0, *range(0, 1200, 7)),
        "layer3.2.conv2.weight": fill(-0.0, *range(100, 30000, 11)),
        "conv1.weight": fill(0.0, 3),  # real-valued: nothing special
    }
    state = edited(state_of(R20, 10), edits)
    counts = [int((state[k] == 0).sum()) for k in edits]
    folder.save(state)
    folder.refuses(
        "2 problem(s)",
        f"layer1.0.conv1: {counts[0]} of 2304 binary weights are exactly 0",
        f"layer3.2.conv2: {counts[1]} of 36864 binary weights are exactly 0",
        "--zero-weights plus",
    )
    case = judged(R20, state)
    assert_runs(folder.export(state, "--zero-weights", "plus"), case)
    minus = edited(state, {k: lambda w: w.masked_fill_(w == 0, -1e-9) for k in edits})
    assert np.abs(oracle.logits(R20, minus, case.x) - case.expected).max() > 0.1  # so it can be told


def test_zero_weight_in_a_real_layer(folder: Folder) -> None:
    state = edited(state_of(R20, 10), {"conv1.weight": fill(0.0, 3, 5), "linear.weight": fill(0.0, 0)})
    assert_runs(folder.export(state), judged(R20, state))
