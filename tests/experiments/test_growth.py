"""The simulation knows the truth, and more samples come closer to it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from kcal import KCal, KCalBlend
from kcal.benchmark.studies import STUDIES, Study, growth
from kcal.benchmark.studies.growth import (
    ESTIMATES,
    METHODS,
    NETWORK,
    Growth,
    draw_world,
    measure_growth,
    study_growth,
    summed_weights,
)


@pytest.fixture(scope="module")
def grown() -> Growth:
    return measure_growth((60, 3000), n_repetitions=2, seed=0)


def test_labels_follow_the_truth_and_no_temperature_mends_the_network() -> None:
    world = draw_world(20_000, np.random.default_rng(0))
    frequencies = np.bincount(world.outputs.labels) / 20_000
    np.testing.assert_allclose(frequencies, world.truth.mean(axis=0), atol=0.015)
    assert -log_softmax(world.outputs.logits, axis=1)[np.arange(20_000), world.outputs.labels].mean() > (
        -np.log(world.truth[np.arange(20_000), world.outputs.labels]).mean() + 0.1
    )
    seeing = world.outputs.embeddings[:, 0] <= 0
    for temperature, rows, limit in ((2.0, seeing, 1e-6), (2.0, ~seeing, None)):
        scaled = np.exp(log_softmax(world.outputs.logits[rows] / temperature, axis=1))
        error = np.abs(scaled - world.truth[rows]).mean()
        assert error < limit if limit is not None else error > 0.1


def test_errors_are_those_of_fitting_by_hand(grown: Growth) -> None:
    world, test = draw_world(60, np.random.default_rng([0, 1, 60, 1])), draw_world(2000, np.random.default_rng([0, 0]))
    calibrator = KCal(projection="identity").fit(world.outputs.embeddings, world.outputs.labels)
    expected = np.abs(calibrator.predict_proba(test.outputs.embeddings) - test.truth).mean()
    assert grown.errors["kcal"][0][1] == pytest.approx(expected)


def test_more_samples_come_closer_to_the_truth_and_the_estimates_gain_weight(grown: Growth) -> None:
    means = {name: [float(each.mean()) for each in values] for name, values in (grown.errors | grown.weights).items()}
    for method in ("kcal", "kcal-blend"):
        assert means[method][0] > 2 * means[method][1]
    assert means["uncal"][0] == means["uncal"][1]
    assert means["ts"][1] > 2 * means["kcal-blend"][1]
    assert means[ESTIMATES][0] < means[ESTIMATES][1]
    assert means[NETWORK][0] > means[NETWORK][1]


def test_weights_are_summed_by_who_speaks() -> None:
    world = draw_world(200, np.random.default_rng(3))
    blend = KCalBlend(projection=None).fit(world.outputs.embeddings, world.outputs.labels, logits=world.outputs.logits)
    found = summed_weights(blend)
    assert sum(found.values()) == pytest.approx(sum(blend.weights_.values()))
    assert found[ESTIMATES] == pytest.approx(
        sum(v for name, v in blend.weights_.items() if name.startswith("identity"))
    )


def test_the_study_needs_no_tasks_and_large_sizes_are_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "SIZES", (40, 80))
    monkeypatch.setattr(growth, "SAMPLES", 80)
    seen: list[tuple[str, int, int]] = []
    made = study_growth([], reshuffles=2, watch=lambda *step: seen.append(step))
    assert seen == [("simulation", done, 3) for done in (1, 2, 3)]
    (table,) = made.tables
    assert [row[0].text for row in table.rows] == ["40", "80"]
    assert table.heading[1 : len(METHODS) + 1] == tuple(METHODS)
    assert "fewer: 2, 1." in table.note
    assert [len(panel.lines) for panel in made.panels] == [len(METHODS) + 1, 2]
    assert Study.from_json(made.as_json()) == made
    assert study_growth([], reshuffles=2) == made
    assert STUDIES["growth"] is study_growth
