"""The room on the disk that a run's checkpoints will take, which is looked for before it trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.precision import cast
from recipe_core.files import require_space
from recipe_hf_finetune.model import classifier
from recipe_hf_finetune.trainer.leg import FINISHED, Bench, Leg

_COPIES = 3
"""Weights, and the two moments of AdamW."""


def require_room(bench: Bench, legs: Sequence[Leg], out: Path) -> None:
    """Check that the checkpoints fit that will be there at once, of all ``legs``; collective.

    Raises:
        DiskFullError: they do not.
    """
    train = bench.job.train
    try:
        with torch.device("meta"):
            module = classifier.random_model(classifier.with_labels(bench.config(), bench.corpus), None)
    except (NotImplementedError, RuntimeError):  # one that reads values while it is built: each save looks by itself
        return
    size = _COPIES * sum(p.numel() * p.element_size() for p in cast(module, train.precision).parameters())

    def look() -> None:
        folders = [leg.folder / "checkpoints" for leg in legs if not (leg.folder / FINISHED).exists()]
        count = len(folders) * train.checkpoints_at_once()
        there = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        what = f"room for {count} checkpoint{'s' * (count > 1)} at once (fewer with a lower train.keep)"
        require_space(out, count * size - there, what)

    on_rank_0(bench.engine, look, out)
