"""The network's prediction, averaged over what the calibration samples leave open.

n(x) = Σ_t u_t·softmax(z/t)                    u: the posterior of the temperature t
f_k(x) = Σ_a v_a·c_ka·n_k(x) / Σ_l c_la·n_l(x)     c_ka = (n_k + a) / (m_k + a)

n_k is the number of calibration samples of class k and m_k the sum of n_k(x_i) over all of them: what the network
predicts that number to be. The factor c_ka is the mean of a Gamma posterior with the prior Gamma(a, a): a class that
the network predicts often and that n samples did not show becomes unlikely. v_a is the weight of each a by its
leave-one-out likelihood. So nothing is certain that the samples do not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kcal.calibrators.base import CalibrationModel, buffer
from kcal.calibrators.temperature_prior import fit_temperature, penalty_and_slope

LOG_TEMPERATURES = torch.linspace(-2.05, 2.05, 81, dtype=torch.float64)
"""Values of log T that are averaged over, around the most probable one."""
STRENGTHS = torch.tensor([0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1e9], dtype=torch.float64)
"""Values of a; with the last one every factor is 1."""
NEGLIGIBLE_WEIGHT = 1e-4
"""Posterior weight below which a temperature or a strength is left out."""
IMPOSSIBLE = -50.0
"""Logarithm of the posterior, relative to the most probable temperature, below which none is looked at further out."""


@dataclass(frozen=True, eq=False)
class OtherSamples:
    """Sums over the samples that a sample is predicted from: all others or, with groups, those of other groups."""

    weights: torch.Tensor  # (n,), what a sample counts
    groups: torch.Tensor | None  # (n,), codes from 0

    def sums(self, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return Σ_j w_j·values_j over the others of each sample of ``index``, (n_index, k), of values (n, k)."""
        total, weights = self.weights @ values, self.weights[:, None]
        if self.groups is None:
            return total - weights[index] * values[index]
        by_group = torch.zeros(int(self.groups.max()) + 1, values.shape[1], dtype=values.dtype)
        return total - by_group.index_add_(0, self.groups, weights * values)[self.groups[index]]


class NetworkModel(CalibrationModel):
    """f: the average over temperatures and over factors of the classes."""

    temperatures: torch.Tensor = buffer("n_temperatures")
    temperature_weights: torch.Tensor = buffer("n_temperatures")  # u
    factors: torch.Tensor = buffer("n_strengths", "n_classes")  # c
    factor_weights: torch.Tensor = buffer("n_strengths")  # v

    @property
    def temperature(self) -> float:
        """The posterior mean of the temperature."""
        return float(self.temperatures @ self.temperature_weights)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log f, (n, n_classes), of log-probabilities of the network."""
        assert logits is not None
        return self.probs(logits).log()

    def probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return f, (n, n_classes), of log-probabilities of the network."""
        scaled = average_temperatures(log_probs, self.temperatures, self.temperature_weights.to(log_probs)[None])
        return average_factors(scaled, self.factors[:, None].to(scaled), self.factor_weights.to(scaled)[None])


def average_temperatures(log_probs: torch.Tensor, temperatures: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return Σ_t u_t·softmax(z/t), (n, n_classes); weights are (1, n_temperatures) or (n, n_temperatures)."""
    average = torch.zeros_like(log_probs)
    for temperature, weight in zip(temperatures.to(log_probs), weights.T, strict=True):
        average = average + weight[:, None] * torch.softmax(log_probs / temperature, dim=1)
    return average


def average_factors(probs: torch.Tensor, factors: Iterable[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Return Σ_a v_a·(c_a·n, normalised), (n, n_classes); factors are n_strengths × (1 or n, n_classes)."""
    average = torch.zeros_like(probs)
    for factor, weight in zip(factors, weights.T, strict=True):
        average = average + weight[:, None] * as_shares(probs * factor)
    return average


def as_shares(masses: torch.Tensor) -> torch.Tensor:
    """Return masses over their sum, (n, n_classes)."""
    return masses / masses.sum(dim=1, keepdim=True).clamp_min(torch.finfo(masses.dtype).tiny)


def fit_network(
    log_probs: torch.Tensor, codes: torch.Tensor, others: OtherSamples, index: torch.Tensor
) -> tuple[NetworkModel, torch.Tensor]:
    """Return the model of all samples, and f of the samples of ``index`` without themselves, (n_index, n_classes)."""
    log_temperatures = LOG_TEMPERATURES + np.log(fit_temperature(log_probs, codes.numpy(), others.weights.numpy()))
    prior = -torch.from_numpy(penalty_and_slope(log_temperatures.numpy())[0])
    places, own = _likely_temperatures(log_probs, codes, others, log_temperatures, prior)
    log_temperatures, prior = log_temperatures[places], prior[places]
    posterior = torch.softmax(others.weights @ own + prior, dim=0)
    of_others = torch.softmax(others.sums(own, torch.arange(len(codes))) + prior, dim=1)
    kept = (posterior > NEGLIGIBLE_WEIGHT) | (of_others.amax(dim=0) > 10 * NEGLIGIBLE_WEIGHT)
    temperatures, weights = log_temperatures.exp()[kept], as_shares(posterior[None, kept])
    scaled = average_temperatures(log_probs, temperatures, as_shares(of_others[:, kept]))

    counted = torch.zeros_like(scaled).scatter_(1, codes[:, None], 1.0)
    observed, expected = (others.sums(values, index).clamp_min(0.0) for values in (counted, scaled))
    chosen = scaled[index]
    factors = _Factors(observed, expected)  # of each strength, (n_index, n_classes)
    own_probs = torch.stack([_own(as_shares(chosen * factor), codes[index]) for factor in factors])
    losses = own_probs.clamp_min(torch.finfo(torch.float64).tiny).log() @ others.weights[index]
    posterior = torch.softmax(losses * (len(codes) / len(index)), dim=0)
    out_of_fold = average_factors(chosen, factors, posterior[None])
    kept = posterior > NEGLIGIBLE_WEIGHT
    totals = [others.weights @ values for values in (counted, scaled)]
    of_all = (totals[0] + STRENGTHS[kept, None]) / (totals[1] + STRENGTHS[kept, None])
    model = NetworkModel(
        temperatures=temperatures,
        temperature_weights=weights[0],
        factors=of_all,
        factor_weights=as_shares(posterior[None, kept])[0],
    )
    return model, out_of_fold


@dataclass(frozen=True, eq=False)
class _Factors:
    """The factors c of each strength, one at a time: together they are nine times as large as the predictions."""

    observed: torch.Tensor  # (n, n_classes)
    expected: torch.Tensor  # (n, n_classes)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return ((self.observed + strength) / (self.expected + strength) for strength in STRENGTHS)


def _likely_temperatures(
    log_probs: torch.Tensor,
    codes: torch.Tensor,
    others: OtherSamples,
    log_temperatures: torch.Tensor,
    prior: torch.Tensor,
) -> tuple[list[int], torch.Tensor]:
    """Return the places of temperatures that are not impossible, also without a sample, and their log-likelihoods.

    The log-likelihoods are those of each sample, (n, n_places). Many samples leave few temperatures.
    """
    middle, everyone, found = len(prior) // 2, torch.arange(len(codes)), {}

    def own_at(place: int) -> torch.Tensor:
        return _own(torch.log_softmax(log_probs / log_temperatures[place].exp(), dim=1), codes)

    found[middle] = own_at(middle)
    for outwards in (range(middle - 1, -1, -1), range(middle + 1, len(prior))):
        for place in outwards:
            found[place] = own_at(place)
            rise = (found[place] - found[middle])[:, None]
            without_one = others.sums(rise, everyone).max()
            if max(without_one, others.weights @ rise[:, 0]) + prior[place] - prior[middle] < IMPOSSIBLE:
                break
    places = sorted(found)
    return places, torch.stack([found[place] for place in places], dim=1)


def _own(values: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Return the entry of each row's class, (n,)."""
    return values.gather(1, codes[:, None])[:, 0]
