"""A check before training that the disk has space for the run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.precision import cast
from recipe_core.files import require_space
from recipe_hf_finetune.model import classifier
from recipe_hf_finetune.model.adapted import adapt
from recipe_hf_finetune.trainer.seed_run import FINISHED, SeedRun, Shared

_MOMENTS = 2
"""Moments of AdamW, of weights that are trained."""


def require_room(shared: Shared, seed_runs: Sequence[SeedRun], out: Path) -> None:
    """Check that the disk has space for all checkpoints that ``seed_runs`` keep at the same time; collective.

    Raises:
        DiskFullError: it has not.
    """
    train = shared.job.train
    try:
        with torch.device("meta"):
            module = classifier.random_model(classifier.with_labels(shared.config(), shared.corpus), None)
            module = adapt(shared.job.transforms, cast(module, train.precision))
    except (NotImplementedError, RuntimeError):  # a model that reads values while it is built: each save checks
        return
    size = sum(p.nbytes * (1 + _MOMENTS * p.requires_grad) for p in module.parameters())

    def check() -> None:
        folders = [
            seed_run.folder / "checkpoints" for seed_run in seed_runs if not (seed_run.folder / FINISHED).exists()
        ]
        count = len(folders) * train.checkpoints_at_once()
        used = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        purpose = f"room for {count} checkpoint{'s' * (count > 1)} at once (fewer with a lower train.keep)"
        require_space(out, count * size - used, purpose)

    on_rank_0(shared.engine, check, out)
