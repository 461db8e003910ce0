"""Facts about networks: one spec of their input for the engine, the exporter, the trainer and the bench."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ovsw import Engine
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet
from ovsw.bench.topology import NETWORKS
from ovsw.image import load_pixels
from ovsw.networks import NORMALISATIONS, InputSpec, network, networks


def test_input_of_another_size() -> None:
    usual = network("resnet18").input
    assert usual.shape == (3, 224, 224)
    assert usual.at(224) == usual
    assert usual.at(64).preprocess == {"resize": 73, "crop": 64}
    assert network("vggsmall").input.at(64).preprocess == {"resize": 64, "crop": 64}
    assert InputSpec(1, 4, 6, (0.0,), (1.0,), 6).preprocess == {"resize": 6}


@pytest.mark.parametrize(
    ("name", "features", "size"),
    [
        ("vggsmall", 8192, 32),
        ("vggsmall", 32768, 64),
        ("rbnn_vggsmall", 32768, 64),
        ("recu_vggsmall", 32768, 64),
        ("vggsmall", 512 * 25 + 1, 32),
        ("vggsmall", 0, 32),
        ("resnet18", 8192, 224),
    ],
)
def test_input_size_from_the_classifier(name: str, features: int, size: int) -> None:
    assert network(name).input_size(features) == size


def test_names() -> None:
    assert len(set(networks())) == len({network(name).short for name in networks()}) == 19
    assert network("CRESNET20").name == "cResNet20_1w1a"
    with pytest.raises(ValueError, match="unknown network 'resnet19'; known are ResNet18_1w1a, "):
        network("resnet19")
    with pytest.raises(ValueError, match="unknown network 'vggsmall', known are resnet18, resnet34, cresnet20"):
        random_resnet("vggsmall")


def test_normalisations() -> None:
    """By the names that commands take; RBNN's, AdaBin's and ReCU's networks see CIFAR through ImageNet's."""
    assert set(NORMALISATIONS) == {"imagenet", "cifar10", "cifar100"}
    for name, given in (("resnet18", "imagenet"), ("cresnet20", "cifar10"), ("adabin_cresnet20", "imagenet")):
        spec = network(name).input
        assert (spec.mean, spec.std) == NORMALISATIONS[given]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("numerics", ["float", "integer"])
def test_an_engine_knows_its_input(name: str, numerics: str) -> None:
    given = network(name).input
    found = Engine(bnn.to_bytes(random_resnet(name, numerics=numerics))).input
    assert (found.shape, found.resize, len(found.labels)) == (given.shape, given.resize, 1000 * (given.height == 224))
    np.testing.assert_allclose((found.mean, found.std), (given.mean, given.std), rtol=1e-7)


def test_normalised_is_what_the_engine_computes_from_pixels() -> None:
    engine = Engine(bnn.to_bytes(random_resnet("cresnet20")))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    x = engine.input.normalised(pixels)
    assert (x.shape, x.dtype) == ((2, 3, 32, 32), np.float32)
    np.testing.assert_array_equal(engine.run(x), engine.run(pixels))


@pytest.mark.parametrize("name", ["cresnet20", "resnet18"])
def test_the_trainer_evaluates_a_folder_as_the_engine_does(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from ovsw.datasets import FolderSet
    from ovsw.train.trainer import _Decoded

    path, spec = tmp_path / "photo.png", network(name).input
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)).save(path)
    image = _Decoded(FolderSet([path], torch.tensor([0]), ["photo"]), spec, None)[0]
    expected = load_pixels(path, 3, {"cresnet20": 32, "resnet18": 256}[name], (spec.height, spec.width))
    np.testing.assert_array_equal(image.numpy().transpose(1, 2, 0), expected)
