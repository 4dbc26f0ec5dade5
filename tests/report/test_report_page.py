"""The HTML report: its parts, its numbers, what it must never contain."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from pages import Page

from kcal.errors import InvalidInputError
from kcal.metrics import class_errors, evaluate
from kcal.report import report_page, write_report

SCRIPT = '<script>alert("x")</script>'
NAMES = [SCRIPT, "\"quoted\" & 'single' $1$", "猫 قط ☃ \x07", "long " * 60]


def sharpened(n_samples, n_classes, seed=0):
    generator = np.random.default_rng(seed)
    true = generator.dirichlet(np.ones(n_classes), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    sharp = true**2
    return sharp / sharp.sum(axis=1, keepdims=True), true, labels


@pytest.fixture(scope="module")
def judged():
    before, after, labels = sharpened(300, 4)
    evaluations = {
        name: evaluate(probs, labels, confidence=0.9, resamples=50, bins=10)
        for name, probs in (("before", before), ("after", after))
    }
    return {"before": before, "after": after}, labels, evaluations


@pytest.fixture(scope="module")
def html(judged):
    probabilities, labels, evaluations = judged
    return report_page(
        probabilities, labels, class_names=NAMES, evaluations=evaluations, sources={"data": "<b>.npz"}, limit=3
    )


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_it_is_one_whole_html5_page_with_its_sections_in_order(html, page):
    assert html.startswith("<!DOCTYPE html>\n")
    assert page.open == []
    assert list(page.sections) == ["metrics", "confidence", "classes", "rejection", "data", "settings"]
    assert len(page.ids) == len(set(page.ids))
    for tag in ("html", "head", "title", "body", "main", "h1"):
        assert page.tags.count(tag) == 1
    assert ("html", "lang", "en") in page.attributes
    assert ("meta", "charset", "utf-8") in page.attributes


def test_it_asks_for_nothing_and_runs_nothing(page):
    assert not {"script", "link", "iframe", "object", "form", "img", "image"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "href", "action", "srcset")
        if name == "xlink:href":
            assert value[0] == "#"
            assert value[1:] in page.ids
    (policy,) = [value for _, name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_names_are_text_whatever_they_hold(html, page):
    assert SCRIPT not in html
    assert SCRIPT in page.sections["classes"] + page.sections["data"]
    assert "\"quoted\" & 'single' $1$" in page.sections["data"]
    assert "猫 قط ☃ �" in page.sections["data"]
    assert "<b>.npz" in page.sections["data"]


def test_long_names_are_cut_and_kept_whole_for_the_pointer(page):
    assert NAMES[3] not in page.text
    assert NAMES[3][:120] + "…" in page.sections["data"]
    assert ("bdi", "title", NAMES[3]) in page.attributes


def test_the_data_section_counts_the_classes(page, judged):
    _, labels, _ = judged
    counts = np.bincount(labels)
    heading, *rows = page.tables[-1]
    assert heading == ["class", "samples", "share, %"]
    assert [int(row[1]) for row in rows] == sorted(counts, reverse=True)
    assert float(rows[0][2]) == pytest.approx(100 * counts.max() / 300, abs=0.006)


def test_the_metrics_stand_before_and_after_with_intervals_and_the_best_in_bold(html, page, judged):
    _, _, evaluations = judged
    heading, *rows = page.tables[0]
    assert heading == ["metric", "before", "debiased", "90 % interval", "after", "debiased", "90 % interval"]
    assert len(rows) == 8
    assert rows[0][0] == "accuracy, % ↑"
    loss = rows[-1]
    assert loss[0] == "negative log-likelihood ↓"
    for place, found in enumerate(evaluations.values()):
        low, high = found.intervals["negative_log_likelihood"]
        shown = [f"{found.negative_log_likelihood:.4f}", "", f"[{low:.4f}, {high:.4f}]"]
        assert loss[1 + 3 * place : 4 + 3 * place] == shown
        name = "expected_calibration_error"
        numbers = (getattr(found, name), found.debiased[name], *found.intervals[name])
        value, debiased, low, high = (f"{100 * number:.2f}" for number in numbers)
        assert rows[1][1 + 3 * place : 4 + 3 * place] == [value, debiased, f"[{low}, {high}]"]
    assert f"<strong>{evaluations['after'].negative_log_likelihood:.4f}</strong>" in html
    assert f"<strong>{evaluations['before'].negative_log_likelihood:.4f}</strong>" not in html
    assert "Chance makes calibration errors larger" in page.sections["metrics"]


def test_classes_come_worst_first_up_to_the_limit_that_is_stated(page, judged):
    probabilities, labels, evaluations = judged
    options = {"bins": 10, "threshold": evaluations["after"].threshold, "confidence": 0.9}
    errors = class_errors(probabilities["after"], labels, **options)
    assert "All 4 classes, the largest calibration error first; pictures of the 3 worst" in page.sections["classes"]
    heading, *rows = page.tables[1]
    assert heading[2:6] == ["error, %, before", "error, %, after", "debiased, %", "90 % interval, %"]
    worst = np.argsort(-errors.error)
    assert [float(row[3]) for row in rows] == pytest.approx(100 * errors.error[worst], abs=0.006)
    for row, k in zip(rows, worst, strict=True):
        signed = 100 * errors.signed_error[k]
        assert row[-1] == f"too {'low' if signed > 0 else 'high'} by {abs(signed):.2f} points"
        debiased, low, high = (f"{100 * values[k]:.2f}" for values in (errors.debiased, errors.low, errors.high))
        assert row[4:6] == [debiased, f"[{low}, {high}]"]


def test_classes_without_a_picture_are_named(page, judged):
    probabilities, labels, evaluations = judged
    options = {"bins": 10, "threshold": evaluations["after"].threshold}
    left = class_errors(probabilities["after"], labels, **options).worst(4)[-1]
    assert "The 1 classes without a picture" in page.sections["classes"]
    assert page.sections["classes"].rstrip().endswith(["cript>", "$1$", "☃ \ufffd", "…"][left])


def test_every_picture_is_inside_described_and_well_formed(page):
    described = [picture["aria-label"] for picture in page.pictures]
    assert len(described) == 2 + 3 * 2 + 1
    assert described[0] == "Reliability diagram of the confidence, before"
    assert all(described)
    texts = [picture["texts"] for picture in page.pictures]
    assert "confidence" in texts[0]
    assert "predicted probability" in texts[2]
    assert "samples rejected, least confident first" in texts[-1]
    for picture in page.pictures:
        assert int(picture["width"]) > 0
        assert int(picture["height"]) > 0


def test_settings_are_told(page, judged):
    told = page.sections["settings"]
    _, _, evaluations = judged
    for text in ("bins10", f"threshold{evaluations['after'].threshold:.4g}", "1e-12", "kcal", "numpy", "Python"):
        assert text in told


def test_the_same_input_gives_the_same_pictures(page, judged):
    probabilities, labels, evaluations = judged
    again = Page(report_page(probabilities, labels, class_names=NAMES, evaluations=evaluations, limit=1))
    expected = page.pictures[:4] + page.pictures[-1:]  # two of the confidence, two of the worst class, rejection
    assert again.pictures == expected


def test_pictures_have_the_colours_of_the_page(html):
    drawn = html[html.index("<svg") : html.rindex("</svg>")]
    for colour in ("#000000", "#ffffff", "#4d4d4d", "#f9d9c3", "#56b4e9"):
        assert colour not in drawn
    names = set(re.findall(r"var\((--[a-z]+)\)", drawn))
    light, dark = html.split("@media (prefers-color-scheme: dark)")
    assert names >= {"--text", "--back", "--bar", "--gap", "--counts"}
    for name in names:
        assert f"{name}: #" in light
        assert f"{name}: #" in dark[: dark.index("body")]


def test_a_name_that_looks_like_a_colour_stays_a_name():
    probs, _, labels = sharpened(60, 2)
    made = Page(report_page({"#000000": probs}, labels, evaluations={"#000000": evaluate(probs, labels)}, limit=1))
    assert "#000000" in made.pictures[0]["texts"]


@pytest.mark.parametrize(
    ("power", "words"), [(2.5, "overconfident"), (0.4, "underconfident"), (1.0, "calibrated on average")]
)
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_the_verdict_says_how_sure_and_how_right(power, words, confidence):
    _, true, labels = sharpened(2000, 4)
    probs = true**power / (true**power).sum(axis=1, keepdims=True)
    found = evaluate(probs, labels, confidence=confidence, resamples=50)
    text = Page(report_page({"p": probs}, labels, evaluations={"p": found}, limit=1)).text
    sure, right = 100 * probs.max(axis=1).mean(), 100 * found.accuracy
    assert f"On average {sure:.1f} % sure, right in {right:.1f} %: {words}" in text
    assert "Classes to look at" in text


def test_the_verdict_compares_before_and_after_and_names_classes(page, judged):
    _, _, evaluations = judged
    before, after = (f"{100 * each.debiased['expected_calibration_error']:.2f}" for each in evaluations.values())
    assert f"The debiased calibration error falls from {before} % to {after} %." in page.text
    assert "before: on average" in page.text
    assert "After calibration (after): " in page.text
    assert page.text.index("Classes to look at") < page.text.index("Metrics")


def too_low_class(n_samples, seed):
    """Predictions of six classes of unequal frequencies; the first is 15 points too low, in favour of the second."""
    generator = np.random.default_rng(seed)
    true = generator.dirichlet(2 * np.array([0.45, 0.25, 0.15, 0.08, 0.05, 0.02]), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    moved = np.minimum(true[:, 0], 0.15)
    return true + moved[:, None] * np.array([-1, 1, 0, 0, 0, 0]), true, labels


def test_the_verdict_names_a_class_that_is_too_low_and_no_other():
    probs, true, labels = too_low_class(300, seed=3)
    groups, names = np.arange(300) // 10, list("abcdef")
    wrong = Page(report_page({"p": probs}, labels, class_names=names, groups=groups, limit=1)).text
    assert re.search(r"Classes to look at: .*a \(too low by 1\d\.\d\d points", wrong)
    right = Page(report_page({"p": true}, labels, class_names=names, groups=groups, limit=1)).text
    assert "Classes to look at: none" in right


@pytest.mark.parametrize("seed", range(3))
def test_no_class_is_cleared_beside_an_interval_that_excludes_0(seed):
    probs, _, labels = sharpened(250, 5, seed)
    text = Page(report_page({"p": probs}, labels, groups=np.arange(250) // 10, limit=1)).text
    found = evaluate(probs, labels, confidence=0.95, groups=np.arange(250) // 10)
    assert found.intervals["classwise_calibration_error"].low > 0
    assert "Classes to look at: none" not in text or "Over all classes together the error is beyond chance" in text


def test_a_value_above_its_interval_is_explained():
    _, true, labels = sharpened(60, 6)
    found = evaluate(true, labels, confidence=0.95)
    assert found.classwise_calibration_error > found.intervals["classwise_calibration_error"].high
    assert (
        "A value above its interval is mostly chance: read the debiased one."
        in Page(report_page({"p": true}, labels, limit=1)).text
    )


def test_groups_widen_the_intervals_of_classes():
    probs, _, labels = sharpened(200, 2)
    again, many = np.repeat(probs, 5, axis=0), np.repeat(labels, 5)
    by_row, by_group = (
        Page(report_page({"p": again}, many, groups=groups, limit=1)).tables[1][1][4]
        for groups in (None, np.repeat(np.arange(200), 5))
    )
    widths = [float(high) - float(low) for low, high in (cell.strip("[]").split(", ") for cell in (by_row, by_group))]
    assert widths[1] > 1.3 * widths[0]


def test_three_classes_get_their_triangle_and_one_method_one_column():
    probs, _, labels = sharpened(60, 3)
    evaluations = {"probabilities": evaluate(probs, labels)}
    found = Page(report_page({"probabilities": probs}, labels, evaluations=evaluations, limit=1))
    assert "simplex" in found.sections
    assert found.tables[0][0] == ["metric", "probabilities"]
    assert "[" not in "".join(cell for row in found.tables[0] for cell in row)
    assert "All 3 classes" in found.sections["classes"]
    assert "no intervals" in found.sections["settings"]


def test_one_sample_of_many_classes_can_be_told():
    probs = np.full((1, 30), 1 / 30)
    found = Page(report_page({"p": probs}, [3], evaluations={"p": evaluate(probs, [3])}, limit=1))
    assert "Samples of each of the 30 classes" in found.sections["data"]
    assert "details" in found.tags
    assert "classes without a sample29" in found.sections["data"]


def test_it_is_written_into_a_folder_that_is_made(tmp_path):
    probs, _, labels = sharpened(40, 2)
    options = {"evaluations": {"p": evaluate(probs, labels)}, "limit": 1}
    written = write_report(tmp_path / "deep" / "er", {"p": probs}, labels, **options)
    assert written == tmp_path / "deep" / "er" / "report.html"
    assert [path.name for path in written.parent.iterdir()] == ["report.html"]
    assert "Calibration report" in Page(written.read_text(encoding="utf-8")).text


def test_a_failure_leaves_the_old_report_and_no_other_trace(tmp_path):
    probs, _, labels = sharpened(40, 2)
    (tmp_path / "report.html").write_text("old")
    with pytest.raises(InvalidInputError, match="class_names must have 2 names, one per class; got 1"):
        write_report(tmp_path, {"p": probs}, labels, class_names=["a"], evaluations={"p": evaluate(probs, labels)})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]
    with pytest.raises(InvalidInputError, match="probs must map the names of 1 to 100 methods"):
        write_report(tmp_path / "new", {}, labels)
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_together_is_refused(judged, tmp_path):
    probabilities, labels, evaluations = judged
    with pytest.raises(InvalidInputError, match=r"evaluations must .*; got None for 'after'"):
        report_page(probabilities, labels, evaluations={"before": evaluations["before"]})
    other = evaluate(probabilities["after"], labels)
    with pytest.raises(InvalidInputError, match=r"evaluations must be .* same settings; got 2 different"):
        report_page(probabilities, labels, evaluations={**evaluations, "after": other})
    with pytest.raises(InvalidInputError, match="limit must be"):
        report_page(probabilities, labels, evaluations=evaluations, limit=0)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"folder must be .* is not a folder"):
        write_report(tmp_path / "file", probabilities, labels)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"probs": None}, "probs must map"),
        ({"probs": np.full((4, 2), 0.5)}, "probs must map"),
        ({"probs": {"p": None}}, "probs must be"),
        ({"probs": {"p": "x"}}, "probs must be"),
        ({"probs": {"p": np.full((4, 2), 0.5), "q": np.full((4, 4), 0.25)}}, "probs must be of the same classes"),
        ({"labels": None}, "labels must be"),
        ({"labels": [0, 1, 0]}, "labels must"),
        ({"labels": [0, 1, 0, 9]}, "labels must"),
        ({"class_names": 5}, "class_names must be a list of names; got 5"),
        ({"class_names": "ab"}, "class_names must be a list of names; got 'ab'"),
        ({"class_names": ["a", "b", "c"]}, "class_names must have 2 names"),
        ({"evaluations": 5}, "evaluations must map every method"),
        ({"evaluations": {"p": {}}}, "evaluations must map every method"),
        ({"sample_weight": "x"}, "sample_weight must"),
        ({"sample_weight": [1, 1, 1, -1]}, "sample_weight must"),
        ({"sources": ["a"]}, r"sources must be a dictionary from terms to text, or None; got \['a'\]"),
        ({"settings": 5}, "settings must be a dictionary from terms to text, or None; got 5"),
        ({"limit": "all"}, "limit must be an integer"),
        ({"limit": 10**30}, "limit must be an integer from 1 to 10,000"),
        ({"minimum_count": None}, "minimum_count must be an integer"),
        ({"title": 5}, "title must be text"),
        ({"folder": 7}, "folder must be the name of a file"),
        ({"folder": None}, "folder must be the name of a file"),
    ],
)
def test_wrong_types_are_refused_by_the_name_of_the_argument(changed, message, tmp_path):
    arguments = {"folder": tmp_path / "new", "probs": {"p": np.full((4, 2), 0.5)}, "labels": [0, 1, 0, 1]}
    with pytest.raises(InvalidInputError, match=message):
        write_report(**{**arguments, **changed})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_of_every_precision_are_read(dtype):
    probs, _, labels = sharpened(40, 2)
    tensor = torch.tensor(probs).to(dtype)
    made = Page(report_page({"p": tensor}, torch.tensor(labels), evaluations={"p": evaluate(tensor, labels)}, limit=1))
    assert "40 samples of 2 classes" in made.text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_sees_the_same_elements(html, page, tmp_path):
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    seen = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", f"file://{tmp_path / 'report.html'}"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = Page(seen.stdout)
    assert [tag.lower() for tag in found.tags] == page.tags
    assert found.sections == page.sections


def test_evaluations_of_other_samples_are_refused(judged):
    probabilities, labels, _ = judged
    others = {name: evaluate(probs[:50], labels[:50]) for name, probs in probabilities.items()}
    with pytest.raises(
        InvalidInputError, match=r"evaluations must be of the same samples .*; got 50 samples of 4 classes"
    ):
        report_page(probabilities, labels, evaluations=others)
