"""The page of the service in a real browser: layout, colours, forms, and nothing from elsewhere."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from observed_models import calibrator, observed, stream

from kcal.deployment.service.latest import explain_latest
from kcal.deployment.service.observer import Observer
from kcal.deployment.service.page import ModelView, content_security_policy, render_page
from kcal.deployment.service.tallies import Traffic

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LONG = "a-name-without-any-place-to-break-it-" * 3

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


def views() -> list[ModelView]:
    """Return a model in alarm with long names, a calm one, one without labels, and one without predictions."""
    snapshots = {
        LONG: observed(stream(shift=2.5), groups=[LONG] * 600, batch=300).snapshot(),
        "calm": observed(stream(), batch=300, groups=["home"] * 600).snapshot(),
        "unlabelled": observed(stream(120), labelled=False).snapshot(),
        "new": Observer(calibrator()).snapshot(),
    }
    shared: dict[str, Any] = {"traffic": Traffic(123_456, 7, 41.5, 3.1, 12.0), "facts": {LONG: LONG}}
    return [
        ModelView(name, "1", snapshot=one, explanations=explain_latest(calibrator(), one), **shared)
        for name, one in snapshots.items()
    ]


@dataclass
class Session:
    """A browser, the address of the pages, and what went wrong."""

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
        if not url.startswith(self.address) or url.endswith("/favicon.ico"):
            self.foreign.append(url)


def make_server(models: list[ModelView]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            page = render_page(
                models, selected=query.get("model"), class_column=query.get("class"), refresh=query.get("refresh")
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", content_security_policy())
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    sync_api = pytest.importorskip("playwright.sync_api")
    server = make_server(views())
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield Session(browser, f"http://127.0.0.1:{server.server_port}/")
            browser.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("model", [LONG, "calm", "unlabelled", "new"])
def test_pages_fit_the_screen_and_can_be_read(session: Session, model: str) -> None:
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
    assert (session.messages, session.foreign) == ([], [])


def test_forms_choose_the_model_the_class_and_the_refresh(session: Session) -> None:
    page = session.open("?model=calm")
    page.get_by_label("Class", exact=True).select_option("owl")
    page.get_by_role("button", name="Show class").click()
    assert page.locator("#reliability figure h3").all_inner_texts() == ["Top class", "owl"]
    page.get_by_label("Refresh").select_option("60")
    page.get_by_role("button", name="Show", exact=True).click()
    assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "60"
    assert page.locator("#reliability figure h3").all_inner_texts() == ["Top class", "owl"]
    page.get_by_label("Model").select_option("new/1")
    page.get_by_role("button", name="Show", exact=True).click()
    assert page.get_by_role("heading", name="No predictions yet").is_visible()
    page.context.close()


def test_a_prediction_opens_to_its_explanation_by_keyboard(session: Session) -> None:
    page = session.open("?model=calm")
    first = page.locator(".predictions details").first
    table = first.get_by_role("table").filter(has_text="Distance")
    assert not table.is_visible()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert table.is_visible()
    assert "sample-" in table.inner_text()
    page.get_by_text("Show as a table").first.click()
    assert page.locator("#reliability").get_by_role("table").first.is_visible()
    page.context.close()


def test_a_class_of_the_frequencies_leads_to_its_reliability(session: Session) -> None:
    page = session.open("?model=calm&class=0")
    page.get_by_role("link", name="dog").first.click()
    assert page.locator("#reliability figure h3").all_inner_texts() == ["Top class", "dog"]
    assert page.url.endswith("#reliability")
    assert session.messages == []
    page.context.close()
