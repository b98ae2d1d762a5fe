"""One part of a case, in a process of its own: the roof, or a contestant."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ours
import peers
import roof
from cases import Case, case_of
from clock import Clock

ROOF = "roof"
Contestant = Callable[[Case, ours.Setting, Clock], dict[str, Any]]
NEEDS = {"megatron-core": ("megatron.core",), "recipe-fp8": ("torchao",)}
"""Packages of a contestant that an environment may lack."""


def _recipe(case: Case, setting: ours.Setting, clock: Clock) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ours.compiled_by(case):
        ours.run(setting, Path(folder) / "run", clock)
    return {"words": setting.words, "estimate": setting.estimate}


CONTESTANTS: dict[str, Contestant] = {
    "recipe": _recipe,
    "recipe-compile": _recipe,
    "recipe-fp8": _recipe,
    "trainer": partial(peers.trainer, compiled=False),
    "trainer-compile": partial(peers.trainer, compiled=True),
    "megatron-core": peers.megatron,
}


def parts_of(case: Case) -> list[str]:
    """The roof, and the contestants of ``case``; in fine-tuning, `train.compile` is the Trainer's own."""
    left_out = {"gpt": (), "bert": ("megatron-core",), "finetune": ("megatron-core", "recipe-compile", "recipe-fp8")}
    without = (*left_out[case.family], *(("recipe-fp8",) if case.recompute else ()))
    return [ROOF, *(name for name in CONTESTANTS if name not in without)]


def run(case_name: str, name: str, out: Path, seconds: float, dry: bool) -> dict[str, Any]:
    """The figures of the part ``name`` of a case, whose steps are timed for about ``seconds``.

    Raises:
        ModuleNotFoundError: a package is missing.
    """
    case = case_of(case_name, dry=dry)
    for package in NEEDS.get(name, ()):
        if not _is_there(package):
            raise ModuleNotFoundError(f"needs {package.replace('.', '-')}, which is not installed")
    setting = ours.setting(
        case, out / "data" / case.name, compiled=name in ("recipe-compile", "recipe-fp8"),
        precision="fp8" if name == "recipe-fp8" else "bf16_mixed",
    )  # fmt: skip
    if name == ROOF:
        return roof.measure(case, setting.parameters)
    (out / "traces").mkdir(parents=True, exist_ok=True)
    clock = Clock(
        case.device, out / "traces" / f"{case.name}.{name}.json.gz", seconds=0.0 if case.dry else seconds,
        least=2 if case.dry else 5, warm=1 if case.dry else 4,
    )  # fmt: skip
    told = CONTESTANTS[name](case, setting, clock)
    if "seconds_per_step" not in clock.result:
        raise RuntimeError("the loop ended before all was measured")
    own = name.startswith("recipe")
    sequences = setting.sequences_per_row if own else 1.0
    samples = case.global_batch * sequences * (case.sequence if case.unit == "tokens" else 1)
    return {**roof.judged(clock.result, setting.flops, samples, case.device), "unit": f"{case.unit}/s", **told}


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False
