"""The kernel density estimates of a blend: a metric each, at several bandwidths that share their distances."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend_parameters import name_of_scale
from kcal.calibrators.kcal import KCal
from kcal.errors import BandwidthWarning, InvalidInputError, MissingClassWarning
from kcal.kernels import ClassSums, class_sums, leave_out_rule
from kcal.projection import ARCHITECTURES, TrainedProjection, project
from kcal.projection.recipes import FEATURES_OF_A_DIRECTION

if TYPE_CHECKING:
    from kcal.calibrators.blend import KCalBlend

ROWS_COMPARED = 100
"""Samples by whose distances metrics are compared, more or less."""
SAME = 1e-3
"""Difference of distances, in units of the largest, up to which metrics are the same."""


@dataclass
class Expert:
    """A KCal with its one best bandwidth, read at several."""

    metric: str
    estimate: KCal
    scales: tuple[float, ...]
    typical: list[float] = field(default_factory=list)  # log mass that reaches a typical sample, at each scale

    @property
    def names(self) -> list[str]:
        """What the estimate is called at each scale."""
        return [f"{self.metric} × {name_of_scale(scale)}" for scale in self.scales]

    @property
    def middle(self) -> int:
        """The place of the best single bandwidth."""
        return self.scales.index(1.0)

    def class_sums(self, rows: torch.Tensor) -> ClassSums:
        """Return class sums of other samples, (n_scales, n_classes, n), and their offsets."""
        queries = project(self.estimate.projection_, self.estimate._here(rows))
        found = class_sums(queries, self.estimate._support, self._bandwidths)
        return ClassSums(found.sums.cpu(), found.offsets.cpu())

    def leave_out_log_sums(self) -> torch.Tensor:
        """Return log class sums of every calibration sample given the others, (n_scales, n, n_classes)."""
        support = self.estimate._support
        rule = leave_out_rule(support, self.estimate._keys)
        found = class_sums(support.points, support, self._bandwidths, leave_out=rule).log()
        return torch.stack([support.in_original_order(each) for each in found])

    def keep_typical(self, sums: torch.Tensor) -> None:
        """Note how much mass reaches a typical sample."""
        evidence = torch.logsumexp(sums, dim=2)  # (n_scales, n)
        self.typical = [float(each[torch.isfinite(each)].median()) for each in evidence]

    def log_masses(self, found: ClassSums, floor: torch.Tensor) -> torch.Tensor:
        """Return log(S_k + ε·π_k), (n_scales, n_classes, n), over the typical mass, of which ε is a share.

        They are log posteriors but for what all classes share, which a pool leaves out anyway. ``floor`` is ε·π,
        (n_classes,). The sums are overwritten.
        """
        above = found.offsets - found.offsets.new_tensor(self.typical)[:, None]  # (n_scales, n)
        high = above.clamp_min(0.0)  # so that nothing overflows
        masses = found.sums.mul_(torch.exp(above - high)[:, None])
        masses.addcmul_(floor[:, None], torch.exp(-high)[:, None])
        return masses.clamp_min_(torch.finfo(masses.dtype).tiny).log_()

    def log_masses_of_logarithms(
        self, sums: torch.Tensor, log_frequencies: torch.Tensor, background: float
    ) -> list[torch.Tensor]:
        """Return the same of log sums (n_scales, n, n_classes), each (n, n_classes), slower and to the last digit."""
        floor = log_frequencies + float(np.log(background))
        return [torch.logaddexp(each - typical, floor) for each, typical in zip(sums, self.typical, strict=True)]

    @property
    def _bandwidths(self) -> list[float]:
        return [self.estimate.bandwidth_ * scale for scale in self.scales]


def told_of_absent(masses: torch.Tensor, absent: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    """Return log masses, (…, n, n_classes), in which classes without calibration samples have their share of ``far``.

    An estimate knows nothing of them; ``far``, (n, n_classes) or (n_classes,), is what the network or frequencies say.
    """
    if not bool(absent.any()):
        return masses
    seen, elsewhere = (
        torch.logsumexp(each.masked_fill(absent, -torch.inf), dim=-1, keepdim=True) for each in (masses, far)
    )
    return torch.where(absent, seen + far - elsewhere, masses)


def check_learned_metric(projection: Any) -> None:
    """Refuse what is no metric to be learned."""
    if projection is None or isinstance(projection, TrainedProjection):
        return
    if not isinstance(projection, str) or projection not in ARCHITECTURES:
        known = ", ".join(f'"{name}"' for name in ARCHITECTURES)
        raise InvalidInputError(f"projection must be {known}, a TrainedProjection or None; got {projection!r}.")


def fit_experts(
    blend: KCalBlend,
    rows: torch.Tensor,
    labels: NDArray[Any],
    scales: tuple[float, ...],
    described: Mapping[str, Any],
    training: Mapping[str, Any],
) -> list[Expert]:
    """Return the estimates: directions (or the embeddings as they are, if they are short), and the learned metric."""
    check_learned_metric(blend.projection)
    plain = "unit" if rows.shape[1] >= FEATURES_OF_A_DIRECTION else "identity"
    given = {name: values for name, values in training.items() if values is not None}
    if given and not isinstance(blend.projection, str):
        raise InvalidInputError(
            f"train_embeddings are of no use with projection={blend.projection!r}: nothing is to be learned."
        )
    known = blend.projection.classes if isinstance(blend.projection, TrainedProjection) else training["train_labels"]
    extra = dict(described)
    if extra["classes"] is None and known is not None:
        names = known.cpu().numpy() if isinstance(known, torch.Tensor) else np.asarray(known)
        extra["classes"] = np.union1d(labels, names)
    shared: dict[str, Any] = {"seed": blend.seed, "progress": blend.progress}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingClassWarning)  # of which the network speaks
        warnings.simplefilter("ignore", BandwidthWarning)  # a pool hears several
        experts = [Expert(plain, KCal(projection=plain, **shared).fit(rows, labels, **extra), scales)]
        if isinstance(blend.projection, TrainedProjection) or given:
            learned = KCal(projection=blend.projection, dimension=blend.dimension, recipe=blend.recipe, **shared)
            learned.fit(rows, labels, **extra, **given)
            if not is_same_metric(experts[0].estimate, learned):
                experts.append(Expert("learned", learned, scales))
    return experts


def is_same_metric(one: KCal, other: KCal) -> bool:
    """Say whether two estimates find samples as far apart, but for a factor: the start of a training may do so."""
    some = slice(0, None, max(len(one._points) // ROWS_COMPARED, 1))
    first, second = (torch.pdist(each._points[some].double().cpu()) for each in (one, other))
    factor = float(first @ second) / max(float(first @ first), torch.finfo(torch.float64).tiny)
    return bool((second - factor * first).abs().max() <= SAME * second.max()) if len(first) else True
