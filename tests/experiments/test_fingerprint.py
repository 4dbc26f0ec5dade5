"""Measurements of other code are told apart."""

from __future__ import annotations

from pathlib import Path

from experiments.fingerprint import code_fingerprint


def test_fingerprint_of_code_ignores_comments_and_docstrings(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()

    def fingerprint(text: str) -> str:
        (tmp_path / "part" / "sums.py").write_text(text)
        return code_fingerprint.__wrapped__(tmp_path, ("part",))

    plain = fingerprint('"""Sums."""\n\ndef double(x):\n    return 2 * x\n')
    assert fingerprint('# new\n\ndef double(x):\n    """Twice."""\n    return 2*x\n') == plain
    assert fingerprint("def double(x):\n    return 3 * x\n") != plain
