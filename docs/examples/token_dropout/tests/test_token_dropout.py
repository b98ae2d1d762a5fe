"""The wrappers keep and replace what they should, and conform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe_core import Batch, SampleGenerators
from recipe_core.settings.job import resolve
from recipe_core.testing import PluginConformance, toy
from recipe_core.testing.checkpoints import equal, tensors
from recipe_core.train.run import run

plugin = pytest.importorskip("recipe_token_dropout.plugin", reason="the example is not installed")
wrappers = pytest.importorskip("recipe_token_dropout.wrappers")


class TestTokenDropout(PluginConformance):
    plugin = "recipe_token_dropout.plugin"


class Functions:
    """A run that returns the functions of the wrappers."""

    def filtered(self, samples: object, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    mapped = filtered


def test_repeated_tokens_are_left_out() -> None:
    keep = wrappers.no_repeats(plugin.NoRepeats(most=0.5), None, Functions())
    rows = torch.tensor([[1, 2, 3, 4], [7, 7, 3, 4], [7, 7, 7, 4]])
    assert keep({"tokens": rows}).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="most: expected a share above 0, up to 1, got 0"):
        plugin.NoRepeats(most=0)


def dropped(start: int, count: int) -> Tensor:
    change = wrappers.token_dropout(plugin.TokenDropout(tensor="tokens", share=0.2), None, Functions())
    batch: Batch = {"labels": torch.ones(count, 100), "tokens": torch.ones(count, 100, dtype=torch.int64)}
    changed = change(batch, SampleGenerators("seed", start, count))
    assert torch.equal(changed["labels"], batch["labels"])
    tokens: Tensor = changed["tokens"]
    return tokens


def test_a_share_of_the_tokens_of_each_sample_is_replaced() -> None:
    whole = dropped(0, 50)
    assert 0.18 < (whole == 0).float().mean() < 0.22
    assert torch.equal(dropped(17, 3), whole[17:20])
    assert not torch.equal(whole[0], whole[1])


def test_a_run_continues_with_the_same_tokens(tmp_path: Path) -> None:
    words = ["train.device=cpu", "wrappers=no_repeats,token_dropout", "wrapper.token_dropout.share=0.3"]
    job = resolve(toy.registry(plugin), "toy", words)
    run(job, tmp_path / "whole")
    run(resolve(toy.registry(plugin), "toy", [*words, "train.stop_after=3"]), tmp_path / "halves")
    run(job, tmp_path / "halves")
    assert equal(tensors(tmp_path / "whole"), tensors(tmp_path / "halves"))
    plain = resolve(toy.registry(plugin), "toy", ["train.device=cpu"])
    run(plain, tmp_path / "plain")
    assert not equal(tensors(tmp_path / "whole"), tensors(tmp_path / "plain"))
