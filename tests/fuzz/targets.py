"""Calls of the public interface with good arguments, of which the fuzzer replaces one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import kcal
from kcal import losses, metrics, monitoring
from kcal.calibrators import METHODS

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(36) % 3
EMBEDDINGS = GENERATOR.normal(size=(36, 4)) + LABELS[:, None]
LOGITS = GENERATOR.normal(size=(36, 3)) + 2.0 * np.eye(3)[LABELS]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
WEIGHTS = GENERATOR.uniform(0.5, 2.0, 36)
GROUPS = np.arange(36) // 3
PRIOR = np.bincount(LABELS) / len(LABELS)

QUICK: dict[str, dict[str, Any]] = {
    "kcal": {"projection": "identity", "bandwidth": 0.7},
    "kcal-blend": {"folds": 2},
    "kcal-logits": {"projection": "identity", "bandwidth": 0.7},
    "imax": {"bins": 4},
}
LEFT_OUT = {"gp", "dircal", "iop", "kcal-linear", "kcal-paper", "refit"}
"""Methods whose fit takes long and whose border is that of the others."""


@dataclass(frozen=True)
class Target:
    """A call: its good arguments, and which of them hold one value per sample."""

    name: str
    call: Callable[..., Any]
    arrays: dict[str, Any] = field(repr=False)
    scalars: dict[str, Any] = field(repr=False)

    @property
    def good(self) -> dict[str, Any]:
        return self.arrays | self.scalars


def calibrator_target(name: str) -> Target:
    method = METHODS[name]
    data: dict[str, Any] = {"X": LOGITS if method.inputs == "logits" else EMBEDDINGS, "y": LABELS}
    data |= {"sample_weight": WEIGHTS}
    data |= {"logits": LOGITS} if method.inputs == "both" else {}
    data |= {"groups": GROUPS} if method.inputs != "logits" else {}
    parameters = method.factory(**QUICK.get(name, {})).get_params(deep=False)
    parameters = {key: value for key, value in parameters.items() if key not in ("progress", "recipe")}

    def call(**arguments: Any) -> Any:
        given = {key: arguments[key] for key in data}
        calibrator = method.factory(**{key: arguments[key] for key in parameters}).fit(**given)
        logits = {"logits": LOGITS[:5] * 0.9} if method.inputs == "both" else {}
        return calibrator.predict_proba((LOGITS if method.inputs == "logits" else EMBEDDINGS)[:5] * 0.9, **logits)

    return Target(name, call, data, parameters)


def prior(**arguments: Any) -> Any:
    return kcal.estimate_prior(**arguments).prior[None]


def monitored(probs: Any, labels: Any, groups: Any, alpha: Any, tolerance: Any) -> Any:
    return monitoring.CalibrationMonitor([0, 1, 2], alpha=alpha, tolerance=tolerance).update(probs, labels, groups).path


def drift(reference: Any, scores: Any, alpha: Any) -> Any:
    return monitoring.DriftMonitor(reference, alpha=alpha).update(scores).path


def performance(**arguments: Any) -> Any:
    return np.array(kcal.estimate_performance(**arguments).accuracy)


FITTED = kcal.KCal(projection="identity", bandwidth=0.7).fit(EMBEDDINGS, LABELS, groups=GROUPS)


def added(**arguments: Any) -> Any:
    return FITTED.snapshot().partial_fit(**arguments).predict_proba(EMBEDDINGS[:5] * 0.8)


KNOWN = {"calibration_probs": PROBS, "calibration_labels": LABELS}
OPTIONS = {"reference": PRIOR, "strength": 1.0, "confidence": 0.9}
TENSORS = {"logits": torch.as_tensor(LOGITS), "labels": torch.as_tensor(LABELS)}
TARGETS = [
    *(calibrator_target(name) for name in METHODS if name not in LEFT_OUT),
    Target("estimate_prior", prior, {"probs": PROBS, "groups": GROUPS}, OPTIONS),
    Target("estimate_prior, corrected", lambda **known: prior(probs=PROBS, **known), KNOWN, {}),
    Target("adjust_prior", monitoring.adjust_prior, {"probs": PROBS}, {"prior": PRIOR, "reference": PRIOR}),
    Target("estimate_performance", performance, {"probs": PROBS}, {"target": "rows", "confidence": 0.9}),
    Target("CalibrationMonitor", monitored, {"probs": PROBS, "labels": LABELS, "groups": GROUPS},
           {"alpha": 0.05, "tolerance": 0.0}),
    Target("DriftMonitor", drift, {}, {"reference": EMBEDDINGS[:, 0], "scores": EMBEDDINGS[:, 1], "alpha": 0.05}),
    Target("focal_loss", losses.focal_loss, {}, TENSORS | {"gamma": 2.0, "reduction": "mean"}),
    Target("mmce_loss", losses.mmce_loss, {}, TENSORS | {"coefficient": 1.0}),
    Target("average_ranks", metrics.average_ranks, {}, {"tasks": {"task": {"a": [0.1, 0.2], "b": [0.3, 0.4]}}}),
    Target("explain", lambda **given: FITTED.explain(**given).probabilities, {"X": EMBEDDINGS[:5] * 0.9}, {"k": 5}),
    Target("example_inputs", lambda n_rows: FITTED.example_inputs(n_rows)["embeddings"], {}, {"n_rows": 5}),
    Target("compress", lambda **given: FITTED.compress(**given).predict_proba(EMBEDDINGS[:5] * 0.9), {"groups": GROUPS},
           {"size": 9, "min_cluster_size": 1}),
    Target("partial_fit", added,
           {"X": EMBEDDINGS[:5] * 0.9, "y": LABELS[:5], "groups": GROUPS[:5], "ids": np.arange(5)}, {}),
    Target("load", kcal.load, {}, {"path": "missing.kcal"}),
]  # fmt: skip
