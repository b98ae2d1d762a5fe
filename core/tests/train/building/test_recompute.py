"""Activation checkpointing changes neither names nor numbers."""

import pytest
import torch
from torch import nn

from recipe_core.errors import ConfigError
from recipe_core.train.building.recompute import recompute


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(pattern: str) -> tuple[Net, int]:
    """Gradients after one backward pass, and how many tensors forward kept for it."""
    torch.manual_seed(0)
    net = Net()
    if pattern:
        recompute(net, pattern)
    kept = []
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = net(torch.ones(2, 4, requires_grad=True))
    count = len(kept)
    out.sum().backward()
    return net, count


def test_same_gradients_with_dropout_and_less_kept() -> None:
    (plain, kept), (again, kept_again) = trained(""), trained("blocks.*")
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert all(p.grad.equal(q.grad) for p, q in zip(again.parameters(), plain.parameters(), strict=True))
    assert kept_again < kept


@pytest.mark.parametrize("pattern", ["", "layers.*"])
def test_names_a_pattern_without_a_match(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.activation_checkpointing"):
        recompute(Net(), pattern)
