"""Environment variables that change what a run computes, how fast, or whether it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from recipe_core.errors import LaunchError
from recipe_core.hooks.finding import Finding
from recipe_core.launch.cores import SPIN_LIMITS, spin_choice
from recipe_core.launch.worker import worker

_TOPIC = "Environment variables"


def variable_findings(environment: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Yield variables in ``environment`` (default: ``os.environ``) that change a run."""
    env = os.environ if environment is None else environment
    findings = [*_ranks(env), *_devices(env)]
    yield from findings or [Finding(_TOPIC, "ok", "none is set that would change a run unasked")]
    yield _spinning(env)


def _ranks(env: Mapping[str, str]) -> Iterator[Finding]:
    try:
        rank = worker(env)
    except LaunchError as error:
        yield Finding(_TOPIC, "broken", str(error))
        return
    if rank is not None:
        text = f"this process is rank {rank.rank} of {rank.world_size} ({rank.launcher})"
        yield Finding(_TOPIC, "note", f"{text}: `recipe run` here would wait for the others")


def _devices(env: Mapping[str, str]) -> Iterator[Finding]:
    if "CUDA_VISIBLE_DEVICES" in env:
        shown = env["CUDA_VISIBLE_DEVICES"] or "none"
        yield Finding(_TOPIC, "note", f"CUDA_VISIBLE_DEVICES: only these GPUs are seen: {shown}")


def _spinning(env: Mapping[str, str]) -> Finding:
    chosen = spin_choice(env)
    shown = ", ".join(f"{name}={value}" for name, value in (chosen or SPIN_LIMITS).items())
    if chosen:
        return Finding(_TOPIC, "note", f"{shown}: yours; how long waiting threads of PyTorch spin is left to it")
    why = "waiting threads soon leave their core; 0 for a run that starts beside other programs"
    return Finding(_TOPIC, "ok", f"{shown}: set for every command that computes; {why}")
