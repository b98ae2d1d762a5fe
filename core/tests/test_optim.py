"""AdamW's groups and its fused kernel."""

import torch
from torch import nn

from recipe_core import Train
from recipe_core.optim import adamw, set_learning_rate


def test_biases_and_norms_do_not_decay() -> None:
    module = nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    optimizer = adamw(module.parameters(), Train(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(module[0].weight), id(module[2].weight)}
    assert {id(p) for p in plain["params"]} == {id(module[1].weight), id(module[1].bias), id(module[2].bias)}


def test_is_fused_on_this_device_and_follows_the_schedule() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = adamw([weight], Train(lr=1.0, weight_decay=0.0))
    assert optimizer.defaults["fused"]
    set_learning_rate(optimizer, 0.0)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert weight.equal(torch.ones(2, 2))
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5))  # Adam's first step: the sign of the gradient
