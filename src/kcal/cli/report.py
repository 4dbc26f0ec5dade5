"""The files of ``kcal evaluate``: all figures as JSON, and the HTML report."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np

from kcal.cli.comparison import Comparison
from kcal.cli.output import check_writable
from kcal.cli.tables import method_title
from kcal.errors import InvalidInputError
from kcal.metrics import Evaluation


def evaluations_to_json(evaluations: dict[str, Evaluation], model: Path, data: Path | None) -> str:
    """Return all figures as JSON; NaN becomes null."""
    first = next(iter(evaluations.values()))
    settings = ("n_samples", "n_classes", "bins", "threshold", "clip", "confidence")
    content = {
        "model": str(model),
        "data": None if data is None else str(data),
        **{name: getattr(first, name) for name in settings},
        "metrics": {name: evaluation.metrics for name, evaluation in evaluations.items()},
        "debiased": {name: evaluation.debiased for name, evaluation in evaluations.items()},
        "intervals": {name: evaluation.intervals for name, evaluation in evaluations.items()},
    }
    standard = json.loads(json.dumps(content), parse_constant=lambda _: None)  # NaN is no JSON
    return json.dumps(standard, indent=2, allow_nan=False)


def write_evaluations(
    folder: Path,
    comparison: Comparison,
    evaluations: dict[str, Evaluation],
    sources: dict[str, Path | None],
    settings: dict[str, str],
    pictures: int,
) -> Path:
    """Write the report, and return the path of its page; ``settings`` are those of the intervals."""
    from kcal.report import write_report

    facts = {term: path.name for term, path in sources.items() if path is not None}  # folders are private
    if comparison.groups is not None:
        facts["groups"] = f"{len(np.unique(comparison.groups)):,}; the intervals resample whole groups"
    has_intervals = next(iter(evaluations.values())).confidence is not None
    return write_report(
        folder,
        {method_title(name): probs for name, probs in comparison.probs.items()},
        comparison.labels,
        class_names=comparison.classes.tolist(),
        evaluations={method_title(name): evaluation for name, evaluation in evaluations.items()},
        sample_weight=comparison.weights,
        groups=comparison.groups,
        sources=facts,
        limit=pictures,
        settings=settings if has_intervals else {},
    )


def check_report(folder: Path, inputs: tuple[Path | None, ...]) -> None:
    """Raise early for a report that could not be drawn or written after long work."""
    import_module("kcal.report.calibration")  # raises with the command that installs what is missing

    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not above.is_dir():
        got = f"{folder}; {above} is not a folder"
        raise InvalidInputError("--report", "must be a folder that can be made", got=got)
    check_writable(above / "report.html", inputs=inputs, option="--report")
