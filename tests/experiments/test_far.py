"""The study of inputs of no class measures what fitting by hand gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal import KCal, KCalBlend, TemperatureScaling
from kcal.benchmark.entrants import train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies import STUDIES, Study
from kcal.benchmark.studies.far import LEVELS, METHODS, NO_HAND_OVER, Far, measure_far, study_far

pytestmark = pytest.mark.usefixtures("short_trainings")
TASK = make_task(n_out_of_scope=40)


@pytest.fixture(scope="module")
def far(short_trainings: None) -> Far:
    return measure_far(TASK, n_reshuffles=2, seed=0)


def test_confidence_out_of_scope_is_what_fitting_by_hand_gives(far: Far) -> None:
    assert TASK.out_of_scope is not None
    pool, outside = TASK.pool, TASK.out_of_scope
    trained = train_for("kcal", TASK, seed=0, by_group=False)
    deals = reshuffles_by_row(150, 0.4, 2, 0)
    shares = []
    for place, deal in enumerate(deals):
        rows, labels = deal.calibration, pool.labels[deal.calibration]
        scaled = TemperatureScaling().fit(pool.logits[rows], labels)
        found = scaled.predict_proba(outside.logits).max(axis=1)
        assert far.values["ts"]["outside"][place] == pytest.approx(found.mean())
        assert far.values["ts"]["sure"][place] == pytest.approx((found > 0.9).mean())
        inside = scaled.predict_proba(pool.logits[deal.test]).max(axis=1)
        assert far.values["ts"]["inside"][place] == pytest.approx(inside.mean())
        loss = -scaled.predict_log_proba(pool.logits[deal.test])[np.arange(len(deal.test)), pool.labels[deal.test]]
        assert far.values["ts"]["loss"][place] == pytest.approx(loss.mean(), rel=1e-6)
        pairs = np.sign(inside[:, None] - found[None, :])
        assert far.values["ts"]["by_confidence"][place] == pytest.approx((0.5 + 0.5 * pairs).mean())
        shares.append((found > 0.5).mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kcal = KCal(projection=trained, progress=False).fit(pool.embeddings[rows], labels)
            blend = KCalBlend(projection=trained, fallback_quantile=0.0, progress=False)
            blend.fit(pool.embeddings[rows], labels, logits=pool.logits[rows])
            confidence = blend.predict_proba(outside.embeddings, logits=outside.logits).max(axis=1)
        pairs = np.sign(kcal.log_evidence(pool.embeddings[deal.test])[:, None] - kcal.log_evidence(outside.embeddings))
        assert far.values["kcal"]["by_evidence"][place] == pytest.approx((0.5 + 0.5 * pairs).mean())
        assert far.values[NO_HAND_OVER]["outside"][place] == pytest.approx(confidence.mean())
    half = int(np.argmin(np.abs(LEVELS - 0.5)))
    assert far.above["out of scope"]["ts"][half] == pytest.approx(np.mean(shares))


def test_handing_over_makes_the_blend_less_sure_of_far_inputs_and_only_some_have_evidence(far: Far) -> None:
    assert far.values["kcal-blend"]["outside"].mean() < far.values[NO_HAND_OVER]["outside"].mean()
    assert far.values["kcal-blend"]["by_evidence"].min() > 0.95
    rows = {row[0].text: row[-2].text for row in far.table().rows}
    assert [name for name, text in rows.items() if text == "–"] == ["uncal", "ts", NO_HAND_OVER]
    assert all(shares[0] == 1 and shares[-1] == 0 for shares in far.above["test"].values())


def test_tasks_without_such_inputs_are_named() -> None:
    seen: list[tuple[str, int, int]] = []
    made = study_far([make_task("plain"), TASK], reshuffles=1, watch=lambda *step: seen.append(step))
    assert "No out-of-scope inputs, and so not shown: plain. Here: 1 reshuffle." in made.about
    assert [table.title for table in made.tables] == ["small: inputs of no class"]
    assert [panel.title for panel in made.panels] == ["small, test", "small, out of scope"]
    assert seen[-1] == ("small", len(METHODS), len(METHODS))
    assert Study.from_json(made.as_json()) == made
    assert STUDIES["far"] is study_far
    nothing = study_far([make_task("plain")], reshuffles=1)
    assert (nothing.tables, nothing.panels) == ((), ())
