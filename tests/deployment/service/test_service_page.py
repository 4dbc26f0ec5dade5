"""The page of the service: what it says, and that text of users stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observed_models import CLASSES, calibrator, observed, stream

from kcal.deployment.service.charts import LEFT, SIDE, TOP, evidence_chart, range_bar, reliability_chart, wealth_bar
from kcal.deployment.service.formats import name_of, wealth
from kcal.deployment.service.latest import explain_latest
from kcal.deployment.service.observer import Observer
from kcal.deployment.service.page import ModelView, content_security_policy, render_page
from kcal.deployment.service.snapshot import ServiceSnapshot
from kcal.deployment.service.tallies import Traffic
from kcal.metrics import reliability


class Reader(HTMLParser):
    """Reads the tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def values(self, tag: str, name: str) -> list[str]:
        return [value for each, attribute, value in self.attributes if (each, attribute) == (tag, name)]


def snapshot_of(groups: list[str] | None = None) -> ServiceSnapshot:
    rows = stream()
    return observed(rows, groups=groups, batch=300).snapshot()


def view_of(snapshot: ServiceSnapshot, name: str = "animals", version: str = "1") -> ModelView:
    explanations = explain_latest(calibrator(), snapshot)
    return ModelView(
        name, version, snapshot=snapshot, explanations=explanations, traffic=Traffic(1234, 5, 7.5, 2.0, 9.0)
    )


@pytest.fixture(scope="module")
def view() -> ModelView:
    return view_of(snapshot_of(["home" if place % 2 else "away" for place in range(600)]))


def test_the_page_says_what_was_measured(view: ModelView) -> None:
    page = render_page([view])
    snapshot = view.snapshot
    assert snapshot is not None
    assert snapshot.performance is not None
    assert snapshot.labelled is not None
    texts = Reader(page).texts
    assert f"{100 * snapshot.performance.accuracy.value:.1f} %" in texts
    assert f"{100 * snapshot.labelled.accuracy:.1f} %" in texts
    assert f"{100 * snapshot.labelled.reliability().calibration_error:.1f} %" in texts
    assert "No alarms" in texts
    assert {"home", "away", *CLASSES.tolist(), "1,234", "2 ms"} <= set(texts)
    for prediction in snapshot.latest:
        assert prediction.id in texts
    explanation = view.explanations[0]
    assert explanation is not None
    assert {*explanation.ids[0].tolist()} <= set(texts)


def test_the_page_needs_nothing_but_itself(view: ModelView) -> None:
    reader = Reader(render_page([view]))
    names = {tag for tag, _ in reader.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "base"}
    assert not [name for _, name, _ in reader.attributes if name.startswith("on") or name == "style"]
    assert all(value.startswith(("?", "docs")) for value in reader.values("a", "href"))
    assert reader.values("select", "id") == ["refresh", "class"]
    assert set(reader.values("label", "for")) == {"refresh", "class"}


def test_shares_of_an_explanation_sum_to_one(view: ModelView) -> None:
    from kcal.deployment.service.prediction_rows import explanation_table

    for explanation in view.explanations:
        assert explanation is not None
        table = explanation_table(explanation)
        shares = [row[2] for row in table.samples] + [share for _, share in table.others]
        assert sum(float(share.removesuffix(" %")) for share in shares) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize(
    ("text", "expected"), [("2", 2), ("0", 0), ("3", None), ("-1", None), ("²", None), ("x", None)]
)
def test_a_class_is_chosen_by_its_column(view: ModelView, text: str, expected: int | None) -> None:
    page = render_page([view], class_column=text)
    chosen = re.findall(r'<option value="(\d+)" selected>', page)
    default = re.findall(r'<option value="(\d+)" selected>', render_page([view]))
    assert chosen == (default if expected is None else [str(expected)])


@pytest.mark.parametrize(("text", "expected"), [(None, []), ("15", ["15"]), ("1", []), ("0;url=x", [])])
def test_the_page_refreshes_only_at_known_intervals(view: ModelView, text: str | None, expected: list[str]) -> None:
    contents = Reader(render_page([view], refresh=text)).values("meta", "content")
    assert [content for content in contents if content[:1].isdigit()] == expected


def test_models_are_selected_by_key_or_name_and_alarms_of_others_are_shown(view: ModelView) -> None:
    snapshot = view.snapshot
    assert snapshot is not None
    alarmed = view_of(observed(stream(shift=2.5), batch=300).snapshot(), "shifted", "3")
    models = [ModelView("loading", "2", state="loading"), view, alarmed]
    titles = {key: re.findall("<h1>(.*)</h1>", render_page(models, selected=key)) for key in (None, "animals", "x")}
    assert titles == {None: ["loading"], "animals": ["animals"], "x": ["loading"]}
    assert "?model=shifted%2F3" in Reader(render_page(models)).values("a", "href")
    page = render_page(models, selected="shifted/3")
    assert alarmed.n_alarms > 0
    assert f"<title>({alarmed.n_alarms}) shifted" in page
    assert "Other models need attention" not in page


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (None, "kcal serve model.kcal"),
        (ModelView("new", "1", snapshot=Observer(calibrator()).snapshot()), "No predictions yet"),
        (ModelView("new", "1"), "This model is not ready yet"),
        (ModelView("new", "1", state="loading"), "This model is not ready yet"),
        (ModelView("new", "1", state="failed"), "This model could not be loaded"),
    ],
)
def test_an_empty_page_says_what_to_do(model: ModelView | None, text: str) -> None:
    assert text in Reader(render_page([] if model is None else [model])).texts


def test_a_page_without_labels_asks_for_them() -> None:
    page = render_page([view_of(observed(stream(120), labelled=False).snapshot())])
    assert "Reliability needs labels." in page
    assert "no labels yet" in page


NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "{{ 7 * 7 }}",
    "&lt;b&gt;",
    "</style>",
]


def named_page(view: ModelView, one: str, other: str) -> Reader:
    """Return the page of a model whose every name is one of two texts."""
    snapshot = view.snapshot
    assert snapshot is not None
    classes = np.array([one, other, "owl"])
    monitor = replace(
        snapshot.monitor,
        classes=tuple(replace(part, name=one) for part in snapshot.monitor.classes),
        groups=tuple(replace(part, name=other, alarm_at=3) for part in snapshot.monitor.groups),
    )
    latest = tuple(replace(each, id=one, group=other, label=one) for each in snapshot.latest[:2])
    changed = replace(snapshot, classes=classes, monitor=monitor, latest=latest)
    explanations = [each and replace(each, classes=classes) for each in view.explanations[:2]]
    facts = {one: other}
    model = replace(view, name=one, state=other, snapshot=changed, explanations=explanations, facts=facts)
    return Reader(render_page([model, view], selected=model.key, class_column="0"))


@settings(max_examples=12, deadline=None)
@given(st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=25)), st.sampled_from(NASTY))
def test_text_of_users_stays_text(view: ModelView, one: str, other: str) -> None:
    page = named_page(view, one, other)
    assert page.tags == named_page(view, "first", "second").tags
    assert " ".join(name_of(other).split()) in {" ".join(text.split()) for text in page.texts}


def test_points_of_the_chart_are_where_the_bins_are() -> None:
    rows = stream()
    curve = reliability(rows.probs, rows.codes, bins=10, adaptive=False)
    svg = reliability_chart(curve, 0.95, label='a "b" <c>')
    found = np.array(re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg), dtype=float)
    filled = curve.counts > 0
    np.testing.assert_allclose((found[:, 0] - LEFT) / SIDE, curve.mean_prediction[filled], atol=1e-4)
    np.testing.assert_allclose(1 - (found[:, 1] - TOP) / SIDE, curve.observed_frequency[filled], atol=1e-4)
    lows, highs = curve.frequency_bands(0.95)
    bands = np.array(re.findall(r' y="([\d.]+)" width="8" height="([\d.]+)"', svg), dtype=float)
    np.testing.assert_allclose(1 - (bands[:, 0] - TOP) / SIDE, highs[filled], atol=1e-4)
    np.testing.assert_allclose(bands[:, 1] / SIDE, (highs - lows)[filled], atol=1e-4)
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg


def test_bars_are_as_long_as_their_values() -> None:
    svg = evidence_chart(np.array([0.4, 0.2, *[0.05] * 8]), label="evidence")
    heights = np.array(re.findall(r'height="([\d.]+)" class="count', svg), dtype=float)
    np.testing.assert_allclose(heights / heights[0], [1, 0.5, *[0.125] * 8], rtol=1e-3)
    assert 'cx="50.00%"' in range_bar(0.1, 0.2, 0.15, 0.3, highest=0.4)
    assert 'x="37.50%" y="5" width="37.50%"' in range_bar(0.1, 0.2, 0.15, 0.3, highest=0.4)
    assert 'width="100.00%" height="6" rx="3" class="fill alarming"' in wealth_bar(-3.0, 0.05, is_alarm=True)
    assert 'width="50.00%"' in wealth_bar(0.5 * np.log(20), 0.05, is_alarm=False)
    assert 'width="0.00%"' in wealth_bar(-1.0, 0.05, is_alarm=False)


def test_numbers_and_names_are_short() -> None:
    assert [wealth(np.log(value)) for value in (0.0123, 5.0, 1234.0, 1e9)] == ["0.012", "5", "1,234", "over 10⁶"]
    assert len(name_of("x" * 1000)) == 60
    assert name_of("a\nb") != "a\nb"


def test_the_policy_allows_the_style_sheet_alone() -> None:
    policy = content_security_policy()
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
