"""The library's words as they are typed on the command line, for messages that name its arguments."""

from __future__ import annotations

import re

PHRASES = (
    (
        r"Use leave_one_out_proba_ for calibration rows\.",
        "Go by other data, or by the leave-one-out log-loss that kcal fit prints.",
    ),
    (r"[Pp]ass train_embeddings and train_labels to use all", "Pass --train FILE to use all"),
    (r"Pass train_embeddings and train_labels, (a fitted projection, )?or", "Pass --train FILE or"),
    (r"or a fitted projection", "or --projection identity"),
    (r'projection="identity"', "--projection identity"),
    (r'representation="logits"', "--representation logits"),
    (r"smoothing=1e-3", "--smoothing 1e-3"),
    (r"[Pp]ass bandwidth= a number", "Pass --bandwidth with a number"),
    (r"(look at bandwidth_curve_, )?or pass a number", "or pass a number with --bandwidth"),
    (r"\bclasses= with", "--classes with"),
    (r"Pass classes=\[\.\.\., .*\] to fit if", "List it in --classes of kcal fit if"),
    (r"^folds=", "--folds "),
    (r"^prior ", "--prior "),
    (r"^y\b", "labels"),
)
"""What is found in a message, and what a user of the command line reads in its place."""


def in_typed_words(message: str) -> str:
    """Return a message of the library with options in place of its arguments."""
    for found, typed in PHRASES:
        message = re.sub(found, typed, message)
    return message
