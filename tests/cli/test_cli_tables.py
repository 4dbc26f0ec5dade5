"""Tables that fit the terminal."""

from __future__ import annotations

import numpy as np
import pytest

from kcal.cli.tables import show_evaluations
from kcal.metrics import evaluate

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]] * 10)
LABELS = np.array([0, 1, 2] * 10)


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize(
    "methods", [("uncal", "ts"), ("uncal", "ts", "vector", "kcal"), ("ts", "beta", "gp", "iop", "sms")]
)
def test_every_method_is_shown_at_any_width(
    methods: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    evaluations = {name: evaluate(PROBS, LABELS, confidence=0.95, resamples=20) for name in methods}
    show_evaluations(evaluations)
    output = capsys.readouterr().out
    assert "…" not in output
    assert max(len(line) for line in output.splitlines()) <= width
    assert output.replace("\n", " ").count(f"{100 * evaluations[methods[0]].accuracy:.2f}") >= len(methods)
