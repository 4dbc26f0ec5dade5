"""A blend where a class has one sample, lies within one group, or has no sample."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from kcal import KCalBlend, TemperatureScaling
from kcal.calibrators.blend import fitting
from kcal.calibrators.blend.fitting import MIN_MEDIAN_EVIDENCE, weights_left, whole_class_sums
from kcal.calibrators.kcal.samples import check_samples
from kcal.datasets import load_example
from kcal.errors import FewSamplesWarning
from kcal.kernels import ClassSums
from kcal.metrics import negative_log_likelihood


def few_samples(n: int, n_classes: int, seed: int) -> tuple[Any, Any, Any]:
    """Return embeddings, labels (all classes equally often) and logits that know them."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(n_classes, 8))
    labels = generator.permutation(np.arange(n) % n_classes)
    logits = 4 * np.eye(n_classes)[labels] + 1.5 * generator.normal(size=(n, n_classes))
    return 1.5 * centres[labels] + generator.normal(size=(n, 8)), labels, logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_class", [1, 2, 3])
def test_few_samples_a_class_do_not_teach_it_to_vote_against_a_class(per_class: int) -> None:
    """A sample that is left out makes its own class smaller: that must not tell the class."""
    n_classes = 40
    (x, y, z), (tx, ty, tz) = few_samples(per_class * n_classes, n_classes, 1), few_samples(2000, n_classes, 2)
    blend = KCalBlend(projection=None).fit(x, y, logits=z, classes=range(n_classes))
    alone = KCalBlend(projection=None).fit(x, y, classes=range(n_classes))
    scaled = TemperatureScaling().fit(z, y, classes=range(n_classes)).predict_proba(tz)
    assert negative_log_likelihood(blend.predict_proba(tx, logits=tz), ty) < 1.05 * negative_log_likelihood(scaled, ty)
    if per_class > 1:  # of one sample a class nothing can be judged without a network
        assert negative_log_likelihood(alone.predict_proba(tx), ty) < 0.5 * np.log(n_classes)


@pytest.mark.filterwarnings("ignore")
def test_classes_in_a_group_of_their_own_do_not_teach_it_either() -> None:
    (x, y, z), (tx, ty, tz) = few_samples(300, 3, 1), few_samples(2000, 3, 2)
    scaled = negative_log_likelihood(TemperatureScaling().fit(z, y).predict_proba(tz), ty)
    one_only = np.random.default_rng(0).integers(4, size=300)
    one_only[y == 2] = 0
    for groups in (y, one_only, one_only % 2):
        blend = KCalBlend(projection=None, seed=2**40).fit(x, y, logits=z, groups=groups)
        assert negative_log_likelihood(blend.predict_proba(tx, logits=tz), ty) < 1.05 * scaled
        assert 0 < blend.group_efficiency_ <= 1


@pytest.mark.filterwarnings("ignore")
def test_embeddings_of_noise_without_logits_give_the_frequencies() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(80, 8)), generator.integers(60, size=80)
    blend = KCalBlend(projection=None).fit(x, y, classes=range(60))
    truth = generator.integers(60, size=3000)
    found = negative_log_likelihood(blend.predict_proba(generator.normal(size=(3000, 8))), truth)
    frequencies = (np.bincount(y, minlength=60) + 0.5) / (80 + 30)
    assert found < negative_log_likelihood(np.tile(frequencies, (3000, 1)), truth) + 0.2


@pytest.mark.filterwarnings("ignore")
def test_classes_that_no_sample_has_keep_some_probability() -> None:
    """With two samples a class on average, one class in seven is not seen: the background has to allow for it."""
    n_classes = 100
    generator = np.random.default_rng(3)
    x, y, z = few_samples(20_000, n_classes, 5)
    kept = generator.permutation(20_000)[:200]
    assert len(np.unique(y[kept])) < 95
    tx, ty, tz = few_samples(4000, n_classes, 6)
    blend = KCalBlend(projection=None).fit(x[kept], y[kept], logits=z[kept], classes=range(n_classes))
    scaled = TemperatureScaling().fit(z[kept], y[kept], classes=range(n_classes)).predict_proba(tz)
    assert negative_log_likelihood(blend.predict_proba(tx, logits=tz), ty) < negative_log_likelihood(scaled, ty)


def test_what_is_left_of_a_class_stands_for_all_of_it() -> None:
    """With a kernel so wide that all points count the same, sums are the classes' weights, whoever is left out."""
    codes, weights = [0, 0, 0, 1, 1, 2], np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0]) / 1.5
    rows = torch.zeros(6, 1, dtype=torch.float64)
    samples = check_samples(rows, codes, classes=range(4), sample_weight=weights)
    left, totals = (
        torch.from_numpy(samples.left_out_weights(np.arange(len(samples.codes)))),
        torch.from_numpy(samples.class_weights()),
    )
    np.testing.assert_allclose(1.5 * totals, [4, 4, 1, 0])
    np.testing.assert_allclose(left.sum(dim=1), samples.weights)
    sums = ClassSums((totals - left).T[None], torch.zeros(1, 6, dtype=torch.float64))
    weights_seen = weights_left(samples, np.arange(len(samples.codes)))
    found = 1.5 * whole_class_sums(sums, samples.class_weights(), weights_seen).sums[0].T.numpy()
    np.testing.assert_allclose(found[:5, :3], np.tile([4, 4, 1], (5, 1)))
    np.testing.assert_allclose(found[5, :3], [4, 4, 8 / 8])  # nothing of class 2 is left: its share of the sum
    assert (found[:, 3] == 0).all()
    grouped = check_samples(rows, codes, classes=range(3), sample_weight=weights, groups=[7, 7, 1, 1, 7, 1])
    np.testing.assert_allclose(1.5 * grouped.left_out_weights(np.arange(len(grouped.codes)))[0], [3, 3, 0])
    np.testing.assert_allclose(1.5 * grouped.left_out_weights(np.arange(len(grouped.codes)))[5], [1, 1, 1])


@pytest.mark.parametrize(("n", "slack"), [(20, 0.35), (40, 0.15), (80, 0.05)])
@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
def test_a_handful_of_samples_leaves_much_to_the_network(n: int, slack: float) -> None:
    """Of ten classes of the embedded example, some then have one sample or none."""
    example = load_example()
    given, test = example.calibration, example.test
    rows = slice(0, 1500)
    for seed in range(4):
        chosen = np.random.default_rng(seed).permutation(len(given.labels))[:n]
        labels, logits = given.labels[chosen], given.logits[chosen]
        scaled = TemperatureScaling().fit(logits, labels).predict_proba(test.logits[rows])
        blend = KCalBlend().fit(given.embeddings[chosen], labels, logits=logits)
        found = blend.predict_proba(test.embeddings[rows], logits=test.logits[rows])
        losses = [negative_log_likelihood(each, test.labels[rows]) for each in (found, scaled)]
        assert losses[0] < losses[1] + slack
        # no bandwidth at which samples hardly reach each other
        assert blend.model_.experts[0].median_evidence[1] > 1.3 * MIN_MEDIAN_EVIDENCE


def test_few_samples_are_told_and_enough_are_not() -> None:
    x, y, z = few_samples(40, 4, 0)
    with pytest.warns(FewSamplesWarning, match="31 calibration samples for 4 classes are few: below 8 per class"):
        KCalBlend(projection=None).fit(x[:31], y[:31], logits=z[:31])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewSamplesWarning)
        KCalBlend(projection=None).fit(x[:32], y[:32], logits=z[:32])
        KCalBlend(projection=None).fit(x[:10], y[:10])


def test_a_class_without_samples_keeps_the_probability_that_the_network_gives_it(problem: Any) -> None:
    rows = problem.labels < 2
    blend = KCalBlend(projection=None).fit(problem.embeddings[rows], problem.labels[rows], logits=problem.logits[rows])
    scaled = TemperatureScaling().fit(problem.logits[rows], problem.labels[rows]).predict_proba(problem.test_logits)
    found = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    theirs = problem.test_labels == 2
    assert found[theirs, 2].mean() > 0.8 * scaled[theirs, 2].mean()
    assert scaled[theirs, 2].mean() > 0.3
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_a_blend_fitted_on_a_part_of_its_samples_predicts_almost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y, z), (tx, _, tz) = few_samples(600, 5, 1), few_samples(500, 5, 2)
    whole = KCalBlend(projection=None).fit(x, y, logits=z)
    monkeypatch.setattr(fitting, "MAX_ENTRIES", 300 * 5)
    part = KCalBlend(projection=None).fit(x, y, logits=z)
    assert part.weights_ != whole.weights_
    assert len(part.model_.experts[0].support) == 600
    first, second = (blend.predict_proba(tx, logits=tz) for blend in (whole, part))
    assert np.abs(first - second).mean() < 0.01
