"""Completion in a shell: names of recipes and variants, settings, and values where they are few."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from recipe_core.errors import RecipeError
from recipe_core.hooks.registry import PARTS, PartKind, Registry, load
from recipe_core.hooks.specs import Recipe, Use
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.job import IN_TRAIN, split_name
from recipe_core.settings.parts import AUTO
from recipe_core.settings.values import choices, kinds


def script(command: click.Command, shell: str, variable: str) -> str:
    """Return the script with which a shell asks ``command`` for completions, through the environment ``variable``."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    return kind(command, {}, "recipe", variable).source()


def complete_words(words: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return the completions of ``incomplete``, after the other ``words`` about a recipe."""
    try:
        registry = load()
        targets = [word for word in words if "=" not in word]
        if "=" in incomplete:
            texts = _values(registry, words, incomplete.partition("=")[0])
        elif targets:
            texts = (f"{path}=" for path in settings_on(registry, words))
        elif os.sep in incomplete or incomplete.endswith(".yaml"):
            return [CompletionItem(incomplete, type="file")]
        else:
            texts = _recipes(registry, incomplete)
        return [CompletionItem(text) for text in texts if text.startswith(incomplete)]
    except RecipeError:  # a mistake in the line; a completion is no place to say so
        return []


def _recipes(registry: Registry, incomplete: str) -> Iterator[str]:
    """Recipes; the variants of one as soon as its name is there."""
    for name in registry.names("recipe"):
        yield name
        if incomplete.startswith(name):
            yield from (f"{name}:{variant}" for variant in registry.get("recipe", name).variants)


def _recipe(registry: Registry, words: Sequence[str]) -> Recipe | None:
    target = next((word for word in words if "=" not in word), "")
    name = split_name(target)[0]
    return registry.get("recipe", name) if name in registry.names("recipe") else None


def settings_on(registry: Registry, words: Sequence[str]) -> dict[str, Any]:
    """The settings that a line may change, as path -> declared type; those of parts as the line chooses them."""
    declared: dict[str, Any] = {}
    recipe, chosen = _recipe(registry, words), fill.overrides([word for word in words if "=" in word], [])
    for kind in PARTS:
        named = chosen.get("train", {}).get(kind) if kind in IN_TRAIN else None
        name = chosen.get(kind, {}).get("use") or named or (_usual(recipe, kind) if recipe else None)
        declared[kind] = None
        if name in registry.names(kind):
            declared |= _paths(registry.get(kind, name).config, kind)
    return declared | _paths(type(recipe.train) if recipe else Train, "train")


def _usual(recipe: Recipe, kind: PartKind) -> str:
    """The name of a part in the recipe itself."""
    use: Use | None = getattr(recipe, kind)
    return use.name if use is not None else str(getattr(recipe.train, kind))


def _paths(settings: type, parent: str) -> dict[str, Any]:
    """Map ``parent.setting``, for each setting and those inside of it, to its declared type."""
    paths: dict[str, Any] = {}
    for name, kind in kinds(settings).items():
        paths[f"{parent}.{name}"] = kind
        if dataclasses.is_dataclass(kind):
            paths |= _paths(kind, f"{parent}.{name}")  # type: ignore[arg-type]
    return paths


def _values(registry: Registry, words: Sequence[str], path: str) -> Iterator[str]:
    """``path=value`` for each value that may follow."""
    section = path.removesuffix(".use")
    for kind in PARTS:
        if section == kind or (kind in IN_TRAIN and section == f"train.{kind}"):
            names = registry.names(kind)
            yield from (f"{path}={name}" for name in ([AUTO, *names] if kind == "engine" else names))
    yield from (f"{path}={value}" for value in choices(settings_on(registry, words).get(path)))


class _Bash(BashComplete):
    """Bash takes ``gpt:tiny`` and ``train.lr=1`` for several words; click's own script knows nothing of that.

    So the line is read as it stands, and of each answer only the part is given that bash takes for the last word.
    """

    source_template = """\
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            *) COMPREPLY+=("$value"); [[ $value == *= ]] && compopt -o nospace ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1")
}
complete -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        return ShellComplete.source(self)  # without starting bash to ask for its version

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        _, incomplete = self.get_completion_args()
        breaks = [sign for sign in ":=" if sign in os.environ.get("COMP_WORDBREAKS", ":=")]
        known = 1 + max((incomplete.rfind(sign) for sign in breaks), default=-1)
        return f"{item.type},{item.value[known:]}"


add_completion_class(_Bash)
