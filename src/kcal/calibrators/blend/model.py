"""The fitted blend: its formula and everything the formula needs.

p = λ_1·pool + λ_2·f + λ_3·r + λ_4·d,     pool ∝ f^(w_f)·r^(w_r)·d'^(w_d)

d_k(x) = (β·f_k(x) + S_k(x)) / (β + Σ_l S_l(x)),     S_k(x) = Σ_{i: y_i = k} w_i·φ_b(x_i − x)

f is the network (``network.py``), r its last layer refitted (``refit.py``). d is the kernel estimate: S_k counts the
samples of class k near x, each by a kernel that is 1 at distance 0, and d is the mean of a Dirichlet posterior whose
prior is the network's prediction f, worth β samples. Far from all samples d is f. In the pool f is an expert itself:
d' is d with a much smaller background, which matters only where no sample is near. The exponents w and the shares λ
are those of ``pool.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibrationModel, buffer, option, submodule
from kcal.calibrators.blend.attribution import attribute_blend
from kcal.calibrators.blend.network import NetworkModel
from kcal.calibrators.blend.pool import pool_log_probs
from kcal.calibrators.kernel_model import KernelModel, as_embeddings
from kcal.calibrators.logits import MASKED, required, to_log_probs
from kcal.calibrators.refit import RidgeModel
from kcal.embeddings.heads import CONVOLUTIONS
from kcal.errors import InvalidInputError
from kcal.kernels import ClassSums
from kcal.validation import MAX_MAGNITUDE, shown, to_numbers, unchecked_logits

EXPERTS = ("network", "refit", "samples")
FAR_BELOW, MASK_FACTOR = -5000.0, 10.0
"""A class is masked out of the logits, not unlikely, if its log-probability is below the first, and below the second
times the lowest one of calibration samples, or below ``MASKED``."""
MIN_PROB = 1e-12
"""Of an expert, in logarithms."""
HEADS = "must be an nn.Linear, a 1×1 convolution or a pair of arrays, weight (n_classes, h) and bias (n_classes,)"
LINEAR_FORWARDS = [layer.forward for layer in (nn.Linear, *CONVOLUTIONS)]  # a subclass with its own need not be linear


@dataclass(frozen=True, eq=False)
class Experts:
    """The predictions that a blend combines, of n samples."""

    pooled: torch.Tensor  # (3, n, n_classes), logarithms: network, refit, kernel estimate of the pool
    estimate: torch.Tensor  # (n, n_classes), logarithms of the kernel estimate of the mixture
    counts: torch.Tensor  # (n, n_classes), samples of each class near a sample
    excluded: torch.Tensor  # (n, n_classes), classes that the network masks

    @property
    def mixed(self) -> torch.Tensor:
        """Logarithms of network, refit and kernel estimate in the mixture, (3, n, n_classes)."""
        return torch.cat([self.pooled[:2], self.estimate[None]])


class LinearHead(CalibrationModel):
    """Logits as a linear function of embeddings: z = W·x + b."""

    weight: torch.Tensor = buffer("n_classes", "n_features")
    bias: torch.Tensor | None = buffer("n_classes", optional=True)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits, (n, n_classes), in the precision and on the device of the embeddings, (n, h)."""
        assert embeddings is not None
        bias = None if self.bias is None else self.bias.to(embeddings)
        return nn.functional.linear(embeddings, self.weight.to(embeddings), bias)

    @classmethod
    def from_layer(cls, head: Any, n_features: int) -> Self:
        """Return a copy of a layer or a pair of arrays; one output, the log-odds of two classes, becomes two."""
        is_layer = getattr(type(head), "forward", None) in LINEAR_FORWARDS
        if not is_layer and not (isinstance(head, tuple | list) and len(head) == 2):
            raise InvalidInputError("head", HEADS, got=shown(head))
        weight, bias = (head.weight, head.bias) if is_layer else head
        parts = [
            to_numbers(part, "head").astype(np.float64) for part in ((weight,) if bias is None else (weight, bias))
        ]
        if is_layer and np.prod(parts[0].shape[2:]) == 1:
            parts[0] = parts[0].reshape(parts[0].shape[:2])
        shapes = [part.shape for part in parts]
        if shapes[0][1:] != (n_features,) or not shapes[0][0] or shapes[1:] not in ([], [shapes[0][:1]]):
            got = f"shapes {' and '.join(map(str, shapes))} for {n_features:,} features of X"
            raise InvalidInputError("head", HEADS, got=got)
        if not all((np.abs(part) <= MAX_MAGNITUDE).all() for part in parts):  # False for NaN
            raise InvalidInputError("head", f"must have finite entries of at most {MAX_MAGNITUDE:g}", got="others")
        if len(parts[0]) == 1:
            parts = [np.concatenate([np.zeros_like(part), part]) for part in parts]
        return cls(**dict(zip(("weight", "bias"), parts, strict=False)))


class BlendModel(KernelModel):
    """The network, its refitted last layer and a kernel estimate over the calibration samples."""

    network: NetworkModel = submodule(NetworkModel.from_state)
    refit: RidgeModel = submodule(RidgeModel.from_state)
    head: LinearHead | None = submodule(LinearHead.from_state, optional=True)
    representation: str = option()
    has_logits: bool = option()  # whether it was fitted with logits
    exponents: torch.Tensor = buffer(3)  # w, of network, refit and kernel estimate
    mixture: torch.Tensor = buffer(4)  # λ, of the pool, network, refit and kernel estimate
    background: torch.Tensor = buffer()  # β
    pool_background: torch.Tensor = buffer()  # that of the pool
    min_log_prob: torch.Tensor = buffer()  # lowest log-probability of the network for a calibration sample
    centre: torch.Tensor = buffer("dimension")  # of the calibration points
    radius: torch.Tensor = buffer()  # of the ball around it that holds them: the refit does not extrapolate beyond
    loss: torch.Tensor = buffer()  # out-of-fold log-loss of the blend
    network_loss: torch.Tensor = buffer()  # that of the network alone

    def log_probs(
        self, sums: ClassSums, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor | None
    ) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), for the class frequencies of deployment."""
        experts = self.experts(sums, points, rows, logits)
        log_probs = self.log_mixture(experts).masked_fill(experts.excluded, -torch.inf)
        if self.prior is not None:
            corrected = log_probs + self.log_prior_ratio.to(log_probs)
            # Where all mass is on classes that the prior excludes, the prior is the only information left.
            is_left = corrected.amax(dim=1, keepdim=True) > -torch.inf
            log_probs = torch.where(is_left, corrected, self.prior.log().to(log_probs))
        return torch.log_softmax(log_probs, dim=1)

    def attribute(
        self, embeddings: torch.Tensor | None, logits: torch.Tensor | None, probs: torch.Tensor, k: int
    ) -> dict[str, Any]:
        """Return the shares of samples, network and refitted layer in the probabilities ``probs`` of rows."""
        return attribute_blend(self, as_embeddings(embeddings), logits, probs, k)

    def experts(
        self, sums: ClassSums, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor | None
    ) -> Experts:
        """Return the experts of class sums, points, embeddings and logits, which a head computes or are None."""
        counts = sums.counts(self.log_scale)[0]
        log_probs = torch.zeros_like(counts)
        if self.has_logits:
            scores = required(logits, "logits") if self.head is None else self.head(rows)
            log_probs = to_log_probs(unchecked_logits(scores, self.representation), self.representation).to(counts)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        network = self.network.probs(bounded).clamp_min(MIN_PROB)
        refit = self.refit.log_probs(self.inside(points.to(counts)), bounded).clamp_min(log(MIN_PROB))
        pooled = torch.stack([network.log(), refit, log_estimate(counts, network, self.pool_background)])
        estimate = log_estimate(counts, network, self.background)
        masked_below = (MASK_FACTOR * self.min_log_prob).clamp(MASKED, FAR_BELOW)
        return Experts(pooled, estimate, counts, log_probs < masked_below)

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        """Return points, (n, d), moved towards the centre into the ball of the calibration points."""
        offsets = points - self.centre.to(points)
        radius = self.radius.to(points)
        lengths = torch.maximum(torch.linalg.vector_norm(offsets, dim=1, keepdim=True), radius)
        return self.centre.to(points) + offsets * (radius / lengths)

    def log_mixture(self, experts: Experts) -> torch.Tensor:
        """Return the logarithm of the mixture, (n, n_classes)."""
        parts = torch.cat([pool_log_probs(self.exponents, experts.pooled)[None], experts.mixed])
        return torch.logsumexp(parts + self.mixture.log().to(parts)[:, None, None], dim=0)

    @property
    def log_prior_ratio(self) -> torch.Tensor:
        """Logarithm of prior over assumed frequency, (n_classes,).

        A class that is never seen nor predicted has no frequency: a prior of 0 excludes it, another changes nothing.
        """
        assert self.prior is not None
        without_frequency = (self.prior > 0).to(self.prior)
        return torch.where(self.frequencies > 0, self.prior / self.frequencies, without_frequency).log()

    @property
    def weights(self) -> dict[str, float]:
        """Exponent of each expert in the pool, by name."""
        return dict(zip(EXPERTS, self.exponents.tolist(), strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Share of the pool and of each expert in the prediction, by name."""
        return dict(zip(("pool", *EXPERTS), self.mixture.tolist(), strict=True))

    @property
    def log_scale(self) -> float:
        """Logarithm of the factor by which class sums become numbers of samples: weights then have mean 1."""
        return log(max(self.n_samples, 1)) - self.support.log_total_weight


def log_estimate(counts: torch.Tensor, network: torch.Tensor, background: float | torch.Tensor) -> torch.Tensor:
    """Return log d, (n, n_classes), of counts and the network's probabilities."""
    masses = background * network + counts
    return torch.log(masses / masses.sum(dim=1, keepdim=True))  # ONNX graphs drop the addition of a tiny constant
