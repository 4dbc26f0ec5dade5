"""The contract of every registered metric; a metric that is added to the table is tested here without another line."""

import numpy as np
import pandas as pd
import pytest
import torch

from kcal.metrics import METRICS, PAPER_METRICS, accuracy, confidence_interval, evaluate
from kcal.metrics.registry import kind_of_metric

ALL = {**METRICS, **{metric.title: metric for metric in PAPER_METRICS.values() if metric not in METRICS.values()}}
every_metric = pytest.mark.parametrize("metric", ALL.values(), ids=ALL)
MULTIPLICITIES = np.random.default_rng(1).integers(0, 4, 90)
DEPENDS_ON_THE_NUMBER_OF_ROWS = {
    "paper CECE",  # the number of rows above the threshold is not a multiple of the bins
    "paper CECE min",
    "top_label_calibration_error",  # nor is that of each top class
    "kde_calibration_error",  # its bandwidth
    "accuracy_rejection_area",  # its steps
    "marginal_calibration_error",  # degrees of freedom of the debiased variance
    "debiased_squared_calibration_error",
    "kernel_calibration_error",  # a repeated row is another pair
}


@pytest.fixture(scope="module")
def predictions():
    """Overconfident predictions of three classes, without ties, every class frequent."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=1.5, size=(90, 3))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    odds = np.exp(4.0 * logits)
    return odds / odds.sum(axis=1, keepdims=True), labels


@every_metric
def test_perfect_predictions_are_best_and_values_in_range(metric, predictions):
    probs, labels = predictions
    perfect = metric(np.eye(3)[labels], labels)
    assert perfect == pytest.approx(1.0 if metric.direction == "higher" else 0.0, abs=1e-12)
    worse = metric(probs, labels)
    assert worse < perfect if metric.direction == "higher" else worse > perfect
    assert isinstance(worse, float)
    assert worse <= (1 if metric.unit == "%" else np.inf)


@every_metric
def test_order_of_the_rows_does_not_matter(metric, predictions):
    probs, labels = predictions
    order = np.random.default_rng(2).permutation(len(labels))
    weights = np.random.default_rng(3).gamma(3.0, size=len(labels))
    assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), rel=1e-12)
    weighted = metric(probs, labels, sample_weight=weights)
    assert metric(probs[order], labels[order], sample_weight=weights[order]) == pytest.approx(weighted, rel=1e-10)


@every_metric
def test_order_of_the_classes_does_not_matter(metric, predictions):
    probs, labels = predictions
    weights = np.random.default_rng(3).gamma(3.0, size=len(labels))
    for columns in ([1, 2, 0], [2, 1, 0]):
        turned = probs[:, columns], np.argsort(columns)[labels]
        assert metric(*turned) == pytest.approx(metric(probs, labels), rel=1e-9)
        expected = metric(probs, labels, sample_weight=weights)
        assert metric(*turned, sample_weight=weights) == pytest.approx(expected, rel=1e-9)


@every_metric
@pytest.mark.parametrize("scale", [1e-200, 3.0])
def test_only_the_ratios_of_weights_matter(metric, scale, predictions):
    weights = np.random.default_rng(4).gamma(3.0, size=len(predictions[1]))
    expected = metric(*predictions, sample_weight=weights)
    assert metric(*predictions, sample_weight=scale * weights) == pytest.approx(expected, rel=1e-9)


@every_metric
def test_equal_weights_are_no_weights(metric, predictions):
    n = len(predictions[1])
    assert metric(*predictions, sample_weight=np.full(n, 0.1)) == metric(*predictions)
    assert metric(*predictions, sample_weight=None) == metric(*predictions)


@every_metric
def test_weights_of_zero_leave_samples_out(metric, predictions):
    probs, labels = predictions
    kept = MULTIPLICITIES > 0
    weights = np.random.default_rng(5).gamma(3.0, size=len(labels)) * kept
    expected = metric(probs[kept], labels[kept], sample_weight=weights[kept])
    assert metric(probs, labels, sample_weight=weights) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", [name for name in METRICS if name not in DEPENDS_ON_THE_NUMBER_OF_ROWS])
def test_integer_weights_are_repeated_rows(name, predictions):
    probs, labels = predictions
    weights = MULTIPLICITIES.copy()
    weights[0] += -weights.sum() % 20  # repeated rows, too, then fall into bins of exactly equal weight
    repeated = np.repeat(probs, weights, axis=0), np.repeat(labels, weights)
    assert METRICS[name](probs, labels, sample_weight=weights) == pytest.approx(METRICS[name](*repeated), abs=1e-9)


@every_metric
def test_every_kind_of_array_gives_the_same_value(metric, predictions):
    probs, labels = predictions
    expected = metric(probs, labels)
    assert metric(torch.from_numpy(probs).requires_grad_(), torch.from_numpy(labels)) == expected
    assert metric(pd.DataFrame(probs), pd.Series(labels)) == expected
    assert metric(probs.tolist(), labels.tolist()) == expected
    assert metric(probs.astype(np.float32), labels) == pytest.approx(expected, abs=1e-5)
    assert metric(torch.from_numpy(probs).to(torch.bfloat16), labels) == pytest.approx(expected, abs=0.05)


def test_values_are_formatted_for_tables():
    error = METRICS["expected_calibration_error"]
    assert (error.scale, error.format(0.01234), error.labelled(error.title)) == (100, "1.23", "ECE, % ↓")
    loss = METRICS["negative_log_likelihood"]
    assert (loss.scale, loss.format(0.01234), loss.labelled(loss.title)) == (1, "0.0123", "log-loss ↓")
    assert error.format(float("nan")) == "–"
    assert METRICS["accuracy"].arrow == "↑"


def test_evaluation_agrees_with_the_table(predictions):
    for protocol, table in (("standard", METRICS), ("paper", PAPER_METRICS)):
        for name, value in evaluate(*predictions, protocol=protocol).as_dict().items():
            assert table[name](*predictions) == pytest.approx(value, rel=1e-12), name


def test_intervals_know_the_kind_of_registered_metrics(predictions):
    for metric in METRICS.values():
        assert kind_of_metric(metric) == kind_of_metric(metric.function) == metric.kind
    assert kind_of_metric(lambda probs, labels: 0.0) == "score"
    registered = confidence_interval(METRICS["accuracy"], *predictions, resamples=20)
    assert registered == confidence_interval(accuracy, *predictions, resamples=20)


@pytest.mark.parametrize("name", [name for name in METRICS if name not in DEPENDS_ON_THE_NUMBER_OF_ROWS])
def test_many_rows_in_blocks_equal_the_same_rows_once(name, predictions):
    """2.2 million entries, more than a block has; the same rows again and again change no share of any bin."""
    probs, labels = predictions
    many = METRICS[name](np.tile(probs, (8000, 1)), np.tile(labels, 8000))
    once = METRICS[name](np.tile(probs, (20, 1)), np.tile(labels, 20))
    assert many == pytest.approx(once, abs=1e-9)
