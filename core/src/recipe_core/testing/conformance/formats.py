"""Checks of a checkpoint format: tensors come back bit by bit, and a run resumes from it exactly."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from recipe_core.checkpoint.formats.base import Format
from recipe_core.checkpoint.lazy import same_bits
from recipe_core.errors import RecipeError
from recipe_core.hooks.specs import CheckpointFormat
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import train_toy
from recipe_core.testing.conformance.training import resumes_exactly, same_losses
from recipe_core.train.start.check import checked_job


def round_trip(plugin: Plugin, spec: CheckpointFormat) -> str:
    """Check that a format recognises, loads and opens its own checkpoints."""
    form, path = spec.load()(spec.config()), plugin.folder / "formats" / spec.name
    if not isinstance(form, Format):
        raise FailedCheck(f"build gives {form!r}; derive its class from recipe_core.checkpoint.formats.base.Format")
    weights = {"a": torch.randn(3, 5), "b": torch.arange(4, dtype=torch.bfloat16)}
    path.mkdir(parents=True)
    if spec.ranks:
        form.save(path, {"ranks": {(0, 0): {"model": dict(weights)}}, "progress": {"step": 7}})
        opened = form.open(path)
        _require_same(opened["ranks"][0, 0]["model"], weights, "open")
        _require_step(opened, "open")
        return "open"
    form.save(path, {"model": dict(weights), "progress": {"step": 7}})
    if not form.detect(path):
        raise FailedCheck("detect() does not know what save() wrote")
    state: dict[str, Any] = {"model": {key: torch.zeros_like(value) for key, value in weights.items()}}
    if "progress" in spec.holds:
        state["progress"] = {"step": 0}
    form.load(path, state)
    _require_same(state["model"], weights, "load")
    opened = form.open(path)
    _require_same(opened["model"], weights, "open")
    if "progress" in spec.holds:
        _require_step(state, "load")
        _require_step(opened, "open")
    if not any(any(path.glob(pattern)) for pattern in spec.patterns):
        raise FailedCheck(f"patterns: {', '.join(spec.patterns) or 'none'} matches no file that save() wrote")
    return "save, detect, load, open"


def resumes(plugin: Plugin, spec: CheckpointFormat) -> str:
    """Check that a run that resumes from the format has the losses of an uninterrupted run."""
    if spec.ranks or not {"model", "optimizer", "progress"} <= set(spec.holds):
        raise SkippedCheck("it is for conversion; no run saves in it")
    override, folder = f"checkpoint={spec.name}", plugin.folder / "formats"
    if not (spec.model or spec.naming or spec.runs):
        whole = train_toy(plugin.module, 1, folder / f"{spec.name}-whole", override)
        half = train_toy(plugin.module, 1, folder / f"{spec.name}-resumed", override, "train.stop_after=2")
        resumed = train_toy(plugin.module, 1, folder / f"{spec.name}-resumed", override, "train.stop_after=2")
        if max(half) != 2:
            raise FailedCheck(f"train.stop_after=2: the toy stopped after step {max(half)}")
        return f"the toy: {same_losses(whole, resumed)}"
    for recipe in map(partial(plugin.registry.get, "recipe"), plugin.registry.names("recipe")):
        try:
            checked_job(plugin.registry, f"{recipe.name}:tiny", [override])
        except RecipeError:  # the format is for another recipe
            continue
        return f"{recipe.name}:tiny: {resumes_exactly(plugin, recipe.name, folder / recipe.name, override)}"
    raise SkippedCheck("no installed recipe can save in it")


def _require_same(tensors: Any, weights: dict[str, torch.Tensor], method: str) -> None:
    if tensors.keys() != weights.keys():
        raise FailedCheck(f"{method}() gives the tensors {sorted(tensors)}; save() was given {sorted(weights)}")
    for name, value in weights.items():
        tensor = tensors[name] if isinstance(tensors[name], torch.Tensor) else tensors[name].read()
        if not same_bits(tensor, value):
            raise FailedCheck(f"{method}(): {name} ({value.dtype}) comes back with other bits")


def _require_step(state: dict[str, Any], method: str) -> None:
    if state["progress"].get("step") != 7:
        raise FailedCheck(f"{method}() gives the progress {state['progress']}; save() was given {{'step': 7}}")
