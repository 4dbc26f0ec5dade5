"""A self-contained HTML report about the calibration of probabilities: tables and figures inline, no scripts.

``kcal.report.html`` renders the templates and needs no matplotlib; so the report itself is imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcal.report.calibration import render_report, write_report

__all__ = ["render_report", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kcal.report import calibration

    return getattr(calibration, name)
