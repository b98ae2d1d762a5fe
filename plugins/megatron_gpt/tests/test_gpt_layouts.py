"""The large variants under layouts that divide them: what `recipe check` says before anything starts."""

from __future__ import annotations

import pytest

from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs.loop import optimizer_facts
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.check.estimate import Estimate, estimate
from recipe_core.train.start.preflight import division_problems

RANKS = 32
"""Eight in a team, four teams."""


def needs(*words: str) -> Estimate:
    job = checked_job(load(), "megatron_gpt:6.7b", words, RANKS)
    assert division_problems(job, RANKS) == []
    model, data = job.facts.model, job.facts.data
    assert model is not None
    assert data is not None
    return estimate(model, data, job.train, *job.division(RANKS), optimizer_facts(job.optimizer, job.train, model))


def test_6_7b_on_32_ranks() -> None:
    alone, team = needs("layout=ddp"), needs("layout=tp", "layout.tp=8")
    assert team.parameters == alone.parameters
    for kind in ("weights", "gradients", "optimizer"):  # all but norms, positions and some biases is cut
        assert getattr(team, kind) / getattr(alone, kind) == pytest.approx(1 / 8, rel=0.01)
    sharded = needs("layout=tp", "layout.tp=8", "layout.data=zero1")
    assert sharded.optimizer == pytest.approx(team.optimizer / 4, rel=1e-6)
    assert sharded.memory < team.memory < alone.memory
    staged = needs("layout=pp", "layout.pp=4", "layout.tp=8")
    assert staged.weights / team.weights == pytest.approx(1 / 4, rel=0.1)  # the ends have the vocabulary beside blocks
    everything = needs("layout=fsdp")
    assert everything.optimizer == pytest.approx(alone.optimizer / RANKS, rel=1e-6)


def test_a_checkpoint_is_the_same_under_all() -> None:
    sizes = {needs(*words).checkpoint for words in (["layout=ddp"], ["layout=tp", "layout.tp=8"], ["layout=fsdp"])}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layout=tp", "layout.tp=64"], "tp 64 takes a multiple of 64 processes, and this run has 32"),
        (["layout=tp", "layout.tp=16", "model.heads=8"], "16 does not divide model.heads, which is 8; take 1, 2, 4 or"),
        (["layout=pp", "layout.pp=32", "model.layers=8"], "32 stages need as many blocks, and the model has 8"),
        (["layout=pp", "checkpoint=single"], "checkpoint.use: single is written by one process"),
        (
            ["layout=tp", "layout.tp=4", "layout.data=fsdp", "model.vocabulary=50257", "data.vocabulary=50257"],
            "4 does not divide model.vocabulary, which is 50,257, and layout.data=fsdp shares out parts of one size",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_divided(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_job(load(), "megatron_gpt:6.7b", words, RANKS)
