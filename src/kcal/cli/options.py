"""The options of the commands, each declared once.

Nothing of the library is imported, so that help does not wait for torch; a test compares the names that help lists.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None
File = Path | None
Integer = int | None
Number = float | None


def _argument(metavar: str, explanation: str) -> Any:
    return typer.Argument(metavar=metavar, help=explanation, show_default=False)


def _option(panel: str | None, metavar: str | None, explanation: str, *names: str, **settings: Any) -> Any:
    """Return an option in one panel of the help page; the explanation includes the default."""
    settings = {"show_default": False, "rich_help_panel": panel, "metavar": metavar, "help": explanation} | settings
    return typer.Option(*names, **settings)


FILE_PANEL = "Data in separate files"
COLUMN_PANEL = "Columns of csv and parquet files, arrays of npz files"
_main = partial(_option, None)
_file = partial(_option, FILE_PANEL)
_column = partial(_option, COLUMN_PANEL)
_parameter = partial(_option, "The method")
_interval = partial(_option, "Confidence intervals")

SeveralData = Annotated[
    Path, _argument("DATA", "An npz, npy, parquet or csv file; a folder of parquet or kcal.extract; 'data/*.parquet'.")
]
Data = Annotated[Path, _argument("DATA", "An npz, npy, parquet or csv file, or a folder of kcal.extract.")]
OptionalData = Annotated[File, _argument("DATA", "An npz, npy, parquet or csv file.")]
Model = Annotated[Path, _argument("MODEL", "A file that kcal fit wrote.")]
Evaluated = Annotated[Path, _argument("MODEL", "A model of kcal fit, or see the examples.")]
Task = Annotated[Path, _argument("NAME.npz", "The task to make or to check.")]
Tasks = Annotated[File, _argument("TASKS", "A folder of tasks, NAME.npz; the embedded example if left out.")]

Out = Annotated[Path, _main("FILE", "File to write.", "--out", "-o")]
PredictionsOut = Annotated[Path, _main("FILE", "File to write; a folder for several files or on Ray.", "--out", "-o")]
ModelOut = Annotated[Path, _main("FILE", "Model to write; ends in .kcal or .safetensors.", "--out", "-o")]
OnnxOut = Annotated[Path, _main("FILE", "ONNX file to write; ends in .onnx.", "--out", "-o")]
SupportSize = Annotated[Text, _main("N|SHARE", "Support points: a number, or a share of the samples such as 0.1.")]
MaxLossIncrease = Annotated[
    Number, _main("X", "In place of a size: allowed relative increase of the log-loss, such as 0.005.", min=0)
]
Reduction = Annotated[
    str, _main("NAME", "kmeans, kernel-thinning, herding or random. (default: kmeans)", "--method", "-m")
]
MinClusterSize = Annotated[int, _main("N", "Samples that a mean stands for at least. (default: 1)", min=1)]
VerifyData = Annotated[File, _main("DATA", "Rows to verify the file with, an npz, npy, parquet or csv file.")]
Tolerance = Annotated[Number, _main("X", "Largest difference of a probability. (default: 1e-5)", min=1e-12, max=1)]
DemoOut = Annotated[Path, _main("FOLDER", "Folder of the output. (default: kcal-demo)", "--out", "-o")]
BenchOut = Annotated[Path, _main("FOLDER", "Folder of the output. (default: kcal-bench)", "--out", "-o")]
Engine = Annotated[str, _main("NAME", "Where to compute: local, or ray for a Ray cluster. (default: local)")]
Address = Annotated[
    Text, _main("HOST:PORT", "Head of the Ray cluster, or local for a new one. (default: one of this machine)")
]
Workers = Annotated[Integer, _main("N", "Processes on Ray. (default: as many as it has room for)", min=1)]
Quiet = Annotated[bool, _main(None, "Show only errors and warnings.", "--quiet", "-q")]
Evidence = Annotated[
    bool, _main(None, "Add evidence: the share of calibration samples with less of it (kcal methods).", "--evidence")
]
Methods = Annotated[Text, _main("A,B,C", "Methods to fit on the first file and evaluate on the second; or all.")]
Report = Annotated[File, _main("FOLDER", "Write report.html there: tables and pictures.")]
Json = Annotated[Text, _main("FILE", "Write all figures; - for standard output only.", "--json")]
Before = Annotated[File, _main("FILE", "Probabilities to compare with, in place of the network's.")]
Pictures = Annotated[Integer, _main("N", "Classes with pictures in the report. (default: 20)", min=1, max=10_000)]
AllowOverlap = Annotated[bool, _main(None, "Accept rows that the model was fitted on.", "--allow-overlap")]

ExplainedRows = Annotated[list[int] | None, _main("N", "Row to explain, from 0; repeatable.", "--row", min=0)]
ExplainedIds = Annotated[list[str] | None, _main("ID", "Sample to explain by its id; repeatable.", "--id")]
SampleCount = Annotated[int, _main("K", "Calibration samples per row. (default: 5)", "-k", min=1, max=1_000_000)]
Plot = Annotated[File, _main("FILE", "Draw the first of these rows; ends in .png, .pdf or .svg.")]
Csv = Annotated[File, _main("FILE", "Write all shares as a table; ends in .csv.")]
ExplanationJson = Annotated[Text, _main("FILE", "Write everything; - for standard output only.", "--json")]

_PAPER_METHODS = "uncal,ts,dircal,imax,focal,spline,iop,gp,mmce,kcal"
BenchMethods = Annotated[Text, _main("A,B,C", f"Methods, or all. (default: {_PAPER_METHODS},kcal-blend)")]
Splits = Annotated[int, _main("N", "Splits of each pool into calibration and test. (default: 10)", min=1)]
SplitSeed = Annotated[int, _main("N", "Same seed, same splits and results. (default: 0)", "--seed", min=0)]
Jobs = Annotated[Integer, _main("N", "Worker processes. (default: one per core)", min=1)]
TaskTrain = Annotated[File, _main("FILE", "Outputs for the network's training data.", "--train")]
Pool = Annotated[File, _main("FILE", "Outputs for data that it never saw.")]
OutOfScope = Annotated[File, _main("FILE", "Outputs for inputs that belong to no class.")]
Share = Annotated[float | None, _main("SHARE", "Share of the pool that calibrates in each split. (default: 0.3)")]
GroupShare = Annotated[
    float | None, _main("SHARE", "Share of the groups that calibrate in grouped splits. (default: --share)")
]

Labels = Annotated[File, _file("FILE", "Labels.")]
Logits = Annotated[File, _file("FILE", "Logits: for kcal-blend, and to show the network's own probabilities.")]
LogitsBeside = Annotated[File, _file("FILE", "Logits of the same samples, for kcal-blend.")]
Groups = Annotated[File, _file("FILE", "Patients, speakers, sites: no sample is predicted from its own group.")]
RowGroups = Annotated[File, _file("FILE", "Patients, speakers, sites: the intervals resample whole groups.")]
Weights = Annotated[File, _file("FILE", "Relative importance of each sample.")]
Ids = Annotated[File, _file("FILE", "Names of the samples.")]
Train = Annotated[File, _file("FILE", "Outputs for the network's training data, to learn the projection from.")]
TrainLabels = Annotated[File, _file("FILE", "Labels of the training data.")]
Classes = Annotated[Text, _file("A,B,C", "Classes, in the order of the logits' columns, if no file names them.")]

LabelsArePositions = Annotated[
    bool, _file(None, "Integer labels are positions among named classes, from 0.", "--labels-are-positions")
]

LabelColumn = Annotated[Text, _column("NAME", "Labels. (default: label)")]
GroupColumn = Annotated[Text, _column("NAME", "Groups. (default: group, if there is one)")]
WeightColumn = Annotated[Text, _column("NAME", "Weights. (default: weight, if there is one)")]
IdColumn = Annotated[Text, _column("NAME", "Names of the samples. (default: id, if there is one)")]
FeatureColumns = Annotated[Text, _column("PATTERN", "Embeddings, such as 'e_*'. (default: all other columns)")]
LogitColumns = Annotated[Text, _column("PATTERN", "Logits, such as 'z_*', if the table has embeddings too.")]

_METHODS = (
    "uncal, ts, ets, vector, matrix, svs, sms, platt, beta, isotonic, venn-abers, histogram, scaling-binning, dircal, "
    "imax, spline, gp, iop, knn, refit, dac, kcal, kcal-paper, kcal-linear, kcal-logits, kcal-blend"
)
_KERNELS = "rbf, laplace, matern32, matern52, epanechnikov, biweight, triweight"
Method = Annotated[
    Text,
    _parameter(
        "NAME",
        f"{_METHODS}. (default: kcal-blend; without logits kcal, without embeddings sms)",
        "--method",
        "-m",
    ),
]
Kernel = Annotated[Text, _parameter("NAME", f"{_KERNELS}. (default: rbf)")]
Projection = Annotated[Text, _parameter("NAME", "skip, linear, identity, unit. (default: skip)")]
Dimension = Annotated[Text, _parameter("D", "Of the projected space. (default: auto, at most 128; in the paper 32)")]
RecipeName = Annotated[Text, _parameter("NAME", "Training of the projection: fast, paper. (default: fast)")]
Bandwidth = Annotated[
    Text,
    _parameter(
        "B",
        "A number, cv for leave-one-out, published, or rule to scale an earlier one. (default: cv)",
    ),
]
BandwidthReference = Annotated[
    Text, _parameter("B,SIZE", "For the rule: an earlier bandwidth, and the size of the rarest class then.")
]
Folds = Annotated[Integer, _parameter("N", "Folds in place of leave-one-out; in kcal-blend, of cross-fitting.", min=2)]
Prior = Annotated[Text, _parameter("SHARES", "Class frequencies in deployment: uniform, or such as cat=0.2,dog=0.8.")]
Smoothing = Annotated[Number, _parameter("SHARE", "Probability spread evenly over all classes. (default: 1/(n + 2))")]
Representation = Annotated[Text, _parameter("NAME", "Content of the logits: logits, probabilities. (default: logits)")]
Set = Annotated[
    list[str] | None,
    _parameter("NAME=VALUE", "Another parameter of the method, such as form=top or bins=20; repeatable.", "--set"),
]
Seed = Annotated[Integer, _parameter("N", "Seed of the random numbers. (default: 0)")]

Confidence = Annotated[Number, _interval("SHARE", "Confidence level. (default: 0.95)")]
Resamples = Annotated[Integer, _interval("N", "Resamples, at least 20. (default: 1000)", min=20, max=1_000_000)]
ResamplingSeed = Annotated[Integer, _interval("N", "Seed of the resampling. (default: 0)", "--seed", min=0)]
NoIntervals = Annotated[bool, _interval(None, "Show the values without intervals.", "--no-intervals")]

Served = Annotated[Path, _argument("MODEL", "A file of kcal fit or kcal export, or a folder of them.")]
Network = Annotated[
    File, _main("FILE", "Network of the model, from network_to_onnx. (default: NAME.network.onnx beside NAME.kcal)")
]
Host = Annotated[str, _main("ADDRESS", "Address to listen at. (default: 127.0.0.1)")]
Port = Annotated[int, _main("N", "Port to listen at; 0 for any. (default: 8000)", "--port", "-p", min=0, max=65535)]
Tokens = Annotated[File, _main("FILE", "Tokens that clients must show; see kcal token.")]
Store = Annotated[File, _main("FILE", "Calibration store of the feedback; a folder for a folder of models.")]
CompleteStore = Annotated[
    bool,
    _main(None, "The store holds the whole calibration set; samples without it are forgotten.", "--complete-store"),
]
MaxBatch = Annotated[int, _main("N", "Rows that are predicted together. (default: 256)", min=1, max=1_000_000)]
MaxWait = Annotated[float, _main("MS", "How long a request waits for others. (default: 2)", min=0, max=10_000)]
MaxQueue = Annotated[int, _main("N", "Requests that may wait; more get status 503. (default: 1024)", min=1)]
MaxBody = Annotated[float, _main("MB", "Size of a request; a quarter of it for JSON. (default: 64)", min=0.001)]
Recent = Annotated[
    int, _main("N", "Predictions that are remembered, for feedback and the page. (default: 10,000)", min=1, max=10**7)
]
TokenAction = Annotated[str, _argument("ACTION", "create, list or revoke.")]
TokenFile = Annotated[Path, _argument("FILE", "The token file.")]
TokenName = Annotated[Text, _main("NAME", "Whose token it is.")]
TokenScopes = Annotated[list[str] | None, _main("SCOPE", "predict, feedback, metrics or admin; repeatable.", "--scope")]
