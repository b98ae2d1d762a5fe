"""Checks without PyTorch: names, settings, imports, variants."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from contextlib import ExitStack, suppress

import click

from recipe_core.cli.commands.group import load_command
from recipe_core.data.prepare.executors.schedule import submitting
from recipe_core.errors import LaunchError
from recipe_core.hooks.kinds import Contribution
from recipe_core.hooks.specs import EngineSpec, Recipe, Spec, load
from recipe_core.hooks.specs.command import CORE_COMMANDS, CommandSpec
from recipe_core.hooks.specs.executor import ExecutorRun, ExecutorSpec, PartTask
from recipe_core.hooks.static.resolve import target_problems
from recipe_core.hooks.static.resolve import targets as resolve_targets
from recipe_core.settings.job import resolve
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
HEAVY = ("torch", "numpy", "transformers")
_SECONDS = 100.0
"""Time limit of an executor for a short command."""
LIGHT = ("claims", "problems", "environment", "one_process", "precompile", "findings")
"""Functions of an engine that are called before a run."""


def contributes(plugin: Plugin) -> str:
    """Check that the plugin contributes something: with a misspelt hook every other check would pass."""
    if not plugin.contributions:
        raise FailedCheck(f"{plugin.module} returns nothing from its hooks; is @hookimpl above each register_...?")
    return f"{len(plugin.contributions)} contributions"


def imports_no_torch(plugin: Plugin) -> str:
    """Check that the plugin's module, which every command imports, imports no heavy library."""
    if heavy := _imported([plugin.module]):
        raise FailedCheck(
            f"{plugin.module} imports {', '.join(heavy)}, for which every command waits; import it in the functions "
            "that the contributions name"
        )
    return plugin.module


def name_and_summary(plugin: Plugin, item: Contribution) -> str:
    """Check that the name needs no quotes in a shell, and that there is a summary for ``recipe ls``."""
    if not NAME.fullmatch(item.name):
        raise FailedCheck(f"name: {item.name!r} holds more than small letters, digits, '_', '-' and '.'")
    if not item.summary or "\n" in item.summary:
        raise FailedCheck(f"summary: expected one line for `recipe ls`, got {item.summary!r}")
    return ""


def settings(plugin: Plugin, spec: Spec) -> str:
    """Check that the settings are a frozen dataclass with usable defaults, as ``layout=NAME`` needs."""
    if not dataclasses.is_dataclass(spec.config):
        raise FailedCheck(f"config: expected a frozen dataclass, got {spec.config!r}")
    try:
        value = spec.config()
    except (TypeError, ValueError) as error:
        raise FailedCheck(f"config: its defaults are not usable: {error}") from error
    for field in dataclasses.fields(value):
        with suppress(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
            raise FailedCheck(f"config: {spec.config.__name__} is not frozen; write @dataclass(frozen=True)")
    return f"{len(dataclasses.fields(value))} settings"


def targets(plugin: Plugin, item: Contribution) -> str:
    """Check that each ``package.module:function`` can be imported and takes the arguments of its hook."""
    if problems := target_problems(item):
        raise FailedCheck("; ".join(problems))
    named = [(key, target) for key, target, _ in resolve_targets(item)]
    for key, target in named:
        if not callable(load(target, f"{item.name}.{key}")):
            raise FailedCheck(f"{key}: {target} is not a function; name one")
    if not named:
        raise SkippedCheck("it names no code")
    return ", ".join(key for key, _ in named)


def light_functions(plugin: Plugin, spec: EngineSpec) -> str:
    """Check that functions of an engine that are called before a run import no torch."""
    modules = sorted({getattr(spec, key).partition(":")[0] for key in LIGHT} - {""})
    if heavy := [name for name in _imported(modules) if name == "torch"]:
        raise FailedCheck(f"{' or '.join(modules)} imports {heavy[0]}; keep what {', '.join(LIGHT)} name light")
    return ", ".join(modules)


def exit_codes(plugin: Plugin, spec: ExecutorSpec) -> str:
    """Check that an executor runs tasks, gives their exit codes, and leaves their output in the logs."""
    folder = plugin.folder / "executors" / spec.name
    folder.mkdir(parents=True)
    expected = {("--version",): (0, "recipe, version"), ("prepare", "nothing"): (2, "nothing named 'nothing'")}
    tasks = [
        PartTask(number=number, arguments=arguments, folder=folder, log=folder / f"{number}.log")
        for number, arguments in enumerate(expected, 1)
    ]
    run = ExecutorRun(name="check", address="", folder=folder)
    with ExitStack() as stack:
        try:
            submit = stack.enter_context(submitting(spec, spec.config(), run))
        except LaunchError as error:
            raise SkippedCheck(f"it cannot be tried here: {error}") from error
        codes = [future.result(timeout=_SECONDS) for future in submit(tasks)]
    for task, code, (wanted, text) in zip(tasks, codes, expected.values(), strict=True):
        log = task.log.read_text(encoding="utf-8", errors="replace") if task.log.exists() else ""
        if code != wanted or text not in log:
            raise FailedCheck(
                f"{spec.build}: `recipe {' '.join(task.arguments)}` gave {code!r} and the log {log[-200:]!r}; expected "
                f"{wanted} and {text!r}: a worker calls recipe_core.data.prepare.run_part(task)"
            )
    return f"{len(tasks)} tasks"


def command_help(plugin: Plugin, spec: CommandSpec) -> str:
    """Check that a command has help, shown without PyTorch, and a name that the core leaves to it."""
    if spec.name in CORE_COMMANDS:
        raise FailedCheck(
            f"name: `recipe {spec.name}` is the core's; choose another, such as {plugin.name}-{spec.name}"
        )
    command = load_command(spec)
    if not command.get_short_help_str():
        raise FailedCheck(f"{spec.build}: it has no help; write what it does in the function's docstring")
    if heavy := _imported([spec.build.partition(":")[0]]):
        raise FailedCheck(
            f"{spec.build}: its module imports {', '.join(heavy)}, for which --help and completion wait; import it in "
            "the function"
        )
    with click.Context(command, info_name=f"recipe {spec.name}") as context:
        return f"{len(command.get_params(context))} arguments and options"


def variants(plugin: Plugin, recipe: Recipe) -> str:
    """Check that every variant resolves, and that ``tiny`` is one of them."""
    if "tiny" not in recipe.variants:
        raise FailedCheck("variants: there is no 'tiny', which trains in seconds on any machine")
    names = [recipe.name, *(f"{recipe.name}:{variant}" for variant in recipe.variants)]
    for name in names:
        resolve(plugin.registry, name)
    return ", ".join(recipe.variants)


def _imported(modules: list[str]) -> list[str]:
    """Modules of :data:`HEAVY` that importing ``modules`` in a new process loads."""
    code = f"import sys, {', '.join(modules) or 'sys'}; print(*set({HEAVY!r}) & sys.modules.keys(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedCheck(f"{', '.join(modules)} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    return sorted(done.stdout.split())
