"""Spline calibration: a smooth curve through the cumulative differences of labels and scores; its slope corrects.

h(t_i) = (1/n)·Σ_{j≤i} (label_j − s_j) over ascending scores s,   t_i = (i − 1)/(n − 1),   s ↦ clip(s + h′(t(s)), 0, 1)
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.binary.one_versus_rest import warn_of_missing_classes
from kcal.calibrators.binary.top_label import TIED, by_rank, rightness, share_between_ties, spread_top
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import ALMOST_ZERO, check_weights

Floats = NDArray[np.float64]

FORMS = ("one-versus-rest", "rank", "top")
LEAST_LOG_SCORE = -500.0
"""Scores below are one score: a line between two of them would be too steep for a double."""


class SplineCalibration(Calibrator):
    """Correct a score by the slope of a natural cubic spline through the cumulative differences of label and score.

    s ↦ clip(s + h′(t(s)), 0, 1),   h the least-squares natural cubic spline with 6 even knots on [0, 1]

    Between calibration scores the corrected score is interpolated linearly, outside them it keeps its end value.

    A correction that is added, and smooth in the rank of a score, mends how often a class is right but not how far
    below its true value a tiny probability lies, which is what the log-loss of an overconfident network is made of;
    more calibration samples do not help there. Scores that are tempered first do not have that fault:
    ``SplineCalibration().fit(tempered.predict_log_proba(X), y)`` with a fitted :class:`TemperatureScaling`.

    Parameters
    ----------
    form : "one-versus-rest", "rank" or "top"
        "one-versus-rest" corrects every class by a spline of its own and normalises the row; a row whose scores are
        all corrected to 0 stays as it was. "rank" does the same with a spline for the highest score of a row, one for
        the second, and so on. "top" corrects the top class, and the others share the rest as the network had it.
    knots : int
        Of the spline, at least 2.
    floor : bool
        True keeps a corrected score within [min(s, 1/n), max(s, 1 − 1/n)]: n calibration scores cannot tell less than
        1/n from 0 (of unequal weights, n is the effective number); nor is a probability below 1e-12. False clips to
        [0, 1], as published, and gives the probability 0 to classes that do occur.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    scores_ : list of array
        Distinct calibration scores, ascending; one array a class or a rank, or one for the top class.
    corrected_ : list of array
        What they are corrected to.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "spline"
    scores_: list[Floats]
    corrected_: list[Floats]

    def __init__(
        self,
        *,
        form: str = "one-versus-rest",
        knots: int = 6,
        floor: bool = True,
        representation: str = "logits",
        seed: int = 0,
    ) -> None:
        self.form = form
        self.knots = knots
        self.floor = floor
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Fit the splines to logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns.

        Weights count in relation to one another.
        """
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logs = log_probabilities(rows, self.representation)
        codes, self.classes_ = encode_columns(y, len(logs), logs.shape[1], classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        used = weights > 0
        logs, codes, weights = logs[torch.from_numpy(used)], codes[used], weights[used]
        log_scores, targets = self._binary_problems(logs, codes)
        even = slope_matrix(np.ones(len(logs)), int(self.knots)) if np.ptp(weights) == 0 else None
        columns = zip(log_scores.T, targets.T, strict=True)
        pairs = [correct_scores(scores, labels, weights, int(self.knots), even) for scores, labels in columns]
        self.scores_ = [scores for scores, _ in pairs]
        least = float((weights**2).sum() / weights.sum() ** 2) if self.floor else 0.0
        self.corrected_ = [keep_within(corrected, scores, least) for scores, corrected in pairs]
        return self

    def _binary_problems(self, logs: torch.Tensor, codes: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return logarithms of scores, and how far each is the label's, one column a spline."""
        if self.form == "top":
            return logs.amax(dim=1, keepdim=True).numpy(), rightness(logs, codes)[:, None]
        if self.form == "rank":
            descending, order = by_rank(logs)
            hits = (order == torch.from_numpy(codes)[:, None]).double()
            return descending.numpy(), share_between_ties(hits, descending).numpy()
        warn_of_missing_classes(codes, self.classes_)
        return logs.numpy(), np.eye(logs.shape[1])[codes]

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        found = self._corrected_rows(log_probabilities(rows, self.representation))
        if not self.floor:
            return found
        kept = found.clamp_min(ALMOST_ZERO)  # a network's own score may be so small that it is stored as 0
        return kept / kept.sum(dim=1, keepdim=True)

    def _corrected_rows(self, logs: torch.Tensor) -> torch.Tensor:
        """Return probabilities, (n, n_classes), of log-probabilities."""
        if self.form == "top":
            top = self._correct(logs.amax(dim=1, keepdim=True))[:, 0]
            return torch.exp(spread_top(logs, torch.log(top), torch.log1p(-top)))
        if self.form == "rank":
            descending, order = by_rank(logs)
            shared = share_between_ties(self._correct(descending), descending)
            corrected = torch.empty_like(logs).scatter_(1, order, shared)
        else:
            corrected = self._correct(logs)
        sums = corrected.sum(dim=1, keepdim=True)
        return torch.where(sums > 0, corrected / sums, torch.exp(logs))

    def _correct(self, logs: torch.Tensor) -> torch.Tensor:
        columns = zip(torch.exp(logs).numpy().T, self.scores_, self.corrected_, strict=True)
        return torch.from_numpy(np.stack([np.interp(*column) for column in columns], axis=1))

    def _check_parameters(self) -> None:
        if self.form not in FORMS:
            raise InvalidInputError(f"form must be one of {FORMS}; got {self.form!r}.")
        if not isinstance(self.floor, bool):
            raise InvalidInputError(f"floor must be True or False; got {self.floor!r}.")
        if not isinstance(self.knots, Integral) or isinstance(self.knots, bool) or self.knots < 2:
            raise InvalidInputError(f"knots must be an integer of at least 2; got {self.knots!r}.")

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        tensors = {
            "scores": torch.from_numpy(np.concatenate(self.scores_)),
            "corrected": torch.from_numpy(np.concatenate(self.corrected_)),
        }
        parameters = self.get_params() | {"knots": int(self.knots)}
        return self._state(parameters, {"n_scores": [len(scores) for scores in self.scores_]}, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator._check_parameters()
        if calibrator.n_features_in_ != len(calibrator.classes_):
            raise FileFormatError("the stored classes are not as many as the columns.")
        sizes = np.array(state.values["n_scores"])
        scores, corrected = state.tensors["scores"], state.tensors["corrected"]
        problems = 1 if calibrator.form == "top" else len(calibrator.classes_)
        if sizes.shape != (problems,) or sizes.dtype.kind != "i" or (sizes < 1).any():
            raise FileFormatError(f"the stored numbers of scores are damaged: {state.values['n_scores']!r}.")
        for stored in (scores, corrected):
            if stored.dtype != torch.float64 or tuple(stored.shape) != (sizes.sum(),):
                raise FileFormatError("the stored scores are damaged.")
            if not bool(((stored >= 0) & (stored <= 1)).all()):
                raise FileFormatError("the stored scores are not between 0 and 1.")
        ends = np.cumsum(sizes)[:-1]
        calibrator.scores_, calibrator.corrected_ = np.split(scores.numpy(), ends), np.split(corrected.numpy(), ends)
        if any((np.diff(column) < 0).any() for column in calibrator.scores_):
            raise FileFormatError("the stored scores do not ascend.")
        return calibrator


def slope_matrix(weights: Floats, n_knots: int) -> tuple[Floats, Floats]:
    """Return two matrices, (n_knots, n) and (n, n_knots), whose product takes values at the n places t to h′ there.

    The first gives the least-squares natural cubic spline by its values at the knots, the second its slope. t is the
    share of the weight that lies below, (i − 1)/(n − 1) for equal weights.
    """
    typical, reached = weights.mean(), np.cumsum(weights)
    places = (reached - (weights + typical) / 2) / max(reached[-1] - typical, np.finfo(np.float64).tiny)
    places = np.clip(places, 0.0, 1.0)
    basis = CubicSpline(np.linspace(0, 1, n_knots), np.eye(n_knots), bc_type="natural")
    roots = np.sqrt(weights / typical)
    return np.linalg.pinv(roots[:, None] * basis(places)) * roots, basis(places, 1)


def correct_scores(
    log_scores: Floats, labels: Floats, weights: Floats, n_knots: int, even: tuple[Floats, Floats] | None
) -> tuple[Floats, Floats]:
    """Return the distinct scores, ascending, and s + h′ of each, from logarithms of scores and labels.

    Tied scores count with their mean label, so that the order of the rows plays no part, and get their mean output.
    So do scores that are too small to be told apart.
    ``even`` is the :func:`slope_matrix` of equal weights, if these are equal.
    """
    order = np.argsort(log_scores, kind="stable")
    ordered, masses = np.maximum(log_scores[order], LEAST_LOG_SCORE), weights[order]
    tie = np.concatenate([[0], np.cumsum(np.diff(ordered) > TIED)])  # (n,): which run of equal scores
    sizes = np.bincount(tie, masses)
    scores = np.exp(np.bincount(tie, masses * ordered) / sizes)  # a light weight may not make a tiny score 0
    rates = np.bincount(tie, masses * labels[order]) / sizes
    differences = (rates - scores)[tie]
    to_knots, to_slopes = slope_matrix(masses, n_knots) if even is None else even
    typical = weights.mean()
    heights = (np.cumsum(masses * differences) - (masses - typical) / 2 * differences) / weights.sum()
    return scores, scores + np.bincount(tie, masses * (to_slopes @ (to_knots @ heights))) / sizes


def keep_within(corrected: Floats, scores: Floats, least: float) -> Floats:
    """Return corrected scores clipped to [min(s, least), max(s, 1 − least)]; with ``least`` 0 that is [0, 1]."""
    clipped: Floats = np.clip(corrected, np.minimum(scores, least), np.maximum(scores, 1 - least))
    return clipped
