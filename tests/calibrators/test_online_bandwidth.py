"""The bandwidth follows the power law between searches, which come when samples have grown or a class appears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal import KCal, KCalBlend, MissingClassWarning, Updates, load, save
from kcal.calibrators import BandwidthRecord, online_state
from kcal.kernels import fit_bandwidth_law

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(600) % 2
ROWS = GENERATOR.normal(size=(600, 2)) + 1.5 * LABELS[:, None]
QUERIES = GENERATOR.normal(size=(5, 2))


def kcal(**parameters: Any) -> KCal:
    return KCal(projection="identity", progress=False, **parameters)


def sizes_of_searches(start: int, stop: int, step: int, **parameters: Any) -> tuple[KCal, list[int]]:
    live = kcal(**parameters).fit(ROWS[:start], LABELS[:start])
    for first in range(start, stop, step):
        live.partial_fit(ROWS[first : first + step], LABELS[first : first + step])
        live.predict(QUERIES)
    return live, [record.n_samples for record in live.bandwidth_history_ if record.source == "search"]


def test_searches_come_when_the_samples_have_grown_by_half() -> None:
    live, searches = sizes_of_searches(200, 480, 20)
    assert searches == [200, 300, 460]
    assert [record.source for record in live.bandwidth_history_] == ["search", "search", "search", "law"]
    assert live.bandwidth_history_[-1].n_samples == 480
    assert live.bandwidth_curve_ is None
    assert live.bandwidth_ == live.bandwidth_history_[-1].bandwidth


def test_a_kernel_that_is_changed_takes_effect_at_the_next_fit() -> None:
    live, same = (kcal().fit(ROWS[:60], LABELS[:60]) for _ in range(2))
    live.set_params(kernel="epanechnikov")
    for calibrator in (live, same):
        calibrator.partial_fit(ROWS[60:120], LABELS[60:120])
    np.testing.assert_array_equal(live.predict_proba(QUERIES), same.predict_proba(QUERIES))
    assert live.bandwidth_history_ == same.bandwidth_history_


def test_updates_without_predictions_lead_to_one_search_at_most() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100])
    for start in range(100, 600, 10):
        live.partial_fit(ROWS[start : start + 10], LABELS[start : start + 10])
    assert [record.n_samples for record in live.bandwidth_history_] == [100]  # reading costs nothing
    assert [record.n_samples for record in live.refresh().bandwidth_history_] == [100, 600]


def test_between_searches_the_bandwidth_is_that_of_the_law() -> None:
    live = kcal().fit(ROWS[:200], LABELS[:200]).partial_fit(ROWS[200:260], LABELS[200:260]).refresh()
    first, last = live.bandwidth_history_
    law = fit_bandwidth_law([first.bandwidth], [100.0], dimension=2)
    assert (first.size, last.size) == (100.0, 130.0)
    assert last.bandwidth == pytest.approx(law(130.0), rel=1e-12)
    fresh = kcal(bandwidth="rule", bandwidth_reference=(first.bandwidth, 100.0)).fit(ROWS[:260], LABELS[:260])
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)
    assert fresh.bandwidth_history_[0].source == "law"


def test_a_class_that_appears_leads_to_a_search_at_once() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:101], [7]).refresh()
    assert [record.source for record in live.bandwidth_history_] == ["search", "search"]
    live.partial_fit(ROWS[101:102], [7]).refresh()
    assert live.bandwidth_history_[-1].source == "law"


def test_a_class_that_takes_the_place_of_another_leads_to_a_search_too(tmp_path: Path) -> None:
    labels = np.where(np.arange(100) < 98, LABELS[:100], 5)
    live = load(save(kcal().fit(ROWS[:100], labels), tmp_path / "live.kcal"))
    with pytest.warns(MissingClassWarning, match=r"1 of 3 classes .*\(5\)"):
        live.forget([98, 99])
    live.predict(QUERIES)
    assert live.bandwidth_history_[-1].source == "law"  # a class that is gone leads to none
    live.partial_fit(ROWS[100:101], [7]).refresh()
    last = live.bandwidth_history_[-1]
    assert (last.source, last.n_classes, last.classes) == ("search", 3, (0, 1, 7))
    assert live.bandwidth_history_[0].classes == ()
    live.partial_fit(ROWS[101:102], [5]).refresh()  # forgotten before that search
    assert live.bandwidth_history_[-1].source == "search"


@pytest.mark.parametrize(
    ("parameters", "grouped", "n_folds"),
    [
        ({"folds": 4}, False, 4),
        ({"bandwidth": "published"}, False, 20),
        ({"bandwidth": "published"}, True, 10),
        ({}, True, None),
    ],
)
def test_folds_and_groups_are_left_out_in_the_searches_of_a_stream(
    parameters: dict[str, Any], grouped: bool, n_folds: int | None
) -> None:
    groups = np.arange(600) % 10
    live = kcal(**parameters).fit(ROWS[:200], LABELS[:200], groups=groups[:200] if grouped else None)
    live.partial_fit(ROWS[200:400], LABELS[200:400], groups=groups[200:400] if grouped else None)
    live.refresh()
    assert live.bandwidth_history_[-1].source == "search"
    assert live.bandwidth_curve_.n_folds == n_folds
    whole = kcal(**parameters).fit(ROWS[:400], LABELS[:400], groups=groups[:400] if grouped else None)
    assert live.bandwidth_ == pytest.approx(whole.bandwidth_, rel=0.15)


def test_searches_of_a_stream_find_what_whole_searches_find() -> None:
    live = kcal().fit(ROWS[:50], LABELS[:50])
    for start in range(50, 500, 50):
        live.partial_fit(ROWS[start : start + 50], LABELS[start : start + 50])
        live.predict(QUERIES)
    searches = [record for record in live.bandwidth_history_ if record.source == "search"]
    assert [record.n_samples for record in searches] == [50, 100, 150, 200, 300, 450]
    for search in searches[1:]:  # on all samples, up to 1,000
        whole = kcal().fit(ROWS[: search.n_samples], LABELS[: search.n_samples])
        assert search.bandwidth == pytest.approx(whole.bandwidth_, rel=0.01)


def record(size: float, bandwidth: float, source: str = "search") -> BandwidthRecord:
    return BandwidthRecord(bandwidth, source, None, int(2 * size), size, 2, int(2 * size))


def test_the_exponent_is_between_that_of_the_searches_and_that_of_the_theory_unless_it_is_given() -> None:
    history = [record(size, 3.0 * size**-0.2) for size in (10.0, 20.0, 40.0)]
    fitted = Updates().law(history, dimension=30, exponent=None)
    assert fitted is not None
    assert fitted.exponent == pytest.approx((-0.2 - 1 / 34) / 2)
    assert fitted(40.0) == pytest.approx(history[-1].bandwidth)
    theory = Updates(fit_exponent=False).law(history, dimension=30, exponent=None)
    assert theory is not None
    assert theory.exponent == pytest.approx(-1 / 34)
    assert theory(40.0) == pytest.approx(history[-1].bandwidth)
    given = Updates().law(history, dimension=30, exponent=-0.1)
    assert given is not None
    assert given.exponent == -0.1
    assert Updates().law([record(5.0, 1.0, "given")], dimension=30, exponent=None) is None


# Searches that are left for later

CODES = GENERATOR.integers(0, 3, 240)
EMBEDDINGS = GENERATOR.normal(size=(240, 5))
EMBEDDINGS[np.arange(240), CODES] += 2.0
LOGITS = 2.0 * EMBEDDINGS[:, :3]
NEW = GENERATOR.normal(size=(9, 5))


def make(kind: type[Any], start: int, stop: int, live: Any = None) -> Any:
    """Fit a calibrator, or add samples to one."""
    rows = slice(start, stop)
    logits = {"logits": LOGITS[rows]} if kind is KCalBlend else {}
    if live is not None:
        return live.partial_fit(EMBEDDINGS[rows], CODES[rows], **logits)
    parameters = {"projection": "identity"} if kind is KCal else {}
    return kind(**parameters).fit(EMBEDDINGS[rows], CODES[rows], **logits)


def probabilities(calibrator: Any) -> Any:
    logits = {"logits": NEW[:, :3]} if isinstance(calibrator, KCalBlend) else {}
    return calibrator.predict_proba(NEW, **logits)


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_after_the_late_search_predictions_are_those_of_a_search_at_once(kind: type[Any]) -> None:
    live, at_once = (make(kind, 120, 240, make(kind, 0, 120)) for _ in range(2))
    live.refresh(search=False)
    early = probabilities(live.snapshot(search=False))
    assert online_state(live).is_search_due
    live.refresh()
    assert not online_state(live).is_search_due
    np.testing.assert_array_equal(probabilities(live), probabilities(at_once))
    assert not np.array_equal(early, probabilities(live))


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_an_erasure_makes_no_search_and_loses_none(kind: type[Any]) -> None:
    live = make(kind, 120, 240, make(kind, 0, 120))
    live.forget([3])
    assert online_state(live).is_search_due
    assert 3 not in live.snapshot(search=False).ids_
    at_once = make(kind, 120, 240, make(kind, 0, 120)).forget([3])
    np.testing.assert_array_equal(probabilities(live.refresh()), probabilities(at_once))


def test_a_new_class_of_a_blend_has_weights_at_once() -> None:
    live = KCalBlend().fit(EMBEDDINGS[:120], CODES[:120])
    new = live.partial_fit(EMBEDDINGS[120:], np.where(CODES[120:] == 1, 7, CODES[120:])).snapshot(search=False)
    assert new.classes_.tolist() == [0, 1, 2, 7]
    np.testing.assert_allclose(new.predict_proba(NEW).sum(axis=1), 1.0)
