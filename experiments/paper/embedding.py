"""Embeddings and logits of a trained network as a task of the benchmark, and logits of its companions beside it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from experiments.paper.checkpoints import Checkpoint
from experiments.paper.inputs import Batches
from experiments.paper.prepared import PreparedData
from kcal import ClassifierOutputs, extract
from kcal.benchmark import Task, write_task
from kcal.errors import InvalidInputError
from kcal.files import write_whole

CALIBRATION_SHARE, GROUP_CALIBRATION_SHARE = 0.05, 0.20
"""Shares of the samples and of the groups of the pool that calibrate, as in the paper."""


def outputs_of(checkpoint: Checkpoint, data: PreparedData, part: str) -> ClassifierOutputs:
    """Return the outputs of a trained network on "train", without the oversampled samples, or on another part."""
    rows = data.rows(part)
    if data.oversampled is not None:
        rows = rows[~data.oversampled[rows]]
    if not len(rows):
        raise InvalidInputError("data", f"must have samples in {part}", got="none")
    outputs = extract(checkpoint.chosen_network(data), Batches(data, rows, checkpoint.settings))
    of_rows = None if data.groups is None else data.groups[rows]
    return ClassifierOutputs(outputs.embeddings, outputs.logits, outputs.labels, of_rows)


def embed(checkpoint: Checkpoint, data: PreparedData, path: str | Path, *, share: float | None = None) -> Task:
    """Write a task of the outputs of a network trained with cross-entropy, with the groups if there are any.

    Parameters
    ----------
    checkpoint : Checkpoint
    data : PreparedData
    path : path
        NAME.npz.
    share : float, optional
        Share of the samples that calibrate in a split by row; by default that of the data set, or 5%. In a split by
        group, 20% of the groups calibrate.
    """
    train, pool = (outputs_of(checkpoint, data, part) for part in ("train", "pool"))
    if share is None:
        share = CALIBRATION_SHARE if data.calibration_share is None else data.calibration_share
    group_share = None if data.groups is None else GROUP_CALIBRATION_SHARE
    return write_task(
        path, train, pool, calibration_share=share, group_calibration_share=group_share, classes=data.classes
    )


def embed_companion(checkpoint: Checkpoint, data: PreparedData, path: str | Path) -> Path:
    """Write the logits of a network trained with another loss beside a task, NAME@LOSS.npz; return that path."""
    task = Path(path)
    loss = checkpoint.description["loss"]
    if loss == "cross-entropy":
        raise InvalidInputError("companion", "must be trained with the loss focal or mmce", got=loss)
    pool = outputs_of(checkpoint, data, "pool")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, pool_logits=pool.logits, pool_labels=pool.labels.astype(np.int32))
    return write_whole(task.with_name(f"{task.stem}@{loss}.npz"), buffer.getvalue())
