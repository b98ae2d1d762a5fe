"""Checks of parts of the training loop: optimizers, schedules, trackers, callbacks, transforms."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from recipe_core.checkpoint.formats.base import CALLBACKS
from recipe_core.checkpoint.lazy import Lazy, entries, same_bits
from recipe_core.checkpoint.locate import find
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs.loop import CallbackSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.train import Train
from recipe_core.layouts.transformed import build_transformed
from recipe_core.testing.checkpoints import tensors
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import toy_job, train_toy
from recipe_core.train.metrics.tracker import TrackedRun, Tracker
from recipe_core.train.start.check.parts import callback_problems, transform_problems

Updating = OptimizerSpec | CallbackSpec | TransformSpec
"""Contributions that take part in the update of weights."""
_NO_DROPOUT = "model.dropout=0"
_LAYOUTS = ("ddp", "zero1", "fsdp")
_CLOSE = 1e-6
_TAGS = {"train/loss": 1.5, "train/grad_norm": math.inf, "valid/loss": 1.25, "speed/seconds": 0.1}


def steps_alike(plugin: Plugin, spec: Updating) -> str:
    """Check that four steps of the toy on two processes give the state of one, under every sharding."""
    words, folder = _overrides(plugin, spec), plugin.folder / _kind(spec) / spec.name
    # As many samples at once as on two processes, on which the batch of a callback may depend.
    train_toy(plugin.module, 1, folder / "single", "layout=single", "train.micro_batch=4", *words, _NO_DROPOUT)
    alone = _contents(folder / "single")
    for layout in _LAYOUTS:
        train_toy(plugin.module, 2, folder / layout, f"layout={layout}", *words, _NO_DROPOUT)
        sharded = _contents(folder / layout)
        if sharded.keys() != alone.keys():
            raise FailedCheck(
                f"layout={layout}: it keeps the states {sorted(sharded)}, and in one process {sorted(alone)}"
            )
        apart = {name: _apart(value, sharded[name]) for name, value in alone.items()}
        worst = max(apart, key=lambda name: apart[name])
        if apart[worst] == math.inf:
            raise FailedCheck(f"layout={layout}: {worst} is {sharded[worst]}, and {alone[worst]} in one process")
        if not apart[worst] <= _CLOSE:
            raise FailedCheck(
                f"layout={layout}: {worst} is {apart[worst]:.1e} off that of one process after four steps; what needs "
                "a whole tensor must gather it, or add up over the ranks that share it"
            )
    return f"the toy in one process and under {', '.join(_LAYOUTS)} on two, within {_CLOSE:.0e}"


def resumes(plugin: Plugin, spec: Updating) -> str:
    """Check that the toy, resumed after two steps, has the state of four steps, bit by bit."""
    words, folder = _overrides(plugin, spec), plugin.folder / _kind(spec) / f"{spec.name}-resumed"
    train_toy(plugin.module, 1, folder / "whole", *words)
    for _ in range(2):
        train_toy(plugin.module, 1, folder / "halves", *words, "train.stop_after=2")
    whole, halves = _contents(folder / "whole"), _contents(folder / "halves")
    if changed := [name for name in whole if name not in halves or not _same(whole[name], halves[name])]:
        where = "state, as tensors" if isinstance(spec, OptimizerSpec) else "its state (saves=True)"
        raise FailedCheck(f"{', '.join(changed[:3])} differs after a stop; keep what the next step needs in {where}")
    return f"{len(whole)} tensors and plain values, bit by bit"


def schedule_rates(plugin: Plugin, spec: ScheduleSpec) -> str:
    """Check that the rates are finite, between 0 and the peak, and depend on the step only."""
    train = Train(steps=50, lr=0.5, warmup_steps=5)
    first, second = (spec.load()(spec.config(), train) for _ in range(2))
    rates = [first(step) for step in range(train.steps)]
    for step, rate in enumerate(rates):
        if not 0 <= rate <= train.lr or not math.isfinite(rate):
            raise FailedCheck(f"rate({step}) is {rate}; expected 0 to train.lr ({train.lr})")
    if [second(step) for step in reversed(range(train.steps))] != rates[::-1]:
        raise FailedCheck(
            "rate(step) depends on what was asked before; a run that resumes would go on with other rates"
        )
    return f"{rates[0]:.3g} to {max(rates):.3g} to {rates[-1]:.3g} over {train.steps} steps"


def tracker_records(plugin: Plugin, spec: TrackerSpec) -> str:
    """Check that a tracker records a new run, closes, and continues a killed run that had logged more steps."""
    folder = plugin.folder / "trackers" / spec.name
    folder.mkdir(parents=True)
    warnings: list[str] = []
    for since, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        run = TrackedRun(name="toy:tiny", folder=folder, since=since, settings={"recipe": "toy"}, warn=warnings.append)
        tracker: Tracker = spec.load()(spec.config(), run)
        with contextlib.redirect_stderr(io.StringIO()):  # a tracker may warn that a value is infinite
            for step in steps:
                tracker.log(step, _TAGS)
            tracker.close()
    if warnings:
        raise FailedCheck(f"it warns: {warnings[0]}")
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return f"a run and its continuation; {', '.join(written[:3]) or 'no file in the run folder'}"


def _kind(spec: Updating) -> str:
    if isinstance(spec, OptimizerSpec):
        return "optimizer"
    return "callbacks" if isinstance(spec, CallbackSpec) else "transforms"


def _overrides(plugin: Plugin, spec: Updating) -> list[str]:
    words = [f"{_kind(spec)}={spec.name}"]
    if isinstance(spec, CallbackSpec):
        words.append("train.eval_every=1")
        job = toy_job(plugin.module, words)
        for problem in callback_problems(job.recipe, job.callbacks, job.train, job.checkpoint):
            raise SkippedCheck(f"the core's toy cannot have it: {problem}")
    if isinstance(spec, TransformSpec):
        job = toy_job(plugin.module, words)
        problems: list[str] = []
        try:
            problems += [*transform_problems(job.recipe, job.transforms, job.train)]
            build_transformed(job.model, job.transforms)
        except ConfigError as error:  # the toy is not a model that it is for
            problems.append(str(error))
        for problem in problems:
            raise SkippedCheck(f"the core's toy cannot have it: {problem}")
    return words


def _contents(folder: Path) -> dict[str, Any]:
    """Tensors of a checkpoint, and plain values of the states of callbacks, by path."""
    state = find(load(), folder).open()
    return tensors(folder) | {
        f"{CALLBACKS}.{name}": value for name, value in entries(state.get(CALLBACKS, {})) if not isinstance(value, Lazy)
    }


def _same(one: Any, two: Any) -> bool:
    return same_bits(one, two) if isinstance(one, Tensor) and isinstance(two, Tensor) else bool(one == two)


def _apart(one: Any, two: Any) -> float:
    if isinstance(one, Tensor):
        return float((one.float() - two.float()).abs().max())
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two)
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return max(map(_apart, one, two), default=0.0)
    return 0.0 if one == two else math.inf
