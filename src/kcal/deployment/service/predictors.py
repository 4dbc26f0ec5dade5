"""What a served model computes: inputs of requests to probabilities, evidence and explanations."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, predict_on
from kcal.deployment.export import taken_outputs
from kcal.deployment.service.errors import RequestError, bad_request
from kcal.deployment.service.explanations import explanation_entries
from kcal.deployment.service.tensors import BYTES, NUMPY_TYPES, Tensor
from kcal.embeddings import ClassifierOutputs

if TYPE_CHECKING:
    from kcal.deployment.service.onnx_files import NetworkFile

Arrays = dict[str, NDArray[Any]]
LARGEST = 1e18
"""Larger embeddings are refused, as calibrators do."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of an input or an output; −1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the model's metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, eq=False)
class Scores:
    """What is computed for the rows of a batch.

    Attributes
    ----------
    rows : mapping
        Embeddings and logits that the calibrator was given, as far as it takes them: they are what is recorded,
        explained and learnt. Empty if they are not known.
    """

    probs: NDArray[np.float32] = field(repr=False)  # (n, n_classes)
    evidence: NDArray[np.float32] | None = None  # (n,)
    rows: Arrays = field(default_factory=dict, repr=False)

    def __getitem__(self, part: slice) -> Scores:
        """Return the scores of some rows."""
        evidence = None if self.evidence is None else self.evidence[part]
        return Scores(self.probs[part], evidence, {name: rows[part] for name, rows in self.rows.items()})


def check_finite(outputs: Mapping[str, NDArray[Any] | None]) -> None:
    """Raise, with status 422, if the model gave a number that is not finite, or an embedding whose square overflows."""
    for name, values in outputs.items():
        limit, bound = (LARGEST, f" below {LARGEST:g}") if name == "embeddings" else (np.inf, "")
        if values is not None and not float(np.abs(values).max()) < limit:
            raise RequestError(422, f"for this input the model gives {name} that are not finite numbers{bound}")


class ServedPredictor(ABC):
    """Rows in, probabilities and evidence out; thread-safe, and the same for a row whatever rows come with it.

    Attributes
    ----------
    reference : Any
        What the record of predictions compares them with: the calibrator, or what an exported file says of its own.
    calibrator : Calibrator or None
        What explains predictions and learns from feedback.
    feedback_obstacle : str
        Why the model cannot take feedback, and what to do; empty if it can.
    network_checksum : str
        Of the network that computes embeddings and logits here; empty if clients send them.
    """

    method: str
    classes: NDArray[Any]
    inputs: tuple[TensorSpec, ...]
    has_evidence: bool
    has_explanations: bool = False
    reference: Any
    calibrator: Calibrator | None = None
    feedback_obstacle: str = ""
    network_checksum: str = ""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Every output that can be asked for."""
        evidence = (TensorSpec("evidence", "FP32", (-1,)),) if self.has_evidence else ()
        explanation = (TensorSpec("explanation", BYTES, (-1,)),) if self.has_explanations else ()
        return (
            TensorSpec("probabilities", "FP32", (-1, len(self.classes))),
            TensorSpec("labels", BYTES, (-1,)),
            *evidence,
            TensorSpec("ids", BYTES, (-1,)),
            *explanation,
        )

    @property
    def default_outputs(self) -> tuple[str, ...]:
        """Outputs of a request that names none."""
        return ("probabilities", "labels", "evidence") if self.has_evidence else ("probabilities", "labels")

    def check(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Return the arrays of a request in the model's precision; raise if one is missing, unknown or invalid."""
        names = [spec.name for spec in self.inputs]
        for name in tensors:
            if name not in names:
                raise bad_request(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
        arrays = {}
        for spec in self.inputs:
            if spec.name not in tensors:
                raise bad_request(f"input {spec.name!r} is missing; the inputs are {', '.join(names)}")
            arrays[spec.name] = _checked(tensors[spec.name], spec)
        rows = {len(array) for array in arrays.values()}
        if len(rows) > 1 or 0 in rows:
            counts = ", ".join(f"{len(array)} of {name}" for name, array in arrays.items())
            raise bad_request(f"all inputs must have the same number of rows, at least 1; got {counts}")
        return arrays

    @abstractmethod
    def predict(self, arrays: Arrays, *, evidence: bool) -> Scores:
        """Return probabilities and, if it is asked for, evidence of checked arrays."""

    @abstractmethod
    def summary(self) -> dict[str, str]:
        """Return facts for the page, label to text."""

    def rows(self, arrays: Arrays) -> Arrays:
        """Return the embeddings and logits of checked arrays, as far as the calibrator takes them."""
        raise bad_request(f"this model takes no samples: {self.feedback_obstacle}")

    def explain(self, rows: Arrays, k: int) -> list[str]:
        """Return explanations of ``Scores.rows`` as JSON text, with ``k`` samples each; raise if the model has none."""
        raise bad_request("this model does not explain its predictions")

    def with_calibrator(self, calibrator: Calibrator) -> ServedPredictor:
        """Return the same model with a calibrator that has learnt since."""
        raise bad_request(f"this model does not learn: {self.feedback_obstacle}")


def _checked(tensor: Tensor, spec: TensorSpec) -> NDArray[Any]:
    """Return the array of an input; numbers become floating point if the model takes it."""
    name, array, wanted = spec.name, tensor.array, NUMPY_TYPES[spec.datatype]
    expected = f"input {name!r} must have the shape {list(spec.shape)}; got {list(array.shape)}"
    sizes = zip(array.shape, spec.shape, strict=False)
    if array.ndim != len(spec.shape) or any(size != fixed for size, fixed in sizes if fixed >= 0):
        raise bad_request(expected)
    if array.dtype.kind not in ("fiu" if wanted.kind == "f" else wanted.kind):
        raise bad_request(f"input {name!r} must be {spec.datatype}; got {tensor.datatype}")
    if wanted.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(wanted, copy=False)
        if not np.isfinite(array).all():
            raise bad_request(f"input {name!r} must be finite numbers of single precision")
    elif array.dtype != wanted:
        raise bad_request(f"input {name!r} must be {spec.datatype}; got {tensor.datatype}")
    return array


class CalibratorPredictor(ServedPredictor):
    """The predictions of a fitted calibrator, from embeddings, logits or both, or from the inputs of its network."""

    calibrator: Calibrator

    def __init__(self, calibrator: Calibrator, network: NetworkFile | None = None) -> None:
        self.calibrator = self.reference = calibrator
        self.network = network
        self.method, self.classes = calibrator.method, calibrator.classes_
        self.has_evidence, self.has_explanations = calibrator.has_evidence, calibrator.has_explanations
        if network is not None:
            self.inputs, self.network_checksum = network.inputs, network.checksum
            return
        width, n_classes = calibrator.n_features_in_, len(self.classes)
        widths = {"embeddings": width, "logits": width if calibrator.inputs == "logits" else n_classes}
        self.inputs = tuple(TensorSpec(name, "FP32", (-1, widths[name])) for name in taken_outputs(calibrator))

    def with_calibrator(self, calibrator: Calibrator) -> CalibratorPredictor:
        """Return the predictions of another calibrator, after the same network."""
        return CalibratorPredictor(calibrator, self.network)

    def check(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Return the arrays of a request; embeddings must not be so large that their squares overflow."""
        arrays = super().check(tensors)
        if self.network is None and "embeddings" in arrays and float(np.abs(arrays["embeddings"]).max()) > LARGEST:
            raise bad_request(f"input 'embeddings' must have no number above {LARGEST:g}")
        return arrays

    def rows(self, arrays: Arrays) -> Arrays:
        """Return the embeddings and logits of checked arrays, which the network computes if there is one."""
        return arrays if self.network is None else self.network.run(taken_outputs(self.calibrator), arrays)

    def predict(self, arrays: Arrays, *, evidence: bool) -> Scores:
        """Return probabilities and, if asked for, evidence."""
        rows = self.rows(arrays)
        outputs = ClassifierOutputs(**rows)
        probs = np.asarray(predict_on(self.calibrator, outputs), dtype=np.float32)
        if not evidence:
            return Scores(probs, None, rows)
        calibrator: Any = self.calibrator
        found = np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs)), dtype=np.float32)
        return Scores(probs, found, rows)

    def explain(self, rows: Arrays, k: int) -> list[str]:
        """Return the explanation of each row as JSON text."""
        calibrator: Any = self.calibrator
        logits = {"logits": rows["logits"]} if len(rows) == 2 else {}
        explanation = calibrator.explain(ClassifierOutputs(**rows).matrix(calibrator.inputs), k, **logits)
        return [json.dumps(entry, allow_nan=False) for entry in explanation_entries(explanation)]

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit, and which network computes its inputs."""
        return self.calibrator.summary() | ({} if self.network is None else self.network.summary())
