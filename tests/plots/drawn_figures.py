"""What figures hold, for tests of their structure."""

import io

import numpy as np
from matplotlib.colors import same_color


def rendered(figure):
    """The figure as PNG: drawing everything must not fail or warn."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=40)
    return image.getvalue()


def bars(ax, colour):
    return [patch for patch in ax.patches if same_color(patch.get_facecolor(), colour)]


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def overconfident(n_samples, n_classes, seed=0):
    """Probabilities that are too sure, and labels."""
    generator = np.random.default_rng(seed)
    true = generator.dirichlet(np.ones(n_classes), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    sharp = true**2
    return sharp / sharp.sum(axis=1, keepdims=True), labels


def boxes_inside(figure, artists):
    """Whether all of these lie within the figure, so that nothing is cut."""
    figure.draw_without_rendering()
    edges = figure.bbox.padded(1)
    boxes = [artist.get_window_extent() for artist in artists]
    return all(edges.x0 <= box.x0 and box.x1 <= edges.x1 and edges.y0 <= box.y0 and box.y1 <= edges.y1 for box in boxes)


def whole(axes):
    """The figure that an array of axes belongs to."""
    return axes.flat[0].get_figure(root=True)
