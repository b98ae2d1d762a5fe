"""Shell completion: names of recipes and variants, settings, and values where there are few."""

from __future__ import annotations

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
from recipe_core.hooks.kinds import PARTS, PartKind
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Recipe, Use
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.parts import AUTO
from recipe_core.settings.sections import IN_TRAIN, split_name
from recipe_core.settings.values import choices, paths


def script(command: click.Command, shell: str, variable: str) -> str:
    """Return the script by which a shell asks ``command`` for completions, through the environment ``variable``."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    return kind(command, {}, "recipe", variable).source()


def complete_arguments(arguments: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return the completions of ``incomplete``, given the other ``arguments`` of the line."""
    try:
        registry = load()
        targets = [argument for argument in arguments if "=" not in argument]
        if "=" in incomplete:
            texts = _values(registry, arguments, incomplete.partition("=")[0])
        elif targets:
            texts = (f"{path}=" for path in settings_on(registry, arguments))
        elif os.sep in incomplete or incomplete.endswith(".yaml"):
            return [CompletionItem(incomplete, type="file")]
        else:
            texts = _recipes(registry, incomplete)
        return [CompletionItem(text) for text in texts if text.startswith(incomplete)]
    except RecipeError:  # a mistake in the line, which the command itself reports
        return []


def _recipes(registry: Registry, incomplete: str) -> Iterator[str]:
    """Yield recipes, and the variants of a recipe once its name is complete."""
    for name in registry.names("recipe"):
        yield name
        if incomplete.startswith(name):
            yield from (f"{name}:{variant}" for variant in registry.get("recipe", name).variants)


def _recipe(registry: Registry, arguments: Sequence[str]) -> Recipe | None:
    target = next((argument for argument in arguments if "=" not in argument), "")
    name = split_name(target)[0]
    return registry.get("recipe", name) if name in registry.names("recipe") else None


def settings_on(registry: Registry, arguments: Sequence[str]) -> dict[str, Any]:
    """Map the path of each setting that a line may change to its declared type; the line chooses the parts."""
    declared: dict[str, Any] = {}
    recipe = _recipe(registry, arguments)
    overrides = fill.overrides([argument for argument in arguments if "=" in argument], [])
    for kind in PARTS:
        in_train = overrides.get("train", {}).get(kind) if kind in IN_TRAIN else None
        name = overrides.get(kind, {}).get("use") or in_train or (_default_part(recipe, kind) if recipe else None)
        declared[kind] = None
        if name in registry.names(kind):
            declared |= paths(registry.get(kind, name).config, kind)
    return declared | paths(type(recipe.train) if recipe else Train, "train")


def _default_part(recipe: Recipe, kind: PartKind) -> str:
    use: Use | None = getattr(recipe, kind)
    return use.name if use is not None else str(getattr(recipe.train, kind))


def _values(registry: Registry, arguments: Sequence[str], path: str) -> Iterator[str]:
    section = path.removesuffix(".use")
    for kind in PARTS:
        if section == kind or (kind in IN_TRAIN and section == f"train.{kind}"):
            names = registry.names(kind)
            yield from (f"{path}={name}" for name in ([AUTO, *names] if kind == "engine" else names))
    yield from (f"{path}={value}" for value in choices(settings_on(registry, arguments).get(path)))


class _Bash(BashComplete):
    """Completion for bash, which splits ``gpt:tiny`` and ``train.lr=1`` at COMP_WORDBREAKS; click's does not.

    The whole line is read, and each reply is cut to the part that bash takes for the last word.
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
        return ShellComplete.source(self)  # click would start bash to ask for its version

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        arguments = split_arg_string(line)[1:]
        incomplete = arguments.pop() if arguments and not line[-1:].isspace() else ""
        return arguments, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        _, incomplete = self.get_completion_args()
        breaks = [sign for sign in ":=" if sign in os.environ.get("COMP_WORDBREAKS", ":=")]
        known = 1 + max((incomplete.rfind(sign) for sign in breaks), default=-1)
        return f"{item.type},{item.value[known:]}"


add_completion_class(_Bash)
