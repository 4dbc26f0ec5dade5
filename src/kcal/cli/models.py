"""The commands ``kcal fit``, ``kcal compress`` and ``kcal export``, which make models, and ``kcal methods``."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import typer
from rich.filesize import decimal
from rich.table import Table

import kcal
from kcal.cli import data as inputs
from kcal.cli import options
from kcal.cli.messages import check_options
from kcal.cli.output import Result, check_writable, console, line, shown, simple_table
from kcal.errors import KcalWarning, warn

MODELS = (".kcal", ".safetensors")
NOT_TYPED = ("head", "progress", "updates")
"""Parameters of methods that are objects of Python, or about the screen."""


@options.takes(
    options.OUTPUT,
    options.MATRICES | options.LABELS | options.GROUPS | options.WEIGHTS | options.IDS | options.CLASSES,
    options.PARAMETERS,
)
def fit(
    data: options.Data,
    out: options.ModelOut,
    method: options.Method = None,
    settings: options.Set = None,
    train: options.Train = None,
    train_labels: options.TrainLabels = None,
    **shared: options.Shared,
) -> Result:
    """Fit a calibrator on data that the network was not trained on, and write it to a file.

    An npz file has the arrays [cyan]labels[/] and [cyan]embeddings[/], [cyan]logits[/] or both, and optionally
    [cyan]groups, weights, ids, classes[/] and, from the network's own training set, [cyan]train_embeddings,
    train_labels, train_groups[/]. A csv or parquet table has columns such as [cyan]label, embedding_0, embedding_1,
    logit_cat, logit_dog[/], or columns of lists. Options such as --labels name other arrays, columns or files (FILE,
    FILE:NAME). Without --method, embeddings and logits are blended
    (kcal-blend); embeddings alone are fitted by kcal, logits alone by sms. Models of kcal, kcal-blend, knn and dac
    contain embeddings of the calibration set or, for dac, of the training set: personal data, if the inputs were.

    [bold]Examples[/]

    [green]kcal fit calibration.npz --out model.kcal[/]

    [green]kcal fit calibration.npz --method imax --set form=top --set bins=20 --out model.kcal[/]

    [green]kcal fit calibration.csv --embeddings 'e*' --logits 'z_*' --out model.kcal[/]

    [green]kcal fit calibration.csv --embeddings '*' --train train.csv --labels diagnosis -m kcal -o model.kcal[/]
    """
    check_writable(out, MODELS)
    reason = ""
    if method is None:
        outputs = inputs.read(data, shared, options.PARTS, needs=("labels",))
        if outputs.logits is None:
            inputs.require(outputs, ("embeddings",), data)
        method, reason = choose_method(outputs)
        calibrator = build_calibrator(method, shared, settings or [], reason)
        inputs.check_unused(shared, inputs.parts_to_fit(calibrator), method)
    else:
        calibrator = build_calibrator(method, shared, settings or [])
        needs = inputs.needs_to_fit(calibrator)
        outputs = inputs.read(data, shared, inputs.parts_to_fit(calibrator), needs=needs, by=method)
    useless = shared["representation"] and outputs.logits is None
    check_options((useless, "--representation has no effect: there are no logits."))
    training = inputs.read_training(calibrator, data, outputs, shared, train, train_labels)
    shares = calibrator.get_params().get("prior")
    if isinstance(shares, dict) and outputs.labels.dtype.kind != "U":  # as typed, the classes are text
        calibrator.set_params(prior={int(name) if name.isdecimal() else name: shares[name] for name in shares})
    start = perf_counter()
    kcal.fit_on(calibrator, outputs, training)
    seconds = perf_counter() - start
    kcal.save(calibrator, out)
    rows = int((outputs.weights > 0).sum()) if outputs.weights is not None else inputs.n_rows(outputs)
    columns = {part: outputs.columns[part] for part in options.PARTS if part in outputs.columns}
    labels, results = calibrator.classes_.tolist(), calibrator.summary()

    def show() -> None:
        screen, shorten = console(), inputs.shorten
        screen.print(f"[bold]{shown(kcal.METHODS[str(method)].title)}[/] fitted in {seconds:.1f} s")
        if reason:
            screen.print(reason)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        texts = {"classes": f"{len(labels):,}: {shorten(labels, 5)}"}
        texts["samples"] = f"{rows:,}" if outputs.weights is None else f"{rows:,}, weighted"
        texts |= {part: f"column{'s' if names[1:] else ''} {shorten(names)}" for part, names in columns.items()}
        if calibrator.inputs == "both":
            takes = f"{len(labels):,} columns" if calibrator.tags.needs_logits else "none: fitted on embeddings alone"
            texts.setdefault("logits", takes)
        texts |= results | {"file": f"{out}, {decimal(out.stat().st_size)}"}
        for title, text in texts.items():
            table.add_row(title, "\n".join(shown(part) for part in text.split("\n")))
        screen.print(table)

    figures = {"method": method, "seconds": seconds, "file": out, "classes": labels, "samples": rows}
    figures |= {"columns": columns, "results": {title: as_figures(text) for title, text in results.items()}}
    return Result(figures, show)


def choose_method(outputs: Any) -> tuple[str, str]:
    """Return the method for what the data hold, embeddings, logits or both, and why."""
    if outputs.embeddings is not None and outputs.logits is not None:
        method, reason = "kcal-blend", "there are embeddings and logits"
    elif outputs.logits is not None:
        method, reason = "sms", "there are logits, but no embeddings"
    else:
        method, reason = "kcal", "there are embeddings, but no logits"
    return method, f"Method {method}, because {reason}; --method takes another."


def build_calibrator(method: str, shared: Mapping[str, Any], settings: Sequence[str], reason: str = "") -> Any:
    """Return an unfitted calibrator with the parameters that are given as options or with ``--set NAME=VALUE``.

    The library checks their values; ``reason`` is why the method was chosen, for errors.
    """
    calibrator = kcal.calibrators.make_calibrator(method)
    accepted = method_parameters(method)
    chosen = {name: parse_value(shared[name]) for name in options.PARAMETERS if shared[name] is not None}
    for text in settings:
        name, equals, value = (part.strip() for part in text.partition("="))
        check_options(
            (not (name and equals and value), f"--set must be NAME=VALUE, such as bins=20; got {text!r}."),
            (name in chosen, f"--set {name}: this parameter is given more than once."),
        )
        chosen[name] = parse_value(value)

    def typed(name: str) -> str:
        return option_of(name) if shared.get(name) is not None else f"--set {name}"

    for name in chosen:
        text = f"{typed(name)}: parameters of method {method} are {', '.join(accepted)}. {reason}"
        check_options((name not in accepted, text.strip()))
    if shared["prior"] not in (None, "uniform"):  # cat=0.2,dog=0.8
        pairs = [part.rpartition("=")[::2] for part in shared["prior"].split(",")]
        chosen["prior"] = {name.strip(): parse_value(share) for name, share in pairs}
        check_options((len(chosen["prior"]) < len(pairs), "--prior must have one share for each class."))
    untrained = chosen.get("projection") in ("identity", "unit")
    searched = chosen.get("bandwidth", "cv") in ("cv", "published") or chosen.get("support") == "merged"
    ignored = {"dimension": untrained, "recipe": untrained, "folds": not searched}
    for name, is_ignored in ignored.items():
        reason = "bandwidth that is not searched" if name == "folds" else "projection that is not trained"
        check_options((is_ignored and chosen.get(name) is not None, f"{typed(name)} has no effect with a {reason}."))
    silent = {"progress": False} if shared["quiet"] and "progress" in calibrator.get_params() else {}
    return kcal.calibrators.make_calibrator(method, **chosen, **silent)


def option_of(parameter: str) -> str:
    """Return the option of kcal fit for a parameter of a method."""
    name = parameter.replace("_", "-")
    return f"--{name}" if parameter in options.PARAMETERS else f"--set {parameter}=VALUE"


def method_parameters(method: str) -> dict[str, Any]:
    """Return the parameters that can be typed for a method, with their defaults; those that define it are left out."""
    factory = kcal.METHODS[method].factory
    hidden = (*NOT_TYPED, *getattr(factory, "keywords", ()))
    return {name: value for name, value in factory().get_params().items() if name not in hidden}


def parse_value(text: str) -> Any:
    """Return a value of JSON or a literal of Python, such as 0.5, true, None or 1,2; anything else as text."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(text)
    return text


def as_figures(text: str) -> Any:
    """Return the number or the list of numbers that a text has, such as "3,000"; other text as it is."""
    numbers = []
    for part in text.split(", "):
        if not re.fullmatch(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?", part):
            return text
        number = part.replace(",", "")
        numbers.append(int(number) if number.lstrip("+-").isdigit() else float(number))
    return numbers if numbers[1:] else numbers[0]


@options.takes(options.OUTPUT)
def methods(name: options.MethodName = None, **shared: options.Shared) -> Result:
    """List the methods, what they take and what they are called; or show the parameters of one, with their defaults.

    A method takes the network's logits, its embeddings or both. Parameters are options of kcal fit, or set with --set.

    [bold]Examples[/]

    [green]kcal methods[/]

    [green]kcal methods imax[/]
    """
    known = kcal.METHODS
    check_options((name not in (None, *known), f"NAME must be one of {', '.join(known)}; got {name!r}."))
    chosen = list(known) if name is None else [name]
    result: dict[str, dict[str, Any]] = {
        key: {"title": known[key].title, "takes": known[key].inputs, "parameters": method_parameters(key)}
        for key in chosen
    }

    def show() -> None:
        screen = console()
        table = simple_table("name", "title", "takes", n_texts=3)
        for key in chosen:
            extra = f" (pip install 'kcal\\[{known[key].extra}]')" if known[key].extra else ""
            table.add_row(key, f"{known[key].title}{extra}", known[key].inputs)
        screen.print(table)
        if name is None:
            screen.print("kcal methods NAME shows the parameters of a method.")
            return
        table = simple_table("parameter", "option", "default", n_texts=3)
        for parameter, value in result[name]["parameters"].items():
            table.add_row(parameter, option_of(parameter), shown(json.dumps(value)))
        screen.print(table)
        typer.echo(method_help(known[name].calibrator_class, result[name]["parameters"]))

    return Result(result, show)


def method_help(method: type, parameters: Collection[str]) -> str:
    """Return the first paragraph about a method and what is said about some of its parameters, without markup."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"\1", inspect.getdoc(method) or "").replace("``", "")
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries = re.split(r"\n(?=\S)", section)
    chosen = [entry for entry in entries if set(re.split(r", | : ", entry.partition("\n")[0])) & set(parameters)]
    return "\n".join([f"{text.partition(chr(10) * 2)[0]}\n", *chosen]).rstrip()


@options.takes(options.OUTPUT)
def compress(
    model: options.Model,
    out: options.ModelOut,
    size: options.SupportSize = None,
    max_loss_increase: options.MaxLossIncrease = None,
    min_cluster_size: options.MinClusterSize = 1,
    **shared: options.Shared,
) -> Result:
    """Write a calibrator with fewer support points: smaller, faster, and with the means of samples in their place.

    The samples of each class are merged into weighted means, by k-means. The bandwidth, and with --max-loss-increase
    the size, are chosen by out-of-fold predictions. A mean of one sample is that sample: --min-cluster-size bounds how
    many samples a mean stands for.

    [bold]Example[/]

    [green]kcal compress model.kcal --size 0.1 --out small.kcal[/]
    """
    check_writable(out, MODELS)
    given = (size is not None) + (max_loss_increase is not None)
    check_options((given != 1, "--size or --max-loss-increase must be given, and not both."))
    share = None if size is None else parse_value(size)
    kcal.calibrators.compress.size_rule(share, max_loss_increase)
    calibrator: Any = kcal.persistence.load_calibrator(model)
    if not calibrator.tags.has_support:
        raise kcal.InvalidInputError(str(model), f"is of method {calibrator.method}, which has no support to compress")
    small = calibrator.compress(
        share,
        max_loss_increase=max_loss_increase,
        min_cluster_size=min_cluster_size,
    )
    before, after = calibrator.support_size_, small.support_size_
    wanted = share or 0
    if min_cluster_size > 1 and after < (wanted if wanted > 1 else int(wanted * before)):
        text = f"There are {after:,} support points, below --size {size}: --min-cluster-size {min_cluster_size} allows "
        text += "no more."
        warn(text, KcalWarning)
    kcal.save(small, out)
    text = f"{out}: {after:,} support points in place of {before:,}"
    return line(text, file=out, support_size=after, support_size_before=before)


@options.takes(options.OUTPUT)
def export(
    model: options.Model,
    out: options.OnnxOut,
    data: options.VerifyData = None,
    tolerance: options.Tolerance = None,
    **shared: options.Shared,
) -> Result:
    """Write a calibrator as an ONNX file: embeddings and logits in, probabilities (and evidence) out.

    The inputs are [cyan]embeddings[/], [cyan]logits[/] or both, as the method takes them, with any number of rows. The
    file is verified before it is kept, on rows of --data or on rows made like the calibration set: onnxruntime must
    predict as the calibrator does, at several batch sizes, and as torch does far from these rows. A network and its
    calibration in one file are written in Python, by CalibratedClassifier.to_onnx.

    [bold]Example[/]

    [green]kcal export model.kcal --out head.onnx[/]
    """
    check_writable(out, (".onnx",))
    import torch

    from kcal.deployment import TOLERANCE, HeadPredictor, metadata_of, write_onnx

    calibrator: Any = kcal.persistence.load_calibrator(model)
    predictor = HeadPredictor(calibrator)
    rows = calibrator.example_inputs()
    if data is not None:
        outputs = inputs.read_for(calibrator, data, {})
        kcal.predict_on(calibrator, outputs.select([0]))  # raises for columns that are not those of the model
        rows = outputs.parts()
    example = [torch.as_tensor(rows[name]).float() for name in predictor.names]
    metadata, show = metadata_of(calibrator), False if shared["quiet"] else None
    write_onnx(predictor, example, out, metadata=metadata, tolerance=tolerance or TOLERANCE, progress=show)
    signature = f"{', '.join(predictor.names)} to {', '.join(predictor.output_names)}"
    text = f"{out}: {signature}, verified with onnxruntime, {decimal(out.stat().st_size)}"
    return line(text, file=out, inputs=predictor.names, outputs=predictor.output_names)
