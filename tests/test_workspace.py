"""Promises that the distributions of this workspace make each other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = sorted(d.name for d in distributions() if d.name.startswith("recipe-"))
FOLDERS = sorted(path.parent for pattern in ("*", "plugins/*") for path in ROOT.glob(f"{pattern}/pyproject.toml"))


def normal(requirement: str) -> str:
    """The name in a requirement, as package registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def test_all_distributions_are_installed() -> None:
    names = {re.search(r'^name = "(.+)"', (f / "pyproject.toml").read_text(), re.MULTILINE)[1] for f in FOLDERS}  # type: ignore[index]
    assert names <= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_dependency_has_a_tested_version(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line) for line in lines if line and not line.startswith("#")}
    (found,) = (d for d in distributions() if d.name == name)
    asked = {normal(line) for line in found.requires or () if "extra ==" not in line}
    assert asked - pinned - set(OURS) == set()


def pinned(pyproject: Path) -> dict[str, str]:
    """The versions that a package asks of this workspace's packages."""
    (listed,) = re.findall(r"^dependencies = \[(.*?)\]$", pyproject.read_text(), re.MULTILINE | re.DOTALL) or [""]
    return dict(re.findall(r'"(recipe-[\w-]+)(?:\[[\w,]+\])?(.*?)"', listed))


def test_packages_of_one_release_need_each_other_as_released() -> None:
    texts = [(folder / "pyproject.toml").read_text() for folder in FOLDERS]
    versions = {one for text in texts for one in re.findall(r'^version = "(.+)"', text, re.MULTILINE)}
    assert len(versions) == 1
    pins = {pin for folder in FOLDERS for pin in pinned(folder / "pyproject.toml").values()}
    assert pins == {f"=={version}" for version in versions}


def test_examples_need_releases_with_the_same_api() -> None:
    """As the packages that `recipe plugin new` writes."""
    (version,) = re.findall(r'^version = "(\d+\.\d+)', (ROOT / "core/pyproject.toml").read_text(), re.MULTILINE)
    for example in ROOT.glob("docs/examples/*/pyproject.toml"):
        pins = pinned(example)
        assert "recipe-core" in pins
        assert set(pins.values()) == {f"~={version}"}, example


def test_no_test_is_dropped_in_silence() -> None:
    """pytest's importlib mode keeps one of two test files of one name where their folders are packages."""
    folders = [ROOT / "tests", *(folder / "tests" for folder in FOLDERS)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    names = Counter(path.name for path in files if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    assert [path for path in files if path.name == "__init__.py"] == []


def imports(node: ast.AST, names: Collection[str]) -> Iterator[str]:
    """The modules among ``names`` that ``node`` imports, in functions too; not what is for type checking only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield from [name for name in (f"{child.module}.{alias.name}", child.module) if name in names][:1]
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from imports(child, names)


def test_no_import_circle() -> None:
    files: dict[str, Path] = {}
    for folder in (*ROOT.glob("core/src"), *ROOT.glob("csrc/python"), *ROOT.glob("plugins/*/src")):
        for path in folder.rglob("*.py"):
            files[".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")] = path
    assert {"recipe_core.train.loop", "recipe_index.bert", "recipe_megatron_gpt.plugin"} <= files.keys()
    graph = {name: {*imports(ast.parse(path.read_bytes()), files)} - {name} for name, path in files.items()}
    # `start` imports the engine that it makes, which is built on this module.
    graph["recipe_core.engine.protocol"] -= {"recipe_core.engine.native", "recipe_core.xla.engine"}
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


def test_no_import_by_string_goes_up() -> None:
    """import-linter does not see ``load("package.module:name")``; the layers hold for it all the same."""
    text = (ROOT / "pyproject.toml").read_text()
    contract = re.search(r'containers = \["recipe_core"\].*?layers = \[(.*?)\]', text, re.DOTALL)
    assert contract is not None
    layers = [re.findall(r"\w+", line) for line in re.findall(r'"(.*?)"', contract[1])]
    height = {room: -number for number, rooms in enumerate(layers) for room in rooms}
    source, upward = ROOT / "core/src/recipe_core", []
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        for other, rest in re.findall(r'"recipe_core\.(\w+)([\w.]*:\w+)"', path.read_text()):
            if height[other] > height[room]:
                upward.append(f"{path.relative_to(source)}: recipe_core.{other}{rest}")
    assert sorted(upward) == [
        "hooks/specs/__init__.py: recipe_core.train.run:run",  # the default of a field that plugins may set
        # only facts of a run with transforms load it: counts of a model that transforms change are measured
        "hooks/specs/transform.py: recipe_core.train.building.transforms.facts:measured",
    ]
