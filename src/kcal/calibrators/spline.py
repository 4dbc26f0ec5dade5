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
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.calibrators.top_label import TIED, rightness, spread_top
from kcal.errors import FileFormatError, InvalidInputError

FORMS = ("one-versus-rest", "top")


class SplineCalibration(Calibrator):
    """Correct a score by the slope of a natural cubic spline through the cumulative differences of label and score.

    s ↦ clip(s + h′(t(s)), 0, 1),   h the least-squares natural cubic spline with 6 even knots on [0, 1]

    Between calibration scores the corrected score is interpolated linearly, outside them it keeps its end value.

    Parameters
    ----------
    form : "one-versus-rest" or "top"
        "one-versus-rest" corrects every class and normalises the row; a row whose scores are all corrected to 0 stays
        as it was. "top" corrects the top class, and the others share the rest as the network had it.
    knots : int
        Of the spline, at least 2.
    floor : bool
        True keeps a corrected score within [min(s, 1/n), max(s, 1 − 1/n)]: n calibration scores cannot tell less than
        1/n from 0. False clips to [0, 1], as published, and gives the probability 0 to classes that do occur.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    scores_ : list of array
        Distinct calibration scores, ascending; one array a class, or one for the top class.
    corrected_ : list of array
        What they are corrected to.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "spline"
    scores_: list[NDArray[np.float64]]
    corrected_: list[NDArray[np.float64]]

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

    def fit(self, X: Any, y: Any, *, classes: Any = None) -> Self:
        """Fit the splines to logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns."""
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logs = log_probabilities(rows, self.representation)
        codes, self.classes_ = encode_columns(y, len(logs), logs.shape[1], classes)
        if self.form == "top":
            log_scores, targets = logs.amax(dim=1, keepdim=True).numpy(), rightness(logs, codes)[:, None]
        else:
            log_scores, targets = logs.numpy(), np.eye(logs.shape[1])[codes]
        slopes = slope_matrix(len(logs), int(self.knots))
        pairs = [correct_scores(scores, labels, slopes) for scores, labels in zip(log_scores.T, targets.T, strict=True)]
        self.scores_ = [scores for scores, _ in pairs]
        least = 1 / len(logs) if self.floor else 0.0
        self.corrected_ = [keep_within(corrected, scores, least) for scores, corrected in pairs]
        return self

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        logs = log_probabilities(rows, self.representation)
        scores = torch.exp(logs)
        if self.form == "top":
            top = torch.from_numpy(np.interp(scores.amax(dim=1).numpy(), self.scores_[0], self.corrected_[0]))
            return torch.exp(spread_top(logs, torch.log(top), torch.log1p(-top)))
        columns = zip(scores.numpy().T, self.scores_, self.corrected_, strict=True)
        corrected = torch.from_numpy(np.stack([np.interp(*column) for column in columns], axis=1))
        sums = corrected.sum(dim=1, keepdim=True)
        return torch.where(sums > 0, corrected / sums, scores)

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
        return self._state(self.get_params(), {"n_scores": [len(scores) for scores in self.scores_]}, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator._check_parameters()
        sizes, scores, corrected = (
            np.array(state.values["n_scores"]),
            state.tensors["scores"],
            state.tensors["corrected"],
        )
        problems = len(calibrator.classes_) if calibrator.form == "one-versus-rest" else 1
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


def slope_matrix(n: int, n_knots: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two matrices, (n_knots, n) and (n, n_knots), whose product takes values at the n places t to h′ there.

    The first gives the least-squares natural cubic spline by its values at the knots, the second its slope.
    """
    places = np.linspace(0, 1, n) if n > 1 else np.zeros(1)
    basis = CubicSpline(np.linspace(0, 1, n_knots), np.eye(n_knots), bc_type="natural")
    return np.linalg.pinv(basis(places)), basis(places, 1)


def correct_scores(
    log_scores: NDArray[np.float64],
    labels: NDArray[np.float64],
    slopes: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distinct scores, ascending, and s + h′ of each, from logarithms of scores and labels.

    Tied scores count with their mean label, so that the order of the rows plays no part, and get their mean output.
    """
    order = np.argsort(log_scores, kind="stable")
    ordered = log_scores[order]
    tie = np.concatenate([[0], np.cumsum(np.diff(ordered) > TIED)])  # (n,): which run of equal scores
    counts = np.bincount(tie)
    scores = np.bincount(tie, np.exp(ordered)) / counts
    rates = np.bincount(tie, labels[order]) / counts
    differences = np.cumsum(rates[tie] - scores[tie]) / len(ordered)
    to_knots, to_slopes = slopes
    return scores, scores + np.bincount(tie, to_slopes @ (to_knots @ differences)) / counts


def keep_within(corrected: NDArray[np.float64], scores: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Return corrected scores clipped to [min(s, least), max(s, 1 − least)]; with ``least`` 0 that is [0, 1]."""
    clipped: NDArray[np.float64] = np.clip(corrected, np.minimum(scores, least), np.maximum(scores, 1 - least))
    return clipped
