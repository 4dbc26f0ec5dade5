"""A served folder of two models, and clients that know its address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_service import Running, running

from kcal import KCal, KCalBlend, save
from quick_blend import blend_of
from synthetic import Problem

CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def anyio_backend() -> str:
    """Tests that are coroutines run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def animals(problem: Problem) -> KCal:
    """A KCal with names of classes and ids."""
    labels = [CLASSES[label] for label in problem.labels]
    ids = [f"cal-{row}" for row in range(len(labels))]
    return KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, labels, ids=ids)


@pytest.fixture(scope="session")
def blend(problem: Problem) -> KCalBlend:
    """A blend that needs logits; its classes are numbers."""
    return blend_of(problem)


@pytest.fixture
def path(tmp_path: Path, animals: KCal) -> Path:
    """The file of the animals in a folder of the test."""
    return save(animals, tmp_path / "animals.kcal")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, animals: KCal, blend: KCalBlend) -> Path:
    """A folder with two models."""
    path = tmp_path_factory.mktemp("models")
    save(animals, path / "animals.kcal")
    save(blend, path / "blend.kcal")
    return path


@pytest.fixture(scope="session")
def service(folder: Path) -> Iterator[Running]:
    """A server of the folder on a free port of 127.0.0.1."""
    with running(folder) as one:
        yield one
