"""The options of the commands: those of one command by name, those of several as groups.

Nothing of the library is imported: help does not wait for numpy or torch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Text = str | None
File = Path | None
Integer = int | None
Number = float | None
Shared = Any
"""Values of the options of groups, by name."""


def _argument(metavar: str, explanation: str, **settings: Any) -> Any:
    return typer.Argument(metavar=metavar, help=explanation, show_default=False, **settings)


def _option(panel: str | None, metavar: str | None, explanation: str, *names: str, **settings: Any) -> Any:
    """Return an option in one panel of the help page; the explanation includes the default."""
    settings = {"show_default": False, "rich_help_panel": panel, "metavar": metavar, "help": explanation} | settings
    return typer.Option(*names, **settings)


def takes(*groups: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Add groups of options to a command, which gets their values as ``**shared``; all are None or False by default."""

    def decorate(command: Any) -> Any:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [item for item in own if item.kind is not item.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(annotation), annotation=annotation)
            for group in groups
            for name, annotation in group.items()
        ]
        command.__signature__ = inspect.Signature([*kept, *added])
        return command

    return decorate


def _default(annotation: Any) -> Any:
    return False if annotation.__origin__ is bool else None


def _check_number(value: float | None) -> float | None:
    """Return the value of an option; nan is refused, because it passes every comparison with a range."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("must be a number; got nan.")
    return value


_main = partial(_option, None)
_number = partial(_option, None, callback=_check_number)
_input = partial(_argument, exists=True)
_input_option = partial(_option, None, exists=True)

DATA_FILE = "An npz, npy, parquet or csv file, or a folder that kcal.extract wrote."
SeveralData = Annotated[
    Path, _argument("DATA", "An npz, npy, parquet or csv file; a folder of parquet or kcal.extract; 'data/*.parquet'.")
]
Data = Annotated[Path, _input("DATA", DATA_FILE)]
TestData = Annotated[File, _input("DATA", DATA_FILE)]
Calibration = Annotated[Path, _input("CALIBRATION", f"Data to fit on. {DATA_FILE}")]
Model = Annotated[Path, _input("MODEL", "A file that kcal fit wrote.")]
Evaluated = Annotated[Path, _input("MODEL", "A model of kcal fit; or, without DATA, a file of probabilities.")]
Task = Annotated[Path, _argument("NAME.npz", "The task to make or to check.")]
Tasks = Annotated[File, _input("TASKS", "A folder of tasks, NAME.npz; the embedded example if left out.")]
MethodName = Annotated[Text, _argument("NAME", "A method, to show its parameters.")]

PredictionsOut = Annotated[Path, _main("FILE", "File to write; a folder for several files or on Ray.", "--out", "-o")]
ModelOut = Annotated[Path, _main("FILE", "Model to write; ends in .kcal or .safetensors.", "--out", "-o")]
OnnxOut = Annotated[Path, _main("FILE", "ONNX file to write; ends in .onnx.", "--out", "-o")]
DemoOut = Annotated[Path, _main("FOLDER", "Folder of the output. (default: kcal-demo)", "--out", "-o")]
BenchOut = Annotated[Path, _main("FOLDER", "Folder of the output. (default: kcal-bench)", "--out", "-o")]
Quiet = Annotated[bool, _main(None, "Show only errors and warnings.", "--quiet", "-q")]
Json = Annotated[Text, _main("FILE", "Write the results as JSON; - for standard output only.", "--json")]
OUTPUT = {"json_file": Json, "quiet": Quiet}

SupportSize = Annotated[Text, _main("N|SHARE", "Support points: a number, or a share of the samples such as 0.1.")]
MaxLossIncrease = Annotated[Number, _number("X", "In place of a size: allowed relative increase of the log-loss.")]
MinClusterSize = Annotated[int, _main("N", "Smallest number of samples per mean. (default: 1)")]
VerifyData = Annotated[File, _input_option("DATA", f"Rows to verify the file with. {DATA_FILE}")]
Tolerance = Annotated[Number, _number("X", "Accepted difference of a probability. (default: 1e-5)", min=1e-12, max=1)]
Engine = Annotated[
    Literal["local", "ray"], _main("NAME", "Where to compute: local, or ray for a Ray cluster. (default: local)")
]
Address = Annotated[Text, _main("HOST:PORT", "Head of the Ray cluster; local for a new one. (default: this machine's)")]
Workers = Annotated[Integer, _main("N", "Worker processes on Ray. (default: as many as fit)", min=1)]
Evidence = Annotated[bool, _main(None, "Add evidence: the share of calibration samples that have less.", "--evidence")]
COMPARED = "ts,sms,kcal-blend"
"""The methods of ``kcal compare`` where none are named."""
Methods = Annotated[Text, _main("A,B,C", f"Methods to fit, or all. (default: {COMPARED}, as the data allow)")]
Before = Annotated[File, _input_option("FILE", "Probabilities to compare with, in place of the network's.")]
Train = Annotated[File, _input_option("FILE", "Outputs for the network's training data, to learn the projection from.")]
TrainLabels = Annotated[Text, _main("NAME", "Labels of the training data. (default: as --labels)")]

ExplainedRows = Annotated[list[int] | None, _main("N", "Row to explain, from 0; repeatable.", "--row", min=0)]
ExplainedIds = Annotated[list[str] | None, _main("ID", "Sample to explain by its id; repeatable.", "--id")]
SampleCount = Annotated[int, _main("K", "Calibration samples per row. (default: 5)", "-k", min=1, max=1_000_000)]
Plot = Annotated[File, _main("FILE", "Draw the first of these rows; ends in .png, .pdf or .svg.")]
Csv = Annotated[File, _main("FILE", "Write all shares as a table; ends in .csv.")]

_PAPER_METHODS = "uncal,ts,dircal,imax,focal,spline,iop,gp,mmce,kcal"
BenchMethods = Annotated[Text, _main("A,B,C", f"Methods, or all. (default: {_PAPER_METHODS},kcal-blend)")]
Splits = Annotated[int, _main("N", "Splits of each pool into calibration and test. (default: 10)", min=1)]
SplitSeed = Annotated[int, _main("N", "Same seed, same splits and results. (default: 0)", "--seed", min=0)]
Jobs = Annotated[Integer, _main("N", "Worker processes. (default: one per core)", min=1)]
Pool = Annotated[File, _input_option("FILE", "Outputs for data that the network was not trained on.")]
OutOfScope = Annotated[File, _input_option("FILE", "Outputs for inputs that belong to no class.")]
Share = Annotated[Number, _number("SHARE", "Share of the pool for calibration in each split. (default: 0.3)")]
GroupShare = Annotated[Number, _number("SHARE", "The same of the groups in grouped splits. (default: --share)")]

_data = partial(_option, "Names in the data")
MATRICES = {
    "embeddings": Annotated[Text, _data("NAME", "Array, column of lists, or columns such as 'e_*'.")],
    "logits": Annotated[Text, _data("NAME", "Array, column of lists, or columns such as 'z_*'.")],
}
LABELS = {"labels": Annotated[Text, _data("NAME", "Labels: an array or column, or another file.")]}
GROUPS = {"groups": Annotated[Text, _data("NAME", "Groups, such as patients or sites, whose samples stay together.")]}
By = Annotated[Text, _data("NAME", "Subgroups, such as sites or devices, to measure one by one.")]
WEIGHTS = {"weights": Annotated[Text, _data("NAME", "Sample weights.")]}
IDS = {"ids": Annotated[Text, _data("NAME", "Sample ids.")]}
CLASSES = {
    "classes": Annotated[Text, _data("A,B,C", "Class of every column of the logits, in order, if no file lists them.")]
}
PARTS = tuple(MATRICES | LABELS | GROUPS | WEIGHTS | IDS)
"""Options that name parts of the data; each is its own default."""
Probabilities = Annotated[Text, _data("NAME", "Array or columns. (default: probabilities, in tables p_*)")]

_parameter = partial(_option, "The method")
Method = Annotated[
    Text,
    _parameter("NAME", "Listed by kcal methods. (default: kcal-blend, kcal or sms, by the data)", "--method", "-m"),
]
Set = Annotated[
    list[str] | None,
    _parameter("NAME=VALUE", "Any parameter of the method, such as form=top or bins=20; repeatable.", "--set"),
]
PARAMETERS = {
    name: Annotated[Text, _parameter(metavar, explanation)]
    for name, metavar, explanation in (
        ("kernel", "NAME", "Mother kernel, such as rbf or laplace. (default: rbf)"),
        ("projection", "NAME", "Projection of the embeddings: residual, linear, identity, unit. (default: residual)"),
        ("dimension", "D", "Dimension of the projected space. (default: auto, at most 128; in the paper 32)"),
        ("recipe", "NAME", "Training of the projection: fast, paper. (default: fast)"),
        ("bandwidth", "B", "Kernel bandwidth: a number, cv for leave-one-out, published, or rule. (default: cv)"),
        ("bandwidth_reference", "B,SIZE", "For the rule: an earlier bandwidth, and the size of the rarest class then."),
        ("folds", "N", "Folds of the cross-validation, in place of leave-one-out; in kcal-blend, of cross-fitting."),
        ("prior", "SHARES", "Class frequencies in deployment: uniform, or such as cat=0.2,dog=0.8."),
        ("smoothing", "SHARE", "Probability spread evenly over all classes. (default: 1/(n + 2))"),
        ("representation", "NAME", "What the logits are: logits, or probabilities of the network. (default: logits)"),
        ("seed", "N", "Random seed. (default: 0)"),
    )
}

_interval = partial(_option, "Confidence intervals")
MEASURING = {
    "allow_overlap": Annotated[bool, _main(None, "Accept rows that the model was fitted on.", "--allow-overlap")],
    "report": Annotated[File, _main("FOLDER", "Write report.html there: tables and figures.")],
    "figures": Annotated[Integer, _main("N", "Classes with figures in the report. (default: 20)", min=1, max=10_000)],
    "confidence": Annotated[Number, _interval("SHARE", "Confidence level. (default: 0.95)")],
    "resamples": Annotated[
        Integer, _interval("N", "Bootstrap resamples, at least 20. (default: 1000)", min=20, max=1_000_000)
    ],
    "seed": Annotated[Integer, _interval("N", "Seed of the resampling. (default: 0)", min=0)],
    "no_intervals": Annotated[bool, _interval(None, "Show the values without intervals.", "--no-intervals")],
}

Served = Annotated[Path, _input("MODEL", "A file that kcal fit wrote, or a folder of them.")]
SERVICE = {
    "network": Annotated[
        File,
        _input_option(
            "FILE", "Network of the model, from network_to_onnx. (default: NAME.network.onnx beside NAME.kcal)"
        ),
    ],
    "host": Annotated[Text, _main("ADDRESS", "Address to listen at. (default: 127.0.0.1)")],
    "port": Annotated[
        Integer, _main("N", "Port to listen at; 0 for any. (default: 8000)", "--port", "-p", min=0, max=65535)
    ],
    "grpc_port": Annotated[Integer, _main("N", "Port of gRPC; none by default.", min=1, max=65535)],
    "tokens": Annotated[File, _input_option("FILE", "Tokens that clients must show; see kcal token.")],
    "store": Annotated[File, _main("FILE", "Calibration store of the feedback; a folder for a folder of models.")],
    "complete_store": Annotated[
        bool, _main(None, "The store is the whole calibration set; forget other samples.", "--complete-store")
    ],
    "max_batch": Annotated[Integer, _main("N", "Rows predicted together. (default: 256)", min=1, max=1_000_000)],
    "max_wait_ms": Annotated[
        Number, _number("MS", "Time that a batch waits for requests. (default: 2)", min=0, max=10_000)
    ],
    "max_queue": Annotated[Integer, _main("N", "Requests that may wait; more get status 503. (default: 1024)", min=1)],
    "max_body_mb": Annotated[
        Number, _number("MB", "Size of a request; a quarter of it for JSON. (default: 64)", min=0.001, max=100_000)
    ],
    "recent": Annotated[
        Integer, _main("N", "Predictions kept for feedback and dashboard. (default: 10,000)", min=1, max=10**7)
    ],
    "quiet": Quiet,
}
"""Options of kcal serve; what is not given has the default of the service's settings."""
TokenFile = Annotated[Path, _argument("FILE", "The token file.")]
TokenName = Annotated[str, _main("NAME", "Whose token it is.")]
TokenScopes = Annotated[list[str], _main("SCOPE", "predict, feedback, metrics or admin; repeatable.", "--scope")]
