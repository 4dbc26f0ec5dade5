"""Fits and predictions on outputs of files: columns follow their names and classes, in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kcal

ANIMALS = ("cat", "dog", "owl")


def frame(n: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    embeddings = np.eye(3, 5)[codes] * 2 + generator.normal(size=(n, 5))
    columns = {f"e_{k}": embeddings[:, k] for k in range(5)}
    columns |= {f"logit_{name}": 4 * embeddings[:, k] for k, name in enumerate(ANIMALS)}
    return pd.DataFrame({**columns, "label": np.array(ANIMALS)[codes]})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The same test set with its columns in two orders, without and with other names."""
    test = frame(60, 2)
    tables = {
        "calibration": frame(90, 1),
        "test": test,
        "reversed": test[test.columns[::-1]],
        "renamed": test.rename(columns={"e_0": "f_0", "logit_cat": "logit_cow"}),
        "other": frame(60, 3),
    }
    paths = {name: tmp_path / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        table.to_csv(paths[name], index=False)
    return paths


def read(path: Path) -> kcal.ClassifierOutputs:
    return kcal.read_outputs(path, embeddings="*_[0-9]")


METHODS = {
    "uncal": kcal.Uncalibrated,
    "ts": kcal.TemperatureScaling,
    "sms": kcal.StructuredMatrixScaling,
    "kcal": lambda: kcal.KCal(projection="identity", bandwidth=1.0),
    "kcal-logits": lambda: kcal.KCalLogits(projection="identity", bandwidth=1.0),
    "kcal-blend": kcal.KCalBlend,
    "knn": kcal.KNNInterpolation,
}


@pytest.mark.parametrize("method", METHODS)
def test_columns_in_any_order_give_the_same_predictions(files, method):
    calibrator = kcal.fit_on(METHODS[method](), read(files["calibration"]))
    test, turned = read(files["test"]), read(files["reversed"])
    expected = kcal.predict_on(calibrator, test)
    assert calibrator.classes_.tolist() == list(ANIMALS)
    assert calibrator.classes_[expected.argmax(axis=1)].tolist()[:3] == test.labels.tolist()[:3]
    np.testing.assert_array_equal(kcal.predict_on(calibrator, turned), expected)
    with pytest.raises(kcal.InvalidInputError, match=r"f_0|cow"):
        kcal.predict_on(calibrator, read(files["renamed"]))


def test_a_fit_on_reversed_columns_predicts_the_same(files):
    test = read(files["test"])
    first, second = (kcal.fit_on(kcal.TemperatureScaling(), read(path)) for path in (files["test"], files["reversed"]))
    order = [second.classes_.tolist().index(name) for name in first.classes_.tolist()]
    np.testing.assert_allclose(kcal.predict_on(second, test)[:, order], kcal.predict_on(first, test), rtol=1e-5)


def test_columns_of_the_training_set_follow_those_of_the_calibration_set(files):
    calibration, test = read(files["calibration"]), read(files["other"])
    estimates = [
        kcal.fit_on(kcal.KCal(bandwidth=1.0, progress=False), calibration, read(files[name]))
        for name in ("test", "reversed")
    ]
    first, second = (kcal.predict_on(estimate, test) for estimate in estimates)
    np.testing.assert_allclose(first, second, rtol=1e-9)
    with pytest.raises(kcal.InvalidInputError, match="f_0"):
        kcal.fit_on(kcal.KCal(progress=False), calibration, read(files["renamed"]))


def test_samples_that_are_added_have_their_columns_put_in_order(files):
    fitted = [kcal.KCal(projection="identity", bandwidth=1.0) for _ in range(2)]
    for calibrator, name in zip(fitted, ("test", "reversed"), strict=True):
        kcal.fit_on(calibrator, read(files["calibration"]))
        kcal.calibrators.update_on(calibrator, read(files[name]))
    first, second = (kcal.predict_on(calibrator, read(files["other"])) for calibrator in fitted)
    np.testing.assert_allclose(first, second, rtol=1e-9)


def test_classes_of_arrays_are_those_of_their_columns(files):
    read_as = read(files["test"])
    logits, labels = read_as.logits, read_as.labels
    turned = kcal.ClassifierOutputs(logits=logits[:, ::-1], labels=labels, classes=list(ANIMALS[::-1]))
    calibrator = kcal.fit_on(kcal.Uncalibrated(), kcal.ClassifierOutputs(logits=logits, labels=labels, classes=ANIMALS))
    np.testing.assert_array_equal(kcal.predict_on(calibrator, turned), kcal.predict_on(calibrator, read_as))
    other = kcal.ClassifierOutputs(logits=logits, classes=["cat", "dog", "cow"])
    with pytest.raises(kcal.InvalidInputError, match="classes"):
        kcal.predict_on(calibrator, other)
    contradictory = kcal.ClassifierOutputs(
        logits=logits, classes=list(ANIMALS[::-1]), columns={"logits": tuple(f"logit_{name}" for name in ANIMALS)}
    )
    with pytest.raises(kcal.InvalidInputError, match="classes"):
        kcal.predict_on(kcal.fit_on(kcal.Uncalibrated(), read_as), contradictory)
    assert read_as.select([1]).classes.tolist() == list(ANIMALS)


@pytest.mark.parametrize("labels", [list(ANIMALS), [2, 0, 1]])
def test_a_table_whose_columns_are_in_another_order_than_the_classes_raises(labels):
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.dirichlet(np.ones(3), 30), columns=[str(label) for label in labels])
    y = np.array(labels)[generator.integers(0, 3, 30)]
    classes = sorted(labels, reverse=True)
    for call in (
        lambda: kcal.evaluate(table, y, classes=classes, confidence=None),
        lambda: kcal.metrics.class_errors(table, y, classes=classes),
        lambda: kcal.TemperatureScaling(representation="probabilities").fit(table, y, classes=classes),
        lambda: kcal.KCalBlend(representation="probabilities").fit(
            generator.normal(size=(30, 4)), y, logits=table, classes=classes
        ),
    ):
        with pytest.raises(kcal.InvalidInputError, match="classes must follow the columns"):
            call()
    assert kcal.evaluate(table, y, classes=labels, confidence=None).n_samples == 30
    other = table.rename(columns=lambda name: f"p_{name}")
    assert kcal.evaluate(other, y, classes=classes, confidence=None).n_samples == 30
