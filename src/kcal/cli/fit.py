"""The command ``kcal fit``: from a classifier's outputs to a file that holds a calibrator."""

from __future__ import annotations

from time import perf_counter

from kcal.calibrators import make_calibrator
from kcal.cli import options as o
from kcal.cli.arrays_out import MODEL_SUFFIXES, check_writable, named_output, refuse_to_replace
from kcal.cli.class_order import classes_to_fit, known_classes
from kcal.cli.fitting import fit_samples, read_to_fit
from kcal.cli.methods import (
    build_calibrator,
    check_options,
    parse_bandwidth,
    parse_bandwidth_reference,
    parse_dimension,
    parse_prior,
    parse_seed,
    parse_settings,
    parse_smoothing,
    prior_in_order,
    refuse_what_lacks_data,
)
from kcal.cli.tables import show_fitted
from kcal.persistence import save


def fit(
    data: o.Data,
    out: o.ModelOut,
    method: o.Method = "kcal",
    quiet: o.Quiet = False,
    labels: o.Labels = None,
    logits: o.LogitsBeside = None,
    train: o.Train = None,
    train_labels: o.TrainLabels = None,
    groups: o.Groups = None,
    weights: o.Weights = None,
    ids: o.Ids = None,
    classes: o.Classes = None,
    label_column: o.LabelColumn = None,
    group_column: o.GroupColumn = None,
    weight_column: o.WeightColumn = None,
    id_column: o.IdColumn = None,
    feature_columns: o.FeatureColumns = None,
    logit_columns: o.LogitColumns = None,
    kernel: o.Kernel = None,
    projection: o.Projection = None,
    dimension: o.Dimension = None,
    recipe: o.RecipeName = None,
    bandwidth: o.Bandwidth = None,
    bandwidth_reference: o.BandwidthReference = None,
    folds: o.Folds = None,
    prior: o.Prior = None,
    smoothing: o.Smoothing = None,
    representation: o.Representation = None,
    seed: o.Seed = None,
    more: o.Set = None,
) -> None:
    """Fit a calibrator on data that the network was not trained on, and write it to a file.

    An npz file holds [cyan]embeddings[/] and [cyan]labels[/] (for methods on logits, [cyan]logits[/]; for kcal-blend,
    both), may hold [cyan]groups, weights, ids, classes[/] and, from the network's own training set,
    [cyan]train_embeddings, train_labels, train_groups[/]; the other keys may begin with [cyan]calibration_[/]. A csv
    or parquet table has a header and a column for each feature. A kcal model holds the calibration set's projected
    embeddings: personal data, if the inputs were.

    [bold]Examples[/]

    [green]kcal fit calibration.npz --out model.kcal[/]

    [green]kcal fit calibration.npz --method imax --set form=top --set bins=20 --out model.kcal[/]

    [green]kcal fit calibration.npz --method kcal-blend --out model.kcal[/]

    [green]kcal fit calibration.csv --train train.csv --label-column diagnosis --group-column patient -o model.kcal[/]
    """
    check_writable(out, MODEL_SUFFIXES)
    refuse_to_replace(out, data, labels, logits, train, train_labels, groups, weights, ids)
    typed = {
        "kernel": kernel,
        "projection": projection,
        "dimension": parse_dimension(dimension),
        "recipe": recipe,
        "bandwidth": parse_bandwidth(bandwidth),
        "bandwidth_reference": parse_bandwidth_reference(bandwidth_reference),
        "folds": folds,
        "prior": parse_prior(prior),
        "smoothing": parse_smoothing(smoothing),
        "representation": representation,
        "seed": parse_seed(seed),
    }
    columns = {
        "labels": label_column,
        "groups": group_column,
        "weights": weight_column,
        "ids": id_column,
        "features": feature_columns,
        "logits": logit_columns,
    }
    files = {"labels": labels, "logits": logits, "groups": groups, "weights": weights, "ids": ids}
    parameters = check_options(method, typed) | parse_settings(method, more or [], typed)
    plan = make_calibrator(method, **{name: parameters[name] for name in ("projection",) if name in parameters})
    source = o.source_of(data, columns=columns, files=files, prefixes=("", "calibration_"), classes=classes)
    samples, learned = read_to_fit(plan, source, train, train_labels)
    if plan.inputs == "both":
        refuse_what_lacks_data(parameters, training=learned is not None, logits=samples.logits is not None)
    order = classes_to_fit(samples, plan.inputs)
    if "prior" in parameters:
        known = known_classes(samples, learned, order, plan.inputs)
        parameters["prior"] = prior_in_order(parameters["prior"], known)
    calibrator = build_calibrator(method, parameters, quiet=quiet)
    began = perf_counter()
    fit_samples(calibrator, samples, learned, order)
    seconds = perf_counter() - began
    with named_output(out):
        save(calibrator, out)
    if not quiet:
        show_fitted(calibrator, samples, out, seconds, learned=learned is not None)
