"""What the paper prints: all rows of its tables as data, and what differs where ours stand beside them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas

RESULTS = Path(__file__).parents[2] / "docs" / "results"
"""Folder of the stored results of the documentation."""
PAPER_METHODS = {
    "UnCal": "uncal", "TS": "ts", "DirCal": "dircal", "I-Max": "imax", "Focal": "focal", "Spline": "spline",
    "IOP": "iop", "GP": "gp", "MMCE": "mmce", "KCal": "kcal-paper",
}  # fmt: skip
"""The paper's columns, and the method of the benchmark that stands beside each."""
METRICS = {
    "accuracy": "accuracy",
    "CECE": "classwise_calibration_error_min",
    "ECE": "expected_calibration_error",
    "Brier": "top_label_brier_loss",
    "static CECE": "static_classwise_calibration_error",
    "static ECE": "static_expected_calibration_error",
    "Brier / K": "multiclass_brier_loss",
    "NLL": "negative_log_likelihood",
}
"""The paper's tables, and the metric beside each: CECE at the threshold of its code, the static one at its text's."""
ROWS = {
    "cifar10": "C10 (ViT)", "cifar100": "C100 (ViT)", "svhn": "SVHN (ViT)", "imagenet": "ImageNet", "isruc": "ISRUC",
    "iiic": "IIIC", "pn2017": "PN2017",
}  # fmt: skip
"""The printed row of each data set."""
DIFFERENCES = {
    "pn2017": (
        "Segments are cut by the paper's rule and are as many, 20,153. Training, validation and pool are split by "
        "recording, 65%, 10% and 25%, so that no recording is in two of them; the paper trains on 75% and does not "
        "say whether by recording.",
        "Training embeddings, from which KCal learns its projection, are those of the segments without the "
        "oversampled ones.",
        "The companion mmce has λ = 0.2 of the weighted form in kcal.losses, not tuned; the paper uses its authors' "
        "program, whose λ has another scale. Focal loss and MMCE replace the smoothed cross-entropy, without "
        "smoothing.",
        "The log-loss clips probabilities at 1e-12; the paper's clips them to [0.001/K, 1 − 0.001/K].",
        "Rows by recording (by group) calibrate with 20% of the recordings; the paper has no such row.",
    )
}
"""What differs from the paper's set-up in any run, by data set."""


def published(table: str) -> pandas.DataFrame:
    """Return a printed table, mean ± standard deviation as text: rows as printed, a column for each method."""
    frame = _printed()
    return frame[frame["table"] == table].drop(columns="table").set_index("row")


@cache
def _printed() -> pandas.DataFrame:
    return pandas.read_csv(RESULTS / "paper-published.csv", dtype=str, keep_default_na=False)
