"""The transform changes nothing at first, trains factors alone, and its merged weights compute the same."""

import pytest
import torch
from recipe_core import ConfigError, Lazy, Structure
from torch import nn

from recipe_new_plugin.plugin import Scaled
from recipe_new_plugin.transform import merge, scaled


def net(bias: bool = True) -> nn.Sequential:
    """Return a model of two linear layers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5, bias), nn.ReLU(), nn.Linear(5, 2, bias))


@pytest.mark.parametrize("bias", [False, True])
def test_factors_alone_are_trained(bias: bool) -> None:
    x, plain = torch.randn(4, 3), net(bias)
    module = scaled(Scaled(), net(bias), Structure())
    assert torch.equal(module(x), plain(x))
    module(x).sum().backward()
    trained = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
    assert trained == {"0.output_factor", "2.output_factor"}


def test_merged_weights_compute_the_same() -> None:
    module = scaled(Scaled(targets=("0",)), net(), Structure())
    with torch.no_grad():
        module.get_parameter("0.output_factor").uniform_(0.5, 2.0)
    weights = {name: Lazy(t.shape, t.dtype, lambda t=t: t) for name, t in module.state_dict().items()}
    plain = net()
    plain.load_state_dict({name: tensor.read() for name, tensor in merge(Scaled(), weights).items()})
    x = torch.randn(4, 3)
    torch.testing.assert_close(plain(x), module(x))


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"the model has no linear layer '1'.*there are: 0, 2"):
        scaled(Scaled(targets=("1",)), net(), Structure())


def test_a_shared_weight_stays_as_it_is() -> None:
    tied = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4, bias=False))
    tied[2].weight = tied[0].weight
    module = scaled(Scaled(), tied, Structure())
    assert [name for name, parameter in module.named_parameters() if parameter.requires_grad] == ["1.output_factor"]
