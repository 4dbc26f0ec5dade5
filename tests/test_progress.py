"""Progress bars show where a person can see them, and nowhere else."""

from __future__ import annotations

import sys

import pytest

from kcal.progress import progress_bar


def run(show: bool | None) -> None:
    with progress_bar("Working", 3, show=show) as advance:
        for step in range(3):
            advance(f"step {step}")


def test_outside_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run(None)
    run(False)
    assert capfd.readouterr() == ("", "")


def test_in_a_terminal_the_bar_is_shown_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run(None)
    assert "Working" in capfd.readouterr().err


def test_it_can_be_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    run(True)
    shown = capfd.readouterr()
    assert "Working" in shown.err
    assert shown.out == ""
