"""The optimizer ``muon``."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import OptimizerSpec, hookimpl
from recipe_muon.settings import MuonSettings


@hookimpl
def register_optimizers() -> Iterable[OptimizerSpec]:
    """Muon for matrices, AdamW for the rest."""
    yield OptimizerSpec(
        name="muon",
        build="recipe_muon.optimizer:build",
        facts="recipe_muon.settings:facts",
        problems="recipe_muon.settings:problems",
        config=MuonSettings,
        uses=("weight_decay", "betas", "eps"),
        summary="Muon for the matrices of the blocks, AdamW for embeddings, output, norms and biases",
    )
