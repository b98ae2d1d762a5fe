"""Generate the pages of docs/reference from the code: settings, exit codes, public names, classes, pictures of
roles, and the mistakes of plugins and users.

With --check, only report pages that are out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import api
import fields
import plugin_errors
import roles

from recipe_core.errors import ExitCode
from recipe_core.hooks.kinds import ListedKind, PartKind
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Dataset, Recipe
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher
from recipe_core.hooks.train import Train
from recipe_core.launch.launchers.site import Site
from recipe_core.settings.describe import meanings, text_of
from recipe_core.settings.sections import LISTS

REFERENCE = Path(__file__).parent / "reference"
PLUGINS = sorted(Path(__file__).parents[1].glob("plugins/*/pyproject.toml"))
HEAD = """\
<!-- Written by docs/generate.py from the settings classes; change those and run `nox -s docs -- --write`. -->

# Settings

Give a setting on the command line as `section.setting=value`, or in a YAML file, in the form that `recipe show` prints.
"""
SITE_HEAD = """\
<!-- Written by docs/generate.py from the settings classes; change those and run `nox -s docs -- --write`. -->

# The site profile

A site profile is a YAML file that describes the target machines of `recipe submit`, `recipe check` and
`recipe prepare --on`. Its path is `--site FILE`, else the variable `RECIPE_SITE`, else `site.yaml` in your
configuration folder (on Linux `~/.config/recipe`). Unknown keys are refused. It holds these settings, and a section for
each launcher and executor that you use:
"""
CODES_HEAD = """\
<!-- Written by docs/generate.py from recipe_core.errors.ExitCode; change that and run `nox -s docs -- --write`. -->

# Exit codes

Every command, and each rank of a run, exits with one of these codes. `results.json` holds the run's as `exit_code`.

"""
CODES_TAIL = """
1 and 2 are as in `diff` and `grep`; from 64 on they are the nearest of BSD's `sysexits.h`. A job script only needs to
recognise 75: run the same command again, and the run continues. After 74, make room first. After 1, 2, 65 and 70, the
same command fails again in the same way.

With `--processes`, the command exits with the code of the first rank that failed by itself, or with 75 if none did and
a rank was stopped or lost another. `srun` exits with the highest code of its tasks, and `torchrun` with 1 if any rank
did not exit with 0. There, `recipe status RUN` names the rank that was the cause, and `recipe status RUN --again`
exits with 0 if the run can continue.
"""
KINDS: dict[PartKind | ListedKind, str] = {
    "model": "Models",
    "data": "Datasets",
    "layout": "Layouts",
    "checkpoint": "Checkpoint formats",
    "engine": "Engines",
    "loss": "Losses",
    "optimizer": "Optimizers",
    "schedule": "Schedules",
    "tracker": "Trackers",
    "callback": "Callbacks",
    "wrapper": "Data wrappers",
    "transform": "Transforms",
    "evaluation": "Evaluations",
}
NOTES = {
    "engine": (
        "`engine=auto`, the default, selects the engine that claims the machine: `xla` if PyTorch/XLA reaches its "
        "accelerator, else `native`. `train.engine=NAME` is the same as `engine=NAME`.",
    ),
    "loss": ("`loss=model`, the default, is the model's own loss.",),
    "optimizer": (
        "`optimizer=NAME` is the same as `train.optimizer=NAME`. Settings that optimizers share are in the section "
        "`train`; `optimizer.betas=0.9,0.95` is the same as `train.betas=0.9,0.95`.",
    ),
    "schedule": (
        "`schedule=NAME` is the same as `train.schedule=NAME`, and `schedule.min_lr=1e-5` the same as "
        "`train.min_lr=1e-5`.",
    ),
    "tracker": ("`train.trackers=NAME,NAME` selects trackers; their settings are `tracker.NAME.setting`.",),
    "callback": (
        "`callbacks=NAME,NAME` selects callbacks, in this order, and is the same as `train.callbacks=NAME,NAME`; their "
        "settings are `callback.NAME.setting`. [Callbacks](../how-to/tune/callbacks.md) shows each of them in a run.",
    ),
    "wrapper": (
        "`wrappers=NAME,NAME` puts wrappers around the dataset, the first one innermost, and is the same as "
        "`data.wrappers=NAME,NAME`; their settings are `wrapper.NAME.setting`. [Filter, mix and change "
        "data](../how-to/filter-and-mix.md) shows them in a run.",
    ),
    "transform": (
        "`transforms=NAME,NAME` selects transforms, in this order, and is the same as `train.transforms=NAME,NAME`; "
        "their settings are `transform.NAME.setting`. [LoRA and frozen parameters](../how-to/tune/lora.md) shows each "
        "of them in a run.",
    ),
    "evaluation": (
        "`evaluations=NAME,NAME` selects evaluations, in this order, and is the same as `train.evaluations=NAME,NAME`; "
        "their settings are `evaluation.NAME.setting`. [Evaluations](../how-to/tune/evaluations.md) shows each of them "
        "in a run.",
    ),
}
"""Paragraphs above the contributions of a kind."""


def ours() -> Registry:
    """Load the core and the plugins from the sources of this repository, not from installed packages."""
    sys.path[:0] = [str(path.parent / "src") for path in PLUGINS]
    modules = {"core": "recipe_core.plugin"} | {
        path.parent.name: f"recipe_{path.parent.name}.plugin" for path in PLUGINS
    }
    return load([(name, functools.partial(importlib.import_module, module)) for name, module in modules.items()])


def page(registry: Registry) -> str:
    """Return the page of settings."""
    parts = [HEAD, "## train", "Settings of training; every recipe has this section.", table(Train)]
    for kind, title in KINDS.items():
        parts += [f"## {title}", *NOTES.get(kind, ())]
        for spec in (registry.get(kind, name) for name in registry.names(kind)):
            head = f"{LISTS[f'{kind}s']}.{kind}s={spec.name}" if f"{kind}s" in LISTS else f"{kind}={spec.name}"
            uses = getattr(spec, "uses", ())
            used = f"It uses these settings of `train`: {', '.join(f'`{name}`' for name in uses)}." if uses else ""
            parts += [f"### {head}", sentence(spec.summary), *filter(None, [used]), table(spec.config)]
    parts += [
        "## recipe prepare",
        "Settings of data preparation; give them as `setting=value`. `part=K/N` of each makes one part of N, see "
        "[several machines](../how-to/prepare-data.md#on-several-machines).",
    ]
    for spec in (registry.get("data", name) for name in registry.names("data")):
        if isinstance(spec, Dataset) and spec.prepare:
            parts += [f"### recipe prepare {spec.name}", table(spec.prepare_config)]
    parts.append("## Recipes")
    for recipe in (registry.get("recipe", name) for name in registry.names("recipe")):
        parts += [f"### {recipe.name}", sentence(recipe.summary), composition(recipe)]
        if type(recipe.train) is not Train:
            parts += ["Its section `train` adds these settings, or changes their defaults:"]
            parts += [table(type(recipe.train), Train)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def sentence(summary: str) -> str:
    """Return a summary as a sentence."""
    first = summary.partition(" ")[0]
    return f"{summary}." if "." in first else f"{summary[:1].upper()}{summary[1:]}."


def table(settings: type, known: type | None = None) -> str:
    """Return a table of a dataclass's settings; of a subclass of ``known``, only those that it declares."""
    fields = [f for f in dataclasses.fields(settings) if known is None or f.name in settings.__annotations__]
    if not fields:
        return "No settings."
    meaning, kinds = meanings(settings), typing.get_type_hints(settings)
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        members = typing.get_args(kinds[field.name]) if typing.get_origin(kinds[field.name]) is Literal else ()
        kind = ", ".join(f"`{member}`" for member in members) or str(field.type).replace("|", "\\|")
        value = default(field).replace("|", "\\|")  # or the cell of the table would end there
        shown = f"`{value}`" if value else ""
        rows.append(f"| `{field.name}` | {kind} | {shown} | {meaning.get(field.name, '')} |")
    return "\n".join(rows)


def default(field: dataclasses.Field[Any]) -> str:
    """Return the default as a command line argument."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value) if isinstance(value, tuple) else value)


def exit_codes() -> str:
    """Return the page of exit codes."""
    tree = ast.parse(inspect.getsource(ExitCode)).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = ["| exit code | name | meaning |", "|---|---|---|"]
    for line, after in itertools.pairwise(tree.body):
        if isinstance(line, ast.Assign) and isinstance(after, ast.Expr):
            name = line.targets[0].id if isinstance(line.targets[0], ast.Name) else ""
            rows.append(f"| {ExitCode[name].value} | `{name}` | {text_of(after)} |")
    rows.append("| 128 + N | | A process was ended at once by signal N, or by the second Ctrl-C (130). |")
    return CODES_HEAD + "\n".join(rows) + "\n" + CODES_TAIL


def site_profile(registry: Registry) -> str:
    """Return the page of the site profile."""
    parts = [SITE_HEAD, table(Site)]
    users: list[Launcher | ExecutorSpec] = [registry.get("launcher", name) for name in registry.names("launcher")]
    users += [registry.get("executor", name) for name in registry.names("executor")]
    for name in dict.fromkeys(user.name for user in users):
        own = [user for user in users if user.name == name]
        if any(dataclasses.fields(user.config) for user in own):
            parts += [f"## {name}", *(sentence(user.summary) for user in own), table(own[0].config)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def composition(recipe: Recipe) -> str:
    """Return the parts of a recipe and the changes of its variants, as a list."""
    parts = {"model": recipe.model, "data": recipe.data, "layout": recipe.layout, "checkpoint": recipe.checkpoint}
    lines = [f"- {kind}: `{use.name}`{written(use.settings)}" for kind, use in parts.items()]
    train = {
        f.name: getattr(recipe.train, f.name)
        for f in dataclasses.fields(recipe.train)
        if getattr(recipe.train, f.name) != f.default
    }
    lines.append(f"- train:{written(train)}")
    if recipe.processes > 1:
        lines.append(f"- starts {recipe.processes} processes by default")
    for name, sections in recipe.variants.items():
        extends = f" extends `{sections['extends']}`;" if "extends" in sections else ""
        changed = [f"{s}:{written(v)}" for s, v in sections.items() if isinstance(v, Mapping)]
        if "processes" in sections:
            changed.append(f"processes: {sections['processes']}")
        lines.append(f"- variant `{recipe.name}:{name}`:{extends} {'; '.join(changed)}")
    return "\n".join(lines)


def written(settings: Mapping[str, Any]) -> str:
    """Return settings as command line arguments."""
    words = [f"{k}={list(v) if isinstance(v, tuple) else v}" for k, v in settings.items()]
    return f" `{' '.join(words)}`" if words else ""


def main(words: list[str]) -> int:
    """Write or check the pages, and return the exit code."""
    pages = {
        REFERENCE / "settings.md": page(ours()),
        REFERENCE / "exit-codes.md": exit_codes(),
        REFERENCE / "site-profile.md": site_profile(ours()),
        REFERENCE / "api.md": api.page(fields.link),
        REFERENCE / "fields.md": fields.page(),
        REFERENCE / "classes.md": api.classes_page(),
        REFERENCE / "plugin-errors.md": plugin_errors.page(),
        REFERENCE / "mistakes.md": plugin_errors.users_page(),
        **roles.pages(),
    }
    if "--check" in words:
        other = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in other:
            print(f"{path}: is not what the code says; run `nox -s docs -- --write`")
        return 1 if other else 0
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
