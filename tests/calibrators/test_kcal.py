"""KCal: probabilities against double loops, projections, bandwidths, groups, weights, classes, leaks, bad input."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from kcal import FastRecipe, KCal, KCalBlend, load, save, train_projection
from kcal.calibrators import was_fitted_on
from kcal.errors import InvalidInputError, KcalWarning, LeakageWarning, MissingClassWarning
from kcal.kernels import KERNELS
from synthetic import CENTRES, make_problem

TINY = FastRecipe(steps=6, batch_size=60, checkpoints=2)

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "leave-one-out leaves a sample out with its whole weight, so "
    "that the bandwidth chosen for a weight of 2 is not the one chosen for two copies; at a fixed bandwidth it holds",
}


def slow_posteriors(
    queries: Any, points: Any, codes: Any, n_classes: int, b: float, weights: Any = None, skip: Any = None
):
    """A double loop in float64; ``skip(i, j)`` leaves point i out of query j."""
    result = np.zeros((len(queries), n_classes))
    for j, query in enumerate(np.asarray(queries, dtype=np.float64)):
        for i, point in enumerate(np.asarray(points, dtype=np.float64)):
            if skip is None or not skip(i, j):
                weight = 1.0 if weights is None else weights[i]
                result[j, codes[i]] += weight * np.exp(-((query - point) ** 2).mean() / (2 * b * b))
    return result / result.sum(axis=1, keepdims=True)


def training_set(problem: Any) -> dict[str, Any]:
    return {"train_embeddings": problem.train_embeddings, "train_labels": problem.train_labels}


def identity(**parameters: Any) -> KCal:
    return KCal(**{"projection": "identity", "smoothing": 0.0, **parameters})


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KCal(), EXPECTED_FAILURES),
        (KCal(projection="unit"), EXPECTED_FAILURES),
        (identity(kernel="epanechnikov", bandwidth=1.5), {}),
        (KCalBlend(), EXPECTED_FAILURES),
    ],
    ids=["default", "unit", "compact kernel, fixed bandwidth", "blend"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_estimator_checks(estimator: Any, expected: dict[str, str]) -> None:
    results = check_estimator(estimator, expected_failed_checks=expected)
    assert {entry["check_name"] for entry in results if entry["status"] == "xfail"} == expected.keys()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_equal_the_double_loop(problem: Any, dtype: type) -> None:
    calibrator = identity().fit(problem.embeddings.astype(dtype), problem.labels)
    expected = slow_posteriors(
        problem.test_embeddings[:20], problem.embeddings, problem.labels, 3, calibrator.bandwidth_
    )
    probabilities = calibrator.predict_proba(problem.test_embeddings[:20].astype(dtype))
    assert probabilities.dtype == dtype
    np.testing.assert_allclose(probabilities, expected, atol=1e-12 if dtype is np.float64 else 1e-6)


@pytest.mark.parametrize("groups", [None, np.arange(60) % 7], ids=["samples", "groups"])
def test_leave_one_out_probabilities_equal_the_double_loop_in_input_order(problem: Any, groups: Any) -> None:
    rows, labels, keys = problem.embeddings[:60], problem.labels[:60], np.arange(60) if groups is None else groups
    calibrator = identity().fit(rows, labels, groups=groups)
    expected = slow_posteriors(rows, rows, labels, 3, calibrator.bandwidth_, skip=lambda i, j: keys[i] == keys[j])
    np.testing.assert_allclose(calibrator.leave_one_out_proba_, expected, atol=1e-12)


def test_the_bandwidth_minimises_the_leave_one_out_loss_over_a_dense_grid(problem: Any) -> None:
    rows, labels = problem.embeddings[:50], problem.labels[:50]
    found = identity().fit(rows, labels)

    def loss(b: float) -> float:
        posteriors = slow_posteriors(rows, rows, labels, 3, b, skip=lambda i, j: i == j)
        return -np.log(posteriors[np.arange(50), labels]).mean()

    grid = found.bandwidth_ * np.exp(np.linspace(-1, 1, 21))
    assert loss(found.bandwidth_) <= min(loss(b) for b in grid) + 1e-6
    curve = found.bandwidth_curve_
    assert curve is not None
    assert curve.loss == pytest.approx(loss(found.bandwidth_), abs=1e-12)
    assert (np.diff(curve.bandwidths) > 0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(KERNELS)))
def test_integer_weights_equal_repetition_at_a_fixed_bandwidth(seed: int, kernel: str) -> None:
    generator = np.random.default_rng(seed)
    rows, labels, weights = generator.normal(size=(30, 3)), np.arange(30) % 3, generator.integers(0, 4, 30)
    weights[:24] = np.maximum(weights[:24], 1)
    queries = generator.normal(size=(10, 3))
    weighted = identity(bandwidth=0.8, kernel=kernel).fit(rows, labels, sample_weight=weights)
    repeated = identity(bandwidth=0.8, kernel=kernel).fit(np.repeat(rows, weights, axis=0), np.repeat(labels, weights))
    np.testing.assert_allclose(weighted.predict_proba(queries), repeated.predict_proba(queries), atol=1e-12)


def test_columns_are_the_sorted_union_of_calibration_and_training_labels(problem: Any) -> None:
    names = np.array(["cat", "ant", "bee", "dog"])
    train_labels = names[np.where(np.arange(400) < 10, 3, problem.train_labels)]
    with pytest.warns(MissingClassWarning, match="'dog'"):
        calibrator = KCal(recipe=TINY, smoothing=0.0).fit(
            problem.embeddings,
            names[problem.labels],
            train_embeddings=problem.train_embeddings,
            train_labels=train_labels,
        )
    assert calibrator.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    probabilities = calibrator.predict_proba(problem.test_embeddings)
    assert (probabilities[:, 3] == 0).all()
    assert set(calibrator.predict(problem.test_embeddings)) <= {"ant", "bee", "cat"}


def test_smoothing_defaults_to_one_in_n_plus_two(problem: Any) -> None:
    """By default 1/(n + 2) of the probability is spread over all classes, also after updates."""
    calibrator = KCal(projection="identity", bandwidth=0.05)
    with pytest.warns(MissingClassWarning, match="3"):
        calibrator.fit(problem.embeddings[:100], problem.labels[:100], classes=[0, 1, 2, 3])
    exact = identity(bandwidth=0.05).fit(problem.embeddings[:100], problem.labels[:100]).predict_proba
    for n in (100, 150):
        expected = (1 - 1 / (n + 2)) * exact(problem.test_embeddings) + 1 / (n + 2) / 4
        found = calibrator.predict_proba(problem.test_embeddings)
        np.testing.assert_allclose(found[:, :3], expected, atol=1e-9)
        np.testing.assert_allclose(found[:, 3], 1 / (n + 2) / 4, atol=1e-12)
        calibrator.partial_fit(problem.embeddings[100:150], problem.labels[100:150])
        exact = identity(bandwidth=0.05).fit(problem.embeddings[:150], problem.labels[:150]).predict_proba


def test_prior_corrects_class_frequencies(problem: Any) -> None:
    prior = np.array([0.7, 0.2, 0.1])
    plain = identity(bandwidth=0.6).fit(problem.embeddings, problem.labels).predict_proba(problem.test_embeddings)
    expected = plain * prior / (np.bincount(problem.labels) / len(problem.labels))
    expected /= expected.sum(axis=1, keepdims=True)
    for given_prior in (prior, {0: 0.7, 2: 0.1, 1: 0.2}, pd.Series({2: 0.1, 1: 0.2, 0: 0.7})):
        corrected = identity(bandwidth=0.6, prior=given_prior).fit(problem.embeddings, problem.labels)
        np.testing.assert_allclose(corrected.predict_proba(problem.test_embeddings), expected, atol=1e-12)


def test_the_rule_scales_a_reference_bandwidth_by_the_power_law(problem: Any) -> None:
    rarest = np.bincount(problem.labels).min()
    calibrator = identity(bandwidth="rule", bandwidth_reference=(0.5, 10 * rarest)).fit(
        problem.embeddings, problem.labels
    )
    assert calibrator.bandwidth_ == pytest.approx(0.5 * 10 ** (1 / 10))
    assert calibrator.bandwidth_curve_ is None
    assert calibrator.bandwidth_history_[-1].size == rarest


def test_the_rule_counts_effective_samples_and_takes_an_exponent(problem: Any) -> None:
    weights = np.where(np.arange(len(problem.labels)) % 2, 3.0, 1.0)
    sizes = [weights[problem.labels == k].sum() ** 2 / (weights[problem.labels == k] ** 2).sum() for k in range(3)]
    rule = {"bandwidth": "rule", "bandwidth_reference": (0.5, 10.0), "bandwidth_exponent": -0.1}
    calibrator = identity(**rule).fit(problem.embeddings, problem.labels, sample_weight=weights)
    assert calibrator.bandwidth_ == pytest.approx(0.5 * (min(sizes) / 10.0) ** -0.1)
    assert calibrator.bandwidth_history_[-1].size == pytest.approx(min(sizes), rel=1e-5)  # weights are stored in single


def test_predicting_for_support_rows_warns_and_finds_them(problem: Any) -> None:
    calibrator = identity().fit(problem.embeddings, problem.labels)
    mixed = np.concatenate([problem.test_embeddings[:5], problem.embeddings[:2]])
    with pytest.warns(LeakageWarning, match="2 of 7 rows are in the calibration set"):
        calibrator.predict_proba(mixed)
    np.testing.assert_array_equal(was_fitted_on(calibrator, mixed.astype(np.float32)), [False] * 5 + [True] * 2)


def test_calibration_rows_from_the_training_set_warn(problem: Any) -> None:
    rows = np.concatenate([problem.embeddings, problem.train_embeddings[:3]])
    labels = np.concatenate([problem.labels, problem.train_labels[:3]])
    with pytest.warns(LeakageWarning, match="3 of 243 calibration rows also occur in the training set"):
        KCal(recipe=TINY).fit(rows, labels, **training_set(problem))


def test_trained_projection_works_in_cross_validation(problem: Any) -> None:
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=TINY)
    scores = cross_val_score(KCal(projection=trained), problem.embeddings, problem.labels, scoring="neg_log_loss", cv=3)
    assert (scores > -1.0).all()
    scores = cross_val_score(
        KCal(projection=trained), problem.embeddings, problem.labels, cv=GroupKFold(4), groups=np.arange(240) % 8
    )
    assert (scores > 0.5).all()


def test_a_trained_projection_equals_training_inside_fit(problem: Any) -> None:
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=TINY)
    outside = KCal(projection=trained).fit(problem.embeddings, problem.labels)
    inside = KCal(recipe=TINY).fit(problem.embeddings, problem.labels, **training_set(problem))
    np.testing.assert_array_equal(
        outside.predict_proba(problem.test_embeddings), inside.predict_proba(problem.test_embeddings)
    )
    assert len(outside.training_curve_.checkpoint_losses) == 2
    assert outside.training_curve_.chosen_step in trained.steps


def test_a_module_is_copied_and_trained_and_a_frozen_one_is_used_as_it_is(problem: Any) -> None:
    module = nn.Linear(6, 2).double()
    before = module.weight.detach().clone()
    trained = KCal(projection=module, recipe=TINY).fit(problem.embeddings, problem.labels, **training_set(problem))
    assert torch.equal(module.weight, before)
    assert not torch.equal(trained.projection_.weight, before) or trained.training_curve_.chosen_step == 0
    frozen = KCal(projection=module.requires_grad_(False)).fit(problem.embeddings, problem.labels)
    assert torch.equal(frozen.projection_.weight, before)
    assert len(frozen.support_indices_) == len(problem.labels)


def test_learned_with_groups_improves_the_loss(problem: Any) -> None:
    calibrator = KCal(recipe=TINY).fit(
        problem.embeddings,
        problem.labels,
        **training_set(problem),
        groups=np.arange(240) % 6,
        train_groups=np.arange(400) % 9,
    )
    odds = np.exp(problem.test_logits)
    raw = np.log(odds / odds.sum(axis=1, keepdims=True))
    calibrated = calibrator.predict_log_proba(problem.test_embeddings)
    cross_entropy = [-(problem.test_probabilities * scores).sum(axis=1).mean() for scores in (calibrated, raw)]
    assert cross_entropy[0] < cross_entropy[1] - 0.1


def test_error_falls_with_the_number_of_samples(problem: Any) -> None:
    generator = np.random.default_rng(5)
    errors = []
    for n in (60, 600, 6000):
        labels = generator.integers(0, 3, n)
        rows = (CENTRES[labels] + generator.normal(size=(n, 6)))[:, :2]
        probabilities = identity().fit(rows, labels).predict_proba(problem.test_embeddings[:, :2])
        errors.append(np.abs(probabilities - problem.test_probabilities).mean())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03


def test_names_of_samples_and_columns_are_kept(problem: Any) -> None:
    frame = pd.DataFrame(problem.embeddings, columns=[f"e{i}" for i in range(6)])
    calibrator = identity().fit(frame, problem.labels, ids=[f"patient {i}" for i in range(240)])
    assert calibrator.feature_names_in_.tolist() == list(frame.columns)
    assert calibrator.ids_[3] == "patient 3"
    with pytest.raises(ValueError, match="feature names"):
        calibrator.predict_proba(frame[list(frame.columns)[::-1]])


def bad_fits(problem: Any) -> dict[str, tuple[dict[str, Any], str]]:
    rows, labels = problem.embeddings, problem.labels
    with_nan, with_inf = rows.copy(), rows.copy()
    with_nan[7, 2], with_inf[9, 0] = np.nan, np.inf
    training = {"train_embeddings": rows, "train_labels": labels}
    return {
        "NaN": ({"X": with_nan}, "X .*NaN at row 7"),
        "infinity": ({"X": with_inf}, "X .*infinity at row 9"),
        "one class": ({"y": np.zeros(240, dtype=int)}, "classes "),
        "unknown label": ({"classes": [0, 1]}, "y .*got 2 at row"),
        "class twice": ({"classes": [0, 1, 2, 2]}, "classes "),
        "missing label": ({"y": [["a", "b", float("nan")][label] for label in labels]}, "y .*nan at row"),
        "zero weights": ({"sample_weight": np.zeros(240)}, "sample_weight "),
        "weights beyond float64": ({"sample_weight": [10**400] * 240}, "sample_weight "),
        "ids": ({"ids": ["a"] * 240}, "ids "),
        "ids beyond 64 bits": ({"ids": [10**30 + place for place in range(240)]}, "ids "),
        "classes in a set": ({"classes": {0, 1, 2}}, "classes "),
        "classes that are days": ({"classes": np.datetime64("2020-01-01") + np.arange(3)}, "classes "),
        "classes beyond 64 bits": ({"classes": [10**30, 1]}, "classes "),
        "classes that end": ({"classes": (code for code in range(3))}, "classes "),
        "one group": ({"groups": ["p"] * 240}, "groups "),
        "training labels missing": ({"train_embeddings": rows}, "train_embeddings .*train_labels"),
        "training rows missing": ({"train_labels": labels}, "train_labels "),
        "training without use": (training, "train_embeddings "),
    }


@pytest.mark.parametrize("case", list(bad_fits(make_problem())))
def test_bad_data_is_named(problem: Any, case: str) -> None:
    changes, message = bad_fits(problem)[case]
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        identity().fit(**{"X": problem.embeddings, "y": problem.labels, **changes})


@pytest.mark.parametrize("start", [2**53, 2**63 - 4, 2**64 - 4])
def test_labels_above_2_to_53_stay_apart(problem: Any, start: int) -> None:
    labels = (problem.labels + 1).astype(np.uint64) + np.uint64(start)
    for y, more in ((labels, labels.tolist()), (labels.tolist(), labels)):  # unsigned, and signed where they fit
        calibrator = identity(bandwidth=0.6).fit(problem.embeddings[:100], y[:100])
        calibrator.partial_fit(problem.embeddings[100:], more[100:])
        calibrator.partial_fit(np.zeros((1, 6)), [start])
        assert calibrator.classes_.tolist() == [start, start + 1, start + 2, start + 3]
        predicted = calibrator.predict(problem.test_embeddings)
        assert calibrator.score(problem.test_embeddings, predicted) == 1.0
        assert calibrator.score(problem.test_embeddings, predicted - predicted.dtype.type(1)) == 0.0


def test_ids_of_64_bits_in_lists_are_found_again(problem: Any, tmp_path: Any) -> None:
    ids = [int(name) for name in np.random.default_rng(3).integers(0, 2**64 - 100, 100, dtype=np.uint64)]
    groups = [2**63 + name % 20 for name in ids]
    rows, labels = problem.embeddings, problem.labels
    calibrator = identity(bandwidth=0.6).fit(rows[:90], labels[:90], ids=ids[:90], groups=groups[:90])
    assert calibrator.ids_.tolist() == ids[:90]
    calibrator.partial_fit(rows[90:100], labels[90:100], ids=ids[90:], groups=groups[90:])
    calibrator.forget([min(ids), max(ids)])  # one on each side of 2**63
    calibrator.correct([ids[50]], [labels[51]])
    left = [name for name in ids if name not in (min(ids), max(ids))]
    for one in (calibrator, load(save(calibrator, tmp_path / "model.kcal"))):
        assert one.ids_.dtype == np.uint64
        assert one.ids_.tolist() == left
    before = calibrator.predict_proba(problem.test_embeddings)
    for wrong in ([-1], [2**64]):
        with pytest.raises(InvalidInputError, match=r"^ids "):
            calibrator.partial_fit(rows[:1], labels[:1], ids=wrong, groups=groups[:1])
        with pytest.raises(InvalidInputError, match=r"^groups "):
            calibrator.partial_fit(rows[:1], labels[:1], ids=[5], groups=wrong)
    np.testing.assert_array_equal(calibrator.predict_proba(problem.test_embeddings), before)


def test_ids_that_no_type_holds_together_raise_before_they_are_added(problem: Any) -> None:
    rows, labels = problem.embeddings[:50], problem.labels[:50]
    for known, new in ((np.arange(50) - 1, [2**63]), (2**63 + np.arange(50, dtype=np.uint64), [-1])):
        calibrator = identity(bandwidth=0.6).fit(rows, labels, ids=known)
        with pytest.raises(InvalidInputError, match=r"^ids "):
            calibrator.partial_fit(rows[:1], labels[:1], ids=new)
        assert calibrator.ids_.tolist() == known.tolist()


def test_updates_keep_large_labels_integers(problem: Any) -> None:
    rows, labels = problem.embeddings[:100], problem.labels[:100].astype(np.int64) % 2 + 2**53
    fitted = identity(bandwidth=0.6).fit(rows, labels.tolist())
    fitted.correct([0, 1], [2**53 + 1, 2**63 + 1])
    assert fitted.classes_.tolist() == [2**53, 2**53 + 1, 2**63 + 1]
    for y in ([5.0], np.array([5.0], dtype=np.float32)):
        added = identity(bandwidth=0.6).fit(rows, labels).partial_fit(rows[:1], y)
        assert added.classes_.tolist() == [5, 2**53, 2**53 + 1]
        assert added.classes_.dtype == np.int64
    with pytest.raises(InvalidInputError, match=r"^y "):
        identity(bandwidth=0.6).fit(rows, labels).partial_fit(rows[:1], [2.0**60])


BAD_LABELS = [[0], [[0, 1]], [None] * 5, ["a"] * 5, [np.nan] * 5, [np.datetime64("NaT")] * 5, 3, {"a": 1}, None]


@pytest.mark.parametrize("y", BAD_LABELS, ids=str)
def test_score_of_bad_labels_names_them(problem: Any, y: Any) -> None:
    calibrator = identity(bandwidth=0.6).fit(problem.embeddings, problem.labels)
    with pytest.raises(InvalidInputError, match=r"^y "):
        calibrator.score(problem.test_embeddings[:5], y)
    with pytest.raises(InvalidInputError, match=r"^sample_weight "):
        calibrator.score(problem.test_embeddings[:5], np.zeros(5), sample_weight=["a"] * 5)


def test_checkpoints_are_compared_at_the_bandwidth_that_they_would_get(problem: Any) -> None:
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=TINY)
    for b in (0.5, 3.0):
        calibrator = KCal(projection=trained, bandwidth=b, smoothing=0.0).fit(problem.embeddings, problem.labels)
        own = calibrator.leave_one_out_proba_[np.arange(240), problem.labels]
        assert min(calibrator.training_curve_.checkpoint_losses) == pytest.approx(-np.log(own).mean(), rel=1e-9)


def test_training_columns_in_another_order_are_refused(problem: Any) -> None:
    frame = pd.DataFrame(problem.embeddings, columns=list("abcdef"))
    train = pd.DataFrame(problem.train_embeddings, columns=list("fedcba"))
    with pytest.raises(InvalidInputError, match="columns of X"):
        KCal(recipe=TINY).fit(frame, problem.labels, train_embeddings=train, train_labels=problem.train_labels)


@pytest.mark.filterwarnings("ignore::kcal.errors.FewSamplesWarning")
def test_prior_over_tiny_frequencies_in_single_precision() -> None:
    rows, labels = np.array([[0.0], [1.0], [0.2], [1.1]]), [0, 1, 0, 1]
    weights = [1.0, 1e-8, 1.0, 1e-8]
    single, double = (
        identity(prior="uniform", bandwidth=0.5)
        .fit(rows.astype(dtype), labels, sample_weight=weights)
        .predict_proba(np.array([[0.9], [0.1]], dtype=dtype))
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-4)
    np.testing.assert_allclose(double[0], [0.2315, 0.7685], atol=1e-4)


def test_summary_shows_the_weighted_loss_of_the_fit(problem):
    weights = np.linspace(0.2, 3.0, len(problem.labels))
    searched = identity().fit(problem.embeddings, problem.labels, sample_weight=weights)
    fixed = identity(bandwidth=searched.bandwidth_)
    fixed.fit(problem.embeddings, problem.labels, sample_weight=weights)
    assert fixed.summary()["leave-one-out log-loss"] == searched.summary()["leave-one-out log-loss"]
    smoothed = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    expected = log_loss(problem.labels, smoothed.leave_one_out_proba_)
    assert smoothed.summary()["leave-one-out log-loss"] == f"{expected:.4f}"
    by_folds = KCal(projection="identity", folds=4).fit(problem.embeddings, problem.labels)
    before = by_folds.summary()
    assert "log-loss over 4 folds" in before
    assert by_folds.set_params(folds=7).summary() == before


@pytest.mark.parametrize("learned", [False, True])
def test_embeddings_that_know_nothing_of_the_labels_predict_chance(learned: bool) -> None:
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(2_000, 8)), generator.integers(0, 5, 2_000)
    train = {"train_embeddings": rows[:500], "train_labels": labels[:500]} if learned else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KcalWarning)
        calibrator = (KCal(recipe=TINY) if learned else identity()).fit(rows[500:1_000], labels[500:1_000], **train)
    known, fresh = labels[500:1_000], labels[1_000:]
    for probs, truth in ((calibrator.leave_one_out_proba_, known), (calibrator.predict_proba(rows[1_000:]), fresh)):
        assert abs((probs.argmax(axis=1) == truth).mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / len(truth))
        assert -np.log(probs[np.arange(len(truth)), truth]).mean() < np.log(5) + 0.02


def test_samples_without_weight_do_not_move_the_folds_of_others(problem: Any) -> None:
    rows, labels, groups = problem.embeddings, problem.labels, np.arange(240) % 12
    weights = np.where(np.isin(np.arange(240), [0, 1, 5, 40]), 0.0, 1.0)  # among them first samples of groups
    kept, calibrator = weights > 0, KCal(projection="identity", folds=4)
    weighted = calibrator.fit(rows, labels, groups=groups, sample_weight=weights).bandwidth_curve_.loss
    alone = calibrator.fit(rows[kept], labels[kept], groups=groups[kept]).bandwidth_curve_.loss
    assert alone == pytest.approx(weighted, rel=1e-8)


def test_samples_of_weight_zero_are_absent() -> None:
    generator = np.random.default_rng(0)
    labels, weights = np.arange(300) % 3, np.arange(300) % 5 > 0
    rows = generator.normal(size=(300, 4)) + 2.0 * np.eye(4)[labels]
    rows[~weights] *= 100.0
    kept = KCal(projection="identity").fit(rows, labels, sample_weight=weights.astype(float), ids=np.arange(300))
    without = KCal(projection="identity").fit(rows[weights], labels[weights])
    assert kept.bandwidth_ == without.bandwidth_
    np.testing.assert_array_equal(kept.predict_proba(rows + 0.1), without.predict_proba(rows + 0.1))
    np.testing.assert_array_equal(kept.evidence(rows), without.evidence(rows))
    np.testing.assert_array_equal(kept.ids_, np.flatnonzero(weights))
    assert kept.bandwidth_history_[-1].n_samples == 240


def test_an_update_whose_projection_is_not_finite_is_refused() -> None:
    class Logarithm(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.log(rows)

    rows, labels = np.random.default_rng(0).uniform(1.0, 2.0, size=(60, 3)), np.arange(60) % 2
    calibrator = KCal(projection=Logarithm(), bandwidth=0.3).fit(rows, labels)
    before = calibrator.predict_proba(rows + 0.1)
    with pytest.raises(InvalidInputError, match="projection"):
        calibrator.partial_fit(-rows[:2], labels[:2])
    np.testing.assert_array_equal(calibrator.predict_proba(rows + 0.1), before)


def test_names_of_the_classes_play_no_part_in_the_folds() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 90)
    rows = generator.normal(size=(90, 4)) + np.eye(4)[labels]
    one, other = (
        KCal(projection="identity", folds=5).fit(rows, names) for names in (labels, np.array([2, 0, 1])[labels])
    )
    assert one.bandwidth_ == pytest.approx(other.bandwidth_, rel=1e-9)
