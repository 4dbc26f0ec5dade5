"""The commands ``kcal evaluate``, metrics of a model or of probabilities, and ``kcal compare``, of several methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import kcal
from kcal.cli import data as inputs
from kcal.cli import options
from kcal.cli.messages import check_options, error_text
from kcal.cli.output import Result, check_writable, console, make_folder, shown, simple_table
from kcal.errors import InvalidInputError, KcalError, KcalWarning, MissingExtraError, warn
from kcal.progress import working

MAX_COLUMNS = 4
"""Methods that are columns of the table of metrics; more of them are rows."""


DATA = options.MATRICES | options.LABELS | options.GROUPS | options.WEIGHTS


@options.takes(options.OUTPUT, options.MEASURING, DATA | options.IDS | options.CLASSES)
def evaluate(
    model: options.Evaluated,
    data: options.TestData = None,
    before: options.Before = None,
    probabilities: options.Probabilities = None,
    by: options.By = None,
    **shared: options.Shared,
) -> Result:
    """Measure a model on labelled data: accuracy, calibration errors, Brier score and log-loss, with intervals.

    If the data have [cyan]logits[/] too, the network's own probabilities are shown beside the model's. Rows that the
    model was fitted on are rejected. With [cyan]groups[/], the intervals resample whole groups; [cyan]weights[/] are
    the relative importance of the rows; [cyan]--by[/] measures each subgroup. Without DATA, MODEL is a file of
    probabilities, such as kcal predict writes.
    kcal compare fits several methods.

    [bold]Examples[/]

    [green]kcal evaluate model.kcal test.npz --report report[/]

    [green]kcal evaluate model.kcal test.csv --labels diagnosis --logits 'z_*' --json metrics.json[/]

    [green]kcal evaluate after.csv --labels labels.npy --before before.csv[/]
    """
    no_model = shared["allow_overlap"] or shared["logits"]
    alone = (
        f"{model} is not a model; leave DATA out to evaluate probabilities: kcal evaluate {model} --labels {data}:NAME."
    )
    check_options(
        (data and model.suffix in (".npz", ".npy", ".parquet", ".csv"), alone),
        (not data and model.suffix in (".kcal", ".safetensors"), f"{model} needs DATA: kcal evaluate {model} DATA."),
        (not data and no_model, "--logits and --allow-overlap need a MODEL and DATA."),
        (data and probabilities is not None, "--probabilities is for a file of probabilities, without DATA."),
    )
    check_measuring(shared)
    takes = {"labels", "weights", *(("ids",) if before else ()), *(() if shared["no_intervals"] else ("groups",))}
    if data is None:
        comparison = read_probabilities(model, probabilities, shared, takes, needs=("labels",))
    else:
        comparison = apply_model(model, data, shared, takes if before else {*takes, "logits"})
    if before is not None:
        comparison = with_before(before, probabilities, comparison)
    sources = {"model" if data else "probabilities": model, "data": data, "before": before}
    return measure(comparison, shared, sources, None if by is None else read_subgroups(data or model, by))


@options.takes(options.OUTPUT, options.MEASURING, DATA | options.CLASSES)
def compare(
    calibration: options.Calibration,
    data: options.Data,
    methods: options.Methods = None,
    train: options.Train = None,
    train_labels: options.TrainLabels = None,
    **shared: options.Shared,
) -> Result:
    """Fit several methods on one file, and measure them on another: the network's own probabilities come first.

    With [cyan]--methods all[/] or without --methods, methods that lack their inputs or their package are left out with
    a warning. Options about data hold for both files.

    [bold]Example[/]

    [green]kcal compare calibration.npz test.npz --methods ts,kcal,kcal-blend[/]
    """
    names = parse_methods(options.COMPARED if methods is None else methods, kcal.METHODS)
    check_measuring(shared)
    skips = methods is None or methods.strip() == "all"
    comparison = fit_methods(names, calibration, data, shared, (train, train_labels), skip_failures=skips)
    return measure(comparison, shared, {"calibration": calibration, "data": data})


class Comparison(NamedTuple):
    """Probabilities (n_samples, n_classes) by method, and the outputs that they are for; columns follow ``classes``."""

    probs: dict[str, Any]
    outputs: Any
    classes: Any


def parse_methods(text: str, known: Mapping[str, Any]) -> list[str]:
    """Return names of methods, each once; "all" means every method that is not slow."""
    slow = kcal.calibrators.registry.SLOW
    quick = [name for name, method in known.items() if method.cost < slow]
    chosen = quick if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        check_options(
            (name not in known, f"--methods: {name!r} is not one of all, {', '.join(known)}."),
            (chosen.count(name) > 1, f"--methods names {name} more than once."),
        )
    return chosen


def method_title(name: str) -> str:
    """Return the full name of a method; other names, such as "before", stay as they are."""
    return kcal.METHODS[name].title if name in kcal.METHODS else name


def check_measuring(shared: Mapping[str, Any]) -> None:
    """Raise early for options without effect, and for a report that could not be written after long work."""
    report, useless = shared["report"], ("confidence", "resamples", "seed", "groups")
    given = ", ".join(f"--{name}" for name in useless if shared[name] is not None)
    check_options(
        (shared["figures"] and not report, "--figures is about the report; give --report FOLDER too."),
        (shared["no_intervals"] and given, f"{given} would have no effect with --no-intervals."),
    )
    if report is not None:
        import_module("kcal.report")  # raises with the command that installs matplotlib if it is missing
        check_writable(make_folder(report, "--report") / "report.html", option="--report")


def network_probs(outputs: Any, classes: Any, representation: str = "logits") -> dict[str, Any]:
    """Return the network's own probabilities with columns in the order of ``classes``, if their order is known."""
    if outputs.logits is None:
        return {}
    try:
        network = kcal.Uncalibrated(representation=representation)
        network.fit(outputs.logits, outputs.labels, classes=outputs.classes)  # which learns nothing
        return {"uncal": in_order(network.predict_proba(outputs.logits), network.classes_, classes)}
    except InvalidInputError as error:
        warn(f"The network's own probabilities are left out: {error_text(error, {})[0]}", KcalWarning)
        return {}


def in_order(probs: Any, classes: Any, expected: Any) -> Any:
    """Return probabilities (n_samples, n_classes) with the columns of the expected classes, the same in some order."""
    outputs = kcal.ClassifierOutputs(logits=probs, classes=classes)
    return kcal.calibrators.outputs.reorder(outputs, "logits", classes=expected).logits


def apply_model(model: Path, path: Path, shared: Mapping[str, Any], takes: set[str]) -> Comparison:
    """Return a model's probabilities, after those of the network's logits if there are any."""
    calibrator = kcal.persistence.load_calibrator(model)
    outputs = inputs.read_for(calibrator, path, shared, takes, needs=("labels",))
    classes, names = calibrator.classes_, inputs.parse_classes(shared["classes"])
    if names and kcal.calibrators.outputs.positions(names, classes) is None:
        expected = f"must be those of the model, {inputs.shorten(classes.tolist())}"
        raise InvalidInputError("--classes", expected, got=shared["classes"])
    if not shared["allow_overlap"]:
        inputs.check_overlap(calibrator, outputs, path)
    representation = "logits"
    if calibrator.tags.needs_logits:
        outputs = replace(outputs, classes=classes)  # the order in which they were read
        representation = calibrator.get_params().get("representation", "logits")
    probs = network_probs(outputs, classes, representation)
    if calibrator.method not in probs:
        probs[calibrator.method] = kcal.predict_on(calibrator, outputs)
    return Comparison(probs, outputs, classes)


def read_probabilities(
    path: Path,
    name: str | None,
    shared: Mapping[str, Any],
    takes: set[str],
    *,
    needs: tuple[str, ...] = (),
    classes: Any = None,
) -> Comparison:
    """Read probabilities, by default under the names that kcal predict gives them, in the order of ``classes``."""
    default = {".npz": "probabilities", ".npy": "logits"}.get(path.suffix.lower(), "p_*")  # npy arrays have no name
    try:
        outputs = inputs.read(path, {**shared, "logits": name or default}, {"logits", *takes}, needs=needs)
    except InvalidInputError as error:
        what = error.parameter.replace("logits", "probabilities")
        remedy = error.remedy or "Name probabilities with --probabilities."
        raise InvalidInputError(what, error.expected, got=error.got, remedy=remedy) from error
    known = outputs.classes if classes is None else classes
    if known is None:
        import numpy as np

        known = np.arange(outputs.logits.shape[1])
    if (n_columns := outputs.logits.shape[1]) != len(known):
        raise InvalidInputError(str(path), f"has {n_columns:,} columns of probabilities for {len(known):,} classes")
    return Comparison(
        {"probabilities": kcal.calibrators.outputs.reorder(outputs, "logits", classes=known).logits}, outputs, known
    )


def read_subgroups(path: Path, name: str) -> Any:
    """Return the subgroup of each row, under the name that was given."""
    import pandas

    try:
        values = inputs.read(path, {"groups": name}, {"groups"}).groups
    except InvalidInputError as error:
        what = error.parameter.replace("groups", "--by")
        raise InvalidInputError(what, error.expected, got=error.got, remedy=error.remedy) from error
    file = kcal.embeddings.read.other_file(name)
    return pandas.Series(values, name=name if file is None else file[2] or Path(file[1]).stem)


def with_before(path: Path, name: str | None, after: Comparison) -> Comparison:
    """Return the comparison with the probabilities of another file in place of the network's."""
    before = read_probabilities(path, name, {}, {"labels", "ids"}, classes=after.classes)
    inputs.check_same_rows(after.outputs, before.outputs, str(path))
    kept = {name: probs for name, probs in after.probs.items() if name != "uncal"}
    return after._replace(probs={"before": before.probs["probabilities"]} | (kept or after.probs))


def fit_methods(
    names: list[str],
    path: Path,
    test_path: Path,
    shared: Mapping[str, Any],
    train: tuple[Path | None, str | None],
    *,
    skip_failures: bool,
) -> Comparison:
    """Fit every method on the calibration set, and return their probabilities for the test set, the network's first.

    ``train`` are the file of the training set and its labels. With ``skip_failures``, a method that cannot be fitted
    or applied is left out with a warning.
    """
    calibrators = {name: kcal.calibrators.make_calibrator(name) for name in names}
    learners = [calibrator for calibrator in calibrators.values() if calibrator.tags.uses_training_set]
    check_options((any(train) and not learners, "--train has no effect: none of these methods learns from it."))
    takes = {"logits", "labels", "groups", "weights"}  # logits for the network's own probabilities
    takes |= {"embeddings" for calibrator in calibrators.values() if calibrator.inputs != "logits"}
    calibration = inputs.read(path, shared, takes, needs=("labels",))
    columns = calibration.columns if path.suffix == test_path.suffix else {}  # the same for files of one kind
    test = inputs.read(test_path, {**shared, **columns}, takes, needs=("labels",))
    if test.classes is None:
        test = replace(test, classes=calibration.classes)
    training = {one.inputs: inputs.read_training(one, path, calibration, shared, *train) for one in learners}
    classes: Any = None
    probs: dict[str, Any] = {}
    for name, calibrator in calibrators.items():
        try:
            inputs.require(calibration, inputs.needs_to_fit(calibrator), path)
            with working(f"Fitting {name}"):
                kcal.fit_on(calibrator, calibration, training.get(calibrator.inputs))
                if not calibrator.tags.needs_logits and calibrator.inputs == "both":
                    warn(f"{name}: {path} has no logits, so it is fitted on embeddings alone.", KcalWarning)
                if not shared["allow_overlap"]:
                    inputs.check_overlap(calibrator, kcal.calibrators.in_order_of_fit(calibrator, test), test_path)
                classes = calibrator.classes_ if classes is None else classes
                probs[name] = in_order(kcal.predict_on(calibrator, test), calibrator.classes_, classes)
        except (InvalidInputError, MissingExtraError) as error:
            text = f"{name}{' is left out' if skip_failures else ''}: {error_text(error, {})[0]}"
            if not skip_failures:
                raise KcalError(text) from error
            warn(text, KcalWarning)
    if not probs:
        raise InvalidInputError("--methods", "must name a method that can be fitted; the warnings say why none can")
    network = {"uncal": probs["uncal"]} if "uncal" in probs else network_probs(test, classes)
    return Comparison(network | probs, test, classes)


def measure(
    comparison: Comparison, shared: Mapping[str, Any], sources: Mapping[str, Path | None], by: Any = None
) -> Result:
    """Return the metrics of every method, with intervals, after writing the report if there is to be one.

    ``by`` is the subgroup of each row, in which the last method is measured too.
    """
    import numpy as np

    outputs, classes = comparison.outputs, comparison.classes
    codes = kcal.validation.encode_labels(
        outputs.labels, classes
    )  # integers are no columns: files have their own order
    confidence = None if shared["no_intervals"] else 0.95 if shared["confidence"] is None else shared["confidence"]
    units = np.arange(len(outputs.labels)) if outputs.groups is None else outputs.groups
    resampled = units if outputs.weights is None else units[outputs.weights > 0]
    if confidence is not None and len(np.unique(resampled)) < 2:
        warn("There are no confidence intervals: there is only one sample or group to resample.", KcalWarning)
        confidence = None
    resampling: dict[str, Any] = {"resamples": shared["resamples"] or 1000, "seed": shared["seed"] or 0}
    options = {"sample_weight": outputs.weights, "groups": None if confidence is None else outputs.groups}
    with working("Measuring"):
        evaluations = {
            name: kcal.evaluate(probs, outputs.labels, classes=classes, confidence=confidence, **options, **resampling)
            for name, probs in comparison.probs.items()
        }
        subgroups = None
        if by is not None:
            probs = [*comparison.probs.values()][-1]
            level = {"resamples": 20} if confidence is None else {"confidence": confidence}
            subgroups = kcal.evaluate(probs, outputs.labels, classes=classes, by=by, **options, **resampling | level)
            if confidence is None:
                subgroups = replace(subgroups, **dict.fromkeys(("debiased", "low", "high"), subgroups.low * np.nan))
    first = next(iter(evaluations.values()))
    figures: dict[str, Any] = {name: None if path is None else str(path) for name, path in sources.items()}
    for name in ("n_samples", "n_classes", "bins", "threshold", "clip", "confidence"):
        figures[name] = getattr(first, name)
    for name in ("metrics", "debiased", "intervals"):
        figures[name] = {method: getattr(evaluation, name) for method, evaluation in evaluations.items()}
    if subgroups is not None:
        frame = subgroups.to_frame()
        if subgroups.by in frame:
            frame.index.name = "subgroup"  # a column of the data may be called as a figure is, such as "error"
        figures["subgroups"] = frame.reset_index().to_dict("records")
    report_file = None
    if shared["report"] is not None:
        facts = {term: path.name for term, path in sources.items() if path is not None}  # folders are private
        if outputs.groups is not None:
            facts["groups"] = f"{len(np.unique(units)):,}; the intervals resample whole groups"
        with working("Drawing the report"):
            report_file = import_module("kcal.report").write_report(
                shared["report"],
                {method_title(name): probs for name, probs in comparison.probs.items()},
                codes,
                class_names=classes.tolist(),
                evaluations={method_title(name): evaluation for name, evaluation in evaluations.items()},
                sample_weight=outputs.weights,
                groups=outputs.groups,
                by=subgroups,
                sources=facts,
                limit=shared["figures"] or 20,
                settings={} if confidence is None else {name: f"{value:,}" for name, value in resampling.items()},
            )
    return Result(figures, lambda: show_evaluations(evaluations, subgroups, report_file))


def show_evaluations(evaluations: Mapping[str, Any], subgroups: Any, report_file: Path | None) -> None:
    """Print the metrics, with their intervals unless there are many methods, and those of subgroups, or None."""
    screen, first, is_wide = console(), next(iter(evaluations.values())), len(evaluations) > MAX_COLUMNS
    screen.print(f"{first.n_samples:,} samples, {first.n_classes:,} classes")
    screen.print(metrics_table(evaluations, transposed=is_wide))
    best = ", bold is best" if len(evaluations) > 1 else ""
    screen.print(f"↑ higher is better, ↓ lower is better{best}. {first.settings}.")
    if first.confidence is not None and is_wide:
        screen.print("--json FILE and --report FOLDER have the confidence intervals.")
    elif first.confidence is not None:
        screen.print(
            f"In brackets: {100 * first.confidence:.6g} % confidence intervals by resampling. Calibration errors are "
            "biased upwards: their intervals are about the debiased value, without the part that chance adds."
        )
    if subgroups is not None:
        screen.print(f"\nsubgroups: {shown(method_title([*evaluations][-1]))}")
        screen.print("\n".join(map(shown, str(subgroups).splitlines())), soft_wrap=True)
    if report_file is not None:
        screen.print(f"The report is {shown(report_file)}", soft_wrap=True)


def metrics_table(evaluations: Mapping[str, Any], *, transposed: bool = False) -> Any:
    """Return metrics as rows and methods as columns, the best in bold and intervals below the values.

    ``transposed``: methods as rows, without intervals.
    """
    rows = [["metric", *(shown(method_title(name)) for name in evaluations)]]
    first = next(iter(evaluations.values()))
    for metric in (first.definitions[name] for name in first.metrics):
        values = metric.format_beside([evaluation.metrics[metric.name] for evaluation in evaluations.values()])
        cells = [f"[bold]{text}[/]" if is_best else text for text, is_best in values]
        for place, evaluation in enumerate(evaluations.values()):
            if not transposed and (ends := evaluation.intervals.get(metric.name)) is not None:
                debiased = evaluation.debiased.get(metric.name)
                cells[place] += "" if debiased is None else f"\n[dim]debiased {metric.format(debiased)}[/]"
                cells[place] += f"\n[dim]\\[{', '.join(map(metric.format, ends))}][/]"
        rows.append([metric.labelled(metric.title), *cells])
    if transposed:
        rows = [list(row) for row in zip(*rows, strict=True)]
        rows[0] = ["method", *(title.replace(" ", "\n", 1) for title in rows[0][1:])]
    table = simple_table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    return table
