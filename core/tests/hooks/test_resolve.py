"""Targets of contributions: missing ones and wrong arguments are reported without importing any target."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe_core import Dataset, Layout, LayoutSettings, Model, Recipe, Use, plugin
from recipe_core.hooks import specs
from recipe_core.hooks.kinds import CLASSES, KINDS
from recipe_core.hooks.registry import load
from recipe_core.hooks.static.resolve import problem_with, target_problems
from recipe_core.hooks.static.source import MissingError, require
from recipe_core.testing import toy

CODE = '''
raise RuntimeError("imported")

from functools import partial
from .elsewhere import moved, moved as renamed, nowhere
from . import elsewhere
from math import hypot
from numpy_is_not_here import array

def one(config): ...
def two(config, run): ...
def spare(config, run, more=None): ...
def many(*arguments): ...
def keyword(config, *, device): ...
def none(): ...
async def later(config): ...

@partial
def decorated(): ...

one_line = lambda config: config
alias = two
partly = partial(two, run=1)
unpacked, other = one, two
number = 3
text = """
def in_text(config): ...
"""

class Plain: ...
class Derived(Plain): ...
class Counting(type(Plain)):
    def __call__(self, config): ...
class Meta(metaclass=Counting): ...
class Built:
    def __init__(self, config): ...
    @classmethod
    def make(cls, config): ...

if number > 2:
    def chosen(config, run): ...
else:
    def chosen(config): ...
try:
    from .gone import tried
except ImportError:
    def tried(config): ...
match number:
    case 3:
        matched = one
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a package that must not be imported: each of its modules raises."""
    folder = tmp_path / "targets_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text('raise RuntimeError("imported")\n')
    (folder / "code.py").write_text(CODE)
    (folder / "elsewhere.py").write_text('raise RuntimeError("imported")\ndef moved(config): ...\n')
    (folder / "broken.py").write_text("def build(config):\n    return (\n")
    (folder / "dynamic.py").write_text("def __getattr__(name): ...\n")
    (folder / "starred.py").write_text("from .elsewhere import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield folder
    assert not {name for name in set(sys.modules) - before if name.startswith("targets_of_test")}


GOOD = (
    "one moved renamed many decorated later one_line partly unpacked Built Built.make Derived Meta chosen tried matched"
)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", GOOD.split())
def test_what_can_be_called_or_cannot_be_told_passes(name: str) -> None:
    assert problem_with(f"targets_of_test.code:{name}", ("config",)) is None


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("target", ["dynamic:anything", "starred:moved"])
def test_modules_that_make_names_at_run_time_pass(target: str) -> None:
    assert problem_with(f"targets_of_test.{target}", ("config",)) is None


BAD = {
    "code:two": "{}/code.py, line 11: two(config, run) is called with (config)",
    "code:spare": "{}/code.py, line 12: spare(config, run, more=None) is called with (config)",
    "code:keyword": "{}/code.py, line 14: keyword(config, *, device) is called with (config)",
    "code:none": "{}/code.py, line 15: none() is called with (config)",
    "code:alias": "{}/code.py, line 11: two(config, run) is called with (config)",
    "code:number": "{}/code.py, line 25: it is 3, and expected is a function",
    "code:Plain": "{}/code.py, line 30: Plain() is called with (config)",
    "code:elsewhere": "it is a module, and expected is a function",
    "code:in_text": "{}/code.py holds no 'in_text'; did you mean 'text'?",
    "code:onee": "{}/code.py holds no 'onee'; did you mean 'one'?",
    "code:nowhere": "{}/elsewhere.py holds no 'nowhere'",
    "code:array": "{}/code.py, line 8, imports it from 'numpy_is_not_here': there is no package 'numpy_is_not_here'",
    "cod:one": "package targets_of_test ({}) holds no module 'cod'",
    "code.one:build": "targets_of_test.code is a module, not a package that holds 'one'",
    "broken:build": "{}/broken.py, line 2, is not Python ('(' was never closed)",
}


@pytest.mark.parametrize(("target", "said"), BAD.items())
def test_what_cannot_be_called_is_said(package: Path, target: str, said: str) -> None:
    assert problem_with(f"targets_of_test.{target}", ("config",)) == said.format(package)


@pytest.mark.parametrize("target", ["build", "a b:c", "a:", ":b", "a:b:c", "a/b.py:c"])
def test_a_target_that_is_none_is_said(target: str) -> None:
    assert problem_with(target, ()) == "expected package.module:function"


def test_a_module_that_is_imported_already_is_asked_itself() -> None:
    assert problem_with("recipe_core.testing.toy:model_facts", ("config", "sequence")) is None
    said = problem_with("recipe_core.testing.toy:model_facts", ("config",))
    assert said == "model_facts(config, sequence) is called with (config)"
    assert "holds no 'model_fact'; did you mean 'model_facts'?" in str(
        problem_with("recipe_core.testing.toy:model_fact", ("config",))
    )
    assert str(problem_with("recipe_core.hooks.kinds:PARTS", ())).endswith("and expected is a function")


def test_a_lazy_name_of_an_imported_package_is_not_imported() -> None:
    code = (
        "import sys, recipe_core; from recipe_core.hooks.static.resolve import problem_with; "
        "sys.exit(problem_with('recipe_core:generate_text', ('trained', 'options')) or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_package_that_sets_its_path_may_have_any_module(package: Path) -> None:
    (package / "__init__.py").write_text("__path__ = [somewhere]\n")
    assert problem_with("targets_of_test.anything:one", ("config",)) is None


@pytest.mark.usefixtures("package")
def test_every_field_is_looked_at_and_named() -> None:
    layout = Layout(name="mine", build="targets_of_test.code:two", config=LayoutSettings)
    (said,) = target_problems(layout)
    assert said.startswith("layout 'mine': build: 'targets_of_test.code:two': ")
    assert said.endswith(
        ": two(config, run) is called with (module, config, run); fix the plugin, or install what it needs"
    )
    model = Model(
        name="gpt",
        build="targets_of_test.code:one",
        facts="targets_of_test.code:one",
        adapters={"hf": "nowhere.at:all"},
    )
    facts, adapter = target_problems(model)
    assert facts.startswith("model 'gpt': facts: 'targets_of_test.code:one': ")
    assert adapter == (
        "model 'gpt': adapters['hf']: 'nowhere.at:all': there is no package 'nowhere'; fix the plugin, or install "
        "what it needs"
    )
    recipe = Recipe(name="r", summary="", model=Use("gpt"), data=Use("x"), closing="targets_of_test.code:closing")
    (closing,) = target_problems(recipe)
    assert closing.startswith("recipe 'r': closing: 'targets_of_test.code:closing': ")
    assert target_problems(Dataset(name="x", build="targets_of_test.code:two")) == []


def test_the_core_and_the_toy_resolve() -> None:
    known = load([("core", lambda: plugin), ("toy", lambda: toy)])
    assert [
        said for kind in KINDS for name in known.names(kind) for said in target_problems(known.get(kind, name))
    ] == []


def test_nothing_imports_torch() -> None:
    code = (
        "import sys; from recipe_core.testing import toy; from recipe_core.hooks.kinds import KINDS; "
        "from recipe_core.hooks.static.resolve import target_problems; r = toy.registry(); "
        "print([p for k in KINDS for n in r.names(k) for p in target_problems(r.get(k, n))], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


def test_every_field_that_documents_a_target_promises_its_arguments() -> None:
    """This includes new kinds of contributions: their fields declare with ``called(...)`` the arguments of the call."""
    files = sorted(Path(specs.__file__).parent.glob("*.py"))
    documented = {
        (node.name, field.target.id)
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and "package.module:" in ast.unparse(text)
    }
    promised = {
        (class_.__name__, field.name)
        for class_ in CLASSES.values()
        for field in dataclasses.fields(class_)
        if "arguments" in field.metadata
    }
    assert {("Model", "facts"), ("Recipe", "closing")} <= documented
    assert documented - {("Spec", "build")} <= promised


def test_dotted_names_are_found_as_at_run_time() -> None:
    assert problem_with("recipe_core.testing.toy.model_facts", ("config", "sequence")) is None
    with pytest.raises(MissingError, match="holds no 'Nothing'"):
        require("recipe_core.testing.toy", "Nothing.at_all", ())
