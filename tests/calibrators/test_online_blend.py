"""A blend that lives on: after a scheduled fit it is the blend of a fresh fit; between fits only its supports grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal import InvalidInputError, KCalBlend, Updates, load, save

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, 300)
ROWS = GENERATOR.normal(size=(300, 20))
ROWS[np.arange(300), LABELS] += 3.0
LOGITS = GENERATOR.normal(size=(300, 3))
LOGITS[np.arange(300), LABELS] += 2.0
GROUPS = np.arange(300) % 15
WEIGHTS = np.linspace(0.5, 2.0, 300)
QUERIES, QUERY_LOGITS = GENERATOR.normal(size=(9, 20)), GENERATOR.normal(size=(9, 3))


def part(start: int, stop: int, *, full: bool = True) -> tuple[tuple[Any, Any], dict[str, Any]]:
    rows = slice(start, stop)
    extra = {"groups": GROUPS[rows], "sample_weight": WEIGHTS[rows], "ids": np.arange(start, stop)} if full else {}
    return (ROWS[rows], LABELS[rows]), {"logits": LOGITS[rows], **extra}


def blend(**parameters: Any) -> KCalBlend:
    return KCalBlend(progress=False, **parameters)


def fitted(start: int, stop: int, calibrator: KCalBlend | None = None) -> KCalBlend:
    arguments, options = part(start, stop)
    return (calibrator or blend()).fit(*arguments, **options)


@pytest.fixture(scope="module")
def fresh() -> KCalBlend:
    return fitted(0, 240)


def probabilities(calibrator: KCalBlend) -> Any:
    return calibrator.predict_proba(QUERIES, logits=QUERY_LOGITS)


def test_after_a_scheduled_fit_it_is_the_blend_of_a_fresh_fit(fresh: KCalBlend) -> None:
    live = fitted(0, 120)
    for start in range(120, 240, 40):
        arguments, options = part(start, start + 40)
        live.partial_fit(*arguments, **options)
    np.testing.assert_allclose(probabilities(live), probabilities(fresh), atol=1e-9)
    np.testing.assert_allclose(live.evidence(QUERIES), fresh.evidence(QUERIES), atol=1e-9)
    assert live.weights_ == pytest.approx(fresh.weights_)
    assert live.shares_ == pytest.approx(fresh.shares_)
    assert [record.n_samples for record in live.bandwidth_history_] == [120, 240]
    assert live.bandwidth_history_[-1].metric == "unit"


def test_between_fits_only_the_supports_grow(fresh: KCalBlend) -> None:
    live = fitted(0, 240)
    arguments, options = part(240, 300)
    live.partial_fit(*arguments, **options)
    assert len(live.bandwidth_history_) == 1
    assert live.weights_ == fresh.weights_
    assert live.bandwidth_ == fresh.bandwidth_
    np.testing.assert_array_equal(live.frequencies_, fresh.frequencies_)
    assert live.support_size_ == 300
    assert not np.allclose(probabilities(live), probabilities(fresh), atol=1e-6)


def test_samples_that_come_again_leave_the_density(fresh: KCalBlend) -> None:
    live = fitted(0, 240, blend(updates=Updates(growth=10.0)))
    arguments, options = part(0, 240)
    live.partial_fit(*arguments, **options | {"ids": np.arange(1000, 1240)})
    again = live.snapshot(search=False)
    assert again.support_size_ == 480
    np.testing.assert_allclose(again.log_evidence(QUERIES), fresh.log_evidence(QUERIES), atol=1e-9)


@pytest.mark.filterwarnings("ignore:No logits were given")
def test_a_class_may_appear_only_without_logits() -> None:
    live = fitted(0, 120)
    (row, _), options = part(120, 121)
    with pytest.raises(InvalidInputError, match=r"^y .*got 3"):
        live.partial_fit(row, [3], **options)
    with pytest.raises(InvalidInputError, match=r"^labels "):
        live.correct([0], [3])
    without = blend().fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:130], LABELS[100:130] + 1)
    expected = blend().fit(ROWS[:130], [*LABELS[:100], *(LABELS[100:130] + 1)])
    assert without.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(without.predict_proba(QUERIES), expected.predict_proba(QUERIES), atol=1e-9)


def test_loaded_blend_learns_on(fresh: KCalBlend, tmp_path: Path) -> None:
    begun = fitted(0, 120)
    begun.partial_fit(*part(120, 130)[0], **part(120, 130)[1])
    for start, calibrator in ((120, fitted(0, 120)), (130, begun)):
        live = load(save(calibrator, tmp_path / "begun.kcal"))
        arguments, options = part(start, 240)
        live.partial_fit(*arguments, **options)
        np.testing.assert_allclose(probabilities(live), probabilities(fresh), atol=1e-9)


def test_samples_without_weight_play_no_part(tmp_path: Path) -> None:
    weights = np.where(np.arange(300) % 5 == 0, 0.0, WEIGHTS)
    (rows, labels), options = part(0, 240)
    expected = blend().fit(rows, labels, **options | {"sample_weight": weights[:240]})
    live = blend().fit(rows[:120], labels[:120], **{name: values[:120] for name, values in options.items()})
    live.forget(np.arange(0, 120, 5))
    arguments, options = part(120, 240)
    live.partial_fit(*arguments, **options | {"sample_weight": weights[120:240]})
    loaded = load(save(live, tmp_path / "live.kcal"))
    for calibrator in (live, loaded):
        np.testing.assert_allclose(probabilities(calibrator), probabilities(expected), atol=1e-9)
        np.testing.assert_allclose(calibrator.evidence(QUERIES), expected.evidence(QUERIES), atol=1e-9)
        np.testing.assert_array_equal(calibrator.ids_, np.flatnonzero(weights[:240]))


def test_window_keeps_the_newest_samples_and_predicts_as_their_fit() -> None:
    live = fitted(0, 120, blend(updates=Updates(window=180)))
    for start in range(120, 300, 60):
        arguments, options = part(start, start + 60)
        live.partial_fit(*arguments, **options)
    live.refresh()
    expected = fitted(120, 300)
    np.testing.assert_array_equal(live.ids_, expected.ids_)
    np.testing.assert_allclose(probabilities(live), probabilities(expected), atol=1e-9)


def test_corrected_and_forgotten_samples_count_towards_the_next_fit() -> None:
    live = fitted(0, 240)
    live.correct(np.arange(60), LABELS[:60])
    live.forget(np.arange(60))
    expected = fitted(60, 240)
    np.testing.assert_allclose(probabilities(live), probabilities(expected), atol=1e-9)
    np.testing.assert_array_equal(live.ids_, expected.ids_)


def test_with_a_head_updates_need_no_logits() -> None:
    generator = np.random.default_rng(1)
    head = generator.normal(size=(3, 20)), generator.normal(size=3)
    live = blend(head=head).fit(ROWS[:100], LABELS[:100]).partial_fit(ROWS[100:200], LABELS[100:200])
    expected = blend(head=head).fit(ROWS[:200], LABELS[:200])
    np.testing.assert_allclose(live.predict_proba(QUERIES), expected.predict_proba(QUERIES), atol=1e-9)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        live.partial_fit(ROWS[:1], LABELS[:1], logits=LOGITS[:1])
