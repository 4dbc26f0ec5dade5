"""A calibrator that lives on predicts as one that is fitted afresh on the same samples."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from kcal import InvalidInputError, KCal, KcalWarning, MissingClassWarning, Updates, load, save
from kcal.calibrators import was_fitted_on

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning", "ignore::kcal.MissingClassWarning")

GENERATOR = np.random.default_rng(0)
QUERIES = GENERATOR.normal(size=(7, 3))
ROWS = GENERATOR.normal(size=(400, 3))
LABELS = GENERATOR.integers(0, 3, 400)


def kcal(**parameters: Any) -> KCal:
    return KCal(**{"projection": "identity", "bandwidth": 0.7, "progress": False, **parameters})


class Twin:
    """The same samples as a plain mapping, from which a calibrator is fitted afresh."""

    def __init__(self, *, grouped: bool, half_life: float | None) -> None:
        self.samples: dict[int, tuple[Any, int, float, int, int]] = {}
        self.grouped, self.half_life, self.clock = grouped, half_life, 0

    def add(self, name: int, row: Any, label: int, weight: float, group: int, *, ages: bool = True) -> None:
        self.clock += ages
        self.samples.pop(name, None)
        self.samples[name] = (row, label, weight, group, self.clock)

    def fit(self, classes: Any, **parameters: Any) -> KCal:
        rows, labels, weights, groups, clocks = map(np.array, zip(*self.samples.values(), strict=True))
        if self.half_life is not None:
            weights = weights * 0.5 ** ((self.clock - clocks) / self.half_life)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KcalWarning)
            options = {"classes": classes, "ids": list(self.samples), "groups": groups if self.grouped else None}
            return kcal(**parameters).fit(rows, labels, sample_weight=weights, **options)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 25), st.integers(0, 5), st.sampled_from([0.5, 1.0, 3.0])),
        st.tuples(st.just("batch"), st.integers(1, 70), st.integers(0, 5), st.just(1.0)),
        st.tuples(st.just("correct"), st.integers(0, 40), st.integers(0, 5), st.just(1.0)),
        st.tuples(st.just("forget"), st.integers(0, 40), st.just(0), st.just(1.0)),
        st.tuples(st.sampled_from(["predict", "copy", "pickle", "file"]), st.just(0), st.just(0), st.just(1.0)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(operations, st.booleans(), st.sampled_from([None, 8.0]), st.sampled_from([0.0, 0.02]))
def test_after_any_updates_it_predicts_as_if_fitted_afresh(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, grouped: bool, half_life: float | None, smoothing: float
) -> None:
    options: dict[str, Any] = {"updates": Updates(half_life=half_life), "smoothing": smoothing}
    twin, used = Twin(grouped=grouped, half_life=half_life), 12
    for place in range(used):
        twin.add(place, ROWS[place], int(LABELS[place]), 1.0, place % 4, ages=False)
    live = twin.fit(None, **options)
    for kind, number, label, weight in steps:
        names = list(twin.samples)
        if kind in ("add", "batch"):
            n_new = number if kind == "batch" else 1
            ids = [number] if kind == "add" else list(range(1_000 + used, 1_000 + used + n_new))
            chosen = np.arange(used, used + n_new) % len(ROWS)
            labels, groups = np.where(chosen % 2 == 0, label, LABELS[chosen]), chosen % 5
            extra = {"groups": groups} if grouped else {}
            live.partial_fit(ROWS[chosen], labels, ids=ids, sample_weight=[weight] * n_new, **extra)
            for entry in zip(ids, ROWS[chosen], labels.tolist(), [weight] * n_new, groups.tolist(), strict=True):
                twin.add(*entry)
            used += n_new
        elif kind == "correct":
            name = names[number % len(names)]
            live.correct([name], [label])
            row, _, own_weight, group, clock = twin.samples[name]
            twin.samples[name] = (row, label, own_weight, group, clock)
        elif kind == "forget" and len(names) > 8:
            live.forget([names[number % len(names)]])
            del twin.samples[names[number % len(names)]]
        elif kind == "copy":
            live = copy.deepcopy(live)
        elif kind == "pickle":
            live = pickle.loads(pickle.dumps(live))
        elif kind == "file":
            live = load(save(live, tmp_path_factory.mktemp("live") / "live.kcal"))
        elif kind == "predict":
            live.predict_proba(QUERIES)
    fresh = twin.fit(live.classes_, **options)
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)
    np.testing.assert_allclose(live.evidence(QUERIES), fresh.evidence(QUERIES), atol=1e-12)
    np.testing.assert_allclose(live.leave_one_out_proba_, fresh.leave_one_out_proba_, atol=1e-12)
    np.testing.assert_allclose(live.model_.frequencies, fresh.model_.frequencies, atol=1e-12)
    np.testing.assert_allclose(live.bandwidth_history_[-1].size, fresh.bandwidth_history_[-1].size, rtol=1e-9)
    np.testing.assert_array_equal(live.ids_, fresh.ids_)
    rows = np.array([sample[0] for sample in twin.samples.values()])
    np.testing.assert_array_equal(
        was_fitted_on(live, np.concatenate([rows, QUERIES])), [True] * len(rows) + [False] * 7
    )


def test_columns_of_a_new_class_come_in_the_order_of_the_classes() -> None:
    text = np.array(["ant", "cow", "dog"])[LABELS]
    live = kcal().fit(ROWS[:30], text[:30]).partial_fit(ROWS[30:32], ["bee", "a much longer name"])
    assert live.classes_.tolist() == ["a much longer name", "ant", "bee", "cow", "dog"]
    probs = live.predict_proba(QUERIES)
    fresh = kcal().fit(ROWS[:32], [*text[:30], "bee", "a much longer name"])
    np.testing.assert_allclose(probs, fresh.predict_proba(QUERIES), atol=1e-12)
    np.testing.assert_array_equal(live.predict(QUERIES), fresh.predict(QUERIES))
    own_order = kcal().fit(ROWS[:30], text[:30], classes=["dog", "ant", "cow"]).partial_fit(ROWS[30:31], ["bee"])
    assert own_order.classes_.tolist() == ["dog", "ant", "cow", "bee"]
    with pytest.raises(InvalidInputError, match="prior"):
        kcal(prior=[0.2, 0.3, 0.5]).fit(ROWS[:30], text[:30]).partial_fit(ROWS[30:31], ["bee"])
    with pytest.raises(InvalidInputError, match="all text or all numbers"):
        live.correct([0], [3])


@pytest.mark.parametrize("classes", [[0, 1, 2, 9], [0, 0], ["a"], [[0, 1]], 3, [None], {1: 2}, []], ids=str)
def test_wrong_classes_of_an_update_are_named(classes: Any) -> None:
    live = kcal().fit(ROWS[:30], LABELS[:30])
    with pytest.raises(InvalidInputError, match=r"^classes "):
        live.partial_fit(ROWS[30:31], LABELS[30:31], classes=classes)
    live.partial_fit(ROWS[30:31], [7], classes=[0, 1, 2, 7])
    assert live.classes_.tolist() == [0, 1, 2, 7]


def test_an_update_that_fails_changes_nothing() -> None:
    live = kcal().fit(ROWS[:30], LABELS[:30], groups=np.arange(30) % 6)
    live.partial_fit(ROWS[30:40], LABELS[30:40], groups=np.arange(10) % 6)
    expected, ids = live.predict_proba(QUERIES), live.ids_
    for arguments, options in (
        ((ROWS[40:42], LABELS[40:42]), {}),  # no groups
        ((ROWS[40:42], LABELS[40:42]), {"groups": ["a", "b"]}),
        ((ROWS[40:42], LABELS[40:41]), {"groups": [0, 1]}),
        ((ROWS[40:42, :2], LABELS[40:42]), {"groups": [0, 1]}),
        ((ROWS[40:42] * np.nan, LABELS[40:42]), {"groups": [0, 1]}),
        ((ROWS[40:42], LABELS[40:42]), {"groups": [0, 1], "ids": [7, 7]}),
        ((ROWS[40:42], LABELS[40:42]), {"groups": [0, 1], "ids": ["a", "b"]}),
        ((ROWS[40:42], LABELS[40:42]), {"groups": [0, 1], "sample_weight": [1.0, -1.0]}),
        ((ROWS[40:42], LABELS[40:42]), {"groups": [0, 1], "classes": [0, 1, 2, 3]}),
    ):
        with pytest.raises(InvalidInputError):
            live.partial_fit(*arguments, **options)
    for failing in (lambda: live.correct([3, 99], [0, 1]), lambda: live.forget([3, 99]), lambda: live.forget(3)):
        with pytest.raises(InvalidInputError, match="ids"):
            failing()
    np.testing.assert_array_equal(live.predict_proba(QUERIES), expected)
    np.testing.assert_array_equal(live.ids_, ids)


def test_partial_fit_begins_with_a_fit_and_gives_the_next_integers_as_ids() -> None:
    live = kcal().partial_fit(ROWS[:20], LABELS[:20] % 2, classes=[0, 1, 2])
    assert live.ids_ is None
    live.partial_fit(ROWS[20:22], LABELS[20:22]).partial_fit(ROWS[22:23], LABELS[22:23], ids=[100])
    live.partial_fit(ROWS[23:24], LABELS[23:24])
    assert live.ids_.tolist() == [*range(22), 100, 101]
    assert clone(live).get_params() == live.get_params()
    assert not hasattr(clone(live), "classes_")
    named = kcal().fit(ROWS[:3], [0, 1, 2], ids=["a", "1", "b"]).partial_fit(ROWS[3:5], [0, 1])
    assert named.ids_.tolist() == ["a", "1", "b", "3", "4"]
    whole = kcal().fit(ROWS[:3], [0, 1, 2], ids=[3.0, 1.0, 4.0]).partial_fit(ROWS[3:5], [0, 1])
    assert whole.ids_.tolist() == [3.0, 1.0, 4.0, 5.0, 6.0]  # not 3 and 4, which are there


def test_arrays_of_the_caller_may_change_after_an_update() -> None:
    rows = ROWS[30:40].copy()
    live = kcal().fit(ROWS[:30], LABELS[:30]).partial_fit(rows, LABELS[30:40])
    rows[:] = 0.0
    fresh = kcal().fit(ROWS[:40], LABELS[:40])
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)


def test_a_snapshot_is_not_changed_by_updates() -> None:
    live = kcal().fit(ROWS[:30], LABELS[:30])
    kept = [live.snapshot()]
    expected = [live.predict_proba(QUERIES)]
    for change in (
        lambda: live.partial_fit(ROWS[30:40], LABELS[30:40]),
        lambda: live.correct([0, 1, 2], [2, 0, 7]),
        lambda: live.forget([5, 31]),
        lambda: live.partial_fit(ROWS[40:200], LABELS[40:200]),
    ):
        change()
        kept.append(live.snapshot())
        expected.append(live.predict_proba(QUERIES))
    for snapshot, probs in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(snapshot.predict_proba(QUERIES), probs)
        assert len(snapshot.classes_) == probs.shape[1]


def test_when_everything_is_forgotten_predictions_raise_until_samples_come() -> None:
    live = kcal().fit(ROWS[:10], LABELS[:10])
    live.forget(range(10))
    with pytest.raises(InvalidInputError, match="no sample"):
        live.predict_proba(QUERIES)
    live.partial_fit(ROWS[10:30], LABELS[10:30])
    fresh = kcal().fit(ROWS[10:30], LABELS[10:30], classes=live.classes_)
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)


def test_a_class_that_loses_its_last_sample_keeps_its_column_and_warns() -> None:
    live = kcal(smoothing=0.0).fit(ROWS[:30], LABELS[:30])
    last = np.flatnonzero(LABELS[:30] == 2)
    live.forget(last[1:])
    for lose in (lambda: live.forget(last[:1]), lambda: live.correct([30], [0])):
        with pytest.warns(MissingClassWarning, match=r"no calibration sample \(2\)"):
            lose()
        assert live.classes_.tolist() == [0, 1, 2]
        np.testing.assert_array_equal(live.predict_proba(QUERIES)[:, 2], 0.0)
        live.partial_fit(ROWS[30:31], [2], ids=[30])
        assert (live.predict_proba(QUERIES)[:, 2] > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingClassWarning)
        live.forget(live.ids_[:3])  # no class is lost
        live.forget(live.ids_)  # nothing is left: predictions raise
        smooth = kcal(smoothing=0.03).fit(ROWS[:30], LABELS[:30]).forget(last)
    np.testing.assert_allclose(smooth.predict_proba(QUERIES)[:, 2], 0.01)


def test_window_and_caps_let_the_oldest_leave() -> None:
    live = kcal(updates=Updates(window=25)).fit(ROWS[:20], LABELS[:20])
    for start in range(20, 300, 7):
        live.partial_fit(ROWS[start : start + 7], LABELS[start : start + 7])
    assert live.ids_.tolist() == list(range(300 - 25, 300))
    with pytest.raises(InvalidInputError, match="ids of samples"):
        live.forget([3])
    capped = kcal(updates=Updates(max_per_class=6)).fit(ROWS[:20], LABELS[:20])
    for row in range(20, 200):
        capped.partial_fit(ROWS[row : row + 1], LABELS[row : row + 1])
    expected = sorted(np.concatenate([np.flatnonzero(LABELS[:200] == label)[-6:] for label in range(3)]))
    assert capped.ids_.tolist() == expected
    assert len(pickle.dumps(capped)) < 2 * len(
        pickle.dumps(kcal().fit(ROWS[:200], LABELS[:200]))
    )  # memory is used again
    fresh = kcal().fit(ROWS[expected], LABELS[expected])
    np.testing.assert_allclose(capped.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)


def test_a_half_life_lets_samples_leave_in_the_end() -> None:
    live = kcal(updates=Updates(half_life=1.0)).fit(ROWS[:50], LABELS[:50])
    for row in range(50, 100):
        live.partial_fit(ROWS[row : row + 1], LABELS[row : row + 1])
    assert live.ids_.tolist() == list(range(70, 100))
    weights = 0.5 ** np.arange(29.0, -1.0, -1.0)
    fresh = kcal().fit(ROWS[70:100], LABELS[70:100], sample_weight=weights)
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-8)


def test_invalid_options_are_refused() -> None:
    half_lives = [{"half_life": value} for value in (-1.0, 1e-308)]
    for wrong in ({"growth": 1.0}, {"window": 0}, *half_lives, {"max_per_class": 2.5}, {"fit_exponent": 1}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            Updates(**wrong)
    with pytest.raises(InvalidInputError, match=r"updates must be a kcal\.Updates"):
        kcal(updates=2.0).fit(ROWS[:10], LABELS[:10])


def test_options_and_history_are_stored(tmp_path: Path) -> None:
    live = KCal(projection="identity", progress=False, updates=Updates(window=50, fit_exponent=True))
    live.fit(ROWS[:40], LABELS[:40]).partial_fit(ROWS[40:90], LABELS[40:90])
    live.predict(QUERIES)
    loaded = load(save(live, tmp_path / "live.kcal"))
    assert loaded.updates == live.updates
    assert loaded.bandwidth_history_ == live.bandwidth_history_
    assert loaded.bandwidth_ == live.bandwidth_
    for calibrator in (live, loaded):
        calibrator.partial_fit(ROWS[90:100], LABELS[90:100])
    np.testing.assert_array_equal(loaded.predict_proba(QUERIES), live.predict_proba(QUERIES))
