from __future__ import annotations

from pathlib import Path

from loadtests.suite.version import DECISIVE, ROOT, current


def test_what_decides_figures_is_there() -> None:
    for part in DECISIVE:
        assert (ROOT / part).exists(), part


def test_the_code_changes_with_what_decides_figures_and_with_nothing_else(tmp_path: Path) -> None:
    for part in DECISIVE:
        path = tmp_path / part
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a = 1\n")
        else:
            path.mkdir(parents=True, exist_ok=True)
            (path / "one.py").write_text("a = 1\n")
    before = current(tmp_path).code
    (tmp_path / "loadtests" / "replay" / "report.py").write_text("b = 1\n")
    (tmp_path / "gateway" / "cli.py").write_text("b = 1\n")
    assert current(tmp_path).code == before
    (tmp_path / "policies" / "one.py").write_text("a = 2\n")
    changed = current(tmp_path).code
    assert changed != before
    (tmp_path / "policies" / "one.py").rename(tmp_path / "policies" / "two.py")
    assert current(tmp_path).code not in (before, changed)
