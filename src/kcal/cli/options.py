"""The options of the commands, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kcal.calibrators import METHODS
from kcal.cli.data import Source
from kcal.cli.parameters import NO_PROJECTION, one_of, parse_classes
from kcal.kernels import KERNELS
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED

PROJECTIONS = (*ARCHITECTURES, *UNTRAINED, NO_PROJECTION)
REPRESENTATIONS = ("logits", "probabilities")


def _option(panel: str | None) -> Callable[..., Any]:
    """Return a function that makes options for one panel of the help page; help texts name the defaults."""

    def make(metavar: str | None, explanation: str, *names: str, **settings: Any) -> Any:
        settings = {"show_default": False, "rich_help_panel": panel, "metavar": metavar, "help": explanation} | settings
        return typer.Option(*names, **settings)

    return make


_main = _option(None)
_file = _option("Data in separate files")
_column = _option("Columns of csv and parquet files")
_parameter = _option("The method")
_interval = _option("Confidence intervals")


def _choice(names: Any, explanation: str, *options: str) -> Any:
    return _parameter("NAME", explanation.format(", ".join(names)), *options, callback=one_of(names))


Data = Annotated[Path, typer.Argument(metavar="DATA", help="An npz, npy, parquet or csv file.", show_default=False)]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that kcal fit wrote.", show_default=False)]
Out = Annotated[Path, _main("FILE", "File to write.", "--out", "-o")]
ModelOut = Annotated[
    Path, _main("FILE", "Model to write, in safetensors format; ends in .kcal or .safetensors.", "--out", "-o")
]
Quiet = Annotated[bool, _main(None, "Show only errors and warnings.", "--quiet", "-q")]
Methods = Annotated[
    str | None, _main("A,B,C", "Fit these methods on the first file and evaluate them on the second; or all.")
]

Labels = Annotated[Path | None, _file("FILE", "Labels.")]
Logits = Annotated[Path | None, _file("FILE", "Logits: for kcal-blend, and to show the network's own probabilities.")]
LogitsBeside = Annotated[Path | None, _file("FILE", "Logits of the same samples, for kcal-blend.")]
Groups = Annotated[Path | None, _file("FILE", "Patients, speakers, sites: no sample is predicted from its own group.")]
RowGroups = Annotated[Path | None, _file("FILE", "Patients, speakers, sites: the intervals resample whole groups.")]
Weights = Annotated[Path | None, _file("FILE", "Relative importance of each sample.")]
Ids = Annotated[Path | None, _file("FILE", "Names of the samples.")]
Train = Annotated[Path | None, _file("FILE", "Outputs for the network's training data, to learn the projection from.")]
TrainLabels = Annotated[Path | None, _file("FILE", "Labels of the training data.")]
Classes = Annotated[
    str | None, _file("A,B,C", "All classes, in the order of the logits' columns, if the files do not name them.")
]

LabelColumn = Annotated[str | None, _column("NAME", "Labels. (default: label)")]
GroupColumn = Annotated[str | None, _column("NAME", "Groups. (default: group, if there is one)")]
WeightColumn = Annotated[str | None, _column("NAME", "Weights. (default: weight, if there is one)")]
IdColumn = Annotated[str | None, _column("NAME", "Names of the samples. (default: id, if there is one)")]
FeatureColumns = Annotated[
    str | None, _column("PATTERN", "Embeddings, such as 'e_*'. (default: all columns that are nothing else)")
]
LogitColumns = Annotated[str | None, _column("PATTERN", "Logits, such as 'z_*', if the table has embeddings too.")]

Method = Annotated[str, _choice(METHODS, "{}. (default: kcal)", "--method", "-m")]
Kernel = Annotated[str | None, _choice(KERNELS, "{}. (default: rbf)")]
Projection = Annotated[str | None, _choice(PROJECTIONS, "{} (kcal-blend). (default: skip)")]
Dimension = Annotated[
    str | None, _parameter("D", "Of the projected space. (default: auto, at most 128; 32 with the paper's recipe)")
]
RecipeName = Annotated[str | None, _choice(RECIPES, "Training of the projection: {}. (default: fast)")]
Bandwidth = Annotated[
    str | None, _parameter("B", "A number; cv for leave-one-out; rule to scale --bandwidth-reference. (default: cv)")
]
BandwidthReference = Annotated[
    str | None, _parameter("B,COUNT", "For the rule: an earlier bandwidth and the count of the rarest class then.")
]
Folds = Annotated[
    int | None, _parameter("N", "Folds in place of leave-one-out; in kcal-blend, of the cross-fitting.", min=2)
]
Prior = Annotated[
    str | None, _parameter("SHARES", "Class frequencies of deployment: uniform, or such as cat=0.2,dog=0.8.")
]
Smoothing = Annotated[
    float | None, _parameter("SHARE", "Probability spread evenly over all classes: from 0 to below 1. (default: 0)")
]
Representation = Annotated[
    str | None, _choice(REPRESENTATIONS, "What the columns of logits contain: {}. (default: logits)")
]
Set = Annotated[
    list[str] | None,
    _parameter("NAME=VALUE", "Another parameter of the method, such as form=top or bins=20; repeatable.", "--set"),
]
Seed = Annotated[int | None, _parameter("N", "Seed of the random numbers. (default: 0)")]

Confidence = Annotated[float | None, _interval("SHARE", "Confidence level. (default: 0.95)")]
Resamples = Annotated[
    int | None, _interval("N", "Number of resamples, at least 20. (default: 1000)", min=20, max=1_000_000)
]
ResamplingSeed = Annotated[int | None, _interval("N", "Seed of the resampling. (default: 0)", "--seed", min=0)]
NoIntervals = Annotated[bool, _interval(None, "Show the values without intervals.", "--no-intervals")]


def source_of(
    path: Path,
    *,
    columns: dict[str, str | None] | None = None,
    files: dict[str, Path | None] | None = None,
    prefixes: tuple[str, ...] = ("",),
    classes: str | None = None,
) -> Source:
    """Return where to load data from; options that were not given are left out."""
    return Source(
        path,
        columns={key: name for key, name in (columns or {}).items() if name is not None},
        files={key: file for key, file in (files or {}).items() if file is not None},
        prefixes=prefixes,
        classes=parse_classes(classes),
    )
