"""Imports go down only: the layer table of the design, held against every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "gateway.app": 6,
    "gateway.cli": 6,
    "gateway.control": 6,
    "gateway.disaggregation": 6,
    "gateway.explain": 6,
    "gateway.process": 6,
    "gateway.following": 6,
    "gateway.listener": 6,
    "gateway.overlay": 6,
    "gateway.overrides": 6,
    "gateway.readings": 6,
    "gateway.reload": 6,
    "gateway.workers": 6,
    "gateway.replication": 6,
    "gateway.http": 5,
    "gateway.admin": 5,
    "gateway.disagg": 4,
    "gateway.scheduling": 3,
    "policies": 3,
    "gateway.prefix": 2,
    "gateway.estimates": 2,
    "gateway.fleet": 2,
    "gateway.shared": 2,
    "gateway.telemetry": 1,
    "gateway.allowed": 1,
    "gateway.changes": 1,
    "gateway.config": 1,
    "gateway.descriptors": 1,
    "gateway.document": 1,
    "gateway.secrets": 1,
    "gateway.sockets": 1,
    "gateway.tls": 1,
    "gateway.types": 1,
    "gateway.version": 1,
}
OURS = ("gateway", "policies", "loadtests", "tests")


def modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Full names of our own modules that a module imports, wherever in it."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from gateway import http` names a module, `from gateway.http import x` a member
            names = [base if "." in base else f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in OURS)


def layer_of(module: str) -> int | None:
    """None for a package's root and for what stands beside the layers."""
    for prefix, layer in LAYERS.items():
        if module == prefix or module.startswith(prefix + "."):
            return layer
    return None


@pytest.mark.parametrize("path", modules("gateway", "policies"), ids=name_of)
def test_imports_go_down_only(path: Path) -> None:
    module = name_of(path)
    layer = layer_of(module)
    if module == "gateway":
        assert list(imports(path)) == []
        return
    assert layer is not None, f"{module} is in no layer of the design"
    for imported in imports(path):
        if imported.startswith("loadtests"):
            continue
        below = layer_of(imported)
        assert below is not None, f"{module} imports {imported}, which is in no layer"
        assert below <= layer, f"{module} (layer {layer}) imports {imported} (layer {below})"


@pytest.mark.parametrize("path", modules("gateway", "policies"), ids=name_of)
def test_only_the_command_knows_the_load_tests(path: Path) -> None:
    foreign = [name for name in imports(path) if name.startswith(("loadtests", "tests"))]
    assert foreign == [] or name_of(path) == "gateway.cli"


def test_the_check_itself_sees_every_form_of_import(tmp_path: Path) -> None:
    module = ROOT / "gateway" / "http" / "nowhere.py"
    text = "import gateway.app\nfrom gateway import cli\nfrom .. import admin\nfrom . import sse\n"

    class Fake(type(tmp_path)):
        def read_text(self, encoding: str | None = None) -> str:
            return text

    found = list(imports(Fake(module)))
    assert found == ["gateway.app", "gateway.cli", "gateway.admin", "gateway.http"]
    assert [layer_of(name) for name in found] == [6, 6, 5, 5]
