"""The service without HTTP: models that are loaded and replaced, feedback, the state of monitors, and the page."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcal.deployment.service.access import Access
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.inference import BatchLimits, ServedModel
from kcal.deployment.service.latest import explain_latest
from kcal.deployment.service.learning import Learner, open_store
from kcal.deployment.service.page import ModelView, select
from kcal.deployment.service.predictors import ServedPredictor
from kcal.deployment.service.record import PredictionInputs
from kcal.deployment.service.repository import CALIBRATOR_SUFFIXES, NETWORK_SUFFIX, Repository, model_name
from kcal.deployment.service.state_file import StateFile
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import CalibrationStore

logger = logging.getLogger("kcal.service")

JSON_SHARE = 4
"""Parsed JSON takes many times its size in memory, so that its limit is the body's divided by this."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServiceOptions:
    """How a model or a folder of models is served.

    Attributes
    ----------
    path : Path
        The file of a model, or a folder.
    host, port
        Where the service listens; port 0 takes any that is free.
    store : Path, optional
        Calibration store of the feedback: a file or, for a folder of models, a folder.
    store_is_complete : bool
        Whether the store holds the whole calibration set, so that samples which it does not have are forgotten.
    tokens : Path, optional
        Token file; required unless the host is this machine alone.
    limits : BatchLimits
        Of batches and queues.
    max_body : int
        Bytes of a request.
    reload_seconds : float
        How often files are checked.
    save_seconds : float
        How often the record of predictions is written beside the store.
    network : Path, optional
        The network that runs before a single calibrator; by default NAME.network.onnx beside it, if it is there.
    """

    path: Path
    host: str = "127.0.0.1"
    port: int = 8000
    store: Path | None = None
    store_is_complete: bool = False
    tokens: Path | None = None
    limits: BatchLimits = field(default_factory=BatchLimits)
    max_body: int = 64 * 2**20
    reload_seconds: float = 1.0
    save_seconds: float = 60.0
    network: Path | None = None

    def check(self) -> None:
        """Raise if the options do not go together, before anything is loaded."""
        if self.host not in LOCAL_HOSTS and self.tokens is None:
            remedy = "Make a token with kcal token create, and pass --tokens FILE."
            raise InvalidInputError("--host", "needs a token file unless it is 127.0.0.1", got=self.host, remedy=remedy)
        if not self.path.exists():
            raise InvalidInputError("MODEL", "must be a file or a folder", got=str(self.path))
        if self.path.is_file():
            model_name(self.path)
        self._check_network()
        if self.store_is_complete and self.store is None:
            remedy = "Pass the store of the calibration set: --store FILE."
            raise InvalidInputError("--complete-store", "needs --store", got="none", remedy=remedy)
        if self.store is not None and self.path.is_dir() != self.store.is_dir():
            kind = "an existing folder" if self.path.is_dir() else "a file"
            raise InvalidInputError("--store", f"must be {kind}, as MODEL is", got=str(self.store))
        if self.store is not None and not self.store.parent.is_dir():
            raise InvalidInputError("--store", "must lie in an existing folder", got=str(self.store))

    def _check_network(self) -> None:
        if self.network is None:
            return
        if self.path.is_dir() or self.path.suffix.lower() not in CALIBRATOR_SUFFIXES:
            remedy = f"In a folder, put NAME{NETWORK_SUFFIX} beside NAME.kcal."
            raise InvalidInputError("--network", "needs one .kcal file as MODEL", got=str(self.path), remedy=remedy)
        if not self.network.is_file():
            expected = "must be an ONNX file that CalibratedClassifier.network_to_onnx wrote"
            raise InvalidInputError("--network", expected, got=str(self.network))

    @property
    def max_json(self) -> int:
        """Bytes of JSON in a request."""
        return max(self.max_body // JSON_SHARE, 1)


class Service:
    """Models, learners and access of a running service.

    Parameters
    ----------
    options : ServiceOptions
        What is served, and how.
    on_failure : callable, optional
        Called with the error if the only model cannot be loaded at the start.
    """

    def __init__(self, options: ServiceOptions, on_failure: Callable[[str], None] | None = None) -> None:
        options.check()
        self.options, self._on_failure = options, on_failure
        self.access = Access(options.tokens)
        self.repository = Repository(options.path, self._make, self._drop, options.network)
        self.learners: dict[str, Learner] = {}
        self._retired: list[Learner] = []
        self._inputs: dict[str, PredictionInputs] = {}  # by model: they outlive its versions
        self._stores: dict[tuple[str, str], CalibrationStore] = {}  # by model, and checksum of its network
        self._state_files: dict[str, StateFile] = {}
        self._opening = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the service has begun to stop."""
        return self._stopping.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered: all models are loaded, and the service does not stop."""
        return self.repository.is_ready and not self.is_stopping

    async def start(self) -> None:
        """Begin to load the models, and then to watch their files."""
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Finish the requests that wait, write feedback and the state of the monitors, and close the stores."""
        self._stopping.set()
        if self._watching is not None:
            await self._watching  # a file that is being loaded first: what it opens is then closed
        learners = [*self.learners.values(), *self._retired]
        for learner in learners:
            await learner.batcher.close()
        for model in self.repository.all():
            await model.batcher.close()
        await asyncio.gather(*self._tasks)
        await asyncio.to_thread(self._save_states)
        for learner in learners:
            await learner.close()
        for store in self._stores.values():
            store.close()

    async def _watch(self) -> None:
        await self.repository.refresh()
        if self.options.path.is_file() and self.repository.errors and self._on_failure is not None:
            self._on_failure(next(iter(self.repository.errors.values())))
        seconds = 0.0
        while not self.is_stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.options.reload_seconds)
                return
            seconds += self.options.reload_seconds
            try:
                await asyncio.to_thread(self.access.refresh)
                await self.repository.refresh()
                await self._replace_learners()
                if seconds >= self.options.save_seconds:
                    seconds = 0.0
                    await asyncio.to_thread(self._save_states)
            except Exception:  # an error of the file system must not end the service
                logger.exception("the files could not be checked")

    def _make(self, name: str, version: int, predictor: ServedPredictor) -> ServedModel:
        """Return a loaded model, with a learner that has followed its store if it is the latest version."""
        limits = self.options.limits
        inputs = self._inputs.setdefault(name, PredictionInputs(limits.recent))
        model = ServedModel(name, version, predictor, limits, inputs, self._read_state(name))
        if version >= max(self.repository.models.get(name, {version: None})):
            self._learn(model)
        return model

    def _learn(self, model: ServedModel) -> None:
        """Let a model learn from feedback, if there is a store; called in a thread."""
        earlier = self.learners.get(model.name)
        if self.options.store is None or model.loaded.calibrator is None:
            if earlier is not None:
                self._retired.append(self.learners.pop(model.name))
            return
        version = "" if self.options.store_is_complete else model.predictor.network_checksum
        with self._opening:
            if (model.name, version) not in self._stores:
                self._stores[model.name, version] = open_store(self.options.store, model.name, version)
        store = self._stores[model.name, version]
        if self.options.store_is_complete and not len(store):
            remedy = "Leave the option out, or fit the model by CalibrationStore.fit."
            raise InvalidInputError(
                "--complete-store", "needs a store with samples", got=store.path.name, remedy=remedy
            )
        learner = Learner(
            model,
            store,
            additional=not self.options.store_is_complete,
            state_file=self._state_file(model.name),
            versions=lambda: list(self.repository.models.get(model.name, {}).values()),
        )
        self.learners[model.name] = learner
        if earlier is not None:
            self._retired.append(earlier)
            learner.following.follow_soon(urgent=True).result()  # what came while this one was made

    async def _replace_learners(self) -> None:
        """Let the latest version learn if another one did, and close learners that are no longer used."""
        for name in self.repository.models:
            latest, learner = self.repository.get(name), self.learners.get(name)
            if learner is not None and learner.model is not latest:
                await asyncio.to_thread(self._learn, latest)
        for name in self.learners.keys() - self.repository.models.keys():
            self._retired.append(self.learners.pop(name))
        for name in self._inputs.keys() - self.repository.models.keys():
            del self._inputs[name]
        while self._retired:
            learner = self._retired.pop()
            await learner.retire()
            if learner.model.name in self.learners:  # it may have written until it was closed
                self.learners[learner.model.name].follow_soon()

    def _drop(self, model: ServedModel) -> None:
        """Close a model that gets no more requests, when it has answered those that it has."""
        task = asyncio.create_task(model.batcher.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def learner(self, name: str, version: str | None) -> Learner:
        """Return what learns from feedback on a model; raise if nothing does."""
        model = self.repository.get(name, version)
        learner = self.learners.get(name)
        if learner is None:
            raise RequestError(409, f"the model {name!r} takes no feedback: {self.feedback_obstacle(model)}")
        if version is not None and learner.model.version != model.version:
            raise RequestError(409, f"feedback goes to the latest version of {name!r}, {learner.model.version}")
        return learner

    def reset_monitors(self, name: str | None, version: str | None) -> ServedModel:
        """End the alarms of a model, also in the file beside its store; return the model."""
        model = self.repository.get(name, version)
        model.observer.reset_monitors()
        if model is self.repository.get(model.name):
            self._save_state(model)
        return model

    def feedback_obstacle(self, model: ServedModel) -> str:
        """Return why a model takes no feedback, and what to do; empty if it does."""
        if model.predictor.feedback_obstacle or model.name in self.learners:
            return model.predictor.feedback_obstacle
        return "the service has no store for it; start it with --store"

    def _state_file(self, name: str) -> StateFile | None:
        """Return the file beside the store for the record of a model's predictions; None without a store."""
        store = self.options.store
        if store is None:
            return None
        path = store / f"{name}.monitor.json" if store.is_dir() else store.with_name(f"{store.name}.monitor.json")
        return self._state_files.setdefault(name, StateFile(path))

    def _read_state(self, name: str) -> Any:
        file = self._state_file(name)
        return None if file is None or name in self.repository.models else file.read()

    def _save_states(self) -> None:
        for name in list(self.repository.models):
            self._save_state(self.repository.get(name))

    def _save_state(self, model: ServedModel) -> None:
        """Write the record of predictions of the latest version of a model beside its store."""
        file, learner = self._state_file(model.name), self.learners.get(model.name)
        if file is None:
            return
        try:
            if learner is not None:
                learner.forget_deleted()
            file.write(model.observer.to_dict)
        except (OSError, KcalError) as error:
            logger.error("the record of predictions of %s was not written: %s", model.name, error)

    def views(self, selected: str | None) -> list[ModelView]:
        """Return what the page shows of every model; explanations only of the selected one, or the first."""
        models = self.repository.all()
        chosen = select(models, selected)
        with without_warnings():
            views = [self._view(model, model is chosen) for model in models]
        served = {(model.name, model.version) for model in models}
        failed = [key for key in self.repository.errors if key not in served]
        return views + [
            ModelView(name, str(version), state="failed", facts=self._facts(name, version)) for name, version in failed
        ]

    def _view(self, model: ServedModel, is_chosen: bool) -> ModelView:
        snapshot, calibrator = model.observer.snapshot(), model.predictor.calibrator
        return ModelView(
            model.name,
            str(model.version),
            snapshot=snapshot,
            explanations=explain_latest(calibrator, snapshot) if is_chosen and calibrator is not None else (),
            traffic=model.tallies.traffic(),
            feedback_obstacle=self.feedback_obstacle(model),
            facts=self._facts(model.name, model.version) | (model.predictor.summary() if is_chosen else {}),
        )

    def _facts(self, name: str, version: int) -> dict[str, str]:
        facts = {}
        if (name, version) in self.repository.errors:
            facts["file was not loaded"] = self.repository.errors[name, version]
        learner = self.learners.get(name)
        if learner is not None and learner.model.version == version:
            facts["feedback"] = (
                ", ".join(f"{count:,} {status}" for status, count in learner.counts.items() if count) or "none yet"
            )
            if learner.n_of_other_networks:
                facts["samples of other networks in the store"] = f"{learner.n_of_other_networks:,}; not followed"
            if reason := learner.obstacle:
                facts["predictions do not follow feedback"] = reason
        return facts
