"""Stochastic rounding: right on average, independent from place to place, and the same wherever it is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from recipe_core import Train
from recipe_core.train.optim import build
from recipe_core.train.optim.rounding import Rounding, round_

ROWS, COLUMNS = 300, 200


def rounded(values: Tensor, step: int = 1, what: int = 0, name: str = "weight", seed: int = 7) -> Tensor:
    """fp32 matrix ``values`` as bf16."""
    parameter = nn.Parameter(torch.zeros(values.shape, dtype=torch.bfloat16))
    rounding = Rounding(seed, {parameter: name})
    bits = torch.empty(values.shape, dtype=torch.int32)
    rows, columns = (slice(0, size) for size in values.shape)
    rounding.bits_(bits, parameter, rows, columns, rounding.keys(step, what, torch.device("cpu")))
    return round_(values.clone(), bits).to(torch.int16).view(torch.bfloat16)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ups(fraction: float, steps: Sequence[int], **how: object) -> Tensor:
    """1 where a number ``fraction`` of the way between two neighbours in bf16 is rounded up, else 0: float64
    ``[steps, ROWS, COLUMNS]``."""
    values = torch.full((ROWS, COLUMNS), 1 + fraction * 2**-7)
    found = [rounded(values, step, **how) for step in steps]  # type: ignore[arg-type]
    return torch.stack([(each > 1).double() for each in found])


@pytest.mark.parametrize("fraction", [2**-14, 0.01, 0.3, 0.5, 0.93])
def test_rounds_up_as_often_as_the_remainder_says(fraction: float) -> None:
    found = ups(fraction, range(20))
    deviation = math.sqrt(fraction * (1 - fraction) / found.numel())
    assert abs(found.mean().item() - fraction) < 3 * deviation


def test_the_mean_error_of_any_numbers_is_zero_within_three_sigma() -> None:
    values = random(ROWS, COLUMNS)
    errors, variance = [], 0.0
    below = (values.view(torch.int32) & -(2**16)).view(torch.float32)
    ulp = ((below.view(torch.int32) + 2**16).view(torch.float32) - below).double()
    part = (values - below).double() / ulp
    for step in range(10):
        errors.append(((rounded(values, step).double() - values.double()) / ulp).sum())
        variance += (part * (1 - part)).sum().item()
    assert abs(sum(errors).item()) < 3 * math.sqrt(variance)  # type: ignore[union-attr]


def test_places_steps_tensors_names_and_seeds_are_independent() -> None:
    """Correlations of up and down between neighbours of every kind, each within four sigma of none."""
    found = ups(0.5, range(20)) - 0.5
    others = {
        "columns": (found[:, :, 1:], found[:, :, :-1]),
        "far columns": (found[:, :, 100:], found[:, :, :-100]),
        "rows": (found[:, 1:], found[:, :-1]),
        "steps": (found[1:], found[:-1]),
        "tensors": (found, ups(0.5, range(20), what=1) - 0.5),
        "names": (found, ups(0.5, range(20), name="bias") - 0.5),
        "seeds": (found, ups(0.5, range(20), seed=8) - 0.5),
    }
    for kind, (one, other) in others.items():
        correlation = (4 * one * other).mean().item()
        assert abs(correlation) * math.sqrt(one.numel()) < 4, kind


def test_rows_and_columns_are_evenly_spread() -> None:
    """The sums over each row and each column vary as sums of independent draws do (chi-squared, five sigma)."""
    found = ups(0.5, range(20)) - 0.5
    for sums, draws in ((found.sum((0, 2)), 20 * COLUMNS), (found.sum((0, 1)), 20 * ROWS), (found.sum((1, 2)), 60_000)):
        squares = (sums.square() / (draws * 0.25)).sum().item()
        assert abs(squares - len(sums)) < 5 * math.sqrt(2 * len(sums))


def test_what_bf16_has_stays() -> None:
    values = random(ROWS, COLUMNS).bfloat16()
    special = torch.tensor([[0.0, -0.0, math.inf, -math.inf, 2**-133, -(2**-133), 1.0, 3.3895e38]]).bfloat16()
    for each in (values, special):
        for step in range(20):
            assert rounded(each.float(), step).view(torch.int16).equal(each.view(torch.int16))


def test_no_number_stays_none() -> None:
    """All bit patterns of NaN, among them CUDA's (0x7fffffff) and x86's (0xffc00000)."""
    nans = torch.tensor([[0x7FFFFFFF, -1, -0x400000, 0x7FC00000, 0x7F800001, -0x7FFFFF]], dtype=torch.int32)
    assert nans.view(torch.float32).isnan().all()
    for step in range(20):
        assert rounded(nans.view(torch.float32), step).isnan().all()


def test_neighbours_only_and_the_largest_number_may_become_infinite() -> None:
    values = torch.cat([random(ROWS, COLUMNS), torch.full((1, COLUMNS), 3.4e38)])
    found = rounded(values)
    down = (values.view(torch.int32) >> 16).to(torch.int16)
    assert ((found.view(torch.int16) == down) | (found.view(torch.int16) == down + 1)).all()
    assert found[-1].isinf().any()


@pytest.mark.parametrize("states", ["weights", "fp32"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_small_updates_arrive(optimizer: str, states: str) -> None:
    """100 steps of a thousandth of a unit in the last place: rounded to the nearest, nothing would happen."""
    rate, steps = 2**-8 * 1e-2, 100
    moved = {}
    for stochastic in (False, True):
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        train = Train(
            optimizer=optimizer,  # type: ignore[arg-type]
            optimizer_states=states,  # type: ignore[arg-type]
            precision="bf16", stochastic_rounding=stochastic, lr=rate, weight_decay=0.0,
        )  # fmt: skip
        made = build([("weight", weight)], train)
        for _ in range(steps):
            weight.grad = torch.ones_like(weight)
            made.step()
        moved[stochastic] = 1 - weight.double().mean().item()
    assert moved[False] == 0
    # A weight moves down by 2**-8 at a time; under LAMB the update has the norm of the weight, which is 1 on average.
    sigma = math.sqrt(steps * rate * 2**-8 / weight.numel())
    assert abs(moved[True] - rate * steps) < 3 * sigma + 0.01 * rate * steps


def test_bf16_moments_follow_the_gradients_down() -> None:
    """0.999 of a bf16 number is the number itself when it is rounded to the nearest: the second moment never falls."""
    found = {}
    for stochastic in (False, True):
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        made = build([("weight", weight)], Train(precision="bf16", stochastic_rounding=stochastic))
        weight.grad = torch.full_like(weight, 32.0)
        made.step()
        for _ in range(500):
            weight.grad = torch.zeros_like(weight)
            made.step()
        found[stochastic] = made.state[weight]["exp_avg_sq"].double().mean().item()
    first = 32.0**2 * 1e-3
    assert found[False] == pytest.approx(first, rel=0.01)
    assert found[True] == pytest.approx(first * 0.999**500, rel=0.03)


def trained(name: str = "weight", seed: int = 1234) -> Tensor:
    weight = nn.Parameter(random(30, 20).bfloat16())
    made = build([(name, weight)], Train(precision="bf16", stochastic_rounding=True, seed=seed))
    for step in range(5):
        weight.grad = random(30, 20).bfloat16() * (step + 1)
        torch.manual_seed(step)  # nothing depends on torch's generators
        made.step()
    return weight.detach()


def test_the_same_again_and_other_for_another_seed() -> None:
    assert trained().equal(trained())
    assert not trained().equal(trained(seed=1))
    assert not trained().equal(trained(name="other"))
