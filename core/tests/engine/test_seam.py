"""Differences between devices are in engine/ and in plugins: the rest of the core asks the engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import recipe_core

ROOT = Path(recipe_core.__file__).parent
REGISTERS = ROOT / "plugin.py"  # names the functions of the engine native
FILES = sorted(p for p in ROOT.rglob("*.py") if "engine" not in p.relative_to(ROOT).parts and p != REGISTERS)
NAMES_IT = {"agreement.py", "devices.py", "packages.py", "select.py"}  # names of packages, words of messages
THROUGH = sorted(p for p in (ROOT / "engine").rglob("*.py") if p.name not in NAMES_IT and "neuron" not in p.parts)
NEURON = re.compile(r"(?i)(?<![a-z])(torch_?)?neuron")
STACK = re.compile(r"(?i)(?<![a-z])(torch_?)?(xla(?!rge)|neuron)")  # an instance type is called trn1.32xlarge


def documentation(tree: ast.AST) -> set[int]:
    """The strings that stand as statements of their own: docstrings of modules, functions, classes and settings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def words(tree: ast.AST, stack: re.Pattern[str]) -> Iterator[str]:
    """The strings in a module, but for its documentation, that name ``stack``."""
    docs = documentation(tree)
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(text, str) and stack.search(text):
            yield f"{node.lineno}: {text!r}"


def traces(tree: ast.AST) -> Iterator[str]:
    """Everything in a module that knows a kind of devices."""
    yield from words(tree, STACK)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (f"{node.lineno}: import {name}" for name in names if STACK.search(name))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            of_device = any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides)
            named = any(isinstance(side, ast.Constant | ast.Tuple | ast.Name) for side in sides)
            meta = any(isinstance(side, ast.Constant) and side.value == "meta" for side in sides)  # is no device
            if of_device and named and not meta:
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_outside_of_the_engine_knows_a_device(path: Path) -> None:
    assert list(traces(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", THROUGH, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_engine_knows_neuron_in_one_folder(path: Path) -> None:
    assert list(words(ast.parse(path.read_text(encoding="utf-8")), NEURON)) == []


@pytest.mark.parametrize(
    "code",
    [
        'if run.device.type == "xla": pass', "from torch_xla import runtime", "import recipe_core.engine.neuron",
        'os.environ["NEURON_CC_FLAGS"]', 'device.type != neuron.NAME or device.type == NAME', 'find_spec("torch_xla")',
        "from recipe_core.engine import neuron", 'device.type in ("cpu", "cuda")',
    ],
)  # fmt: skip
def test_such_code_would_be_seen(code: str) -> None:
    assert list(traces(ast.parse(code)))


def test_documentation_may_tell_of_devices() -> None:
    assert (
        list(traces(ast.parse('"""On XLA."""\nclass A:\n    b: int\n    """Of Neuron."""\naxes.set_xlabel("x")'))) == []
    )
