"""Estimates before a run: memory, operations and checkpoints, in bytes and floating-point operations.

The memory is the largest of a process under the layout, without the overhead of the allocator, the kernels and the
communication.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from recipe_core.hooks.facts import DataFacts, ModelFacts, OptimizerFacts
from recipe_core.hooks.specs import Division
from recipe_core.hooks.train import Precision, Train


@dataclass(frozen=True)
class BytesPerValue:
    """Bytes per value of each kind."""

    weight: int
    copy: int
    """The copy of the weights that autocast keeps from forward to backward."""
    gradient: int
    activation: int


WIDTHS: dict[Precision, BytesPerValue] = {
    "fp32": BytesPerValue(weight=4, copy=0, gradient=4, activation=4),
    "bf16_mixed": BytesPerValue(weight=4, copy=2, gradient=4, activation=2),
    "fp8": BytesPerValue(weight=4, copy=2, gradient=4, activation=2),
    "bf16": BytesPerValue(weight=2, copy=0, gradient=2, activation=2),
}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Figures of one run; bytes are those of one process."""

    parameters: int
    frozen: int
    """Further parameters, which are not trained."""
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    stage_inputs: int
    """Receive buffers of a pipeline stage."""
    host: int
    """Offloaded to the host's memory, in addition."""
    checkpoint: int
    """One checkpoint on disk: weights and optimizer states, independent of the number of processes."""
    checkpoints: int
    """Checkpoints that exist at once: those that are kept, and the one being written."""
    flops_per_step: float
    """Of the model, over all processes; recomputation is not counted."""
    tokens_per_step: int
    samples: int
    """Of the whole schedule."""
    epochs: float | None
    """Passes over the training samples; None if their number is not known."""

    @property
    def memory(self) -> int:
        """Total memory of the device."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.stage_inputs

    @property
    def disk(self) -> int:
        """Space of all checkpoints that exist at once."""
        return self.checkpoint * self.checkpoints


def estimate(
    model: ModelFacts,
    data: DataFacts,
    train: Train,
    division: Division | None = None,
    data_ranks: int = 1,
    optimizer: OptimizerFacts | None = None,
    *,
    byte_masks: bool = False,
    compiled: bool = False,
) -> Estimate:
    """Return the estimate of a run from the facts of its parts.

    Args:
        model: facts of the model.
        data: facts of the dataset.
        train: the settings of training.
        division: how the layout divides the model; None: not at all.
        data_ranks: data-parallel ranks.
        optimizer: facts of the optimizer; None counts no states.
        byte_masks: True if the device keeps a byte for each value of a dropout mask, as CUDA does.
        compiled: True if blocks are compiled. With activation checkpointing, each then casts its weights again.
    """
    width, count, division = WIDTHS[train.precision], model.parameters, division or Division()
    state_bytes = optimizer.bytes_per_parameter if optimizer else 0.0
    counts = peak_counts(model, train, division, data_ranks)
    masks = counts.mask_bytes if byte_masks else counts.mask_values * width.activation
    # Gathered weights have the width of the matrix products; otherwise autocast keeps copies of the weights.
    copied = counts.one_block if compiled and train.activation_checkpointing else counts.weights
    computing = counts.gathered * (width.copy or width.weight) if counts.gathered else copied * width.copy
    resting = counts.weights * width.weight, counts.gradients * width.gradient, round(counts.optimizer * state_bytes)
    here = (0, 0, 0) if division.on_host else resting
    samples = train.steps * train.global_batch
    return Estimate(
        parameters=count,
        frozen=model.frozen_parameters,
        weights=here[0] + computing,
        gradients=here[1],
        optimizer=here[2],
        activations=counts.activations * width.activation + masks,
        logits=counts.logits * width.activation,
        stage_inputs=counts.stage_inputs * width.weight,
        host=sum(resting) if division.on_host else 0,
        checkpoint=round((count + model.frozen_parameters) * width.weight + count * state_bytes),
        checkpoints=train.checkpoints_at_once(),
        flops_per_step=model.flops_per_sample * train.global_batch,
        tokens_per_step=train.global_batch * data.sequence,
        samples=samples,
        epochs=samples / data.train_samples if data.train_samples else None,
    )


@dataclass(frozen=True, kw_only=True)
class PeakCounts:
    """Counts of values in the process that holds most."""

    weights: int
    """Its shard, kept throughout."""
    gathered: int
    """Weights gathered for computing, in addition; 0 if it computes with its shard."""
    one_block: int
    """Weights of one block, and of everything outside the blocks."""
    gradients: int
    """At the end of a backward pass."""
    optimizer: int
    """Parameters whose optimizer states it keeps."""
    activations: int
    """An fp32 value counts as two under ``bf16_mixed``. Without masks of dropout."""
    mask_values: int
    """The same for these, where they are numbers."""
    mask_bytes: int
    """The same, where each is a byte."""
    logits: int
    stage_inputs: int
    """Inputs of a pipeline stage, for every micro batch of a step."""


def peak_counts(model: ModelFacts, train: Train, division: Division, data_ranks: int) -> PeakCounts:
    """Return the counts under ``division``, where ``data_ranks`` share the global batch."""
    trained = _sizes(model, division)
    whole = _sizes(_with_frozen(model), division)
    stage, block, ends = whole
    gathered, one_block = 0, min(stage, block + ends)
    if division.weights > 1:  # this block, the prefetched next one, and the parameters outside the blocks
        gathered = min(stage, 2 * block + ends)
    elif division.optimizer > 1:
        gathered = stage
    kept_weights = division.optimizer if gathered else 1
    gradients = trained.stage // division.gradients
    if division.gradients > 1:
        gradients += min(trained.stage, trained.block + trained.ends)
    micro_batches = max(1, train.global_batch // (train.micro_batch * data_ranks))
    stage_inputs = micro_batches * train.micro_batch * model.stream_values if division.pipeline > 1 else 0
    return PeakCounts(
        weights=stage // kept_weights,
        gathered=gathered,
        one_block=one_block,
        gradients=gradients,
        optimizer=trained.stage // division.optimizer,
        **_activations(model, train, division, micro_batches),
        logits=model.logits_values * train.micro_batch // division.tensor,
        stage_inputs=stage_inputs // (division.tensor if division.sequence else 1),
    )


class _Sizes(NamedTuple):
    """Parameters in the process that holds most."""

    stage: int
    """All that it computes with."""
    block: int
    ends: int
    """Outside the blocks."""


def _sizes(model: ModelFacts, division: Division) -> _Sizes:
    block, ends = (_tensor_share(n, model, division) for n in (model.block_parameters, model.parameters))
    ends -= _tensor_share(model.blocks * model.block_parameters, model, division)
    return _Sizes(_stage_parameters(model, division), block, ends)


def _with_frozen(model: ModelFacts) -> ModelFacts:
    return replace(
        model,
        parameters=model.parameters + model.frozen_parameters,
        block_parameters=model.block_parameters + model.frozen_block_parameters,
        divided_parameters=model.divided_parameters + model.frozen_divided_parameters,
    )


def _stage_parameters(model: ModelFacts, division: Division) -> int:
    """Parameters of the largest stage: its blocks, and those outside the blocks, which may all be in one stage."""
    blocks = -(-model.blocks // division.pipeline)
    return _tensor_share(model.parameters - (model.blocks - blocks) * model.block_parameters, model, division)


def _tensor_share(count: int, model: ModelFacts, division: Division) -> int:
    """The tensor-parallel share of ``count`` parameters, if the plan shards the same fraction of them as of all."""
    sharded = model.divided_parameters / model.parameters
    return round(count * (1 - sharded + sharded / division.tensor))


def _activations(model: ModelFacts, train: Train, division: Division, micro_batches: int) -> dict[str, int]:
    """Activations and masks of :class:`PeakCounts`.

    The first pipeline stage keeps those of as many micro batches as there are stages.
    """
    if train.activation_checkpointing:
        total, sharded, mixed = (
            model.recomputed_activation_values, model.divided_recomputed_values, model.mixed_recomputed_values,
        )  # fmt: skip
        masks, mixed_masks = model.dropout_recomputed_values, model.dropout_mixed_recomputed_values
    else:
        total, sharded, mixed = model.activation_values, model.divided_activation_values, model.mixed_activation_values
        masks, mixed_masks = model.dropout_values, model.dropout_mixed_values
    under_autocast = train.precision in ("bf16_mixed", "fp8")
    mask_values = masks + mixed_masks * under_autocast
    whole = total + mixed * under_autocast - mask_values - sharded
    copies = train.micro_batch * min(division.pipeline, micro_batches) / division.pipeline
    rest = copies / (division.tensor if division.sequence else 1)
    return {
        "activations": round(sharded / division.tensor * copies + whole * rest),
        "mask_values": round(mask_values * rest),
        "mask_bytes": round(masks * rest),
    }
