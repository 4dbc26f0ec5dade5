"""Small data in a fresh folder, and a way to run commands there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from animals import blobs
from typer.testing import CliRunner

from kcal.cli import app


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_trainings: None) -> Callable[..., Any]:
    """Run a command in a fresh folder, with trainings cut short; the result is checked against the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.npz"
    np.savez(path, **blobs(90, 1))
    return path


@pytest.fixture
def test_set(tmp_path: Path) -> Path:
    path = tmp_path / "test.npz"
    np.savez(path, **blobs(60, 2))
    return path


@pytest.fixture
def model(run: Callable[..., Any], calibration: Path, tmp_path: Path) -> Path:
    """A KCal without a learned projection, fitted on the calibration set."""
    run("fit", calibration, "--out", tmp_path / "model.kcal", "-m", "kcal", "--projection", "identity", "--quiet")
    return tmp_path / "model.kcal"
