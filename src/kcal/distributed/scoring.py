"""Score rows of a table with a fitted model: the one function behind every engine."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kcal.calibrators import Calibrator, predict_on
from kcal.deployment import CalibratedClassifier
from kcal.distributed.parts import Part
from kcal.distributed.tables import Columns, matrix_of, prediction_columns
from kcal.embeddings import ClassifierOutputs
from kcal.embeddings.networks import checksum
from kcal.errors import InvalidInputError, KcalError, KcalWarning
from kcal.files import atomic_path
from kcal.persistence import load_calibrator, to_bytes
from kcal.threads import one_thread
from kcal.validation import shown

Model = Calibrator | CalibratedClassifier
BLOCK_ROWS = 16_384
"""Rows that a calibrator gets at once: a multiple of the blocks in which projections and kernel sums are computed."""
NETWORK_ROWS = 256
"""Rows that a network gets at once."""


def get_model(model: Any) -> Model:
    """Return a fitted calibrator or a classifier with one; a path is that of a saved calibrator."""
    if isinstance(model, CalibratedClassifier | Calibrator):
        _ = model.classes_  # raises if it is not fitted
        return model
    if isinstance(model, str | Path):
        return load_calibrator(model)
    raise InvalidInputError("model", "must be a calibrator, a CalibratedClassifier or a file", got=shown(model))


def calibrator_of(model: Model) -> Calibrator:
    """Return the calibrator of a model."""
    if isinstance(model, CalibratedClassifier):
        assert model.calibrator is not None
        return model.calibrator
    return model


def model_digest(model: Model) -> str:
    """Return a hash of everything that predictions depend on."""
    digest = hashlib.sha256(to_bytes(calibrator_of(model)))
    if isinstance(model, CalibratedClassifier):
        digest.update(checksum(model.network).encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Done:
    """A part that is written, with the warnings of its prediction, class and text; or the error that prevented it."""

    name: str
    rows: int
    warnings: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True, eq=False)
class Scorer:
    """A model with the columns that it takes; ``rows`` are those that it gets at once."""

    model: Model
    columns: Columns
    rows: int = BLOCK_ROWS
    evidence: bool = False

    def to(self, device: str) -> None:
        """Move the model to a device, where it can run on one."""
        if hasattr(self.model, "to"):
            self.model.to(device)

    def table(self, rows: Any) -> Any:
        """Return the predictions for the rows of a table, of pyarrow."""
        import pyarrow

        outputs = self._outputs(rows)
        calibrator = calibrator_of(self.model)
        probs = np.asarray(predict_on(calibrator, outputs))
        evidence = np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs))) if self.evidence else None
        ids = None if self.columns.ids is None else rows.column(self.columns.ids)
        id_column = self.columns.id_name
        columns = prediction_columns(probs, self.model.classes_, ids=ids, id_column=id_column, evidence=evidence)
        return pyarrow.table(columns)

    def write(self, part: Part, folder: Path) -> Done:
        """Write the predictions of a part, unless they are there; return an error of the data or the files as text."""
        target = folder / part.name
        if target.exists():
            return Done(part.name, len(part))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", KcalWarning)
            try:
                with one_thread(), atomic_path(target) as temporary:
                    self._write_blocks(part, temporary)
            except (KcalError, OSError) as error:
                return Done(part.name, 0, error=f"{part.path}, rows {part.start:,} to {part.stop:,}: {error}")
        issued = dict.fromkeys((entry.category.__name__, str(entry.message)) for entry in caught)
        return Done(part.name, len(part), tuple(issued))

    def _write_blocks(self, part: Part, path: Path) -> None:
        from pyarrow.parquet import ParquetWriter

        writer = None
        try:
            for block in part.blocks(self.columns.names, self.rows):
                scored = self.table(block)
                writer = writer or ParquetWriter(path, scored.schema)
                writer.write_table(scored)
        finally:
            if writer is not None:
                writer.close()

    def _outputs(self, rows: Any) -> ClassifierOutputs:
        features = matrix_of(rows, self.columns.features)
        if isinstance(self.model, CalibratedClassifier):
            like = next(self.model.network.parameters(), torch.empty(0))
            inputs = torch.as_tensor(features, device=like.device)
            return self.model.outputs(inputs.to(like.dtype) if features.dtype.kind == "f" else inputs, labelled=False)
        if self.model.inputs == "logits":
            return ClassifierOutputs(logits=features)
        return ClassifierOutputs(features, matrix_of(rows, self.columns.logits) if self.columns.logits else None)
