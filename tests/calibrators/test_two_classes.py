"""Two classes: one column of logits or probabilities, booleans as labels, and columns with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

import kcal
from calibrator_checks import quick
from kcal import METHODS, KCalBlend, TemperatureScaling, Uncalibrated, load, save
from kcal.calibrators import was_fitted_on
from kcal.errors import InvalidInputError, RepresentationWarning
from kcal.metrics import METRICS

pytestmark = pytest.mark.usefixtures("short_solvers")
LOGIT_METHODS = [name for name, method in METHODS.items() if method.inputs == "logits"]
WITH_REPRESENTATION = [name for name in LOGIT_METHODS if "representation" in quick(name).get_params()]

generator = np.random.default_rng(0)
LABELS = generator.integers(0, 2, 120)
EMBEDDINGS = generator.normal(size=(120, 4)) + 1.5 * LABELS[:, None]
LOGITS = 3.0 * (EMBEDDINGS.sum(axis=1) / 2 - 1.5)
PROBS = 1 / (1 + np.exp(-LOGITS))
BOTH = np.column_stack([np.zeros(120), LOGITS])
NEW = np.linspace(-4.0, 4.0, 17)
NEW_BOTH = np.column_stack([np.zeros(17), NEW])


def fit(calibrator: Any, rows: Any, labels: Any = LABELS, **options: Any) -> Any:
    if calibrator.tags.uses_training_set:
        calibrator.set_params(projection="identity")
    return calibrator.fit(rows, labels, **options)


@pytest.mark.parametrize("name", LOGIT_METHODS)
def test_one_column_of_logits_is_the_log_odds_of_the_second_class(name: str, tmp_path: Path) -> None:
    expected = fit(quick(name), BOTH).predict_proba(NEW_BOTH)
    assert expected.shape == (17, 2)
    for change in (lambda z: z, lambda z: z[:, None], torch.from_numpy, lambda z: z.tolist(), pd.Series):
        fitted = fit(quick(name), change(LOGITS))
        assert fitted.n_features_in_ == 1
        np.testing.assert_array_equal(np.asarray(fitted.predict_proba(change(NEW))), expected)
        assert was_fitted_on(fitted, change(LOGITS)).all()
    loaded = load(save(fitted, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(NEW), expected)


@pytest.mark.parametrize("name", WITH_REPRESENTATION)
def test_one_column_of_probabilities_is_that_of_the_second_class(name: str) -> None:
    calibrator, twin = (quick(name).set_params(representation="probabilities") for _ in range(2))
    new = np.linspace(0.0, 1.0, 9)
    expected = fit(twin, np.column_stack([1 - PROBS, PROBS])).predict_proba(np.column_stack([1 - new, new]))
    np.testing.assert_array_equal(fit(calibrator, PROBS).predict_proba(new[:, None]), expected)
    with pytest.raises(InvalidInputError, match=r"X must be probabilities of the second class, .* got 1.5 at row 1"):
        calibrator.predict_proba([0.5, 1.5])


def test_a_row_of_a_calibrator_of_two_columns_is_not_taken_for_a_column() -> None:
    fitted = TemperatureScaling().fit(BOTH, LABELS)
    with pytest.raises(InvalidInputError, match="X must have two dimensions"):
        fitted.predict_proba(BOTH[0])
    with pytest.raises(InvalidInputError, match="X has 1 features, but TemperatureScaling is expecting 2 features"):
        fitted.predict_proba(NEW[:, None])


def test_a_blend_takes_one_column_of_logits(tmp_path: Path) -> None:
    arguments = (EMBEDDINGS[:60], LABELS[:60])
    both = KCalBlend().fit(*arguments, logits=BOTH[:60])
    column = KCalBlend().fit(*arguments, logits=LOGITS[:60])
    expected = both.predict_proba(EMBEDDINGS[60:], logits=BOTH[60:])
    for blend in (both, column, load(save(column, tmp_path / "model"))):
        for logits in (LOGITS[60:], LOGITS[60:, None], BOTH[60:]):
            np.testing.assert_array_equal(blend.predict_proba(EMBEDDINGS[60:], logits=logits), expected)
    probs = KCalBlend(representation="probabilities").fit(*arguments, logits=PROBS[:60])
    np.testing.assert_allclose(probs.predict_proba(EMBEDDINGS[60:], logits=PROBS[60:]), expected, atol=1e-6)
    with pytest.raises(InvalidInputError, match=r"logits must have one column for each of the 2 classes .* 3 columns"):
        both.predict_proba(EMBEDDINGS[60:], logits=np.zeros((60, 3)))


@pytest.mark.filterwarnings("ignore:No logits were given")
@pytest.mark.parametrize("name", [*LOGIT_METHODS, "kcal", "kcal-blend"])
def test_truth_values_are_the_classes_false_and_true_of_every_method(name: str, tmp_path: Path) -> None:
    calibrator = quick(name)
    if calibrator.tags.uses_training_set:
        calibrator.set_params(projection="identity")
    rows, new = (BOTH, NEW_BOTH) if calibrator.inputs == "logits" else (EMBEDDINGS, EMBEDDINGS[:17] + 0.01)
    expected = calibrator.fit(rows, LABELS).predict_proba(new)
    fitted = calibrator.fit(rows, LABELS.astype(bool))
    assert fitted.classes_.tolist() == [False, True]
    assert fitted.classes_.dtype == bool
    np.testing.assert_array_equal(fitted.predict_proba(new), expected)
    np.testing.assert_array_equal(fitted.predict(new), expected[:, 1] > expected[:, 0])
    assert fitted.predict(new).dtype == bool
    assert load(save(fitted, tmp_path / "model")).predict(new).dtype == bool


@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_takes_one_column_of_probabilities_and_truth_values(name: str) -> None:
    metric = METRICS[name]
    expected = metric(np.column_stack([1 - PROBS, PROBS]), LABELS)
    for probs in (PROBS, PROBS[:, None], PROBS.tolist(), torch.from_numpy(PROBS)):
        for labels in (LABELS, LABELS.astype(bool), LABELS.astype(bool).tolist()):
            assert metric(probs, labels) == expected


# Names of columns

NAMES = np.array(["owl", "cat", "dog"])
CODES = np.arange(90) % 3
THREE = np.random.default_rng(1).normal(size=(90, 3)) + 2.0 * np.eye(3)[CODES]


def test_the_columns_of_a_table_are_the_classes_of_labels_that_are_text() -> None:
    table, names = pd.DataFrame(THREE, columns=NAMES), NAMES[CODES]
    expected = TemperatureScaling().fit(THREE, names, classes=NAMES).predict_proba(THREE)
    fitted = TemperatureScaling().fit(table, names)
    assert fitted.classes_.tolist() == ["owl", "cat", "dog"]
    np.testing.assert_array_equal(fitted.predict_proba(table), expected)
    embeddings = THREE[:, :2] + 1.0
    blend = KCalBlend().fit(embeddings, names, logits=table)
    assert blend.classes_.tolist() == ["owl", "cat", "dog"]
    np.testing.assert_array_equal(
        blend.predict_proba(embeddings + 0.1, logits=table),
        KCalBlend().fit(embeddings, names, logits=THREE, classes=NAMES).predict_proba(embeddings + 0.1, logits=THREE),
    )


def test_labels_that_name_no_column_are_refused() -> None:
    table, names = pd.DataFrame(THREE, columns=NAMES), NAMES[CODES].tolist()
    names[4] = "emu"
    with pytest.raises(InvalidInputError, match=r"^y .* got emu at row 4"):
        TemperatureScaling().fit(table, names)
    with pytest.raises(InvalidInputError, match=r"^y .* got emu at row 4"):
        KCalBlend().fit(THREE + 1.0, names, logits=table)
    with pytest.raises(InvalidInputError, match=r"^labels .* got emu at row 4"):
        kcal.evaluate(pd.DataFrame(softmax(THREE, axis=1), columns=NAMES), names)


def test_a_table_of_one_column_names_no_class() -> None:
    table = pd.DataFrame({"spam": LOGITS})
    with pytest.raises(InvalidInputError, match=r"^y must be column indices.* classes="):
        TemperatureScaling().fit(table, np.array(["ham", "spam"])[LABELS])
    fitted = TemperatureScaling().fit(table, np.array(["ham", "spam"])[LABELS], classes=["ham", "spam"])
    assert set(fitted.predict(table)) == {"ham", "spam"}


# Probabilities that are passed as logits

WARNING = 'look like probabilities. Pass representation="probabilities" if they are'


@pytest.mark.parametrize("name", WITH_REPRESENTATION)
def test_probabilities_passed_as_logits_are_warned_of_once_by_fit_and_by_predict(name: str) -> None:
    for rows in (np.column_stack([1 - PROBS, PROBS]), PROBS):
        with pytest.warns(RepresentationWarning, match=WARNING) as caught:
            fitted = fit(quick(name), rows)
        assert sum(issubclass(entry.category, RepresentationWarning) for entry in caught) == 1
        with pytest.warns(RepresentationWarning, match=WARNING):
            fitted.predict_proba(rows)


def test_a_blend_warns_of_probabilities_passed_as_logits() -> None:
    with pytest.warns(RepresentationWarning, match=f"^All logits lie between 0 and 1.*{WARNING}"):
        KCalBlend().fit(EMBEDDINGS, LABELS, logits=np.column_stack([1 - PROBS, PROBS]))
    blend = KCalBlend().fit(EMBEDDINGS, LABELS, logits=LOGITS)
    with pytest.warns(RepresentationWarning, match=WARNING):
        blend.predict_proba(EMBEDDINGS + 0.1, logits=np.column_stack([1 - PROBS, PROBS]))
    KCalBlend(representation="probabilities").fit(EMBEDDINGS, LABELS, logits=PROBS)


def test_logits_and_few_rows_are_not_taken_for_probabilities() -> None:
    probs = np.column_stack([1 - PROBS, PROBS])
    Uncalibrated().fit(probs[:9], LABELS[:9])
    spoiled = probs.copy()
    spoiled[50] = [0.5, 0.502]
    Uncalibrated().fit(spoiled, LABELS)
    spoiled[50] = [-0.001, 1.001]
    Uncalibrated().fit(spoiled, LABELS)
