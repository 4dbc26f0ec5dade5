"""Panels of lines: what is drawn where, and whose legend is where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.lines import Line, Panel, line_panels

LINE = Line("loss", (1.0, 10.0, 100.0), (3.0, 2.0, 1.5), (2.9, 1.8, 1.2), (3.1, 2.2, 1.8))
PANEL = Panel("a task", "samples", "NLL", (LINE, Line("uncalibrated", (1.0, 100.0), (2.5, 2.5), reference=True)))


def test_lines_bands_and_references_are_drawn_as_they_are() -> None:
    ax = line_panels([replace(PANEL, x_log=True)])[0, 0]
    line, reference = ax.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([LINE.x, LINE.y]))
    assert (line.get_linestyle(), reference.get_linestyle()) == ("-", "--")
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(1.2)
    assert band[:, 1].max() == pytest.approx(3.1)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("a task", "samples", "NLL", "log")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["loss", "uncalibrated"]


def test_points_are_not_joined() -> None:
    line = line_panels([Panel("t", "x", "y", (replace(LINE, points=True),))])[0, 0].get_lines()[0]
    assert line.get_linestyle() == "None"
    assert line.get_marker() not in ("", "None")


def test_four_panels_make_two_rows_of_three_and_the_empty_places_are_not_seen() -> None:
    axes = line_panels([PANEL] * 4)
    assert axes.shape == (2, 3)
    assert [ax.get_visible() for ax in axes.flat] == [True] * 4 + [False] * 2


def test_many_lines_that_all_panels_share_have_one_legend_below() -> None:
    many = Panel("t", "x", "y", tuple(replace(LINE, label=f"method {number}") for number in range(5)))
    axes = line_panels([many, many])
    assert all(ax.get_legend() is None for ax in axes.flat)
    (legend,) = axes[0, 0].get_figure().legends
    assert [text.get_text() for text in legend.get_texts()] == [f"method {number}" for number in range(5)]
    assert not line_panels([many, PANEL])[0, 0].get_figure().legends
    assert line_panels([many])[0, 0].get_legend() is not None


def test_small_panels_share_the_legend_of_most_of_them() -> None:
    other = replace(PANEL, lines=(replace(LINE, label="another"), LINE))
    axes = line_panels([PANEL, PANEL, other, PANEL] * 2, columns=4)
    assert axes.shape == (2, 4)
    (legend,) = axes[0, 0].get_figure().legends
    assert [text.get_text() for text in legend.get_texts()] == ["loss", "uncalibrated"]
    assert [ax.get_legend() is None for ax in axes.flat] == [True, True, False, True] * 2
    wide = line_panels([PANEL] * 3)[0, 0].get_figure().get_figwidth() / 3
    assert axes[0, 0].get_figure().get_figwidth() / 4 < wide
