"""The contract of all calibrators, one function per promise.

Promises about a fitted calibrator take ``fitted``, which was fitted on the problem once, or ``plain``, which was
fitted without a trained projection. Both are shared: they must not be changed. Promises about the fit itself use new
calibrators from ``make``.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch.overrides import TorchFunctionMode

from kcal import FastRecipe, PaperRecipe, load, save
from kcal.calibrators import Calibrator, fit_on, make_calibrator, predict_on
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, KcalError, KcalWarning

Factory = Callable[[], Calibrator]
QUICK = FastRecipe(steps=12, batch_size=120, checkpoints=3)
QUICK_PAPER = PaperRecipe(epochs=2, batches_per_epoch=5, learning_rate=1.0)


def quick(name: str) -> Calibrator:
    """Return a registered calibrator with parameters that are quick to fit."""
    calibrator = make_calibrator(name)
    if "recipe" in calibrator.get_params():
        calibrator.set_params(recipe=QUICK_PAPER if name == "kcal-paper" else QUICK)
    if name == "iop":
        calibrator.set_params(width=4, epochs=10, folds=2)
    if name == "dircal":
        calibrator.set_params(grid=[(0.1, 0.01, 1.0), (1.0, 0.01, 1.0)], folds=2)
    if name == "gp":
        calibrator.set_params(inducing_points=5, samples=40)
    return calibrator


def fit(calibrator: Calibrator, problem: Any, *, change: Callable[[Any], Any] = lambda values: values) -> Calibrator:
    calibration = ClassifierOutputs(change(problem.embeddings), change(problem.logits), problem.labels)
    train = ClassifierOutputs(change(problem.train_embeddings), change(problem.train_logits), problem.train_labels)
    return fit_on(calibrator, calibration, train)


def test_outputs(problem: Any) -> ClassifierOutputs:
    return ClassifierOutputs(problem.test_embeddings, problem.test_logits)


test_outputs.__test__ = False


def prediction_arguments(calibrator: Calibrator, outputs: ClassifierOutputs, change: Callable[[Any], Any]) -> Any:
    """Return the arguments of a prediction, each converted by ``change``."""
    takes_both = calibrator.inputs == "both" and calibrator.tags.needs_logits
    extra = {"logits": change(outputs.logits)} if takes_both else {}
    return (change(outputs.matrix(calibrator.inputs)),), extra


def unlearned(calibrator: Calibrator) -> Calibrator:
    """Return the calibrator without a trained projection."""
    if calibrator.tags.uses_training_set and "projection" in calibrator.get_params():
        calibrator.set_params(projection="identity")
    return calibrator


def check_rows_are_probabilities(fitted: Calibrator, problem: Any) -> None:
    probabilities = predict_on(fitted, test_outputs(problem))
    assert probabilities.shape == (600, 3)
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)


def check_a_clone_is_unfitted_and_fits_to_the_same_bits(fitted: Calibrator, problem: Any) -> None:
    copy = clone(fitted)
    assert not hasattr(copy, "classes_")
    np.testing.assert_array_equal(
        predict_on(fit(copy, problem), test_outputs(problem)), predict_on(fitted, test_outputs(problem))
    )


def check_a_second_fit_forgets_the_first(make: Factory, fitted: Calibrator, problem: Any, other: Any) -> None:
    refitted = fit(fit(make(), other), problem)
    np.testing.assert_array_equal(
        predict_on(refitted, test_outputs(problem)), predict_on(fitted, test_outputs(problem))
    )


def check_saving_and_loading_keeps_every_bit(fitted: Calibrator, problem: Any, folder: Path) -> None:
    loaded = load(save(fitted, folder / "calibrator.kcal"))
    assert type(loaded) is type(fitted)
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
    np.testing.assert_array_equal(predict_on(loaded, test_outputs(problem)), predict_on(fitted, test_outputs(problem)))
    if fitted.tags.has_evidence:
        rows = test_outputs(problem).matrix(fitted.inputs)
        np.testing.assert_array_equal(loaded.evidence(rows), fitted.evidence(rows))
    for name, value in fitted.get_params().items():
        if isinstance(value, str | int | float | None):
            assert getattr(loaded, name) == value


def check_pickles_and_copies_of_a_used_calibrator_keep_every_bit(fitted: Calibrator, problem: Any) -> None:
    expected = predict_on(fitted, test_outputs(problem))
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(predict_on(other, test_outputs(problem)), expected)


def check_a_set_without_errors_excludes_no_class(make: Factory, problem: Any) -> None:
    right = np.flatnonzero(problem.logits.argmax(axis=1) == problem.labels)[:60]
    calibration = ClassifierOutputs(problem.embeddings[right], problem.logits[right], problem.labels[right])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KcalWarning)
        calibrator = fit_on(unlearned(make()), calibration)
    assert (predict_on(calibrator, test_outputs(problem)) > 0).all()


def check_names_of_groups_play_no_part(make: Factory, problem: Any) -> None:
    if "groups" not in make().tags.fit_options:
        return
    groups = np.random.default_rng(3).integers(12, size=len(problem.labels))
    found = []
    for keys in (groups, np.array(list("kaxczbqdyewf"))[groups]):
        calibrator = unlearned(make())
        if "folds" in calibrator.get_params():
            calibrator.set_params(folds=4)
        outputs = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels, groups=keys)
        found.append(predict_on(fit_on(calibrator, outputs), test_outputs(problem)))
    np.testing.assert_array_equal(*found)


def check_names_of_classes_follow_the_columns_not_the_alphabet(make: Factory, plain: Calibrator, problem: Any) -> None:
    names = np.array(["c", "b", "a"])
    named = ClassifierOutputs(problem.embeddings, problem.logits, names[problem.labels])
    calibrator = fit_on(unlearned(make()), named, classes=names)
    expected = predict_on(plain, test_outputs(problem))
    assert calibrator.classes_.tolist() == names.tolist()
    np.testing.assert_allclose(predict_on(calibrator, test_outputs(problem)), expected, atol=1e-6)
    rows, extra = prediction_arguments(calibrator, test_outputs(problem), lambda values: values)
    assert (calibrator.predict(*rows, **extra) == names[expected.argmax(axis=1)]).all()
    if calibrator.inputs == "logits" and not make().tags.uses_training_set:  # which column is which is never guessed
        with pytest.raises(InvalidInputError, match=r"^y "):
            fit_on(unlearned(make()), named)


def check_single_and_double_precision_agree(make: Factory, fitted: Calibrator, problem: Any) -> None:
    double = predict_on(fitted, test_outputs(problem))
    single_fit = fit(make(), problem, change=lambda values: values.astype(np.float32))
    rows, extra = prediction_arguments(single_fit, test_outputs(problem), lambda values: values.astype(np.float32))
    single = single_fit.predict_proba(*rows, **extra)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=5e-3 if fitted.tags.uses_training_set else 1e-4)


def check_torch_in_torch_out(make: Factory, fitted: Calibrator, problem: Any) -> None:
    of_half = fit(make(), problem, change=lambda values: torch.from_numpy(values).bfloat16())
    rows, extra = prediction_arguments(of_half, test_outputs(problem), torch.from_numpy)
    assert_valid(of_half.predict_proba(*rows, **extra).numpy(), "bfloat16")
    of_tensors = fit(make(), problem, change=torch.from_numpy)
    for dtype, given_back in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.half, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        rows, extra = prediction_arguments(
            of_tensors, test_outputs(problem), lambda values, to=dtype: torch.from_numpy(values).to(to)
        )
        probabilities = of_tensors.predict_proba(*rows, **extra)
        assert isinstance(probabilities, torch.Tensor)
        assert probabilities.dtype == given_back
    rows, extra = prediction_arguments(of_tensors, test_outputs(problem), torch.from_numpy)
    np.testing.assert_array_equal(
        of_tensors.predict_proba(*rows, **extra).numpy(), predict_on(fitted, test_outputs(problem))
    )


def check_a_weight_of_zero_leaves_a_sample_out(make: Factory, problem: Any) -> None:
    """Without training: the half that trains a projection is drawn from all rows."""
    weights = np.tile([1.0, 0.0, 2.0], 80)
    kept = weights > 0
    whole = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels, weights=weights)
    part = ClassifierOutputs(
        problem.embeddings[kept], problem.logits[kept], problem.labels[kept], weights=weights[kept]
    )
    calibrator, twin = unlearned(make()), unlearned(make())
    weighted = predict_on(fit_on(calibrator, whole), test_outputs(problem))
    np.testing.assert_allclose(weighted, predict_on(fit_on(twin, part), test_outputs(problem)), atol=1e-6)


def check_a_factor_of_all_weights_changes_nothing(make: Factory, problem: Any) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 3.0, len(problem.labels))
    plain, scaled = (
        predict_on(fit_on(unlearned(make()), weighted_outputs(problem, factor * weights)), test_outputs(problem))
        for factor in (1.0, 3e16)
    )
    np.testing.assert_allclose(scaled, plain, atol=1e-6)


def check_equal_weights_equal_no_weights(make: Factory, plain: Calibrator, problem: Any) -> None:
    weights = np.full(len(problem.labels), 0.004)
    weighted = predict_on(fit_on(unlearned(make()), weighted_outputs(problem, weights)), test_outputs(problem))
    np.testing.assert_allclose(weighted, predict_on(plain, test_outputs(problem)), atol=1e-6)


def weighted_outputs(problem: Any, weights: Any) -> ClassifierOutputs:
    return ClassifierOutputs(problem.embeddings, problem.logits, problem.labels, weights=weights)


def check_parameters_set_after_the_fit_change_no_prediction(fitted: Calibrator, problem: Any) -> None:
    changed = copy.deepcopy(fitted)
    changed.set_params(**dict.fromkeys(changed.get_params(deep=False), "nonsense"))
    np.testing.assert_array_equal(predict_on(changed, test_outputs(problem)), predict_on(fitted, test_outputs(problem)))


def check_an_unfitted_calibrator_raises(make: Factory, problem: Any) -> None:
    for use in ("predict_proba", "predict_log_proba", "predict"):
        with pytest.raises(NotFittedError):
            getattr(make(), use)(problem.logits)
    for use in ("as_module", "summary", "example_inputs"):
        with pytest.raises(NotFittedError):
            getattr(make(), use)()


def check_the_global_random_generator_stays_as_it_was(make: Factory, problem: Any) -> None:
    before, numpy_before = torch.get_rng_state(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    predict_on(fit(make(), problem), test_outputs(problem))
    assert torch.equal(torch.get_rng_state(), before)
    assert pickle.dumps(np.random.get_state()) == numpy_before  # noqa: NPY002


def check_a_failed_fit_leaves_it_unfitted(fitted: Calibrator, problem: Any) -> None:
    failed = copy.deepcopy(fitted)
    with pytest.raises(InvalidInputError):
        fit_on(failed, ClassifierOutputs(problem.embeddings, problem.logits, problem.labels[:-1]))
    with pytest.raises(NotFittedError):
        predict_on(failed, test_outputs(problem))


def check_masked_arrays_are_refused_by_name(make: Factory, problem: Any) -> None:
    def masked(values: Any) -> Any:
        return np.ma.masked_array(values, mask=np.arange(values.size).reshape(values.shape) == 5)

    weights = np.ones(len(problem.labels))
    cases = {
        "X|embeddings|logits": (masked(problem.embeddings), masked(problem.logits), problem.labels, weights),
        "y|labels": (problem.embeddings, problem.logits, masked(problem.labels), weights),
        "sample_weight|weights": (problem.embeddings, problem.logits, problem.labels, masked(weights)),
    }
    for name, (embeddings, logits, labels, weights) in cases.items():
        with pytest.raises(InvalidInputError, match=rf"^({name}) .*masked"):
            fit_on(unlearned(make()), ClassifierOutputs(embeddings, logits, labels, weights=weights))


def check_the_summary_is_text(fitted: Calibrator) -> None:
    assert all(isinstance(text, str) for entry in fitted.summary().items() for text in entry)
    assert bool(fitted.summary()) == (fitted.method != "uncal")


def check_an_option_that_it_does_not_use_is_an_error(make: Factory, problem: Any) -> None:
    calibrator = make()
    for name in {"groups", "ids", "logits", "train_embeddings"} - calibrator.tags.fit_options:
        with pytest.raises((TypeError, InvalidInputError), match=name):
            calibrator.fit(problem.logits, problem.labels, **{name: problem.labels})


def check_log_probabilities_and_labels_agree(fitted: Calibrator, problem: Any) -> None:
    rows, extra = prediction_arguments(fitted, test_outputs(problem), lambda values: values)
    probabilities = fitted.predict_proba(*rows, **extra)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(*rows, **extra)), probabilities, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict(*rows, **extra), fitted.classes_[probabilities.argmax(axis=1)])


class ThreadsOfOperations(TorchFunctionMode):
    """Collect the number of threads that torch's operations of the calling thread may use."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(torch.get_num_threads())
        return function(*args, **(kwargs or {}))


def check_every_operation_of_a_prediction_runs_on_one_thread(fitted: Calibrator, problem: Any) -> None:
    """On a busy machine, threads that share a small operation wait for each other."""
    outputs, before, module = test_outputs(problem), torch.get_num_threads(), fitted.as_module()
    tensors = {"embeddings": torch.from_numpy(outputs.embeddings), "logits": torch.from_numpy(outputs.logits)}
    torch.set_num_threads(3)
    try:
        for n_rows in (1, 50, 600):
            rows, extra = prediction_arguments(fitted, outputs, lambda values, n_rows=n_rows: values[:n_rows])
            some = {name: values[:n_rows] for name, values in tensors.items()}
            with ThreadsOfOperations() as threads:
                for predict in (fitted.predict_proba, fitted.predict_log_proba, fitted.predict):
                    predict(*rows, **extra)
                module(**some)
                if fitted.tags.has_evidence:
                    fitted.evidence(*rows)
                    fitted.log_evidence(*rows)
                if fitted.tags.has_explanations:
                    fitted.explain(*rows, **extra)
            assert threads.seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def check_permuting_classes_permutes_columns(make: Factory, plain: Calibrator, problem: Any) -> None:
    """Without training, which draws other batches."""
    permutation = np.array([2, 0, 1])  # new code of each old class
    twin = unlearned(make())
    if twin.method == "iop":  # its other form distinguishes the classes
        twin.set_params(form="oi")
        plain = fit_on(clone(twin), ClassifierOutputs(problem.embeddings, problem.logits, problem.labels))
    columns = np.argsort(permutation)
    turned = fit_on(
        twin, ClassifierOutputs(problem.embeddings, problem.logits[:, columns], permutation[problem.labels])
    )
    rows = test_outputs(problem)
    turned_rows = ClassifierOutputs(rows.embeddings, rows.logits[:, columns])
    np.testing.assert_allclose(predict_on(turned, turned_rows), predict_on(plain, rows)[:, columns], atol=1e-6)


def check_a_constant_added_to_logits_changes_nothing(make: Factory, fitted: Calibrator, problem: Any) -> None:
    if fitted.inputs == "embeddings":
        return
    shift = np.random.default_rng(0).normal(scale=50, size=(len(problem.logits), 1))
    train_shift = np.random.default_rng(1).normal(scale=50, size=(len(problem.train_logits), 1))
    calibration = ClassifierOutputs(problem.embeddings, problem.logits + shift, problem.labels)
    train = ClassifierOutputs(problem.train_embeddings, problem.train_logits + train_shift, problem.train_labels)
    shifted = fit_on(make(), calibration, train)
    expected = predict_on(fitted, test_outputs(problem))
    moved = ClassifierOutputs(problem.test_embeddings, problem.test_logits + 17.0)
    np.testing.assert_allclose(predict_on(shifted, moved), expected, atol=1e-6)


def check_order_is_preserved_where_that_is_promised(fitted: Calibrator) -> None:
    if not fitted.tags.preserves_order:
        return
    generator = np.random.default_rng(0)
    cases = {
        "random": 3 * generator.normal(size=(200, 3)),
        "tied": generator.integers(-2, 3, size=(200, 3)).astype(float),
        "nearly tied": 1e-7 * generator.normal(size=(200, 3)),
        "far apart": 1e4 * generator.integers(-1, 2, size=(200, 3)),
    }
    for name, logits in cases.items():
        probabilities = fitted.predict_proba(logits)
        higher = logits[:, :, None] > logits[:, None, :]  # (n, 3, 3)
        equal = logits[:, :, None] == logits[:, None, :]
        difference = probabilities[:, :, None] - probabilities[:, None, :]
        assert (difference[higher] >= 0).all(), name
        assert (difference[equal] == 0).all(), name
        if name == "random":
            assert (difference[higher] > 0).all()


def check_masked_logits_are_accepted(make: Factory, problem: Any, folder: Path) -> None:
    calibrator = make()
    if calibrator.inputs == "embeddings":
        return
    if calibrator.method == "iop":
        calibrator.set_params(form="oi", folds=2)

    def mask(logits: Any, labels: Any) -> Any:
        masked, rows = logits.astype(np.float32), np.arange(0, len(labels), 3)
        masked[rows, (labels[rows] + 1) % 3] = np.finfo(np.float32).min
        return masked

    labels = problem.labels[:60]
    logits, train_logits = mask(problem.logits[:60], labels), mask(problem.train_logits, problem.train_labels)
    calibration = ClassifierOutputs(problem.embeddings[:60], logits, labels)
    train = ClassifierOutputs(problem.train_embeddings, train_logits, problem.train_labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KcalWarning)
        fitted = fit_on(calibrator, calibration, train)
        loaded = load(save(fitted, folder / "model.kcal"))
        assert_valid(predict_on(loaded, calibration), "masked")
        infinite = ClassifierOutputs(problem.embeddings[:60], np.where(logits < -1e38, -np.inf, logits))
        np.testing.assert_array_equal(predict_on(fitted, infinite), predict_on(fitted, calibration))


def check_other_columns_are_refused_by_name(fitted: Calibrator, problem: Any) -> None:
    outputs = test_outputs(problem)
    rows, extra = prediction_arguments(fitted, outputs, lambda values: values)
    wide = np.concatenate([rows[0], rows[0][:, :1]], axis=1)
    n_columns = rows[0].shape[1]
    for given in (wide, torch.from_numpy(wide)):
        with pytest.raises(
            InvalidInputError, match=rf"^X has {n_columns + 1} features, but .*expecting {n_columns} "
        ) as caught:
            fitted.predict_proba(given, **extra)
        assert caught.value.parameter == "X"


def check_hard_inputs_give_valid_rows(make: Factory, problem: Any) -> None:
    """Methods on logits accept every case; KCal may raise that there are too few samples to train on."""
    for name, (rows, labels) in hard_cases().items():
        queries = rows + 0.25
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KcalWarning)
                fitted = fit_on(make(), ClassifierOutputs(rows, rows, labels))
                probabilities = predict_on(fitted, ClassifierOutputs(queries, queries))
                extra = {"logits": queries} if fitted.inputs == "both" else {}
                log_probs = fitted.predict_log_proba(queries, **extra)
        except KcalError as error:
            if make().inputs == "embeddings" or make().method == "kcal-logits":
                continue
            error.add_note(f"in the case {name!r}")
            raise
        assert_valid(probabilities, name)
        assert not np.isnan(log_probs).any(), name
        assert (log_probs <= 0).all(), name
        if not fitted.tags.has_evidence:
            assert np.isfinite(log_probs).all(), name


def hard_cases() -> dict[str, tuple[Any, Any]]:
    """Return difficult logits, or embeddings, and labels."""
    generator = np.random.default_rng(0)
    labels = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2, 0])
    signs = np.where(generator.random((60, 3)) < 0.5, -1.0, 1.0)
    return {
        "constant": (np.zeros((10, 3)), labels),
        "separable": (5.0 * np.eye(3)[labels], labels),
        "saturated": (np.where(np.eye(3)[labels] > 0, 1e4, -1e4), labels),
        "five samples": (generator.normal(size=(5, 3)), labels[:5]),
        "two classes": (generator.normal(size=(10, 2)), labels % 2),
        "many classes": (generator.normal(size=(200, 100)), np.arange(200) % 100),
        "a missing class": (generator.normal(size=(10, 3)), labels % 2),
        "tied scores": (generator.integers(0, 2, size=(10, 3)).astype(float), labels),
        "thousands": (1e3 * generator.normal(size=(60, 3)), np.tile(labels, 6)),
        "saturated both ways": (1e4 * signs, np.tile(labels, 6)),
    }


def assert_valid(probabilities: Any, name: str) -> None:
    """Raise unless rows are probabilities."""
    assert np.isfinite(probabilities).all(), name
    assert (probabilities >= 0).all(), name
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6, err_msg=name)


def check_it_lowers_the_loss_of_overconfident_logits(fitted: Calibrator, problem: Any) -> None:
    if fitted.method == "uncal":
        return
    truth = problem.test_probabilities
    logits = problem.test_logits - problem.test_logits.max(axis=1, keepdims=True)
    raw = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    calibrated = np.log(np.maximum(predict_on(fitted, test_outputs(problem)), 1e-12))
    assert -(truth * calibrated).sum(axis=1).mean() < -(truth * raw).sum(axis=1).mean() - 0.1


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
