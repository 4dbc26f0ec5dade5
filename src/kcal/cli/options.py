"""The options of the commands, each explained once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kcal.calibrators import METHODS
from kcal.cli.methods import NO_PROJECTION, one_of, parse_classes
from kcal.cli.samples import Source
from kcal.kernels import KERNELS
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED

PROJECTIONS = (*ARCHITECTURES, *UNTRAINED, NO_PROJECTION)
REPRESENTATIONS = ("logits", "probabilities")


def _option(panel: str) -> Callable[..., Any]:
    """Return a maker of options for one panel of the help page; None stands for the default that the help names."""

    def make(metavar: str, explanation: str, *names: str, **settings: Any) -> Any:
        return typer.Option(
            *names, metavar=metavar, help=explanation, rich_help_panel=panel, show_default=False, **settings
        )

    return make


_file = _option("Data in files of their own")
_column = _option("Columns of csv and parquet files")
_parameter = _option("The method")
_interval = _option("Confidence intervals")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="An npz, npy, parquet or csv file.", show_default=False)]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="What kcal fit wrote.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.", show_default=False)]
ModelOut = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Model to write, called .kcal or .safetensors; it is a safetensors file either way.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no summary; only errors and warnings.")]

Labels = Annotated[Path | None, _file("FILE", "Labels.")]
Logits = Annotated[Path | None, _file("FILE", "Logits, for kcal-blend, and to show the network's own probabilities.")]
LogitsBeside = Annotated[Path | None, _file("FILE", "Logits of the same rows, for kcal-blend, which takes both.")]
Groups = Annotated[Path | None, _file("FILE", "Patients, speakers, sites: a sample is never judged by its own group.")]
RowGroups = Annotated[
    Path | None, _file("FILE", "Patients, speakers, sites: for the intervals, whole groups are drawn.")
]
Weights = Annotated[Path | None, _file("FILE", "How many samples each one counts for.")]
Ids = Annotated[Path | None, _file("FILE", "A name for each sample.")]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Fit these methods on the first file and evaluate them on the second: any that kcal fit takes, or all.",
        show_default=False,
    ),
]
Train = Annotated[
    Path | None, _file("FILE", "Outputs for the network's own training data; kcal learns its projection there.")
]
TrainLabels = Annotated[Path | None, _file("FILE", "Labels of the training data.")]
Classes = Annotated[
    str | None,
    _file("A,B,C", "All classes, in the order of the logits' columns; needed only where the files do not tell."),
]

LabelColumn = Annotated[str | None, _column("NAME", "Labels. (default: label)")]
GroupColumn = Annotated[str | None, _column("NAME", "Groups. (default: group, if there is one)")]
WeightColumn = Annotated[str | None, _column("NAME", "Weights. (default: weight, if there is one)")]
IdColumn = Annotated[str | None, _column("NAME", "Names of the samples. (default: id, if there is one)")]
FeatureColumns = Annotated[
    str | None, _column("PATTERN", "What the method takes, such as 'e_*'. (default: all columns that are nothing else)")
]
LogitColumns = Annotated[str | None, _column("PATTERN", "Logits, such as 'z_*', where the table holds embeddings too.")]

Method = Annotated[
    str,
    _parameter("NAME", f"{', '.join(METHODS)}. (default: kcal)", "--method", "-m", callback=one_of(METHODS)),
]
Kernel = Annotated[str | None, _parameter("NAME", f"{', '.join(KERNELS)}. (default: rbf)", callback=one_of(KERNELS))]
Projection = Annotated[
    str | None,
    _parameter("NAME", f"{', '.join(PROJECTIONS)} (kcal-blend). (default: skip)", callback=one_of(PROJECTIONS)),
]
Dimension = Annotated[
    str | None, _parameter("D", "Of the projected space. (default: auto, at most 128; 32 with the paper's recipe)")
]
RecipeName = Annotated[
    str | None,
    _parameter(
        "NAME", f"How the projection is trained: {', '.join(RECIPES)}. (default: fast)", callback=one_of(RECIPES)
    ),
]
Bandwidth = Annotated[
    str | None,
    _parameter("B", "A number; cv, by leave-one-out; rule, scaled from --bandwidth-reference. (default: cv)"),
]
BandwidthReference = Annotated[
    str | None, _parameter("B,COUNT", "For the rule: a bandwidth found before and the count of the rarest class then.")
]
Folds = Annotated[
    int | None,
    _parameter("N", "Choose the bandwidth by folds in place of leave-one-out; kcal-blend cross-fits with them.", min=2),
]
Prior = Annotated[
    str | None,
    _parameter("SHARES", "Class shares in the field, where DATA's differ: uniform, or such as cat=0.2,dog=0.8."),
]
Smoothing = Annotated[
    float | None,
    _parameter(
        "SHARE",
        "Probability to spread evenly over all classes, so that classes without samples get some: at least 0, less "
        "than 1. (default: 0)",
    ),
]
Representation = Annotated[
    str | None,
    _parameter(
        "NAME",
        f"What the logits are: {', '.join(REPRESENTATIONS)}. (default: logits)",
        callback=one_of(REPRESENTATIONS),
    ),
]
Set = Annotated[
    list[str] | None,
    _parameter(
        "NAME=VALUE",
        "Any other parameter of the method, such as form=top, bins=20 or bandwidth_factors=0.5,1,2; repeatable.",
        "--set",
    ),
]
Seed = Annotated[int | None, _parameter("N", "Same seed, same result: at least 0. (default: 0)")]

Confidence = Annotated[
    float | None, _interval("SHARE", "How many of the intervals are to hold the truth. (default: 0.95)")
]
Resamples = Annotated[
    int | None, _interval("N", "How often the rows are drawn anew: at least 20. (default: 1000)", min=20)
]
ResamplingSeed = Annotated[int | None, _interval("N", "Same seed, same intervals. (default: 0)", "--seed", min=0)]
NoIntervals = Annotated[
    bool, typer.Option("--no-intervals", help="Only the values.", rich_help_panel="Confidence intervals")
]


def source_of(
    path: Path,
    *,
    columns: dict[str, str | None] | None = None,
    files: dict[str, Path | None] | None = None,
    prefixes: tuple[str, ...] = ("",),
    classes: str | None = None,
) -> Source:
    """Return where to read from, of what was typed: options that were left out name nothing."""
    return Source(
        path,
        columns={key: name for key, name in (columns or {}).items() if name is not None},
        files={key: file for key, file in (files or {}).items() if file is not None},
        prefixes=prefixes,
        classes=parse_classes(classes),
    )
