"""The documentation site: what checks a built one, how formulas are written, and which pages the navigation has."""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import kcal.metrics
from commands_not_run import check_kcal
from kcal.cli import app
from scripts.check_site import problems

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GOOD = '<h1 id="top">Title</h1><a href="#top">up</a><a href="https://example.org/">out</a>'


def extension(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site(folder: Path, body: str) -> list[str]:
    """Return the problems of a site with a good page and one with the given body."""
    (folder / "sub").mkdir()
    (folder / "index.html").write_text(f'{GOOD}<a href="sub/page.html#part">page</a>')
    (folder / "picture.png").write_bytes(b"")
    (folder / "sub" / "page.html").write_text(f'<p id="part">text</p>{body}')
    return list(problems(folder))


@pytest.mark.parametrize(
    "body",
    [
        '<a href="../index.html#top">home</a>',
        '<img src="../picture.png"><img src="data:image/png;base64,AA=="><img srcset="../picture.png 2x">',
        '<link rel="canonical" href="https://example.org/page.html">',
        '<a href="https://example.org/other.html#part">out</a><a href="mailto:someone@example.org">write</a>',
    ],
)
def test_a_site_without_faults_has_no_problems(tmp_path, body):
    assert site(tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<script src="https://cdn.example.org/a.js"></script>', "fetches https://cdn.example.org/a.js"),
        ('<script src="//cdn.example.org/a.js"></script>', "fetches //cdn.example.org/a.js"),
        ('<link rel="stylesheet" href="http://example.org/a.css">', "fetches http://example.org/a.css"),
        ('<link rel="preconnect" href="https://fonts.example.org">', "fetches https://fonts.example.org"),
        ('<img src="https://example.org/badge.svg">', "fetches https://example.org/badge.svg"),
        ('<img srcset="../picture.png 1x, https://example.org/b.png 2x">', "fetches https://example.org/b.png"),
        ("<style>@import 'https://example.org/f.css';</style>", "fetches https://example.org/f.css"),
        ('<p style="background: url(https://example.org/c.png)">', "fetches https://example.org/c.png"),
        ('<img src="missing.png">', "missing.png does not exist"),
        ('<a href="missing.html">x</a>', "the link missing.html leads nowhere"),
        ('<a href="../index.html#missing">x</a>', "the link ../index.html#missing has no such anchor"),
        ('<a href="#missing">x</a>', "the link #missing has no such anchor"),
    ],
)
def test_a_fault_of_a_page_is_named(tmp_path, body, problem):
    assert site(tmp_path, body) == [f"{Path('sub/page.html')}: {problem}"]


def test_fonts_of_a_style_sheet_from_another_host_are_named(tmp_path):
    (tmp_path / "a.css").write_text('@font-face { src: url("https://example.org/f.woff2") } a { b: url(c.png) }')
    assert site(tmp_path, "") == ["a.css: fetches https://example.org/f.woff2"]


def test_a_folder_without_pages_is_a_problem(tmp_path):
    assert list(problems(tmp_path)) == [f"{tmp_path}: no pages"]


def formulas_of(text: str) -> list[str]:
    blocks = re.findall(r"\$\$(.+?)\$\$", text, re.S)
    return blocks + re.findall(r"\$([^$\n]+(?:\n[^$\n]+)?)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.S))


def test_every_formula_of_the_pages_can_be_drawn():
    to_svg = extension("formulas").to_svg
    code = re.compile(r"^```.*?^```|`[^`]*`", re.M | re.S)
    texts = [code.sub("", page.read_text(encoding="utf-8")) for page in pages()]
    formulas = [formula for text in texts for formula in formulas_of(text)]
    assert len(formulas) > 100
    assert all("<path d=" in to_svg(formula, block=True) for formula in formulas)


def test_formulas_are_read_as_latex_reads_them():
    to_svg = extension("formulas").to_svg

    def drawing(formula: str, *, block: bool = False) -> str:
        return to_svg(formula, block=block).partition("<path")[2]

    assert drawing(r"\big( x \big|y\big| \big)") == drawing(r"\left( x \left|y\right| \right)")
    assert drawing(r"\tfrac12 \sqrt d", block=True) == drawing(r"\frac{1}{2} \sqrt{d}")
    assert drawing(r"x \le \lVert y \rVert") == drawing(r"x \leq \Vert y \Vert")
    with pytest.raises(Exception, match="cannot be drawn"):
        to_svg(r"\nosuchcommand")


def test_a_formula_stands_on_the_line_and_says_its_source():
    svg = extension("formulas").to_svg("p_k < 1")
    assert 'aria-label="p_k &lt; 1"' in svg
    depth = re.search(r"vertical-align: -(\d\.\d+)em", svg)
    assert depth is not None
    assert 0.1 < float(depth[1]) < 0.5  # the subscript reaches below the line
    drawing = re.search(r' d="(.*)"', svg)
    assert drawing is not None
    assert re.fullmatch(r"(?:[MLQC](?:-?\d+(?:\.\d)? ?)+|Z)+", drawing[1])
    assert drawing[1].count("M") == drawing[1].count("Z")


@dataclass(frozen=True)
class Point:
    """A point."""

    x: float  # to the right
    y: float = 0.0
    name: str = ""  # of (x, *, y), if any


def test_comments_beside_fields_become_attributes():
    lines = ["A point."]
    extension("docstrings").complete_docstring(None, "class", "Point", Point, None, lines)
    expected = ["A point.", "", "Attributes", "----------", "x : float", "    To the right."]
    assert lines == [*expected, "name : str", r"    Of (x, \*, y), if any.", ""]


def test_a_class_with_many_methods_has_a_table_of_them():
    add = extension("docstrings").add_table_of_methods
    lines: list[str] = []
    add(None, "class", "kcal.KCalBlend", kcal.KCalBlend, None, lines)
    assert {"   KCalBlend.fit", "   KCalBlend.predict_proba", "   KCalBlend.explain"} <= set(lines)
    assert "   KCalBlend.get_params" not in lines  # described by scikit-learn
    assert "   KCalBlend.ids_" not in lines  # an attribute
    few: list[str] = []
    add(None, "class", "Point", Point, None, few)
    assert few == []


def test_the_text_below_data_is_found_where_it_is_defined():
    assert extension("docstrings").text_below("METRICS", kcal.metrics.METRICS)[0]


def pages() -> list[Path]:
    generated = {DOCS / "gallery", DOCS / "api" / "generated"}
    return [page for page in sorted(DOCS.rglob("*.md")) if not generated & set(page.parents)]


def test_the_reference_has_every_public_module():
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    packages = {f"kcal.{path.parent.name}" for path in Path(kcal.__file__).parent.glob("*/__init__.py")}
    assert packages - set(re.findall(r"^   (kcal\.\w+)$", text, re.M)) == {"kcal.cli", "kcal.serving"}


def test_the_command_line_reference_has_every_command_and_option_of_help():
    reference = extension("commands").reference()
    sections = {text.splitlines()[0]: text for text in reference.split("## kcal ")[1:]}
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert {name.split()[0] for name in sections} == set(re.findall(r"^│ ([a-z]+) ", listed, re.M))
    assert {"token create", "token list", "token revoke"} <= set(sections)
    for name, text in sections.items():
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        options = set(re.findall(r"^│ +(?:\* +)?(--[a-z-]+)", shown, re.M)) - {"--help"}
        assert set(re.findall(r"^\| `(--[a-z-]+)`", text, re.M)) == options
    assert "| `--size` `N\\|SHARE` |" in sections["compress"]


def test_the_examples_of_help_have_only_options_that_exist():
    blocks = re.findall(r"^```sh\n(.*?)^```", extension("commands").reference(), re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 10
    for command in commands:
        check_kcal(shlex.split(command))


def test_the_markup_of_help_becomes_markdown():
    in_markdown = extension("commands").in_markdown
    assert in_markdown("With [cyan]--store[/] or --port, *.kcal.") == r"With `--store` or `--port`, \*.kcal."
    lines = "[bold]Examples[/]\n\n[green]kcal a 'x*'[/]\n\n[green]kcal b --out c[/]"
    assert in_markdown(lines) == "**Examples**\n\n```sh\nkcal a 'x*'\nkcal b --out c\n```"
