"""The fitted KCal: its formula and everything the formula needs.

p_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x)) / Σ_i w_i·φ_b(Π(x_i) − Π(x)), corrected for the prior, smoothed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.prior import apply_prior, smooth
from kcal.errors import InvalidInputError
from kcal.kernels import SortedSupport, class_posteriors, get_kernel, leave_out_posteriors, log_densities
from kcal.projection import project


@dataclass(frozen=True, eq=False)
class KCalModel:
    """Class probabilities from a kernel density estimate over projected calibration samples.

    Parameters
    ----------
    projection : nn.Module
        Π, frozen.
    support : SortedSupport
        The projected calibration samples, with their class codes and weights.
    bandwidth : float
        b.
    kernel : str
        Name of the mother kernel φ.
    frequencies : (n_classes,) array
        Class frequencies of the calibration set.
    prior : (n_classes,) array or None
        Class frequencies of deployment.
    smoothing : float
        Share of the probability that is spread evenly over the classes.
    groups : (n_support,) tensor or None
        Group of each support sample, in the order in which the samples were given.
    """

    projection: nn.Module
    support: SortedSupport
    bandwidth: float
    kernel: str
    frequencies: NDArray[np.float64]
    prior: NDArray[np.float64] | None = None
    smoothing: float = 0.0
    groups: torch.Tensor | None = None

    def probs(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return class probabilities, (n, n_classes)."""
        posteriors = class_posteriors(
            self._project(embeddings), self.support, self.bandwidth, kernel=get_kernel(self.kernel)
        )
        return self._corrected(posteriors)

    def log_probs(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the class probabilities, (n, n_classes)."""
        return torch.log(self.probs(embeddings))

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set at each embedding, (n,)."""
        return log_densities(self._project(embeddings), self.support, self.bandwidth, kernel=get_kernel(self.kernel))

    @cached_property
    def leave_one_out_probs(self) -> torch.Tensor:
        """Probabilities of each support sample given the others (other groups), in the order they were given."""
        posteriors = leave_out_posteriors(
            self.support, self.bandwidth, kernel=get_kernel(self.kernel), keys=self.groups
        )
        return self._corrected(posteriors)

    def to(self, device: str | torch.device) -> KCalModel:
        """Return the model on another device."""
        place = torch.device(device)
        groups = None if self.groups is None else self.groups.to(place)
        return replace(self, projection=self.projection.to(place), support=self.support.to(device=place), groups=groups)

    def _project(self, embeddings: torch.Tensor) -> torch.Tensor:
        points = self.support.points
        return project(self.projection, embeddings.to(device=points.device, dtype=points.dtype))

    def _corrected(self, posteriors: torch.Tensor) -> torch.Tensor:
        """Return posteriors corrected for the prior and smoothed."""
        if not bool(torch.isfinite(posteriors).all()):
            raise InvalidInputError(
                "bandwidth",
                "must be of the scale of the embeddings",
                got=f"{self.bandwidth:.3g}, at which probabilities are not finite",
                remedy="Scale the embeddings.",
            )
        return smooth(apply_prior(posteriors, self.prior, self.frequencies), self.smoothing)
