"""KCal blended with the network: the one method that takes embeddings and logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, blobs, columns_of, read_columns, write_columns

import kcal
from kcal.calibrators import KCalBlend, StructuredMatrixScaling, Uncalibrated

CODES = np.arange(60) % 3
BLEND = ("-m", "kcal-blend", "-o", "model.kcal")
TABLE = ("--feature-columns", "e_*", "--logit-columns", "z_*")


def fitted(*, logits: bool = True, **parameters: object) -> KCalBlend:
    """The library's blend on the same animals."""
    arrays = blobs(90, 1)
    scores = arrays["logits"] if logits else None
    return KCalBlend(progress=False, **parameters).fit(
        arrays["embeddings"], arrays["labels"], logits=scores, classes=ANIMALS
    )


def expected(blend: KCalBlend) -> np.ndarray:
    arrays = blobs(60, 2)
    return blend.predict_proba(arrays["embeddings"], logits=arrays["logits"] if blend.needs_logits_ else None)


def written(run, *words: object) -> np.ndarray:
    run("predict", "model.kcal", *words, "-o", "p.npy")
    return np.load("p.npy")


def metrics(run, *words: object) -> dict[str, dict[str, float]]:
    run("evaluate", *words, "--no-intervals", "--json", "figures.json")
    return json.loads(Path("figures.json").read_text())["metrics"]


def said(result) -> str:
    return " ".join(result.output.replace("│", " ").split())


def without(arrays: dict[str, np.ndarray], *keys: str) -> dict[str, np.ndarray]:
    return {key: values for key, values in arrays.items() if key not in keys}


def test_fit_predict_and_evaluate_give_the_library_s_numbers(run, calibration, test_set):
    output = said(run("fit", calibration, *BLEND))
    blend = fitted()
    for name, share in blend.shares_.items():
        assert f"{name} {share:.0%}" in output
    for name, weight in blend.weights_.items():
        assert f"{name} {weight:.2f}" in output
    assert f"temperature {blend.temperature_:.3f}" in output
    assert f"bandwidth {blend.bandwidth_:.4g}" in output
    np.testing.assert_allclose(written(run, test_set), expected(blend), atol=1e-6)
    found = metrics(run, "model.kcal", test_set)
    assert list(found) == ["uncal", "kcal-blend"]
    assert found["kcal-blend"] == pytest.approx(kcal.evaluate(expected(blend), CODES).as_dict(), abs=1e-6)
    logits = blobs(60, 2)["logits"]
    network = Uncalibrated().fit(logits, CODES).predict_proba(logits)
    assert found["uncal"] == pytest.approx(kcal.evaluate(network, CODES).as_dict(), abs=1e-6)


def test_a_training_set_in_the_same_file_changes_nothing(run, test_set):
    train = {f"train_{key}": blobs(150, 3)[key] for key in ("embeddings", "logits", "labels")}
    np.savez("all.npz", **{f"calibration_{key}": values for key, values in blobs(90, 1).items()}, **train)
    run("fit", "all.npz", *BLEND, "--classes", "cat,dog,owl")
    np.testing.assert_allclose(written(run, test_set), expected(fitted()), atol=1e-6)


def test_without_logits_it_is_fitted_on_embeddings_alone_and_says_so(run, test_set):
    np.savez("bare.npz", **without(blobs(90, 1), "logits"))
    output = run("fit", "bare.npz", *BLEND).stdout
    assert "none: fitted on embeddings alone" in output
    np.testing.assert_allclose(written(run, test_set), expected(fitted(logits=False)), atol=1e-6)
    assert list(metrics(run, "model.kcal", test_set)) == ["uncal", "kcal-blend"]
    np.save("z.npy", blobs(60, 2)["logits"])
    result = run("predict", "model.kcal", test_set, "--logits", "z.npy", "-o", "p.npy", code=2)
    assert "was not fitted on embeddings and logits" in said(result)


def test_logits_may_lie_in_a_file_of_their_own(run, tmp_path):
    for name, arrays in (("calibration", blobs(90, 1)), ("test", blobs(60, 2))):
        np.save(f"{name}.npy", arrays["embeddings"])
        np.save(f"{name}_labels.npy", arrays["labels"])
        columns = columns_of(arrays)
        write_columns(tmp_path / f"{name}.csv", {key: columns[key] for key in ("id", "z_owl", "z_cat", "z_dog")})
    run("fit", "calibration.npy", "--labels", "calibration_labels.npy", "--logits", "calibration.csv", *BLEND[:2],
        "--logit-columns", "z_*", *BLEND[2:])  # fmt: skip
    assert kcal.load("model.kcal").classes_.tolist() == ["owl", "cat", "dog"]
    found = written(run, "test.npy", "--logits", "test.csv")
    np.testing.assert_allclose(found[:, [1, 2, 0]], expected(fitted()), atol=1e-5)
    words = ("model.kcal", "test.npy", "--labels", "test_labels.npy", "--logits", "test.csv")
    assert list(metrics(run, *words)) == ["uncal", "kcal-blend"]
    assert list(metrics(run, *words, "--before", "p.npy")) == ["before", "kcal-blend"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_holds_both_and_its_columns_are_found_again_in_any_order(run, tmp_path, suffix):
    write_columns(tmp_path / f"calibration{suffix}", columns_of(blobs(90, 1)))
    turned = dict(reversed(columns_of(blobs(60, 2)).items()))
    test = write_columns(tmp_path / f"test{suffix}", turned | {"noise": np.ones(60)})
    assert "z_cat, z_dog, z_owl" in run("fit", f"calibration{suffix}", *BLEND, *TABLE).stdout
    np.testing.assert_allclose(written(run, test), expected(fitted()), atol=1e-5)
    run("predict", "model.kcal", test, *TABLE, "--evidence", "-o", "p.csv")
    columns = read_columns(Path("p.csv"))
    assert set(columns) == {"id", "prediction", "p_cat", "p_dog", "p_owl", "evidence"}
    np.testing.assert_allclose(columns["p_dog"], expected(fitted())[:, 1], atol=1e-5)
    np.testing.assert_allclose(columns["evidence"], fitted().evidence(blobs(60, 2)["embeddings"]), rtol=1e-5)
    write_columns(tmp_path / "bare.csv", {key: turned[key] for key in turned if not key.startswith("z_")})
    result = run("predict", "model.kcal", "bare.csv", "-o", "p.npy", code=1)
    assert "lacks 3 of the 3 columns that the model was fitted on: z_cat, z_dog, z_owl" in said(result)
    assert "--logit-columns" in said(result)


def test_a_table_whose_logits_are_not_named_is_told_how_to(run, tmp_path):
    write_columns(tmp_path / "calibration.csv", columns_of(blobs(90, 1)))
    output = run("fit", "calibration.csv", *BLEND, "--feature-columns", "e_*").stdout
    assert "fitted on embeddings alone; name those of a table with --logit-columns" in output


def test_numbered_labels_are_columns_of_the_logits(run, calibration, test_set):
    arrays = without(blobs(90, 1, names=False), "classes")
    wider = np.c_[arrays["logits"], np.full(90, -9.0)]
    np.savez("numbers.npz", **arrays | {"logits": wider})
    run("fit", "numbers.npz", *BLEND, "--prior", "0=0.2,1=0.3,2=0.4,3=0.1")
    model = kcal.load("model.kcal")
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert list(model.prior) == [0.2, 0.3, 0.4, 0.1]
    np.savez("narrow.npz", **arrays | {"logits": wider[:, :2]})
    result = run("fit", "narrow.npz", *BLEND, code=1)
    assert "narrow.npz: labels must be column indices from 0 to 1; got 2 at row 2" in said(result)


def test_classes_of_a_file_in_another_order_are_matched_by_name(run, calibration):
    arrays, order = blobs(60, 2), [2, 0, 1]
    np.savez("turned.npz", **arrays | {"logits": arrays["logits"][:, order], "classes": ANIMALS[order]})
    run("fit", calibration, *BLEND)
    np.testing.assert_allclose(written(run, "turned.npz"), expected(fitted()), atol=1e-6)


def test_groups_and_weights_reach_the_blend(run, tmp_path):
    arrays, groups, weights = blobs(90, 1), np.arange(90) // 9, np.linspace(0.0, 2, 90)
    np.savez("data.npz", **arrays, groups=groups, weights=weights)
    assert "89, weighted" in run("fit", "data.npz", *BLEND).stdout
    blend = KCalBlend().fit(
        arrays["embeddings"],
        arrays["labels"],
        logits=arrays["logits"],
        groups=groups,
        sample_weight=weights,
        classes=ANIMALS,
    )
    assert kcal.load("model.kcal").weights_ == pytest.approx(blend.weights_)


BAD_LOGITS = {
    "rows": (lambda z: z[:50], "logits must have one entry per sample; got 50 for"),
    "columns": (lambda z: z[:, :2], "classes must name every column of the logits (2); got 3 classes"),
    "nan": (
        lambda z: np.where(np.arange(3) + np.zeros((len(z), 1)) == 1, np.nan, z),
        "logits must be finite, without NaN or inf; got NaN at row 0",
    ),
    "text": (lambda z: z.astype(str), "logits must be real numbers"),
}


@pytest.mark.parametrize("kind", BAD_LOGITS)
def test_logits_that_do_not_fit_are_refused_by_every_command(run, calibration, kind):
    spoil, message = BAD_LOGITS[kind]
    for name, arrays in (("cal.npz", blobs(90, 1)), ("bad.npz", blobs(60, 2))):
        np.savez(name, **arrays | {"logits": spoil(arrays["logits"])})
    result = run("fit", "cal.npz", *BLEND, code=1)
    assert message in said(result)
    assert "cal.npz: " in said(result)
    assert not Path("model.kcal").exists()
    run("fit", calibration, *BLEND)
    columns = "bad.npz: logits must have one column for each of the 3 classes of the fit; got 2 columns"
    told = columns if kind == "columns" else message
    assert told in said(run("predict", "model.kcal", "bad.npz", "-o", "p.npy", code=1))
    assert told in said(run("evaluate", "model.kcal", "bad.npz", code=1))


def test_logits_that_are_missing_are_named_with_the_ways_to_give_them(run, calibration):
    np.savez("bare.npz", **without(blobs(60, 2), "logits"))
    run("fit", calibration, *BLEND)
    commands = (
        ("predict", "model.kcal", "bare.npz", "-o", "p.npy"),
        ("evaluate", "model.kcal", "bare.npz"),
        ("evaluate", calibration, "bare.npz", "--methods", "kcal-blend"),
    )
    for words in commands:
        message = said(run(*words, code=1))
        assert "bare.npz has no logits, but method kcal-blend was fitted with logits" in message
        assert "--logits FILE" in message


def test_methods_side_by_side_hold_the_library_s_blend(run, calibration, test_set):
    found = metrics(run, calibration, test_set, "--methods", "sms,kcal-blend")
    assert list(found) == ["uncal", "sms", "kcal-blend"]
    wanted = kcal.evaluate(expected(fitted()), CODES).as_dict()
    assert found["kcal-blend"] == pytest.approx(wanted, abs=1e-6)
    one, other = blobs(90, 1), blobs(60, 2)
    structured = StructuredMatrixScaling().fit(one["logits"], one["labels"], classes=ANIMALS)
    wanted = kcal.evaluate(structured.predict_proba(other["logits"]), CODES).as_dict()
    assert found["sms"] == pytest.approx(wanted, abs=1e-6)


def test_methods_read_both_from_tables(run, tmp_path):
    for name, rows, seed in (("calibration", 90, 1), ("test", 60, 2)):
        write_columns(tmp_path / f"{name}.csv", columns_of(blobs(rows, seed)))
    found = metrics(run, "calibration.csv", "test.csv", "--methods", "ts,kcal-blend", *TABLE)
    wanted = kcal.evaluate(expected(fitted()), CODES).as_dict()
    assert found["kcal-blend"]["negative_log_likelihood"] == pytest.approx(wanted["negative_log_likelihood"], abs=1e-5)


def test_methods_without_logits_say_what_the_blend_was_fitted_on(run, test_set):
    np.savez("bare.npz", **without(blobs(90, 1), "logits"))
    result = run("evaluate", "bare.npz", test_set, "--methods", "kcal-blend", "--no-intervals")
    assert "kcal-blend: bare.npz has no logits, so it is fitted on embeddings alone" in said(result)


def test_folds_seed_and_prior_reach_the_blend(run, calibration, test_set):
    run("fit", calibration, *BLEND, "--folds", "3", "--seed", "2", "--prior", "uniform")
    np.testing.assert_allclose(written(run, test_set), expected(fitted(folds=3, seed=2, prior="uniform")), atol=1e-6)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--kernel", "rbf"), 2, "--kernel is not an option of method kcal-blend"),
        (("--bandwidth", "1"), 2, "--bandwidth is not an option of method kcal-blend"),
        (("--smoothing", "0.1"), 2, "--smoothing is not an option of method kcal-blend"),
        (("--projection", "identity"), 2, "--projection is not an option of method kcal-blend"),
        (("--dimension", "2"), 2, "--dimension is not an option of method kcal-blend"),
        (("--recipe", "fast"), 2, "--recipe is not an option of method kcal-blend"),
        (("--train", "calibration.npz"), 2, "--train has no effect here: method kcal-blend learns no projection"),
        (("--set", "bins=2"), 2, "'bins' is not a parameter of method kcal-blend, which takes"),
        (("--representation", "probabilities"), 1, "must hold probabilities that sum to 1"),
        (("--classes", "cat,dog,owl,cow"), 1, "classes must name every column of the logits (3); got 4 classes"),
    ],
)
def test_what_does_not_apply_is_refused(run, calibration, words, code, message):
    assert message in said(run("fit", calibration, *BLEND, *words, code=code))
    assert not Path("model.kcal").exists()


def test_a_single_sample_or_group_is_refused_without_naming_options_that_a_blend_lacks(run):
    arrays = blobs(90, 1)
    np.savez("one.npz", **{key: values if key == "classes" else values[:1] for key, values in arrays.items()})
    np.savez("group.npz", **arrays, groups=np.zeros(90, dtype=int))
    for name, what in (("one", "samples"), ("group", "groups")):
        message = run("fit", f"{name}.npz", *BLEND, code=1).stderr
        assert f"at least two {what}" in message
        assert "--bandwidth" not in message


def test_what_is_about_logits_is_refused_without_them(run):
    np.savez("bare.npz", **without(blobs(90, 1), "logits"))
    words = ("fit", "bare.npz", *BLEND, "--representation", "probabilities")
    assert "it is about logits, and there are none" in said(run(*words, code=2))


@pytest.mark.parametrize(("method", "inputs"), [("kcal", "embeddings"), ("ts", "logits"), ("sms", "logits")])
def test_other_methods_take_no_logits_beside_their_data(run, calibration, test_set, method, inputs):
    np.save("z.npy", blobs(90, 1)["logits"])
    words = ("fit", calibration, "-m", method, "-o", "model.kcal")
    assert f"method {method} takes {inputs}, from DATA" in said(run(*words, "--logits", "z.npy", code=2))
    assert "--projection none is not for method kcal" in said(
        run("fit", calibration, "-m", "kcal", "-o", "model.kcal", "--projection", "none", code=2)
    )


def test_rows_that_it_was_fitted_on_are_refused_and_warned_of(run, calibration):
    run("fit", calibration, *BLEND)
    assert "90 of the 90 rows" in run("evaluate", "model.kcal", calibration, code=3).output
    message = run("predict", "model.kcal", calibration, "-o", "p.npy").stderr
    assert "Evaluate on other data." in message
    assert "leave_one_out" not in message


def test_logits_of_other_columns_than_classes_are_left_out_beside_embeddings(run, model):
    arrays = blobs(60, 2)
    for columns in ([0, 1], [0, 1, 2, 0]):
        np.savez("odd.npz", **arrays | {"logits": arrays["logits"][:, columns]})
        result = run("evaluate", model, "odd.npz", "--no-intervals")
        assert f"logits have {len(columns)} columns for 3 classes" in said(result)
