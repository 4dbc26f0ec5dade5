"""Templates of other packages on the shared layout, and the filters."""

import sys

import jinja2
import pytest
from html_reader import Document

from kcal.report.html import render

TEMPLATE = """{% extends "layout.html" %}
{% block content %}{% for text in texts %}<p>{{ text }}</p>{% endfor %}
<p>{{ 0.12345 | percent }}|{{ 0.5 | points(1) }}|{{ 1234 | count }}|{{ nan | number }}|{{ "<b>" | name }}</p>
{% endblock %}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "another_package"
    (folder / "templates").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "templates" / "own.html").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "another_package"
    sys.modules.pop("another_package", None)


def test_template_of_another_package_extends_the_layout(package):
    html = render("own.html", package=package, title="A & B", texts=["<i>\x07"], nan=float("nan"))
    assert "<h1><bdi>A &amp; B</bdi></h1>" in html
    text = Document(html).text
    assert "<i>\ufffd" in text
    assert "12.35 %|50.0|1,234|–|<b>" in text


def test_missing_variable_raises(package):
    with pytest.raises(jinja2.UndefinedError, match="nan"):
        render("own.html", package=package, title="", texts=[])
