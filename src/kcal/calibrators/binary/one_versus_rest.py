"""A map a class, fitted to "this class or another", and the maps' outputs made to sum to 1.

s_k = log p_k − log(1 − p_k),   q_k = g_k(s_k),   output_k = q_k / Σ_j q_j
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from itertools import product
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.holdout import stratified_folds
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import FileFormatError, InvalidInputError, MissingClassWarning
from kcal.validation import check_weights

Floats = NDArray[np.float64]

MAPS = ("auto", "class", "shared")
FOLDS = 3
"""To choose between a map for every class and a shared one; the two are rarely close."""
SCORE_DECIMALS = 9
"""Scores are rounded to so many decimals, so that rounding errors in a shifted row neither make nor break a tie."""


class OneVersusRest(Calibrator):
    """Base of the methods that map the scores of each class on their own.

    A method gives ``parts``, the names of the arrays that make up a map (each ends in ``_`` as an attribute and holds
    one array a map), fits them in ``_fit_map`` and applies them in ``_log_map``. Maps stay above 0, so that a row can
    always be normalised.
    """

    inputs: ClassVar[str] = "logits"
    parts: ClassVar[tuple[str, ...]]
    maps: str
    representation: str
    seed: int

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Fit the maps to logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns.

        A sample of weight 2 counts as two samples.
        """
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logarithms = log_probabilities(rows, self.representation).numpy()
        codes, self.classes_ = encode_columns(y, len(logarithms), logarithms.shape[1], classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        counted = weights > 0
        rows, logarithms, codes, weights = rows[counted], logarithms[counted], codes[counted], weights[counted]
        warn_of_missing_classes(codes, self.classes_)
        maps = self._best_maps(rows, codes, weights) if self.maps == "auto" else self.maps
        self._prepare(logarithms, codes, weights)
        scores = self._scores(logarithms)  # (n, n_classes)
        hits = codes[:, None] == np.arange(len(self.classes_))
        if maps == "shared":
            fitted = [self._fit_map(scores.ravel(), hits.ravel(), np.repeat(weights, len(self.classes_)))]
        else:
            fitted = [self._fit_map(scores[:, k], hits[:, k], weights) for k in range(len(self.classes_))]
        for name, arrays in zip(self.parts, zip(*fitted, strict=True), strict=True):
            setattr(self, f"{name}_", list(arrays))
        return self

    @property
    def maps_(self) -> str:
        """Which maps were fitted: "class" or "shared"."""
        check_is_fitted(self)
        return "shared" if len(getattr(self, f"{self.parts[0]}_")) == 1 else "class"

    def _best_maps(self, rows: torch.Tensor, codes: NDArray[np.int64], weights: Floats) -> str:
        """Return which maps have the lower log-loss on samples that they were not fitted on."""
        if len(codes) < 2 * FOLDS:
            return "shared"
        folds = stratified_folds(codes, FOLDS, self.seed)
        losses = dict.fromkeys(("shared", "class"), 0.0)
        for maps, fold in product(losses, range(FOLDS)):
            inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            candidate = clone(self).set_params(maps=maps)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the whole set is warned about where it is fitted
                candidate.fit(rows[inside], codes[inside], sample_weight=weights[inside])
            logarithms = candidate._log_probabilities(rows[outside]).numpy()
            losses[maps] -= float(weights[outside] @ logarithms[np.arange(len(outside)), codes[outside]])
        return min(losses, key=losses.__getitem__)

    @abstractmethod
    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        """Return the parts of the map that fits scores (n,) to whether they hit their class (n,)."""

    @abstractmethod
    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        """Return the logarithms of the mapped scores, all of them finite."""

    def _prepare(self, logarithms: Floats, codes: NDArray[np.int64], weights: Floats) -> None:
        """Fit what comes before the maps, if anything does."""

    def _scores(self, logarithms: Floats) -> Floats:
        """Return what the maps are given, (n, n_classes), of log probabilities: log-odds unless a method says else."""
        return np.round(log_odds(logarithms), SCORE_DECIMALS)

    def _check_parameters(self) -> None:
        if self.maps not in MAPS:
            raise InvalidInputError(f"maps must be one of {MAPS}; got {self.maps!r}.")

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        scores = self._scores(log_probabilities(rows, self.representation).numpy())
        maps = list(zip(*(getattr(self, f"{name}_") for name in self.parts), strict=True))
        maps = maps * (len(self.classes_) // len(maps))
        mapped = np.empty_like(scores)
        for k, parts in enumerate(maps):
            mapped[:, k] = self._log_map(scores[:, k], *parts)
        return torch.log_softmax(torch.from_numpy(mapped), dim=1)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        tensors = {}
        for name in self.parts:
            arrays = getattr(self, f"{name}_")
            tensors[f"map.{name}"] = torch.from_numpy(np.concatenate(arrays))
            tensors[f"map.{name}.lengths"] = torch.tensor([len(array) for array in arrays])
        return self._state(self.get_params(), self._more_values(), **tensors)

    def _more_values(self) -> dict[str, Any]:
        """Return fitted values that are no part of a map."""
        return {}

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator._check_parameters()
        allowed = {"shared": [1], "class": [len(calibrator.classes_)], "auto": [1, len(calibrator.classes_)]}
        for name in cls.parts:
            flat, lengths = state.tensors[f"map.{name}"], state.tensors[f"map.{name}.lengths"]
            arrays = _split(flat, lengths, allowed[calibrator.maps])
            setattr(calibrator, f"{name}_", arrays)
        for parts in zip(*(getattr(calibrator, f"{name}_") for name in cls.parts), strict=True):
            if not calibrator._is_map(*parts):
                raise FileFormatError(f"a stored map ({', '.join(cls.parts)}) is damaged.")
        calibrator._restore_more(state.values)
        return calibrator

    @abstractmethod
    def _is_map(self, *parts: Floats) -> bool:
        """Say whether finite arrays can be the parts of a map."""

    def _restore_more(self, values: dict[str, Any]) -> None:
        """Put back what :meth:`_more_values` gave."""


def log_odds(logarithms: Floats) -> Floats:
    """Return log p − log(1 − p), (n, n_classes), of log probabilities, exact where p rounds to 1."""
    top = logarithms.argmax(axis=1)[:, None]
    others = logarithms.copy()
    np.put_along_axis(others, top, -np.inf, axis=1)
    beside_top = logsumexp(others, axis=1, keepdims=True)  # log(1 − p) of the top class
    complements = np.log1p(-np.exp(others))  # no other class is above one half
    np.put_along_axis(complements, top, beside_top, axis=1)
    return np.asarray(logarithms - complements, dtype=np.float64)


def warn_of_missing_classes(codes: NDArray[np.int64], classes: NDArray[Any]) -> None:
    """Warn of classes that the calibration set holds no sample of."""
    missing = classes[np.bincount(codes, minlength=len(classes)) == 0].tolist()
    if missing:
        warnings.warn(
            f"{len(missing)} of {len(classes)} classes have no calibration sample and will be found improbable: "
            f"{', '.join(repr(label) for label in missing[:5])}{', …' if len(missing) > 5 else ''}. "
            "Add samples of them.",
            MissingClassWarning,
            stacklevel=3,
        )


def check_bins(bins: Any) -> None:
    """Refuse a number of bins that is none."""
    if not isinstance(bins, Integral) or isinstance(bins, bool) or bins < 1:
        raise InvalidInputError(f"bins must be a whole number, at least 1; got {bins!r}.")


def equal_mass_edges(scores: Floats, weights: Floats, bins: int) -> Floats:
    """Return up to ``bins − 1`` ascending edges between bins of equal weight, halfway between neighbours.

    Equal scores share a bin: a cut that would part them moves to the nearer end of their run.
    """
    values, places = np.unique(scores, return_inverse=True)
    reached = np.cumsum(np.bincount(places, weights=weights))
    targets = reached[-1] * np.arange(1, bins) / bins
    after = np.searchsorted(reached, targets - 1e-9 * reached[-1])  # the first value that reaches the target
    before = np.maximum(after - 1, 0)
    nearer = np.where(targets - reached[before] < reached[after] - targets, before, after)
    cuts = np.unique(nearer[nearer < len(values) - 1])
    return np.asarray((values[cuts] + values[cuts + 1]) / 2, dtype=np.float64)


def _split(flat: torch.Tensor, lengths: torch.Tensor, allowed: list[int]) -> list[Floats]:
    """Return the arrays that were joined to one tensor."""
    fits = flat.dtype == torch.float64 and flat.ndim == 1 and lengths.dtype == torch.int64
    if not (
        fits
        and lengths.ndim == 1
        and len(lengths) in allowed
        and (lengths >= 0).all()
        and int(lengths.sum()) == len(flat)
    ):
        raise FileFormatError("the stored maps do not fit the classes.")
    if not flat.isfinite().all():
        raise FileFormatError("the stored maps hold numbers that are not finite.")
    return [part.numpy().copy() for part in torch.split(flat, lengths.tolist())]
