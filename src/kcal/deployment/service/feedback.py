"""Feedback: labels, corrections and erasures of predictions, checked before any of them is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.errors import bad_request
from kcal.deployment.service.inference import check_id
from kcal.deployment.service.predictors import ServedPredictor, TensorSpec
from kcal.deployment.service.tensors import Tensor, decode_json, nested_shape
from kcal.errors import InvalidInputError

MOST_RECORDS = 10_000
FIELDS = ("id", "label", "correction", "erase", "group")
"""Fields of feedback, apart from the inputs of the model."""
LONGEST_GROUP = 256


@dataclass(frozen=True, eq=False)
class FeedbackRecord:
    """The label of one prediction or, without a label, the request to erase it."""

    id: str
    label: Any = None
    rows: Mapping[str, NDArray[Any]] | None = None  # embeddings and logits, (1, ·) each, if inputs were sent
    group: str | None = None

    @property
    def is_erasure(self) -> bool:
        """Whether everything that is known of the id is to be erased."""
        return self.label is None


def parse_feedback(content: Any, predictor: ServedPredictor) -> list[FeedbackRecord]:
    """Return the records of a request: an object, or a list of them."""
    entries = [content] if isinstance(content, dict) else content
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_RECORDS:
        raise bad_request(f"the body must be an object with id and label, or a list of 1 to {MOST_RECORDS} of them")
    labels = {str(label): label for label in predictor.classes.tolist()}
    return [_record(entry, predictor, labels) for entry in entries]


def _record(entry: Any, predictor: ServedPredictor, labels: Mapping[str, Any]) -> FeedbackRecord:
    if not isinstance(entry, dict):
        raise bad_request("each entry of the feedback must be an object")
    fields = (*FIELDS, *(spec.name for spec in predictor.inputs))
    unknown = next((key for key in entry if key not in fields), None)
    if unknown is not None:
        raise bad_request(f"feedback has no field {unknown!r}; its fields are {', '.join(fields)}")
    name = check_id(entry.get("id"))
    chosen = [key for key in ("label", "correction", "erase") if entry.get(key) is not None]
    if len(chosen) != 1:
        raise bad_request(f"feedback of {name!r} must have one of label, correction and erase")
    if chosen == ["erase"]:
        if entry["erase"] is not True or len(entry) > 2:
            raise bad_request(f"feedback of {name!r}: erase must be true, with the id alone")
        return FeedbackRecord(name)
    given = entry[chosen[0]]
    if type(given) is int:  # JSON may write the label 2.0 as 2
        given = next((label for label in labels.values() if label == given and type(label) is not bool), given)
    if type(given) not in (str, int, float, bool) or str(given) not in labels:
        known = ", ".join(list(labels)[:20])
        raise bad_request(f"feedback of {name!r}: the label must be a class of the model ({known}); got {given!r}")
    return FeedbackRecord(name, labels[str(given)], _rows(entry, predictor), _group(entry))


def _rows(entry: Mapping[str, Any], predictor: ServedPredictor) -> dict[str, NDArray[Any]] | None:
    """Return embeddings and logits of the inputs of a record, one row each; None if it has none."""
    given = [spec for spec in predictor.inputs if spec.name not in FIELDS and entry.get(spec.name) is not None]
    if not given:
        return None
    arrays = predictor.check({spec.name: _row(entry[spec.name], spec) for spec in given})
    try:
        return predictor.rows(arrays)
    except InvalidInputError as error:  # of the network, which does not take the values
        raise bad_request(f"feedback of {entry['id']!r}: {error}") from error


def _row(values: Any, spec: TensorSpec) -> Tensor:
    """Return the row of an input; its list may be that of one row, or of a tensor with one row."""
    shape = nested_shape(values)
    if len(shape) == len(spec.shape) - 1:
        values, shape = [values], (1, *shape)
    if len(shape) == len(spec.shape) and shape[0] != 1:
        raise bad_request(f"{spec.name} of feedback must be one row, of shape {list(spec.shape[1:])}")
    return Tensor(spec.name, spec.datatype, decode_json(spec.name, spec.datatype, shape or (0,), values))


def _group(entry: Mapping[str, Any]) -> str | None:
    group = entry.get("group")
    if group is not None and not (isinstance(group, str) and 0 < len(group) <= LONGEST_GROUP and group.isprintable()):
        raise bad_request(f"group must be printable text of at most {LONGEST_GROUP} characters")
    return group


def segments(records: Sequence[FeedbackRecord]) -> list[list[FeedbackRecord]]:
    """Return the records in order, cut where an id returns, so that a segment can be written in any order."""
    parts: list[list[FeedbackRecord]] = [[]]
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            parts.append([])
            seen = set()
        parts[-1].append(record)
        seen.add(record.id)
    return parts


def stacked(records: Sequence[FeedbackRecord], name: str) -> NDArray[np.float32] | None:
    """Return the embeddings or logits of records, (n, ·); None if the model does not take them."""
    rows = [record.rows[name] for record in records if record.rows is not None and name in record.rows]
    return np.concatenate(rows) if rows else None
