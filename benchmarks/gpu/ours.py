"""Our side: the recipe as `recipe run` runs it, with its data from files and a clock in its loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import data
import torch
from cases import Case
from clock import Clock, Enough

from recipe_core.engine.native import NativeEngine

ENDLESS = 1_000_000
"""Steps of a run; the clock ends it before."""
ROOM = 0.9
"""Share of a device's memory that an estimate may take: the allocator and the kernels need some, too."""
PLANS: tuple[tuple[str, ...], ...] = (
    (),
    ("train.precision=bf16", "train.optimizer_states=master"),
    ("layout=fsdp", "layout.cpu_offload=true"),
)
"""Settings to try for a model that may not fit, the fastest first."""


@dataclass(frozen=True)
class Setting:
    """A case as a job of `recipe run`."""

    job: Any
    words: tuple[str, ...]
    """The arguments of `recipe run`."""
    sequences_per_row: float
    estimate: int
    """Bytes that the device needs, as `recipe check` estimates them."""

    @property
    def parameters(self) -> int:
        return int(self.job.model_facts().parameters)

    @property
    def flops(self) -> float:
        """Floating-point operations per step."""
        return float(self.job.model_facts().flops_per_sample * self.job.train.global_batch)


def setting(case: Case, folder: Path, *, compiled: bool = False, precision: str = "bf16_mixed") -> Setting:
    """Return the case as a job with the first plan that fits into the memory of the device; a plan may say another
    precision."""
    from recipe_core.cli.check.target import figures_of
    from recipe_core.hooks.registry import load
    from recipe_core.train.start.check import checked_job

    registry, (target, words, sequences) = load(), PARTS[case.family](case, folder)
    common = (
        f"train.global_batch={case.global_batch}", f"train.micro_batch={case.micro_batch}",
        f"train.activation_checkpointing={str(case.recompute).lower()}", "train.save_every=0",
        f"train.device={case.device}", f"train.compile={str(compiled).lower()}", "train.log_every=10",
    )  # fmt: skip
    room = ROOM * torch.cuda.get_device_properties(0).total_memory if case.device == "cuda" else float("inf")
    for plan in PLANS if case.recompute else PLANS[:1]:
        own = () if any(word.startswith("train.precision=") for word in plan) else (f"train.precision={precision}",)
        line = (*words, *common, *own, *plan)
        job = checked_job(registry, target, line, 1, folder / "run", disk=False)
        figures = figures_of(job, 1)
        assert figures is not None  # all three models have facts
        if figures.memory <= room:
            break
    return Setting(job, (target, *line), sequences, figures.memory)


def _gpt(case: Case, folder: Path) -> tuple[str, tuple[str, ...], float]:
    return "megatron_gpt:small", (
        *(f"model.{name}={getattr(case, name)}" for name in ("layers", "hidden", "heads", "vocabulary", "dropout")),
        f"model.attention_dropout={case.dropout}", f"model.positions={case.sequence}",
        f"data.files={data.token_files(case, folder)}", f"data.sequence={case.sequence}", "data.split=1",
        f"train.steps={ENDLESS}", "train.eval_every=0",
    ), 1.0  # fmt: skip


def _bert(case: Case, folder: Path) -> tuple[str, tuple[str, ...], float]:
    shards, sequences = data.bert_shards(case, folder)
    sizes = (f"model.{name}={getattr(case, name)}" for name in ("layers", "hidden", "heads", "vocabulary"))
    return "bert_dp:large-phase1", (
        *sizes, f"model.intermediate={4 * case.hidden}", f"data.files={shards}", f"data.sequence={case.sequence}",
        f"data.max_predictions={case.predictions}", "train.stochastic_rounding=false",
        f"train.steps={ENDLESS}", "train.eval_every=0",
    ), sequences  # fmt: skip


def _finetune(case: Case, folder: Path) -> tuple[str, tuple[str, ...], float]:
    return "hf_finetune", (
        f"model.source={data.classifier(case, folder)}", f"data.vocabulary={case.vocabulary}",
        f"data.max_length={case.sequence}", "data.pad_to_max_length=true",
        f"data.pairs={data.pairs(case)}", f"train.batch_per_process={case.global_batch}",
        "train.random_start=false", "train.epochs=null", f"train.steps={ENDLESS}", f"train.eval_every={ENDLESS}",
    ), 1.0  # fmt: skip


PARTS: dict[str, Callable[[Case, Path], tuple[str, tuple[str, ...], float]]] = {
    "gpt": _gpt,
    "bert": _bert,
    "finetune": _finetune,
}
"""The recipe of a case, its arguments, and the sequences per row, by family."""


def run(setting: Setting, folder: Path, clock: Clock) -> None:
    """Train as the command does until the clock stops it, before the first checkpoint."""
    from recipe_core.engine.machine.environment import prepare
    from recipe_core.hooks.target import load
    from recipe_core.train.metrics.report import Report

    prepare(setting.job, 1)
    with patch.object(Report, "advance", lambda report, step: clock.tick()), suppress(Enough):
        load(setting.job.recipe.run, "the recipe")(setting.job, folder)


def compiled_by(case: Case) -> AbstractContextManager[object]:
    """On the CPU, trace and differentiate but generate no code, which takes minutes there."""
    if not case.dry:
        return nullcontext()
    return patch.object(NativeEngine, "compile_options", lambda engine: {"backend": "aot_eager"})
