"""Calibrators that are fitted once for all tests of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrator_checks import quick, unlearned
from kcal import KCal, save
from kcal.calibrators import fit_on
from kcal.embeddings import ClassifierOutputs


@pytest.fixture(scope="session")
def fitted(problem: Any) -> KCal:
    return KCal(projection="identity", prior=[0.2, 0.3, 0.5], smoothing=0.01, folds=4).fit(
        problem.embeddings,
        problem.labels,
        sample_weight=np.linspace(0.5, 2.0, 240),
        ids=np.arange(240) + 1000,
        groups=np.arange(240) % 12,
    )


@pytest.fixture(scope="session")
def fitted_content(fitted: KCal, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of the saved ``fitted``."""
    return save(fitted, tmp_path_factory.mktemp("fitted") / "model.kcal").read_bytes()


@pytest.fixture(scope="session")
def contents() -> dict[str, bytes]:
    """Return the bytes of saved calibrators, by method; filled as they are asked for."""
    return {}


@pytest.fixture
def saved(problem: Any, contents: dict[str, bytes], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that gives a fresh file of a fitted method."""

    def write(name: str) -> Path:
        path = tmp_path / "model.kcal"
        if name not in contents:
            outputs = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels)
            contents[name] = save(fit_on(unlearned(quick(name)), outputs), path).read_bytes()
        path.write_bytes(contents[name])
        return path

    return write
