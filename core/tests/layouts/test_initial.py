"""Models that are built without values, and get them part by part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recipe_core.layouts.materialise import materialise


class Net(nn.Module):
    """Two layers and an output tied to the first; a buffer."""

    numbers: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3)
        self.middle = nn.Linear(3, 3)
        self.output = nn.Linear(3, 4, bias=False)
        self.output.weight = self.words.weight
        self.register_buffer("numbers", torch.zeros(2, dtype=torch.int64))
        self.asked: list[str] = []

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        self.asked.append(name)
        if name == "numbers":
            return torch.arange(2)
        return torch.full(shape, float(len(name)))


@pytest.fixture
def net() -> Net:
    with torch.device("meta"):
        return Net()


def test_all_values_are_asked_for_once_and_ties_stay(net: Net) -> None:
    materialise(net, torch.device("cpu"))
    assert net.asked == ["words.weight", "middle.weight", "middle.bias", "numbers"]
    assert net.output.weight is net.words.weight
    assert net.middle.weight.eq(len("middle.weight")).all()
    assert net.numbers.tolist() == [0, 1]
    assert isinstance(net.middle.weight, nn.Parameter)


def test_a_part_gets_its_values_by_the_names_of_the_whole(net: Net) -> None:
    materialise(net, torch.device("cpu"), part=net.middle)
    assert net.asked == ["middle.weight", "middle.bias"]
    assert net.words.weight.is_meta
    materialise(net, torch.device("cpu"))
    assert net.asked[2:] == ["words.weight", "numbers"]  # what has values keeps them
    assert not any(tensor.is_meta for tensor in [*net.parameters(), *net.buffers()])


def test_the_width_of_the_weights_stays() -> None:
    with torch.device("meta"):
        net = Net().bfloat16()
    materialise(net, torch.device("cpu"))
    assert net.middle.weight.dtype is torch.bfloat16
    assert net.numbers.dtype is torch.int64
