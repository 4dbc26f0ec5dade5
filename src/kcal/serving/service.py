"""The service behind its protocols: models that are found, loaded and replaced, and what each answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram

from kcal.errors import FileFormatError, InvalidInputError, KcalError, without_warnings
from kcal.serving.batching import Batcher
from kcal.serving.learning import Learner
from kcal.serving.predictor import Arrays, Predictor, Scores
from kcal.serving.protocol import bad_request, busy
from kcal.serving.record import Record, Summary
from kcal.serving.tokens import Token, find_token, read_tokens

logger = logging.getLogger("kcal.serving")

SUFFIXES = (".kcal", ".safetensors")
NETWORK_SUFFIX = ".network.onnx"
"""The network of NAME.kcal is NAME.network.onnx beside it."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_SCOPE = ("predict", "feedback", "metrics")
"""Scopes of what every token allows."""
MAX_EXPLAINED = 256
"""Rows of a request that can be explained."""


@dataclass(frozen=True)
class Settings:
    """How a model or a folder of models is served.

    Parameters
    ----------
    path : Path
        The file of a calibrator, or a folder of them.
    host, port : str, int
        Where the service listens; port 0 takes any that is free.
    grpc_port : int, optional
        Port of gRPC; without it there is none.
    network : Path, optional
        The network that runs before a single calibrator, by default NAME.network.onnx beside it if it is there.
    store : Path, optional
        Calibration store of the feedback: a file or, for a folder of models, a folder.
    store_is_complete : bool
        Whether the store holds the whole calibration set: samples that it does not have are forgotten.
    tokens : Path, optional
        Token file; required unless the host is this machine alone.
    max_batch, max_wait, max_queue : int, float, int
        Rows that are predicted together, seconds that a request waits for others, and requests that may wait.
    max_body : int
        Bytes of a request; a quarter of it for JSON, which takes many times its size in memory.
    recent : int
        Predictions that are remembered.
    reload_seconds : float
        How often files are checked.
    """

    path: Path
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    network: Path | None = None
    store: Path | None = None
    store_is_complete: bool = False
    tokens: Path | None = None
    max_batch: int = 256
    max_wait: float = 0.002
    max_queue: int = 1024
    max_body: int = 64 * 2**20
    recent: int = 10_000
    reload_seconds: float = 1.0

    @property
    def max_json(self) -> int:
        """Bytes of JSON in a request."""
        return max(self.max_body // 4, 1)

    def check(self) -> None:
        """Raise if the settings do not go together, before anything is loaded."""
        path, store = self.path, self.store
        if self.host not in LOCAL_HOSTS and self.tokens is None:
            remedy = "Make a token with kcal token create, and pass --tokens FILE."
            raise InvalidInputError("--host", "needs a token file unless it is 127.0.0.1", got=self.host, remedy=remedy)
        if not path.exists():
            raise InvalidInputError("MODEL", "must be a file or a folder", got=str(path))
        if path.is_file() and not _is_model(path):
            remedy = "A network is passed by --network, beside its calibrator."
            expected = f"must end in {' or '.join(SUFFIXES)}, after a name of letters, digits, '_', '-' and '.'"
            raise InvalidInputError("MODEL", expected, got=path.name, remedy=remedy)
        if self.network is not None and (path.is_dir() or not self.network.is_file()):
            remedy = f"In a folder, put NAME{NETWORK_SUFFIX} beside NAME.kcal."
            expected = "must be a file of CalibratedClassifier.network_to_onnx, beside one calibrator as MODEL"
            raise InvalidInputError("--network", expected, got=str(self.network), remedy=remedy)
        if self.store_is_complete and store is None:
            raise InvalidInputError("--complete-store", "needs --store", got="none")
        if store is not None and (path.is_dir() != store.is_dir() or not store.parent.is_dir()):
            kind = "an existing folder" if path.is_dir() else "a file in an existing folder"
            raise InvalidInputError("--store", f"must be {kind}, as MODEL is", got=str(store))


@dataclass(frozen=True, eq=False)
class Job:
    """The checked rows of one request, and what is computed for them by which predictor."""

    predictor: Predictor
    arrays: Arrays
    ids: list[str] | None
    evidence: bool
    n_samples: int | None  # of the explanation, if one is requested

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.arrays.values())))

    @property
    def key(self) -> Any:
        """What the jobs of one batch share."""
        return (id(self.predictor), self.evidence, *(array.shape[1:] for array in self.arrays.values()))


@dataclass(frozen=True, eq=False)
class Answer:
    """The predictions of a job."""

    job: Job
    scores: Scores
    explanations: list[str] | None

    @property
    def labels(self) -> list[Any]:
        """The most probable classes, (n,), as types of JSON."""
        labels: list[Any] = self.job.predictor.classes[self.scores.probs.argmax(axis=1)].tolist()
        return labels

    def output(self, name: str) -> NDArray[Any]:
        """Return an output by its name: numbers, or objects that are text."""
        if name == "probabilities":
            return self.scores.probs
        if name == "evidence":
            assert self.scores.evidence is not None
            return self.scores.evidence
        texts = {"labels": map(str, self.labels), "ids": self.job.ids, "explanation": self.explanations}[name]
        return np.array(list(texts or ()), dtype=object)


class Metrics:
    """Counters and histograms of Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        seconds = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
        shares = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        of_model: dict[str, Any] = {"labelnames": ["model"], "registry": registry}
        self.requests = Counter("kcal_requests", "Requests", ["endpoint", "status"], registry=registry)
        self.seconds = Histogram(
            "kcal_request_seconds", "Time to answer", ["endpoint"], buckets=seconds, registry=registry
        )
        self.predictions = Counter(
            "kcal_predictions", "Rows by most probable class", ["model", "class"], registry=registry
        )
        self.batch_rows = Histogram("kcal_batch_rows", "Rows of a batch", buckets=sizes, **of_model)
        self.batch_requests = Histogram("kcal_batch_requests", "Requests of a batch", buckets=sizes, **of_model)
        self.evidence = Histogram("kcal_evidence", "Evidence of rows, on request", buckets=shares, **of_model)

    def predicted(self, name: str, answers: Sequence[Answer]) -> None:
        """Count a batch."""
        self.batch_requests.labels(name).observe(len(answers))
        self.batch_rows.labels(name).observe(sum(answer.job.n_rows for answer in answers))
        for answer in answers:
            codes, counts = np.unique(answer.scores.probs.argmax(axis=1), return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                self.predictions.labels(name, str(answer.job.predictor.classes[code])).inc(count)
            if answer.scores.evidence is not None:
                histogram = self.evidence.labels(name)
                for value in answer.scores.evidence.tolist():
                    histogram.observe(value)


class ServedModel:
    """A model by its name: its predictor, which a new file or feedback replaces, its batches, record and learner."""

    def __init__(self, name: str, predictor: Predictor, settings: Settings, metrics: Metrics) -> None:
        self.name, self.predictor, self._metrics = name, predictor, metrics
        self.batcher = Batcher(self._run, settings.max_batch, settings.max_wait, settings.max_queue)
        self.learner: Learner | None = None
        folder = settings.store
        if folder is None:
            self.record = Record(settings.recent)
            return
        path = folder / f"{name}.db" if folder.is_dir() else folder
        state = f"{name}.monitor.json" if folder.is_dir() else f"{path.name}.monitor.json"
        self.record = Record(settings.recent, path.with_name(state))
        self.record.restore(predictor.classes)
        self.learner = Learner(path, settings.store_is_complete, self.record, self._use)
        self.learner.start(predictor)

    def replace(self, predictor: Predictor) -> None:
        """Let another file answer; requests that wait are answered by the one that they were checked with."""
        if self.learner is None:
            self._use(predictor)
        else:
            self.learner.start(predictor)

    def _use(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def summary(self) -> Summary:
        """Return what the record says now."""
        return self.record.summary(self.predictor)

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata as the protocol defines it."""
        predictor, optional = self.predictor, [{"name": "ids", "datatype": "BYTES", "shape": [-1]}]
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": f"kcal_{predictor.calibrator.method}",
            "inputs": [asdict(spec) for spec in predictor.inputs],
            "outputs": [asdict(spec) for spec in predictor.outputs],
            "parameters": {"classes": json.dumps(predictor.classes.tolist()), "optional_inputs": json.dumps(optional)},
        }

    async def predict(
        self, arrays: Arrays, outputs: Sequence[str], *, ids: list[str] | None = None, n_samples: int = 5
    ) -> Answer:
        """Return the predictions of a request; ``outputs`` are the names of those that it asks for."""
        predictor = self.predictor
        known = [spec.name for spec in predictor.outputs]
        if unknown := [name for name in outputs if name not in known]:
            raise bad_request(f"the model has no output {unknown[0]!r}; its outputs are {', '.join(known)}")
        checked = predictor.check(arrays)
        n_rows = len(next(iter(checked.values())))
        if ids is not None and not len(ids) == len(set(ids)) == n_rows:
            raise bad_request(f"ids must be {n_rows} different ones, one for each row")
        if ids is None and "ids" in outputs:
            ids = [uuid.uuid4().hex for _ in range(n_rows)]
        is_explained = "explanation" in outputs
        if is_explained and n_rows > MAX_EXPLAINED:
            raise bad_request(f"at most {MAX_EXPLAINED} rows can be explained in one request; got {n_rows}")
        job = Job(predictor, checked, ids, "evidence" in outputs, n_samples if is_explained else None)
        answer: Answer = await self.batcher.submit(job)
        return answer

    def _run(self, jobs: list[Job]) -> list[Any]:
        """Predict the rows of all jobs at once or, if the model cannot, one job after the other."""
        try:
            with without_warnings():  # about rows that the model was fitted on, or has learned since
                answers = _predict(jobs)
        except (KcalError, HTTPException) as error:
            if len(jobs) > 1:
                return [result for job in jobs for result in self._run([job])]
            return [bad_request(str(error)) if isinstance(error, KcalError) else error]
        for answer in answers:  # before the answer: whoever has it may send the label
            predictor, scores = answer.job.predictor, answer.scores
            given = (answer.job.ids, scores.probs, scores.evidence, scores.rows, predictor.version)
            self.record.add(predictor.classes, *given)
        self._metrics.predicted(self.name, answers)
        return answers

    def close(self) -> None:
        """Save the record, end the threads and close the store."""
        if self.learner is not None:
            self.learner.close()


def _predict(jobs: Sequence[Job]) -> list[Answer]:
    """Return the answers of jobs of one key."""
    first = jobs[0]
    rows = {name: np.concatenate([job.arrays[name] for job in jobs]) for name in first.arrays}
    scores = first.predictor.predict(rows if len(jobs) > 1 else first.arrays, evidence=first.evidence)
    answers, start = [], 0
    for job in jobs:
        part = slice(start, start + job.n_rows)
        start += job.n_rows
        evidence = None if scores.evidence is None else scores.evidence[part]
        own = Scores(scores.probs[part], evidence, {name: values[part] for name, values in scores.rows.items()})
        texts = None if job.n_samples is None else job.predictor.explanations(own.rows, job.n_samples)
        answers.append(Answer(job, own, texts))
    return answers


def _is_model(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and NAME.fullmatch(path.stem) is not None


class Service:
    """The models of a file or a folder, and the tokens of clients; both are read again when they change.

    Parameters
    ----------
    settings : Settings
        What is served, and how.
    """

    def __init__(self, settings: Settings) -> None:
        settings.check()
        self.settings, self.metrics = settings, Metrics()
        self.models: dict[str, ServedModel] = {}
        self.errors: dict[str, str] = {}
        """Why the latest file of a model was not loaded; the one before it stays in service."""
        self.tokens: list[Token] | None = None if settings.tokens is None else read_tokens(settings.tokens)
        self.is_loaded = False
        """Whether all files have been looked at."""
        self._stamps: dict[str, Any] = {}
        self._token_stamp: Any = None
        self._stopping = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether there are models, and none is missing because its file cannot be loaded."""
        is_complete = self.is_loaded and bool(self.models) and self.errors.keys() <= self.models.keys()
        return is_complete and not self._stopping.is_set()

    def get(self, name: str | None) -> ServedModel:
        """Return a model by its name, or the only one."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name in self.models:
            return self.models[name]
        if not self.is_loaded:
            raise busy("the models are being loaded")
        names = ", ".join(sorted(self.models))
        raise HTTPException(400 if name is None else 404, f"there is no model {name!r}; the models are {names}")

    def check_token(self, secret: str, scopes: Sequence[str], challenge: str = "Bearer") -> None:
        """Raise if the service has tokens, and the secret is none of them or its token has none of the scopes."""
        if self.tokens is None:
            return
        token = find_token(self.tokens, secret)
        if token is None:
            message = "the request needs a valid token: Authorization: Bearer TOKEN"
            raise HTTPException(401, message, {"WWW-Authenticate": challenge})
        if not any(token.allows(scope) for scope in scopes):
            raise HTTPException(403, f"the token does not have the scope {scopes[0]}")

    async def run(self, on_failure: Callable[[str], None] | None = None) -> None:
        """Load the models, and look for changed files until the service stops.

        ``on_failure`` is called with the reason if the only model cannot be loaded.
        """
        await asyncio.to_thread(self.refresh)
        if self.settings.path.is_file() and self.errors and on_failure is not None:
            on_failure(next(iter(self.errors.values())))
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self.settings.reload_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                await asyncio.to_thread(self.refresh)

    def stop(self) -> None:
        """Let :meth:`run` return."""
        self._stopping.set()

    def close(self) -> None:
        """Save the records and close the stores."""
        for model in self.models.values():
            model.close()

    def refresh(self) -> None:
        """Read the files of models and tokens that are new or changed; drop models whose files are gone."""
        try:
            self._refresh_tokens()
            found = self._find()
        except OSError as error:  # replaced at this moment, perhaps: the next look sees it
            logger.warning("the files cannot be read: %s", error)
            return
        for name, (path, network, *stamp) in sorted(found.items()):
            if self._stamps.get(name) != stamp:
                self._stamps[name] = stamp
                self._load(name, path, network)
        if self.settings.path.is_dir():
            for name in self._stamps.keys() - found.keys():
                del self._stamps[name]
                self.errors.pop(name, None)
                if name in self.models:
                    self.models.pop(name).close()
        self.is_loaded = True

    def _refresh_tokens(self) -> None:
        path = self.settings.tokens
        if path is None or self._token_stamp == _stamp(path):
            return
        try:
            self.tokens = read_tokens(path)
        except FileFormatError as error:  # the earlier tokens stay
            logger.warning("%s", error)
        self._token_stamp = _stamp(path)

    def _find(self) -> dict[str, tuple[Any, ...]]:
        """Return the files of each model, with stamps by which a change of them is seen."""
        path, found = self.settings.path, dict[str, tuple[Any, ...]]()
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if _is_model(file) and file.is_file():
                beside = self.settings.network or file.with_name(f"{file.stem}{NETWORK_SUFFIX}")
                network = beside if beside.is_file() else None
                found.setdefault(file.stem, (file, network, _stamp(file), network and _stamp(network)))
        return found

    def _load(self, name: str, path: Path, network: Path | None) -> None:
        """Load the files of a model while the earlier ones answer; if they cannot be loaded, these stay."""
        model = self.models.get(name)
        try:
            if model is not None and model.predictor.network is not None and network is None:
                raise FileFormatError(f"the network of {path.name} is gone; the model goes on with it until a restart.")
            with without_warnings():
                predictor = Predictor.load(path, network)
                if model is not None:
                    model.replace(predictor)
                else:
                    self.models[name] = ServedModel(name, predictor, self.settings, self.metrics)
            self.errors.pop(name, None)
            logger.info("%s is served", name)
        except Exception as error:  # a damaged file must not stop the others
            is_known = isinstance(error, KcalError | OSError)
            text = str(error) if is_known else f"{path.name} cannot be loaded ({type(error).__name__})."
            self.errors[name] = text.replace(f"{path.parent}/", "")
            logger.error("%s was not loaded: %s", name, self.errors[name])


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return time, size and inode of a file."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
