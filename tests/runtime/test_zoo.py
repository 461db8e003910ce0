"""The zoo: index, files and the runs' papers agree; answers are those of the index; damage is noticed."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw import Engine, numerics, zoo
from ovsw import format as bnn
from ovsw.commands import info, run
from ovsw.commands import zoo as zoo_command
from ovsw.labels import load_labels

from support import ROOT, shared

NAMES = zoo.names()
PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")


def logits_by_hand(name: str, engine: Engine) -> np.ndarray:
    """Of the pictures and noise, made here once more."""
    _, height, width = engine.input_shape
    pictures = [Image.open(path).convert("RGB") for path in zoo.pictures().values()]
    assert all(picture.size == (width, height) for picture in pictures)
    noise = np.frombuffer(hashlib.shake_256(b"ovsw zoo").digest(100 * height * width * 3), np.uint8)
    images = np.concatenate([np.stack([np.asarray(p) for p in pictures]), noise.reshape(100, height, width, 3)])
    return numerics.simulate(bnn.read(zoo.path(name)), images)


@pytest.mark.parametrize("name", NAMES)
def test_index_and_file_agree(name: str) -> None:
    entry = zoo.entry(name)
    path = zoo.path(name)
    data = path.read_bytes()
    assert len(data) == entry.bytes <= 80_000
    assert hashlib.sha256(data).hexdigest() == entry.sha256
    assert path.name == entry.file == f"{name}-{entry.sha256[:8]}.bnn"
    engine = Engine(path)
    assert engine.numerics == "integer"
    assert tuple(engine.labels) == entry.classes
    assert engine.metadata["arch"] == entry.arch
    assert entry.test_set in entry.title
    assert 0 < entry.right <= entry.images
    assert 0 < entry.right_pytorch <= entry.images
    assert zoo.NAME.fullmatch(name)


@pytest.mark.parametrize("name", NAMES)
def test_index_and_run_agree(name: str) -> None:
    """docs/zoo has the settings and metrics of the run that the index speaks of."""
    recipe = pytest.importorskip("ovsw.train.recipe", exc_type=ImportError)
    entry, folder = zoo.entry(name), ROOT / "docs" / "zoo" / name
    config = json.loads((folder / "config.json").read_text())
    assert (config["name"], config["sha256"]) == (name, entry.sha256)
    assert (config["seed"], config["epoch"]) == (entry.seed, entry.epoch)
    settings = config["recipe"]
    assert settings["train"]["epochs"] == entry.epochs
    assert settings["train"].get("deployed_epochs", 0) == entry.deployed_epochs
    again = recipe.load_recipe(entry.recipe)
    recipe.set_values(again, list(entry.settings))
    for section in ("network", "data", "train", "ovsw"):
        assert recipe.as_dict(again)[section].items() >= settings[section].items()
    with (folder / "metrics.csv").open() as f:
        row = next(row for row in csv.DictReader(f) if int(row["epoch"]) == entry.epoch)
    tolerance = 0 if entry.deployed_epochs else 10  # float32 sums depend on the batch
    assert abs(float(row["test_acc1"]) * entry.images / 100 - entry.right_pytorch) < tolerance + 0.5


def test_nothing_but_the_networks_of_the_index() -> None:
    assert zoo.DEFAULT in NAMES
    files = [file for name in NAMES for file in (zoo.entry(name).file, zoo.checkpoint(name).name)]
    assert {p.name for p in zoo.FOLDER.iterdir()} == {zoo.INDEX, *files}
    assert {p.name for p in (ROOT / "docs" / "zoo").iterdir()} == set(NAMES)
    assert (zoo.FOLDER / zoo.INDEX).read_bytes() == zoo.index_bytes(zoo.read_index(zoo.FOLDER))


@pytest.mark.parametrize("name", NAMES)
def test_logits_on_every_table(name: str, isa: str) -> None:
    assert zoo.check(name, isa=isa) == isa
    assert zoo.check(name, isa=isa, threads=3) == isa


@pytest.mark.parametrize("name", NAMES)
def test_logits_in_the_simulation(name: str) -> None:
    logits = logits_by_hand(name, zoo.load(name))
    assert len(np.unique(logits.argmax(axis=1))) > 2
    assert hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest() == zoo.entry(name).logits


@pytest.mark.parametrize("name", [name for name in NAMES if zoo.entry(name).test_set == "CIFAR-10"])
def test_accuracy_over_the_whole_test_set(name: str) -> None:
    accuracy = pytest.importorskip("ovsw.export.accuracy", exc_type=ImportError)
    images = accuracy.open_images(shared("data", "cifar10"), 10)
    answers = zoo.load(name).run(np.ascontiguousarray(images.images.numpy().transpose(0, 2, 3, 1))).argmax(axis=1)
    truth, entry = images.labels.numpy(), zoo.entry(name)
    assert len(answers) == entry.images
    assert int((answers == truth).sum()) == entry.right
    for label in range(10):
        assert int((truth == label).sum()) == entry.images_by_class[label]
        assert int((answers[truth == label] == label).sum()) == entry.right_by_class[label]
    times = {(a, b): int(((truth == a) & (answers == b)).sum()) for a in range(10) for b in range(10) if a != b}
    number = {name: label for label, name in enumerate(entry.classes)}
    for i, (was, answered, count) in enumerate(entry.mistakes):
        assert count == times[number[was], number[answered]] == sorted(times.values())[-1 - i]


def test_pictures() -> None:
    assert list(zoo.pictures()) == load_labels("cifar10", 10)
    for path in zoo.pictures().values():
        with Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "RGB", (32, 32))


def test_most_pictures_are_named() -> None:
    engine = zoo.load()
    answers = {name: engine.classify(path, 1)[0][0] for name, path in zoo.pictures().items()}
    assert sum(name == answer for name, answer in answers.items()) >= 8, answers


def test_pictures_are_drawn_by_a_seed() -> None:
    """Test images by the first ten numbers of random.Random(0), one for each class: nobody chose them."""
    accuracy = pytest.importorskip("ovsw.export.accuracy", exc_type=ImportError)
    images = accuracy.open_images(shared("data", "cifar10"), 10)
    sources = (zoo.FOLDER.parent / "cifar10" / "SOURCES.md").read_text()
    rng = random.Random(0)
    for label, (name, path) in enumerate(zoo.pictures().items()):
        members = np.flatnonzero(images.labels.numpy() == label)
        number = int(members[int(rng.random() * len(members))])
        with Image.open(path) as image:
            assert np.array_equal(np.asarray(image), images.images[number].numpy().transpose(1, 2, 0))
        assert f"| {name} | {number} |" in sources


@pytest.mark.parametrize("name", NAMES)
def test_cards(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The card in docs/ is the one that the command shows, and has the numbers of the index."""
    entry = zoo.entry(name)
    assert zoo_command.main([name]) == 0
    card = capsys.readouterr().out
    assert card == (ROOT / "docs" / "zoo" / name / "card.md").read_text()
    score = f"{100 * entry.right / entry.images:.2f}% of the {entry.images:,} test images of {entry.test_set}"
    for words in (score, f"{entry.bytes:,} bytes", entry.sha256, entry.file, entry.machine, f"{entry.ms:.2f} ms"):
        assert words in card
    for label, right, images in zip(entry.classes, entry.right_by_class, entry.images_by_class):
        assert f"| {label} | {right:,} | {images:,} |" in card
    for was, answered, times in entry.mistakes:
        assert f"{was} taken for {answered}, {times}" in card
    commands = card.split("```bash\n")[-1].partition("```")[0].replace("\\\n", " ").splitlines()[1::2]
    assert [command.split()[:2] for command in commands] == [
        ["ovsw-train", recipe] for recipe in [*(step.recipe for step in entry.before), entry.recipe]
    ]
    assert [s.replace('"', "") for s in entry.settings] == commands[-1].split()[5 : 5 + 2 * len(entry.settings) : 2]


@pytest.mark.parametrize("name", NAMES)
def test_earlier_runs(name: str) -> None:
    """Of the run before the last one, and of others, docs/zoo has the metrics, which say what the index says."""
    notes, before = ROOT / "docs" / "zoo" / name, zoo.entry(name).before
    kept = {i: notes / f"before-{i}.csv" for i in range(1, len(before) + 1) if (notes / f"before-{i}.csv").exists()}
    assert len(before) in kept
    for i, path in kept.items():
        step = before[i - 1]
        with path.open() as f:
            rows = list(csv.DictReader(f))
        assert (int(rows[-1]["epoch"]), float(rows[-1]["test_acc1"])) == (step.epochs, step.accuracy)


def test_the_tutorial_shows_what_the_network_says() -> None:
    """tools/zoo.py has written it since the network or the pictures were replaced."""
    text = (ROOT / "docs" / "tutorial.md").read_text().partition("<!-- the demo's answers, by tools/zoo.py -->")[2]
    lines = text.partition("<!-- end of the demo's answers -->")[0].strip("`\n").removeprefix("text\n").splitlines()
    pictures = [*zoo.pictures().items(), ("cat", Path(PHOTO))]
    engine, right = zoo.load(), 0
    assert lines[0] == zoo.entry(zoo.DEFAULT).about
    for (truth, path), line in zip(pictures, lines[4:]):
        top = engine.classify(str(path), 3)
        right += truth == top[0][0]
        verdict = "right" if truth == top[0][0] else "wrong"
        shown = [word for label, p in top for word in (f"{100 * p:.0f}", "%", label)]
        assert line.split() == [path.name, truth, verdict, *shown]
    assert lines[-1] == f"{right} of {len(pictures)} right"


def test_load() -> None:
    engine = zoo.load(threads=2)
    assert engine.threads == 2
    assert engine.run(PHOTO).tobytes() == Engine(zoo.path(zoo.DEFAULT)).run(PHOTO).tobytes()


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"^no network 'cresnet20' in the zoo, did you mean 'cresnet20-cifar10'\?$"):
        zoo.load("cresnet20")
    with pytest.raises(ValueError, match=r"^no network '12' in the zoo; there are .*cresnet20-cifar10"):
        zoo.entry("12")
    assert not zoo.known("cresnet20")
    assert not zoo.known("./cresnet20-cifar10")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the zoo that may be damaged."""
    shutil.copytree(zoo.FOLDER, tmp_path / "zoo")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    return tmp_path / "zoo"


def test_a_damaged_file_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = zoo.entry(zoo.DEFAULT)
    file = copy / entry.file
    data = bytearray(file.read_bytes())
    data[40_000] ^= 1
    file.write_bytes(data)
    found = hashlib.sha256(data).hexdigest()
    for call in (zoo.load, zoo.path, zoo.check):
        with pytest.raises(ValueError, match=f"{file}.* {found}, expected {entry.bytes:,} bytes with {entry.sha256}$"):
            call(zoo.DEFAULT)
    for main, arguments in ((run.main, [PHOTO]), (info.main, [zoo.DEFAULT]), (zoo_command.main, ["--check"])):
        assert main(arguments) == 1
        captured = capsys.readouterr()
        assert entry.sha256 in captured.err
        assert len(captured.err.splitlines()) == 1
        assert captured.out == ""
    file.unlink()
    with pytest.raises(FileNotFoundError, match=entry.file):
        zoo.load()


def test_a_damaged_index_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = (copy / zoo.INDEX).read_text()
    for text in (
        good[:-5],
        "{}x",
        '[{"name": "a"}]',
        "[3]",
        good.replace('"seed"', '"sead"'),
        good.replace('"before"', '"after"'),
    ):
        (copy / zoo.INDEX).write_text(text)
        with pytest.raises(ValueError, match=f"{zoo.INDEX}: not an index of networks"):
            zoo.names()
    assert run.main([str(copy / "nothing.bnn"), PHOTO]) == 1  # does not ask the zoo
    assert "nothing.bnn: no such file" in capsys.readouterr().err


def test_other_logits_are_noticed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = zoo.entry(zoo.DEFAULT)
    (copy / zoo.INDEX).write_text((copy / zoo.INDEX).read_text().replace(entry.logits, "0" * 64))
    assert zoo_command.main(["--check"]) == 1
    error = capsys.readouterr().err
    assert entry.logits in error
    assert "0" * 64 in error


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo_command.main(["--check"]) == 0
    text = capsys.readouterr().out
    for entry in map(zoo.entry, NAMES):
        right = f"{100 * entry.right / entry.images:.2f}%"
        for words in (entry.name, entry.test_set, right, f"{entry.bytes:,}", entry.recipe, entry.sha256[:16]):
            assert words in text
        assert f"{entry.name}: file intact, logits of 110 images" in text
    assert zoo_command.main([zoo.DEFAULT, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sha256"] == zoo.entry(zoo.DEFAULT).sha256
    assert found["accuracy"] == found["right"] / found["images"]
    assert zoo_command.main(["cresnet"]) == 1
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[PHOTO, PHOTO], [zoo.DEFAULT, PHOTO, PHOTO]])
def test_run_with_a_network_of_the_zoo(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    entry = zoo.entry(zoo.DEFAULT)
    expected = Engine(zoo.path(zoo.DEFAULT)).classify(PHOTO, 2)
    assert run.main([*arguments, "--top", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0::3] == [PHOTO, PHOTO]
    assert [line.split("%")[1].strip() for line in captured.out.splitlines()[1:3]] == [label for label, _ in expected]
    for words in (zoo.DEFAULT, f"{100 * entry.right / entry.images:.2f}%", "CIFAR-10", *entry.classes):
        assert words in captured.err
    assert run.main([*arguments, "--json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == zoo.DEFAULT
    assert found["zoo"]["accuracy"] == entry.accuracy
    assert found["zoo"]["classes"] == list(entry.classes)
    assert [(t["label"], t["probability"]) for t in found["results"][1]["top"]] == expected


def test_run_knows_models_and_images_by_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever their names end in; and a folder of a network's name is not in its way."""
    model, image = tmp_path / "model", tmp_path / "photo"
    shutil.copy(zoo.path(zoo.DEFAULT), model)
    shutil.copy(PHOTO, image)
    assert run.split([str(model), PHOTO]) == (str(model), [PHOTO])
    assert run.split([str(image), PHOTO]) == (zoo.DEFAULT, [str(image), PHOTO])
    assert run.main([str(model), str(image), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["zoo"] is None
    assert captured.err == ""


def test_info_of_a_network_of_the_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    entry = zoo.entry(zoo.DEFAULT)
    assert info.main([zoo.DEFAULT]) == 0
    text = capsys.readouterr().out
    assert f"{entry.bytes:,} bytes" in text
    assert f"zoo: {entry.title}, {100 * entry.right / entry.images:.2f}% of {entry.images:,} test images" in text
    assert info.main([zoo.DEFAULT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["zoo"]["sha256"] == entry.sha256
    assert found["labels"] == list(entry.classes)
