"""Calls of the public interface with good arguments, of which the fuzzer replaces one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import kcal
from kcal import losses, metrics, monitoring, plots
from kcal.calibrators import METHODS
from kcal.report import render_report

plt.switch_backend("agg")

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(36) % 3
EMBEDDINGS = GENERATOR.normal(size=(36, 4)) + LABELS[:, None]
LOGITS = GENERATOR.normal(size=(36, 3)) + 2.0 * np.eye(3)[LABELS]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
WEIGHTS = GENERATOR.uniform(0.5, 2.0, 36)
GROUPS = np.arange(36) // 3

QUICK: dict[str, dict[str, Any]] = {
    "kcal": {"projection": "identity", "bandwidth": 0.7},
    "kcal-blend": {"folds": 2},
    "kcal-logits": {"projection": "identity", "bandwidth": 0.7},
    "imax": {"bins": 4},
}
LEFT_OUT = {"gp", "dircal", "iop", "kcal-linear", "kcal-paper"}
"""Methods whose fit takes long and whose border is that of the others."""


@dataclass(frozen=True)
class Target:
    """A call: its good arguments, and which of them hold one value per sample."""

    name: str
    call: Callable[..., Any]
    good: dict[str, Any] = field(repr=False)
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]


def _calibrate(method: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        fitted = ("X", "y", "sample_weight", "groups", "logits", "classes")
        parameters = {name: value for name, value in arguments.items() if name not in fitted}
        data = {name: arguments[name] for name in fitted if name in arguments}
        calibrator = METHODS[method].factory(**parameters).fit(**data)
        logits = {"logits": LOGITS[:5] * 0.9} if METHODS[method].inputs == "both" else {}
        rows = LOGITS[:5] * 0.9 if METHODS[method].inputs == "logits" else EMBEDDINGS[:5] * 0.9
        return calibrator.predict_proba(rows, **logits)

    return call


def _calibrators() -> list[Target]:
    targets = []
    for name, method in METHODS.items():
        if name in LEFT_OUT:
            continue
        data: dict[str, Any] = {"X": LOGITS if method.inputs == "logits" else EMBEDDINGS, "y": LABELS}
        data["sample_weight"] = WEIGHTS
        if method.inputs == "both":
            data["logits"] = LOGITS
        if method.inputs != "logits":
            data["groups"] = GROUPS
        arrays = tuple(data)
        defaults = method.factory(**QUICK.get(name, {})).get_params(deep=False)
        parameters = {key: value for key, value in defaults.items() if key not in ("progress", "recipe")}
        if name in ("kcal", "kcal-logits"):
            parameters["recipe"] = "fast"
        targets.append(Target(name, _calibrate(name), parameters | data, arrays, tuple(parameters)))
    return targets


def _metrics() -> list[Target]:
    data = {"probs": PROBS, "labels": LABELS}
    targets = []
    options: dict[str, dict[str, Any]] = {
        "accuracy": {},
        "negative_log_likelihood": {"clip": "published"},
        "multiclass_brier_loss": {},
        "top_label_brier_loss": {},
        "expected_calibration_error": {"bins": 5},
        "classwise_calibration_error": {"bins": 5, "threshold": "max"},
        "reliability": {"bins": 5, "of": "confidence"},
        "kernel_calibration_error": {},
        "smooth_calibration_error": {},
        "kde_calibration_error": {},
        "debiased_squared_calibration_error": {"bins": 5},
        "marginal_calibration_error": {"bins": 5},
        "top_label_calibration_error": {"bins": 5},
        "murphy_decomposition": {"bins": 5},
        "class_errors": {"bins": 5},
        "accuracy_rejection": {},
        "evaluate": {"bins": 5, "seed": 0},
    }
    for name, scalars in options.items():
        function = getattr(metrics, name)
        weighted = {"sample_weight": WEIGHTS} if name != "kernel_calibration_error" else {}
        targets.append(Target(name, function, data | weighted | scalars, tuple(data | weighted), tuple(scalars)))
    return targets


def _monitoring() -> list[Target]:
    reference = np.bincount(LABELS) / len(LABELS)

    def prior(**arguments: Any) -> Any:
        return kcal.estimate_prior(**arguments).prior[None]

    def corrected(**arguments: Any) -> Any:
        return kcal.estimate_prior(PROBS, **arguments).prior[None]

    def watched(probs: Any, labels: Any, groups: Any, alpha: Any, tolerance: Any) -> Any:
        monitor = monitoring.CalibrationMonitor([0, 1, 2], alpha=alpha, tolerance=tolerance)
        return monitor.update(probs, labels, groups).path

    def drift(reference: Any, scores: Any, alpha: Any) -> Any:
        return monitoring.DriftMonitor(reference, alpha=alpha).update(scores).path

    def performance(**arguments: Any) -> Any:
        return np.array(kcal.estimate_performance(**arguments).accuracy)

    def discrepancy(**arguments: Any) -> float:
        return monitoring.mean_embedding_test(n_permutations=19, **arguments).p_value

    options: dict[str, Any] = {"reference": reference, "strength": 1.0, "confidence": 0.9, "method": "em"}
    known = {"calibration_probs": PROBS, "calibration_labels": LABELS}
    rows = {"probs": PROBS, "labels": LABELS, "groups": GROUPS}
    scores = {"reference": EMBEDDINGS[:, 0], "scores": EMBEDDINGS[:, 1]}
    wealth = {"curves": {"a": [0.0, 1.0]}, "alpha": 0.1, "ax": None, "title": None}
    return [
        Target("estimate_prior", prior, {"probs": PROBS, "groups": GROUPS} | options, ("probs", "groups"),
               tuple(options)),
        Target("estimate_prior, corrected", corrected, known, tuple(known), ()),
        Target("adjust_prior", monitoring.adjust_prior, {"probs": PROBS, "prior": reference, "reference": reference},
               ("probs",), ("prior", "reference")),
        Target("estimate_performance", performance, {"probs": PROBS, "target": "rows", "confidence": 0.9},
               ("probs",), ("target", "confidence")),
        Target("CalibrationMonitor", watched, rows | {"alpha": 0.05, "tolerance": 0.0}, tuple(rows),
               ("alpha", "tolerance")),
        Target("DriftMonitor", drift, scores | {"alpha": 0.05}, (), (*scores, "alpha")),
        Target("mean_embedding_test", discrepancy, {"reference": EMBEDDINGS, "X": EMBEDDINGS + 1, "n_features": 8},
               ("reference", "X"), ("n_features",)),
        Target("wealth_curves", plots.wealth_curves, wealth, (), tuple(wealth)),
    ]  # fmt: skip


def _drawings() -> list[Target]:
    bins = metrics.reliability(PROBS, LABELS, bins=5)

    def drawn(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**arguments: Any) -> None:
            try:
                function(**arguments)
            finally:
                plt.close("all")

        return call

    ranks = metrics.average_ranks({"task": {"a": [0.1, 0.2], "b": [0.3, 0.4]}})
    return [
        Target(
            "reliability_diagram",
            drawn(plots.reliability_diagram),
            {"predictions": bins, "labels": None, "of": None, "ax": None, "title": None},
            (),
            ("predictions", "labels", "of", "ax", "title"),
        ),
        Target("rank_plot", drawn(plots.rank_plot), {"ranks": ranks, "ax": None}, (), ("ranks", "ax")),
        Target("bandwidth_curve", drawn(plots.bandwidth_curve), {"curve": None}, (), ("curve",)),
        Target("training_curve", drawn(plots.training_curve), {"curve": None}, (), ("curve",)),
        Target(
            "render_report",
            drawn(render_report),
            {
                "probs": {"network": PROBS},
                "labels": LABELS,
                "limit": 2,
                "minimum_count": 5,
                "class_names": ["a", "b", "c"],
            },
            (),
            ("probs", "labels", "class_names"),
        ),
    ]


def _losses() -> list[Target]:
    tensors = {"logits": torch.as_tensor(LOGITS), "labels": torch.as_tensor(LABELS)}
    return [
        Target(
            "focal_loss",
            losses.focal_loss,
            tensors | {"gamma": 2.0, "reduction": "mean"},
            (),
            (*tensors, "gamma", "reduction"),
        ),
        Target("mmce", losses.mmce, tensors | {"weighted": True}, (), tuple(tensors)),
        Target("mmce_loss", losses.mmce_loss, tensors | {"coefficient": 1.0}, (), (*tensors, "coefficient")),
    ]


def _others() -> list[Target]:
    return [
        Target(
            "average_ranks",
            metrics.average_ranks,
            {"tasks": {"task": {"a": [0.1, 0.2], "b": [0.3, 0.4]}}},
            (),
            ("tasks",),
        ),
        Target("load", kcal.load, {"path": "missing.kcal"}, (), ("path",)),
    ]


TARGETS = [*_calibrators(), *_metrics(), *_monitoring(), *_drawings(), *_losses(), *_others()]
