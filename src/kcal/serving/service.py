"""The service behind its protocols: models that are found, loaded and replaced, and their responses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from fastapi import HTTPException
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError, KcalError, without_warnings
from kcal.serving.learning import Learner
from kcal.serving.metrics import Metrics
from kcal.serving.predictor import Arrays, Predictor, Scores
from kcal.serving.protocol import InferenceRequest, Result, bad_request, busy, read_ids, run_sized, too_large
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
MAX_BODIES = 8
"""Bodies of the largest size that are in memory at the same time, at most; or more smaller ones."""
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


def _is_model(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and NAME.fullmatch(path.stem) is not None


# One model


@dataclass(frozen=True, eq=False)
class Job:
    """The checked rows of one request, and the outputs that it asks for."""

    predictor: Predictor
    arrays: Arrays
    n_rows: int
    ids: list[str] | None
    outputs: Sequence[str]
    n_samples: int  # of an explanation

    @property
    def key(self) -> Any:
        """What the jobs of one batch share."""
        return (self.predictor, "evidence" in self.outputs, *(array.shape[1:] for array in self.arrays.values()))

    def response(self, scores: Scores) -> dict[str, NDArray[Any]]:
        """Return the outputs by name: numbers, or objects whose text is sent."""
        found: dict[str, NDArray[Any] | None] = {"probabilities": scores.probs, "evidence": scores.evidence}
        if "labels" in self.outputs:
            found["labels"] = self.predictor.classes[scores.probs.argmax(axis=1)].astype(object)
        if self.ids is not None:
            found["ids"] = np.array(self.ids, dtype=object)
        if "explanation" in self.outputs:
            entries = self.predictor.explain(scores.rows, self.n_samples).to_dict()
            found["explanation"] = np.array([json.dumps(entry, allow_nan=False) for entry in entries], dtype=object)
        return {name: values for name in self.outputs if (values := found[name]) is not None}


class Batcher:
    """Collects jobs into batches and runs one batch at a time, off the event loop, in their order.

    A job has ``n_rows`` and a ``key``; only jobs of the same key are run together.

    Parameters
    ----------
    run : callable
        Called in a thread with the jobs of a batch; returns a result, or an exception, for each.
    max_rows : int
        Rows of a batch; a job with more is a batch of its own.
    max_wait : float
        Seconds that the first job of a batch waits for others.
    max_queue : int
        Jobs that may wait; more are rejected with status 503.
    """

    def __init__(
        self, run: Callable[[list[Any]], Sequence[Any]], max_rows: int, max_wait: float, max_queue: int
    ) -> None:
        self._run, self.max_rows, self.max_wait, self.max_queue = run, max_rows, max_wait, max_queue
        self.waiting: deque[tuple[Any, float, asyncio.Future[Any]]] = deque()  # with the time until which each waits
        self._n_rows, self._is_full = 0, asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, job: Any) -> Any:
        """Return the result of a job, or raise its exception."""
        if len(self.waiting) >= self.max_queue:
            raise busy(f"{len(self.waiting)} requests are waiting already; try again later")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiting.append((job, loop.time() + self.max_wait, future))
        self._n_rows += job.n_rows
        if self._n_rows >= self.max_rows:
            self._is_full.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        """Run batches, each when it is full or its first job has waited long enough, until no job waits."""
        while self.waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self.waiting[0][1]):
                    await self._is_full.wait()
            batch = self._take()
            try:
                results = await asyncio.to_thread(self._run, [job for job, _, _ in batch])
            except Exception as error:
                results = [error] * len(batch)
            for (_, _, future), result in zip(batch, results, strict=True):
                if future.done():  # the client left
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _take(self) -> list[tuple[Any, float, asyncio.Future[Any]]]:
        """Take the jobs of the next batch out of those that wait."""
        batch = [self.waiting.popleft()]
        n_rows, key = batch[0][0].n_rows, batch[0][0].key
        while self.waiting and (job := self.waiting[0][0]).key == key and n_rows + job.n_rows <= self.max_rows:
            batch.append(self.waiting.popleft())
            n_rows += job.n_rows
        self._n_rows -= n_rows
        if self._n_rows < self.max_rows:
            self._is_full.clear()
        return batch


class ServedModel:
    """A model by its name: its predictor, which a new file or feedback replaces, its batches, record and learner."""

    def __init__(self, name: str, predictor: Predictor, settings: Settings, metrics: Metrics) -> None:
        self.name, self._metrics = name, metrics
        self.batcher = Batcher(self._run, settings.max_batch, settings.max_wait, settings.max_queue)
        self.learner: Learner | None = None
        self._predictor = predictor
        if settings.store is None:
            self.record = Record(predictor.classes, settings.recent)
            return
        is_folder = settings.store.is_dir()
        path = settings.store / f"{name}.db" if is_folder else settings.store
        monitor_path = path.with_name(f"{name if is_folder else path.name}.monitor.json")
        self.record = Record(predictor.classes, settings.recent, monitor_path)
        self.learner = Learner(path, settings.store_is_complete, self.record, predictor)
        if self.learner.reason:
            reason = f"but {name} does not learn from it: {self.learner.reason}"
            logger.warning("feedback is kept for the monitors and the next fit, %s", reason)

    @property
    def predictor(self) -> Predictor:
        """The predictor in use."""
        return self._predictor if self.learner is None else self.learner.predictor

    @property
    def is_working(self) -> bool:
        """Whether a thread of the model has not ended."""
        return self.learner is not None and self.learner.is_working

    def replace(self, predictor: Predictor) -> None:
        """Replace the predictor; requests that wait keep the one that they were checked with."""
        self._predictor = predictor
        if self.learner is not None:
            self.learner.start(predictor)

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
        self, predictor: Predictor, arrays: Arrays, outputs: Sequence[str], ids: list[str] | None, n_samples: int
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs that a request asks for, of inputs that ``predictor`` has checked."""
        known = [spec.name for spec in predictor.outputs]
        if unknown := [name for name in outputs if name not in known]:
            raise bad_request(f"the model has no output {unknown[0]!r}; its outputs are {', '.join(known)}")
        n_rows = len(next(iter(arrays.values())))
        if ids is not None and not len(ids) == len(set(ids)) == n_rows:
            raise bad_request(f"ids must be {n_rows} different ones, one for each row")
        if ids is None and "ids" in outputs:
            ids = [uuid.uuid4().hex for _ in range(n_rows)]
        if "explanation" in outputs and n_rows > MAX_EXPLAINED:
            raise bad_request(f"at most {MAX_EXPLAINED} rows can be explained in one request; got {n_rows}")
        response: dict[str, NDArray[Any]] = await self.batcher.submit(
            Job(predictor, arrays, n_rows, ids, outputs, n_samples)
        )
        return response

    async def infer(
        self,
        size: int,
        read: Callable[[], tuple[InferenceRequest, dict[str, NDArray[Any]]]],
        encode: Callable[[dict[str, Any], dict[str, NDArray[Any]], dict[str, bool]], Result],
    ) -> Result:
        """Respond to a request of the protocol.

        Parameters
        ----------
        size : int
            Bytes of the request.
        read : callable
            Returns the request and its arrays.
        encode : callable
            Returns the response, of the model's name and the like, outputs, and whether each is sent as binary data.
        """
        predictor = self.predictor

        def checked() -> tuple[InferenceRequest, list[str] | None, Arrays]:
            content, arrays = read()
            ids = read_ids(arrays)
            return content, ids, predictor.check(arrays)

        content, ids, arrays = await run_sized(size, checked)
        wanted = content.wanted(predictor.default_outputs)
        values = await self.predict(predictor, arrays, list(wanted), ids, content.parameters.explanation_samples)
        head = {"model_name": self.name, "model_version": "1"} | ({} if content.id is None else {"id": content.id})
        return await run_sized(sum(one.size for one in values.values()), encode, head, values, wanted)

    def _run(self, jobs: list[Job]) -> list[Any]:
        """Predict the rows of all jobs at once or, if the model cannot, one job after the other."""
        first, predictor = jobs[0], jobs[0].predictor
        arrays = first.arrays
        if len(jobs) > 1:
            arrays = {name: np.concatenate([job.arrays[name] for job in jobs]) for name in arrays}
        try:
            with without_warnings():  # about rows that the model was fitted on, or has learned since
                scores = predictor.predict(arrays, evidence="evidence" in first.outputs)
                ends = np.cumsum([job.n_rows for job in jobs]).tolist()
                responses = [job.response(scores[end - job.n_rows : end]) for job, end in zip(jobs, ends, strict=True)]
        except (KcalError, HTTPException) as error:
            if len(jobs) > 1:
                return [result for job in jobs for result in self._run([job])]
            return [bad_request(str(error)) if isinstance(error, KcalError) else error]
        ids = list[str | None]()
        for job in jobs:
            ids += job.ids or [None] * job.n_rows
        self.record.add(predictor.classes, ids, scores, predictor.version)  # first: a label may follow the response
        self._metrics.count_batch(self.name, predictor, scores, len(jobs))
        return responses

    def close(self) -> None:
        """Save the record, end the thread and close the store."""
        if self.learner is not None:
            self.learner.close()


# All models


class Service:
    """The models of a file or a folder, and the tokens of clients; both are read again when they change.

    ``with Service(settings)`` loads the models, and closes them at the end.

    Parameters
    ----------
    settings : Settings
        What is served, and how.
    """

    def __init__(self, settings: Settings) -> None:
        settings.check()
        self.settings = settings
        self.models: dict[str, ServedModel] = {}
        self.errors: dict[str, str] = {}
        """Why the latest file of a model was not loaded; the one before it stays in service."""
        self.metrics = Metrics(self)
        self.n_bytes = 0
        """Bytes of all requests in memory."""
        self.tokens: list[Token] | None = None if settings.tokens is None else read_tokens(settings.tokens)
        self._stamps: dict[str, Any] = {}
        self._token_stamp: Any = None
        self._stopping = asyncio.Event()

    def __enter__(self) -> Self:
        self.refresh()
        if self.settings.path.is_file() and not self.models:
            raise KcalError(next(iter(self.errors.values()), f"{self.settings.path} cannot be read."))
        return self

    def __exit__(self, *_: object) -> None:
        """Save the records and close the stores; all models at the same time, as each may wait for a search."""
        with ThreadPoolExecutor(len(self.models) or 1) as pool:
            list(pool.map(ServedModel.close, self.models.values()))

    @property
    def is_ready(self) -> bool:
        """Whether there are models, and none is missing because its file cannot be loaded."""
        return bool(self.models) and self.errors.keys() <= self.models.keys() and not self._stopping.is_set()

    def get(self, name: str | None) -> ServedModel:
        """Return a model by its name, or the only one."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name in self.models:
            return self.models[name]
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

    def count_bytes(self, n_bytes: int, n_of_request: int) -> None:
        """Count bytes that came; raise if those of their request, or of all requests in memory, are too many."""
        self.n_bytes += n_bytes
        if n_of_request > self.settings.max_body:
            raise too_large(self.settings.max_body)
        if self.n_bytes > MAX_BODIES * self.settings.max_body:
            raise busy("too many bytes of other requests are waiting; try again later")

    async def run(self) -> None:
        """Look for changed files until the service stops."""
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self.settings.reload_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                await asyncio.to_thread(self.refresh)

    def stop(self) -> None:
        """Let :meth:`run` return."""
        self._stopping.set()

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
        """Load the files of a model while the earlier ones stay in use; if they cannot be loaded, these stay."""
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
        except Exception as error:  # a damaged file must not stop the others
            is_known = isinstance(error, KcalError | OSError)
            text = str(error) if is_known else f"{path.name} cannot be loaded ({type(error).__name__})."
            self.errors[name] = text.replace(f"{path.parent}/", "")
            if model is not None or self.settings.path.is_dir():  # the only model is not served without
                logger.error("%s was not loaded: %s", name, self.errors[name])


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return time, size and inode of a file."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
