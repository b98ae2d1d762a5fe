"""Runs of the core's toy with parts of the plugin under test, which needs no recipe of its own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from recipe_core.settings.job import Job, resolve
from recipe_core.testing import toy
from recipe_core.testing.conformance.subject import FOUR_STEPS
from recipe_core.testing.spawn import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows

_OVERRIDES = (*FOUR_STEPS, "train.eval_every=0")


def train_toy(module: str, processes: int, out: Path, *overrides: str) -> dict[int, float]:
    """Train the toy with the contributions of the plugin ``module`` in ``out``; return the losses by step."""
    spawn(_train, processes, module, str(out), list(overrides))
    return {row["step"]: row["loss"] for row in read_rows(out / METRICS) if "loss" in row}


def toy_job(module: str, overrides: Sequence[str]) -> Job:
    """The job of four steps of the toy, with the contributions of the plugin ``module``."""
    modules = [] if module in ("recipe_core.plugin", toy.__name__) else [importlib.import_module(module)]
    return resolve(toy.registry(*modules), "toy:tiny", [*_OVERRIDES, *overrides])


def silence(folder: Path) -> None:
    """Redirect the output of this process to a file in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank-{os.environ['RANK']}.log").open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def _train(module: str, out: str, overrides: list[str]) -> None:
    from recipe_core.train.run import run

    folder = Path(out)
    silence(folder.with_name(f"{folder.name}-logs"))
    run(toy_job(module, overrides), folder)
