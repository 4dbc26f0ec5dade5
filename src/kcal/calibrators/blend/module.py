"""The prediction of a blend as a torch module."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import nn

from kcal.calibrators.blend.model import BlendFormula, BlendModel
from kcal.calibrators.class_scores import network_log_probs
from kcal.calibrators.kcal.module import EstimateModule, as_embeddings
from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.modules import ModelTensors, PredictionModule, required
from kcal.kernels import ClassSums
from kcal.validation import unchecked_logits

ModelT = TypeVar("ModelT", bound=StoredModel)


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedFormula(BlendFormula):
    """The formula of a fitted blend, without its experts."""

    medians: tuple[torch.Tensor, ...] = ()
    middle: int = 0
    lacks_classes: bool = False
    frequency_factors: torch.Tensor = tensor("classes", 1, optional=True)

    @classmethod
    def of(cls, model: BlendModel) -> FixedFormula:
        """Return the formula of a model, with its tensors in the precision of the kernel sums."""
        formula = cls(**{entry.name: getattr(model, entry.name) for entry in fields(cls)})
        dtype = model.experts[0].support.points.dtype
        return replace(
            in_precision(formula, dtype),
            medians=tuple([median.to(dtype) for median in model.medians]),
            pool=in_precision(model.pool, dtype),
            network=tuple([in_precision(part, dtype) for part in model.network]),
            prior=model.prior,
        )


def in_precision(model: ModelT, dtype: torch.dtype) -> ModelT:
    """Return a model with those of its fields that are tensors in another precision."""
    values = {entry.name: getattr(model, entry.name) for entry in fields(model)}
    return replace(model, **{name: value.to(dtype) for name, value in values.items() if torch.is_tensor(value)})


class BlendModule(PredictionModule):
    """The prediction of a blend: of embeddings and, if it was fitted with them, of logits.

    Logits are ignored where a head computes them.
    """

    def __init__(self, model: BlendModel) -> None:
        super().__init__()
        experts = [EstimateModule(expert) for expert in model.experts]
        self.experts = nn.ModuleList(experts)
        self.formula = ModelTensors(FixedFormula.of(model))
        self.representation, self.has_network = model.representation, bool(model.network)
        self.to(experts[0].sums.points.device)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of embeddings (n, h) and logits (n, n_classes)."""
        rows = as_embeddings(embeddings)
        return self._probs(self._sums(rows), rows, logits)

    def evidence(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,), in the first metric."""
        rows = as_embeddings(embeddings)
        return self._first.evidence(rows, self._first(rows))

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return probabilities, (n, n_classes), and evidence, (n,), from the same class sums."""
        rows = as_embeddings(embeddings)
        sums = self._sums(rows)
        evidence = self._first.evidence(rows, sums[0])  # first: the formula scales the sums in place
        return self._probs(sums, rows, logits), evidence

    @property
    def evidence_step(self) -> float:
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return self._first.evidence_step

    def _sums(self, rows: torch.Tensor) -> tuple[ClassSums, ...]:
        return tuple([expert(rows) for expert in self.experts])

    def _probs(self, sums: tuple[ClassSums, ...], rows: torch.Tensor, logits: torch.Tensor | None) -> torch.Tensor:
        formula, log_probs = self.formula.model(), None
        if self.has_network:
            logits = required(logits, "logits") if formula.head is None else formula.head.logits(rows)
            scores = unchecked_logits(logits, self.representation)
            log_probs = network_log_probs(scores, self.representation)
        return torch.exp(formula.log_probs(formula.inputs_of(sums, log_probs))).to(rows.dtype)

    @property
    def _first(self) -> EstimateModule:
        first = self.experts[0]
        assert isinstance(first, EstimateModule)
        return first
