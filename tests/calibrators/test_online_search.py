"""A search that is due can be left for later: until then predictions have the new samples and the last parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kcal import KCal, KCalBlend

pytestmark = pytest.mark.filterwarnings("ignore::kcal.KcalWarning")

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, 240)
ROWS = GENERATOR.normal(size=(240, 5))
ROWS[np.arange(240), LABELS] += 2.0
LOGITS = 2.0 * ROWS[:, :3]
QUERIES = GENERATOR.normal(size=(9, 5))


def make(kind: type[Any], start: int, stop: int, live: Any = None) -> Any:
    """Fit a calibrator, or add samples to one."""
    rows = slice(start, stop)
    logits = {"logits": LOGITS[rows]} if kind is KCalBlend else {}
    if live is not None:
        return live.partial_fit(ROWS[rows], LABELS[rows], **logits)
    parameters = {"projection": "identity"} if kind is KCal else {}
    return kind(**parameters).fit(ROWS[rows], LABELS[rows], **logits)


def probabilities(calibrator: Any) -> Any:
    logits = {"logits": QUERIES[:, :3]} if isinstance(calibrator, KCalBlend) else {}
    return calibrator.predict_proba(QUERIES, **logits)


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_after_the_late_search_predictions_are_those_of_a_search_at_once(kind: type[Any]) -> None:
    live, at_once = (make(kind, 120, 240, make(kind, 0, 120)) for _ in range(2))
    live.refresh(search=False)
    early = probabilities(live.snapshot(search=False))
    assert live.is_search_due_
    live.refresh()
    assert not live.is_search_due_
    np.testing.assert_array_equal(probabilities(live), probabilities(at_once))
    assert not np.array_equal(early, probabilities(live))


def test_before_it_a_kcal_has_the_bandwidth_of_the_power_law() -> None:
    live = make(KCal, 120, 240, make(KCal, 0, 120))
    early = live.snapshot(search=False)
    record = early.bandwidth_history_[-1]
    assert (record.source, record.n_samples) == ("law", 240)
    law = live.snapshot().bandwidth_history_[0]
    expected = law.bandwidth * (record.size / law.size) ** (-1 / (5 + 4))
    assert record.bandwidth == pytest.approx(expected)
    fixed = KCal(projection="identity", bandwidth=record.bandwidth).fit(ROWS, LABELS)
    np.testing.assert_allclose(probabilities(early), probabilities(fixed), rtol=1e-9)


def test_before_it_a_blend_has_its_weights_and_all_samples() -> None:
    first = make(KCalBlend, 0, 120)
    weights = first.weights_
    live = make(KCalBlend, 120, 240, first)
    early = live.snapshot(search=False)
    assert early.weights_ == weights
    assert len(early.ids_) == 240
    assert live.snapshot().weights_ != weights


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_an_erasure_makes_no_search_and_loses_none(kind: type[Any]) -> None:
    live = make(kind, 120, 240, make(kind, 0, 120))
    live.forget([3])
    assert live.is_search_due_
    assert 3 not in live.snapshot(search=False).ids_
    at_once = make(kind, 120, 240, make(kind, 0, 120)).forget([3])
    np.testing.assert_array_equal(probabilities(live.refresh()), probabilities(at_once))


def test_a_new_class_of_a_blend_has_weights_at_once() -> None:
    live = KCalBlend().fit(ROWS[:120], LABELS[:120])
    new = live.partial_fit(ROWS[120:], np.where(LABELS[120:] == 1, 7, LABELS[120:])).snapshot(search=False)
    assert new.classes_.tolist() == [0, 1, 2, 7]
    np.testing.assert_allclose(new.predict_proba(QUERIES).sum(axis=1), 1.0)
