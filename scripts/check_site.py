"""Check a built site: no page loads anything from another host, and no link within the site is broken.

    python -m scripts.check_site build/docs

Every HTML page and style sheet of the folder is read. Links to other sites are fine; what a browser fetches by itself
to show a page is not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("audio", "src"),
    ("video", "src"),
    ("video", "poster"),
    ("input", "src"),
    ("image", "href"),
    ("use", "href"),
}
"""Attributes whose address a browser fetches by itself; of ``link`` all but a few relations."""
NOT_FETCHED = {"canonical", "next", "prev", "index", "search", "author", "license", "help", "alternate"}
IN_STYLE = re.compile(r"""@import\s+["']([^"']+)|url\(\s*["']?([^"')]+)""")


@dataclass
class Page(HTMLParser):
    """What a page fetches, where it leads, and the anchors that it has."""

    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect addresses and anchors of an element."""
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.fetched += style_addresses(values.get("style", ""))
        for name, value in values.items():
            if (tag, name) in FETCHED:
                parts = value.split(",") if name == "srcset" and not value.startswith("data:") else [value]
                self.fetched += [part.split()[0] for part in parts if part.strip()]
        if tag == "link" and not NOT_FETCHED & set(values.get("rel", "").lower().split()):
            self.fetched.append(values.get("href", ""))
        if tag in ("a", "area") and "href" in values:
            self.links.append(values["href"])

    def handle_data(self, data: str) -> None:
        """Collect addresses in a style sheet within the page."""
        if self._in_style:
            self.fetched += style_addresses(data)
            self._in_style = False


def style_addresses(text: str) -> list[str]:
    """Return the addresses that a style sheet refers to."""
    return [first or second for first, second in IN_STYLE.findall(text)]


def read_page(path: Path) -> Page:
    """Parse a page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def is_foreign(address: str) -> bool:
    """Return whether an address names another host."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with the pages and style sheets of a folder, one line each."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no pages"
    for sheet in sorted(site.rglob("*.css")):
        for address in filter(is_foreign, style_addresses(sheet.read_text(encoding="utf-8"))):
            yield f"{sheet.relative_to(site)}: fetches {address}"
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.fetched:
            if is_foreign(address):
                yield f"{name}: fetches {address}"
            elif not address.startswith("data:") and not target_of(path, address).is_file():
                yield f"{name}: {address} does not exist"
        for link in page.links:
            if is_foreign(link):
                continue
            target, anchor = target_of(path, link), unquote(urlsplit(link).fragment)
            if not target.is_file():
                yield f"{name}: the link {link} leads nowhere"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: the link {link} has no such anchor"


def target_of(page: Path, address: str) -> Path:
    """Return the file that an address on a page leads to."""
    relative = unquote(urlsplit(address).path)
    return (page.parent / relative).resolve() if relative else page


def main(site: Annotated[Path, typer.Argument(help="The folder of the built site.")]) -> None:
    """Check the pages of a folder; exit with 1 if there are problems."""
    found = list(problems(site))
    for line in found:
        print(line)
    if found:
        raise SystemExit(1)
    print(f"{len(list(site.rglob('*.html')))} pages: no broken link, nothing from other hosts")


if __name__ == "__main__":
    typer.run(main)
