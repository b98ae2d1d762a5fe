"""Gradients under neuronx-distributed's layers, of each parameter on each rank: as close to dense as native ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import Any

import nxd_real
import pytest
import torch
from neuron_on_host import RECIPES, batch_of, built, job_of, over_nxd
from torch import Tensor, nn

from recipe_core.checkpoint.lazy import lazy
from recipe_core.engine import precision
from recipe_core.engine import protocol as engines
from recipe_core.layouts.parallel import Batch, Parallel
from recipe_core.settings.job import Job
from recipe_core.testing import spawn

PRECISIONS = ("fp32", "bf16", "bf16_mixed")
SMALL = 1e-4
"""Of the norm of all gradients. Errors of a smaller one are measured against this: it is what is left of larger terms
that cancel out (a bias of attention's keys), whose rounding is all that 16 bits leave of it."""


def in_turn(recipe: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """In a rank: one backward pass in each precision and by each of ``ways``."""
    store, found = os.environ["RECIPE_STORE"], []
    for number, (by, width) in enumerate((by, width) for width in PRECISIONS for by in ways):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        found.append({"by": by, "precision": width, **one_pass(recipe, by, width)})
    return found


def one_pass(recipe: str, by: str, width: Any) -> dict[str, Any]:
    """The distance of each gradient to the whole model's, and a digest of the replicated ones."""
    size = int(os.environ["WORLD_SIZE"])
    over = nullcontext() if by == "native" else over_nxd(by == "real")
    words = ["train.engine=native", "layout=tp", f"layout.tp={size}", f"train.precision={width}"]
    job = job_of(recipe, words, size)
    with over, engines.start(job.train) as engine:
        model, loss, context = built(job, engine)
        dense, batch = whole(job), batch_of(job, context)
        if "next_sentence_labels" in batch:  # of one kind, or their gradients cancel out and leave what was rounded
            batch["next_sentence_labels"] = torch.ones_like(batch["next_sentence_labels"])

        def micro(module: nn.Module, batch: Batch, number: int) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=width == "bf16_mixed"):
                return loss(module(batch), batch)

        for each in (model, dense):
            each.backward([batch], micro)
        wanted = {name: gradient(p) for name, p in dense.named_parameters()}
        own = {name: gradient(p) for name, p in model.named_parameters()}
        found = {name: lazy(g).read() for name, g in model.with_placeholders(own).items()}
        assert found.keys() == wanted.keys()
        least = SMALL * torch.stack([g.norm() for g in wanted.values()]).norm()
        errors = {n: float((found[n] - g).norm() / torch.maximum(g.norm(), least)) for n, g in wanted.items()}
        same = {name: sha256(found[name].numpy()).hexdigest() for name in replicated(model, own)}
        return {"errors": errors, "same": same}


def whole(job: Job) -> Parallel:
    """The model on one rank, with the weights that the divided one begins with."""
    torch.manual_seed(job.train.seed)
    return Parallel(precision.cast(job.model.build(job.model.config)[0], job.train.precision))


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().float()


def replicated(model: Any, gradients: dict[str, Tensor]) -> list[str]:
    """Names of the parameters that each rank holds whole."""
    shards = getattr(model, "_shards", None)
    if shards is None:
        return [n for n, g in gradients.items() if all(p.is_replicate() for p in g.placements)]  # type: ignore[attr-defined]
    return [name for name in gradients if name not in shards]


def require_as_close_as_native(ranks: list[list[dict[str, Any]]]) -> None:
    """On every rank; and the ranks' own copies have one gradient, bit by bit."""
    for results in zip(*ranks, strict=True):
        for result in results:
            assert result["same"], "no parameter is held by all ranks"
            differing = [name for name, digest in result["same"].items() if digest != results[0]["same"][name]]
            assert not differing, (result["by"], result["precision"])
    for found in ranks:
        by = {(result["by"], result["precision"]): result for result in found}
        for (way, width), result in by.items():
            if way == "native":
                continue
            errors, native = result["errors"], by["native", width]["errors"]
            usual = median(native)
            assert usual < (1e-6 if width == "fp32" else 0.01), (width, usual)
            assert median(errors) <= max(1.25 * usual, 1e-6), (width, median(errors), usual)  # which is fp32's rounding
            far = {n: (e, native[n]) for n, e in errors.items() if e > max(2 * native[n], 2 * usual, 1e-6)}
            assert not far, (width, usual, far)


def median(errors: dict[str, float]) -> float:
    return float(torch.tensor(list(errors.values())).median())


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients(recipe: str, processes: int) -> None:
    """By the stand-in."""
    require_as_close_as_native(spawn(in_turn, processes, recipe, ["stand-in", "native"]))


@pytest.mark.peer
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_of_the_real_package(recipe: str, processes: int) -> None:
    """In its CPU mode, over gloo."""
    if reason := nxd_real.missing():
        pytest.skip(reason)
    require_as_close_as_native(spawn(in_turn, processes, recipe, ["real", "native"]))
