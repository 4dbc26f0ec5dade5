"""A self-contained HTML page about the calibration of probabilities: tables and plots inline, no scripts."""

from kcal.report.writing import report_page, write_report

__all__ = ["report_page", "write_report"]
