"""The one result that holds every metric."""

import pickle

import numpy as np
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


def test_nothing_above_the_threshold_is_shown_as_nan():
    result = evaluate(np.full((2, 1000), 1 / 1000), [0, 1], threshold="max")
    assert np.isnan(result.classwise_calibration_error)
    assert str(result).count("–") == 1
