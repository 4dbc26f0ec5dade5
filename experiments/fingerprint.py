"""A hash of code, by which stored measurements of other code are told apart."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

import kcal

COMPUTING_CODE = (
    "samples.py", "validation.py", "calibrators", "kernels", "metrics", "projection",
    "benchmark/methods.py", "benchmark/tasks.py",
)  # fmt: skip
"""Parts of kcal that measurements depend on."""


@cache
def code_fingerprint(home: Path = Path(kcal.__file__).parent, parts: tuple[str, ...] = COMPUTING_CODE) -> str:
    """Return a short hash of modules as the interpreter reads them: without comments and docstrings."""
    digest = hashlib.sha256()
    for part in parts:
        path = home / part
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            tree = ast.parse(module.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    node.body = [line for line in node.body if not _is_text(line)]
            digest.update(f"{module.relative_to(home)}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()[:12]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
