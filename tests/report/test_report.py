"""The HTML report: its parts, its numbers, what it must never contain."""

import re

import numpy as np
import pandas
import pytest
from html_reader import Document

from kcal.errors import InvalidInputError
from kcal.metrics import class_errors, evaluate
from kcal.report import render_report, write_report

SCRIPT = '<script>alert("x")</script>'
NAMES = [SCRIPT, "\"quoted\" & 'single' $1$", "猫 قط ☃ \x07", "long " * 60]


def sharpened(n_samples, n_classes, seed=0, power=2.0):
    """Probabilities that are too sharp, the true ones, and labels."""
    generator = np.random.default_rng(seed)
    true = generator.dirichlet(np.ones(n_classes), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    sharp = true**power
    return sharp / sharp.sum(axis=1, keepdims=True), true, labels


def report_of(probs, labels, **options):
    """A report of one method without intervals, as a document."""
    return Document(render_report({"p": probs}, labels, evaluations={"p": evaluate(probs, labels)}, limit=1, **options))


@pytest.fixture(scope="module")
def judged():
    before, after, labels = sharpened(300, 4)
    probs = {"before": before, "after": after}
    options = {"confidence": 0.9, "resamples": 50, "bins": 10}
    return probs, labels, {name: evaluate(values, labels, **options) for name, values in probs.items()}


@pytest.fixture(scope="module")
def html(judged):
    probs, labels, evaluations = judged
    return render_report(
        probs, labels, class_names=NAMES, evaluations=evaluations, sources={"data": "<b>.npz"}, limit=3
    )


@pytest.fixture(scope="module")
def document(html):
    return Document(html)


def test_report_is_one_html5_document_with_sections_in_order(html, document):
    assert html.startswith("<!DOCTYPE html>\n")
    assert list(document.sections) == ["verdict", "metrics", "confidence", "classes", "rejection", "data", "settings"]
    assert len(document.ids) == len(set(document.ids))
    assert all(document.tags.count(tag) == 1 for tag in ("html", "head", "title", "body", "main", "h1"))


def test_report_loads_nothing_and_runs_nothing(document):
    assert not {"script", "link", "iframe", "object", "form", "img", "image"} & set(document.tags)
    for tag, name, value in document.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "href", "action", "srcset")
        assert name != "xlink:href" or value[1:] in document.ids
    (policy,) = [value for _, name, value in document.attributes if name == "content" and "default-src" in value]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_names_are_escaped_cut_and_freed_of_control_characters(html, document):
    assert SCRIPT not in html
    data = document.sections["data"]
    for text in (SCRIPT, "\"quoted\" & 'single' $1$", "猫 قط ☃ �", "<b>.npz", NAMES[3][:120] + "…"):
        assert text in data
    assert NAMES[3] not in document.text
    assert ("bdi", "title", NAMES[3]) in document.attributes


def test_metrics_table_has_values_intervals_and_best_in_bold(html, document, judged):
    _, _, evaluations = judged
    heading, *rows = document.tables[0]
    assert heading == ["metric", "before", "debiased", "90 % interval", "after", "debiased", "90 % interval"]
    assert [row[0] for row in rows][::5] == ["accuracy, % ↑", "log-loss ↓"]
    for place, found in enumerate(evaluations.values()):
        columns = slice(1 + 3 * place, 4 + 3 * place)
        low, high = found.intervals["negative_log_likelihood"]
        assert rows[-1][columns] == [f"{found.negative_log_likelihood:.4f}", "", f"[{low:.4f}, {high:.4f}]"]
        name = "expected_calibration_error"
        numbers = (getattr(found, name), found.debiased[name], *found.intervals[name])
        value, debiased, low, high = (f"{100 * number:.2f}" for number in numbers)
        assert rows[1][columns] == [value, debiased, f"[{low}, {high}]"]
    assert f"<strong>{evaluations['after'].negative_log_likelihood:.4f}</strong>" in html
    assert f"<strong>{evaluations['before'].negative_log_likelihood:.4f}</strong>" not in html


def test_class_table_is_sorted_by_error_and_names_classes_without_figure(document, judged):
    probs, labels, evaluations = judged
    options = {"bins": 10, "threshold": evaluations["after"].threshold, "confidence": 0.9}
    errors = class_errors(probs["after"], labels, **options)
    heading, *rows = document.tables[1]
    assert heading[2:6] == ["error, %, before", "error, %, after", "debiased, %", "90 % interval, %"]
    worst = np.argsort(-errors.error)
    assert [float(row[3]) for row in rows] == pytest.approx(100 * errors.error[worst], abs=0.006)
    for row, k in zip(rows, worst, strict=True):
        signed = 100 * errors.signed_error[k]
        assert row[-1] == f"too {'low' if signed > 0 else 'high'} by {abs(signed):.2f} points"
        debiased, low, high = (f"{100 * values[k]:.2f}" for values in (errors.debiased, errors.low, errors.high))
        assert row[4:6] == [debiased, f"[{low}, {high}]"]
    text = document.sections["classes"].rstrip()
    assert "figures of the 3 worst" in text
    assert text.endswith(["cript>", "$1$", "☃ \ufffd", "…"][worst[-1]])


def test_data_and_settings_are_stated(document, judged):
    _, labels, evaluations = judged
    heading, *rows = document.tables[-1]
    assert heading == ["class", "samples", "share, %"]
    assert [int(row[1]) for row in rows] == sorted(np.bincount(labels), reverse=True)
    for text in (evaluations["after"].settings, "kcal", "numpy", "Python"):
        assert text in document.sections["settings"]


def test_figures_are_described_reproducible_and_in_theme_colours(html, document, judged):
    probs, labels, evaluations = judged
    assert len(document.figures) == 1 + 2 + 3 * 2 + 1  # verdict, confidence, three classes, rejection
    assert all(figure["aria-label"] and int(figure["width"]) for figure in document.figures)
    assert "samples rejected, least confident first" in document.figures[-1]["texts"]
    again = Document(render_report(probs, labels, class_names=NAMES, evaluations=evaluations, limit=1))
    assert again.figures == document.figures[:5] + document.figures[-1:]
    drawn = html[html.index("<svg") : html.rindex("</svg>")]
    assert not [colour for colour in ("#000000", "#ffffff", "#4d4d4d", "#f9d9c3", "#56b4e9") if colour in drawn]
    light, dark = html.split("@media (prefers-color-scheme: dark)")
    for name in set(re.findall(r"var\((--[a-z]+)\)", drawn)):
        assert f"{name}: #" in light
        assert f"{name}: #" in dark[: dark.index("body")]


@pytest.mark.parametrize(
    ("power", "answer"), [(2.5, "No It is overconfident"), (0.4, "No It is underconfident"), (1.0, "Yes Calibrated")]
)
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_verdict_answers_whether_it_is_calibrated(power, answer, confidence):
    probs, _, labels = sharpened(2000, 4, power=power)
    found = evaluate(probs, labels, confidence=confidence, resamples=50)
    text = Document(render_report({"p": probs}, labels, evaluations={"p": found}, limit=1)).sections["verdict"]
    assert answer in text
    confidence, accuracy = 100 * probs.max(axis=1).mean(), 100 * found.accuracy
    assert f"On average {confidence:.1f} % sure, right in {accuracy:.1f} %" in text
    assert "Classes to look at" in text


def test_verdict_compares_calibration_errors_before_and_after(document, judged):
    before, after = (f"{100 * each.debiased['expected_calibration_error']:.2f}" for each in judged[2].values())
    text = " ".join(document.sections["verdict"].split())
    assert f"The debiased ECE falls from {before} % to {after} %." in text


def test_verdict_names_a_class_that_is_too_low_and_no_other():
    generator = np.random.default_rng(3)
    true = generator.dirichlet(2 * np.array([0.45, 0.25, 0.15, 0.08, 0.05, 0.02]), size=300)
    labels = (true.cumsum(axis=1) > generator.random((300, 1))).argmax(axis=1)
    moved = np.minimum(true[:, 0], 0.15)  # the first class is 15 points too low, in favour of the second
    wrong = true + moved[:, None] * np.array([-1, 1, 0, 0, 0, 0])
    options = {"class_names": list("abcdef"), "groups": np.arange(300) // 10, "limit": 1}
    text = Document(render_report({"p": wrong}, labels, **options)).text
    assert re.search(r"Classes to look at: .*a \(too low by 1\d\.\d\d points", text)
    assert "Classes to look at: none" in Document(render_report({"p": true}, labels, **options)).text


def test_three_classes_have_a_simplex_and_one_method_one_column():
    found = report_of(*sharpened(60, 3)[::2])
    assert list(found.sections)[:4] == ["verdict", "metrics", "classes", "simplex"]
    assert found.tables[0][0] == ["metric", "p"]
    assert "no intervals" in found.sections["settings"]


def test_subgroups_have_a_section_with_table_and_figure():
    probs, _, labels = sharpened(300, 3)
    site = pandas.Series(np.array(["<north>", "south"])[np.arange(300) % 2], name="site")
    evaluations = {"p": evaluate(probs, labels)}
    found = Document(render_report({"p": probs}, labels, evaluations=evaluations, by=site, limit=1))
    expected = evaluate(probs, labels, by=site)
    _, *rows = next(table for table in found.tables if table[0][0] == "site")
    assert [row[0] for row in rows] == ["<north>", "south"]
    ends = zip(expected.low, expected.high, strict=True)
    assert [row[6] for row in rows] == [f"[{100 * low:.2f}, {100 * high:.2f}]" for low, high in ends]
    assert [row[7] for row in rows] == expected.direction
    given = evaluate(probs, labels, by=site, resamples=50, seed=3, confidence=0.8)
    found = Document(render_report({"p": probs}, labels, evaluations=evaluations, by=given, limit=1))
    _, *rows = next(table for table in found.tables if table[0][0] == "site")
    assert [row[6] for row in rows] == [
        f"[{100 * low:.2f}, {100 * high:.2f}]" for low, high in zip(given.low, given.high, strict=True)
    ]
    assert "Accuracy and mean confidence of each site" in [figure["aria-label"] for figure in found.figures]


def test_verdict_names_the_subgroups_that_are_off():
    generator, site = np.random.default_rng(0), np.arange(3000) % 2
    sure = generator.uniform(0.6, 0.8, size=3000)
    right = generator.random(3000) < sure + np.array([0.1, -0.1])[site]  # each site is off, and both together are not
    probs, labels = np.stack([sure, 1 - sure], axis=1), (~right).astype(int)
    options = {"evaluations": {"model": evaluate(probs, labels)}, "limit": 1}
    verdict = Document(render_report(probs, labels, by=pandas.Series(site, name="site"), **options)).sections["verdict"]
    assert "Subgroups to look at: 0 (too low), 1 (too high)." in " ".join(verdict.split())
    assert "Calibrated on average, but not in every site" in verdict
    none = Document(render_report(probs, labels, by=generator.integers(2, size=3000), **options)).sections["verdict"]
    assert "Subgroups to look at: none" in none
    assert "Calibrated on average, as far" in none
    assert "Subgroups" not in Document(render_report(probs, labels, **options)).sections["verdict"]


def test_probabilities_alone_are_one_method():
    probs, _, labels = sharpened(40, 2)
    evaluation = evaluate(probs, labels)
    expected = render_report({"model": probs}, labels, evaluations={"model": evaluation}, limit=1)
    assert render_report(probs.tolist(), labels, evaluations={"model": evaluation}, limit=1) == expected


def test_report_is_written_whole_or_not_at_all(tmp_path):
    probs, _, labels = sharpened(40, 2)
    options = {"evaluations": {"p": evaluate(probs, labels)}, "limit": 1}
    written = write_report(tmp_path / "deep" / "er", {"p": probs}, labels, **options)
    assert list((tmp_path / "deep" / "er").iterdir()) == [written]
    before = written.read_text(encoding="utf-8")
    with pytest.raises(InvalidInputError, match="class_names"):
        write_report(written.parent, {"p": probs}, labels, class_names=["a"], **options)
    assert written.read_text(encoding="utf-8") == before
    with pytest.raises(InvalidInputError, match="folder"):
        write_report(written, {"p": probs}, labels)


def test_evaluations_must_be_of_the_same_samples_and_settings(judged):
    probs, labels, evaluations = judged
    for changed in (evaluate(probs["after"], labels), evaluate(probs["after"][:50], labels[:50]), None):
        with pytest.raises(InvalidInputError, match="evaluations must"):
            render_report(probs, labels, evaluations={**evaluations, "after": changed})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("probs", {}),
        ("probs", np.full((4, 2), 2.0)),
        ("probs", {"p": "x"}),
        ("probs", {"p": np.full((4, 2), 0.5), "q": np.full((4, 4), 0.25)}),
        ("labels", [0, 1, 0]),
        ("labels", [0, 1, 0, 9]),
        ("class_names", "ab"),
        ("class_names", ["a", "b", "c"]),
        ("evaluations", 5),
        ("sample_weight", [1, 1, 1, -1]),
        ("sources", ["a"]),
        ("settings", 5),
        ("limit", 0),
        ("minimum_count", None),
        ("folder", None),
    ],
)
def test_invalid_arguments_are_named(name, value, tmp_path):
    arguments = {"folder": tmp_path / "new", "probs": {"p": np.full((4, 2), 0.5)}, "labels": [0, 1, 0, 1]}
    with pytest.raises(InvalidInputError, match=name):
        write_report(**{**arguments, name: value})
    assert not (tmp_path / "new").exists()
