"""Values that a process holds under each division of a model, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from recipe_core import DataFacts, ModelFacts, Train
from recipe_core.hooks.specs import Division
from recipe_core.hooks.train import Precision
from recipe_core.layouts.settings import Divided, Fsdp, Pp, Tp, Zero1
from recipe_core.train.start.check.estimate import PeakCounts, estimate, peak_counts

MODEL = ModelFacts(
    parameters=1000,
    flops_per_sample=1,
    activation_values=500,
    recomputed_activation_values=100,
    logits_values=64,
    blocks=4,
    block_parameters=200,
    divided_parameters=800,
    divided_activation_values=400,
    divided_recomputed_values=80,
    stream_values=10,
)
"""800 parameters in four blocks, and 200 outside the blocks."""


def counts_under(layout: Divided, world_size: int, *, recompute: bool = False) -> PeakCounts:
    train = Train(global_batch=16, micro_batch=2, activation_checkpointing=recompute)
    return peak_counts(MODEL, train, layout.division(world_size), layout.axes(world_size)["dp"])


def test_zero1_computes_with_all_weights_and_keeps_its_part() -> None:
    counts = counts_under(Zero1(), 4)
    assert (counts.weights, counts.gathered, counts.gradients, counts.optimizer) == (250, 1000, 1000, 250)
    assert (counts.activations, counts.logits, counts.stage_inputs) == (1000, 128, 0)


def test_fsdp_gathers_two_blocks_and_what_is_beside_them() -> None:
    counts = counts_under(Fsdp(), 4)
    assert (counts.weights, counts.gathered, counts.optimizer) == (250, 2 * 200 + 200, 250)
    assert counts.gradients == 250 + 200 + 200
    assert counts_under(Fsdp(reduce_each_micro_batch=False), 4).gradients == 1000


def test_tensor_parallel_ranks_hold_a_part_of_what_the_plan_cuts() -> None:
    counts = counts_under(Tp(tp=2), 4)
    assert (counts.weights, counts.gathered, counts.gradients, counts.optimizer) == (600, 0, 600, 600)
    assert counts.activations == (400 / 2 + 100) * 2
    assert counts.logits == 64
    assert counts_under(Tp(tp=2, sequence_parallel=True), 4).activations == 500
    assert counts_under(Tp(tp=2, data="fsdp"), 4).weights == 300


def test_a_mask_of_dropout_is_numbers_or_a_byte_each() -> None:
    model = replace(
        MODEL, mixed_activation_values=70, dropout_values=50, dropout_mixed_values=30, dropout_recomputed_values=20,
        mixed_recomputed_values=15, dropout_mixed_recomputed_values=5,
    )  # fmt: skip
    data = DataFacts(sequence=4)

    def both(**settings: Any) -> list[int]:
        train = Train(global_batch=16, micro_batch=2, **settings)
        return [estimate(model, data, train, byte_masks=bytes_).activations for bytes_ in (False, True)]

    assert both() == [2 * 500 * 4, 2 * (450 * 4 + 50)]
    assert both(precision="bf16") == [2 * 500 * 2, 2 * (450 * 2 + 50)]
    assert both(precision="bf16_mixed") == [2 * 570 * 2, 2 * ((570 - 80) * 2 + 50)]
    assert both(precision="bf16_mixed", activation_checkpointing=True) == [2 * 115 * 2, 2 * (90 * 2 + 20)]
    layout = Tp(tp=2, sequence_parallel=True)
    cut = peak_counts(model, Train(global_batch=16, micro_batch=2), layout.division(4), layout.axes(4)["dp"])
    assert (cut.activations, cut.mask_values, cut.mask_bytes) == (450, 50, 50)


def test_compiled_blocks_cast_their_weights_again_where_they_are_recomputed() -> None:
    def copies(**settings: Any) -> int:
        train = Train(global_batch=16, micro_batch=2, precision="bf16_mixed", **settings)
        return estimate(MODEL, DataFacts(sequence=4), train, compiled=True).weights - MODEL.parameters * 4

    assert copies() == 1000 * 2
    assert copies(activation_checkpointing=True) == (200 + 200) * 2


def test_recomputed_blocks_keep_less() -> None:
    assert counts_under(Tp(tp=2), 4, recompute=True).activations == (80 / 2 + 20) * 2


def test_a_stage_holds_its_blocks_and_perhaps_all_that_is_beside_them() -> None:
    counts = counts_under(Pp(), 4)  # two stages of two blocks, eight samples and four micro batches each
    assert counts.weights == 2 * 200 + 200
    assert counts.activations == 500 * 2  # half of the blocks, of two micro batches at once
    assert counts.stage_inputs == 4 * 2 * 10


@pytest.mark.parametrize(("recomputed", "plain", "mixed"), [(False, 500, 60), (True, 100, 20)])
def test_fp32_values_of_bf16_mixed_count_as_two_and_only_sequence_parallelism_cuts_them(
    recomputed: bool, plain: int, mixed: int
) -> None:
    model = replace(MODEL, mixed_activation_values=60, mixed_recomputed_values=20)

    def kept(precision: Precision, **division: Any) -> int:
        train = Train(global_batch=1, micro_batch=1, precision=precision, activation_checkpointing=recomputed)
        return peak_counts(model, train, Division(**division), 1).activations

    assert {precision: kept(precision) for precision in get_args(Precision)} == {
        "fp32": plain, "bf16": plain, "bf16_mixed": plain + mixed, "fp8": plain + mixed,
    }  # fmt: skip
    assert kept("bf16_mixed", tensor=2) == kept("bf16", tensor=2) + mixed
    assert kept("bf16_mixed", tensor=2, sequence=True) == kept("bf16", tensor=2, sequence=True) + mixed // 2
