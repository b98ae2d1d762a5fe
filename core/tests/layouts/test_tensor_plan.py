"""A tensor plan applied: mistakes by name, ties kept, and the outputs and gradients of the undivided model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from recipe_core.engine import protocol as engines
from recipe_core.engine.protocol import Engine
from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.train import Train
from recipe_core.layouts.tensor_parallel.plan import assign, divide, partial_gradients
from recipe_core.layouts.tensor_parallel.rng import peek_seed, stream
from recipe_core.ops.vocabulary import linear_logits
from recipe_core.testing import spawn

WORDS, WIDTH, LENGTH = 8, 4, 6


class Inside(nn.Module):
    """Two matrices, and between them a norm without a role of its own, which sees a part of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.scale = nn.LayerNorm(2)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        features = self.scale(self.up(hidden).unflatten(-1, (-1, 2))).flatten(-2)
        output: Tensor = self.down(torch.tanh(features))
        return output


class Net(nn.Module):
    """Every role once; the output is tied to the words, with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.block = Inside()
        self.wide, self.narrow = nn.Linear(WIDTH, 6, bias=False), nn.Linear(6, WIDTH)
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.output = nn.Linear(WIDTH, WORDS)
        self.output.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        hidden = hidden + self.block(self.norm(hidden))
        hidden = hidden + self.narrow(torch.relu(self.wide(hidden)))
        logits: Tensor = self.output(self.last(hidden))
        return logits


PLAN = {
    "words": "vocabulary_in",
    "places": "sequence",
    "norm": "sequence",
    "block": "split",
    "block.up": "column",
    "block.down": "row",
    "wide": "column",
    "narrow": "row",
    "last": "replicated",
    "output": "vocabulary_out",
}


def net() -> Net:
    torch.manual_seed(0)
    return Net().double()  # so that sums in another order differ by nothing that counts


def ids() -> Tensor:
    return torch.randint(WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def step(module: nn.Module) -> Tensor:
    """The logits of a backward pass."""
    logits: Tensor = module(ids())
    nn.functional.cross_entropy(logits.flatten(0, 1), ids().flatten()).backward()
    return logits.detach()


def divided() -> list[dict[str, Any]]:
    with engines.start(Train(device="cpu")) as engine:
        mesh = engine.mesh({"dp": 1, "tp": engine.world_size})
        assert mesh is not None
        return [_divided(engine, mesh, sequence) for sequence in (False, True)]


def _divided(engine: Engine, mesh: DeviceMesh, sequence: bool) -> dict[str, Any]:
    """Logits and whole gradients of the divided net."""
    module = net()
    team = divide(module, PLAN, mesh["tp"], engine.device, sequence)
    assert module.output.weight is module.words.weight
    logits = step(module)
    for gradient in partial_gradients(team):
        torch.distributed.all_reduce(gradient, group=team.group)
    gradients = {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        gradients[name] = parameter.grad.full_tensor().numpy()
    local = {name: list(p.to_local().shape) for name, p in module.named_parameters() if isinstance(p, DTensor)}
    return {"logits": logits.numpy(), "gradients": gradients, "local": local}


def test_outputs_and_gradients_are_those_of_the_undivided_model() -> None:
    """With and without sequence parallelism."""
    whole = net()
    logits = step(whole)
    for found in (case for rank in spawn(divided, 2) for case in rank):
        torch.testing.assert_close(torch.from_numpy(found["logits"]), logits, rtol=0, atol=1e-12)
        for name, parameter in whole.named_parameters():
            gradient = torch.from_numpy(found["gradients"][name])
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-12)
        assert found["local"]["block.up.weight"] == [4, 4]
        assert found["local"]["block.down.weight"] == [4, 4]
        assert found["local"]["words.weight"] == [4, 4]
        assert found["local"]["narrow.bias"] == [4]


class Mesh:
    """As much of a mesh as the checks of a plan look at."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks

    def get_group(self) -> None:
        return None

    def get_local_rank(self) -> int:
        return 0


def apply(module: nn.Module, plan: dict[str, str], ranks: int = 2) -> None:
    divide(module, plan, Mesh(ranks), torch.device("cpu"), False)  # type: ignore[arg-type]


def test_a_tied_parameter_has_all_or_a_part_of_its_gradient_under_each_name() -> None:
    """With the sequence split, a part of it under one name and all of it under the other: no sum would be right."""
    module = net()
    module.last[0].weight = module.norm.weight
    assert not assign(module, PLAN, 2).cuts[module.norm.weight].partial
    with pytest.raises(
        PluginError, match=r"norm\.weight and last\.0\.weight are one tied parameter, .* cannot be added"
    ):
        assign(module, PLAN, 2, sequence=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.up": "column"}, r"blocks\.up: the model has no such submodule; did you mean 'block\.up'\?"),
        ({"wide": "colunm"}, r"wide: no such role as 'colunm'; did you mean 'column'\?"),
        ({"w*": "row"}, "words: two patterns name it, as vocabulary_in and as row"),
        ({"norm": "column"}, "norm: column is a role for Linear, and this is LayerNorm"),
        ({"last": None}, r"no role for what holds last\.0\.weight, last\.0\.bias, last\.1\.weight, last\.1\.bias"),
        ({"output": "replicated"}, r"words\.weight and output\.weight are one tied parameter, .* cut by rows .* whole"),
    ],
)
def test_a_plan_that_does_not_fit_the_model(change: dict[str, str | None], message: str) -> None:
    plan = {pattern: role for pattern, role in {**PLAN, **change}.items() if role is not None}
    with pytest.raises(PluginError, match=message):
        apply(net(), plan)


def test_a_degree_that_does_not_divide() -> None:
    with pytest.raises(ConfigError, match=r"layout\.tp: 3 does not divide dimension 0 of block\.up\.weight, which is"):
        apply(net(), PLAN, ranks=3)


def test_parts_of_a_vocabulary_may_differ_but_every_rank_has_one() -> None:
    module, plan = nn.Module(), {"words": "vocabulary_in"}
    module.words = nn.Embedding(10, 4)
    assert assign(module, plan, 3).cuts[module.words.weight].dim == 0
    with pytest.raises(ConfigError, match=r"layout\.tp: 3 does not divide dimension 0 of words\.weight, which is 10"):
        assign(module, plan, 3, even=True)
    with pytest.raises(ConfigError, match=r"layout\.tp: 6 does not divide"):
        assign(module, plan, 6)  # two rows each would leave the last one none


def test_streams_depend_on_their_words_and_disturb_nothing() -> None:
    torch.manual_seed(3)
    before, number = torch.get_rng_state(), peek_seed()
    draws = []
    for words in [(number, 0), (number, 1), (number, 0)]:
        with stream(torch.device("cpu"), *words):
            draws.append(torch.rand(4))
    assert draws[0].equal(draws[2])
    assert not draws[0].equal(draws[1])
    assert torch.get_rng_state().equal(before)
    assert peek_seed() == number
    torch.rand(1)
    assert peek_seed() != number


class Noise(nn.Module):
    """Dropout where the residual stream is, and where the features are divided."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5), nn.Linear(8, 8, bias=False))

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(self.block(hidden), 0.5, self.training)


def others() -> dict[str, Any]:
    with engines.start(Train(device="cpu")) as engine:
        mesh = engine.mesh({"dp": 1, "tp": engine.world_size})
        assert mesh is not None
        return {
            "logits": _logits(engine, mesh),
            "noise": [_noise(engine, mesh, sequence) for sequence in (False, True)],
        }


def _noise(engine: Engine, mesh: DeviceMesh, sequence: bool) -> list[Any]:
    """The values that dropout keeps: in the stream, and in the divided features."""
    module = Noise()
    for parameter in module.parameters():
        nn.init.ones_(parameter)
    plan = {"block": "split", "block.0": "column", "block.2": "row"}
    divide(module, plan, mesh["tp"], engine.device, sequence)
    kept = []
    module.block[1].register_forward_hook(lambda m, a, output: kept.append((output != 0).flatten().tolist()))
    engine.seed(5)
    out = module(torch.ones(1, 4 if sequence else 8, 8))
    return [(out != 0).flatten().tolist(), kept[0]]


def _logits(engine: Engine, mesh: DeviceMesh) -> list[Any]:
    """Whole logits of a divided output, with the gradients of both factors."""
    module = net()
    divide(module, PLAN, mesh["tp"], engine.device, False)
    hidden = torch.linspace(-1, 1, 2 * WIDTH, dtype=torch.float64).view(2, WIDTH).requires_grad_()
    found = linear_logits(hidden, module.words.weight)
    (found * torch.arange(2 * WORDS).view(2, WORDS)).sum().backward()
    assert hidden.grad is not None
    assert isinstance(module.words.weight.grad, DTensor)
    return [found.detach().numpy(), hidden.grad.numpy(), module.words.weight.grad.full_tensor().numpy()]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn(others, 2)


def test_dropout_is_the_same_where_ranks_hold_the_same_and_differs_where_they_do_not(
    ranks: list[dict[str, Any]],
) -> None:
    for sequence in (False, True):
        (first, inside), (second, other) = (rank["noise"][sequence] for rank in ranks)
        assert (first == second) is not sequence
        assert inside != other


def test_whole_logits_of_a_divided_output(ranks: list[dict[str, Any]]) -> None:
    module = net()
    hidden = torch.linspace(-1, 1, 2 * WIDTH, dtype=torch.float64).view(2, WIDTH).requires_grad_()
    found = linear_logits(hidden, module.words.weight)
    (found * torch.arange(2 * WORDS).view(2, WORDS)).sum().backward()
    for got in (rank["logits"] for rank in ranks):
        for value, wanted in zip(got, (found.detach(), hidden.grad, module.words.weight.grad), strict=True):
            torch.testing.assert_close(torch.from_numpy(value), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("cuts", "partial"), [({"row": {}}, True), ({"column": {"factor": 0}}, False), ({}, False)])
def test_parameters_that_a_transform_adds_to_a_role(cuts: dict[str, dict[str, int]], partial: bool) -> None:
    class Scaled(nn.Linear):
        role_cuts = cuts

    model = nn.Sequential(Scaled(4, 4))
    model[0].factor = nn.Parameter(torch.ones(4))
    cut = assign(model, {"0": "row"}, 2).cuts[model[0].factor]
    assert (cut.dim, cut.partial) == (None, partial)
