"""The models of a file or a folder: found, loaded, and replaced without a dropped request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.inference import ServedModel
from kcal.deployment.service.predictors import CalibratorPredictor, OnnxPredictor, ServedPredictor
from kcal.errors import InvalidInputError, KcalError, without_warnings
from kcal.persistence import load_calibrator

logger = logging.getLogger("kcal.service")

SUFFIXES = (".kcal", ".safetensors", ".onnx")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
VERSION = re.compile(r"[1-9][0-9]{0,8}")
ONLY_VERSION = 1
"""Version of a model that has no folder of versions."""

Key = tuple[str, int]
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class ModelFile:
    """A file of a model, and the stamp by which a change of it is seen: time, size and inode."""

    path: Path
    stamp: Stamp


def find_models(path: Path) -> dict[Key, ModelFile]:
    """Return the files of a file or folder by model and version.

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
    _add(found, (model_name(path), ONLY_VERSION), path)
    return found


def _add(found: dict[Key, ModelFile], key: Key, path: Path) -> None:
    """Add a file if it is one of a model, and the first of its name and version."""
    if path.suffix.lower() not in SUFFIXES or path.name.startswith(".") or not NAME.fullmatch(key[0]) or key in found:
        return
    try:
        status = path.stat()
    except OSError:  # replaced at this moment: it is seen the next time
        return
    found[key] = ModelFile(path, (status.st_mtime_ns, status.st_size, status.st_ino))


def model_name(path: Path) -> str:
    """Return the name of the model of a single file; raise if it cannot be part of an address."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError("MODEL", f"must end in {', '.join(SUFFIXES)}, or be a folder", got=str(path))
    if not NAME.fullmatch(path.stem):
        expected = "must have a name of letters, digits, '_', '-' and '.', since it is part of the address"
        raise InvalidInputError("MODEL", expected, got=path.stem)
    return path.stem


def load_predictor(path: Path) -> ServedPredictor:
    """Return what predicts with a file."""
    if path.suffix.lower() == ".onnx":
        return OnnxPredictor(path)
    return CalibratorPredictor(load_calibrator(path))


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
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[str, int, ServedPredictor], ServedModel],
        drop: Callable[[ServedModel], Any],
    ) -> None:
        self.path, self._make, self._drop = path, make, drop
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
        found = await asyncio.to_thread(find_models, self.path)
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
        try:
            model = await asyncio.to_thread(self._read, key, file.path)
        except Exception as error:  # a damaged file must not stop the others
            is_known = isinstance(error, KcalError | OSError)
            text = str(error) if is_known else f"{file.path} cannot be loaded ({type(error).__name__})."
            self.errors[key] = text.replace(str(file.path), file.path.name)
            logger.error("%s version %d was not loaded: %s", *key, self.errors[key])
            return
        self.errors.pop(key, None)
        self._put(key, model)
        logger.info("%s version %d is served", *key)

    def _read(self, key: Key, path: Path) -> ServedModel:
        with without_warnings():
            return self._make(*key, load_predictor(path))

    def _put(self, key: Key, model: ServedModel) -> None:
        """Let new requests get a model; those that the one before it has are answered by it."""
        name, version = key
        old = self.models.get(name, {}).get(version)
        self.models[name] = {**self.models.get(name, {}), version: model}
        if old is not None:
            model.previous, old.previous = old, None
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
