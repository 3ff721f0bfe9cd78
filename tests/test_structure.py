"""The code keeps its shape: imports run one way, experiments alone use numpy, files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from calculators.core.index import TOPICS

ROOT = Path(__file__).parents[1] / "calculators"
FILES = sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)
LONGEST = 300

ALLOWED = {
    "core": {"core"},
    "catalog": {"core", "catalog"},
    "formulas": {"core", "catalog", "formulas"},
    "render": {"core", "render"},
    "site": {"core", "catalog", "formulas", "render", "site"},
    **{topic: {"core", "catalog", "formulas", topic} for topic in TOPICS},
}
"""package → packages of ours that it may import"""


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            if node.module == "calculators":
                yield from (f"calculators.{alias.name}" for alias in node.names)


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs at import time; ``if TYPE_CHECKING`` is for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from outside_functions(node)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_file = pytest.mark.parametrize("path", FILES, ids=name_of)


@every_file
def test_imports_run_one_way(path):
    package = package_of(path)
    if not package:
        return
    assert package in ALLOWED, f"calculators/{package} has no place in the design"
    for module in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        first, _, rest = module.partition(".")
        if first == "calculators" and rest:
            assert rest.partition(".")[0] in ALLOWED[package], f"{package} must not import {module}"


@every_file
def test_numpy_is_imported_inside_functions_only(path):
    for node in outside_functions(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.partition(".")[0] == "numpy" for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] != "numpy"


@every_file
def test_only_experiments_use_numpy(path):
    if package_of(path) in TOPICS:
        return
    modules = {m.partition(".")[0] for m in imported_modules(ast.parse(path.read_text(encoding="utf-8")))}
    assert "numpy" not in modules


@every_file
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@every_file
def test_nothing_swallows_every_exception(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[-1], ast.Raise):
            assert node.type is not None, f"{name_of(path)}:{node.lineno}: a bare except"
            assert not (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")), f"{name_of(path)}:{node.lineno}"


@every_file
def test_modules_say_what_they_are_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_every_topic_is_a_package():
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == set(ALLOWED)
