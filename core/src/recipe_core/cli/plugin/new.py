"""Write the package of a new plugin. No torch here."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from recipe_core.errors import ConfigError
from recipe_core.files import atomic_folder, require_local
from recipe_core.hooks.kinds import KINDS, NOUNS
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs.command import CORE_COMMANDS

SENTENCES: Mapping[str, str] = {
    "model": "a decoder-only transformer, and sequences from which it learns to count.",
    "dataset": "text files as sequences of bytes, prepared by `recipe prepare`, and a small model that reads them.",
    "layout": "a data-parallel layout of its own, and a small model to try it on.",
    "format": "a checkpoint format of one file, and a small model to try it on.",
    "loss": "the focal loss, and a small model to try it on.",
    "optimizer": "stochastic gradient descent with momentum, and a small model to try it on.",
    "schedule": "warm-up and a fall with the square root of the step, and a small model to try it on.",
    "tracker": "metrics as a table of comma-separated values, and a small model to try it on.",
    "transform": "a trained factor for each output of frozen linear layers, and a small model to try it on.",
    "wrapper": "a filter and a change of samples, and small data to try them on.",
    "callback": "the end of a run whose loss is low enough, and a small model to try it on.",
    "evaluation": "how far probabilities are from how often a model is right, and a small model to measure.",
    "engine": "PyTorch on the CPU with a number of threads, and a small model to try it on.",
    "launcher": "runs in the background of this machine, and a small model to try it on.",
    "executor": "parts of `recipe prepare` as processes of low priority, and a small model to try it beside.",
    "command": "`recipe new_plugin`, which prints the settings in which two recipes differ, and a small model.",
}
"""Kinds of plugins, with the description of the package."""
_PACKAGE = {
    "pyproject.toml": "pyproject.toml",
    "noxfile.py": "noxfile.py",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "test.yaml": ".github/workflows/test.yaml",
    "test_conformance.py": "tests/test_conformance.py",
}
"""Files of every package: template and path in the package."""
_CORE_PIN = "recipe-core~=MAJOR.MINOR"
"""Placeholder for the requirement of the core."""
_NAME, _CLASS_NAME = "new_plugin", "NewPlugin"
"""Placeholders for the name in templates: as it is, and in names of classes."""


def new_plugin(registry: Registry, name: str, kind: str) -> Path:
    """Write the package of a plugin ``name`` into a folder of this name, which appears once it is complete.

    Raises:
        ConfigError: the name is invalid or taken, or the folder is not empty.
    """
    identifier = _identifier(registry, name, kind)
    folder = Path(name)
    require_local(folder, "NAME")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not an empty folder; choose another name, or remove it")
    contents = {target: _filled(text, identifier, kind) for target, text in _templates(identifier, kind).items()}
    with atomic_folder(folder) as temporary:
        for target, text in contents.items():
            path = temporary / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder


def _identifier(registry: Registry, name: str, kind: str) -> str:
    identifier = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", identifier) or keyword.iskeyword(identifier):
        raise ConfigError(
            f"{name!r}: expected at most 30 small letters, digits, '-' and '_', a letter first, no word of Python, "
            "such as my-model; the package will be recipe_NAME"
        )
    if identifier in ("core", "index", "plugin"):
        raise ConfigError(f"{name!r}: is a name of recipe's own packages; choose another, such as my-{name}")
    if kind == "command" and identifier in CORE_COMMANDS:
        raise ConfigError(f"{name!r}: is a command of recipe's own; choose another name, such as my-{name}")
    taken = [kind for kind in KINDS if identifier in registry.registrations[kind]]
    if identifier in registry.plugins or taken:
        owner = f"the plugin {identifier!r}" if identifier in registry.plugins else _with_article(NOUNS[taken[0]])
        raise ConfigError(f"{name!r}: {owner} has this name already; choose another, such as my-{name}")
    return identifier


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _templates(identifier: str, kind: str) -> dict[str, str]:
    root = files("recipe_core.cli.plugin") / "templates"
    source = f"src/recipe_{identifier}"
    texts = {target: (root / "package" / file).read_text(encoding="utf-8") for file, target in _PACKAGE.items()}
    texts[f"{source}/__init__.py"] = '"""A plugin of recipe; plugin.py says what is where."""\n'
    texts[f"{source}/py.typed"] = ""
    (own,) = (group / kind for group in root.iterdir() if (group / kind).is_dir())
    folders = [own] if kind in ("model", "dataset") else [own, root / "trial"]
    for file in (file for folder in folders for file in folder.iterdir() if file.name.endswith(".py")):
        where = "tests" if file.name.startswith("test_") else source
        texts[f"{where}/{file.name}"] = file.read_text(encoding="utf-8")
    return texts


def core_pin(version: str) -> str:
    """Return the requirement of the core for a plugin made with its release ``version``.

    It allows later releases up to the next major version, with which the API may change; earlier pre-releases of
    ``version`` only where it is one itself.
    """
    major, minor = re.findall(r"\d+", version)[:2]
    pre_release = re.search(r"\d\.?(a|b|rc|dev)\d", version)
    return f"recipe-core~={major}.{minor}{'.dev0' if pre_release else ''}"


def _filled(text: str, identifier: str, kind: str) -> str:
    title = "".join(word.capitalize() for word in identifier.split("_"))
    text = text.replace("KIND_SENTENCE", SENTENCES[kind]).replace(_CORE_PIN, core_pin(metadata.version("recipe-core")))
    text = text.replace(_NAME, identifier).replace(_NAME.replace("_", "-"), identifier.replace("_", "-"))
    return text.replace(_CLASS_NAME, title)
