"""Numbers, names and times of the page as text."""

from __future__ import annotations

from datetime import UTC, datetime
from math import exp
from typing import Any

from kcal.errors import printable

LABEL_WIDTH = 60
MOST_WEALTH = 1e6


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def interval(low: float, high: float) -> str:
    """Return the ends of an interval of shares."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def name_of(value: Any) -> str:
    """Return an id, a class or a group on one line, cut in the middle if it is long."""
    text = printable(value)
    half = LABEL_WIDTH // 2
    return text if len(text) <= LABEL_WIDTH else f"{text[: half - 1]}…{text[-half:]}"


def clock(seconds: float) -> str:
    """Return a time of the day, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


def timestamp(seconds: float) -> str:
    """Return date and time, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def wealth(log_wealth: float) -> str:
    """Return a wealth as text."""
    value = exp(min(log_wealth, 700.0))
    if value >= MOST_WEALTH:
        return "over 10⁶"
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"
