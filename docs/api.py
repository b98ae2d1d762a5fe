"""The public names by topic, for the reference on docs/reference/api.md and in the site."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import recipe_core
from recipe_core.hooks import hooks

MODULES = ("recipe_core.data.prepare", "recipe_core.data.text", "recipe_core.testing")
"""Public modules beside :mod:`recipe_core` itself."""
TOPICS = {
    "Contributions": ("recipe_core.hooks.",),
    "Errors": ("recipe_core.errors",),
    "A run and its layout": ("recipe_core.layouts.", "recipe_core.engine.loader"),
    "Operations of models": ("recipe_core.ops.",),
    "Checkpoints": ("recipe_core.checkpoint.",),
    "Engines": ("recipe_core.engine.environment", "recipe_core.engine.protocol"),
    "Trackers": ("recipe_core.train.",),
    "Settings and files": ("recipe_core.settings.", "recipe_core.files"),
}
"""Where the names of :mod:`recipe_core` are defined, by the heading under which they stand."""
HEAD = """\
<!-- Written by docs/generate.py from the public names; change those and run `nox -s docs -- --write`. -->

# Public names

Everything that a plugin needs is a name of `recipe_core`: `from recipe_core import Batch, Model, causal_attention`.
Names that need PyTorch are imported at the first use, so a `plugin.py` may import from there. Three modules beside it
are public: `recipe_core.data.prepare` and `recipe_core.data.text`, for datasets with files of their own, and
`recipe_core.testing`.

**The promise.** These names belong to API 1. Within one version, names, arguments, fields and hooks are only added: a
plugin that works with one release works with every later one. Other modules of the core may change with every release.
A plugin may say which version it was made for, with `API = 1` in the module that its entry point names; without it, the
version is 1. If a plugin was made for a newer version than the installed core has, it is left out with one message that
says so, and other plugins work.
"""
Entry = tuple[str, str, str, str]
"""Module, name, kind of Sphinx's directive and its options."""


def groups() -> Iterator[tuple[str, list[Entry]]]:
    """Each heading with its names."""
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
    """The module in which each public name is defined, by the import statements of ``module``."""
    homes = {}
    for home, names in re.findall(r"^ *from ([\w.]+) import (\([^)]*\)|.*)$", inspect.getsource(module), re.MULTILINE):
        homes.update(dict.fromkeys(re.findall(r"\w+", names), home))
    return {name: homes[name] for name in module.__all__}


def entry(module: ModuleType, name: str) -> Entry:
    """The directive that documents a name."""
    thing = getattr(module, name)
    if inspect.isclass(thing):
        exception = issubclass(thing, BaseException)
        return module.__name__, name, "exception" if exception else "class", "" if exception else "\n   :members:"
    return module.__name__, name, "function" if inspect.isroutine(thing) else "data", ""


def slug(title: str) -> str:
    """The name of a heading's page."""
    return re.sub(r"\W+", "-", title.lower())


def summary(thing: Any, module: ModuleType, name: str) -> str:
    """The first sentence about a name."""
    text = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isroutine(thing) else described(module, name)
    return re.split(r"\n\n|(?<=[.])\s", (text or "").strip(), maxsplit=1)[0].replace("\n", " ")


def described(module: ModuleType, name: str) -> str:
    """The string below the definition of a constant."""
    home = importlib.import_module(homes_of(module)[name])
    found = re.search(rf'^{name}\b[^\n]*=[^\n]*\n"""(.*?)"""', inspect.getsource(home), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def page() -> str:
    """The page docs/reference/api.md."""
    parts = [HEAD]
    for title, members in groups():
        rows = ["| name | |", "|---|---|"]
        for owner, name, *_ in members:
            module = importlib.import_module(owner)
            text = summary(getattr(module, name), module, name)
            text = re.sub(r":\w+:`[~]?([^`<>]*?)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")
            if not text:
                raise SystemExit(f"docs/api.py: {owner}.{name} has no docstring, and every public name needs one")
            rows.append(f"| `{name}` | {text} |")
        named = f"Import these from `{title}`:\n\n" if title in MODULES else ""
        parts.append(f"## {f'`{title}`' if title in MODULES else title}\n\n{named}" + "\n".join(rows))
    return "\n\n".join(part.strip() for part in parts) + "\n"
