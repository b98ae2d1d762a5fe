"""Checks of parts of the training loop: optimizers, schedules, trackers."""

from __future__ import annotations

import contextlib
import io
import math

from recipe_core.checkpoint.lazy import same_bits
from recipe_core.hooks.loop_specs import OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.train import Train
from recipe_core.testing.checkpoints import tensors
from recipe_core.testing.conformance.outcome import FailedCheck
from recipe_core.testing.conformance.subject import Plugin
from recipe_core.testing.conformance.toy_runs import train_toy
from recipe_core.train.metrics.tracker import TrackedRun, Tracker

_NO_DROPOUT = "model.dropout=0"
_LAYOUTS = ("ddp", "zero1", "fsdp")
_CLOSE = 1e-6
_TAGS = {"train/loss": 1.5, "train/grad_norm": math.inf, "valid/loss": 1.25, "speed/seconds": 0.1}


def optimizer_steps_alike(plugin: Plugin, spec: OptimizerSpec) -> str:
    """Check that four steps of the toy on two processes give the weights of one, under every sharding."""
    folder, override = plugin.folder / "optimizers" / spec.name, f"optimizer={spec.name}"
    train_toy(plugin.module, 1, folder / "single", "layout=single", override, _NO_DROPOUT)
    alone = tensors(folder / "single")
    for layout in _LAYOUTS:
        train_toy(plugin.module, 2, folder / layout, f"layout={layout}", override, _NO_DROPOUT)
        sharded = tensors(folder / layout)
        if sharded.keys() != alone.keys():
            raise FailedCheck(
                f"layout={layout}: it keeps the states {sorted(sharded)}, and in one process {sorted(alone)}"
            )
        apart = {name: float((sharded[name].float() - value.float()).abs().max()) for name, value in alone.items()}
        worst = max(apart, key=lambda name: apart[name])
        if not apart[worst] <= _CLOSE:
            raise FailedCheck(
                f"layout={layout}: {worst} is {apart[worst]:.1e} off that of one process after four steps; what needs "
                "a whole tensor must gather it, or add up over the ranks that share it"
            )
    return f"the toy in one process and under {', '.join(_LAYOUTS)} on two, within {_CLOSE:.0e}"


def optimizer_resumes(plugin: Plugin, spec: OptimizerSpec) -> str:
    """Check that the toy, resumed after two steps, has the weights and states of four steps, bit by bit."""
    folder, override = plugin.folder / "optimizers" / f"{spec.name}-resumed", f"optimizer={spec.name}"
    train_toy(plugin.module, 1, folder / "whole", override)
    for _ in range(2):
        train_toy(plugin.module, 1, folder / "halves", override, "train.stop_after=2")
    whole, halves = tensors(folder / "whole"), tensors(folder / "halves")
    if changed := [name for name in whole if name not in halves or not same_bits(whole[name], halves[name])]:
        raise FailedCheck(
            f"{', '.join(changed[:3])} differs after a stop; keep what the next step needs in state, as tensors"
        )
    return f"{len(whole)} tensors, bit by bit"


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
