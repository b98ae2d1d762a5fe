"""The step is that of torch.optim.SGD."""

import torch
from recipe_core import Train, Trainable
from torch import nn

from recipe_new_plugin.optimizer import build
from recipe_new_plugin.plugin import Momentum


def test_steps_are_those_of_pytorch() -> None:
    start, gradients = torch.randn(3, 4), torch.randn(5, 3, 4)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    train = Train(weight_decay=0.0)
    optimizer = build(Momentum(momentum=0.9), Trainable(named=[("weight", ours)], train=train))
    peer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for gradient in gradients:
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        peer.step()
    torch.testing.assert_close(ours, theirs)
