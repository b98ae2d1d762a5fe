"""Whatever the pages on migration name exists: settings with their values, layouts, formats, options and commands."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from recipe_core.cli.main import cli
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.train import Train
from recipe_core.settings.job import resolve

PAGES = sorted((Path(__file__).parents[2] / "docs" / "migration").glob("*.md"))
KINDS = ("model", "data", "layout", "checkpoint")
SETTING = re.compile(r"(train|model|data|layout|checkpoint)(\.\w+)?(=.*)?")
RECIPES = {
    "bert.md": "bert_dp", "gpt.md": "megatron_gpt:6.7b", "trainers.md": "megatron_gpt",
    "xla-to-native.md": "megatron_gpt",
}  # fmt: skip


def words() -> Iterator[tuple[str, str]]:
    """Each word that stands in backticks anywhere on a page and could be one of ours."""
    for page in PAGES:
        for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
            for child in token.children or ():
                if child.type == "code_inline":
                    yield page.name, child.content


def settings() -> list[tuple[str, str]]:
    return [(page, word) for page, text in words() for word in text.split() if SETTING.fullmatch(word)]


def cells(page: Path) -> Iterator[list[str]]:
    """The rows of the page's tables."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| flag") and not line.startswith("| PyTorch"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load()


def fields(registry: Registry, section: str) -> dict[str, list[str]]:
    """The settings of a section, and which parts have each; those of ``train``, of any recipe, have no part."""
    if section == "train":
        kinds = {Train, *(type(registry.get("recipe", name).train) for name in registry.names("recipe"))}
        return {field.name: [] for kind in kinds for field in dataclasses.fields(kind)}
    found: dict[str, list[str]] = {}
    for name in registry.names(section):  # type: ignore[arg-type]
        for field in dataclasses.fields(registry.get(section, name).config):  # type: ignore[call-overload]
            found.setdefault(field.name, []).append(name)
    return found


def test_the_pages_name_many_settings() -> None:
    assert len(PAGES) == 5
    assert len(settings()) > 100


def test_every_setting_exists(registry: Registry) -> None:
    for page, word in settings():
        section, name, value = SETTING.fullmatch(word).groups()  # type: ignore[union-attr]
        if name is not None:
            assert name[1:] in fields(registry, section), f"{page}: {word}"
        elif value is not None:
            assert value[1:] in registry.names(section), f"{page}: {word}"  # type: ignore[arg-type]


def test_every_value_that_is_shown_is_taken(registry: Registry) -> None:
    """Those of one line in backticks together: some need each other."""
    taken = 0
    for page, text in words():
        valued = [word for word in text.split() if SETTING.fullmatch(word) and "=" in word]
        if valued:
            resolve(registry, RECIPES[page], [*implied(registry, RECIPES[page], valued), *valued])
            taken += len(valued)
    assert taken > 30


def implied(registry: Registry, recipe: str, valued: list[str]) -> Iterator[str]:
    """The part that a setting belongs to, where the recipe has another, and the precision that bf16 weights need."""
    own = {getattr(registry.get("recipe", recipe.partition(":")[0]), kind).name for kind in KINDS}
    for word in valued:
        section, _, name = word.partition("=")[0].partition(".")
        having = fields(registry, section).get(name, [])
        if having and not own & set(having) and not any(one.startswith(f"{section}=") for one in valued):
            yield f"{section}={having[-1] if 'offload' not in name else 'fsdp'}"
    if "optimizer_states" in " ".join(valued) and "precision" not in " ".join(valued):
        yield "train.precision=bf16"


def test_options_and_commands_of_the_second_column_exist() -> None:
    options = {option for command in cli.commands.values() for parameter in command.params for option in parameter.opts}
    seen = 0
    for page in PAGES:
        for row in cells(page):
            for word in re.findall(r"`(--[\w-]+)", row[1] if page.name != "xla-to-native.md" else row[-1]):
                assert word in options, f"{page.name}: {word}"
                seen += 1
    assert seen > 5
    for page, text in words():
        if text.startswith("recipe "):
            name, command, _ = cli.resolve_command(click.Context(cli), text.split()[1:])
            assert command is not None, f"{page}: {text} ({name})"


def test_formats_and_variants_that_are_named_exist(registry: Registry) -> None:
    for page, text in words():
        for before, after in itertools.pairwise(text.split()):
            if before == "--to":
                assert after in registry.names("checkpoint"), f"{page}: {text}"
    for name in ("nxd", "hf", "xser", "megatron", "neuron_bert", "dcp"):
        assert name in registry.names("checkpoint")
    bert, gpt = registry.get("recipe", "bert_dp"), registry.get("recipe", "megatron_gpt")
    assert {"large-phase1", "large-phase2", "large-lamb-phase1", "large-lamb-phase2"} <= bert.variants.keys()
    assert {"6.7b", "6.7b-multinode"} <= gpt.variants.keys()


def test_a_flag_stands_once_in_each_table() -> None:
    for page in PAGES:
        seen: list[str] = []
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("|---"):
                seen = []
            elif line.startswith("| ") and not line.startswith("| flag"):
                flags = re.findall(r"`([^`]+)`", line.split("|")[1])
                assert not set(flags) & set(seen), f"{page.name}: {line}"
                seen += flags
