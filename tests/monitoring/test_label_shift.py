"""Estimated class frequencies against closed forms, grids of the likelihood, simulations and other packages."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import random_probs
from scipy.special import softmax
from scipy.stats import binomtest, kstest, norm, t

from kcal import IdentifiabilityWarning, InvalidInputError, estimate_prior
from kcal.monitoring import PriorEstimate, adjust_prior

Floats = NDArray[np.float64]
MEANS = np.array([-2.0, 0.3, 2.5])
BEFORE, AFTER = np.array([0.3, 0.3, 0.4]), np.array([0.7, 0.1, 0.2])


def posterior(points: Floats, prior: Floats) -> Floats:
    """Return p(y | x) of three normal classes."""
    joint = norm.pdf(points[:, None], MEANS) * prior
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def draw(n: int, prior: Floats, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, size=n, p=prior)
    return MEANS[labels] + generator.normal(size=n), labels


def log_likelihood(prior: Floats, probs: Floats, reference: Floats, strength: float) -> float:
    return float(np.log(probs @ (prior / reference)).sum() + strength * reference @ np.log(prior))


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 20))
def test_the_estimate_is_the_mean_posterior_under_itself(seed, n_classes, strength):
    probs = random_probs(80, n_classes, seed)
    reference = np.random.default_rng(seed).dirichlet(np.full(n_classes, 5.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentifiabilityWarning)
        prior = estimate_prior(probs, reference=reference, strength=strength).prior
    mean = adjust_prior(probs, prior, reference).mean(axis=0)
    assert np.abs((80 * mean + strength * reference) / (80 + strength) - prior).sum() < 1e-8
    assert prior.sum() == pytest.approx(1)
    assert (prior >= 0).all()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("strength", [0.0, 30.0])
def test_no_point_of_a_grid_is_more_likely(n_classes, strength):
    probs, reference = random_probs(300, n_classes, seed=1), np.full(n_classes, 1 / n_classes)
    estimate = estimate_prior(probs, reference=reference, strength=strength).prior
    best = log_likelihood(estimate, probs, reference, strength)
    shares = np.linspace(0.005, 0.99, 198)
    grid = [np.array([*p, 1 - sum(p)]) for p in product(shares, repeat=n_classes - 1) if sum(p) < 0.999]
    losses = [log_likelihood(point, probs, reference, strength) for point in grid]
    assert max(losses) <= best
    assert max(losses) > best - 0.1
    assert np.abs(grid[int(np.argmax(losses))] - estimate).max() < 0.005


def test_two_classes_and_a_test_of_known_errors_have_a_closed_form():
    sensitivity, specificity, prevalence = 0.9, 0.8, 0.25
    positive, negative = prevalence * sensitivity, (1 - prevalence) * specificity
    if_positive = positive / (positive + (1 - prevalence) * (1 - specificity))
    if_negative = 1 - negative / (negative + prevalence * (1 - sensitivity))
    n_positive, n = 600, 1000
    second = np.repeat([if_positive, if_negative], [n_positive, n - n_positive])
    found = estimate_prior(second, reference=[1 - prevalence, prevalence], strength=0)
    share, youden = n_positive / n, sensitivity + specificity - 1
    assert found.prior[1] == pytest.approx((share + specificity - 1) / youden, abs=1e-7)
    np.testing.assert_allclose(found.covariance[1, 1], share * (1 - share) / n / youden**2, rtol=1e-5)
    assert found.converged


def test_certain_predictions_are_counted_like_labels():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    found = estimate_prior(np.eye(3)[labels], reference=[0.2, 0.3, 0.5], strength=0)
    np.testing.assert_allclose(found.prior, [0.5, 0.3, 0.2])
    assert found.information == pytest.approx(1)
    assert found.condition == pytest.approx(1)
    covariance = (np.diag(found.prior) - np.outer(found.prior, found.prior)) / 100
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-12)
    for count, low, high in zip([50, 30, 20], found.low, found.high, strict=True):
        np.testing.assert_allclose((low, high), binomtest(count, 100).proportion_ci(method="wilson"), rtol=1e-6)


@pytest.mark.parametrize("groups", [None, np.repeat(np.arange(100), 5)])
def test_predictions_that_tell_nothing_of_two_classes_warn(groups):
    third = np.random.default_rng(0).random(500)
    probs = np.column_stack([0.4 * (1 - third), 0.6 * (1 - third), third])
    with pytest.warns(IdentifiabilityWarning, match="frequencies of (a and b|b and a)"):
        found = estimate_prior(probs, reference=[0.2, 0.3, 0.5], classes=["a", "b", "c"], groups=groups)
    assert found.information == pytest.approx(0, abs=1e-9)
    assert found.prior[0] / found.prior[1] == pytest.approx(2 / 3)  # the penalty decides


def test_intervals_cover_and_p_values_are_uniform():
    estimates = [estimate_prior(posterior(draw(400, AFTER, s)[0], BEFORE), reference=BEFORE, strength=0)
                 for s in range(200)]  # fmt: skip
    covered = np.mean([(each.low <= AFTER) & (each.high >= AFTER) for each in estimates], axis=0)
    assert (covered > 0.91).all()
    assert (covered < 0.985).all()
    unchanged = [estimate_prior(posterior(draw(400, BEFORE, 500 + s)[0], BEFORE), reference=BEFORE, strength=0).p_value
                 for s in range(200)]  # fmt: skip
    assert kstest(unchanged, "uniform").pvalue > 0.01
    assert max(each.p_value for each in estimates) < 1e-3


def biased(points: Floats) -> Floats:
    """Return predictions that are underconfident and too fond of the first class."""
    logits = 0.5 * np.log(posterior(points, BEFORE)) + [1.0, 0.0, 0.0]
    return np.asarray(softmax(logits, axis=1))


def test_biased_predictions_are_corrected_by_calibration_predictions():
    points, _ = draw(5000, AFTER, 1)
    cal_points, cal_labels = draw(2000, BEFORE, 2)
    known = {"calibration_probs": biased(cal_points), "calibration_labels": cal_labels}
    plain = estimate_prior(biased(points), reference=BEFORE)
    assert np.abs(plain.prior - AFTER).sum() > 0.2
    found = estimate_prior(biased(points), **known)
    assert np.abs(found.prior - AFTER).sum() < 0.1
    assert (plain.method, found.method) == ("em", "corrected-em")


@pytest.mark.parametrize(("strength", "n_known"), [(25.0, 0), (0.0, 60)])
def test_covariance_is_the_sum_of_what_one_more_sample_changes(strength, n_known):
    """A sample is added to many copies of all: the infinitesimal jackknife."""
    n, copies = 40, 20
    probs, (known_points, known) = biased(draw(n, AFTER, 5)[0]), draw(n_known, BEFORE, 6)
    known_probs = biased(known_points)

    def estimate(times: int, *rows: int) -> PriorEstimate:
        """Return the estimate from some copies of all samples, and rows of the unlabelled and the labelled ones."""
        chosen = np.concatenate([np.tile(np.arange(n + n_known), times), np.array(rows, dtype=int)])
        own, of_known = chosen[chosen < n], chosen[chosen >= n] - n
        labelled = {"calibration_probs": known_probs[of_known], "calibration_labels": known[of_known]}
        options = labelled if n_known else {"reference": BEFORE}
        return estimate_prior(probs[own], strength=times * strength, **options)

    whole = estimate(copies)
    changes = copies * np.array([estimate(copies, row).prior - whole.prior for row in range(n + n_known)])
    np.testing.assert_allclose(copies * whole.covariance, changes.T @ changes, rtol=0.01)


def test_p_values_of_an_unchanged_population_count_the_noise_of_the_reference():
    values = []
    for seed in range(100):
        cal_points, cal_labels = draw(300, BEFORE, 2000 + seed)
        points, _ = draw(600, BEFORE, 3000 + seed)
        known = {"calibration_probs": biased(cal_points), "calibration_labels": cal_labels}
        values.append(estimate_prior(biased(points), strength=0, **known).p_value)
    assert kstest(values, "uniform").pvalue > 0.01


def test_shrinking_moves_to_the_reference_unless_a_change_is_certain():
    unchanged = estimate_prior(posterior(draw(60, BEFORE, 1)[0], BEFORE), reference=BEFORE)
    changed = estimate_prior(posterior(draw(20_000, AFTER, 1)[0], BEFORE), reference=BEFORE)
    np.testing.assert_allclose(changed.shrunken, changed.prior, atol=1e-3)
    for each in (unchanged, changed):
        direction = each.prior - BEFORE
        shares = (each.shrunken - BEFORE) / direction
        np.testing.assert_allclose(shares, shares[0])
        weights = (each.prior + BEFORE) / 2
        noise = (np.diag(each.covariance) / weights).sum() / (direction**2 / weights).sum()
        assert shares[0] == pytest.approx(max(0, 1 - noise))


def test_whole_groups_vary_in_the_intervals():
    probs = posterior(draw(300, AFTER, 3)[0], BEFORE)
    alone = estimate_prior(probs, reference=BEFORE, strength=0)
    groups = np.repeat(np.arange(300), 4)
    repeated = estimate_prior(np.repeat(probs, 4, axis=0), reference=BEFORE, strength=0, groups=groups)
    np.testing.assert_allclose(repeated.prior, alone.prior, atol=1e-7)
    np.testing.assert_allclose(repeated.covariance, alone.covariance * 300 / 299, rtol=1e-4)


def test_one_group_says_nothing_of_the_variance():
    """The influences of all rows sum to 0: the intervals had almost no width."""
    probs, labels, one = biased(draw(60, AFTER, 1)[0]), np.arange(60) % len(BEFORE), ["the same patient"] * 60
    with pytest.raises(InvalidInputError, match=r"^groups must have at least 2 groups"):
        estimate_prior(probs, reference=BEFORE, groups=one)
    known = {"calibration_probs": probs, "calibration_labels": labels, "calibration_groups": one}
    with pytest.raises(InvalidInputError, match=r"^calibration_groups must have at least 2 groups"):
        estimate_prior(probs, **known)


def test_whole_groups_of_the_calibration_set_vary_too():
    points, cal_points, cal_labels = draw(400, AFTER, 1)[0], *draw(200, BEFORE, 2)
    known = {"calibration_probs": biased(cal_points), "calibration_labels": cal_labels}
    own = estimate_prior(biased(points), **known)
    single = estimate_prior(biased(points), calibration_groups=np.arange(200), **known)
    np.testing.assert_allclose(single.prior, own.prior)
    ratios = np.diag(single.covariance) / np.diag(own.covariance)
    assert (ratios > 1).all()
    assert (ratios < 200 / 199).all()  # the unlabelled samples have no groups
    few = estimate_prior(biased(points), calibration_groups=np.arange(200) % 2, groups=np.arange(400) % 2, **known)
    assert np.isnan(few.p_value)
    labels = few.prior * (1 - few.prior) / np.diag(few.covariance)
    wide = t.ppf(0.975, 1) ** 2 / labels
    centre = (few.prior + wide / 2) / (1 + wide)
    np.testing.assert_allclose((few.low + few.high) / 2, centre, rtol=1e-6)


def test_adjusted_predictions_follow_bayes_rule():
    points, _ = draw(50, AFTER, 4)
    np.testing.assert_allclose(adjust_prior(posterior(points, BEFORE), AFTER, BEFORE), posterior(points, AFTER))
    excluded = adjust_prior([[1.0, 0.0, 0.0]], [0.0, 0.4, 0.6], BEFORE)
    np.testing.assert_allclose(excluded, [[0.0, 0.4, 0.6]])


@pytest.mark.parametrize(
    ("parameter", "options"),
    [
        ("reference", {}),
        ("reference", {"reference": [0.5, 0.6]}),
        ("reference", {"reference": [0.2, 0.3, 0.5]}),
        ("reference", {"reference": [0.5, 0.5], "calibration_labels": [0], "calibration_probs": [[0.5, 0.5]]}),
        ("calibration_probs", {"calibration_labels": [0, 1]}),
        ("calibration_probs", {"calibration_labels": [0], "calibration_probs": [[0.2, 0.3, 0.5]]}),
        ("calibration_probs", {"reference": [0.5, 0.5], "calibration_groups": [0, 1]}),
        ("classes", {"reference": [0.5, 0.5], "classes": ["a"]}),
        ("strength", {"reference": [0.5, 0.5], "strength": 1e308}),
    ],
)
def test_wrong_arguments_are_named(parameter, options):
    with pytest.raises(InvalidInputError, match=parameter):
        estimate_prior([[0.2, 0.8], [0.6, 0.4]], **options)


def test_few_groups_do_not_make_the_test_of_no_change_reject_too_often() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(200):
        probs = generator.dirichlet([0.3] * 3, size=100)
        estimate = estimate_prior(probs, reference=[1 / 3] * 3, groups=np.arange(100) % 5)
        rejected += estimate.p_value < 0.05
    assert rejected < 25  # 10 expected, standard deviation 3; χ² in place of T² rejects about 54
