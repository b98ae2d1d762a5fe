"""The public names by topic, for docs/reference/api.md and the site, and all classes, for docs/reference/classes.md."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import recipe_core
from recipe_core.hooks import hooks

MODULES = ("recipe_core.data.filters", "recipe_core.data.prepare", "recipe_core.data.text", "recipe_core.testing")
"""Public modules other than :mod:`recipe_core`."""
TOPICS = {
    "Contributions": ("recipe_core.hooks.",),
    "Commands": ("recipe_core.cli.",),
    "Errors": ("recipe_core.errors",),
    "A run and its layout": ("recipe_core.layouts.", "recipe_core.engine.loader"),
    "Operations of models": ("recipe_core.ops.",),
    "Checkpoints": ("recipe_core.checkpoint.",),
    "Engines": ("recipe_core.engine.machine.environment", "recipe_core.engine.native", "recipe_core.engine.protocol"),
    "Optimizers": ("recipe_core.train.optim.",),
    "Callbacks": ("recipe_core.train.callbacks.",),
    "Evaluations": ("recipe_core.train.metrics.evaluations.",),
    "Trackers": ("recipe_core.train.metrics.tracker",),
    "Settings and files": ("recipe_core.settings.", "recipe_core.files"),
}
"""Heading -> the modules that define its names of :mod:`recipe_core`."""
HEAD = """\
<!-- Written by docs/generate.py from the public names; change those and run `nox -s docs -- --write`. -->

# Public names

A plugin imports what it needs from `recipe_core`: `from recipe_core import Batch, Model, causal_attention`. Names that
need PyTorch are imported at first use, so a `plugin.py` may import them. Four more modules are public:
`recipe_core.data.prepare`, `recipe_core.data.text` and `recipe_core.data.filters`, for datasets with their own files,
and `recipe_core.testing`.

**Compatibility.** These names belong to API 1. Within one version, names, arguments, fields and hooks are only added: a
plugin that works with one release works with every later one of the same API. Other modules of the core may change with
every release. A plugin declares its version with `API = 1` in the module that its entry point names; the default is 1.
A plugin for a newer version than the installed core's is left out with a message, and other plugins work.
[Versions](../how-to/plugins/write-a-plugin.md#versions) says how the API relates to releases, and what is deprecated.
"""
ROOT = Path(__file__).parents[1]
CLASSES_HEAD = """\
<!-- Written by docs/generate.py from the docstrings; change those and run `nox -s docs -- --write`. -->

# Classes

Every class of the core, the index and the plugins, by room, in the order of the sources. The [glossary](glossary.md)
defines the terms; the [public names](api.md) are the ones that a plugin may import.
"""
Entry = tuple[str, str, str, str]
"""Module, name, kind of Sphinx directive, options."""


def groups() -> Iterator[tuple[str, list[Entry]]]:
    """Yield each heading with its names."""
    yield "Hooks", [entry(hooks, name) for name in vars(hooks) if name.startswith("register_")]
    homes = homes_of(recipe_core)
    for title, prefixes in TOPICS.items():
        names = [name for name in recipe_core.__all__ if homes[name].startswith(prefixes)]
        if names:
            yield title, [entry(recipe_core, name) for name in names]
    if missing := [name for name, home in homes.items() if not home.startswith(tuple(sum(TOPICS.values(), ())))]:
        raise SystemExit(f"docs/api.py: no heading for {', '.join(missing)}; add one to TOPICS")
    for name in MODULES:
        module = importlib.import_module(name)
        yield name, [entry(module, public) for public in module.__all__]


def homes_of(module: ModuleType) -> dict[str, str]:
    """Map each public name to the module that defines it, by the import statements of ``module``."""
    homes = {}
    for home, names in re.findall(r"^ *from ([\w.]+) import (\([^)]*\)|.*)$", inspect.getsource(module), re.MULTILINE):
        homes.update(dict.fromkeys(re.findall(r"\w+", names), home))
    return {name: homes[name] for name in module.__all__}


def entry(module: ModuleType, name: str) -> Entry:
    """Return the directive that documents a name."""
    thing = getattr(module, name)
    if inspect.isclass(thing):
        exception = issubclass(thing, BaseException)
        return module.__name__, name, "exception" if exception else "class", "" if exception else "\n   :members:"
    return module.__name__, name, "function" if inspect.isroutine(thing) else "data", ""


def slug(title: str) -> str:
    """Return the file name of a heading's page."""
    return re.sub(r"\W+", "-", title.lower())


def summary(thing: Any, module: ModuleType, name: str) -> str:
    """Return the first sentence of a name's docstring."""
    text = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isroutine(thing) else described(module, name)
    return first_sentence(text)


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    return re.split(r"\n\n|(?<=[.])\s", (text or "").strip(), maxsplit=1)[0].replace("\n", " ")


def cell(text: str) -> str:
    """A sentence in reStructuredText as a cell of a table in Markdown."""
    return re.sub(r":\w+:`[~]?([^`<>]*?)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")


def described(module: ModuleType, name: str) -> str:
    """Return the string below the definition of a constant."""
    home = importlib.import_module(homes_of(module)[name])
    found = re.search(rf'^{name}\b[^\n]*=[^\n]*\n"""(.*?)"""', inspect.getsource(home), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def page(link: Callable[[str], str]) -> str:
    """Return the page docs/reference/api.md; ``link`` gives a name of :mod:`recipe_core` with its fields."""
    parts = [HEAD]
    for title, members in groups():
        rows = ["| name | |", "|---|---|"]
        for owner, name, *_ in members:
            module = importlib.import_module(owner)
            text = cell(summary(getattr(module, name), module, name))
            if not text:
                raise SystemExit(f"docs/api.py: {owner}.{name} has no docstring, and every public name needs one")
            rows.append(f"| {link(name) if owner == 'recipe_core' else f'`{name}`'} | {text} |")
        named = f"Import these from `{title}`:\n\n" if title in MODULES else ""
        parts.append(f"## {f'`{title}`' if title in MODULES else title}\n\n{named}" + "\n".join(rows))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def rooms() -> Iterator[tuple[str, list[tuple[str, ast.ClassDef]]]]:
    """Each folder of the core, and each other package, with its classes and their modules."""
    found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for source in (ROOT / "core" / "src", ROOT / "csrc" / "python", *sorted(ROOT.glob("plugins/*/src"))):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            if "templates" not in parts:
                module = ".".join(parts).removesuffix(".__init__")
                room = ".".join(module.split(".")[: 2 if parts[0] == "recipe_core" else 1])
                found.setdefault(room, []).extend((module, one) for one in classes_of(path))
    yield from ((room, members) for room, members in found.items() if members)


def classes_of(path: Path) -> Iterator[ast.ClassDef]:
    """The classes of a source, without those inside of functions."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.ClassDef):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes[:0] = ast.iter_child_nodes(node)


def classes_page() -> str:
    """The page docs/reference/classes.md."""
    parts = [CLASSES_HEAD]
    for room, members in rooms():
        rows = ["| class | meaning | module |", "|---|---|---|"]
        for module, node in members:
            text = cell(first_sentence(ast.get_docstring(node)))
            if not text and not node.name.startswith("_"):
                raise SystemExit(f"docs/api.py: the public class {module}.{node.name} has no docstring")
            rows.append(f"| `{node.name}` | {text} | `{module}` |")
        parts.append(f"## `{room}`\n\n" + "\n".join(rows))
    return "\n\n".join(part.strip() for part in parts) + "\n"
