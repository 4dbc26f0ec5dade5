"""The prediction of a blend as a torch module."""

from __future__ import annotations

import torch

from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.class_scores import network_log_probs
from kcal.calibrators.kcal.module import EstimateModule, as_embeddings
from kcal.calibrators.modules import ModelTensors, PredictionModule, required
from kcal.kernels import ClassSums
from kcal.validation import unchecked_logits


class BlendModule(PredictionModule):
    """The prediction of a blend: of embeddings and, if it was fitted with them, of logits.

    Logits are ignored where a head computes them.
    """

    def __init__(self, model: BlendModel) -> None:
        super().__init__()
        self.estimate, self.formula = EstimateModule(model.estimate), ModelTensors(model.formula)
        self.to(self.estimate.get_buffer("centre").device)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of embeddings (n, h) and logits (n, n_classes)."""
        rows = as_embeddings(embeddings)
        return self._probs(self.estimate(rows), rows, logits)

    def evidence(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,)."""
        rows = as_embeddings(embeddings)
        return self.estimate.evidence(rows, self.estimate(rows))

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return probabilities, (n, n_classes), and evidence, (n,), from the same class sums."""
        rows = as_embeddings(embeddings)
        sums = self.estimate(rows)
        return self._probs(sums, rows, logits), self.estimate.evidence(rows, sums)

    @property
    def evidence_step(self) -> float:
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return self.estimate.evidence_step

    def _probs(self, sums: ClassSums, rows: torch.Tensor, logits: torch.Tensor | None) -> torch.Tensor:
        formula, log_probs = self.formula.model(), None
        if formula.has_logits:
            logits = required(logits, "logits") if formula.head is None else formula.head.logits(rows)
            log_probs = network_log_probs(unchecked_logits(logits, formula.representation), formula.representation)
        points = self.estimate.projection(rows.to(self.estimate.dtype))
        return torch.exp(formula.log_probs(formula.experts(sums, points, log_probs))).to(rows.dtype)
