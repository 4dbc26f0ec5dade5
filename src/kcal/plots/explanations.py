"""The most influential calibration samples of a prediction, as bars and images."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.plots.style import COUNTS, GAP, OBSERVED_EDGE, SERIES, check_kind, wrap_label
from kcal.validation import check_integer, shown, to_numbers

if TYPE_CHECKING:
    from kcal.calibrators import Explanation

DRAWN_CLASSES, DRAWN_SAMPLES = 4, 12
"""Classes with a colour of their own, and samples with a bar and an image, at most."""
OTHERS = "#B0B0B0"
QUERY = "to explain"
IMAGES_PER_ROW = 6
INCHES_PER_LETTER = 0.085  # of the names above images


def explanation(
    explanation: Explanation,
    row: int = 0,
    images: ArrayLike | None = None,
    *,
    query: ArrayLike | None = None,
    figure: Figure | SubFigure | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the shares of calibration samples and of everything else in one prediction, by class.

    Bars of one colour sum to the probability of a class. Of a blend there are also the contributions to the log-odds of
    the two most probable classes, which sum to these.

    Parameters
    ----------
    explanation
        What ``explain`` of a fitted `KCal` or `KCalBlend` returns.
    row
        Position of the prediction.
    images
        Images of the whole calibration set, (n, height, width) or (n, height, width, 3): those of the samples are
        drawn above the bars.
    query
        The image of the prediction, (height, width) or (height, width, 3), drawn before them.
    figure, title
        Figure to draw on, a new one of fitting size if None, and its title.

    Returns
    -------
    Axes
        That of the bars; the others are in its figure, ``ax.figure``.
    """
    from kcal.calibrators import Explanation  # here, because it imports torch, which other plots do not need

    check_kind(explanation, "explanation", Explanation, "the result of calibrator.explain(X)")
    row = check_integer(row, "row", minimum=0, maximum=len(explanation) - 1)
    one = explanation[row]
    n_samples = min(one.ids.shape[1], DRAWN_SAMPLES)
    thumbnails: list[tuple[tuple[Any, ...], NDArray[Any]]] = []
    if query is not None:
        thumbnails.append(((QUERY,), _image(query, "query")))
    if images is not None:
        found = _images(images, one.rows[0, :n_samples])
        thumbnails += [((one.ids[0, i], one.labels[0, i]), found[i]) for i in range(n_samples)]
    n_panels, n_image_rows = 2 if one.log_odds else 1, ceil(len(thumbnails) / IMAGES_PER_ROW)
    bars_height, images_height = 1.4 + 0.3 * (n_samples + 2 + len(one.parts)), 1.7 * n_image_rows
    if figure is None:
        figure = Figure(figsize=(6.8 if n_panels == 1 else 11.0, bars_height + images_height), layout="constrained")
    heights = [images_height, bars_height] if thumbnails else [bars_height]
    panels = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    columns = panels[-1, 0].subgridspec(1, n_panels, width_ratios=[1.5, 1.0][:n_panels])
    axes = [figure.add_subplot(columns[0, place]) for place in range(n_panels)]
    _draw_shares(axes[0], one, n_samples)
    if one.log_odds:
        _draw_log_odds(axes[1], one)
    figure.suptitle(one.heading() if title is None else title)
    if thumbnails:
        _draw_images(figure, panels[0, 0], thumbnails)
    return axes[0]


def _draw_shares(ax: Axes, one: Explanation, n_samples: int) -> None:
    """Draw a bar for each sample, for all others and for each part; colours are classes."""
    top = np.argsort(-one.probabilities[0], kind="stable")[:DRAWN_CLASSES]
    names = [
        f"{_text(one.ids[0, i])}: {_text(one.labels[0, i])}, distance {one.distances[0, i]:.3g}"
        for i in range(n_samples)
    ]
    shares = np.zeros((n_samples, len(one.classes)))
    shares[np.arange(n_samples), one.codes[0, :n_samples]] = one.shares[0, :n_samples]
    left_out = one.sample_shares()[0] - shares.sum(axis=0)  # samples without a bar
    rows = np.vstack([shares, one.rest[0] + left_out, *(part[0] for part in one.parts.values())])
    names += ["other samples", *one.parts]
    others = np.setdiff1d(np.arange(len(one.classes)), top)
    groups = [(_text(one.classes[k]), np.array([k]), SERIES[place]) for place, k in enumerate(top)]
    groups += [("other classes", others, OTHERS)] if len(others) else []
    places, starts = np.arange(len(rows)), np.zeros(len(rows))
    for name, codes, colour in groups:
        widths = rows[:, codes].sum(axis=1)
        label = f"{name}: {one.probabilities[0, codes].sum():.4f}"
        ax.barh(places, widths, left=starts, color=colour, label=label, height=0.75)
        starts = starts + widths
    for place, share in enumerate(starts):
        ax.annotate(f"{share:.3g}", (share, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(places, names, fontsize=8)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 1.2 * max(starts.max(), 1e-12))
    ax.axhline(n_samples - 0.5, color=COUNTS, linewidth=0.6, linestyle=":")
    ax.set_xlabel("share of the probability")
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
    heading: dict[str, Any] = {"title": "probability of each class", "title_fontsize": 8, "fontsize": 8}
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, frameon=False, **heading)


def _draw_log_odds(ax: Axes, one: Explanation) -> None:
    """Draw a bar for each contribution, to the right if it is for the first class; infinite ones reach the edge."""
    values, places = np.array([term[0] for term in one.log_odds.values()]), np.arange(len(one.log_odds))
    finite = np.where(np.isfinite(values), values, 0.0)
    reach = 1.7 * max(np.abs(finite).max(), 1e-3)
    widths = np.clip(values, -reach, reach)
    ax.barh(places, widths, color=np.where(values >= 0, OBSERVED_EDGE, GAP), height=0.75)
    for place, (value, width) in enumerate(zip(values, widths, strict=True)):
        inside = not np.isfinite(value)
        text, side = f"{value:+.2f}", -1 if (value < 0) != inside else 1
        style: dict[str, Any] = {"ha": "right" if side < 0 else "left", "va": "center", "fontsize": 8}
        ax.annotate(text, (width, place), xytext=(4 * side, 0), textcoords="offset points", **style)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(places, list(one.log_odds), fontsize=8)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xlim(-reach if (values < 0).any() else -0.1 * reach, reach if (values > 0).any() else 0.1 * reach)
    ax.set_xlabel("contribution to the log-odds")
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
    first, second = map(_text, one.top[0])
    ax.set_title(f"log-odds of {first}\nagainst {second}: {values.sum():+.2f}", fontsize=9)


def _draw_images(figure: Any, panel: Any, thumbnails: list[tuple[tuple[Any, ...], NDArray[Any]]]) -> None:
    """Draw images in rows, each below its names."""
    n_columns = min(len(thumbnails), IMAGES_PER_ROW)
    grid = panel.subgridspec(ceil(len(thumbnails) / n_columns), n_columns)
    width = max(int(figure.get_figure(root=True).get_figwidth() / n_columns / INCHES_PER_LETTER), 6)
    for place, (names, image) in enumerate(thumbnails):
        ax = figure.add_subplot(grid[divmod(place, n_columns)])
        ax.imshow(image, cmap="gray", interpolation="nearest")
        ax.set_title("\n".join(wrap_label(str(name), width=width, lines=1) for name in names), fontsize=8)
        ax.set(xticks=[], yticks=[])
        if names == (QUERY,):
            ax.spines[:].set(color=GAP, linewidth=2)


def _images(images: Any, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the images at some rows, and read no others: ``images`` may be a memory map."""
    if len(getattr(images, "shape", ())) not in (3, 4):
        expected = "must be an array of images, (n, height, width) or (n, height, width, 3)"
        raise InvalidInputError("images", expected, got=shown(images))
    if rows.min() < 0:
        raise InvalidInputError("images", "must be left out: some support points are not rows of the calibration set")
    if len(images) <= rows.max():
        expected = f"must have an image for each row of the calibration set, at least {rows.max() + 1:,}"
        raise InvalidInputError("images", expected, got=f"{len(images):,}")
    return [_image(images[row], "images") for row in rows.tolist()]


def _image(image: Any, name: str) -> NDArray[Any]:
    """Return an image as numbers, colours from 0 to 1."""
    array = np.asarray(to_numbers(image, name))
    coloured = array.ndim == 3 and array.shape[2] in (3, 4)
    if not (array.ndim == 2 or coloured) or not np.isfinite(array).all():
        expected = "must be of shape (height, width) or (height, width, 3), of finite numbers"
        raise InvalidInputError(name, expected, got=f"one of shape {array.shape}")
    return np.clip(array / (255.0 if array.max() > 1 else 1.0), 0.0, 1.0) if coloured else array


def _text(name: object) -> str:
    return wrap_label(str(name), width=24, lines=1)
