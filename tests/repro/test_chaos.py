"""The chaos study on untrained networks: roundings, where the stream is, and counts, against code without hooks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ovsw import Engine
from ovsw.datasets import open_split
from ovsw.export import ExportOptions, export
from ovsw.export.passes import Built, build
from ovsw.nn import create
from ovsw.repro.chaos import ROUNDINGS, Comparison, Watched, fixed_point, load_network, through
from ovsw.repro.cli import main
from ovsw.train.recipe import DataConfig, Recipe, as_dict

from support.training import tiny_cifar

pytestmark = pytest.mark.usefixtures("one_torch_thread")
MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)


def network(name: str, seed: int = 0) -> nn.Module:
    """With batch norms that keep the stream within its clamp, as trained ones do."""
    torch.manual_seed(seed)
    model = create(name, 10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.2, 0.6)
            nn.init.normal_(module.bias, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 30.0, 300.0)
    nn.init.uniform_(model.bn1.running_var, 0.2, 0.6)  # type: ignore[arg-type, union-attr]
    return model.eval()


def plain(model: nn.Module, x: Tensor, rounded: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """cResNet20 written out, with `rounded` at each place where the stream is stored; logits and signs."""
    m: dict[str, nn.Module] = dict(model.named_modules())
    place, signs = 0, []

    def store(y: Tensor) -> Tensor:
        nonlocal place
        place += 1
        return rounded(place - 1, y.clamp(-1, 1))

    x = store(m["bn1"](m["conv1"](x)))
    for stage in (1, 2, 3):
        for block in range(3):
            for i in (1, 2):
                name = f"layer{stage}.{block}"
                signs.append(x >= 0)
                y = m[f"{name}.bn{i}"](m[f"{name}.conv{i}"](x))
                x = store(y + (m[name].shortcut(x) if i == 1 else x))  # type: ignore[operator]
    return m["linear"](m["bn2"](x.mean(dim=(2, 3)))), signs


@pytest.fixture(scope="module")
def r20() -> nn.Module:
    return network("cResNet20_1w1a").double()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_roundings() -> None:
    values = np.concatenate([np.linspace(-1, 1, 4001), [1e-9, -1e-9, 0.0, 3e-5, 5.0, -5.0]])
    given = torch.from_numpy(values)
    assert (through(torch.float16)(given).numpy() == values.astype(np.float16).astype(np.float64)).all()
    assert (through(torch.float32)(given).numpy() == values.astype(np.float32).astype(np.float64)).all()
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64)  # bfloat16: the upper half, to nearest even
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    assert (through(torch.bfloat16)(given).numpy() == upper.astype(np.uint32).view(np.float32)).all()
    for q in (13, 14, 15):
        whole = np.clip(np.rint(values * 2**q), -32768, 32767)
        assert (fixed_point(q)(given).numpy() == whole / 2**q).all()
        assert (ROUNDINGS[f"Q{q} stream"](given).numpy() == whole / 2**q).all()


@pytest.mark.parametrize("kind", ["float16 stream", "Q13 stream"])
def test_rounded_where_it_is_said(kind: str, r20: nn.Module, x: Tensor) -> None:
    """Nowhere, everywhere, and at each place alone: the network without hooks gives the same logits and signs."""
    watched = Watched(r20, torch.float64, x[:1])
    assert len(watched.places) == 19
    rounding = ROUNDINGS[kind]
    cases: list[tuple[list[int], list[tuple[str, int]] | None]] = [([], []), (list(range(19)), None)]
    cases += [([i], [watched.places[i]]) for i in range(19)]
    with torch.no_grad():
        for chosen, where in cases:
            logits, signs = watched.run(x, rounding, where)
            expected, read = plain(watched.model, x, lambda i, y, chosen=chosen: rounding(y) if i in chosen else y)  # type: ignore[misc]
            assert torch.allclose(logits, expected, rtol=0, atol=1e-12)
            assert [torch.equal(a, b) for a, b in zip(signs.values(), read)] == [True] * 18


def test_counts() -> None:
    """Against a loop over images, in two batches."""
    rng = np.random.default_rng(0)
    judge = rng.normal(size=(40, 10))
    logits, labels = judge + rng.normal(scale=0.7, size=judge.shape), rng.integers(0, 10, 40)
    bits, other = rng.integers(0, 2, (2, 40, 3, 4, 4)).astype(bool)
    found = Comparison()
    for part in (slice(0, 25), slice(25, 40)):
        found.add(logits[part], judge[part], labels[part])
        found.add_signs({"a": torch.from_numpy(bits[part])}, {"a": torch.from_numpy(other[part])})
    agree = correct = different = 0
    distances, largest, spreads = [], 0.0, []
    for mine, theirs, label, a, b in zip(logits, judge, labels, bits, other):
        answers = [max(range(10), key=lambda k, row=row: row[k]) for row in (mine, theirs)]  # type: ignore[misc]
        agree += answers[0] == answers[1]
        correct += answers[0] == label
        distances.append(sum(abs(p - q) for p, q in zip(mine, theirs)) / 10)
        largest = max(largest, *(abs(p - q) for p, q in zip(mine, theirs)))
        spreads.append((sum((q - sum(theirs) / 10) ** 2 for q in theirs) / 10) ** 0.5)
        different += sum(p != q for p, q in zip(a.flatten(), b.flatten()))
    assert 0 < agree < 40
    result = found.as_dict()
    assert (result["images"], result["other_answers"]) == (40, 40 - agree)
    assert (result["agreement"], result["accuracy"]) == (agree / 40, correct / 40)
    assert result["mean_distance"] == pytest.approx(sum(distances) / 40)
    assert result["max_distance"] == pytest.approx(largest)
    assert result["relative_mean"] == pytest.approx(sum(distances) / sum(spreads))
    assert result["relative_max"] == pytest.approx(largest / (sum(spreads) / 40))
    assert result["signs"]["a"] == different / bits.size


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("cResNet18_1w1a", ("bn1", 0), ("layer4.1.act2", 0), 17),  # its stem has no clamp
        ("VGGSmall_1w1a", ("nonlinear", 0), ("nonlinear", 4), 5),  # the PReLU before its classifier is not the stream
        ("ResNet18_1w1a", ("maxpool", 0), ("layer4.1.nonlinear", 1), 17),
        ("ReActResNet18_1w1a", ("maxpool", 0), ("layer4.2.move2", 0), 16),  # shifts before a sign are thresholds
    ],
)
def test_places_of_other_networks(name: str, first: tuple[str, int], last: tuple[str, int], count: int) -> None:
    example = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    watched = Watched(create(name, 10), torch.float32, example)
    assert (watched.places[0], watched.places[-1], len(watched.places)) == (first, last, count)
    logits, signs = watched.run(example, fixed_point(13))
    assert set(signs) == set(watched.layers)
    assert watched.model.training is False
    assert torch.isfinite(logits).all()


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chaos")
    tiny_cifar(folder / "data", 12)
    for name, arch in (("r20.pth", "cResNet20_1w1a"), ("r18.pth", "cResNet18_1w1a")):
        torch.save({"arch": arch, "state_dict": network(arch).state_dict()}, folder / name)
    torch.save(network("cResNet20_1w1a").state_dict(), folder / "bare.pth")
    return folder


@pytest.mark.slow
def test_the_study(material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.bnn"
    export(material / "r20.pth", mine, ExportOptions(numerics="integer"))
    options = ["--data", str(material / "data"), "-o", str(tmp_path), "--images", "10", "--depth-images", "3"]
    assert main(["chaos", "--model", str(material / "r20.pth"), str(mine), *options, "--jobs", "1"]) == 0
    found = json.loads((tmp_path / "chaos" / "chaos.json").read_text())
    split = open_split("cifar10", material / "data", "test")
    chosen = [i * 12 // 10 for i in range(10)]
    pixels, labels = split.images[chosen], split.labels[chosen].numpy()
    x = (pixels.double() / 255 - torch.tensor(MEAN).double().view(3, 1, 1)) / torch.tensor(STD).double().view(3, 1, 1)
    with torch.no_grad():
        judge, _ = plain(network("cResNet20_1w1a").double(), x, lambda _, y: y)
    answers = Engine(mine).run(np.ascontiguousarray(pixels.numpy().transpose(0, 2, 3, 1))).argmax(axis=1)
    variants = found["variants"]
    assert variants["float64 (judge)"]["accuracy"] == (judge.argmax(1).numpy() == labels).mean()
    assert variants["mine.bnn"] == variants["integer file"]
    assert variants["mine.bnn"]["agreement"] == (answers == judge.argmax(1).numpy()).mean()
    assert variants["float file"]["max_distance"] < 1e-4
    assert variants["integer file"]["signs"]["layer1.0.conv1"] < 0.01
    assert variants["integer file, int8 stem"]["signs"] != variants["integer file"]["signs"]
    assert [len(row) for row in found["alone"].values()] == [19] * len(ROUNDINGS)
    assert {row[0]["images"] for row in found["alone"].values()} == {3}
    before = {p.name: p.read_bytes() for p in (tmp_path / "chaos").iterdir()}
    assert {"table.md", "table.csv", "summary.txt", "depth.png", "alone.png"} < set(before)
    head, first = before["table.csv"].decode().splitlines()[:2]
    assert head.split(",")[0] == "variant"
    cells = dict(zip(head.split(","), first.split(",")))
    assert cells["variant"] == next(iter(variants))
    assert float(cells["accuracy"]) == variants[cells["variant"]]["accuracy"]
    out = capsys.readouterr().out
    assert f"right on {100 * variants['float64 (judge)']['accuracy']:.2f} % of 10 images" in out
    for name in set(before) - {"chaos.json"}:
        (tmp_path / "chaos" / name).unlink()
    assert main(["chaos", "--redraw", str(tmp_path / "chaos")]) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "chaos").iterdir()} == before


def test_refusals(material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.bnn"
    export(material / "r20.pth", mine)
    cases = [
        (2, [str(mine)], "--model takes one checkpoint or run"),
        (1, [str(material / "bare.pth")], "has no key 'arch' that names its network"),
        (2, [str(material / "r20.pth"), str(material / "data")], "--model takes one checkpoint or run"),
    ]
    for code, models, words in cases:
        assert main(["chaos", "--model", *models, "--data", str(material / "data"), "-o", str(tmp_path / "o")]) == code
        err = capsys.readouterr().err
        assert words in err.splitlines()[-1]
        assert not (tmp_path / "o" / "chaos").exists()


def _without_calibration(*arguments: Any, **options: Any) -> Built:
    return build(*arguments, **{**options, "calibration": None})


def test_what_cannot_be_an_integer_file_is_said(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ovsw.repro.chaos.ROUNDINGS", {"Q13 stream": fixed_point(13)})  # the network is large
    monkeypatch.setattr("ovsw.repro.chaos.FILES", {"integer file": ExportOptions(numerics="integer")})
    monkeypatch.setattr("ovsw.export.pipeline.build", _without_calibration)
    options = ["--data", str(material / "data"), "-o", str(tmp_path), "--images", "2", "--depth-images", "1"]
    assert main(["chaos", "--model", str(material / "r18.pth"), *options, "--jobs", "1"]) == 0
    found = json.loads((tmp_path / "chaos" / "chaos.json").read_text())
    assert 'cannot be exported with numerics="integer"' in found["refused"]["integer file"]
    assert "integer file" not in found["variants"]
    assert "Not possible:" in (tmp_path / "chaos" / "table.md").read_text()


def test_a_network_is_read_as_it_was_saved(material: Path) -> None:
    model, spec, classes = load_network(material / "r20.pth")
    assert (spec.name, classes) == ("cResNet20_1w1a", 10)
    expected = network("cResNet20_1w1a").state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    assert spec.input.mean == MEAN
    recipe = as_dict(Recipe(data=DataConfig(normalise="imagenet")))
    torch.save({**torch.load(material / "r20.pth"), "ovsw": {"recipe": recipe}}, material / "normalised.pth")
    assert load_network(material / "normalised.pth")[1].input.mean == (0.485, 0.456, 0.406)
