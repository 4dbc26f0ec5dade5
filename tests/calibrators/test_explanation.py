"""Explanations: shares, distances and log-odds against loops over samples, and sums that leave nothing out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcal import KCal, KCalBlend, load, save
from kcal.calibrators import Explanation
from kcal.errors import FewSamplesWarning, InvalidInputError, LeakageWarning
from synthetic import Problem

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")

QUERIES = slice(0, 12)


def whole(explanation: Explanation) -> Any:
    """Return the sum of all shares, (n, n_classes)."""
    return explanation.sample_shares() + explanation.rest + sum(explanation.parts.values(), 0.0)


def slow_shares(model: KCal, rows: Any, labels: Any, query: Any, weights: Any) -> Any:
    """Return the share of every sample in the probability of its class, and its distance, by the formula alone."""
    distances = [float(np.sqrt(((row - query) ** 2).sum())) for row in rows]
    b, d = model.bandwidth_, rows.shape[1]
    values = [w * np.exp(-(t**2) / (2 * d * b * b)) for w, t in zip(weights, distances, strict=True)]
    ratios = [1.0 if model.prior is None else model.prior[k] / np.average(labels == k, weights=weights) for k in labels]
    corrected = [value * ratio for value, ratio in zip(values, ratios, strict=True)]
    return (1 - model.model_.even_share) * np.array(corrected) / sum(corrected), np.array(distances)


@pytest.mark.parametrize(
    ("parameters", "weighted"),
    [({}, False), ({"smoothing": 0.1}, False), ({"prior": [0.2, 0.3, 0.5], "smoothing": 0.02}, True)],
)
def test_samples_and_shares_of_kcal_are_those_of_a_loop(
    problem: Problem, parameters: dict[str, Any], weighted: bool
) -> None:
    weights = np.random.default_rng(0).uniform(0, 2, 240) * (np.arange(240) % 5 > 0) if weighted else np.ones(240)
    ids = np.array([f"patient {i}" for i in range(240)])
    options = {"sample_weight": weights, "ids": ids}
    model = KCal(projection="identity", **parameters).fit(problem.embeddings, problem.labels, **options)
    queries = problem.test_embeddings[QUERIES]
    explanation, probs = model.explain(queries, k=4), model.predict_proba(queries)
    np.testing.assert_array_equal(explanation.probabilities, probs)
    np.testing.assert_allclose(whole(explanation), probs, rtol=1e-12)
    for row, query in enumerate(queries):
        shares, distances = slow_shares(model, problem.embeddings, problem.labels, query, weights)
        largest = np.argsort(-shares)[:4]
        assert explanation.ids[row].tolist() == ids[largest].tolist()
        assert explanation.rows[row].tolist() == largest.tolist()
        assert explanation.labels[row].tolist() == problem.labels[largest].tolist()
        np.testing.assert_allclose(explanation.shares[row], shares[largest], rtol=1e-9)
        np.testing.assert_allclose(explanation.distances[row], distances[largest], rtol=1e-12)
        shares[largest] = 0.0
        np.testing.assert_allclose(
            explanation.rest[row], np.bincount(problem.labels, weights=shares), rtol=1e-8, atol=1e-14
        )
    assert list(explanation.parts) == ["smoothing"]
    assert not explanation.log_odds


def test_where_the_prior_excludes_all_mass_the_prior_itself_is_the_explanation() -> None:
    rows = np.array([[0.0, 0.0], [0.1, 0.0], [90.0, 0.0], [90.1, 0.0]])
    model = KCal(projection="identity", bandwidth=0.5, prior=[0.0, 1.0], smoothing=0.1)
    with pytest.warns(FewSamplesWarning):
        model.fit(rows, [0, 0, 1, 1])
    explanation = model.explain(rows + 0.01, k=2)
    np.testing.assert_allclose(whole(explanation), explanation.probabilities, rtol=1e-12)
    np.testing.assert_allclose(explanation.parts["prior"][:2], [[0, 0.9], [0, 0.9]], rtol=1e-12)
    assert not explanation.shares[:2].any()
    np.testing.assert_allclose(explanation.shares[2:].sum(axis=1), 0.9)
    assert explanation.rows[:2].tolist() == [[0, 1], [1, 0]]  # without shares, the nearest


@pytest.fixture(scope="module")
def blend(problem: Problem) -> KCalBlend:
    return KCalBlend(prior=[0.5, 0.3, 0.2]).fit(problem.embeddings, problem.labels, logits=problem.logits)


def test_the_log_odds_of_a_blend_are_the_sum_of_its_terms(problem: Problem, blend: KCalBlend) -> None:
    """Also far from all samples, where none is near."""
    far = np.linspace(0, 1, 600)[:, None] ** 4 * 30
    queries = problem.test_embeddings + far
    explanation = blend.explain(queries, logits=problem.test_logits)
    log_probs = blend.predict_log_proba(queries, logits=problem.test_logits)
    top = np.sort(log_probs, axis=1)[:, ::-1]
    odds = explanation.log_odds
    assert list(odds) == ["network", "refitted layer", "similar samples", "prior"]
    np.testing.assert_allclose(sum(odds.values()), top[:, 0] - top[:, 1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(odds["similar samples"][-1], 0.0, atol=1e-6)
    np.testing.assert_allclose(whole(explanation), np.exp(log_probs), rtol=1e-12, atol=1e-300)


def test_shares_and_terms_of_a_blend_are_those_of_a_loop(problem: Problem, blend: KCalBlend) -> None:
    model, queries, logits = blend.model_, problem.test_embeddings[QUERIES], problem.test_logits[QUERIES]
    lam, w = blend.shares_, blend.weights_
    experts = model.experts(*model.class_sums(torch.from_numpy(queries)), torch.from_numpy(logits))
    explanation = blend.explain(queries, k=3, logits=logits)
    assert list(explanation.parts) == ["network", "refitted layer"]
    for row, query in enumerate(queries):
        kernel = np.exp(-((problem.embeddings - query) ** 2).sum(axis=1) / (2 * 6 * blend.bandwidth_**2))
        counts = np.bincount(problem.labels, weights=kernel, minlength=3)
        f, r = np.exp(experts.pooled[:2, row].numpy())
        backgrounds = {"pool": float(model.pool_background), "mixture": float(model.background)}
        d = {name: (b * f + counts) / (b + counts.sum()) for name, b in backgrounds.items()}
        near = {name: counts / (counts + b * f) for name, b in backgrounds.items()}
        pool = f ** w["network"] * r ** w["refit"] * d["pool"] ** w["samples"]
        pool /= pool.sum()
        p = lam["pool"] * pool + lam["network"] * f + lam["refit"] * r + lam["samples"] * d["mixture"]
        size = sum(map(abs, w.values()))
        samples = lam["pool"] * pool * abs(w["samples"]) / size * near["pool"]
        samples += lam["samples"] * d["mixture"] * near["mixture"]
        refit = lam["pool"] * pool * abs(w["refit"]) / size + lam["refit"] * r
        probs = explanation.probabilities[row]
        shares = (samples / p * probs)[problem.labels] * kernel / counts[problem.labels]
        largest = np.argsort(-shares)[:3]
        assert explanation.rows[row].tolist() == largest.tolist()
        np.testing.assert_allclose(explanation.shares[row], shares[largest], rtol=1e-7)
        np.testing.assert_allclose(explanation.parts["refitted layer"][row], refit / p * probs, rtol=1e-7)

        a, b = np.argsort(-probs)[:2]

        def mean(x: Any, a: int = a, b: int = b) -> float:
            return float((x[a] - x[b]) / np.log(x[a] / x[b]))

        def change(x: Any, a: int = a, b: int = b) -> float:
            return float(x[a] - x[b])

        in_pool = lam["pool"] * mean(pool) / mean(p)
        term = in_pool * w["refit"] * change(np.log(r)) + lam["refit"] * change(r) / mean(p)
        odds = explanation.log_odds
        np.testing.assert_allclose(odds["refitted layer"][row], term, rtol=1e-6, atol=1e-12)
        term = in_pool * w["samples"] * change(d["pool"] * near["pool"]) / mean(d["pool"])
        term += lam["samples"] * change(d["mixture"] * near["mixture"]) / mean(p)
        np.testing.assert_allclose(odds["similar samples"][row], term, rtol=1e-6, atol=1e-12)


def test_a_blend_without_weight_on_some_rows_names_rows_of_the_calibration_set(
    problem: Problem, tmp_path: Path
) -> None:
    """After loading too; in single precision the shares still sum to the probabilities that are predicted."""
    weights = (np.arange(240) % 3 > 0).astype(float)
    rows, queries = problem.embeddings.astype(np.float32), problem.test_embeddings.astype(np.float32)
    fitted = KCalBlend().fit(rows, problem.labels, sample_weight=weights)
    for model in (fitted, load(save(fitted, tmp_path / "blend.kcal"))):
        explanation = model.explain(queries)
        assert weights[explanation.rows].all()
        np.testing.assert_array_equal(explanation.labels, problem.labels[explanation.rows])
        distances = np.linalg.norm(rows[explanation.rows].astype(float) - queries[:, None], axis=2)
        np.testing.assert_allclose(explanation.distances, distances, rtol=1e-9)
        np.testing.assert_allclose(whole(explanation), model.predict_proba(queries), rtol=1e-7)


def test_a_masked_second_class_is_named(problem: Problem) -> None:
    two = problem.labels < 2
    fitted = KCalBlend().fit(problem.embeddings[two], problem.labels[two], logits=problem.logits[two][:, :2])
    logits = problem.test_logits[QUERIES, :2].copy()
    logits[:6, 1] = -1e9
    explanation = fitted.explain(problem.test_embeddings[QUERIES], logits=logits)
    *others, masked = explanation.log_odds.values()
    assert list(explanation.log_odds)[-1] == "masked"
    assert np.isposinf(masked[:6]).all()
    assert not masked[6:].any()
    assert np.isfinite(others).all()
    entry = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))[0]["log_odds"]
    assert entry["total"] is None
    assert entry["terms"]["masked"] is None


def test_a_class_without_samples_is_carried_by_the_network(problem: Problem) -> None:
    seen = problem.labels < 2
    fitted = KCalBlend().fit(problem.embeddings[seen], problem.labels[seen], logits=problem.logits[seen])
    explanation = fitted.explain(problem.test_embeddings, logits=problem.test_logits)
    np.testing.assert_allclose(whole(explanation), explanation.probabilities, rtol=1e-12)
    assert not explanation.rest[:, 2].any()
    assert (explanation.parts["network"][:, 2] > 0).all()
    assert (explanation.predictions == 2).any()
    top = np.sort(np.log(explanation.probabilities), axis=1)
    np.testing.assert_allclose(sum(explanation.log_odds.values()), top[:, 2] - top[:, 1], rtol=1e-9, atol=1e-9)


@pytest.fixture
def small(problem: Problem) -> Explanation:
    model = KCal(projection="identity", smoothing=0.03).fit(
        problem.embeddings, np.array(["a", "b", "c"])[problem.labels]
    )
    return model.explain(problem.test_embeddings[:7], k=2)


def test_index_keeps_the_numbers_of_the_rows(small: Explanation, problem: Problem, blend: KCalBlend) -> None:
    assert [part.ids.tolist() for part in small] == [[ids] for ids in small.ids.tolist()]
    assert small[-1].probabilities.tolist() == small.probabilities[6:].tolist()
    assert small[[4, 2]].parts["smoothing"].shape == (2, 3)
    assert str(small[[4, 2]]).startswith("row 4: ")
    assert [entry["row"] for entry in small[[4, 2]].to_dict()] == [4, 2]
    explained = blend.explain(problem.test_embeddings[:7], logits=problem.test_logits[:7])
    assert explained[2:4].log_odds["network"].tolist() == explained.log_odds["network"][2:4].tolist()
    with pytest.raises(IndexError):
        small[7]


def test_frame_and_dictionaries_have_all_shares(small: Explanation) -> None:
    frame = small[[5, 1]].to_frame()
    assert list(frame) == ["row", "part", "id", "class", "share", "distance"]
    sums = frame.groupby(["row", "class"])["share"].sum().unstack()
    np.testing.assert_allclose(sums.loc[[5, 1]], small.probabilities[[5, 1]], rtol=1e-12)
    samples = frame[frame["part"] == "similar sample"]
    assert samples["id"].tolist() == small.ids[[5, 1]].ravel().tolist()
    assert samples["distance"].notna().all()
    assert frame.loc[frame["part"] != "similar sample", ["id", "distance"]].isna().all(axis=None)
    for entry, one in zip(json.loads(json.dumps(small.to_dict())), small, strict=True):
        assert list(entry["probabilities"].values()) == one.probabilities[0].tolist()
        assert entry["prediction"] == one.predictions[0]
        assert [sample["share"] for sample in entry["samples"]] == one.shares[0].tolist()
        found = sum(sample["share"] for sample in entry["samples"])
        found += sum(sum(part.values()) for part in (entry["rest"], *entry["parts"].values()))
        assert found == pytest.approx(1.0)


def test_rows_far_from_all_samples_have_few_similar_ones(problem: Problem) -> None:
    model = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    rows = np.concatenate([problem.test_embeddings[:5], problem.test_embeddings[:5] + 50])
    explanation = model.explain(rows)
    np.testing.assert_array_equal(explanation.evidence, model.evidence(rows))
    assert ["few similar samples" in explanation.heading(row) for row in range(10)] == [False] * 5 + [True] * 5


def test_printed_columns_sum_to_the_probabilities(small: Explanation) -> None:
    heading, *lines = small[0].cells()
    assert heading[:3] == ["similar sample", "label", "distance"]
    order = np.argsort(-small.probabilities[0])
    assert heading[3:] == small.classes[order].tolist()
    numbers = np.array([[float(cell or 0) for cell in line[3:]] for line in lines])
    np.testing.assert_allclose(numbers[:-1].sum(axis=0), numbers[-1], atol=3e-4)
    np.testing.assert_allclose(numbers[-1], small.probabilities[0, order], atol=1e-4)
    assert [line[0] for line in lines[2:]] == ["other samples", "smoothing", "probability"]
    text = str(small)
    assert text.count("probability") == 5
    assert text.endswith("and 2 more")
    assert repr(small) == "Explanation(7 predictions of 3 classes by 2 samples each)"
    assert "\x1b" not in str(replace(small, classes=np.array(["\x1b[31ma", "b" * 99, "c"])))


@pytest.mark.parametrize("k", [0, -1, 2.5, "5", True, None])
def test_a_bad_k_is_refused(problem: Problem, k: Any) -> None:
    model = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels)
    with pytest.raises(InvalidInputError, match="k must be an integer from 1"):
        model.explain(problem.test_embeddings, k)
    with pytest.raises(InvalidInputError, match="logits are not an argument of KCal"):
        model.explain(problem.test_embeddings, logits=problem.test_logits)


def test_rows_of_the_fit_warn_and_are_carried_by_themselves(problem: Problem) -> None:
    model = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    with pytest.warns(LeakageWarning):
        explanation = model.explain(problem.embeddings[:9], k=1)
    assert explanation.rows[:, 0].tolist() == list(range(9))
    assert not explanation.distances.any()


def test_centroids_are_named_by_the_number_of_their_samples(problem):
    whole = KCal(projection="identity", progress=False).fit(problem.embeddings, problem.labels)
    small = whole.compress(12)
    explanation = small.explain(problem.test_embeddings[:40], k=12)
    names = dict(zip(explanation.ids.ravel(), explanation.codes.ravel(), strict=True))
    assert len(names) == 12
    sizes = {name: int(re.fullmatch(r"centroid of (\d+) samples? #\d+", name)[1]) for name in names}
    for code in range(len(small.classes_)):  # every sample of a class is in one of its centroids
        assert sum(sizes[name] for name in names if names[name] == code) == (problem.labels == code).sum()
    assert "centroid of" in str(explanation)
    given = {"sample_weight": np.linspace(0.5, 2.0, len(problem.labels))}
    weighted = KCal(projection="identity", progress=False).fit(problem.embeddings, problem.labels, **given)
    assert weighted.compress(12).explain(problem.test_embeddings[:1]).ids[0, 0].startswith("centroid #")
