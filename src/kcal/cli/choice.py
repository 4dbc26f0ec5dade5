"""The method that ``kcal fit`` takes if none is named: the best for what the files contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typer import BadParameter

from kcal.calibrators import Calibrator
from kcal.cli.data import Source, logit_columns, remaining_columns
from kcal.cli.files import TableFile, open_file
from kcal.cli.parameters import build_calibrator


def choose_method(source: Source) -> tuple[str, str]:
    """Return the method for what the file holds, embeddings, logits or both, and why."""
    file = open_file(source.path)
    has_logits = "logits" in source.files
    if isinstance(file, TableFile):
        has_logits = has_logits or bool(logit_columns(file, source))
        has_embeddings = "features" in source.columns or bool(remaining_columns(file, source))
    else:
        found = {name.removeprefix(prefix) for prefix in source.prefixes for name in file.names}
        has_logits = has_logits or "logits" in source.columns or "logits" in found
        has_embeddings = file.is_single or "features" in source.columns or "embeddings" in found
    if has_embeddings and has_logits:
        return "kcal-blend", "there are embeddings and logits"
    if has_logits:
        return "sms", "there are logits, but no embeddings"
    return "kcal", "there are embeddings, but no logits"


def build_default(
    source: Source, options: Mapping[str, Any], settings: Sequence[str]
) -> tuple[Calibrator, dict[str, Any], str]:
    """Return an unfitted calibrator of the method for the data, its parameters, and why it was taken."""
    method, reason = choose_method(source)
    text = f"Method {method}, because {reason}; --method takes another."
    try:
        return *build_calibrator(method, options, settings), text
    except BadParameter as error:
        raise BadParameter(f"{error.message} {text}") from error
