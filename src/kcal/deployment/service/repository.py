"""The models of a file or a folder: found, loaded, and replaced without a dropped request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kcal.deployment.export import taken_outputs
from kcal.deployment.reference import check_pair
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.inference import ServedModel
from kcal.deployment.service.onnx_files import NetworkFile, OnnxPredictor
from kcal.deployment.service.predictors import CalibratorPredictor, ServedPredictor
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import load_with_network

logger = logging.getLogger("kcal.service")

CALIBRATOR_SUFFIXES = (".kcal", ".safetensors")
SUFFIXES = (*CALIBRATOR_SUFFIXES, ".onnx")
NETWORK_SUFFIX = ".network.onnx"
"""The network of NAME.kcal is NAME.network.onnx beside it."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
VERSION = re.compile(r"[1-9][0-9]{0,8}")
ONLY_VERSION = 1
"""Version of a model that has no folder of versions."""

Key = tuple[str, int]
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class ModelFile:
    """A file of a model, the network that runs before it, and the stamps by which a change of them is seen."""

    path: Path
    stamp: Stamp
    network: Path | None = None
    network_stamp: Stamp | None = None

    @classmethod
    def find(cls, path: Path, network: Path | None = None) -> Self:
        """Return the file with its network: a given one or, for a calibrator, NAME.network.onnx if it is there.

        Raises OSError if a file is being replaced at this moment.
        """
        beside = path.with_name(f"{path.stem}{NETWORK_SUFFIX}")
        if network is None and path.suffix.lower() in CALIBRATOR_SUFFIXES and beside.is_file():
            network = beside
        return cls(path, _stamp(path), network, None if network is None else _stamp(network))


def _stamp(path: Path) -> Stamp:
    """Return time, size and inode of a file."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def find_models(path: Path, network: Path | None = None) -> dict[Key, ModelFile]:
    """Return the files of a file or folder by model and version; ``network`` is that of a single calibrator.

    A file NAME.kcal is the only version of a model; in a folder, NAME/VERSION/ holds one file per version.
    """
    found: dict[Key, ModelFile] = {}
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and NAME.fullmatch(entry.name):
                folders = [one for one in entry.iterdir() if VERSION.fullmatch(one.name) and one.is_dir()]
                for folder in folders:
                    for file in sorted(folder.iterdir()):
                        _add(found, (entry.name, int(folder.name)), file)
            else:
                _add(found, (entry.stem, ONLY_VERSION), entry)
        return found
    _add(found, (model_name(path), ONLY_VERSION), path, network)
    return found


def _add(found: dict[Key, ModelFile], key: Key, path: Path, network: Path | None = None) -> None:
    """Add a file if it is one of a model, and the first of its name and version."""
    is_model = path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and not is_network(path)
    if not is_model or not NAME.fullmatch(key[0]) or key in found:
        return
    with suppress(OSError):  # replaced at this moment: it is seen the next time
        found[key] = ModelFile.find(path, network)


def is_network(path: Path) -> bool:
    """Return whether a file is the network of a calibrator, by its name."""
    return path.name.lower().endswith(NETWORK_SUFFIX)


def model_name(path: Path) -> str:
    """Return the name of the model of a single file; raise if it cannot be part of an address."""
    if is_network(path):
        remedy = f"Pass the .kcal file, and --network {path.name}."
        raise InvalidInputError("MODEL", "must be a calibrator, not its network", got=str(path), remedy=remedy)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError("MODEL", f"must end in {', '.join(SUFFIXES)}, or be a folder", got=str(path))
    if not NAME.fullmatch(path.stem):
        expected = "must have a name of letters, digits, '_', '-' and '.', since it is part of the address"
        raise InvalidInputError("MODEL", expected, got=path.stem)
    return path.stem


def load_predictor(file: ModelFile) -> ServedPredictor:
    """Return what predicts with a file, and its network if there is one; raise if they do not belong together."""
    if file.path.suffix.lower() == ".onnx":
        return OnnxPredictor(file.path)
    calibrator, reference = load_with_network(file.path)
    if file.network is None:
        return CalibratorPredictor(calibrator)
    network = NetworkFile(file.network)
    check_pair(reference, network.reference, file.path)
    network.check_outputs(taken_outputs(calibrator))
    return CalibratorPredictor(calibrator, network)


class Repository:
    """The models that are served, by name and version.

    Parameters
    ----------
    path : Path
        A file or a folder.
    make : callable
        Returns the served model of a name, a version and a predictor; called in a thread.
    drop : callable
        Called with a model that no new request gets.
    network : Path, optional
        The network that runs before a single calibrator.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[str, int, ServedPredictor], ServedModel],
        drop: Callable[[ServedModel], Any],
        network: Path | None = None,
    ) -> None:
        self.path, self.network, self._make, self._drop = path, network, make, drop
        self.models: dict[str, dict[int, ServedModel]] = {}
        self.errors: dict[Key, str] = {}
        """Why the latest file of a model was not loaded; the one before it stays in service."""
        self._seen: dict[Key, ModelFile] = {}
        self.is_loaded = False
        """Whether the first look at all files is over."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a model, and none is missing because its file cannot be loaded."""
        return self.is_loaded and bool(self.models) and all(self._serves(*key) for key in self.errors)

    def _has_network(self, name: str, version: int) -> bool:
        """Whether the model that is served runs after its network."""
        return self._serves(name, version) and bool(self.models[name][version].predictor.network_checksum)

    def _serves(self, name: str, version: int) -> bool:
        return version in self.models.get(name, {})

    def get(self, name: str | None, version: str | None = None) -> ServedModel:
        """Return a model: by name, or the only one; of a version, or the latest."""
        if name is None:
            if len(self.models) != 1:
                names = ", ".join(sorted(self.models)) or "none yet"
                raise RequestError(400, f"model must name one of the models: {names}")
            name = next(iter(self.models))
        versions = self.models.get(name, {})
        if not versions:
            if not self.is_loaded:
                raise RequestError(503, "the models are being loaded", {"Retry-After": "1"})
            raise RequestError(404, f"there is no model {name!r}")
        if version is None:
            return versions[max(versions)]
        number = int(version) if VERSION.fullmatch(version) else 0
        if number not in versions:
            raise RequestError(404, f"the model {name!r} has no version {version!r}")
        return versions[number]

    def all(self) -> list[ServedModel]:
        """Return every version of every model, by name, the latest first."""
        return [
            versions[number] for _, versions in sorted(self.models.items()) for number in sorted(versions, reverse=True)
        ]

    async def refresh(self) -> None:
        """Load files that are new or changed, and drop models whose files are gone."""
        found = await asyncio.to_thread(find_models, self.path, self.network)
        for key, file in sorted(found.items(), reverse=True):  # the latest version of a model first
            if self._seen.get(key) != file:
                await self._load(key, file)
        if self.path.is_dir():
            for key in set(self._seen) - set(found):
                del self._seen[key]
                self.errors.pop(key, None)
                self._remove(key)
        self.is_loaded = True

    async def _load(self, key: Key, file: ModelFile) -> None:
        self._seen[key] = file
        if file.network is None and self._has_network(*key):
            self.errors[key] = f"the network of {file.path.name} is gone; the model goes on with it until a restart."
            logger.error("%s version %d was not loaded: %s", *key, self.errors[key])
            return
        try:
            model = await asyncio.to_thread(self._read, key, file)
        except Exception as error:  # a damaged file must not stop the others
            is_known = isinstance(error, KcalError | OSError)
            text = str(error) if is_known else f"{file.path} cannot be loaded ({type(error).__name__})."
            for path in filter(None, (file.network, file.path)):
                text = text.replace(str(path), path.name)
            self.errors[key] = text
            logger.error("%s version %d was not loaded: %s", *key, self.errors[key])
            return
        self.errors.pop(key, None)
        self._put(key, model)
        logger.info("%s version %d is served", *key)

    def _read(self, key: Key, file: ModelFile) -> ServedModel:
        with without_warnings():
            return self._make(*key, load_predictor(file))

    def _put(self, key: Key, model: ServedModel) -> None:
        """Let new requests get a model; those that the one before it has are answered by it."""
        name, version = key
        old = self.models.get(name, {}).get(version)
        self.models[name] = {**self.models.get(name, {}), version: model}
        if old is not None:
            self._drop(old)

    def _remove(self, key: Key) -> None:
        name, version = key
        versions = dict(self.models.get(name, {}))
        model = versions.pop(version, None)
        if model is None:
            return
        if versions:
            self.models[name] = versions
        else:
            del self.models[name]
        self._drop(model)
