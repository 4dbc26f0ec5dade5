"""The embedded example holds the outputs of its network; the small network classifies single images."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest
import torch

from kcal.datasets import COMPANIONS, Example, load_example
from kcal.errors import InvalidInputError

SIZES = {"train": 20_000, "calibration": 3_000, "test": 7_000}


@pytest.fixture(scope="module")
def example() -> Example:
    return load_example()


def test_every_part_has_the_promised_shapes_and_dtypes(example):
    for name, size in SIZES.items():
        part = getattr(example, name)
        assert (part.embeddings.shape, part.logits.shape) == ((size, 64), (size, 10))
        assert part.labels.shape == part.rows.shape == (len(part),) == (size,)
        assert part.embeddings.dtype == part.logits.dtype == np.float32
        assert part.labels.dtype == part.rows.dtype == np.int64
        assert np.isfinite(part.embeddings).all()
        assert np.isfinite(part.logits).all()
        assert set(part.labels) == set(range(len(example.classes)))
    assert repr(example.test) == "ExamplePart(7,000 rows: embeddings of 64 dimensions, 10 logits, labels)"


def test_no_row_is_in_two_parts(example):
    rows = np.concatenate([example.calibration.rows, example.test.rows])
    np.testing.assert_array_equal(np.sort(rows), np.arange(10_000))
    embeddings = np.concatenate([getattr(example, name).embeddings for name in SIZES])
    assert len({row.tobytes() for row in embeddings}) == sum(SIZES.values())


@pytest.mark.parametrize("name", ["calibration", "test"])
def test_network_reproduces_the_stored_outputs_from_the_images(example, name):
    part, network = getattr(example, name), example.network()
    assert not any(module.training for module in network.modules())
    inputs, labels = map(torch.cat, zip(*part.loader(), strict=True))
    np.testing.assert_array_equal(labels, part.labels)
    assert (inputs.shape, inputs.min(), inputs.max()) == ((SIZES[name], 1, 28, 28), 0, 1)
    np.testing.assert_array_equal((inputs[:, 0] * 255).round().byte(), part.images)
    with torch.inference_mode():
        embeddings = network.embed(inputs)
        logits = network.head(embeddings)
    # Half precision keeps eleven binary digits, so a value is off by at most 2**-11 of itself.
    np.testing.assert_allclose(part.embeddings, embeddings, rtol=2**-11, atol=1e-4)
    np.testing.assert_allclose(part.logits, logits, rtol=2**-11, atol=1e-4)


@pytest.mark.parametrize("loss", COMPANIONS)
def test_companions_are_of_the_same_images(example, loss):
    companion = example.companion(loss)
    with np.load(str(resources.files("kcal.datasets") / f"{companion.name}.npz")) as stored:
        for name in ("calibration", "test"):
            np.testing.assert_array_equal(stored[f"{name}_rows"], getattr(example, name).rows)
    assert repr(companion).startswith(f"Companion fashion_mnist_small_cnn@{loss}: 10 logits")


def test_missing_images_and_companions_raise_by_name(example):
    with pytest.raises(InvalidInputError, match=r"^images"):
        example.train.loader()
    with pytest.raises(InvalidInputError, match=r"^loss"):
        example.companion("hinge")
