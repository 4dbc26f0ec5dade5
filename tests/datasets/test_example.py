"""The embedded example is what its README says it is."""

import itertools
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from kcal.calibrators import TemperatureScaling
from kcal.datasets import COMPANIONS, Example, ExamplePart, load_example
from kcal.errors import InvalidInputError

SIZES = {"train": 20_000, "calibration": 3_000, "test": 7_000}


@pytest.fixture(scope="module")
def example() -> Example:
    return load_example()


@pytest.fixture(scope="module")
def parts(example: Example) -> dict[str, ExamplePart]:
    return {"train": example.train, "calibration": example.calibration, "test": example.test}


@pytest.fixture(scope="module")
def readme() -> str:
    return (resources.files("kcal.datasets") / "README.md").read_text(encoding="utf-8")


def negative_log_likelihood(part: ExamplePart, temperature: float = 1.0) -> float:
    log_probabilities = log_softmax(part.logits.astype(np.float64) / temperature, axis=1)
    return -log_probabilities[np.arange(len(part)), part.labels].mean()


def best_temperature(part: ExamplePart) -> float:
    # The loss is convex in 1 / T, so that it has one minimum.
    search = minimize_scalar(
        lambda temperature: negative_log_likelihood(part, temperature), bounds=(0.1, 4.0), method="bounded"
    )
    return float(search.x)


def confidences_and_hits(part: ExamplePart) -> tuple[np.ndarray, np.ndarray]:
    probabilities = np.exp(log_softmax(part.logits.astype(np.float64), axis=1))
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == part.labels


def calibration_error(part: ExamplePart) -> float:
    confidences, hits = confidences_and_hits(part)
    edges = np.linspace(0, 1, 16)
    masks = [(low < confidences) & (confidences <= high) for low, high in itertools.pairwise(edges)]
    gaps = [mask.mean() * abs(hits[mask].mean() - confidences[mask].mean()) for mask in masks if mask.any()]
    return sum(gaps)


@pytest.mark.parametrize("name", SIZES)
def test_every_part_has_the_promised_shapes_and_dtypes(parts: dict[str, ExamplePart], name: str) -> None:
    part = parts[name]
    assert len(part) == SIZES[name]
    assert part.embeddings.shape == (SIZES[name], 64)
    assert part.logits.shape == (SIZES[name], 10)
    assert part.labels.shape == part.rows.shape == (SIZES[name],)
    assert part.embeddings.dtype == part.logits.dtype == np.float32
    assert part.labels.dtype == part.rows.dtype == np.int64
    assert np.isfinite(part.embeddings).all()
    assert np.isfinite(part.logits).all()
    assert set(part.labels) == set(range(10))
    assert len(np.unique(part.rows)) == SIZES[name]


def test_calibration_and_test_share_out_the_original_test_images(example: Example) -> None:
    rows = np.concatenate([example.calibration.rows, example.test.rows])
    np.testing.assert_array_equal(np.sort(rows), np.arange(10_000))


def test_no_embedding_occurs_twice_in_any_part_or_in_two_parts(parts: dict[str, ExamplePart]) -> None:
    embeddings = np.concatenate([part.embeddings for part in parts.values()])
    assert len({row.tobytes() for row in embeddings}) == sum(SIZES.values())


@pytest.mark.parametrize("name", ["calibration", "test"])
def test_network_reproduces_the_stored_outputs_from_the_images(
    example: Example, parts: dict[str, ExamplePart], name: str
) -> None:
    part, network = parts[name], example.network()
    assert not any(module.training for module in network.modules())
    inputs, labels = map(torch.cat, zip(*part.loader(), strict=True))
    np.testing.assert_array_equal(labels, part.labels)
    with torch.inference_mode():
        embeddings = network.embed(inputs)
        logits = network.head(embeddings)
    # Half precision keeps eleven binary digits, so a value is off by at most 2**-11 of itself.
    np.testing.assert_allclose(part.embeddings, embeddings, rtol=2**-11, atol=1e-4)
    np.testing.assert_allclose(part.logits, logits, rtol=2**-11, atol=1e-4)


def test_stored_head_gives_the_stored_logits_of_every_part(example: Example, parts: dict[str, ExamplePart]) -> None:
    weights = example.network_weights()
    weight, bias = weights["head.weight"].numpy(), weights["head.bias"].numpy()
    for part in parts.values():
        np.testing.assert_allclose(part.embeddings @ weight.T + bias, part.logits, atol=0.03)


@pytest.mark.parametrize("name", ["calibration", "test"])
def test_images_are_bytes_and_inputs_are_from_zero_to_one(parts: dict[str, ExamplePart], name: str) -> None:
    part = parts[name]
    assert part.images.shape == (SIZES[name], 28, 28)
    assert part.images.dtype == np.uint8
    inputs = part.inputs()
    assert inputs.shape == (SIZES[name], 1, 28, 28)
    assert (inputs.min(), inputs.max()) == (0, 1)
    np.testing.assert_array_equal((inputs[:, 0] * 255).round().byte(), part.images)


@pytest.mark.parametrize("name", SIZES)
def test_readme_states_the_measured_figures(parts: dict[str, ExamplePart], readme: str, name: str) -> None:
    (line,) = (line for line in readme.splitlines() if line.startswith(f"| {name} | 0."))
    stated = [float(cell) for cell in line.strip("| ").split("|")[1:]]
    part = parts[name]
    confidences, hits = confidences_and_hits(part)
    temperature = best_temperature(part)
    measured = [hits.mean(), confidences.mean(), calibration_error(part), negative_log_likelihood(part)]
    np.testing.assert_allclose(stated[:4], measured, atol=5.1e-5)
    assert stated[4] == pytest.approx(temperature, abs=0.0101)
    assert stated[5] == pytest.approx(negative_log_likelihood(part, temperature), abs=1e-4)


def test_two_readings_are_equal_and_share_no_memory(example: Example) -> None:
    again = load_example()
    np.testing.assert_array_equal(again.test.embeddings, example.test.embeddings)
    np.testing.assert_array_equal(again.test.labels, example.test.labels)
    assert not np.shares_memory(again.test.embeddings, example.test.embeddings)
    assert all(torch.equal(tensor, again.network_weights()[name]) for name, tensor in example.network_weights().items())


def test_example_prints_a_summary_and_not_its_arrays(example: Example) -> None:
    assert repr(example.test) == ("ExamplePart(7,000 rows: embeddings of 64 dimensions, 10 logits, labels)")
    assert "fashion_mnist_small_cnn" in repr(example)
    assert len(repr(example).splitlines()) == 4
    assert (len(example.classes), example.classes[0], example.classes[-1]) == (10, "T-shirt/top", "Ankle boot")


def test_missing_images_and_companions_raise_by_name(example: Example) -> None:
    with pytest.raises(InvalidInputError, match=r"^images"):
        example.train.loader()
    with pytest.raises(InvalidInputError, match=r"^loss"):
        example.companion("hinge")


def test_provenance_and_readme_name_the_source_and_its_licence(example: Example, readme: str) -> None:
    for text in (example.provenance, readme):
        assert "Fashion-MNIST" in text
        assert "Zalando SE" in text
        assert "MIT" in text


def test_files_stay_small() -> None:
    folder = resources.files("kcal.datasets")
    companions = [f"fashion_mnist_small_cnn@{loss}.npz" for loss in COMPANIONS]
    outputs = ("fashion_mnist_small_cnn.npz", "fashion_mnist_small_cnn.safetensors", *companions)
    assert sum(len((folder / name).read_bytes()) for name in outputs) < 5_000_000
    assert len((folder / "fashion_mnist_test_images.npz").read_bytes()) < 5_000_000


@pytest.mark.parametrize("loss", COMPANIONS)
def test_companions_are_the_same_images_and_what_the_readme_states(example: Example, readme: str, loss: str) -> None:
    companion = example.companion(loss)
    with np.load(str(resources.files("kcal.datasets") / f"fashion_mnist_small_cnn@{loss}.npz")) as stored:
        for name in ("calibration", "test"):
            np.testing.assert_array_equal(stored[f"{name}_rows"], getattr(example, name).rows)
            assert stored[f"{name}_logits"].dtype == np.float16
    assert companion.name == f"fashion_mnist_small_cnn@{loss}"
    assert repr(companion).startswith(f"Companion {companion.name}: 10 logits")
    assert loss in companion.provenance
    scaling = TemperatureScaling().fit(companion.calibration_logits, example.calibration.labels)
    part = replace(example.test, logits=companion.test_logits)
    measured = [
        confidences_and_hits(part)[1].mean(),
        calibration_error(part),
        negative_log_likelihood(part),
        scaling.temperature_,
        negative_log_likelihood(part, scaling.temperature_),
    ]
    row = next(line for line in readme.splitlines() if line.startswith(f"| {loss} |"))
    stated = [float(cell) for cell in row.strip("|").split("|")[1:]]
    assert stated[3] == pytest.approx(measured[3], abs=5.1e-3)
    np.testing.assert_allclose(np.delete(stated, 3), np.delete(measured, 3), atol=5.1e-5)
