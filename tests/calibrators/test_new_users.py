"""What happens at a first try: swapped arguments, no logits, one class, few samples, no training set, NaN."""

import warnings

import numpy as np
import pytest
import torch

import kcal
from kcal import (
    BandwidthWarning,
    FewSamplesWarning,
    InvalidInputError,
    KCal,
    KCalBlend,
    KcalWarning,
    MissingClassWarning,
)

generator = np.random.default_rng(0)
LABELS = generator.integers(3, size=90)
EMBEDDINGS = np.eye(3, 20)[LABELS] * 2 + generator.normal(size=(90, 20))
LOGITS = 2 * np.eye(3)[LABELS] + generator.normal(size=(90, 3))


def test_blend_with_swapped_embeddings_and_logits_raises():
    with pytest.raises(InvalidInputError, match="swapped"):
        KCalBlend().fit(LOGITS, LABELS, logits=EMBEDDINGS)


def test_blend_without_logits_says_that_it_knows_no_network():
    with pytest.warns(KcalWarning, match="No logits"):
        fitted = KCalBlend().fit(EMBEDDINGS, LABELS)
    assert "without logits" in fitted.summary()["network"]


@pytest.mark.parametrize(
    ("calibrator", "options"), [(KCal(), {}), (KCalBlend(), {}), (KCalBlend(), {"logits": LOGITS})]
)
def test_labels_of_one_class_are_believed_with_a_warning(calibrator, options):
    known = {"classes": [0, 1, 2]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = calibrator.fit(EMBEDDINGS, np.full(90, 1), **options, **known)
    assert any(issubclass(warning.category, MissingClassWarning) for warning in caught)
    assert not any(issubclass(warning.category, BandwidthWarning) for warning in caught)
    queries = {name: values + 0.1 for name, values in options.items()}
    assert (fitted.predict_proba(EMBEDDINGS + 0.1, **queries)[:, 1] > 0.95).all()


def test_blend_of_fewer_samples_than_classes_names_temperature_scaling():
    logits = generator.normal(size=(90, 100))
    with pytest.warns(FewSamplesWarning, match="temperature scaling"):
        KCalBlend().fit(EMBEDDINGS, np.arange(90), logits=logits)


@pytest.mark.parametrize(("n_features", "metric"), [(20, "unit"), (3, "identity")])
def test_kcal_without_a_training_set_learns_no_projection_and_uses_every_sample(n_features, metric):
    rows = EMBEDDINGS[:, :n_features]
    with pytest.warns(KcalWarning, match="No training set"):
        fitted = KCal().fit(rows, LABELS)
    assert fitted.support_size_ == 90
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FewSamplesWarning)
        told = KCal(projection=metric).fit(rows, LABELS)
    np.testing.assert_array_equal(fitted.predict_proba(rows + 1), told.predict_proba(rows + 1))


@pytest.mark.parametrize("calibrator", [KCal.as_published(), KCal(projection=torch.nn.Linear(20, 2).double())])
def test_projections_that_only_training_gives_need_a_training_set(calibrator):
    with pytest.raises(InvalidInputError, match="train_embeddings"):
        calibrator.fit(EMBEDDINGS, LABELS)


@pytest.mark.parametrize("calibrator", [kcal.TemperatureScaling(), KCalBlend(), KCal(projection="unit")])
def test_whole_numbers_as_floats_are_labels(calibrator):
    logits = {"logits": LOGITS} if calibrator.inputs == "both" else {}
    rows = LOGITS if calibrator.inputs == "logits" else EMBEDDINGS
    fitted = calibrator.fit(rows, LABELS.astype(float), **logits)
    assert fitted.classes_.dtype == float
    new = {name: values + 0.01 for name, values in logits.items()}
    assert fitted.score(rows + 0.01, LABELS.astype(float), **new) > 0.5


@pytest.mark.parametrize("calibrator", [kcal.TemperatureScaling(), KCal()])
def test_several_labels_per_sample_name_the_way(calibrator):
    with pytest.raises(
        InvalidInputError, match=r"^y must be one-dimensional.*Several labels.*one calibrator per label"
    ):
        calibrator.fit(LOGITS, LABELS[:, None] == [0, 1, 2])


def test_nan_raises_in_predictions_and_modules():
    fitted = KCal(projection="unit").fit(EMBEDDINGS, LABELS)
    rows = EMBEDDINGS[:2] + 1
    rows[0, 0] = np.nan
    for predict in (fitted.predict_proba, lambda rows: fitted.as_module()(torch.from_numpy(rows))):
        with pytest.raises(InvalidInputError, match="NaN"):
            predict(rows)


@pytest.mark.parametrize("projection", ["unit", "identity"])
def test_module_equals_predictions_of_tiny_embeddings(projection):
    rows = (1e-19 * EMBEDDINGS).astype(np.float32)
    fitted = KCal(projection=projection).fit(rows, LABELS)
    found = fitted.as_module()(torch.from_numpy(1.5 * rows)).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, fitted.predict_proba(1.5 * rows))


def test_kcal_warns_up_to_fifty_samples_per_class_and_names_the_blend():
    """As measured on six tasks: docs/results/sizes.csv."""
    labels = np.arange(153) % 3
    rows = 2 * np.eye(3)[labels] + generator.normal(size=(153, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KCal(projection="identity", bandwidth=0.5).fit(rows, labels)
    with pytest.warns(FewSamplesWarning, match="KCalBlend"):
        KCal(projection="identity", bandwidth=0.5).fit(rows[:150], labels[:150])
