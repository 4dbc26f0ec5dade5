"""The dashboard: what it says, that text of users stays text, and how a real browser shows it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running_service import Running, in_process, running

from kcal import KCal, load, save
from kcal.metrics import reliability
from kcal.report.html import render
from kcal.serving.dashboard import style_policy
from synthetic import Problem

pytestmark = pytest.mark.anyio
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
LONG = "a-name-without-any-place-to-break-it-" * 3
NASTY = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x", "{{ 7 * 7 }}", "</style>"]

LOWEST_CONTRAST = """() => {
  const parse = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  let lowest = [99, ""];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || ["STYLE", "TITLE", "title", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const text = light(parse(element.tagName === "text" ? style.fill : style.color)), behind = light(back(element));
    const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    if (ratio < lowest[0]) lowest = [ratio, element.tagName + ": " + element.textContent.slice(0, 40)];
  }
  return lowest;
}"""


async def page_of(path: Path, problem: Problem, labels: Any, query: str = "") -> str:
    """Return the dashboard after predictions with labels; ``labels`` maps predicted classes to labels."""
    names = [f"p{row}" for row in range(300)]
    async with in_process(path, store=path.with_name("feedback.db")) as (client, _):
        answer = await client.predict(problem.test_embeddings[:300], ids=names)
        if labels is not None:
            given = zip(names, answer["labels"], problem.test_labels, strict=False)
            await client.give([{"id": one, "label": labels(predicted, truth)} for one, predicted, truth in given])
        return (await client.get(f"/{query}")).text


CASES = {
    "Not known.": None,
    "Yes.": lambda predicted, truth: ("cat", "dog", "owl")[truth],
    "No.": lambda predicted, truth: {"cat": "dog", "dog": "owl", "owl": "cat"}[predicted],
}


@pytest.fixture
def path(problem: Problem, tmp_path: Path) -> Path:
    labels = np.array(["cat", "dog", "owl"])[problem.labels]
    names = [f"cal-{row}" for row in range(len(labels))]
    return save(KCal(projection="identity").fit(problem.embeddings, labels, ids=names), tmp_path / "animals.kcal")


@pytest.mark.parametrize("word", CASES)
async def test_first_screen_answers_whether_it_is_calibrated(word, path, problem):
    page = await page_of(path, problem, CASES[word])
    assert f"<strong>{word}</strong>" in page
    assert ("monitors/reset" in page) == (word == "No.")
    assert page.count('<svg class="chart"') == (1 if word == "Not known." else 3)
    assert "cal-" in page  # the samples of an explanation
    assert not re.search(r"<script|javascript:|style=|https?://", page)
    assert "unsafe" not in style_policy(page)


async def test_points_of_the_chart_are_where_the_bins_are(path, problem):
    page = await page_of(path, problem, CASES["Yes."], "?class=1")
    probs = load(path).predict_proba(problem.test_embeddings[:300].astype(np.float32))
    charts = re.findall(r'<svg class="chart" viewBox="0 0 330 390".*?</svg>', page, re.DOTALL)
    for chart, of in zip(charts, ("confidence", 1), strict=True):
        curve = reliability(probs, problem.test_labels[:300], bins=10, of=of, adaptive=False, minimum_count=10)
        found = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart), dtype=float)
        filled = curve.counts > 0
        np.testing.assert_allclose((found[:, 0] - 40) / 280, curve.mean_prediction[filled], atol=1e-3)
        np.testing.assert_allclose((290 - found[:, 1]) / 280, curve.observed_frequency[filled], atol=1e-3)


async def test_unknown_values_of_the_query_are_ignored(path):
    async with in_process(path) as (client, _):
        for query in ("?model=none&class=99999&refresh=1", "?class=x&refresh=0;url=x", "?class=-1"):
            answer = await client.get(f"/{query}")
            assert answer.status_code == 200
            assert "http-equiv" not in answer.text
        assert 'http-equiv="refresh" content="60"' in (await client.get("/?refresh=60")).text


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(f"{tag} {sorted(name for name, _ in attrs)}")


@settings(max_examples=10, deadline=None)
@given(st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=25)))
def test_text_of_users_stays_text(text):
    def page(name: str) -> list[str]:
        context = {"model_name": name, "names": [name, f"{name}2"], "n_alarms": {name: 1, f"{name}2": 1}, "error": name}
        fixed = {"summary": None, "refresh": None, "refresh_choices": (), "title": name}
        return Tags(render("dashboard.html", package="kcal.serving", **context, **fixed)).tags

    assert page(text) == page("name")


# In a real browser


@dataclass
class Session:
    """A browser, the address of the service, and what went wrong."""

    browser: Any
    address: str
    messages: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def open(self, query: str = "", *, width: int = 1280, scheme: str = "light") -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        page.goto(self.address + query)
        return page

    def _note(self, url: str) -> None:
        if not url.startswith(self.address):
            self.foreign.append(url)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, animals: KCal, problem: Problem) -> Iterator[Running]:
    """A service of a model in alarm with long names, and of one without predictions."""
    folder, stores = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("stores")
    labels = np.array(["cat", LONG, "owl"])[problem.labels]
    names = [f"{LONG}{row}" for row in range(len(labels))]
    save(KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, labels, ids=names), folder / "alarm.kcal")
    save(animals, folder / "new.kcal")
    with running(folder, store=stores) as one, one.http() as client:
        ids = [f"new-{LONG}{row}" for row in range(300)]
        rows = (problem.test_embeddings[:300] + 2).tolist()
        client.post("/predict", json={"model": "alarm", "embeddings": rows, "ids": ids})
        given = [{"id": name, "label": LONG, "group": LONG} for name in ids]
        assert client.post("/v2/models/alarm/feedback", json=given).status_code == 200
        yield one


@pytest.fixture(scope="module")
def session(served: Running) -> Iterator[Session]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield Session(browser, f"{served.url}/")
        browser.close()


@pytest.mark.parametrize("model", ["alarm", "new"])
def test_dashboard_fits_the_screen_and_can_be_read(session, model):
    backgrounds = {}
    for width, scheme in ((400, "light"), (1280, "dark")):
        page = session.open(f"?model={model}&class=1", width=width, scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth") <= page.evaluate(f"{root}.clientWidth")
        ratio, text = page.evaluate(LOWEST_CONTRAST)
        assert ratio >= 4.5, text
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.context.close()
    assert backgrounds["light"] != backgrounds["dark"]
    assert ([one for one in session.messages if "favicon" not in one], session.foreign) == ([], [])


def test_forms_links_and_details_work_without_scripts(session):
    page = session.open("?model=alarm")
    page.get_by_label("Class", exact=True).select_option("owl")
    page.get_by_role("button", name="Show class").click()
    assert "Class owl" in page.locator("#class figcaption").inner_text()
    page.get_by_role("link", name="cat").first.click()
    assert "Class cat" in page.locator("#class figcaption").inner_text()
    first = page.locator(".predictions details").first
    table = first.get_by_role("table").filter(has_text="Distance")
    assert not table.is_visible()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert table.is_visible()
    page.get_by_label("Model").select_option("new")
    page.get_by_role("button", name="Show", exact=True).click()
    assert "Not known" in page.locator(".statement").inner_text()
    page.context.close()
