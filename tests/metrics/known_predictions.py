"""Random predictions: strategies of hypothesis, and draws whose true probabilities are known."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax


@st.composite
def coarse_predictions(draw, most=40):
    """Probabilities of few distinct values, so that ties and exact zeros and ones are common, and labels."""
    n, k = draw(st.integers(1, most)), draw(st.integers(2, 5))
    whole = draw(arrays(np.int64, (n, k), elements=st.integers(0, 4)))
    whole[whole.sum(axis=1) == 0] = 1
    return whole / whole.sum(axis=1, keepdims=True), draw(arrays(np.int64, n, elements=st.integers(0, k - 1)))


@st.composite
def random_predictions(draw, min_size=1):
    n, k = draw(st.integers(min_size, 25)), draw(st.integers(2, 5))
    generator = np.random.default_rng(draw(st.integers(0, 10_000)))
    concentration = draw(st.sampled_from([0.2, 1.0, 10.0]))
    return generator.dirichlet(np.full(k, concentration), size=n), generator.integers(0, k, size=n)


def draw_labels(true, generator):
    """One label a row, from its true probabilities."""
    places = (generator.random(len(true))[:, None] > true.cumsum(axis=1)).sum(axis=1)
    return np.minimum(places, true.shape[1] - 1)


MEAN_OVER_ONE_HALF = 1 / 3
"""The confidences of `two_classes` are on average one half and this: Beta(3, 3/2) has the mean 2/3."""


def two_classes(n, slope, generator):
    """Confidences c whose true rate of being right is c − slope·(c − ½)."""
    c = 0.5 + 0.5 * generator.beta(3, 1.5, n)
    right = generator.random(n) < c - slope * (c - 0.5)
    return np.column_stack([c, 1 - c]), np.where(right, 0, 1)


def three_classes(generator, temperature, n=400):
    logits = 2 * generator.normal(size=(n, 3))
    probs, true = softmax(logits, axis=1), softmax(logits / temperature, axis=1)
    return probs, true, draw_labels(true, generator)


def five_classes(n, flatter, generator):
    """Predictions p whose true distribution is p^(1 − flatter), normalised: overconfident for every class."""
    logits = 2.2 * generator.normal(size=(n, 5))
    logits[np.arange(n), generator.integers(5, size=n)] += 2.0
    true = softmax(logits * (1 - flatter), axis=1)
    return softmax(logits, axis=1), true, draw_labels(true, generator)


def sharp_classes(n, bias, temperature, generator):
    """Ten classes, the top one far ahead; labels follow the same logits, flattened unless the temperature is 1."""
    logits = generator.normal(size=(n, 10))
    logits[np.arange(n), generator.integers(10, size=n)] += bias
    true = softmax(logits / temperature, axis=1)
    return softmax(logits, axis=1), true, draw_labels(true, generator)


def hundred_classes(n, how, generator):
    """Logits of 100 classes: predictions sharper than the truth, half of the truth random, or the truth itself."""
    logits = 2 * generator.normal(size=(n, 100))
    probs = softmax(1.5 * logits if how == "sharpened" else logits, axis=1)
    true = 0.5 * probs + 0.005 if how == "half random" else softmax(logits, axis=1)
    return probs, true, draw_labels(true, generator)


def true_classwise_error(probs, true, *, adaptive=False, bins=15, threshold=0.0):
    """The class-wise error over the same bins if every frequency were what it is on average."""
    errors = []
    for k in range(probs.shape[1]):
        kept = np.flatnonzero(probs[:, k] >= threshold)
        order = kept[np.argsort(probs[kept, k])]
        sizes = [len(kept) // bins + (b >= bins - len(kept) % bins) for b in range(bins)]
        equal_width = np.searchsorted(probs[order, k], np.arange(1, bins) / bins, "right")
        parts = np.split(order, np.cumsum(sizes)[:-1] if adaptive else equal_width)
        errors.append(sum(abs((true[part, k] - probs[part, k]).sum()) for part in parts) / len(kept))
    return float(np.mean(errors))
