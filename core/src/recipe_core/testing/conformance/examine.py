"""The checks of every kind of contribution, and the loop over a plugin's contributions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from recipe_core.hooks.kinds import NOUNS, Kind
from recipe_core.testing.conformance import (
    formats,
    layouts,
    light,
    loop_parts,
    measured,
    model,
    samples,
    training,
    wrapped,
)
from recipe_core.testing.conformance.outcome import Outcome, outcome
from recipe_core.testing.conformance.subject import Plugin

Check = Callable[[Plugin, Any], str]
"""Takes the plugin and one of its contributions, returns a note, raises FailedCheck or SkippedCheck."""

OF_PLUGIN: Mapping[str, Callable[[Plugin], str]] = {
    "contributes": light.contributes,
    "imports no torch": light.imports_no_torch,
}
_OF_ALL: Mapping[str, Check] = {"name and summary": light.name_and_summary, "targets": light.targets}
_OF_PARTS: Mapping[str, Check] = {**_OF_ALL, "settings": light.settings}
_OF_UPDATES: Mapping[str, Check] = {"steps alike": loop_parts.steps_alike, "same after a stop": loop_parts.resumes}
OF_KIND: Mapping[Kind, Mapping[str, Check]] = {
    "model": {
        **_OF_PARTS,
        "facts": model.facts_agree,
        "tensor plan": model.plan_fits,
        "stages": model.stages_fit,
        "documents": model.documents_apart,
        "initial values": model.initial_values,
        "loss": model.loss_of_a_batch,
        "activations": model.activations,
        "adapters": model.adapters,
    },
    "data": {**_OF_PARTS, "prepare": samples.prepared_alike, "parts": samples.parts_merge_alike},
    "layout": {**_OF_PARTS, "mesh": layouts.mesh, "trains alike": layouts.trains_alike},
    "checkpoint": {**_OF_PARTS, "round trip": formats.round_trip, "resumes from it": formats.resumes},
    "engine": {**_OF_PARTS, "light functions": light.light_functions},
    "launcher": _OF_PARTS,
    "executor": {**_OF_PARTS, "exit codes": light.exit_codes},
    "loss": _OF_PARTS,
    "optimizer": {**_OF_PARTS, **_OF_UPDATES},
    "schedule": {**_OF_PARTS, "rates": loop_parts.schedule_rates},
    "tracker": {**_OF_PARTS, "records": loop_parts.tracker_records},
    "callback": {**_OF_PARTS, **_OF_UPDATES},
    "command": {**_OF_ALL, "help": light.command_help},
    "wrapper": {**_OF_PARTS, "same samples": wrapped.same_samples, "any order": wrapped.any_order},
    "transform": {**_OF_PARTS, **_OF_UPDATES},
    "evaluation": {**_OF_PARTS, "changes nothing": measured.changes_nothing, "same numbers": measured.same_numbers},
    "recipe": {
        **_OF_ALL,
        "variants": light.variants,
        "same samples": samples.same_for_every_world_size,
        "any order": samples.same_in_any_order,
        "trains": training.trains,
        "resumes": training.resumes,
        "layouts": training.layouts_agree,
    },
}
"""Checks by name, the slowest last."""
CHECKS = tuple(dict.fromkeys([*OF_PLUGIN, *(name for checks in OF_KIND.values() for name in checks)]))
"""The names of all checks."""


def examine(
    plugin: Plugin, only: Collection[str] = CHECKS, announce: Callable[[str, str], None] = lambda subject, check: None
) -> Iterator[Outcome]:
    """Check the plugin, then each of its contributions; yield each outcome as soon as it is known.

    Args:
        plugin: the plugin.
        only: names of the checks to run.
        announce: called with subject and check before each check.
    """
    for name, check in OF_PLUGIN.items():
        if name in only:
            announce(plugin.name, name)
            yield outcome(plugin.name, name, partial(check, plugin))
    for kind, item in plugin.contributions:
        subject = f"{NOUNS[kind]} {item.name}"
        for name, check_item in OF_KIND[kind].items():
            if name in only:
                announce(subject, name)
                yield outcome(subject, name, partial(check_item, plugin, item))
