"""Memory of the core's optimizers."""

from __future__ import annotations

from recipe_core.hooks.facts import ModelFacts, OptimizerFacts
from recipe_core.hooks.train import Train


def adam_facts(config: object, train: Train, model: ModelFacts) -> OptimizerFacts:
    """Return the memory of AdamW and LAMB: both moments, and the fp32 copy of bf16 weights, if any."""
    moment = 2 if train.precision == "bf16" and train.optimizer_states == "weights" else 4
    return OptimizerFacts(bytes_per_parameter=2 * moment + 4 * (train.optimizer_states == "master"))
