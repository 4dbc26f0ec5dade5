"""I-Max binning: log-odds fall into a few bins that keep the most information, and each bin answers with its rate.

λ_k = z_k − logsumexp_{j≠k} z_j,   r_k = rate of the bin of λ_k,   p_k ∝ r_k / (1 − r_k)
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.binary.one_versus_rest import SCORE_DECIMALS, check_bins, log_odds, warn_of_missing_classes
from kcal.calibrators.binary.top_label import rightness, spread_top
from kcal.calibrators.imax.bins import find_bins, place
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import check_weights

Floats = NDArray[np.float64]

FORMS = ("shared", "classwise", "top")


class IMaxBinning(Calibrator):
    """Bin log-odds so that bin and label share the most information; a bin's output is its share of positives.

    r_b = positives / samples of bin b, clipped to [1/(n_b + 2), 1 − 1/(n_b + 2)];   p_k ∝ r / (1 − r)

    Where the bins lie depends on the scores alone, what they answer on the labels. Bins that see one class against
    the rest do not give rates that sum to 1: :meth:`predict_proba` normalises their odds, :meth:`binned_scores` gives
    the rates themselves.

    Parameters
    ----------
    form : "shared", "classwise" or "top"
        "shared" pools all classes into one binary problem (sCW); "classwise" bins every class by itself (CW);
        "top" bins the top class's log-odds, and the other classes share the rest as the network had it.
    bins : int
        How many at most.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Draws where the alternation starts.

    Attributes
    ----------
    boundaries_ : list of array
        Log-odds between bins, ascending: one array for all classes or the top class, or one a class.
    rates_ : list of array
        Output of every bin, one longer each than the boundaries.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "imax"
    boundaries_: list[Floats]
    rates_: list[Floats]

    def __init__(self, *, form: str = "shared", bins: int = 15, representation: str = "logits", seed: int = 0) -> None:
        self.form = form
        self.bins = bins
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Find bins and rates for logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns.

        A weight counts as that many samples.
        """
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        logs = log_probabilities(rows, self.representation)
        codes, self.classes_ = encode_columns(y, len(logs), logs.shape[1], classes)
        weights = np.ones(len(logs)) if sample_weight is None else check_weights(sample_weight, len(logs))
        scores, targets, counts = self._binary_problems(logs, codes, weights)
        self.boundaries_, self.rates_ = [], []
        for column, hits in zip(scores.T, targets.T, strict=True):
            # every class starts from the same draws, so that their order plays no part
            found = find_bins(column, counts, int(self.bins), np.random.default_rng(self.seed))
            self.boundaries_.append(found.boundaries)
            self.rates_.append(bin_rates(found.place(column), hits, counts, len(found.boundaries) + 1))
        return self

    def binned_scores(self, X: Any) -> Any:
        """Return the rate of each class's bin, (n, n_classes), which need not sum to 1.

        The form "top" has rates of the top class only, and gives probabilities here too.
        """
        rows, kind = self._check_rows(X)
        logs = log_probabilities(rows, self.representation)
        return kind.give_back(torch.exp(self._top(logs)) if self.form == "top" else self._rates(logs))

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        logs = log_probabilities(rows, self.representation)
        if self.form == "top":
            return self._top(logs)
        return torch.log_softmax(torch.logit(self._rates(logs)), dim=1)

    def _top(self, logs: torch.Tensor) -> torch.Tensor:
        top = _rounded_log_odds(logs).max(axis=1)
        rates = torch.from_numpy(self.rates_[0][place(self.boundaries_[0], top)])
        return spread_top(logs, torch.log(rates), torch.log1p(-rates))

    def _rates(self, logs: torch.Tensor) -> torch.Tensor:
        scores = _rounded_log_odds(logs)
        if self.form == "shared":
            return torch.from_numpy(self.rates_[0][place(self.boundaries_[0], scores)])
        columns = zip(self.boundaries_, self.rates_, scores.T, strict=True)
        return torch.from_numpy(np.stack([rates[place(edges, column)] for edges, rates, column in columns], axis=1))

    def _binary_problems(
        self, logs: torch.Tensor, codes: NDArray[np.int64], weights: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return scores and targets, one column a problem, and the weight of each of their rows."""
        scores = _rounded_log_odds(logs)
        if self.form == "top":
            return scores.max(axis=1, keepdims=True), rightness(logs, codes)[:, None], weights
        targets = np.zeros(scores.shape)
        targets[np.arange(len(codes)), codes] = 1.0
        if self.form == "classwise":
            warn_of_missing_classes(codes, self.classes_)
            return scores, targets, weights
        return scores.reshape(-1, 1), targets.reshape(-1, 1), np.repeat(weights, scores.shape[1])

    def _check_parameters(self) -> None:
        if self.form not in FORMS:
            raise InvalidInputError(f"form must be one of {FORMS}; got {self.form!r}.")
        check_bins(self.bins)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        tensors = {
            "boundaries": torch.from_numpy(np.concatenate(self.boundaries_)),
            "rates": torch.from_numpy(np.concatenate(self.rates_)),
        }
        parameters = self.get_params() | {"bins": int(self.bins)}
        return self._state(parameters, {"n_bins": [len(rates) for rates in self.rates_]}, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        calibrator._check_parameters()
        if calibrator.n_features_in_ != len(calibrator.classes_):
            raise FileFormatError("the stored classes are not as many as the columns.")
        sizes = np.array(state.values["n_bins"])
        boundaries, rates = state.tensors["boundaries"], state.tensors["rates"]
        problems = len(calibrator.classes_) if calibrator.form == "classwise" else 1
        if sizes.shape != (problems,) or sizes.dtype.kind != "i" or (sizes < 1).any():
            raise FileFormatError(f"the stored numbers of bins are damaged: {state.values['n_bins']!r}.")
        if tuple(rates.shape) != (sizes.sum(),) or tuple(boundaries.shape) != (sizes.sum() - problems,):
            raise FileFormatError("the stored bins are damaged.")
        if rates.dtype != torch.float64 or boundaries.dtype != torch.float64 or not bool(boundaries.isfinite().all()):
            raise FileFormatError("the stored bins are damaged.")
        if not bool(((rates > 0) & (rates < 1)).all()):
            raise FileFormatError("the stored rates are not between 0 and 1.")
        calibrator.rates_ = np.split(rates.numpy(), np.cumsum(sizes)[:-1])
        calibrator.boundaries_ = np.split(boundaries.numpy(), np.cumsum(sizes - 1)[:-1])
        if any((np.diff(edges) < 0).any() for edges in calibrator.boundaries_):
            raise FileFormatError("the stored boundaries do not ascend.")
        return calibrator


def _rounded_log_odds(logs: torch.Tensor) -> Floats:
    """Return λ of log-probabilities, (n, n_classes), rounded so that a shifted row has the same."""
    return np.round(log_odds(logs.numpy()), SCORE_DECIMALS)


def bin_rates(places: NDArray[np.int64], targets: Floats, counts: Floats, n_bins: int) -> Floats:
    """Return every bin's share of positives, kept from 0 and 1 by its size; an empty bin has that of all samples."""
    sizes = np.bincount(places, counts, n_bins)
    positives = np.bincount(places, counts * targets, n_bins)
    empty = sizes == 0
    sizes[empty], positives[empty] = counts.sum(), (counts * targets).sum()
    least = 1 / (sizes + 2)
    rates: Floats = np.clip(positives / sizes, least, 1 - least)
    return rates
