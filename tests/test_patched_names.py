"""Whatever a test or benchmark patches or reads by a name in a string exists: renaming would miss it.

``monkeypatch.setattr(module, "name", ...)``, ``getattr(module, "name")``, ``module.name = ...``, dotted paths, and
programs in strings are looked up in the imported packages. A type checker sees none of them.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("core/tests", "core/src/recipe_core/testing", "csrc/tests", "plugins/*/tests", "tests", "benchmarks", "docs")
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "object"}
"""Functions whose first argument is an object and whose second is the name of its attribute."""
BY_PATH = {"setattr", "delattr", "patch"}
"""Functions whose first argument may be the dotted path of what they change."""
MISSING = object()
INTENDED = {"recipe_core.Flux"}
"""Names whose absence is what a test is about."""


def test_patched_names_exist() -> None:
    files = sorted({path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py")})
    found = [(path, *one) for path in files for one in stale(path.read_text("utf-8")) if one[1] not in INTENDED]
    assert not found, "\n".join(f"{path.relative_to(ROOT)}:{line}: {name}" for path, line, name in found)


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("from recipe_core.train import loop\nmonkeypatch.setattr(loop, '{}', 1)", "loop.{}"),
        ("from recipe_core.train.loop import Trainer as T\ngetattr(T, '{}', None)", "T.{}"),
        ("import recipe_core.train.loop as loop\nloop.{} = 1", "loop.{}"),
        ("monkeypatch.setattr('recipe_core.train.loop.Trainer.{}', 1)", "recipe_core.train.loop.Trainer.{}"),
        ("run('from recipe_core.train.loop import {}')", "recipe_core.train.loop.{}"),
        ("run('import recipe_core.train.{}')", "recipe_core.train.{}"),
    ],
)
def test_only_a_missing_name_is_found(program: str, path: str) -> None:
    assert [found for _, found in stale(program.format("gone"))] == [path.format("gone")]
    there = "__doc__" if "Trainer" in program or "loop" in path else "loop"
    assert not list(stale(program.format(there)))


def stale(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each name of our packages in ``text`` that does not exist."""
    tree = ast.parse(text)
    imported = _imported(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Call(args=[target, ast.Constant(value=str(name)), *_]) if _called(node) in BY_NAME:
                owner = _resolve(target, imported)
                if owner is not None and not hasattr(owner, name):
                    yield line, f"{ast.unparse(target)}.{name}"
            case ast.Call(args=[ast.Constant(value=str(path)), *_]) if _called(node) in BY_PATH:
                if path.startswith("recipe_") and _find(path) is MISSING:
                    yield line, path
            case ast.Attribute(value=target, attr=name, ctx=ast.Store()):
                owner = _resolve(target, imported)
                if isinstance(owner, ModuleType) and not hasattr(owner, name):
                    yield line, ast.unparse(node)
            case ast.Constant(value=str(program)):
                yield from ((line, path) for path in _imports_of(program) if _find(path) is MISSING)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _imported(tree: ast.Module) -> dict[str, Any]:
    """Return the objects of our packages that the file imports, by the names that it gives them."""
    objects = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            paths = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        else:
            continue
        objects.update({name: _find(path) for name, path in paths.items() if path.startswith("recipe_")})
    return {name: found for name, found in objects.items() if found is not MISSING}


def _resolve(node: ast.expr, imported: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, imported), node.attr, None)
    return None


def _imports_of(program: str) -> Iterator[str]:
    for module, name in re.findall(r"from (recipe_[\w.]+) import (\w+)", program):
        yield f"{module}.{name}"
    yield from re.findall(r"^\s*import (recipe_[\w.]+)", program, re.MULTILINE)


def _find(path: str) -> Any:
    """Return the object at a dotted path, importing modules on the way; MISSING if there is none."""
    found: Any = None
    done = ""
    for part in path.split("."):
        done = f"{done}.{part}" if done else part
        following = getattr(found, part, MISSING)
        if following is MISSING:
            try:
                following = importlib.import_module(done)
            except ImportError:
                return MISSING
        found = following
    return found
