"""What is exported: modules of named tensors, and what calibrator or network themselves give for the same inputs."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators import Calibrator, PredictionModule, predict_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.validation import shown

Outputs = tuple[torch.Tensor, ...]
"""The outputs of an export, one tensor each, with the rows of its inputs."""
LOWEST = float(np.finfo(np.float32).min)
"""The logit of a class that the network masks out, in place of −∞, as :func:`kcal.extract` has it."""
SIZED_ROWS = 256
"""Rows of an example from whose outputs the size of numbers is taken, at most."""


class Predictor(nn.Module, ABC):
    """What is exported: named tensors to named tensors.

    Attributes
    ----------
    names : tuple of str
        Names of the inputs.
    output_names : tuple of str
        Names of the outputs.
    """

    names: tuple[str, ...]
    output_names: tuple[str, ...]

    @abstractmethod
    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return what the module must give: the outputs of what it was made from."""

    @abstractmethod
    def allowed_difference(self, name: str, expected: NDArray[Any], tolerance: float) -> float:
        """Return the largest difference from the expected values of an output at which an export is right."""


class CalibratedPredictor(Predictor):
    """What gives probabilities, (n, n_classes), and, if the method has it, evidence, (n,)."""

    def __init__(self, calibrator: Calibrator, head: PredictionModule) -> None:
        super().__init__()
        self.has_evidence, self.evidence_step = calibrator.has_evidence, head.evidence_step
        self.output_names = ("probabilities", "evidence") if self.has_evidence else ("probabilities",)

    def allowed_difference(self, name: str, expected: NDArray[Any], tolerance: float) -> float:
        """Return the tolerance, or for the evidence the difference that rounding can make, if that is larger.

        The evidence is a share of calibration samples. Where the density of a row is that of a calibration sample but
        for rounding, it may count or not: the evidence may differ by that.
        """
        return max(tolerance, self.evidence_step) if name == "evidence" else tolerance


class HeadPredictor(CalibratedPredictor):
    """The calibrated head alone: embeddings and logits, as far as the method takes them."""

    def __init__(self, calibrator: Calibrator) -> None:
        head = calibrator.as_module().cpu()
        super().__init__(calibrator, head)
        self.calibrator, self.head, self.names = calibrator, head, taken_outputs(calibrator)

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


@dataclass(frozen=True)
class NetworkInputs:
    """How a network takes its inputs: their names, and whether it is called by these names."""

    names: tuple[str, ...]
    by_name: bool

    @classmethod
    def of(cls, example: Any) -> tuple[Self, tuple[torch.Tensor, ...]]:
        """Return the inputs that are like those of an example, and the tensors of the example."""
        by_name = isinstance(example, Mapping)
        if by_name:
            names, parts = tuple(example), tuple(example.values())
        else:
            parts = tuple(example) if isinstance(example, tuple | list) else (example,)
            names = ("input",) if len(parts) == 1 else tuple(f"input_{place}" for place in range(len(parts)))
        return cls(names, by_name), check_example(parts, names)

    def call(self, function: Callable[..., Any], inputs: Outputs) -> Any:
        """Return the result of a function that takes what the network takes."""
        return function(**dict(zip(self.names, inputs, strict=True))) if self.by_name else function(*inputs)


class NetworkPredictor(CalibratedPredictor):
    """A network with its calibrated head: the network's own inputs."""

    classifier: Any  # a CalibratedClassifier

    def __init__(self, classifier: Any, inputs: NetworkInputs) -> None:
        super().__init__(classifier.calibrator, classifier.calibrated_head)
        self.classifier, self.inputs, self.names = classifier, inputs, inputs.names

    def forward(self, *inputs: torch.Tensor) -> Outputs:
        """Return probabilities, (n, n_classes), and evidence, (n,)."""
        run = self.classifier.with_evidence if self.has_evidence else self.classifier
        result = self.inputs.call(run, inputs)
        return result if self.has_evidence else (result,)

    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return the predictions of the calibrator itself for the network's embeddings and logits."""
        predictions: Outputs = self.inputs.call(self.classifier.without_module, inputs)
        return predictions


class OutputsPredictor(Predictor):
    """A network alone: its own inputs to embeddings, (n, h), and logits, (n, n_classes), in single precision.

    Parameters
    ----------
    classifier : CalibratedClassifier
        Of the network; outputs are those that its calibrator takes.
    inputs : NetworkInputs
        How the network takes its inputs.
    example : tuple of tensors
        Its outputs say how large numbers are, and so which differences are rounding.
    """

    def __init__(self, classifier: Any, inputs: NetworkInputs, example: Outputs) -> None:
        super().__init__()
        self.network, self.inputs, self.names = classifier.network, inputs, inputs.names
        self.output_names = taken_outputs(classifier.calibrator)
        self._run = classifier.embeddings_and_logits
        with torch.no_grad():
            outputs = self(*(part[:SIZED_ROWS] for part in example))
        self._sizes = {name: _largest(part.numpy()) for name, part in zip(self.output_names, outputs, strict=True)}

    def forward(self, *inputs: torch.Tensor) -> Outputs:
        """Return embeddings and logits, as far as they are needed."""
        embeddings, logits = self.inputs.call(self._run, inputs)
        parts = {"embeddings": embeddings.float(), "logits": logits.float().clamp(min=LOWEST)}
        return tuple(parts[name] for name in self.output_names)

    def expected(self, *inputs: torch.Tensor) -> Outputs:
        """Return what the network gives: it is exported as it is."""
        outputs: Outputs = self(*inputs)
        return outputs

    def allowed_difference(self, name: str, expected: NDArray[Any], tolerance: float) -> float:
        """Return the tolerance times the largest number of the output, for the example or for these inputs."""
        return tolerance * max(self._sizes[name], _largest(expected))


def _largest(values: NDArray[Any]) -> float:
    """Return the largest number without its sign; logits of classes that are masked out do not count."""
    return float(np.abs(values, where=values > LOWEST, out=np.zeros_like(values)).max())


def taken_outputs(calibrator: Calibrator) -> tuple[str, ...]:
    """Return which outputs of a network the predictions of a calibrator take: "embeddings", "logits" or both."""
    takes = {"embeddings": calibrator.inputs != "logits", "logits": calibrator.needs_logits_}
    return tuple(name for name, is_taken in takes.items() if is_taken)


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
