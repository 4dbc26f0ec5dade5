"""The command ``kcal fit``: from a classifier's outputs to a file with a calibrator."""

from __future__ import annotations

from kcal.cli import options as o


def fit(
    data: o.Data,
    out: o.ModelOut,
    method: o.Method = None,
    quiet: o.Quiet = False,
    labels: o.Labels = None,
    logits: o.LogitsBeside = None,
    train: o.Train = None,
    train_labels: o.TrainLabels = None,
    groups: o.Groups = None,
    weights: o.Weights = None,
    ids: o.Ids = None,
    classes: o.Classes = None,
    labels_are_positions: o.LabelsArePositions = False,
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
    settings: o.Set = None,
) -> None:
    """Fit a calibrator on data that the network was not trained on, and write it to a file.

    An npz file has the keys [cyan]labels[/] and [cyan]embeddings[/], [cyan]logits[/] or both, and optionally
    [cyan]groups, weights, ids, classes[/] and, from the network's own training set, [cyan]train_embeddings,
    train_labels, train_groups[/]; the other keys may begin with [cyan]calibration_[/]. A csv or parquet table has a
    header and one column per feature. Without --method, embeddings and logits are blended (kcal-blend); embeddings
    alone are fitted by kcal, logits alone by ts. Models of kcal and kcal-blend contain the projected embeddings of the
    calibration set: personal data, if the inputs were.

    [bold]Examples[/]

    [green]kcal fit calibration.npz --out model.kcal[/]

    [green]kcal fit calibration.npz --method imax --set form=top --set bins=20 --out model.kcal[/]

    [green]kcal fit calibration.csv --feature-columns 'e*' --logit-columns 'logit_*' --out model.kcal[/]

    [green]kcal fit calibration.csv --train train.csv --label-column diagnosis --group-column patient -o model.kcal[/]
    """
    options = locals()
    from time import perf_counter

    from kcal.cli.choice import build_default
    from kcal.cli.data import Source
    from kcal.cli.output import check_writable
    from kcal.cli.parameters import build_calibrator, check_blend_options
    from kcal.cli.samples import fit_dataset, load_to_fit
    from kcal.cli.tables import show_fitted
    from kcal.persistence import save

    inputs = (data, labels, logits, train, train_labels, groups, weights, ids)
    check_writable(out, (".kcal", ".safetensors"), inputs=inputs)
    source = Source.from_options(data, options, prefixes=("", "calibration_"))
    reason = ""
    if method is None:
        calibrator, parameters, reason = build_default(source, options, settings or [])
    else:
        calibrator, parameters = build_calibrator(method, options, settings or [])
    samples, training = load_to_fit(calibrator, source, train, train_labels)
    if calibrator.inputs == "both":
        has_logits = samples.logits is not None
        check_blend_options(parameters, has_training=training is not None, has_logits=has_logits)
    start = perf_counter()
    fit_dataset(calibrator, samples, training, parameters)
    seconds = perf_counter() - start
    save(calibrator, out)
    if not quiet:
        show_fitted(method or calibrator.method, calibrator, samples, out, seconds=seconds, reason=reason)
