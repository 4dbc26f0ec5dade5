"""Every metric and every training loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from kcal import losses as kcal_losses
from kcal import metrics as m

from . import names

Cases = Iterator[tuple[str, np.ndarray]]

POINT_METRICS: dict[str, Any] = {
    "accuracy": m.accuracy,
    "top-brier": m.top_label_brier_loss,
    "brier": m.multiclass_brier_loss,
    "log-loss": m.negative_log_likelihood,
    "log-loss-clip": partial(m.negative_log_likelihood, clip=0.05),
    "ece": partial(m.expected_calibration_error, bins=10, adaptive=True),
    "ece-static": partial(m.expected_calibration_error, bins=15, adaptive=False),
    "cece": partial(m.classwise_calibration_error, bins=10, adaptive=True, threshold="max"),
    "cece-static": partial(m.classwise_calibration_error, bins=15, adaptive=False, threshold=0.0),
    "cece-min": partial(m.classwise_calibration_error, bins=10, adaptive=True, threshold=0.05),
    "squared": partial(m.debiased_squared_calibration_error, bins=10, adaptive=True),
    "squared-class": partial(m.debiased_squared_calibration_error, bins=10, adaptive=False, of=1),
    "marginal": partial(m.marginal_calibration_error, bins=10, adaptive=True),
    "marginal-plain": partial(m.marginal_calibration_error, bins=10, adaptive=False, debiased=False),
    "top-label": partial(m.top_label_calibration_error, bins=6, adaptive=True),
    "canonical": partial(m.canonical_calibration_error, bins=5),
    "smooth": m.smooth_calibration_error,
    "smooth-class": partial(m.smooth_calibration_error, of=2),
    "kde": m.kde_calibration_error,
    "kde-bandwidth": partial(m.kde_calibration_error, of=1, bandwidth=0.1),
    "rejection-area": m.accuracy_rejection_area,
}
INTERVALS = ("accuracy", "log-loss", "ece", "cece", "squared", "canonical", "rejection-area")


def predictions(n: int = 160, n_classes: int = 4, seed: int = 31) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Overconfident probabilities with some ties, labels, and what goes with the rows."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=1.3, size=(n, n_classes))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    odds = np.exp(1.7 * logits)
    probs = odds / odds.sum(axis=1, keepdims=True)
    probs[:12] = np.round(probs[:12] * 8) / 8
    probs[:12, 0] += 1 - probs[:12].sum(axis=1)
    probs = np.abs(probs)
    weights = generator.gamma(3.0, size=n)
    counts = generator.integers(0, 3, n)
    groups = generator.integers(0, 25, n)
    return probs / probs.sum(axis=1, keepdims=True), labels, {"weights": weights, "counts": counts, "groups": groups}


def metrics() -> Cases:
    """Point values, and the curves and tables behind them."""
    probs, labels, rows = predictions()
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "weights": {"sample_weight": rows["weights"]},
        "counts": {"sample_weight": rows["counts"]},
    }
    for variant, extra in variants.items():
        for name, metric in POINT_METRICS.items():
            yield f"{name}/{variant}", np.array(float(metric(probs, labels, **extra)))
        yield from _results(variant, probs, labels, extra)
    single = probs.astype(np.float32)
    for name, metric in POINT_METRICS.items():
        yield f"{name}/float32", np.array(float(metric(single, labels)))
    for estimator in ("unbiased-quadratic", "unbiased-linear", "biased"):
        for kernel in ("total-variation", "euclidean"):
            error = m.kernel_calibration_error(probs, labels, estimator=estimator, kernel=kernel, resamples=100, seed=3)
            yield f"kernel/{estimator}/{kernel}", np.array([error.value, error.p_value, error.bandwidth])
    weighted = m.kernel_calibration_error(probs, labels, resamples=50, sample_weight=rows["weights"], bandwidth=0.3)
    yield "kernel/weights", np.array([weighted.value, weighted.p_value])


def _results(variant: str, probs: np.ndarray, labels: np.ndarray, extra: Mapping[str, Any]) -> Cases:
    """What the metrics that return more than a number return."""
    for of in ("confidence", 2):
        for adaptive in (False, True):
            bins = m.reliability(probs, labels, bins=12, of=of, adaptive=adaptive, threshold=0.0, **extra)
            label = f"reliability/{variant}/{of}/{'adaptive' if adaptive else 'static'}"
            yield from _fields(label, bins, names.RELIABILITY)
            yield f"{label}/bands", np.stack(bins.frequency_bands(0.9))
    yield from _fields(f"canonical/{variant}", m.canonical_cells(probs, labels, bins=4, **extra), names.CANONICAL)
    for adaptive in (False, True):
        errors = m.class_errors(probs, labels, bins=10, adaptive=adaptive, threshold="max", **extra)
        yield from _fields(f"class-errors/{variant}/{adaptive}", errors, names.CLASS_ERRORS)
    for of in ("classes", "confidence", 1):
        parts = m.murphy_decomposition(probs, labels, bins=10, adaptive=True, of=of, **extra)
        yield f"murphy/{variant}/{of}", np.array([getattr(parts, name) for name in names.MURPHY])
    curve = m.accuracy_rejection(probs, labels, **extra)
    yield from _fields(f"rejection/{variant}", curve, names.REJECTION)
    evaluation = m.evaluate(probs, labels, protocol="paper", **extra)
    yield f"evaluation/{variant}", np.array([getattr(evaluation, name) for name in names.EVALUATION])


def _fields(label: str, result: object, fields: Mapping[str, str]) -> Cases:
    for name, attribute in fields.items():
        yield f"{label}/{name}", np.asarray(getattr(result, attribute), dtype=np.float64)[:40]


def intervals() -> Cases:
    """Confidence intervals from a seed."""
    probs, labels, rows = predictions()
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "groups": {"groups": rows["groups"]},
        "weights": {"sample_weight": rows["weights"]},
        "groups-counts": {"groups": rows["groups"], "sample_weight": rows["counts"]},
    }
    for variant, extra in variants.items():
        evaluation = m.evaluate(probs, labels, protocol="paper", confidence=0.9, resamples=60, seed=5, **extra)
        for name in names.EVALUATION:
            interval = evaluation.intervals[name]
            yield f"evaluation/{variant}/{name}", np.array([interval.low, interval.high])
    few = 50
    for name in INTERVALS:
        for variant in ("plain", "groups-counts"):
            extra = {keyword: values[:few] for keyword, values in variants[variant].items()}
            interval = m.confidence_interval(
                POINT_METRICS[name], probs[:few], labels[:few], confidence=0.9, resamples=20, seed=6, **extra
            )
            yield f"{name}/{variant}", np.array([interval.low, interval.high])


def comparisons() -> Cases:
    """Tests between methods over splits, and average ranks."""
    generator = np.random.default_rng(32)
    methods = ["uncalibrated", "a", "b", "c"]
    errors = {name: generator.normal(0.1 + 0.01 * place, 0.01, 10) for place, name in enumerate(methods)}
    accuracies = {name: generator.normal(0.9 - 0.004 * place, 0.004, 10) for place, name in enumerate(methods)}
    yield "pooled", np.array(m.pooled_t_test(errors["a"], errors["c"]))
    yield "corrected", np.array(m.corrected_resampled_t_test(errors["a"], errors["c"], n_calibration=300, n_test=700))
    for better in ("lower", "higher"):
        comparison = m.compare_methods(
            errors, accuracies, better=better, baseline="uncalibrated", level=0.01, n_calibration=300, n_test=700
        )
        summaries = comparison.summaries
        yield f"{better}/summaries", np.array([[summaries[name].mean, summaries[name].std] for name in methods])
        for test in ("pooled", "corrected"):
            marks = getattr(comparison, test)
            for part in ("p_values", "accuracy_p_values"):
                values = getattr(marks, part)
                yield f"{better}/{test}/{part}", np.array([values.get(name, np.nan) for name in methods])
            yield f"{better}/{test}/best", np.array([name in marks.best for name in methods])
            yield f"{better}/{test}/accurate", np.array([name in marks.accuracy_preserving for name in methods])
    tasks = {task: {name: generator.integers(0, 5, 6) / 7 for name in methods} for task in ("one", "two", "three")}
    ranked = {better: m.average_ranks(tasks, better=better) for better in ("lower", "higher")}
    for better, averages in ranked.items():
        yield f"ranks/{better}", np.array([[averages.ranks[name].mean, averages.ranks[name].std] for name in methods])
    overall = m.overall_ranks(ranked)
    yield "ranks/overall", np.array([overall[name] for name in methods])


def losses() -> Cases:
    """Values and gradients of the losses that a network is trained with."""
    generator = np.random.default_rng(33)
    values = generator.normal(scale=2.0, size=(10, 4))
    labels = torch.from_numpy(generator.integers(0, 4, 10))
    functions = {
        "focal": kcal_losses.focal_loss,
        "focal-2": partial(kcal_losses.focal_loss, gamma=2.0, reduction="sum"),
        "mmce": kcal_losses.mmce,
        "mmce-plain": partial(kcal_losses.mmce, weighted=False),
        "mmce-loss": kcal_losses.mmce_loss,
        "mmce-loss-plain": partial(kcal_losses.mmce_loss, coefficient=0.5, weighted=False, reduction="sum"),
        "focal-module": kcal_losses.FocalLoss(gamma=1.0),
        "mmce-module": kcal_losses.MMCE(),
        "mmce-loss-module": kcal_losses.MMCELoss(coefficient=2.0),
    }
    for name, function in functions.items():
        for dtype in (torch.float64, torch.float32):
            logits = torch.from_numpy(values).to(dtype).requires_grad_()
            loss = function(logits, labels)
            loss.backward()
            label = f"{name}/{str(dtype).removeprefix('torch.')}"
            yield f"{label}/value", loss.detach().numpy()
            yield f"{label}/gradient", logits.grad.numpy()  # type: ignore[union-attr]
