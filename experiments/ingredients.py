"""KCal's blend without one of its ingredients, or with another metric in place of the learned one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from experiments.output import LOG_LOSS, log_loss_overview, metrics_table, number_entry
from experiments.study import (
    Measurements,
    Study,
    StudyOutput,
    TaskSetting,
    Values,
    Variant,
    by_row_and_group,
    main_metrics,
)
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.fitting import fit_blend
from kcal.calibrators.blend.network import NetworkFit, cross_fit_network
from kcal.calibrators.kcal.samples import Samples, check_samples
from kcal.projection import FastRecipe, TrainedProjection

WHOLE = "the whole blend"
LEFT_OUT, NETWORK_LEFT_OUT = "left_out_loss", "network_left_out_loss"
PARAMETERS: dict[str, dict[str, Any]] = {
    "no learned metric": {"projection": None},
    "one bandwidth per metric": {"bandwidth_factors": (1.0,)},
    "temperature scaling only": {"network_calibrator": "ts"},
    "matrix scaling always": {"network_calibrator": "sms"},
    "no bias": {"bias": 0.0},
    "almost no background": {"background": 1e-12},
    "no fallback": {"fallback_quantile": 0.0},
    "no sharpening": {"sharpness": 0.0},
}
PARTS = {"kcal": "KCal", "ts": "temperature scaling", "sms": "structured matrix scaling"}


@dataclass(frozen=True)
class Metric:
    """A learned metric by a recipe, or only its start: principal axes of the standardised embeddings."""

    recipe: FastRecipe
    trained: bool = True

    def projection(self, setting: TaskSetting) -> TrainedProjection:
        """Return the metric as a projection; without training it has one checkpoint."""
        recipe = self.recipe if self.trained else replace(self.recipe, steps=1)
        trained = setting.projection(recipe=recipe)
        return trained if self.trained else replace(trained, checkpoints=trained.checkpoints[:1], steps=(1,))


METRICS = {
    "standardised, in place of the learned metric": Metric(FastRecipe(unit_length=False), trained=False),
    "32 principal axes in its place": Metric(FastRecipe(unit_length=False, largest_dimension=32), trained=False),
    "learned from a random start": Metric(FastRecipe(start="random")),
}


@dataclass(frozen=True)
class Refit:
    """A blend that is composed from its public parts, with one of them changed.

    ``one_metric`` keeps the metric with the least leave-one-out loss; ``in_sample`` replaces the out-of-fold
    predictions of the network's calibrators by those for the samples they were fitted on; ``parameters`` are of the
    blend.
    """

    one_metric: bool = False
    in_sample: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def measure(self, setting: TaskSetting, split: Split) -> Values:
        """Fit the blend with the change, and return its metrics."""
        blend = setting.fit(setting.calibrator("kcal-blend", **self.parameters), split).calibrator
        experts = blend.model_.experts
        if self.one_metric:
            experts = (min(experts, key=partial(metric_loss, setting, split)),)
        samples, network = samples_of(setting, split), network_of(setting, split)
        if self.in_sample:
            own = log_probs_of(setting, split)
            network = replace(network, out_of_fold=tuple(model.log_probs(own) for model in network.models))
        tuning = {name: getattr(blend, name) for name in ("bias", "background", "fallback_quantile", "sharpness")}
        model = fit_blend(samples, experts, network, **tuning)
        test = setting.task.pool
        embeddings, logits = (torch.from_numpy(part[split.test]) for part in (test.embeddings, test.logits))
        probs = torch.exp(model.log_probs(model.inputs(embeddings, logits))).numpy()
        return main_metrics(probs, test.labels[split.test])


REFITS = {
    "one metric, chosen": Refit(one_metric=True),
    "one metric, chosen, at one bandwidth": Refit(one_metric=True, parameters={"bandwidth_factors": (1.0,)}),
    "network not cross-fitted": Refit(in_sample=True),
}


def samples_of(setting: TaskSetting, split: Split) -> Samples:
    rows, pool = split.calibration, setting.task.pool
    groups, classes = pool.groups[rows] if setting.by_group else None, range(len(setting.task.classes))
    return check_samples(torch.from_numpy(pool.embeddings[rows]), pool.labels[rows], classes=classes, groups=groups)


def network_of(setting: TaskSetting, split: Split) -> NetworkFit:
    """Return the cross-fitted calibrators of the network, as the blend fits them by default."""
    log_probs, samples = log_probs_of(setting, split), samples_of(setting, split)
    return cross_fit_network(log_probs, samples, choice="auto", folds=5, seed=setting.seed)


def log_probs_of(setting: TaskSetting, split: Split) -> torch.Tensor:
    """Return the network's log probabilities for the calibration rows."""
    return torch.log_softmax(torch.from_numpy(setting.task.pool.logits[split.calibration]).double(), dim=1)


def metric_loss(setting: TaskSetting, split: Split, expert: Expert) -> float:
    """Return the leave-one-out loss of KCal with the metric of an expert."""
    parameters = {} if expert.metric == "learned" else {"projection": expert.metric}
    kcal = setting.fit(setting.calibrator("kcal", **parameters), split).calibrator
    return float(kcal.bandwidth_curve_.loss)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the blend without each ingredient, with other metrics, and what it is made of."""

    def whole(split: Split) -> Values:
        fitted = setting.fit(setting.calibrator("kcal-blend"), split)
        own = network_of(setting, split).out_of_fold[0].numpy()  # of temperature scaling
        loss = -own[np.arange(len(own)), setting.task.pool.labels[split.calibration]].mean()
        return {**fitted.metrics(), LEFT_OUT: fitted.calibrator.model_.pool.loss, NETWORK_LEFT_OUT: float(loss)}

    def with_metric(metric: Metric) -> Variant:
        return setting.variant("kcal-blend", lambda: {"projection": metric.projection(setting)})

    return {
        WHOLE: whole,
        **{name: setting.variant("kcal-blend", partial(dict, chosen)) for name, chosen in PARAMETERS.items()},
        "no logits": setting.variant("kcal-blend", logits=False),
        **{name: partial(refit.measure, setting) for name, refit in REFITS.items()},
        **{name: with_metric(metric) for name, metric in METRICS.items()},
        **{title: setting.variant(method) for method, title in PARTS.items()},
    }


def show(measured: Measurements) -> StudyOutput:
    title = "What leaving out an ingredient does to the NLL"
    tables = [metrics_table(f"{label}: the blend's ingredients", by_variant) for label, by_variant in measured.items()]
    return StudyOutput((log_loss_overview(title, WHOLE, measured), expected_and_test_loss(measured), *tables))


def expected_and_test_loss(measured: Measurements) -> Table:
    """Return the log-loss that the blend's weights were fitted by beside that on the test part."""
    rows = []
    for label, by_variant in measured.items():
        whole, scaled = by_variant[WHOLE], by_variant[PARTS["ts"]]
        losses = (whole[LEFT_OUT], whole[LOG_LOSS], whole[LOG_LOSS] - whole[LEFT_OUT])
        rows.append((Entry(label), *map(number_entry, (*losses, scaled[LOG_LOSS] - whole[NETWORK_LEFT_OUT]))))
    note = (
        "Left out: the log-loss on calibration samples, each predicted without itself or its group, which the weights "
        "minimise, before sharpening. The last column is the same difference for temperature scaling, cross-fitted: by "
        "how much the test part is harder, with one number fitted. If the blend's weights were overfitted, its own "
        "difference would be much larger."
    )
    heading = ("", "NLL, left out", "NLL, test part", "difference", "difference, temperature scaling")
    return Table("expected", "What the blend expects of itself, and what comes", heading, tuple(rows), note)


STUDY = Study("ingredients", "The blend without its ingredients", variants, show, by_row_and_group)
