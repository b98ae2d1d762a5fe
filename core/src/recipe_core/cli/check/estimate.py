"""Estimates before a run: memory, operations, checkpoints. In bytes and floating-point operations.

The memory is that of one process under the layout, the one that holds most, without what the allocator, the kernels and
the communication add.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.hooks.facts import DataFacts, ModelFacts, OptimizerFacts
from recipe_core.hooks.specs import Division
from recipe_core.hooks.train import Precision, Train


@dataclass(frozen=True)
class Widths:
    """Bytes per value of each kind."""

    weight: int
    copy: int
    """The copy of the weights that autocast keeps from forward to backward."""
    gradient: int
    activation: int


WIDTHS: dict[Precision, Widths] = {
    "fp32": Widths(weight=4, copy=0, gradient=4, activation=4),
    "bf16_mixed": Widths(weight=4, copy=2, gradient=4, activation=2),
    "fp8": Widths(weight=4, copy=2, gradient=4, activation=2),
    "bf16": Widths(weight=2, copy=0, gradient=2, activation=2),
}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Figures of one run; bytes are those of one process."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    passed: int
    """Where a stage of a pipeline receives what the others send."""
    host: int
    """Beside all this, in the host's memory: what is offloaded."""
    checkpoint: int
    """One checkpoint on disk: weights and optimizer states, every value once whatever the number of processes."""
    checkpoints: int
    """How many exist at once: those that are kept, and one in the making."""
    flops_per_step: float
    """Of the model, over all processes; recomputation is not counted."""
    tokens_per_step: int
    samples: int
    """Of the whole schedule."""
    epochs: float | None
    """How often each training sample is seen; None where their number is not known."""

    @property
    def memory(self) -> int:
        """All of it together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.passed

    @property
    def disk(self) -> int:
        """All checkpoints that exist at once."""
        return self.checkpoint * self.checkpoints


def estimate(
    model: ModelFacts,
    data: DataFacts,
    train: Train,
    division: Division | None = None,
    data_ranks: int = 1,
    optimizer: OptimizerFacts | None = None,
) -> Estimate:
    """Multiply out what the model, the data and the optimizer say of themselves, and how a layout divides the model.

    ``optimizer``: None counts no states.
    """  # fmt: skip
    width, count, division = WIDTHS[train.precision], model.parameters, division or Division()
    kept = optimizer.bytes_per_parameter if optimizer else 0.0
    held = holdings(model, train, division, data_ranks)
    # Those that are gathered are as wide as products are; else autocast keeps copies of what it multiplies.
    computing = held.gathered * (width.copy or width.weight) if held.gathered else held.weights * width.copy
    resting = held.weights * width.weight, held.gradients * width.gradient, round(held.optimizer * kept)
    here = (0, 0, 0) if division.on_host else resting
    samples = train.steps * train.global_batch
    return Estimate(
        parameters=count,
        weights=here[0] + computing,
        gradients=here[1],
        optimizer=here[2],
        activations=held.activations * width.activation,
        logits=held.logits * width.activation,
        passed=held.passed * width.weight,
        host=sum(resting) if division.on_host else 0,
        checkpoint=round(count * (width.weight + kept)),
        checkpoints=train.checkpoints_at_once(),
        flops_per_step=model.flops_per_sample * train.global_batch,
        tokens_per_step=train.global_batch * data.sequence,
        samples=samples,
        epochs=samples / data.train_samples if data.train_samples else None,
    )


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """Counts of values, of the process that holds most."""

    weights: int
    """Its part, kept all the time."""
    gathered: int
    """Memory for computing beside that, gathered weights included; 0 where it computes with its shard."""
    gradients: int
    """At the end of a backward pass."""
    optimizer: int
    """Parameters whose optimizer states it keeps."""
    activations: int
    """Under ``bf16_mixed`` an fp32 value counts as two."""
    logits: int
    passed: int
    """Memory for the inputs of a pipeline stage: one place for each micro batch of a step."""


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
    """The share of ``count`` parameters under tensor parallelism, if it shards as large a part of them as of all."""
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
    whole += mixed * (train.precision in ("bf16_mixed", "fp8"))
    each = cut / division.tensor + (whole - cut) / (division.tensor if division.sequence else 1)
    at_once = min(division.pipeline, micro_batches) / division.pipeline
    return round(each * at_once * train.micro_batch)
