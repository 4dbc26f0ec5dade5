"""Plots of computed results; importing them needs matplotlib.

Each takes results and optional axes ``ax``, and returns the axes; the grids take a ``figure`` and return an array of
axes.
"""

from kcal.errors import MissingExtraError

try:
    from kcal.plots.curves import (
        bandwidth_curve,
        rank_plot,
        rejection_curve,
        subgroup_plot,
        training_curve,
        wealth_curves,
    )
    from kcal.plots.explanations import explanation
    from kcal.plots.reliability import class_reliability_grid, reliability_diagram, reliability_grid
    from kcal.plots.simplex import simplex_plot
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise MissingExtraError(
        "kcal.plots needs matplotlib, which is not installed. Run: pip install 'kcal[plots]'"
    ) from error

__all__ = [
    "bandwidth_curve",
    "class_reliability_grid",
    "explanation",
    "rank_plot",
    "rejection_curve",
    "reliability_diagram",
    "reliability_grid",
    "simplex_plot",
    "subgroup_plot",
    "training_curve",
    "wealth_curves",
]
