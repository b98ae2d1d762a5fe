"""The slow weights follow the formula, and a run with them conforms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipe_core.settings.job import resolve
from recipe_core.testing import PluginConformance, toy
from recipe_core.testing.checkpoints import tensors
from recipe_core.train.run import run

plugin = pytest.importorskip("recipe_lookahead.plugin", reason="the example is not installed")


class TestLookahead(PluginConformance):
    plugin = "recipe_lookahead.plugin"


def weights(folder: Path, *words: str) -> dict[str, Tensor]:
    run(resolve(toy.registry(plugin), "toy", ["train.device=cpu", "train.trackers=", *words]), folder)
    return tensors(folder)


def test_an_update_takes_a_share_of_the_way(tmp_path: Path) -> None:
    words = ("callbacks=lookahead", "callback.lookahead.every=3", "callback.lookahead.share=0.25")
    start = weights(tmp_path / "start", *words, "train.stop_after=1")
    plain = weights(tmp_path / "plain", "train.stop_after=3")
    there = weights(tmp_path / "there", *words, "train.stop_after=3")
    for name in (name for name in plain if name.startswith("model.")):
        slow = f"callbacks.lookahead.slow.{name.removeprefix('model.')}"
        torch.testing.assert_close(there[name], start[slow].lerp(plain[name], 0.25))
        assert torch.equal(there[name], there[slow])
