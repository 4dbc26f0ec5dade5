"""The bandwidth follows the power law between searches, which come when samples have grown or a class appears."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kcal import KCal, Updates
from kcal.calibrators import BandwidthRecord
from kcal.kernels import fit_bandwidth_law, search_near, size_of_rarest_class

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(600) % 2
ROWS = GENERATOR.normal(size=(600, 2)) + 1.5 * LABELS[:, None]
QUERIES = GENERATOR.normal(size=(5, 2))


def kcal(**parameters: Any) -> KCal:
    return KCal(projection="identity", progress=False, **parameters)


def test_searches_come_when_the_samples_have_grown_by_half() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100])
    sources = []
    for start in range(100, 240, 10):
        live.partial_fit(ROWS[start : start + 10], LABELS[start : start + 10])
        live.predict(QUERIES)
        sources.append(live.bandwidth_history_[-1].source)
    due = [150, 230]
    assert [110 + 10 * place for place, source in enumerate(sources) if source == "search"] == due
    assert [record.n_samples for record in live.bandwidth_history_] == [100, *due, 240]
    assert [record.source for record in live.bandwidth_history_] == ["search", "search", "search", "law"]
    assert live.bandwidth_curve_ is None
    assert live.bandwidth_ == live.bandwidth_history_[-1].bandwidth


def test_updates_without_predictions_lead_to_one_search_at_most() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100])
    for start in range(100, 600, 10):
        live.partial_fit(ROWS[start : start + 10], LABELS[start : start + 10])
    assert [record.n_samples for record in live.bandwidth_history_] == [100, 600]


def test_between_searches_the_bandwidth_is_that_of_the_law() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:130], LABELS[100:130])
    first, last = live.bandwidth_history_
    law = fit_bandwidth_law([first.bandwidth], [50.0], dimension=2)
    assert (first.size, last.size) == (50.0, 65.0)
    assert last.bandwidth == pytest.approx(law(65.0), rel=1e-12)
    fresh = kcal(bandwidth="rule", bandwidth_reference=(first.bandwidth, 50.0)).fit(ROWS[:130], LABELS[:130])
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), atol=1e-12)
    assert fresh.bandwidth_history_[0].source == "law"


def test_a_class_that_appears_leads_to_a_search_at_once() -> None:
    live = kcal().fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:101], [7])
    assert [record.source for record in live.bandwidth_history_] == ["search", "search"]
    live.partial_fit(ROWS[101:102], [7])
    assert live.bandwidth_history_[-1].source == "law"


def test_a_window_of_constant_size_is_searched_again_too() -> None:
    live = kcal(updates=Updates(window=100)).fit(ROWS[:100], LABELS[:100])
    for start in range(100, 300, 25):
        live.partial_fit(ROWS[start : start + 25], LABELS[start : start + 25])
        live.predict(QUERIES)
    searches = [record.n_updates for record in live.bandwidth_history_ if record.source == "search"]
    assert searches == [100, 150, 200, 250, 300]


def test_a_given_bandwidth_stays() -> None:
    live = kcal(bandwidth=0.3).fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:400], LABELS[100:400])
    (record,) = live.bandwidth_history_
    assert (record.source, record.bandwidth, record.n_samples) == ("given", 0.3, 400)


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
    assert live.bandwidth_history_[-1].source == "search"
    assert live.bandwidth_curve_.n_folds == n_folds
    whole = kcal(**parameters).fit(ROWS[:400], LABELS[:400], groups=groups[:400] if grouped else None)
    assert live.bandwidth_ == pytest.approx(whole.bandwidth_, rel=0.15)


def test_searches_of_a_stream_come_close_to_whole_searches() -> None:
    live = kcal().fit(ROWS[:50], LABELS[:50])
    for start in range(50, 600, 50):
        live.partial_fit(ROWS[start : start + 50], LABELS[start : start + 50])
        live.predict(QUERIES)
    fresh = kcal().fit(ROWS, LABELS)
    losses = []
    for bandwidth in (live.bandwidth_, fresh.bandwidth_):
        own = kcal(bandwidth=bandwidth).fit(ROWS, LABELS).leave_one_out_proba_[np.arange(600), LABELS]
        losses.append(-np.log(own).mean())
    assert losses[0] < 1.005 * losses[1]


def record(size: float, bandwidth: float, source: str = "search") -> BandwidthRecord:
    return BandwidthRecord(bandwidth, source, None, int(2 * size), size, 2, int(2 * size))


def test_the_exponent_is_fitted_to_the_searches_if_that_is_wanted() -> None:
    history = [record(size, 3.0 * size**-0.2) for size in (10.0, 20.0, 40.0)]
    fitted = Updates(fit_exponent=True).law(history, dimension=30, exponent=None)
    assert fitted is not None
    assert (fitted.constant, fitted.exponent) == pytest.approx((3.0, -0.2))
    theory = Updates().law(history, dimension=30, exponent=None)
    assert theory is not None
    assert theory.exponent == pytest.approx(-1 / 34)
    assert theory(40.0) == pytest.approx(history[-1].bandwidth)
    given = Updates().law(history, dimension=30, exponent=-0.1)
    assert given is not None
    assert given.exponent == -0.1
    assert Updates().law([record(5.0, 1.0, "given")], dimension=30, exponent=None) is None


def test_a_search_nearby_finds_the_minimum_wherever_it_begins() -> None:
    def loss(bandwidths: Any) -> Any:
        return [1.0 + 0.3 * np.log(bandwidth / 0.8) ** 2 for bandwidth in bandwidths]

    for expected in (0.01, 0.5, 0.8, 1.0, 60.0):
        curve = search_near(loss, expected)
        assert curve.bandwidth == pytest.approx(0.8)  # the loss is a parabola
        assert not curve.at_edge
    pulled = search_near(loss, 1.0, pull=0.6).bandwidth  # as strong as the loss itself: half way
    assert pulled == pytest.approx(0.8**0.5)
    assert search_near(lambda bandwidths: [1 / bandwidth for bandwidth in bandwidths], 1.0).at_edge


def test_the_history_counts_what_the_law_needs() -> None:
    weights = np.linspace(0.5, 2.0, 130)
    live = kcal().fit(ROWS[:100], LABELS[:100], sample_weight=weights[:100])
    live.partial_fit(ROWS[100:130], LABELS[100:130], sample_weight=weights[100:])
    last = live.bandwidth_history_[-1]
    assert last.size == pytest.approx(size_of_rarest_class(LABELS[:130], weights, 2))
    assert (last.n_samples, last.n_classes, last.n_updates) == (130, 2, 130)
