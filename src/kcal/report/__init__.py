"""The self-contained HTML page about a set of probabilities; tables and pictures inline, no network, no scripts."""

import kcal.plots  # noqa: F401 - first, because it says how to install matplotlib where that is missing
from kcal.report.writing import report_page, write_report

__all__ = ["report_page", "write_report"]
