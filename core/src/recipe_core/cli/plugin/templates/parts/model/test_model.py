"""The model computes what it should."""

import torch

from recipe_new_plugin.model import build
from recipe_new_plugin.settings import Decoder


def test_a_token_sees_only_those_before_it() -> None:
    module, _ = build(Decoder(layers=2, hidden=32, heads=2, positions=16, vocabulary=10))
    tokens = torch.arange(16)[None] % 10
    changed = tokens.clone()
    changed[0, 9] = 5
    before, after = module({"tokens": tokens}), module({"tokens": changed})
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_a_random_model_knows_nothing() -> None:
    module, loss = build(Decoder(layers=2, hidden=32, heads=2, positions=16, vocabulary=10))
    tokens = torch.arange(32).view(2, 16) % 10
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
    assert abs(float(loss(module(batch), batch)["loss"]) - 2.303) < 0.1  # ln 10
