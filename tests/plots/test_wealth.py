"""The wealth of monitors: lines, the threshold, alarms and changes are where the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from kcal import InvalidInputError
from kcal.plots import wealth_curves


def test_lines_end_where_the_paths_do_and_alarms_are_marked():
    paths = {"with labels": np.linspace(0, np.log(1e3), 50), "without": np.zeros(30)}
    ax = wealth_curves(paths, alpha=0.01, changes=[20], title="A stream")
    lines = {line.get_label(): line for line in ax.get_lines()}
    first = lines["with labels: alarm after 34"]
    assert first.get_xdata()[-1] == 50
    assert first.get_ydata()[-1] == pytest.approx(3)
    assert "without: no alarm" in lines
    marked = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [int(line.get_xdata()[0]) for line in marked] == [34]
    assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {2.0} for line in ax.get_lines())
    assert any(line.get_linestyle() == ":" and line.get_xdata()[0] == 20 for line in ax.get_lines())
    assert ax.get_title() == "A stream"


def test_what_is_no_path_is_refused():
    with pytest.raises(InvalidInputError, match="curves must be a dictionary"):
        wealth_curves([0.0])
    with pytest.raises(InvalidInputError, match="must be one number per sample"):
        wealth_curves({"a": [[0.0]]})
    with pytest.raises(InvalidInputError, match="alpha must be a number strictly between"):
        wealth_curves({"a": [0.0]}, alpha=0)
