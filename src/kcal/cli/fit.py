"""The command ``kcal fit``: from a classifier's outputs to a file with a calibrator."""

from __future__ import annotations

from kcal.cli import options
from kcal.cli.messages import check_options


def fit(
    data: options.Data,
    out: options.ModelOut,
    method: options.Method = None,
    quiet: options.Quiet = False,
    labels: options.Labels = None,
    logits: options.LogitsBeside = None,
    train: options.Train = None,
    train_labels: options.TrainLabels = None,
    groups: options.Groups = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    classes: options.Classes = None,
    labels_are_positions: options.LabelsArePositions = False,
    label_column: options.LabelColumn = None,
    group_column: options.GroupColumn = None,
    weight_column: options.WeightColumn = None,
    id_column: options.IdColumn = None,
    feature_columns: options.FeatureColumns = None,
    logit_columns: options.LogitColumns = None,
    kernel: options.Kernel = None,
    projection: options.Projection = None,
    dimension: options.Dimension = None,
    recipe: options.RecipeName = None,
    bandwidth: options.Bandwidth = None,
    bandwidth_reference: options.BandwidthReference = None,
    folds: options.Folds = None,
    prior: options.Prior = None,
    smoothing: options.Smoothing = None,
    representation: options.Representation = None,
    seed: options.Seed = None,
    settings: options.Set = None,
) -> None:
    """Fit a calibrator on data that the network was not trained on, and write it to a file.

    An npz file has the keys [cyan]labels[/] and [cyan]embeddings[/], [cyan]logits[/] or both, and optionally
    [cyan]groups, weights, ids, classes[/] and, from the network's own training set, [cyan]train_embeddings,
    train_labels, train_groups[/]; the other keys may begin with [cyan]calibration_[/]. Options such as --label-column
    name other keys. A csv or parquet table has a header and one column per feature. Without --method, embeddings and
    logits are blended (kcal-blend); embeddings alone are fitted by kcal, logits alone by sms. Models of kcal,
    kcal-blend, knn and dac contain embeddings of the calibration set or, for dac, of the training set: personal data,
    if the inputs were.

    [bold]Examples[/]

    [green]kcal fit calibration.npz --out model.kcal[/]

    [green]kcal fit calibration.npz --method imax --set form=top --set bins=20 --out model.kcal[/]

    [green]kcal fit calibration.csv --feature-columns 'e*' --logit-columns 'logit_*' --out model.kcal[/]

    [green]kcal fit calibration.csv --train train.csv --label-column diagnosis --group-column patient -o model.kcal[/]
    """
    arguments = locals()
    from time import perf_counter

    from kcal.cli.choice import build_default
    from kcal.cli.data import Source
    from kcal.cli.output import check_writable
    from kcal.cli.parameters import build_calibrator
    from kcal.cli.samples import fit_dataset, load_to_fit
    from kcal.cli.tables import show_fitted
    from kcal.persistence import save

    inputs = (data, labels, logits, train, train_labels, groups, weights, ids)
    check_writable(out, (".kcal", ".safetensors"), inputs=inputs)
    source = Source.from_options(data, arguments, prefixes=("", "calibration_"))
    reason = ""
    if method is None:
        calibrator, parameters, reason = build_default(source, arguments, settings or [])
    else:
        calibrator, parameters = build_calibrator(method, arguments, settings or [])
    samples, training = load_to_fit(calibrator, source, train, train_labels)
    source.check_used()
    no_logits = representation and samples.logits is None
    check_options((no_logits, "--representation has no effect here: it is about logits, and there are none."))
    start = perf_counter()
    fit_dataset(calibrator, samples, training, parameters)
    seconds = perf_counter() - start
    save(calibrator, out)
    if not quiet:
        show_fitted(method or calibrator.method, calibrator, samples, out, seconds=seconds, reason=reason)
