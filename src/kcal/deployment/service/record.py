"""The latest predictions of a model, and the latest with labels, in arrays of fixed size."""

from __future__ import annotations

import base64
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.rings import RowRing
from kcal.deployment.service.snapshot import ObservedPrediction

WATCHED_AT_ONCE = 256
"""Rows whose density a snapshot computes, at most: the latest. Embeddings and logits of earlier ones are not kept."""


class PredictionRecord:
    """Predictions and labels by id. Two rings have ``capacity`` rows each: all predictions, and those with labels."""

    def __init__(self, classes: NDArray[Any], capacity: int) -> None:
        self.classes = classes
        self.recent, self.labelled = RowRing(capacity), RowRing(capacity)
        self.inputs = RowRing(min(capacity, WATCHED_AT_ONCE))  # of the latest in ``recent``, with the same numbers
        self._codes = {str(label): code for code, label in enumerate(classes.tolist())}

    def add(
        self,
        ids: Sequence[str] | None,
        probs: NDArray[np.float64],
        *,
        evidence: NDArray[Any] | None = None,
        groups: Sequence[Any] | None = None,
        embeddings: NDArray[Any] | None = None,
        logits: NDArray[Any] | None = None,
    ) -> None:
        """Add predictions, (n, n_classes), in their order, with what is known of each."""
        rows = {
            "probs": probs,
            "time": np.full(len(probs), time.time()),
            "code": np.full(len(probs), -1, dtype=np.int64),
            "evidence": None if evidence is None else np.asarray(evidence, dtype=np.float64).reshape(len(probs)),
            "group": None if groups is None else _texts(groups),
        }
        inputs = {
            "time": rows["time"],  # all rows have one
            "embedding": None if embeddings is None else np.asarray(embeddings),
            "logits": None if logits is None else np.asarray(logits),
        }
        names = None if ids is None else [str(name) for name in ids]
        self.recent.append(names, rows)
        self.inputs.append(names, inputs)

    def label(self, name: str, label: Any, group: Any) -> int:
        """Set the label of an id; unknown ids and labels are ignored.

        Returns the number of the labelled row that had another label before; −1 if there is none.
        """
        code = self._codes.get(str(label))
        if code is None:
            return -1
        place, known = self.recent.place_of(name), self.labelled.place_of(name)
        is_first = place is not None and self.recent.columns["code"][place] < 0
        if place is not None:
            self.recent.columns["code"][place] = code
        if known is not None:
            codes = self.labelled.columns["code"]
            changed = int(self.labelled.numbers[known]) if codes[known] != code else -1
            codes[known] = code
            return changed
        if place is not None and is_first:
            groups = _texts([self.recent.value("group", place) or group])
            row = {"probs": self.recent.columns["probs"][[place]], "code": np.array([code]), "group": groups}
            self.labelled.append([name], row)
        return -1

    def labelled_state(self, places: NDArray[np.intp]) -> dict[str, Any]:
        """Return some of the labelled predictions in a form that JSON can represent."""
        rows = self.labelled.rows(places, ("probs", "code", "group"))
        return {
            "ids": [self.labelled.name_at(place) for place in places.tolist()],
            "probs": base64.b64encode(rows["probs"].astype("<f8").tobytes()).decode() if len(places) else "",
            "codes": rows["code"].tolist() if len(places) else [],
            "groups": rows["group"].tolist() if len(places) else [],
        }

    def restore_labelled(self, state: dict[str, Any]) -> int:
        """Add the labelled predictions of :meth:`labelled_state`, at most the latest ``capacity``; return how many.

        Raises ValueError if its parts do not fit together.
        """
        ids, codes, groups = (state[name][-self.labelled.capacity :] for name in ("ids", "codes", "groups"))
        shape = (len(state["ids"]), len(self.classes))
        probs = np.frombuffer(base64.b64decode(state["probs"], validate=True), dtype="<f8").reshape(shape)[-len(ids) :]
        texts = all(type(name) is str for name in ids) and all(type(group) in (str, type(None)) for group in groups)
        if not texts or not len(set(ids)) == len(codes) == len(groups) == len(ids):
            raise ValueError("ids, labels and groups of labelled predictions")
        if not (all(type(code) is int and 0 <= code < shape[1] for code in codes) and (probs >= 0).all()):
            raise ValueError("labels and probabilities of labelled predictions")
        if ids:
            row = {"probs": probs.astype(np.float64), "code": np.array(codes), "group": _texts(groups)}
            self.labelled.append(ids, row)
        return len(ids)

    def prediction(self, place: int) -> ObservedPrediction:
        """Return the prediction at a place of the ring."""
        ring, number = self.recent, int(self.recent.numbers[place])
        code, evidence = int(ring.value("code", place)), ring.value("evidence", place)
        return ObservedPrediction(
            id=ring.name_at(place),
            number=number,
            time=float(ring.value("time", place)),
            probs=ring.value("probs", place).copy(),
            label=None if code < 0 else self.classes[code].item(),
            evidence=None if evidence is None or np.isnan(evidence) else float(evidence),
            group=ring.value("group", place),
            embedding=self._input("embedding", number),
            logits=self._input("logits", number),
        )

    def _input(self, column: str, number: int) -> NDArray[Any] | None:
        """Return a copy of the embedding or the logits of a prediction; None if they are not known."""
        place = number % self.inputs.capacity
        row = self.inputs.value(column, place) if self.inputs.numbers[place] == number else None
        return None if row is None or not np.isfinite(row).all() else row.copy()


class PredictionInputs:
    """What the calibrator was given for the latest predictions of a model, by id, until they get their labels.

    All versions of a model share one, and it outlives each of them, so that feedback can name a prediction whatever
    was loaded since; safe to use from any thread. A labelled sample is in the calibration store.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._lock = capacity, threading.Lock()
        self._rows: OrderedDict[str, tuple[str, dict[str, NDArray[Any]]]] = OrderedDict()

    def add(self, ids: Sequence[str], rows: Mapping[str, NDArray[Any]], network: str) -> None:
        """Add predictions: embeddings and logits, (n, ·) each, and the checksum of the network that computed them."""
        with self._lock:
            for place, name in enumerate(ids):
                self._rows[name] = network, {key: part[place : place + 1].copy() for key, part in rows.items()}
                self._rows.move_to_end(name)
            while len(self._rows) > self._capacity:
                self._rows.popitem(last=False)

    def find(self, name: str, network: str) -> dict[str, NDArray[Any]]:
        """Return embeddings and logits of a prediction, (1, ·) each; none if it is not known, or of another network."""
        with self._lock:
            checksum, rows = self._rows.get(name, (network, {}))
        return rows if checksum == network else {}

    def remove(self, ids: Iterable[str]) -> None:
        """Remove predictions, because they are in the store or are erased."""
        with self._lock:
            for name in ids:
                self._rows.pop(name, None)


def _texts(values: Sequence[Any]) -> NDArray[Any]:
    """Return groups as text, None where there is none, (n,)."""
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if value is None else str(value) for value in values]
    return texts
