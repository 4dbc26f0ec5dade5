"""One sample at a time, by the habits of the library river: ``learn_one``, ``predict_one``, ``predict_proba_one``.

River need not be installed; where it is, the class is one of its classifiers.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from kcal.calibrators.base import Calibrator
from kcal.calibrators.kcal import KCal
from kcal.errors import InvalidInputError, without_warnings
from kcal.validation import check_integer, shown

if TYPE_CHECKING:
    Classifier = object
else:
    try:
        from river.base import Classifier
    except ImportError:
        Classifier = object

MAX_WARM_UP = 10**6


class RiverCalibrator(Classifier):
    """A KCal for river: samples are mappings from the names of features to numbers.

    Features are those of the first sample. Later on a missing one counts as 0, and a new one is ignored. The given
    calibrator is not changed: a copy of it learns.

    Parameters
    ----------
    calibrator : KCal, optional
        Unfitted, or fitted to embeddings with these features in the order of their names; then a copy learns on. By
        default ``KCal(projection="identity")``.
    warm_up : int
        Samples that are collected before an unfitted calibrator is fitted to them, of two classes at least. Until then
        the probabilities are the frequencies of the classes.

    Examples
    --------
    >>> from kcal.calibrators.river import RiverCalibrator
    >>> heights = [row * 7 % 60 for row in range(60)]
    >>> stream = [({"height": height}, "high" if height > 30 else "low") for height in heights]
    >>> model = RiverCalibrator()
    >>> for x, y in stream:
    ...     probs = model.predict_proba_one(x)
    ...     model.learn_one(x, y)
    >>> model.predict_one({"height": 50.5})
    'high'
    """

    def __init__(self, calibrator: Calibrator | None = None, warm_up: int = 20) -> None:
        if calibrator is not None and not (isinstance(calibrator, Calibrator) and calibrator.inputs == "embeddings"):
            raise InvalidInputError("calibrator", "must be a KCal", got=shown(calibrator))
        self.calibrator = calibrator
        self.warm_up = check_integer(warm_up, "warm_up", minimum=2, maximum=MAX_WARM_UP)
        self._features: list[Hashable] | None = None
        self._counts: Counter[Any] = Counter()
        self._waiting: list[tuple[NDArray[np.float64], Any, float]] = []
        given = KCal(projection="identity", progress=False) if calibrator is None else calibrator
        self._model: Any = copy.deepcopy(given) if given.__sklearn_is_fitted__() else clone(given)

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Mapping[Hashable, float], y: Any, w: float = 1.0) -> None:
        """Add a sample with its label and weight."""
        row = self._row(x)
        self._counts[y] += 1
        if self._model.__sklearn_is_fitted__():
            self._model.partial_fit(row[None], [y], sample_weight=[w])
            return
        self._waiting.append((row, y, w))
        if len(self._waiting) >= self.warm_up and len(self._counts) > 1:
            rows, labels, weights = zip(*self._waiting, strict=True)
            with without_warnings():  # a stream begins with few samples
                self._model.fit(np.stack(rows), list(labels), sample_weight=list(weights))
            self._waiting = []

    def predict_proba_one(self, x: Mapping[Hashable, float]) -> dict[Any, float]:
        """Return the probability of each class seen so far; nothing before the first sample."""
        if self._model.__sklearn_is_fitted__():
            log_probs, classes, _ = self._model._predict(self._row(x)[None], None)  # of one moment
            return dict(zip(classes.tolist(), log_probs[0].exp().tolist(), strict=True))
        total = sum(self._counts.values())
        return {label: count / total for label, count in self._counts.items()}

    def predict_one(self, x: Mapping[Hashable, float]) -> Any:
        """Return the most probable class; None before the first sample."""
        probs = self.predict_proba_one(x)
        return max(probs, key=probs.__getitem__) if probs else None

    def _row(self, x: Mapping[Hashable, float]) -> NDArray[np.float64]:
        if self._features is None:
            self._features = sorted(x, key=str)
        return np.array([float(x.get(name, 0.0)) for name in self._features])
