"""How many values one process holds of a model that a layout divides."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.settings import Train
from recipe_core.specs import Division, ModelFacts


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """Counts of values, of the process that holds most."""

    weights: int
    """Its part, kept all the time."""
    gathered: int
    """What it computes with beside that, weights of others among it; 0 where it computes with its part."""
    gradients: int
    """At the end of a backward pass."""
    optimizer: int
    """Parameters whose optimizer states it keeps."""
    activations: int
    """Under ``bf16_mixed`` an fp32 value counts as two."""
    logits: int
    passed: int
    """What a stage of a pipeline receives: one place for each micro batch of a step."""


def holdings(model: ModelFacts, train: Train, division: Division, data_ranks: int) -> Holdings:
    """Of a process under ``division``, where ``data_ranks`` share the global batch."""
    stage = _stage_parameters(model, division)
    block, ends = (_cut(n, model, division) for n in (model.block_parameters, model.parameters))
    ends -= _cut(model.blocks * model.block_parameters, model, division)
    gathered = 0
    if division.weights > 1:  # this block, the next one on its way, and what is beside the blocks
        gathered = min(stage, 2 * block + ends)
    elif division.optimizer > 1:
        gathered = stage
    kept_weights = division.optimizer if gathered else 1
    gradients = stage // division.gradients
    if division.gradients > 1:
        gradients += min(stage, block + ends)
    micro_batches = max(1, train.global_batch // (train.micro_batch * data_ranks))
    passed = micro_batches * train.micro_batch * model.stream_values if division.pipeline > 1 else 0
    return Holdings(
        weights=stage // kept_weights,
        gathered=gathered,
        gradients=gradients,
        optimizer=stage // division.optimizer,
        activations=_activations(model, train, division, micro_batches),
        logits=model.logits_values * train.micro_batch // division.tensor,
        passed=passed // (division.tensor if division.sequence else 1),
    )


def _stage_parameters(model: ModelFacts, division: Division) -> int:
    """Parameters of the largest stage: its blocks, and what is beside them, which may all be at one end."""
    blocks = -(-model.blocks // division.pipeline)
    return _cut(model.parameters - (model.blocks - blocks) * model.block_parameters, model, division)


def _cut(count: int, model: ModelFacts, division: Division) -> int:
    """What tensor parallelism leaves of ``count`` parameters, if it cuts as large a part of them as of all."""
    part = model.divided_parameters / model.parameters
    return round(count * (1 - part + part / division.tensor))


def _activations(model: ModelFacts, train: Train, division: Division, micro_batches: int) -> int:
    """The first stage of a pipeline keeps as many micro batches as there are stages, of its blocks."""
    if train.activation_checkpointing:
        whole, cut, mixed = (
            model.recomputed_activation_values, model.divided_recomputed_values, model.mixed_recomputed_values,
        )  # fmt: skip
    else:
        whole, cut, mixed = model.activation_values, model.divided_activation_values, model.mixed_activation_values
    whole += mixed * (train.precision == "bf16_mixed")
    each = cut / division.tensor + (whole - cut) / (division.tensor if division.sequence else 1)
    at_once = min(division.pipeline, micro_batches) / division.pipeline
    return round(each * at_once * train.micro_batch)
