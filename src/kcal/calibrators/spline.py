"""Spline calibration: a smooth curve through the cumulative differences of labels and scores; its slope corrects.

s ↦ clip(s + h′(t(s)), 0, 1),   h the least-squares natural cubic spline with even knots on [0, 1] through
h(t_i) = (1/n)·Σ_{j≤i} (label_j − s_j),   scores s ascending,   t_i = (i − 1)/(n − 1)
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import CubicSpline

from kcal.calibrators.base import buffer, option
from kcal.calibrators.class_scores import (
    TIE_TOLERANCE,
    average_ties,
    fit_maps,
    fitted_maps,
    interpolate,
    replace_top,
    sort_classes,
    top_accuracy,
    unsort_classes,
)
from kcal.calibrators.logits import LogitCalibrator, LogitModel
from kcal.samples import Floats, Samples
from kcal.validation import ALMOST_ZERO, check_choice, check_flag, check_integer, parameter

SPLINE_FORMS = ("one-versus-rest", "rank", "top")
MAX_KNOTS = 1000
MIN_LOG_SCORE = -500.0
"""Scores below are one score: a line between two of them would be too steep for a double."""


class SplineModel(LogitModel):
    """Corrected scores, interpolated linearly: one curve per class or rank, or one for the top class."""

    scores: torch.Tensor = buffer("n_maps", "n_scores")
    corrected: torch.Tensor = buffer("n_maps", "n_scores")
    form: str = option()
    floor: bool = option()

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes); −∞ is possible without a floor."""
        probs = self._correct_rows(log_probs)
        if self.floor:
            probs = probs.clamp_min(ALMOST_ZERO)  # a network's own score may be so small that it is stored as 0
            probs = probs / probs.sum(dim=1, keepdim=True)
        return torch.log(probs)

    def _correct_rows(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return corrected and normalised probabilities, (n, n_classes)."""
        if self.form == "top":
            top = self._correct(log_probs.amax(dim=1, keepdim=True))[:, 0]
            return torch.exp(replace_top(log_probs, torch.log(top), torch.log1p(-top)))
        if self.form == "rank":
            descending, order = sort_classes(log_probs)
            corrected = unsort_classes(average_ties(self._correct(descending), descending), order)
        else:
            corrected = self._correct(log_probs)
        sums = corrected.sum(dim=1, keepdim=True)
        return torch.where(sums > 0, corrected / sums, torch.exp(log_probs))

    def _correct(self, log_probs: torch.Tensor) -> torch.Tensor:
        return interpolate(self.scores, self.corrected, torch.exp(log_probs))


class SplineCalibration(LogitCalibrator):
    """Correct a score by the slope of a natural cubic spline through the cumulative differences of label and score.

    s ↦ clip(s + h′(t(s)), 0, 1),   h the least-squares natural cubic spline with even knots on [0, 1] through
    h(t_i) = (1/n)·Σ_{j≤i} (label_j − s_j),   scores s ascending,   t_i = (i − 1)/(n − 1)

    Between calibration scores the corrected score is interpolated linearly, outside them it keeps its end value.

    An additive correction that is smooth in the rank of a score corrects frequencies, but not how far a tiny
    probability lies below its true value, which dominates the log-loss of an overconfident network; more calibration
    samples do not help there. Scaling by a temperature first does:
    ``SplineCalibration().fit(scaled.predict_log_proba(X), y)`` with a fitted :class:`TemperatureScaling`.

    Parameters
    ----------
    form : "one-versus-rest", "rank" or "top"
        "one-versus-rest" corrects every class by a spline of its own and normalises the row; a row whose scores are
        all corrected to 0 is left unchanged. "rank" does the same with a spline for the highest score of a row, one
        for the second, and so on. "top" corrects the top class, and the others share the rest in proportion.
    knots : int
        Number of knots of the spline, at least 2.
    floor : bool
        True keeps a corrected score within [min(s, 1/n), max(s, 1 − 1/n)], since n calibration scores cannot
        distinguish less than 1/n from 0 (with unequal weights, n is the effective sample size), and probabilities at
        1e-12 or more. False clips to [0, 1], as published: a class then has only what the scaled network gives it.
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    scores_ : list of arrays
        Distinct calibration scores, ascending; one array per class or rank, or one for the top class.
    corrected_ : list of arrays
        The corrected scores.
    """

    method = "spline"
    _pools_network = True
    _model_class = SplineModel
    scores_ = fitted_maps("scores")
    corrected_ = fitted_maps("corrected")
    form: str = parameter("one-versus-rest", check_choice, choices=SPLINE_FORMS)
    knots: int = parameter(6, check_integer, minimum=2, maximum=MAX_KNOTS)
    floor: bool = parameter(True, check_flag)

    @property
    def _fits_each_class(self) -> bool:
        """Whether every class has a spline of its own."""
        return self.form == "one-versus-rest"

    def _fit_model(self, samples: Samples) -> SplineModel:
        log_scores, targets, weights = *self._binary_problems(samples), samples.weights
        even = slope_matrix(np.ones(len(samples)), int(self.knots)) if np.ptp(weights) == 0 else None
        least = float((weights**2).sum() / weights.sum() ** 2) if self.floor else 0.0

        def fit_curve(log_scores: Floats, labels: Floats, weights: Floats) -> dict[str, Floats]:
            scores, corrected = correct_scores(log_scores, labels, weights, int(self.knots), even)
            bounded = np.clip(corrected, np.minimum(scores, least), np.maximum(scores, 1 - least))
            return {"scores": scores, "corrected": bounded}

        tables = fit_maps(fit_curve, log_scores, targets, weights)
        return SplineModel(form=self.form, floor=bool(self.floor), **tables)

    def _binary_problems(self, samples: Samples) -> tuple[Floats, Floats]:
        """Return log scores and targets in [0, 1], one column per spline."""
        log_probs, codes = samples.logits, samples.codes
        if self.form == "top":
            return log_probs.amax(dim=1, keepdim=True).numpy(), top_accuracy(log_probs, codes)[:, None]
        if self.form == "rank":
            descending, order = sort_classes(log_probs)
            hits = (order == torch.from_numpy(codes)[:, None]).double()
            return descending.numpy(), average_ties(hits, descending).numpy()
        return log_probs.numpy(), np.eye(samples.n_classes)[codes]


def correct_scores(
    log_scores: Floats, labels: Floats, weights: Floats, n_knots: int, even: tuple[Floats, Floats] | None
) -> tuple[Floats, Floats]:
    """Return the distinct scores, ascending, and s + h′ of each, from log scores and labels.

    Tied scores, and scores too small to be distinguished, have their mean label and mean output: the order of the rows
    plays no part. ``even`` is the :func:`slope_matrix` of equal weights, if these are equal.
    """
    order = np.argsort(log_scores, kind="stable")
    ordered, masses = np.maximum(log_scores[order], MIN_LOG_SCORE), weights[order]
    tie = np.concatenate([[0], np.cumsum(np.diff(ordered) > TIE_TOLERANCE)])  # (n,): index of the run of equal scores
    sizes = np.bincount(tie, masses)
    scores = np.exp(np.bincount(tie, masses * ordered) / sizes)
    rates = np.bincount(tie, masses * labels[order]) / sizes
    differences = (rates - scores)[tie]
    to_knots, to_slopes = slope_matrix(masses, n_knots) if even is None else even
    cumulative = np.cumsum(masses * differences) - (masses - weights.mean()) / 2 * differences
    return scores, scores + np.bincount(tie, masses * (to_slopes @ (to_knots @ (cumulative / weights.sum())))) / sizes


def slope_matrix(weights: Floats, n_knots: int) -> tuple[Floats, Floats]:
    """Return two matrices, (n_knots, n) and (n, n_knots), whose product maps values at the n places t to h′ there.

    The first gives the values at the knots of the least-squares natural cubic spline, the second its slope. t is the
    fraction of the weight that lies below, (i − 1)/(n − 1) for equal weights.
    """
    mean, reached = weights.mean(), np.cumsum(weights)
    places = (reached - (weights + mean) / 2) / max(reached[-1] - mean, np.finfo(np.float64).tiny)
    places = np.clip(places, 0.0, 1.0)
    basis = CubicSpline(np.linspace(0, 1, n_knots), np.eye(n_knots), bc_type="natural")
    roots = np.sqrt(weights / mean)
    return np.linalg.pinv(roots[:, None] * basis(places)) * roots, basis(places, 1)
