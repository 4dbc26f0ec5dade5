"""What is exported: modules of named tensors, and what the calibrator itself predicts for the same inputs."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn

from kcal.calibrators import Calibrator, PredictionModule, predict_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.validation import shown

Outputs = tuple[torch.Tensor, ...]
"""Probabilities, (n, n_classes), and evidence, (n,), if the method has it."""


class Predictor(nn.Module, ABC):
    """What is exported: named tensors to probabilities and, if the method has it, evidence.

    Attributes
    ----------
    names : tuple of str
        Names of the inputs.
    has_evidence : bool
        Whether there is a second output.
    evidence_step : float
        Difference of the evidence that rounding can make.
    """

    names: tuple[str, ...]
    has_evidence: bool
    evidence_step: float

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return ["probabilities", "evidence"] if self.has_evidence else ["probabilities"]

    @abstractmethod
    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return the predictions of the calibrator itself, not of its module."""


class HeadPredictor(Predictor):
    """The calibrated head alone: embeddings and logits, as far as the method takes them."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator, self.head = calibrator, calibrator.as_module().cpu()
        self.has_evidence, self.evidence_step = calibrator.has_evidence, self.head.evidence_step
        takes = {"embeddings": calibrator.inputs != "logits", "logits": calibrator.needs_logits_}
        self.names = tuple(name for name, taken in takes.items() if taken)

    def forward(self, *inputs: torch.Tensor) -> Outputs:
        """Return probabilities, (n, n_classes), and evidence, (n,)."""
        rows = self._embeddings_and_logits(inputs)
        return self.head.with_evidence(*rows) if self.has_evidence else (self.head(*rows),)

    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return the predictions of the calibrator itself."""
        return calibrator_predictions(self.calibrator, *self._embeddings_and_logits(inputs))

    def _embeddings_and_logits(self, inputs: Outputs) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        parts = dict(zip(self.names, inputs, strict=True))
        return parts.get("embeddings"), parts.get("logits")


class NetworkPredictor(Predictor):
    """A network with its calibrated head: the network's own inputs."""

    classifier: Any  # a CalibratedClassifier

    def __init__(
        self, classifier: nn.Module, names: tuple[str, ...], *, by_name: bool, expected: Callable[..., Outputs]
    ) -> None:
        super().__init__()
        self.classifier, self.names, self.by_name = classifier, names, by_name
        head: PredictionModule = self.classifier.calibrated_head
        self.has_evidence, self.evidence_step = self.classifier.calibrator.has_evidence, head.evidence_step
        self._expected = expected

    @classmethod
    def of(
        cls, classifier: nn.Module, example: Any, *, expected: Callable[..., Outputs]
    ) -> tuple[Self, tuple[torch.Tensor, ...]]:
        """Return the predictor that takes inputs like the example, and the tensors of the example.

        ``expected`` are the predictions of the calibrator itself for inputs of the network.
        """
        by_name = isinstance(example, Mapping)
        if by_name:
            names, parts = tuple(example), tuple(example.values())
        else:
            parts = tuple(example) if isinstance(example, tuple | list) else (example,)
            names = ("input",) if len(parts) == 1 else tuple(f"input_{place}" for place in range(len(parts)))
        return cls(classifier, names, by_name=by_name, expected=expected), check_example(parts, names)

    def forward(self, *inputs: torch.Tensor) -> Outputs:
        """Return probabilities, (n, n_classes), and evidence, (n,)."""
        run = self.classifier.with_evidence if self.has_evidence else self.classifier
        result = self._call(run, inputs)
        return result if self.has_evidence else (result,)

    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return the predictions of the calibrator itself for the network's embeddings and logits."""
        predictions: Outputs = self._call(self._expected, inputs)
        return predictions

    def _call(self, function: Callable[..., Any], inputs: Outputs) -> Any:
        return function(**dict(zip(self.names, inputs, strict=True))) if self.by_name else function(*inputs)


def calibrator_predictions(
    calibrator: Calibrator, embeddings: torch.Tensor | None, logits: torch.Tensor | None
) -> Outputs:
    """Return the probabilities and, if the method has it, the evidence of the calibrator itself, without warnings."""
    outputs = ClassifierOutputs(embeddings, logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probs = predict_on(calibrator, outputs)
        if not calibrator.has_evidence:
            return (probs,)
        return probs, calibrator.evidence(outputs.matrix(calibrator.inputs))


def check_example(example: Any, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return the tensors of an example, on the CPU; raise if one is missing or no tensor with rows."""
    parts = tuple(example) if isinstance(example, tuple | list) else (example,)
    valid = len(parts) == len(names) and all(isinstance(part, torch.Tensor) and part.ndim for part in parts)
    if not valid or len({len(part) for part in parts}) != 1 or len(parts[0]) == 0:
        expected = f"must be {len(names)} tensor(s) with the same number of rows: {', '.join(names)}"
        raise InvalidInputError("example", expected, got=shown(example))
    return tuple(part.detach().cpu() for part in parts)
