"""Networks with several outputs, with maps as outputs, and with probabilities instead of logits."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn


def network(numerics: str = "float") -> bnn.Model:
    """The image itself (or its first convolution), its mean over all pixels, and the softmax of that."""
    model = bnn.Model([], [], [], output=0, mean=0, std=1, numerics=numerics)
    integer = numerics == "integer"
    model.add_value("u8" if integer else "f32", 3, 4, 5)
    model.add_tensor(np.zeros(3))
    model.add_tensor(np.ones(3))
    if integer:
        stream = model.add_value("i16", 3, 4, 5)
        weight = np.zeros((3, 1, 1, 3), np.int16)
        weight[range(3), 0, 0, range(3)] = 1
        tensors = {"weight": (weight, "i16"), "offset": (np.zeros(3), "i32"), "shift": (np.zeros(3), "u8")}
        refs = {name: model.add_tensor(array, dtype) for name, (array, dtype) in tensors.items()}
        model.ops.append(bnn.Op("conv", "stem", 0, out=stream, **refs))
    else:
        stream = 0
    image, mean, softmax = (model.add_value("f32", 3, *size) for size in ((4, 5), (1, 1), (1, 1)))
    if integer:
        pooled = model.add_value("i16", 3, 1, 1)
        one = {"scale": model.add_tensor(np.ones(3), "i16"), "offset": model.add_tensor(np.zeros(3), "i32")}
        shift = model.add_tensor(np.zeros(3), "u8")
        model.ops.append(bnn.Op("avgpool", "mean", stream, out=pooled, window=(4, 5), shift=shift, **one))
        for source, to in ((stream, image), (pooled, mean)):
            scale = model.add_tensor(np.full(3, 1.0 / 255 if to == image else 1.0 / 255 / 20), "f64")
            model.ops.append(
                bnn.Op("to_float", "read", source, out=to, scale=scale, offset=model.add_tensor(np.zeros(3), "f64"))
            )
    else:
        model.ops.append(bnn.Op("eltwise", "copy", 0, out=image))
        model.ops.append(bnn.Op("avgpool", "mean", 0, out=mean, window=(4, 5)))
    model.ops.append(bnn.Op("softmax", "probabilities", mean, out=softmax))
    model.output, model.more_outputs = mean, [image, softmax]
    return model


@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("threads", [1, 3])
def test_several_outputs(isa: str, numerics: str, threads: int) -> None:
    engine = Engine(bnn.to_bytes(network(numerics)), isa=isa, threads=threads)
    assert engine.output_shapes == [(3, 1, 1), (3, 4, 5), (3, 1, 1)]
    assert engine.num_classes == 3
    assert "3x4x5 -> 3, 3x4x5, 3" in repr(engine)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    mean, image, softmax = engine.run(pixels)
    values = pixels.transpose(0, 3, 1, 2) / 255
    assert [a.shape for a in (mean, image, softmax)] == [(2, 3), (2, 3, 4, 5), (2, 3)]
    np.testing.assert_allclose(image, values, rtol=1e-6)
    np.testing.assert_allclose(mean, values.mean(axis=(2, 3)), rtol=1e-6)
    exp = np.exp(values.mean(axis=(2, 3)))
    np.testing.assert_allclose(softmax, exp / exp.sum(axis=1, keepdims=True), rtol=1e-6)
    one = engine.run(pixels[1])
    assert [a.shape for a in one] == [(3,), (3, 4, 5), (3,)]
    assert all(a.tolist() == b[1].tolist() for a, b in zip(one, (mean, image, softmax)))
    label, probability = engine.classify(pixels[0], k=1)[0]
    assert label == f"class {mean[0].argmax()}"
    assert probability == pytest.approx(float(softmax[0].max()), rel=1e-6)


def test_a_map_as_the_first_output() -> None:
    model = network()
    model.output, model.more_outputs = model.more_outputs[0], []
    model.metadata = {"labels": ["red", "green", "blue"]}
    engine = Engine(bnn.to_bytes(model))
    assert engine.run(np.zeros((4, 5, 3), np.uint8)).shape == (3, 4, 5)
    with pytest.raises(ValueError, match="the first output is a map of 3x4x5, not a vector of class scores"):
        engine.classify(np.zeros((4, 5, 3), np.uint8))


@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_probabilities_are_not_made_twice(kind: str) -> None:
    model = network()
    model.output, model.more_outputs = model.more_outputs[1], []
    model.ops[-1].kind = kind
    model.metadata = {"output": "probabilities" if kind == "softmax" else "log_probabilities"}
    image = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    exp = np.exp(image.astype(np.float64).mean(axis=(1, 2)))
    found = dict(Engine(bnn.to_bytes(model)).classify(image))
    assert [found[f"class {i}"] for i in range(3)] == pytest.approx((exp / exp.sum()).tolist(), rel=1e-5)


def test_normalised_values_become_the_nearest_pixels(isa: str) -> None:
    """Every single one, as the map of an integer network shows them: rounded, beyond 0 and 255 cut."""
    model = network("integer")
    mean, std = np.float32([0.485, 0.456, 0.5]), np.float32([0.229, 0.224, 1.0])
    model.tensors[model.mean].array, model.tensors[model.std].array = mean, std
    rng = np.random.default_rng(0)
    wanted = rng.uniform(-30, 285, (8, 3, 4, 5))
    count = np.arange(20).reshape(4, 5)
    wanted[0, 0], wanted[0, 1], wanted[1, 0] = count + 0.49, count + 0.51, 255 - count / 10
    x = ((wanted / 255 - mean[:, None, None]) / std[:, None, None]).astype(np.float32)
    x[0, 2, 0, 0] = 0.0  # 127.5 exactly
    engine = Engine(bnn.to_bytes(model), isa=isa)
    found, black = (255 * engine.run(images)[1].astype(np.float64) for images in (x, np.zeros((1, 4, 5, 3), np.uint8)))
    shown = np.rint(found - black)  # the stem takes the mean away
    for i in np.ndindex(x.shape):
        exact = (float(x[i]) * float(std[i[1]]) + float(mean[i[1]])) * 255
        assert shown[i] == min(max(round(exact), 0), 255), (i, exact)
    assert shown[0, 2, 0, 0] == 128
    assert (shown != np.clip(np.floor(wanted), 0, 255)).mean() > 0.3  # what cutting fractions off would give
