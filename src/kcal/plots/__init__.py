"""Pictures of results: they draw, they compute nothing. Importing them needs matplotlib."""

from kcal.errors import MissingExtraError

try:
    from kcal.plots.bandwidth import bandwidth_curve
    from kcal.plots.reliability import reliability_diagram, reliability_grid
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise MissingExtraError(
        "kcal.plots draws with matplotlib, which is not installed. Run: pip install 'kcal[plots]'"
    ) from error

__all__ = ["bandwidth_curve", "reliability_diagram", "reliability_grid"]
