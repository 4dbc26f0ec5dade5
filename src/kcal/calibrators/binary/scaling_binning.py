"""Scaling-binning: temperature scaling, then each class's probability replaced by the mean of those in its bin.

q_k = (1/n_b)·Σ_{i∈b} p_ik(T),   p(T) = softmax(z / T),   b the bin of p_k(T);   output_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from kcal.calibrators.binary.one_versus_rest import Floats, OneVersusRest, check_bins, equal_mass_edges
from kcal.calibrators.scaling.temperature import HIGHEST, LOWEST, solve_temperature
from kcal.errors import FileFormatError
from kcal.validation import ALMOST_ZERO


class ScalingBinning(OneVersusRest):
    """Scale by a temperature, then round the probability of each class to the mean of its bin, and normalise.

    Labels are used for the temperature only; bins hold equal numbers of samples and give the mean of the scaled
    probabilities, which varies far less than the mean of labels that histogram binning takes. Outputs of the maps are
    few values, so that the calibration error of the maps can be measured without the bias of binning. One set of
    samples serves all steps, as in the published code: a temperature is too little to be overfitted.

    Parameters
    ----------
    bins : int, optional
        Bins a map, at most; ties can leave fewer. If not given, ten for every class and at least 100: the samples of
        one of K equally frequent classes fill one bin in K, and many bins cost little where no labels are averaged.
    maps : "auto", "class" or "shared"
        Bins of its own for every class, or one set of bins for the scores of all classes together. "auto" takes
        whichever has the lower cross-validated log-loss.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Of the folds that "auto" is decided by.

    Attributes
    ----------
    temperature_ : float
        T of the scaling.
    edges_ : list of arrays
        Where the bins of each map meet, as log-odds of the scaled probabilities, ascending.
    means_ : list of arrays
        What each bin gives before rows are normalised; one more than there are edges.
    """

    method: ClassVar[str] = "scaling-binning"
    parts: ClassVar[tuple[str, ...]] = ("edges", "means")
    temperature_: float
    edges_: list[Floats]
    means_: list[Floats]

    def __init__(
        self, *, bins: int | None = None, maps: str = "auto", representation: str = "logits", seed: int = 0
    ) -> None:
        self.bins = bins
        self.maps = maps
        self.representation = representation
        self.seed = seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.bins is not None:
            check_bins(self.bins)

    def _prepare(self, logarithms: Floats, codes: NDArray[np.int64], weights: Floats) -> None:
        self.temperature_ = solve_temperature(logarithms, codes, weights)

    def _scores(self, logarithms: Floats) -> Floats:
        return super()._scores(log_softmax(logarithms / self.temperature_, axis=1))

    def _fit_map(self, scores: Floats, hits: NDArray[np.bool_], weights: Floats) -> tuple[Floats, ...]:
        bins = max(100, 10 * len(self.classes_)) if self.bins is None else self.bins
        edges = equal_mass_edges(scores, weights, bins)
        places = np.searchsorted(edges, scores)
        means = np.bincount(places, weights=weights * expit(scores)) / np.bincount(places, weights=weights)
        return edges, np.maximum(means, ALMOST_ZERO)

    def _log_map(self, scores: Floats, *parts: Floats) -> Floats:
        edges, means = parts
        return np.log(means)[np.searchsorted(edges, scores)]

    def _is_map(self, *parts: Floats) -> bool:
        edges, means = parts
        return len(means) == len(edges) + 1 and bool((np.diff(edges) > 0).all() and ((means > 0) & (means <= 1)).all())

    def _more_values(self) -> dict[str, Any]:
        return {"temperature": self.temperature_}

    def _restore_more(self, values: dict[str, Any]) -> None:
        self.temperature_ = float(values["temperature"])
        if not LOWEST <= self.temperature_ <= HIGHEST:
            raise FileFormatError(f"the stored temperature is out of bounds: {self.temperature_!r}.")
