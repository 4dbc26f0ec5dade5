"""Gaussian-process calibration: one latent function of one score, shared by all classes.

f ~ GP,   p = E[softmax(f(s_1), …, f(s_K))],   f(s_k) independent N(m(s_k), v(s_k)) under the posterior
"""

from __future__ import annotations

import warnings
from numbers import Integral
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.errors import ConvergenceWarning, FileFormatError, InvalidInputError, MissingExtraError
from kcal.validation import check_weights

ITERATIONS = 1000
NUMBERS_AT_ONCE = 2**18
"""Scores looked at, and latent values drawn, at once: bounds the memory of a prediction at any number of rows."""
MANY = 2**16
"""More scores than this are rounded before their k-means is sought."""
FARTHEST = 300.0
"""A latent value strays no farther from its mean, so that no exponential overflows."""


class GaussianProcessCalibration(Calibrator):
    """Replace the score of every class by a Gaussian process of it, the same for all classes, and average softmax.

    The process is learned by variational inference with inducing points (``latent_process.py``).
    Its prior mean is the network's own log probability, so that far from the data nothing is changed. A prediction
    is the mean of softmax over draws of independent normal latent values. The same normal numbers serve every row,
    given out by the rank of a score in its row and each with its negative, so that a prediction depends neither on
    the other rows nor on the order of the classes; classes of equal score get equal probabilities.

    Parameters
    ----------
    inducing_points : int
        How many; they are the k-means of the scores of all classes together. Fewer if there are fewer scores.
    samples : int
        Draws for a prediction; an odd number is rounded up, so that every draw has its negative.
    representation : "logits" or "probabilities"
        What ``X`` holds, and what the process is a function of: the log probability of a class, or its probability.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.
    seed : int
        Of the k-means and of the draws.

    Attributes
    ----------
    lengthscale_, variance_ : float
        Of the process's covariance, where the bound is greatest.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "gp"
    _learned: dict[str, torch.Tensor]

    def __init__(
        self,
        *,
        inducing_points: int = 10,
        samples: int = 100,
        representation: str = "logits",
        progress: bool | None = None,
        seed: int = 0,
    ) -> None:
        self.inducing_points = inducing_points
        self.samples = samples
        self.representation = representation
        self.progress = progress
        self.seed = seed

    @property
    def lengthscale_(self) -> float:
        """How far the process remembers, in units of the score."""
        return float(self._learned["log_lengthscale"].exp())

    @property
    def variance_(self) -> float:
        """How far the process strays from the network's own log probability."""
        return float(self._learned["log_variance"].exp())

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Learn the process from logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns."""
        latent_process = require_latent_process()
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        scores, order = self._scores(rows)
        codes, self.classes_ = encode_columns(y, len(scores), scores.shape[1], classes)
        own = (order == torch.from_numpy(codes)[:, None]).int().argmax(dim=1)  # where the sorted row has the label
        weights = np.ones(len(scores)) if sample_weight is None else check_weights(sample_weight, len(scores))
        self._learned, content = latent_process.learn(
            scores,
            own,
            torch.from_numpy(weights),
            torch.from_numpy(choose_inducing_points(scores.numpy(), weights, self.inducing_points, self.seed)),
            representation=self.representation,
            iterations=ITERATIONS,
            show=self.progress,
        )
        if not content:
            warnings.warn(
                f"The Gaussian process's bound still rose after {ITERATIONS} iterations; the fit may be improvable.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _scores(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the classes in descending order, and that order, both (n, n_classes)."""
        descending, order = torch.sort(rows.cpu(), dim=1, descending=True, stable=True)
        scores = log_probabilities(descending, self.representation)
        return (scores if self.representation == "logits" else torch.exp(scores)), order

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        latent_process = require_latent_process()
        n_classes = rows.shape[1]
        normals = _standard_normals(self.samples, n_classes, self.seed)
        answer = torch.empty(rows.shape, dtype=torch.float64)
        step = max(1, NUMBERS_AT_ONCE // n_classes)
        for start in range(0, len(rows), step):
            scores, order = self._scores(rows[start : start + step])
            means, variances = latent_process.marginals(self._learned, scores, self.representation)
            logarithms = expected_softmax(means, variances, normals)
            answer[start : start + step].scatter_(1, order, _share_between_equals(logarithms, scores))
        return answer

    def _check_parameters(self) -> None:
        for name, least in (("inducing_points", 1), ("samples", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) < 2**32:
                raise InvalidInputError(f"{name} must be an integer from {least} to 2³² − 1; got {value!r}.")

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        return self._state(self.get_params(), {}, **self._learned)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        latent_process = require_latent_process()
        calibrator = cls(**state.parameters)._restore(state)
        calibrator._check_parameters()
        calibrator._learned = {name: state.tensors[name] for name in latent_process.STORED_BOUNDS}
        n_points = state.tensors["inducing"].numel()
        for name, tensor in calibrator._learned.items():
            lowest, highest = latent_process.STORED_BOUNDS[name]
            size = 1 if name.startswith("log_") else n_points
            sound = tensor.dtype == torch.float64 and tensor.shape == (size,) and bool(torch.isfinite(tensor).all())
            if size < 1 or not sound or not bool(((tensor >= lowest) & (tensor <= highest)).all()):
                raise FileFormatError(f"the stored Gaussian process is damaged: its {name} cannot be.")
        return calibrator


def require_latent_process() -> ModuleType:
    """Return the part that needs gpytorch, or say how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # gpytorch scripts a function that it never uses here
            from kcal.calibrators.gaussian_process import latent_process
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("gpytorch", "linear_operator"):
            raise
        raise MissingExtraError(
            "Gaussian-process calibration is built on gpytorch, which is not installed. Run: pip install 'kcal[gp]'"
        ) from error
    return latent_process


def choose_inducing_points(
    scores: NDArray[np.float64], weights: NDArray[np.float64], count: int, seed: int
) -> NDArray[np.float64]:
    """Return the k-means of all scores together, ascending; it depends neither on their order nor on repetition.

    Many scores are rounded first, to 1/512.
    """
    values, places = np.unique(scores if scores.size <= MANY else np.round(scores * 512) / 512, return_inverse=True)
    masses = np.bincount(places.ravel(), weights=np.repeat(weights, scores.shape[1]))
    values, masses = values[masses > 0], masses[masses > 0]
    if len(values) <= count:
        return values
    centres = KMeans(count, n_init=1, random_state=seed).fit(values[:, None], sample_weight=masses).cluster_centers_
    points: NDArray[np.float64] = np.unique(centres)
    return points


def expected_softmax(means: torch.Tensor, variances: torch.Tensor, normals: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the mean of softmax over the draws ``normals`` (draws, n_classes), (n, n_classes).

    Σ_s softmax(m + e_s)_k = exp(m_k) Σ_s exp(e_sk) / Σ_j exp(m_j + e_sj): one exponential a draw, exact in the tails
    """
    relative = means - means.amax(dim=1, keepdim=True)
    odds, deviations = torch.exp(relative), variances.sqrt()
    factors = torch.empty_like(means)
    step = max(1, NUMBERS_AT_ONCE // normals.numel())
    for start in range(0, len(means), step):
        rows = slice(start, start + step)
        strayed = (deviations[rows, None] * normals).clamp_(-FARTHEST, FARTHEST).exp_()  # (rows, draws, n_classes)
        totals = torch.bmm(strayed, odds[rows, :, None])  # (rows, draws, 1)
        factors[rows] = torch.bmm(totals.reciprocal_().mT, strayed)[:, 0]
    return relative + torch.log(factors / len(normals))


def _standard_normals(draws: int, n_classes: int, seed: int) -> torch.Tensor:
    """Return standard normal numbers, (draws, n_classes), each with its negative, so that their mean is exactly 0.

    An odd number of draws is rounded up.
    """
    half = np.random.default_rng(seed).standard_normal((-(-draws // 2), n_classes))
    return torch.from_numpy(np.concatenate([half, -half]))


def _share_between_equals(logarithms: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Give classes whose (sorted) scores are equal the mean of their probabilities."""
    equal = scores[:, 1:] == scores[:, :-1]
    if not bool(equal.any()):
        return logarithms
    first = torch.nn.functional.pad(~equal, (1, 0), value=True)
    group = first.long().cumsum(dim=1) - 1  # (n, n_classes)
    empty = torch.full_like(logarithms, -torch.inf)
    highest = empty.scatter_reduce(1, group, logarithms, "amax").gather(1, group)
    zeros = torch.zeros_like(logarithms)
    totals = zeros.scatter_add(1, group, torch.exp(logarithms - highest)).gather(1, group)
    counts = zeros.scatter_add(1, group, torch.ones_like(logarithms)).gather(1, group)
    return highest + torch.log(totals / counts)
