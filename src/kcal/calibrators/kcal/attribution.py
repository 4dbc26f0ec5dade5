"""Divide the probabilities of a KCal among its calibration samples.

p_k = Σ_{i: y_i = k} share_i + smoothing/K,   share_i = (p_k − smoothing/K)·w_i·φ_i / S_k

S_k is the sum of w_i·φ_i over the samples of class k.

The prior is in p_k, as a factor of all shares of a class. Where all mass is on classes that the prior excludes, the
prior alone decides, and samples have no share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.explanation import Explanation, LogOdds
from kcal.calibrators.kcal.model import KCalModel, KernelEstimate
from kcal.kernels import Contributions, largest_contributions

METRIC = "projected"
RARE_TERMS = ("prior", "masked")
"""Contributions to the log-odds that are left out where they are 0 for all predictions."""
BLOCK_ROWS, BLOCK_NUMBERS = 1_024, 4_000_000
"""Predictions that are explained at once, and numbers of their samples' points, at most."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """The shares of the k most important samples in n predictions, and of everything else."""

    positions: torch.Tensor  # (n, k), of the samples in the support, in the order of the fit
    codes: torch.Tensor  # (n, k), their classes
    shares: torch.Tensor  # (n, k)
    distances: torch.Tensor  # (n, k, n_metrics)
    metrics: tuple[str, ...]
    rest: torch.Tensor  # (n, n_classes), of all other samples
    parts: Mapping[str, torch.Tensor]  # (n, n_classes) each, of what is no sample
    terms: Mapping[str, torch.Tensor]  # (n,) each, contributions to the log-odds of the top two classes; of a blend
    log_odds: torch.Tensor | None = None  # (n,)


def attribute_kcal(model: KCalModel, embeddings: torch.Tensor, probs: torch.Tensor, k: int) -> Attribution:
    """Return the attribution of the probabilities ``probs``, (n, n_classes) in float64, of ``embeddings``, (n, h)."""
    points = model.project(embeddings)
    even = model.even_share / probs.shape[1]
    carried, parts = (probs - even).clamp_min(0.0), {"smoothing": torch.full_like(probs, even)}
    if model.prior is not None:
        posteriors = model.prepared.posteriors(points)[0].cpu()
        reached = (posteriors[:, model.prior > 0] > 0).any(dim=1, keepdim=True)
        parts["prior"] = torch.where(reached, 0.0, carried)
        carried = torch.where(reached, carried, 0.0)
    contributions = Contributions(model.prepared, points)
    sums = contributions.class_sums().sums  # (1, n_classes, n)
    factors = torch.where(sums > 0, carried.T.to(sums) / sums, 0.0)
    return attribution({METRIC: (contributions, factors)}, k, carried, parts)


def attribution(
    metrics: Mapping[str, tuple[Contributions, torch.Tensor]],
    k: int,
    carried: torch.Tensor,
    parts: Mapping[str, torch.Tensor],
    *,
    terms: Mapping[str, torch.Tensor] | None = None,
    log_odds: torch.Tensor | None = None,
) -> Attribution:
    """Return the attribution by the samples of the largest shares.

    ``metrics`` are what samples contribute to class sums, by name of the metric, with the factors that make shares of
    it; ``carried`` is the probability that all samples carry together, (n, n_classes). The others are as in
    :class:`Attribution`.
    """
    contributions = [pair[0] for pair in metrics.values()]
    positions, shares = largest_contributions(contributions, [pair[1] for pair in metrics.values()], k)
    distances = torch.stack([part.distances(positions).cpu() for part in contributions], dim=2)
    support = contributions[0].prepared.support
    places = positions.to(support.codes.device)
    codes, shares = support.codes[places].cpu(), shares.cpu()
    rest = (carried - torch.zeros_like(carried).scatter_add_(1, codes, shares)).clamp_min(0.0)
    order = support.order[places].cpu()
    return Attribution(order, codes, shares, distances, tuple(metrics), rest, parts, terms or {}, log_odds)


def to_explanation(
    attributions: Sequence[Attribution],
    probs: torch.Tensor,
    classes: NDArray[Any],
    *,
    rows: NDArray[np.int64],
    ids: NDArray[Any],
) -> Explanation:
    """Return blocks of attributions as one explanation of ``probs``; ``rows`` and ``ids`` are those of the samples."""

    def joined(read: Callable[[Attribution], torch.Tensor]) -> NDArray[Any]:
        return torch.cat([read(block) for block in attributions]).numpy()

    first = attributions[0]
    positions = joined(lambda block: block.positions)
    parts = {name: joined(lambda block, name=name: block.parts[name]) for name in first.parts}  # type: ignore[misc]
    log_odds, totals = None, [block.log_odds for block in attributions if block.log_odds is not None]
    if totals:
        terms = {name: joined(lambda block, name=name: block.terms[name]) for name in first.terms}  # type: ignore[misc]
        terms = {name: values for name, values in terms.items() if name not in RARE_TERMS or values.any()}
        top = top_two(probs).numpy()
        contributions = np.column_stack(list(terms.values()))
        log_odds = LogOdds(
            classes[top[:, 0]], classes[top[:, 1]], torch.cat(totals).numpy(), tuple(terms), contributions
        )
    return Explanation(
        classes=classes,
        probabilities=probs.numpy(),
        ids=ids[positions],
        rows=rows[positions],
        codes=joined(lambda block: block.codes),
        shares=joined(lambda block: block.shares),
        distances=joined(lambda block: block.distances),
        metrics=first.metrics,
        rest=joined(lambda block: block.rest),
        parts={name: part for name, part in parts.items() if part.any()},
        log_odds=log_odds,
    )


def point_names(estimate: KernelEstimate) -> NDArray[Any]:
    """Return a name of each support point of a compressed estimate, in the original order, (n,).

    The weight of a centroid is the number of its samples, if these had equal weights. Points of other methods are
    samples, whose ids the estimate does not know.
    """
    support, compression = estimate.support, estimate.compression
    numbers = np.arange(len(support))
    if compression is None:
        return numbers
    if compression.method != "kmeans":
        return np.array([f"point #{number}" for number in numbers])
    weights = torch.ones(len(support)) if support.log_weights is None else support.log_weights.double().exp().cpu()
    counts = support.in_original_order(weights / weights.sum() * compression.n_samples).numpy()
    if np.abs(counts - counts.round()).max() > 1e-3 * counts.min():
        return np.array([f"centroid #{number}" for number in numbers])
    sizes = counts.round().astype(np.int64).tolist()
    return np.array([f"centroid of {size:,} sample{'s'[: size != 1]} #{place}" for place, size in enumerate(sizes)])


def top_two(probs: torch.Tensor) -> torch.Tensor:
    """Return the columns of the two most probable classes, (n, 2); of equal ones the first."""
    return probs.sort(dim=1, descending=True, stable=True).indices[:, :2]
