"""Charts of the page as SVG: small functions from numbers to text, without scripts and style attributes.

Colours come from the classes of the style sheet, so that charts follow light and dark.
"""

from __future__ import annotations

from html import escape
from math import log

import numpy as np
from numpy.typing import NDArray

from kcal.metrics import ReliabilityBins

Floats = NDArray[np.float64]

WIDTH, LEFT, RIGHT, TOP = 320.0, 38.0, 10.0, 10.0
SIDE = WIDTH - LEFT - RIGHT
STRIP, GAP, FOOT = 44.0, 30.0, 34.0


def element(tag: str, content: str = "", /, **attributes: object) -> str:
    """Return an element of SVG; ``class_`` is class, and underscores of other names become hyphens.

    Numbers are rounded. Attributes and content are written as they are: text of a user must be escaped before.
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    text = "".join(f' {name}="{_number(value) if isinstance(value, float) else value}"' for name, value in pairs)
    return f"<{tag}{text}>{content}</{tag}>"


def reliability_chart(curve: ReliabilityBins, confidence: float, *, label: str) -> str:
    """Return observed frequency over mean prediction with intervals, the diagonal, and counts by bin below."""
    lows, highs = curve.frequency_bands(confidence)
    bottom = TOP + SIDE
    filled = np.flatnonzero(curve.counts)
    points = [(_x(curve.mean_prediction[b]), _y(curve.observed_frequency[b])) for b in filled]
    parts = [_grid(), element("line", x1=_x(0), y1=_y(0), x2=_x(1), y2=_y(1), class_="diagonal")]
    for b in filled:
        x = _x(curve.mean_prediction[b])
        top, height = _y(highs[b]), _y(lows[b]) - _y(highs[b])
        parts.append(element("rect", x=x - 4, y=top, width=8.0, height=max(height, 1.0), rx=2, class_="band"))
    if len(points) > 1:
        parts.append(
            element("polyline", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), class_="curve")
        )
    for b, (x, y) in zip(filled, points, strict=True):
        tooltip = element("title", _bin_text(curve, int(b), float(lows[b]), float(highs[b])))
        parts.append(element("circle", tooltip, cx=x, cy=y, r=4, class_="dot"))
    parts += _counts(curve, bottom + GAP)
    parts.append(_text(LEFT + SIDE / 2, bottom + GAP + STRIP + 30, "probability", anchor="middle"))
    parts.append(_text(LEFT + 6, TOP + 14, "observed frequency"))
    return _svg(bottom + GAP + STRIP + FOOT, label, "".join(parts))


def _counts(curve: ReliabilityBins, top: float) -> list[str]:
    """Return bars of the counts, over the widths of their bins, and the largest count."""
    largest = max(int(curve.counts.max()), 1)
    bars = []
    for count, low, high in zip(curve.counts, curve.edges[:-1], curve.edges[1:], strict=True):
        height = STRIP * float(count) / largest
        tooltip = element("title", f"{count:,} labelled predictions from {low:.2f} to {high:.2f}")
        x, width = _x(low) + 1, max(_x(high) - _x(low) - 2, 1.0)
        bars.append(element("rect", tooltip, x=x, y=top + STRIP - height, width=width, height=height, class_="count"))
    axis = element("line", x1=_x(0), y1=top + STRIP, x2=_x(1), y2=top + STRIP, class_="axis")
    ticks = [_text(_x(tick), top + STRIP + 14, f"{tick:g}", anchor="middle") for tick in (0.0, 0.5, 1.0)]
    return [*bars, axis, *ticks, _text(LEFT - 6, top + 9, f"{largest:,}", anchor="end")]


def _grid() -> str:
    lines = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        lines.append(element("line", x1=_x(0), y1=_y(tick), x2=_x(1), y2=_y(tick), class_="grid"))
        lines.append(element("line", x1=_x(tick), y1=_y(0), x2=_x(tick), y2=_y(1), class_="grid"))
        lines.append(_text(LEFT - 6, _y(tick) + 4, f"{tick:g}", anchor="end"))
        lines.append(_text(_x(tick), _y(0) + 15, f"{tick:g}", anchor="middle"))
    return "".join(lines)


def _bin_text(curve: ReliabilityBins, b: int, low: float, high: float) -> str:
    return (
        f"{curve.counts[b]:,} labelled predictions, mean probability {curve.mean_prediction[b]:.3f}, "
        f"observed {curve.observed_frequency[b]:.3f} (interval {low:.3f} to {high:.3f})"
    )


def evidence_chart(shares: Floats, *, label: str, mark_lowest: bool = False) -> str:
    """Return a histogram of the evidence in tenths, with the line at which rows like the calibration set are."""
    height, bottom = 130.0, 150.0
    highest = max(float(shares.max()), 0.2)
    parts = []
    for tick in (0.0, highest / 2, highest):
        y = bottom - height * tick / highest
        parts.append(element("line", x1=_x(0), y1=y, x2=_x(1), y2=y, class_="grid"))
        parts.append(_text(LEFT - 6, y + 4, f"{100 * tick:.0f} %", anchor="end"))
    for place, share in enumerate(shares):
        size = height * float(share) / highest
        tooltip = element("title", f"evidence {place / 10:.1f} to {(place + 1) / 10:.1f}: {100 * share:.1f} %")
        kind = "count low" if mark_lowest and place == 0 else "count"
        x, width = _x(place / 10) + 1.5, SIDE / 10 - 3
        parts.append(element("rect", tooltip, x=x, y=bottom - size, width=width, height=size, class_=kind))
    y = bottom - height * 0.1 / highest
    parts.append(element("line", x1=_x(0), y1=y, x2=_x(1), y2=y, class_="expected"))
    parts.append(element("line", x1=_x(0), y1=bottom, x2=_x(1), y2=bottom, class_="axis"))
    parts += [_text(_x(tick), bottom + 15, f"{tick:g}", anchor="middle") for tick in (0.0, 0.5, 1.0)]
    parts.append(_text(LEFT + SIDE / 2, bottom + 30, "evidence", anchor="middle"))
    return _svg(bottom + 36, label, "".join(parts))


def range_bar(expected: float | None, value: float, low: float, high: float, *, highest: float) -> str:
    """Return a frequency as a dot with its interval, and the expected one as a tick, on a scale up to ``highest``."""
    parts = [element("line", x1="0%", y1=9, x2="100%", y2=9, class_="grid")]
    width = max(_share(high, highest) - _share(low, highest), 0.0)
    parts.append(element("rect", x=_percent(low, highest), y=5, width=f"{width:.2f}%", height=8, rx=3, class_="band"))
    if expected is not None:
        x = _percent(expected, highest)
        parts.append(element("line", x1=x, y1=1, x2=x, y2=17, class_="tick"))
    parts.append(element("circle", cx=_percent(value, highest), cy=9, r=4, class_="dot"))
    return _bar("".join(parts))


def share_bar(share: float) -> str:
    """Return a share from 0 to 1 as a bar."""
    track = element("rect", x=0, y=6, width="100%", height=6, rx=3, class_="track")
    return _bar(track + element("rect", x=0, y=6, width=_percent(share, 1.0), height=6, rx=3, class_="fill"))


def wealth_bar(log_wealth: float, alpha: float, *, is_alarm: bool) -> str:
    """Return the way to the alarm as a bar on a logarithmic scale: empty up to the initial wealth of 1, full at 1/α."""
    reached = max(log_wealth, 0.0) / -log(alpha)
    kind = "fill alarming" if is_alarm else "fill"
    track = element("rect", x=0, y=6, width="100%", height=6, rx=3, class_="track")
    width = _percent(1.0 if is_alarm else reached, 1.0)
    return _bar(track + element("rect", x=0, y=6, width=width, height=6, rx=3, class_=kind))


def _svg(height: float, label: str, content: str) -> str:
    """Return a chart that scales with its place; screen readers read the label and the table."""
    box = f"0 0 {WIDTH:g} {height:g}"
    return element("svg", content, viewBox=box, role="img", aria_label=escape(label), class_="chart")


def _bar(content: str) -> str:
    """Return a bar that is as wide as its place; its numbers are text in the same row."""
    return element("svg", content, width="100%", height=18, aria_hidden="true", class_="bar")


def _text(x: float, y: float, content: str, *, anchor: str = "start") -> str:
    return element("text", content, x=x, y=y, text_anchor=anchor)


def _x(value: float) -> float:
    return LEFT + SIDE * float(value)


def _y(value: float) -> float:
    return TOP + SIDE * (1.0 - float(value))


def _share(value: float, highest: float) -> float:
    return 100.0 * min(max(float(value) / highest, 0.0), 1.0)


def _percent(value: float, highest: float) -> str:
    return f"{_share(value, highest):.2f}%"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
