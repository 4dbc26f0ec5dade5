"""KCal's blend without one of its ingredients, or with another metric in place of the learned one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.showing import log_loss_overview, metrics_table
from experiments.study import Measurements, Shown, Study, TaskSetting, Variant, by_row_and_group
from kcal.projection import FastRecipe, TrainedProjection

WHOLE = "the whole blend"
PARAMETERS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "no learned metric": {"projection": None},
    "one bandwidth per metric": {"bandwidth_factors": (1.0,)},
    "no learned metric, one bandwidth": {"projection": None, "bandwidth_factors": (1.0,)},
    "temperature scaling only": {"network_calibrator": "ts"},
    "matrix scaling always": {"network_calibrator": "sms"},
    "no bias": {"bias": 0.0},
    "almost no background": {"background": 1e-12},
    "no fallback": {"fallback_quantile": 0.0},
    "no sharpening": {"sharpness": 0.0},
}
NO_LOGITS = "no logits"
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
    "learned, and held near its start": Metric(FastRecipe(hold=10.0)),
}


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the blend without each ingredient, with other metrics, and what it is made of."""

    def with_metric(metric: Metric) -> Variant:
        return setting.variant("kcal-blend", lambda: {"projection": metric.projection(setting)})

    return {
        **{
            name: setting.variant("kcal-blend", lambda chosen=parameters: dict(chosen))  # type: ignore[misc]
            for name, parameters in PARAMETERS.items()
        },
        NO_LOGITS: setting.variant("kcal-blend", logits=False),
        **{name: with_metric(metric) for name, metric in METRICS.items()},
        **{title: setting.variant(method) for method, title in PARTS.items()},
    }


def show(measured: Measurements) -> Shown:
    title = "What leaving out an ingredient does to the NLL"
    overview = log_loss_overview(title, WHOLE, measured)
    tables = [metrics_table(f"{label}: the blend's ingredients", each) for label, each in measured.items()]
    return Shown((overview, *tables))


STUDY = Study("ingredients", "The blend without its ingredients", variants, show, by_row_and_group)
