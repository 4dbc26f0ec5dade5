"""The prediction of KCal as a torch module."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from kcal.calibrators.kcal.model import KCalModel, KernelEstimate
from kcal.calibrators.modules import ModelTensors, PredictionModule, required
from kcal.calibrators.prior import apply_prior, smooth
from kcal.kernels import ClassSums, PreparedSupport, SupportTensors, get_kernel
from kcal.validation import computing_dtype


class EstimateModule(nn.Module):
    """A kernel density estimate: class sums and evidence of embeddings."""

    def __init__(self, estimate: KernelEstimate) -> None:
        super().__init__()
        self.projection = deepcopy(estimate.projection).requires_grad_(False).eval()
        self.prepared = PreparedSupport(estimate.support, estimate.bandwidths, get_kernel(estimate.kernel))
        for name, tensor in self.prepared.scaled.tensors._asdict().items():
            self.register_buffer(name, tensor.clone())
        self.reference = ModelTensors(estimate.reference)
        self.dtype, self.middle = estimate.support.points.dtype, estimate.middle

    def forward(self, embeddings: torch.Tensor) -> ClassSums:
        """Return class sums, (n_bandwidths, n_classes, n)."""
        tensors = SupportTensors(*(self.get_buffer(name) for name in SupportTensors._fields))
        return self.prepared.dense_sums(self.projection(embeddings.to(self.dtype)), tensors=tensors)

    def evidence(self, embeddings: torch.Tensor, sums: ClassSums) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each embedding, (n,), by its class sums."""
        log_volumes = self.get_buffer("log_volumes").to(sums.sums)
        log_densities = sums.log_densities(log_volumes[:, None])[self.middle]
        shares: torch.Tensor = self.reference.model().shares(log_densities, embeddings)
        return shares.to(embeddings.dtype)

    @property
    def evidence_step(self) -> float:
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return 2.0 / max(len(self.reference.get_buffer("log_densities")), 1)


class KCalModule(PredictionModule):
    """The prediction of KCal; logits are ignored."""

    frequencies: torch.Tensor
    prior: torch.Tensor | None

    def __init__(self, model: KCalModel) -> None:
        super().__init__()
        self.estimate, self.smoothing = EstimateModule(model), model.even_share
        self.register_buffer("frequencies", model.frequencies.clone())
        self.register_buffer("prior", None if model.prior is None else model.prior.clone())
        self.to(self.estimate.get_buffer("centre").device)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of embeddings (n, h)."""
        rows = self.embeddings_of(embeddings, logits)
        return self._probs(self.estimate(rows)).to(rows.dtype)

    def evidence(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,)."""
        rows = self.embeddings_of(embeddings, logits)
        return self.estimate.evidence(rows, self.estimate(rows))

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return probabilities, (n, n_classes), and evidence, (n,), from the same class sums."""
        rows = self.embeddings_of(embeddings, logits)
        sums = self.estimate(rows)
        return self._probs(sums).to(rows.dtype), self.estimate.evidence(rows, sums)

    @property
    def evidence_step(self) -> float:
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return self.estimate.evidence_step

    def embeddings_of(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.Tensor:
        """Return what the projection works on, (n, h)."""
        return as_embeddings(embeddings)

    def _probs(self, sums: ClassSums) -> torch.Tensor:
        return smooth(apply_prior(sums.posteriors()[0], self.prior, self.frequencies), self.smoothing)


def as_embeddings(embeddings: torch.Tensor | None) -> torch.Tensor:
    """Return embeddings in the precision in which they are computed; raise if there are none."""
    rows = required(embeddings, "embeddings")
    return rows.to(computing_dtype(rows.dtype))
