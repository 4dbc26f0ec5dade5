"""What autodoc does not do: comments beside fields, texts below data, a short navigation."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from functools import cache, partial
from typing import Any

from docutils import nodes
from jinja2 import FileSystemBytecodeCache
from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autosummary import autosummary_toc
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.nodes import make_refnode

FIELD = re.compile(r"^    (\w+): (.+?)(?: = .+?)?  # (.+)$", re.M)
ABSOLUTE_VALUE = re.compile(r"\|(?=\S)([^|`]*[^|`\s])\|")
BEFORE_NUMPYDOC, AFTER_NUMPYDOC = 400, 600
METHODS_FOR_A_TABLE = 4


@cache
def field_comments(kind: type) -> list[tuple[str, str, str]]:
    """Return name, type and comment of fields with a comment, those of base classes first."""
    classes = [cls for cls in reversed(kind.__mro__) if dataclasses.is_dataclass(cls)]
    matches = [match for cls in classes for match in FIELD.finditer(inspect.getsource(cls))]
    return [(match[1], match[2], match[3]) for match in matches]


def text_below(name: str, value: Any) -> list[str]:
    """Return the text below the definition of data, in whichever module of kcal that is."""
    for module in sorted(module for module in sys.modules if module.startswith("kcal")):
        if vars(sys.modules[module]).get(name) is value:
            text = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
            if text:
                return list(text)
    return []


def complete_docstring(
    _app: Sphinx, what: str, name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """Add attributes to a dataclass; replace the docstring that data has from its type."""
    if what == "data":
        lines[:] = text_below(name.rpartition(".")[2], value)
    elif what == "class" and dataclasses.is_dataclass(value):
        comments = field_comments(value)
        if comments and not {"Parameters", "Attributes"} & set(lines):
            end = next(
                (row for row, line in enumerate(lines) if line in ("Examples", "Notes")),
                len(lines),
            )
            section = ["", "Attributes", "----------"]
            for field, kind, comment in comments:
                section += [
                    f"{field} : {kind}",
                    f"    {comment[0].upper()}{comment[1:]}.".replace("*", r"\*"),
                ]
            lines[end:end] = [*section, ""]


def escape_absolute_values(
    _app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    r"""Keep \|x\| in a formula from being read as a reference."""
    lines[:] = [
        line if line.lstrip().startswith(">>>") else ABSOLUTE_VALUE.sub(r"\|\1\|", line)
        for line in lines
    ]


def skip_foreign(
    _app: Sphinx, _what: str, _name: str, value: Any, _skip: bool, _options: Any
) -> bool | None:
    """Leave out members that other libraries define; their documentation is elsewhere."""
    module = getattr(inspect.unwrap(value) if callable(value) else value, "__module__", None)
    return True if isinstance(module, str) and not module.startswith("kcal") else None


def add_table_of_methods(
    _app: Sphinx, what: str, name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """End the docstring of a class with a table of its public methods, if these are many."""
    members = inspect.getmembers(value, inspect.isroutine) if what == "class" else []
    methods = [
        method
        for method, function in members
        if not (method.startswith("_") or method.endswith("_"))  # a fitted attribute
        and getattr(inspect.unwrap(function), "__module__", "").startswith("kcal")
    ]
    if len(methods) >= METHODS_FOR_A_TABLE:
        short = name.rpartition(".")[2]
        rows = [f"   {short}.{method}" for method in methods]
        lines += ["", ".. rubric:: Methods", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [*rows, ""]


def find_short_name(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element
) -> Any:
    """Resolve a name by its last part: objects are described where they are public."""
    if node.get("refdomain") != "py":
        return None
    domain, last = env.domains.python_domain, node["reftarget"].rpartition(".")[2]
    names = sorted(
        (name for name in domain.objects if name.rpartition(".")[2] == last),
        key=lambda name: name.count("."),
    )
    if not names or (len(names) > 1 and names[0].count(".") == names[1].count(".")):
        return None
    target = domain.objects[names[0]]
    return make_refnode(
        app.builder, node["refdoc"], target.docname, target.node_id, content, names[0]
    )


def leave_navigation(app: Sphinx, document: nodes.document) -> None:
    """Keep the pages of single names out of the navigation, where they are too many."""
    if app.env.docname.startswith("api/generated/"):
        for node in list(document.findall(autosummary_toc)):
            node.parent.remove(node)


def keep_compiled_template(app: Sphinx) -> None:
    """Have numpydoc compile its template once, not for every docstring."""
    compiled = FileSystemBytecodeCache(str(app.doctreedir))
    environment = partial(SandboxedEnvironment, bytecode_cache=compiled)
    docscrape_sphinx.SandboxedEnvironment = environment


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what completes docstrings."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("builder-inited", keep_compiled_template)
    app.connect("autodoc-process-docstring", complete_docstring, priority=BEFORE_NUMPYDOC)
    app.connect(
        "autodoc-process-docstring", escape_absolute_values, priority=BEFORE_NUMPYDOC + 1
    )
    app.connect("autodoc-process-docstring", add_table_of_methods, priority=AFTER_NUMPYDOC)
    app.connect("doctree-read", leave_navigation, priority=BEFORE_NUMPYDOC)
    app.connect("missing-reference", find_short_name)
    app.connect("autodoc-skip-member", skip_foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
