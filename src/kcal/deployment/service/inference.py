"""One served model: its predictor, its batches, the record of its predictions, and the answers to requests."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator
from kcal.deployment.service.batching import Batcher, in_thread_if
from kcal.deployment.service.errors import RequestError, bad_request
from kcal.deployment.service.observer import Observer
from kcal.deployment.service.predictors import Arrays, Scores, ServedPredictor, check_finite
from kcal.deployment.service.protocol import InferenceRequest
from kcal.deployment.service.record import PredictionInputs
from kcal.deployment.service.tallies import Tallies
from kcal.deployment.service.tensors import Tensor, text_tensor, to_texts
from kcal.errors import InvalidInputError, KcalError, without_warnings

logger = logging.getLogger("kcal.service")

MOST_EXPLAINED = 256
MOST_SAMPLES = 100
DEFAULT_SAMPLES = 5
LONGEST_ID = 256
LARGE = 2**18
"""Numbers of a request from which on they are checked, and written, in a thread, so that other requests go on."""


@dataclass(frozen=True)
class BatchLimits:
    """How requests are collected into batches, and how many predictions are remembered."""

    max_batch: int = 256
    max_wait: float = 0.002
    max_queue: int = 1024
    recent: int = 10_000


@dataclass(frozen=True, eq=False)
class InferenceJob:
    """The rows of one request, and which outputs are computed for them."""

    arrays: Arrays
    evidence: bool = True
    ids: list[str] | None = None
    n_samples: int | None = None  # of the explanation, if one is requested

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.arrays.values())))

    @property
    def key(self) -> Any:
        """What jobs of one batch share: whether evidence is requested, and shapes of rows that can be stacked."""
        return (self.evidence, *(array.shape[1:] for array in self.arrays.values()))


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answer to a job."""

    classes: NDArray[Any]  # (n_classes,), of the predictor that ran the batch: the model may have another one by now
    scores: Scores = field(repr=False)
    explanation: list[str] | None = None

    @property
    def probs(self) -> NDArray[np.float32]:
        """Probabilities, (n, n_classes)."""
        return self.scores.probs

    @property
    def evidence(self) -> NDArray[np.float32] | None:
        """Evidence, (n,), if it was requested."""
        return self.scores.evidence

    @property
    def labels(self) -> list[Any]:
        """The most probable classes, (n,), as types of JSON."""
        labels: list[Any] = self.classes[self.probs.argmax(axis=1)].tolist()
        return labels


class ServedModel:
    """A model in memory that answers requests; feedback may replace its predictor between two batches."""

    def __init__(
        self,
        name: str,
        version: int,
        predictor: ServedPredictor,
        limits: BatchLimits,
        inputs: PredictionInputs,
        state: Any = None,
    ) -> None:
        self.name, self.version, self.predictor = name, version, predictor
        self.loaded = predictor
        """The predictor as its file says, without what it has learnt since."""
        self.tallies = Tallies(predictor.classes)
        self.observer = make_observer(predictor, limits.recent, state)
        self.inputs = inputs
        """By which feedback finds predictions, also those of other versions."""
        self.batcher: Batcher[InferenceJob] = Batcher(
            self._run,
            after=self._observe,
            max_batch=limits.max_batch,
            max_wait=limits.max_wait,
            max_queue=limits.max_queue,
            name=f"kcal-{name}",
        )

    @property
    def key(self) -> str:
        """Name and version, by which the page names a model."""
        return f"{self.name}/{self.version}"

    def metadata(self, versions: Sequence[int]) -> dict[str, Any]:
        """Return the model's metadata as the protocol defines it."""
        ids = {"name": "ids", "datatype": "BYTES", "shape": [-1]}
        return {
            "name": self.name,
            "versions": [str(version) for version in versions],
            "platform": f"kcal_{self.predictor.method}",
            "inputs": [spec.to_json() for spec in self.predictor.inputs],
            "outputs": [spec.to_json() for spec in self.predictor.outputs],
            "parameters": {
                "classes": json.dumps(self.predictor.classes.tolist()),
                "optional_inputs": json.dumps([ids]),
            },
        }

    def job(self, tensors: Mapping[str, Tensor], outputs: Sequence[str], n_samples: Any = None) -> InferenceJob:
        """Return the job of checked tensors; ``outputs`` are the names of those requested."""
        predictor = self.predictor
        known = [spec.name for spec in predictor.outputs]
        for name in outputs:
            if name not in known:
                raise bad_request(f"the model has no output {name!r}; its outputs are {', '.join(known)}")
        rows = predictor.check({name: tensor for name, tensor in tensors.items() if name != "ids"})
        n_rows, ids = len(next(iter(rows.values()))), None
        if "ids" in tensors:
            ids = check_ids(to_texts(tensors["ids"], n_rows))
        elif "ids" in outputs:
            ids = [uuid.uuid4().hex for _ in range(n_rows)]
        samples = check_samples(n_samples, n_rows) if "explanation" in outputs else None
        return InferenceJob(rows, evidence="evidence" in outputs, ids=ids, n_samples=samples)

    async def infer(self, request: InferenceRequest) -> list[tuple[Tensor, bool]]:
        """Return the outputs of a request, each with whether it is sent as binary data."""
        wanted = list(request.outputs)
        if not wanted:
            wanted = [(name, request.is_binary) for name in self.predictor.default_outputs]
            if request.returns_ids:
                wanted.append(("ids", request.is_binary))
        arguments = (request.inputs, [name for name, _ in wanted], request.parameters.get("explanation_samples"))
        is_large = sum(tensor.array.size for tensor in request.inputs.values()) > LARGE
        with self.tallies.timed():
            job = await in_thread_if(is_large, self.job, *arguments)
            predictions = await self.batcher.submit(job, job.n_rows, job.key)
        return [(self._tensor(name, job, predictions), is_binary) for name, is_binary in wanted]

    def show(self, calibrator: Calibrator) -> None:
        """Let predictions and the page come from another calibrator of the same model."""
        self.predictor = self.predictor.with_calibrator(calibrator)
        self.observer.calibrator = calibrator

    def _tensor(self, name: str, job: InferenceJob, predictions: Predictions) -> Tensor:
        if name == "probabilities":
            return Tensor(name, "FP32", predictions.probs)
        if name == "evidence":
            assert predictions.evidence is not None
            return Tensor(name, "FP32", predictions.evidence)
        if name == "labels":
            return text_tensor(name, [str(label) for label in predictions.labels])
        return text_tensor(name, (job.ids if name == "ids" else predictions.explanation) or [])

    def _run(self, jobs: Sequence[InferenceJob]) -> list[Any]:
        """Predict the rows of all jobs at once or, if the model cannot, one job after the other."""
        predictor = self.predictor
        self.tallies.batch(len(jobs), sum(job.n_rows for job in jobs))
        try:
            with without_warnings():  # of rows that the model was fitted on, or has learnt since
                results = _predict(predictor, jobs)
        except (InvalidInputError, RequestError) as error:
            if len(jobs) == 1:
                return [error if isinstance(error, RequestError) else bad_request(str(error))]
            return [result for job in jobs for result in self._run([job])]
        for job, result in zip(jobs, results, strict=True):
            if job.ids is not None:  # before the answer: whoever has it may send the label
                self.inputs.add(job.ids, result.scores.rows, predictor.network_checksum)
        return results

    def _observe(self, jobs: Sequence[InferenceJob], results: Sequence[Any]) -> None:
        """Let tallies and monitors see what was predicted."""
        for job, result in zip(jobs, results, strict=True):
            if not isinstance(result, Predictions):
                continue
            self.tallies.predicted(result.labels, result.evidence)
            self.observer.predicted(job.ids, result.probs, evidence=result.evidence, **result.scores.rows)


def _predict(predictor: ServedPredictor, jobs: Sequence[InferenceJob]) -> list[Predictions]:
    """Return the predictions of jobs of one key."""
    rows = {
        name: np.concatenate([job.arrays[name] for job in jobs]) if len(jobs) > 1 else jobs[0].arrays[name]
        for name in jobs[0].arrays
    }
    scores = predictor.predict(rows, evidence=jobs[0].evidence)
    check_finite({"probabilities": scores.probs, "evidence": scores.evidence})
    results, start = [], 0
    for job in jobs:
        part = scores[start : start + job.n_rows]
        explanation = None if job.n_samples is None else predictor.explain(part.rows, job.n_samples)
        results.append(Predictions(predictor.classes, part, explanation))
        start += job.n_rows
    return results


def make_observer(predictor: ServedPredictor, capacity: int, state: Any) -> Observer:
    """Return the record of a model's predictions, continued from a stored state if it fits."""
    if state is not None:
        try:
            return Observer.from_dict(state, predictor.reference, capacity=capacity)
        except KcalError:
            logger.warning("the stored state of the monitor does not fit the model; it begins again")
    return Observer(predictor.reference, capacity=capacity)


def check_ids(ids: list[str]) -> list[str]:
    """Return ids of predictions; raise if one is empty, too long, not printable or repeated."""
    if len(set(ids)) < len(ids):
        raise bad_request("ids must be different from each other")
    for name in ids:
        check_id(name)
    return ids


def check_id(name: Any) -> str:
    """Return the id of a prediction; raise unless it is printable text of moderate length."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID or not name.isprintable():
        raise bad_request(f"an id must be printable text of 1 to {LONGEST_ID} characters")
    return name


def check_samples(n_samples: Any, n_rows: int) -> int:
    """Return the number of samples of an explanation; raise if it, or the number of rows, is out of range."""
    number = DEFAULT_SAMPLES if n_samples is None else n_samples
    if type(number) is not int or not 1 <= number <= MOST_SAMPLES:
        raise bad_request(f"explanation_samples must be an integer from 1 to {MOST_SAMPLES}")
    if n_rows > MOST_EXPLAINED:
        raise bad_request(f"at most {MOST_EXPLAINED} rows can be explained in one request; got {n_rows}")
    return number
