"""Splits of samples: names of groups and samples without weight play no part in them."""

import numpy as np
import pytest

import kcal

N = 120


def grouped_problem():
    generator = np.random.default_rng(3)
    labels = generator.integers(3, size=N)
    rows = 2.0 * np.eye(3)[labels] + generator.normal(size=(N, 3))
    return rows, labels, generator.integers(12, size=N)


def renamed(groups):
    """The same groups under names of another order."""
    return np.array(["k", "a", "x", "c", "z", "b", "q", "d", "y", "e", "w", "f"])[groups]


@pytest.mark.parametrize(
    "calibrator", [kcal.KCal(projection="identity", folds=4), kcal.KCal.as_published(projection="identity")]
)
def test_renaming_groups_changes_no_fold(calibrator):
    rows, labels, groups = grouped_problem()
    one, other = (calibrator.fit(rows, labels, groups=names).bandwidth_ for names in (groups, renamed(groups)))
    assert one == other


@pytest.mark.parametrize("method", [kcal.KCalBlend, kcal.LastLayerRefit])
def test_renaming_groups_changes_no_fold_of_methods_with_logits(method):
    rows, labels, groups = grouped_problem()
    logits, probs = rows @ np.diag([1.0, 2.0, 3.0]), []
    for names in (groups, renamed(groups)):
        fitted = method().fit(rows, labels, logits=logits, groups=names)
        probs.append(fitted.predict_proba(rows[:9] + 1, logits=logits[:9]))
    np.testing.assert_allclose(*probs, rtol=1e-12)


@pytest.mark.parametrize(
    "recipe", [kcal.FastRecipe(steps=4, batch_size=30), kcal.PaperRecipe(epochs=1, batches_per_epoch=4)]
)
def test_renaming_groups_changes_no_training(recipe):
    rows, labels, groups = grouped_problem()
    one, other = (
        kcal.train_projection(rows, labels, recipe=recipe, groups=names) for names in (groups, renamed(groups))
    )
    assert one.curve == other.curve


def test_samples_without_weight_do_not_move_the_folds_of_others():
    rows, labels, groups = grouped_problem()
    weights = np.ones(N)
    weights[[0, 1, 5, 40]] = 0.0  # among them first samples of groups
    kept, calibrator = weights > 0, kcal.KCal(projection="identity", folds=4)
    weighted = calibrator.fit(rows, labels, groups=groups, sample_weight=weights).bandwidth_curve_.loss
    alone = calibrator.fit(rows[kept], labels[kept], groups=groups[kept]).bandwidth_curve_.loss
    assert alone == pytest.approx(weighted, rel=1e-8)
