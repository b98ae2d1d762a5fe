"""The public surface of API 1 never shrinks: all names in public_api_1.json exist and accept the recorded arguments.

After an addition, ``python core/tests/hooks/test_public_api.py`` records it. It refuses removals: a plugin of a third
party may use the name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import recipe_core
from recipe_core.hooks.earlier import ENGINE
from recipe_core.hooks.version import API

RECORD = Path(__file__).parent / f"public_api_{API}.json"
MODULES = ("recipe_core", *(f"recipe_core.{name}" for name in ("data.filters", "data.prepare", "data.text", "testing")))
PLAIN = {"__init__", "__call__"}
"""Special methods whose arguments count."""
Shape = dict[str, Any]


def surface() -> dict[str, dict[str, Shape]]:
    """Return every public name with its shape, by module."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    return {name: {key: shape(getattr(module, key)) for key in module.__all__} for name, module in modules.items()}


def shape(thing: Any) -> Shape:
    """Return a function's arguments; for a class, those of its methods, and the names that a subclass must define."""
    if not inspect.isclass(thing):
        return {"arguments": arguments(thing)} if inspect.isroutine(thing) else {}
    ours = [base for base in thing.__mro__ if base.__module__.startswith("recipe_")]
    spaces = [vars(base) for base in ours]
    names = {name for space in spaces for name in (*space, *space.get("__annotations__", ()))}
    public = sorted(name for name in names if name in PLAIN or not name.startswith(("_", "test_")))
    functions = {name: getattr(inspect.getattr_static(thing, name, None), "__func__", None) for name in public}
    functions = {name: one or inspect.getattr_static(thing, name, None) for name, one in functions.items()}
    methods = {name: arguments(one) for name, one in functions.items() if inspect.isfunction(one)}
    attributes = [name for name in public if name not in methods and name not in PLAIN]
    protocol = getattr(thing, "_is_protocol", False)
    # An engine that has the earlier names of ENGINE alone gets the others from the core.
    needed = set(public) - PLAIN - set(ENGINE.values())
    required = needed if protocol else set(getattr(thing, "__abstractmethods__", ()))
    return {"methods": methods, "attributes": attributes, "required": sorted(required)}


def arguments(function: Any) -> list[str]:
    """List them as ``name``, ``name=`` (with a default), ``*name`` or ``**name``; ``*`` precedes keyword-only ones."""
    words: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        words.append(f"{stars}{parameter.name}{'' if parameter.default is parameter.empty else '='}")
    return words


def losses(was: Mapping[str, Mapping[str, Shape]], now: Mapping[str, Mapping[str, Shape]]) -> Iterator[str]:
    """Yield everything that a plugin written for ``was`` would miss in ``now``."""
    for module, names in was.items():
        for name, old in names.items():
            new = now.get(module, {}).get(name)
            if new is None:
                yield f"{module}.{name} is gone"
            else:
                yield from changes(f"{module}.{name}", old, new)


def changes(name: str, old: Shape, new: Shape) -> Iterator[str]:
    """Yield the same for one name."""
    if old.keys() != new.keys():
        yield f"{name} is another kind of thing"
        return
    for place, before, after in pairs(name, old, new):
        if after is None:
            yield f"{place} is gone"
        elif not fits(before, after):
            yield f"{place}({', '.join(before)}) has become ({', '.join(after)})"
    yield from (f"{name}.{one} is gone" for one in old.get("attributes", ()) if not has(new, one))
    if "required" in old:
        grown = set(new["required"]) - set(old["required"])
        yield from (f"{name}.{one} must now be defined by every plugin; give it a default" for one in sorted(grown))


def has(new: Shape, name: str) -> bool:
    return name in new["attributes"] or name in new["methods"]


def pairs(name: str, old: Shape, new: Shape) -> Iterator[tuple[str, list[str], list[str] | None]]:
    """Yield functions with their arguments before and now."""
    if "arguments" in old:
        yield name, old["arguments"], new["arguments"]
    for method, before in old.get("methods", {}).items():
        yield f"{name}.{method}", before, new["methods"].get(method)


def fits(before: list[str], after: list[str]) -> bool:
    """Return True if every call that ``before`` allows still works: same positions, and a default for each addition."""
    by_place, by_name = split(before)
    new_place, new_name = split(after)
    kept = all(agree(one, other) for one, other in zip(by_place, new_place, strict=False))
    known = {word.rstrip("="): word for word in [*new_place, *new_name]}
    there = all(agree(word, known.get(word.rstrip("="), "")) for word in by_name)
    old = {word.rstrip("=") for word in [*by_place, *by_name]}
    optional = all(word.endswith("=") or word.startswith("*") or word in old for word in known.values())
    return kept and there and optional and len(new_place) >= len(by_place)


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split into positional and keyword-only arguments."""
    cut = words.index("*") if "*" in words else len(words)
    return words[:cut], words[cut + 1 :]


def agree(before: str, after: str) -> bool:
    """Return True if an argument keeps its name and does not become required."""
    return after in (before, before.rstrip("=") + "=")


def read() -> dict[str, dict[str, Shape]]:
    recorded: dict[str, dict[str, Shape]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return recorded


def test_nothing_that_was_promised_is_gone() -> None:
    assert list(losses(read(), surface())) == []


def test_every_public_name_is_recorded() -> None:
    """Each promise is deliberate: the change that adds a name also records it."""
    recorded, now = read(), surface()
    new = {module: sorted(names.keys() - recorded.get(module, {}).keys()) for module, names in now.items()}
    assert not any(new.values()), f"{new}: run python core/tests/hooks/test_public_api.py"


def test_every_public_name_is_described() -> None:
    """Functions and classes do not inherit their docstring."""
    things = {name: getattr(recipe_core, name) for name in recipe_core.__all__}
    code = {name: one for name, one in things.items() if inspect.isclass(one) or inspect.isroutine(one)}
    assert len(code) > 60
    assert [name for name, one in code.items() if not vars(one).get("__doc__", one.__doc__)] == []


def test_names_for_type_checkers_are_those_that_are_imported_later() -> None:
    tree = ast.parse(Path(recipe_core.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    typed = {line.module: tuple(alias.name for alias in line.names) for line in lines}
    assert typed == {f"recipe_core.{module}": names for module, names in recipe_core._LAZY.items()}
    assert set(recipe_core.__all__) >= {name for names in recipe_core._LAZY.values() for name in names}


def test_importing_the_surface_imports_no_torch() -> None:
    """Each plugin.py imports from it, and every command imports each plugin.py."""
    used = "recipe_core.Job, recipe_core.variants_of, recipe_core.Variable, recipe_core.atomic_file"
    code = f"import sys, recipe_core; {used}; print(*{{'torch', 'numpy'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_name_that_is_not_there_is_named_with_the_version() -> None:
    with pytest.raises(AttributeError, match=r"'recipe_core' \(API 1\) has no attribute 'Flux'"):
        recipe_core.Flux  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Flux'"):
        exec("from recipe_core import Flux")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["a"], ["a", "b="], True),
        (["a"], ["a="], True),
        (["a", "*", "b"], ["a", "b"], True),
        (["a"], ["a", "**more"], True),
        (["a"], ["a", "b"], False),
        (["a="], ["a"], False),
        (["a", "b="], ["a", "c=", "b="], False),
        (["a", "b="], ["a", "*", "b="], False),
        (["a", "b="], ["a"], False),
        (["a"], ["other"], False),
    ],
)
def test_what_a_call_can_rely_on(before: list[str], after: list[str], expected: bool) -> None:
    assert fits(before, after) is expected


def test_losses_are_found() -> None:
    old = {"m": {"Kept": {"methods": {"f": ["self"]}, "attributes": ["x"], "required": []}, "gone": {"arguments": []}}}
    new = {"m": {"Kept": {"methods": {}, "attributes": [], "required": ["f"]}}}
    assert sorted(losses(old, new)) == [
        "m.Kept.f is gone",
        "m.Kept.f must now be defined by every plugin; give it a default",
        "m.Kept.x is gone",
        "m.gone is gone",
    ]


def record() -> str:
    """Rewrite the record, which may only grow."""
    now = surface()
    if RECORD.exists() and (gone := list(losses(read(), now))):
        return "\n".join(["not recorded, since plugins made for this API rely on it:", *gone])
    blocks = []
    for module, names in now.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(names[name])}" for name in sorted(names))
        blocks.append(f" {json.dumps(module)}: {{\n{lines}\n }}")
    RECORD.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(record())
