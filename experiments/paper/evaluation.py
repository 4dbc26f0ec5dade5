"""How good a network is: accuracy, F1 of every class and log-loss, by sample or by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn.metrics import f1_score
from torch import nn

from experiments.paper.inputs import Batches
from experiments.paper.prepared import PreparedData
from experiments.paper.settings import Settings
from kcal import extract


@dataclass(frozen=True)
class Evaluation:
    """Scores of a classifier.

    Attributes
    ----------
    accuracy, macro_f1, log_loss : float
    f1 : tuple of float
        Of every class.
    """

    accuracy: float
    macro_f1: float
    log_loss: float
    f1: tuple[float, ...]


def evaluate(logits: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None) -> Evaluation:
    """Score logits (n, n_classes); with groups, the mean log-probabilities of each, whose label is that of all in it.

    F1_k = 2 tp_k / (2 tp_k + fp_k + fn_k), 0 for a class that is neither there nor predicted.
    """
    log_probs: NDArray[np.float64] = log_softmax(np.asarray(logits, np.float64), axis=1)
    classes = np.asarray(labels)
    if groups is not None:
        _, first, codes = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
        sums = np.zeros((len(first), log_probs.shape[1]))
        np.add.at(sums, codes, log_probs)
        log_probs, classes = sums / np.bincount(codes)[:, None], classes[first]
    predicted = log_probs.argmax(axis=1)
    f1 = f1_score(classes, predicted, labels=np.arange(log_probs.shape[1]), average=None, zero_division=0.0)
    return Evaluation(
        accuracy=float(np.mean(predicted == classes)),
        macro_f1=float(np.mean(f1)),
        log_loss=float(-log_probs[np.arange(len(classes)), classes].mean()),
        f1=tuple(float(value) for value in f1),
    )


def evaluate_part(network: nn.Module, data: PreparedData, settings: Settings, part: str) -> Evaluation | None:
    """Score a network on "validation" or "pool", by group if the settings say so; None if the part is empty."""
    rows = data.rows(part)
    if not len(rows):
        return None
    outputs = extract(network, Batches(data, rows, settings), progress=False)
    groups = data.groups[rows] if settings.by_group and data.groups is not None else None
    return evaluate(outputs.logits, outputs.labels, groups)
