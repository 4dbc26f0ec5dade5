"""KCal's blend without one of its ingredients, or with another metric in place of the learned one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal import metrics
from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import Reshuffle
from kcal.benchmark.results import MEASURES
from kcal.benchmark.studies.measuring import Values, deals_of, gathered, rows_with_the_best_bold, ways_to_deal
from kcal.benchmark.studies.overview import METRIC, log_loss_overview
from kcal.benchmark.studies.study import SHOWN, Study, StudyWatch, counted, mean_entry, metric_label, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import KCalBlend
from kcal.calibrators.blend.class_frequencies import LEAST
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.fitting import Samples
from kcal.calibrators.blend.network import Partner
from kcal.calibrators.blend.pool import PoolProblem
from kcal.projection import FastRecipe, TrainedProjection


@dataclass(frozen=True)
class Metric:
    """A learned metric by a recipe, or only what that starts from: principal axes of the standardised embeddings."""

    recipe: FastRecipe
    trained: bool = True

    def train(self, task: Task, *, seed: int, by_group: bool) -> TrainedProjection:
        """Return the metric as a projection; what is not trained has one checkpoint."""
        recipe = self.recipe if self.trained else replace(self.recipe, steps=1)
        found = train_for("kcal", task, seed=seed, by_group=by_group, recipe=recipe)
        assert found is not None
        return found if self.trained else replace(found, checkpoints=found.checkpoints[:1], steps=(1,))


class OneMetric(KCalBlend):
    """A blend that chooses the metric with the least leave-one-out loss, in place of pooling all."""

    def _find_experts(self, *given: Any) -> list[Expert]:
        return [min(super()._find_experts(*given), key=_least_loss)]


def _least_loss(expert: Expert) -> float:
    assert expert.estimate.bandwidth_curve_ is not None
    return float(expert.estimate.bandwidth_curve_.loss)


class CountedFrequencies(KCalBlend):
    """A blend that takes classes for as frequent as they were counted, chance and all."""

    def _strength_of_frequencies(self, samples: Samples) -> float:
        return LEAST


class InSample(KCalBlend):
    """A blend whose network is judged on the very samples that it was calibrated on."""

    def _calibrated_network(self, scores: torch.Tensor, samples: Samples) -> list[Partner]:
        found = super()._calibrated_network(scores, samples)
        return [replace(each, cross_fitted=each.says(scores)) for each in found]


class EverySampleCounts(KCalBlend):
    """A blend for which samples of one group tell as much as others."""

    def _worth_of_a_sample(self, problem: PoolProblem, groups: NDArray[np.int64]) -> float:
        return 1.0


WHOLE = "the whole blend"
LEFT_OUT = "left_out_loss"
"""The log-loss of a pool on calibration samples, each predicted without itself or its group."""
NETWORK_LEFT_OUT = "network_left_out_loss"
"""That of temperature scaling, each sample predicted by what was fitted on other folds."""
EACH_COUNTS = "every sample of a group counts"
INGREDIENTS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "no learned metric": {"projection": None},
    "one metric, chosen": {"kind": OneMetric},
    "one bandwidth a metric": {"bandwidth_factors": (1.0,)},
    "one metric, chosen, at one bandwidth": {"kind": OneMetric, "bandwidth_factors": (1.0,)},
    "temperature scaling only": {"network_calibrator": "ts"},
    "matrix scaling always": {"network_calibrator": "sms"},
    "no bias": {"bias": 0.0},
    "next to no background": {"background": 1e-12},
    "no hand-over": {"fallback_quantile": 0.0},
    "no sharpening": {"sharpness": 0.0},
    "no logits": {"logits": False},
    "class frequencies as counted": {"kind": CountedFrequencies},
    "network not cross-fitted": {"kind": InSample},
    EACH_COUNTS: {"kind": EverySampleCounts},
}
"""What tables call a blend, and its parameters, or what it is in place of KCalBlend."""
METRICS = {
    "standardised, in place of the learned metric": Metric(FastRecipe(unit_length=False), trained=False),
    "32 principal axes in its place": Metric(FastRecipe(unit_length=False, largest_dimension=32), trained=False),
    "learned from a random start": Metric(FastRecipe(start="random")),
    "learned, and held near its start": Metric(FastRecipe(hold=10.0)),
}
"""What tables call a blend with another metric beside the directions, and how that comes about."""
PARTS = {"kcal": "KCal", "ts": "temperature scaling", "sms": "structured matrix scaling"}
"""What the blend is made of."""
ABOUT = (
    "The blend (kcal-blend) beside the blend without one of its ingredients, and beside what it is made of, on the "
    "same reshuffles. The metric beside the directions is learned: from principal axes, which are the embeddings "
    "themselves but for a turn, and the calibration set chooses among checkpoints from the first step on, so that it "
    "stays as near to them as is best. Pooling is compared with choosing: “one metric, chosen” hears only the metric "
    "with the least leave-one-out loss. Four rows show others in place of the learned one: the embeddings "
    "standardised (along their principal axes, at most 128), 32 principal axes of these, a metric learned from "
    "the paper's random start, and one that is drawn back to the axes all through its training. “Network not "
    "cross-fitted” judges the network on samples that it was calibrated on; “class frequencies as counted” does not "
    "take chance out of them; “every sample of a group counts” lets samples of a group tell as much as if they had "
    "nothing in common. Mean ± standard deviation; bold is the best mean, "
    "whatever the accuracy and however small the lead: compare differences with the standard deviation. The blend's "
    "parts were chosen by what they do on reshuffles of the pools of CIFAR-10, CIFAR-100, CLINC150 and Sleep-EDF. The"
    " reshuffles were others than these, but of the same samples: on these tasks the whole blend is flattered. What "
    "groups count for, sharpening, class frequencies and hand-over were also looked at on small networks on Fashion-"
    "MNIST and electrocardiograms and on simulated groups."
)


def study_ingredients(
    tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Measure the blend without each ingredient on every task, by rows and, where there are groups, by groups."""
    found: dict[str, dict[str, Values]] = {}
    for task in tasks:
        for row in ways_to_deal(task):
            found[row.label] = measure_ingredients(
                task,
                by_group=row.by_group,
                n_reshuffles=reshuffles,
                seed=seed,
                watch=lambda done, total, name=row.label: watch(name, done, total),  # type: ignore[misc]
            )
    title = f"What leaving out an ingredient does to the {MEASURES[METRIC].title}"
    tables = (
        log_loss_overview("ingredients_overview", title, WHOLE, found),
        expected_and_found(found),
        *(_table(label, values) for label, values in found.items()),
    )
    return Study("ingredients", "The blend without its ingredients", counted(ABOUT, reshuffles), tables)


def measure_ingredients(
    task: Task,
    *,
    by_group: bool,
    n_reshuffles: int,
    seed: int,
    watch: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Values]:
    """Return the shown metrics of the blend without each ingredient; the projection is trained once."""
    trained = train_for("kcal", task, seed=seed, by_group=by_group)
    assert trained is not None
    deals = deals_of(task, n_reshuffles, seed, by_group=by_group)
    found: dict[str, Values] = {}
    rows = {name: parameters for name, parameters in INGREDIENTS.items() if by_group or name != EACH_COUNTS}
    for name, metric in METRICS.items():
        rows[name] = {"projection": metric.train(task, seed=seed, by_group=by_group)}
    rows |= {title: {"method": part} for part, title in PARTS.items()}
    total = len(rows) * len(deals)
    for name, parameters in rows.items():
        values = []
        for deal in deals:
            values.append(_measure(task, deal, parameters, trained, by_group=by_group, seed=seed))
            watch(len(found) * len(deals) + len(values), total)
        found[name] = gathered(values)
        for loss in (LEFT_OUT, NETWORK_LEFT_OUT):
            if loss in values[0]:
                found[name][loss] = np.array([each[loss] for each in values])
    return found


def expected_and_found(found: dict[str, dict[str, Values]]) -> Table:
    """Return the log-loss that the blend was fitted by beside that on the test part, by task."""
    rows = []
    for label, values in found.items():
        whole, scaled = values[WHOLE], values[PARTS["ts"]]
        losses = (whole[LEFT_OUT], whole[METRIC], whole[METRIC] - whole[LEFT_OUT])
        more = scaled[METRIC] - whole[NETWORK_LEFT_OUT]
        rows.append((Entry(label), *(mean_entry(each, METRIC) for each in (*losses, more))))
    note = (
        "Left out: the log-loss on calibration samples, each predicted without itself or its group, which the weights "
        "are fitted by, before sharpening. The last column is the same difference for temperature scaling, "
        "cross-fitted: what the test part is harder by, with one number fitted. Were the blend's weights fitted to "
        "chance, its own difference would be much larger."
    )
    heading = ("", "NLL, left out", "NLL, test part", "difference", "difference, temperature scaling")
    return Table("expected", "What the blend expects of itself, and what comes", heading, tuple(rows), note)


def _measure(
    task: Task, deal: Reshuffle, parameters: dict[str, Any], trained: TrainedProjection, *, by_group: bool, seed: int
) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that a pool holds twice
        if "method" in parameters:
            method = parameters["method"]
            entrant = Entrant(method, seed, trained if method == "kcal" else None)
            fitted = entrant.fit(task, deal.calibration, by_group=by_group)
            probabilities = entrant.predict(fitted, task, deal.test)
        else:
            fitted, probabilities = _blend(task, deal, parameters, trained, by_group=by_group, seed=seed)
    found = metrics.evaluate(probabilities, task.pool.labels[deal.test]).as_dict()
    shown = {name: found[name] for name in SHOWN}
    if isinstance(fitted, KCalBlend):
        shown[LEFT_OUT] = fitted._pool.loss
        if fitted.takes_logits_:
            said = fitted._partners[0].cross_fitted.numpy()
            shown[NETWORK_LEFT_OUT] = -float(said[np.arange(len(said)), task.pool.labels[deal.calibration]].mean())
    return shown


def _blend(
    task: Task, deal: Reshuffle, parameters: dict[str, Any], trained: TrainedProjection, *, by_group: bool, seed: int
) -> tuple[KCalBlend, Any]:
    pool, rows = task.pool, deal.calibration
    chosen: dict[str, Any] = {"projection": trained, "seed": seed, "progress": False} | parameters
    with_logits, kind = chosen.pop("logits", True), chosen.pop("kind", KCalBlend)
    blend = kind(**chosen).fit(
        pool.embeddings[rows],
        pool.labels[rows],
        logits=pool.logits[rows] if with_logits else None,
        groups=pool.groups[rows] if by_group else None,
        classes=range(len(task.classes)),
    )
    logits = pool.logits[deal.test] if with_logits else None
    return blend, blend.predict_proba(pool.embeddings[deal.test], logits=logits)


def _table(label: str, found: dict[str, Values]) -> Table:
    heading = ("", *(metric_label(name) for name in SHOWN))
    return Table(
        "ingredients", f"{label}: the blend's ingredients", heading, rows_with_the_best_bold(list(found.items()))
    )
