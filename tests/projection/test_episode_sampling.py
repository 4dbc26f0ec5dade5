"""The samples of a training step: who predicts, who is background, and for how many each stands."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from kcal.projection.episodes import ClassIndex, PaperEpisodes, StratifiedBatches, draw_distinct, proportional_counts

steady = settings(deadline=None, derandomize=True, max_examples=60)

RARELY = 1e-4
"""A fair draw misses this p-value once in 10,000 seeds, and the seeds are fixed."""


def episodes(codes, *, predictions=5, per_class=3, seed=0, groups=None, n_classes=None):
    codes = np.asarray(codes)
    return PaperEpisodes(
        codes,
        int(codes.max()) + 1 if n_classes is None else n_classes,
        predictions=predictions,
        per_class=per_class,
        generator=np.random.default_rng(seed),
        groups=None if groups is None else np.asarray(groups),
    )


LABELS = st.lists(st.integers(0, 4), min_size=4, max_size=60)


def check_episode(drawn, codes, n_classes, per_class, excluded):
    """What every episode owes, whatever is kept out of its background."""
    assert len(set(drawn.queries)) == len(drawn.queries)
    assert len(set(drawn.background)) == len(drawn.background)
    assert not set(drawn.background) & excluded
    left = np.array([row for row in range(len(codes)) if row not in excluded], dtype=np.int64)
    available = np.bincount(codes[left], minlength=n_classes)
    used = np.bincount(codes[drawn.background], minlength=n_classes)
    np.testing.assert_array_equal(used, np.minimum(available, per_class))
    weights = np.exp(drawn.log_weights)
    by_class = np.bincount(codes[drawn.background], weights=weights, minlength=n_classes)
    np.testing.assert_allclose(by_class, available, rtol=1e-12)
    np.testing.assert_allclose(weights, (available / np.maximum(used, 1))[codes[drawn.background]], rtol=1e-12)
    assert weights.sum() == pytest.approx(len(left), rel=1e-12)


@steady
@given(codes=LABELS, predictions=st.integers(1, 20), per_class=st.integers(1, 20), seed=st.integers(0, 1000))
def test_background_and_predictions_are_disjoint_and_the_weights_stand_for_all_the_others(
    codes, predictions, per_class, seed
):
    codes = np.array(codes)
    draws = episodes(codes, predictions=predictions, per_class=per_class, seed=seed, n_classes=6)
    for _ in range(3):
        drawn = draws.draw()
        assert len(drawn.queries) == min(predictions, len(codes) // 2)
        check_episode(drawn, codes, 6, per_class, set(drawn.queries))


@steady
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=4, max_size=60),
    predictions=st.integers(1, 12), per_class=st.integers(1, 12), seed=st.integers(0, 1000),
)  # fmt: skip
def test_predictions_come_from_one_group_and_the_background_leaves_it_out(rows, predictions, per_class, seed):
    codes, groups = np.array(rows).T
    draws = episodes(codes, predictions=predictions, per_class=per_class, seed=seed, groups=groups, n_classes=4)
    for _ in range(3):
        drawn = draws.draw()
        assert len(set(groups[drawn.queries])) == 1
        members = set(np.flatnonzero(groups == groups[drawn.queries[0]]))
        assert len(drawn.queries) == min(predictions, len(members))
        check_episode(drawn, codes, 4, per_class, members)


def test_a_class_with_fewer_samples_than_wanted_uses_all_of_them():
    codes = np.array([0] * 50 + [1] * 3 + [3])
    draws = episodes(codes, predictions=10, per_class=20)
    for _ in range(20):
        drawn = draws.draw()
        rare = set(np.flatnonzero(codes == 1)) - set(drawn.queries)
        assert set(drawn.background[codes[drawn.background] == 1]) == rare
        np.testing.assert_array_equal(drawn.log_weights[codes[drawn.background] == 1], 0.0)
        assert (53 in drawn.background) != (53 in drawn.queries)


def test_a_group_smaller_than_a_batch_gives_all_its_rows():
    groups = np.array([0] * 4 + [1] * 40)
    draws = episodes(np.arange(44) % 2, predictions=8, groups=groups)
    sizes = {0: set(), 1: set()}
    for _ in range(200):
        queries = draws.draw().queries
        sizes[groups[queries[0]]].add(len(queries))
    assert sizes == {0: {4}, 1: {8}}


def test_a_group_is_drawn_in_proportion_to_its_size():
    groups = np.repeat([0, 1, 2, 3], [5, 20, 50, 125])
    draws = episodes(np.arange(200) % 3, predictions=2, groups=groups, seed=1)
    counts = np.bincount([groups[draws.draw().queries[0]] for _ in range(2000)], minlength=4)
    assert chisquare(counts, 2000 * np.array([5, 20, 50, 125]) / 200).pvalue > RARELY


def test_every_sample_is_a_prediction_equally_often():
    draws = episodes(np.arange(40) % 3, predictions=5, seed=2)
    counts = np.bincount(np.concatenate([draws.draw().queries for _ in range(2000)]), minlength=40)
    # without replacement the counts vary less than chi-square allows: only too much variation is unfair
    assert chisquare(counts).pvalue > RARELY


@pytest.mark.parametrize("size", [5, 14, 40])
def test_every_set_of_a_class_is_drawn_equally_often(size):
    """Uniform without replacement: all pairs of a class come up alike, also where draws collide."""
    index = ClassIndex(np.repeat([0, 1], [size, 3]), 2)
    generator, pairs = np.random.default_rng(size), {}
    for _ in range(6000):
        rows, drawn = index.draw(2, generator)
        assert drawn.tolist() == [2, 2]
        pair = tuple(sorted(rows[:2]))
        pairs[pair] = pairs.get(pair, 0) + 1
    n_pairs = size * (size - 1) // 2
    counts = np.zeros(n_pairs)
    counts[: len(pairs)] = list(pairs.values())
    assert chisquare(counts).pvalue > RARELY


@pytest.mark.parametrize("per_class", [1, 10, 19, 20])
def test_a_class_that_comes_out_short_is_drawn_uniformly_too(per_class):
    """20 rows and nearly as many wanted: the spare draws seldom suffice, and the permutation takes over."""
    index, generator = ClassIndex(np.zeros(20, dtype=np.int64), 1), np.random.default_rng(per_class)
    counts = np.zeros(20)
    for _ in range(2000):
        rows, drawn = index.draw(per_class, generator)
        assert len(set(rows)) == len(rows) == per_class == drawn[0]
        counts[rows] += 1
    if per_class == 20:
        assert (counts == 2000).all()
    else:
        assert chisquare(counts).pvalue > RARELY


@pytest.mark.parametrize("grouped", [False, True])
def test_the_background_is_uniform_over_what_the_queries_leave(grouped):
    """Given which rows are left out, each of the other rows of a class is background equally often."""
    codes, groups = np.repeat([0, 1], [12, 5]), np.arange(17) % 3
    draws = episodes(codes, predictions=4, per_class=3, seed=9, groups=groups if grouped else None)
    used, left = np.zeros(17), np.zeros(17)
    for _ in range(4000):
        drawn = draws.draw()
        out = np.flatnonzero(groups == groups[drawn.queries[0]]) if grouped else drawn.queries
        available = np.bincount(codes, minlength=2) - np.bincount(codes[out], minlength=2)
        left += np.where(np.isin(np.arange(17), out), 0.0, (np.minimum(available, 3) / np.maximum(available, 1))[codes])
        used[drawn.background] += 1
    assert (used > 0).all()
    assert chisquare(used, left * used.sum() / left.sum()).pvalue > RARELY


@pytest.mark.parametrize(("count", "size"), [(5, 2), (4, 4), (6, 5), (9, 1)])
def test_every_set_of_distinct_numbers_is_equally_likely(count, size):
    drawn = np.sort(draw_distinct(np.full(4000, count), size, np.random.default_rng(count)), axis=1)
    sets, counts = np.unique(drawn, axis=0, return_counts=True)
    assert {tuple(row) for row in sets.tolist()} == set(combinations(range(count), size))
    assert len(counts) == 1 or chisquare(counts).pvalue > RARELY


def test_where_too_few_numbers_exist_all_are_drawn():
    drawn = draw_distinct(np.array([0, 1, 3, 50]), 3, np.random.default_rng(0))
    assert [sorted(row[row >= 0].tolist()) for row in drawn[:3]] == [[], [0], [0, 1, 2]]
    assert len(set(drawn[3].tolist()) - {-1}) == 3


@steady
@given(codes=LABELS, batch_size=st.integers(1, 80), seed=st.integers(0, 1000))
def test_stratified_batches_hold_as_many_of_each_class_and_their_shares_sum_to_one(codes, batch_size, seed):
    codes = np.array(codes)
    batches = StratifiedBatches(codes, 6, batch_size=batch_size, generator=np.random.default_rng(seed))
    counts = np.bincount(codes, minlength=6)
    wanted = np.minimum(counts, max(2, batch_size // (counts > 0).sum()))
    for _ in range(3):
        rows = batches.draw()
        assert len(set(rows)) == len(rows)
        np.testing.assert_array_equal(codes[rows], batches.codes)
        np.testing.assert_array_equal(np.bincount(codes[rows], minlength=6), wanted)
    assert batches.shares.sum() == pytest.approx(1.0, rel=1e-12)
    by_class = np.bincount(batches.codes, weights=batches.shares, minlength=6)
    np.testing.assert_allclose(by_class, counts / counts.sum(), rtol=1e-12)
    for i, k in enumerate(batches.codes):
        for j, other in enumerate(batches.codes):
            if i != j:  # the others of the batch stand for all others of the training set
                stands_for = (counts[k] - 1) / (wanted[k] - 1) if k == other else counts[other] / wanted[other]
                assert np.exp(batches.log_weights[i, j]) == pytest.approx(stands_for, rel=1e-12)


def test_a_batch_estimates_the_leave_one_out_sums_of_the_training_set_without_bias():
    """The mass that reaches a sample of the batch, from its own class and from the others, on average over batches."""
    codes = np.repeat([0, 1, 2], [12, 7, 4])
    mass = np.random.default_rng(6).random((23, 23))
    batches = StratifiedBatches(codes, 3, batch_size=9, generator=np.random.default_rng(7))
    sums = np.zeros((23, 3))
    seen = np.zeros(23)
    for _ in range(6000):
        rows = batches.draw()
        values = mass[np.ix_(rows, rows)] * np.exp(batches.log_weights) * (1 - np.eye(len(rows)))
        for k in range(3):
            sums[rows, k] += values[:, batches.codes == k].sum(axis=1)
        seen[rows] += 1
    exact = np.stack([(mass * (1 - np.eye(23)))[:, codes == k].sum(axis=1) for k in range(3)], axis=1)
    np.testing.assert_allclose(sums / seen[:, None], exact, rtol=0.05)


def test_the_share_of_a_batch_estimates_the_mean_over_the_training_set():
    codes = np.repeat([0, 1, 2], [100, 10, 3])
    values = np.random.default_rng(4).normal(size=113)
    batches = StratifiedBatches(codes, 3, batch_size=15, generator=np.random.default_rng(5))
    estimates = np.array([(values[batches.draw()] * batches.shares).sum() for _ in range(2000)])
    error = estimates.std() / np.sqrt(2000)
    assert abs(estimates.mean() - values.mean()) < 4 * error


def test_the_same_generator_draws_the_same_steps():
    codes = np.arange(60) % 4
    for make in (
        lambda seed: episodes(codes, seed=seed).draw().background,
        lambda seed: StratifiedBatches(codes, 4, batch_size=12, generator=np.random.default_rng(seed)).draw(),
    ):
        assert np.array_equal(make(0), make(0))
        assert not np.array_equal(make(0), make(1))


@steady
@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any), total=st.integers(1, 200))
def test_proportional_numbers_make_the_total_and_follow_the_frequencies(counts, total):
    counts = np.array(counts)
    drawn = proportional_counts(counts, total)
    least = np.minimum(counts, 2)
    assert (drawn >= least).all()
    assert (drawn <= counts).all()
    assert drawn.sum() == max(min(total, counts.sum()), least.sum())
    order = np.argsort(counts, kind="stable")
    assert (np.diff(drawn[order]) >= -1).all()


@steady
@given(codes=LABELS, batch_size=st.integers(4, 60), seed=st.integers(0, 100))
def test_a_proportional_batch_is_as_large_and_stands_for_the_whole_training_set(codes, batch_size, seed):
    codes = np.array(codes)
    equal, proportional = (
        StratifiedBatches(
            codes, 5, batch_size=batch_size, generator=np.random.default_rng(seed), proportional=proportional
        )
        for proportional in (False, True)
    )
    rows = proportional.draw()
    assert len(rows) == len(set(rows)) == len(equal.draw())
    np.testing.assert_array_equal(codes[rows], proportional.codes)
    assert proportional.shares.sum() == pytest.approx(1.0)
    by_class = np.bincount(proportional.codes, weights=proportional.shares, minlength=5)
    np.testing.assert_allclose(by_class, np.bincount(codes, minlength=5) / len(codes))


def test_of_equally_frequent_classes_both_samplings_draw_the_same_rows():
    codes = np.repeat(np.arange(4), 25)
    batches = [
        StratifiedBatches(codes, 4, batch_size=20, generator=np.random.default_rng(3), proportional=proportional)
        for proportional in (False, True)
    ]
    np.testing.assert_array_equal(batches[0].draw(), batches[1].draw())


@steady
@given(codes=LABELS, proportional=st.booleans())
def test_balanced_shares_let_every_class_count_the_same(codes, proportional):
    codes = np.array(codes)
    batches = StratifiedBatches(
        codes, 5, batch_size=20, generator=np.random.default_rng(0), proportional=proportional, balanced=True
    )
    present = np.unique(codes)
    by_class = np.bincount(batches.codes, weights=batches.shares, minlength=5)
    np.testing.assert_allclose(by_class[present], 1 / len(present))
    for k in present:
        assert len(set(batches.shares[batches.codes == k].tolist())) == 1
