"""The one result that holds every metric."""

import pickle

import numpy as np
import pandas
import pytest

from kcal.errors import InvalidInputError
from kcal.metrics import (
    accuracy,
    brier_score,
    classwise_calibration_error,
    evaluate,
    expected_calibration_error,
    multiclass_brier_loss,
    negative_log_likelihood,
    smooth_calibration_error,
    top_label_brier_loss,
)


@pytest.fixture
def predictions():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(5, 0.4), size=1234)
    return probs, generator.integers(0, 5, size=1234)


def test_evaluation_holds_what_each_metric_gives_alone(predictions):
    probs, labels = predictions
    result = evaluate(probs, labels, bins=12, threshold=0.1, clip="published")
    assert result.as_dict() == {
        "accuracy": accuracy(probs, labels),
        "expected_calibration_error": expected_calibration_error(probs, labels, bins=12),
        "classwise_calibration_error": classwise_calibration_error(probs, labels, bins=12, threshold=0.1),
        "smooth_calibration_error": smooth_calibration_error(probs, labels),
        "brier_score": brier_score(probs, labels),
        "negative_log_likelihood": negative_log_likelihood(probs, labels, clip="published"),
    }
    assert (result.n_samples, result.n_classes, result.bins) == (1234, 5, 12)
    assert (result.threshold, result.clip, result.protocol) == (0.1, "published", "standard")
    assert {name: getattr(result, name) for name in result.metrics} == result.metrics
    with pytest.raises(AttributeError, match="top_label_brier_loss"):
        _ = result.top_label_brier_loss
    assert pickle.loads(pickle.dumps(result)) == result


def test_evaluation_by_the_paper_has_its_definitions(predictions):
    probs, labels = predictions
    result = evaluate(probs, labels, protocol="paper")
    both = {"bins": 20, "adaptive": True}, {"bins": 20, "adaptive": False}
    ece, static_ece = (expected_calibration_error(probs, labels, **bins) for bins in both)
    cece, static_cece = (classwise_calibration_error(probs, labels, threshold="max", **bins) for bins in both)
    assert result.as_dict() == {
        "accuracy": accuracy(probs, labels),
        "expected_calibration_error": ece,
        "classwise_calibration_error": cece,
        "static_expected_calibration_error": static_ece,
        "static_classwise_calibration_error": static_cece,
        "top_label_brier_loss": top_label_brier_loss(probs, labels),
        "multiclass_brier_loss": multiclass_brier_loss(probs, labels),
        "negative_log_likelihood": negative_log_likelihood(probs, labels),
    }
    assert (result.bins, result.threshold, result.adaptive) == (20, 0.2, True)
    with pytest.raises(InvalidInputError, match=r"^protocol must"):
        evaluate(probs, labels, protocol="published")


def test_evaluation_prints_as_a_table():
    result = evaluate(np.array([[0.75, 0.25], [0.25, 0.75]]), [0, 0], bins=1)
    assert str(result).splitlines() == [
        "2 samples, 2 classes",
        "accuracy          0.50000  higher is better",
        "ECE               0.25000  lower is better",
        "class-wise ECE    0.50000  lower is better",
        "smooth ECE        0.25000  lower is better",
        "Brier score       0.31250  lower is better",
        "log-loss          0.83699  lower is better",
        "1 equal-width bins; class-wise errors over all probabilities; probabilities clipped at 1e-12 in logarithms",
    ]


def test_nothing_above_the_threshold_is_shown_as_nan():
    result = evaluate(np.full((2, 1000), 1 / 1000), [0, 1], threshold="max")
    assert np.isnan(result.classwise_calibration_error)
    assert "nan" in str(result)


def test_labels_and_classes_may_come_from_pandas():
    labels = pandas.Series(["b", "a", "b"], dtype=object)
    found = evaluate([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]], labels, classes=pandas.Series(["a", "b"], dtype=object))
    assert found.accuracy == pytest.approx(2 / 3)
    with pytest.raises(InvalidInputError, match="got None at row 1"):
        evaluate([[0.1, 0.9], [0.8, 0.2]], pandas.Series(["b", None], dtype=object), classes=["a", "b"])


def test_result_can_be_hashed_with_its_intervals():
    probs, labels = [[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]], [1, 0, 1]
    first, second = (evaluate(probs, labels, confidence=0.9, resamples=20) for _ in range(2))
    assert len({first, second}) == 1


def test_pandas_own_kinds_of_numbers_are_numbers():
    frame = pandas.DataFrame([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]])
    labels = pandas.Series([1, 0, 1])
    expected = evaluate(frame, labels)
    assert evaluate(frame.convert_dtypes(), labels.convert_dtypes()) == expected
    missing = frame.convert_dtypes()
    missing.iloc[1, 0] = pandas.NA
    with pytest.raises(InvalidInputError, match="at row 1"):
        evaluate(missing, labels)


def test_named_labels_count_for_their_columns():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    named = evaluate(probs, ["b", "c", "a"], classes=["b", "c", "a"])
    assert named == evaluate(probs, [0, 1, 2])
    assert named == evaluate(probs, [2, 0, 1], classes=[2, 0, 1])


@pytest.mark.parametrize(
    ("name", "labels", "classes"),
    [
        ("labels", [0.5, 1.0, 0.0], None),
        ("labels", [0.0, np.nan, 0.0], None),
        ("labels", [1, 2, 1], None),
        ("labels", ["b", "x", "a"], ["a", "b"]),
        ("labels", [0, 1, 1], ["a", "b"]),
        ("classes", ["b", "a", "a"], ["a", "a"]),
        ("classes", ["b", "a", "a"], ["a", "b", "c"]),
    ],
)
def test_invalid_labels_are_named(name, labels, classes):
    with pytest.raises(InvalidInputError, match=f"^{name} must"):
        evaluate([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]], labels, classes=classes)


def test_groups_must_be_known():
    with pytest.raises(InvalidInputError, match=r"^groups .* at row 2"):
        evaluate([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]], [1, 0, 1], confidence=0.9, groups=[1.0, 2.0, np.nan])
