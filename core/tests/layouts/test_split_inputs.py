"""Submodules with several inputs under tensor parallelism: every input has the gradient of a single process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from recipe_core.engine import protocol as engines
from recipe_core.errors import PluginError
from recipe_core.hooks.train import Train
from recipe_core.layouts.tensor_parallel import roles
from recipe_core.layouts.tensor_parallel.inputs import Inputs, parse_role
from recipe_core.layouts.tensor_parallel.plan import assign, divide, partial_gradients
from recipe_core.testing import spawn

WORDS, WIDTH, HEADS, LENGTH, MEMORY, ROWS = 8, 8, 4, 6, 10, 3


class Cross(nn.Module):
    """Attention from the stream to another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)  # a bias would add the same to all scores of a query
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(
        self, hidden: Tensor, memory: Tensor, *, mask: Tensor, bias: Tensor | None = None,
        shifts: Mapping[str, tuple[Tensor, float]] | None = None,
    ) -> Tensor:  # fmt: skip
        if shifts is not None:
            shift, factor = shifts["memory"]
            memory = memory + shift * factor
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part, x in ((self.query, hidden), (self.key, memory), (self.value, memory))
        )
        scores = q @ k.transpose(-1, -2) * self.scale
        if bias is not None:
            scores = scores + bias
        scores = scores.masked_fill(~mask[:, None, None], -1e9)
        output: Tensor = self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return output


class ShiftedNorm(nn.Module):
    """A norm whose shift comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, shift: Tensor) -> Tensor:
        output: Tensor = self.norm(hidden) + shift
        return output


class Last(nn.Module):
    """Needs all positions of both sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, other: Tensor, add: Tensor) -> Tensor:
        output: Tensor = self.linear(hidden) + other.mean(1, keepdim=True) + add
        return output


class Net(nn.Module):
    """Two sequences, a learned bias and a condition, which enter submodules by position, by keyword and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.others = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.condition = nn.Embedding(ROWS, WIDTH)
        self.bias = nn.Embedding(LENGTH, MEMORY)
        self.norm = ShiftedNorm()
        self.first, self.second = Cross(), Cross()
        self.last = Last()
        self.recomputed = False

    def forward(self, ids: Tensor, other_ids: Tensor) -> Tensor:
        hidden, memory = self.words(ids), self.others(other_ids)
        shift = self.condition(torch.arange(ROWS))[:, None]
        bias, mask = self.bias(torch.arange(LENGTH)), other_ids > 1
        hidden = self.norm(hidden, shift=shift)
        hidden = hidden + self._call(self.first, memory=memory, hidden=hidden, mask=mask)
        shifts = {"memory": (shift, 0.5)}
        hidden = hidden + self._call(self.second, hidden, memory, mask=mask, bias=bias, shifts=shifts)
        output: Tensor = self.last(hidden, other=memory, add=shift)
        return output

    def _call(self, block: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = (
            checkpoint(block, *args, use_reentrant=False, **kwargs) if self.recomputed else block(*args, **kwargs)
        )
        return output


INSIDE = {"query": "column", "key": "column", "value": "column", "output": "row"}
PLAN = {
    "words": "vocabulary_in", "others": "vocabulary_in", "condition": "whole", "bias": "whole",
    "norm": "sequence(hidden)", "first": "split(hidden, memory)", "second": "split( hidden,memory )",
    "last": "replicated(hidden, other)",
    **{f"{block}.{name}": role for block in ("first", "second") for name, role in INSIDE.items()},
}  # fmt: skip
PLAIN = {**PLAN, "norm": "sequence", "first": "split", "second": "split", "last": "replicated"}
CASES = {
    "plain": (PLAIN, False), "named": (PLAN, False), "sequence": (PLAN, True), "recomputed": (PLAIN, False),
    "recomputed, sequence": (PLAN, True), "compiled": (PLAIN, False), "compiled, sequence": (PLAN, True),
    "compiled, evaluated": (PLAIN, False), "compiled, sequence, evaluated": (PLAN, True),
}  # fmt: skip


def net() -> Net:
    torch.manual_seed(0)
    return Net().double()  # so that sums in another order differ by nothing that counts


def ids(length: int, seed: int) -> Tensor:
    return torch.randint(WORDS, (ROWS, length), generator=torch.Generator().manual_seed(seed))


def step(module: nn.Module) -> Tensor:
    """The output of a backward pass."""
    output: Tensor = module(ids(LENGTH, 1), ids(MEMORY, 2))
    (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).tanh().sum().backward()
    return output.detach()


def divided() -> dict[str, Any]:
    """Outputs and whole gradients of each case, and the messages of plans that are refused."""
    with engines.start(Train(device="cpu")) as engine:
        mesh = engine.mesh({"dp": 1, "tp": engine.world_size})
        assert mesh is not None
        cases = {name: _case(mesh["tp"], name, *case) for name, case in CASES.items()}
        return {"cases": cases, "refused": {name: _refused(mesh["tp"], name) for name in REFUSED}}


def _case(mesh: DeviceMesh, name: str, plan: Mapping[str, str], sequence: bool) -> dict[str, Any]:
    module = net()
    tp = divide(module, plan, mesh, torch.device("cpu"), sequence)
    module.recomputed = "recomputed" in name
    module.train("evaluated" not in name)
    if "compiled" in name:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        for block in (module.first, module.second):
            block.forward = torch.compile(block.forward, backend="aot_eager")
    output = step(module)
    graphs = dict(torch._dynamo.utils.counters["stats"])["unique_graphs"] if "compiled" in name else 0
    breaks = list(torch._dynamo.utils.counters["graph_break"])
    for gradient in partial_gradients(tp):
        dist.all_reduce(gradient, group=tp.group)
    gradients = {}
    for parameter_name, parameter in module.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        gradients[parameter_name] = parameter.grad.full_tensor().numpy()
    return {"output": output.numpy(), "gradients": gradients, "graphs": graphs, "breaks": breaks}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn(divided, 2)


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients_are_those_of_the_undivided_model(name: str, ranks: list[dict[str, Any]]) -> None:
    whole = net()
    output = step(whole)
    for found in (rank["cases"][name] for rank in ranks):
        torch.testing.assert_close(torch.from_numpy(found["output"]), output, rtol=0, atol=1e-12)
        for parameter_name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 1e-6, parameter_name  # it takes part
            gradient = torch.from_numpy(found["gradients"][parameter_name])
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-12, msg=parameter_name)
        assert (found["graphs"] >= 2) == ("compiled" in name)
        if "evaluated" in name:  # training breaks the graph to seed the generators
            assert found["breaks"] == []


@dataclass
class Held:
    memory: Tensor


class Indirect(nn.Module):
    """Passes the memory within an object."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Cross()

    def forward(self, hidden: Tensor, held: Held, mask: Tensor) -> Tensor:
        output: Tensor = self.block(hidden, held.memory, mask=mask)
        return output


def _refused(mesh: DeviceMesh, name: str) -> str:
    module = net()
    change, _ = REFUSED[name]
    plan = {**PLAN, **change}
    if name == "frozen":
        module.others.requires_grad_(requires_grad=False)
        module.condition.requires_grad_(requires_grad=False)
    if name == "object":
        module.first = Indirect().double()
        module._call = lambda block, *args, **kwargs: block(  # type: ignore[method-assign]
            kwargs["hidden"], Held(kwargs["memory"]), kwargs["mask"]
        )
        plan = {key.replace("first.", "first.block."): role for key, role in plan.items()}
    divide(module, plan, mesh, torch.device("cpu"), name != "object")
    try:
        step(module)
    except PluginError as error:
        return str(error)
    return ""


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "split": (
        {"first": "split"},
        "tensor plan: first: with layout.sequence_parallel=true it is not clear whether the input memory is split "
        'along the sequence, as hidden is. Name the inputs that are: "split(hidden, memory)", or "split(hidden)" if it '
        "is whole on every rank; or take layout.sequence_parallel=false",
    ),
    "frozen": ({"first": "split"}, "tensor plan: first: with layout.sequence_parallel=true it is not clear whether"),
    "sequence": ({"norm": "sequence"}, "it is not clear whether the input shift is split along the sequence"),
    "object": (
        {"first": "split"},
        "tensor plan: first: the input held is a Held whose memory needs a gradient, and the layout does not look into "
        "it; pass the tensor as an input of its own",
    ),
}


def refusal(role: str, forward: Any, *args: Any) -> str:
    """The message to a call of a submodule with a role, whose sequence is split."""
    module = nn.Module()
    module.forward = forward
    inputs = Inputs.of(module, "part", parse_role(role))
    with pytest.raises(PluginError) as caught:
        inputs.map(args, {}, lambda x: x, lambda x: x, roles._may_be_split)
    return str(caught.value)


def test_how_to_name_an_input_that_is_not_clear() -> None:
    hidden = torch.ones(1, 2, 3, requires_grad=True)
    only = refusal("split", lambda given: given, {"hidden": hidden})
    assert only == (
        "tensor plan: part: with layout.sequence_parallel=true it is not clear whether the input given is split along "
        'the sequence. Name the inputs that are: "split(given)"; or take layout.sequence_parallel=false'
    )
    unnamed = refusal("split", lambda *given: given, hidden, hidden)
    assert unnamed == (
        "tensor plan: part: with layout.sequence_parallel=true it is not clear whether the input number 2 is split "
        "along the sequence, as number 1 is. Give it a name among the parameters of forward, and name those that are "
        "in the plan; or take layout.sequence_parallel=false"
    )


def test_what_is_no_tensor_of_numbers_passes() -> None:
    """A mask, a table of another shape, and values of any type."""
    module = nn.Module()
    module.forward = lambda mask, hidden, table, more: None
    inputs = Inputs.of(module, "part", parse_role("split"))
    hidden, mask, table = torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool), torch.ones(2, 3)
    more = {"ids": torch.ones(2, dtype=torch.int64), "name": "x", "none": None}
    entered: list[Tensor] = []

    def enter(x: Tensor) -> Tensor:
        entered.append(x)
        return x * 2

    args, kwargs = inputs.map((mask, hidden, table), {"more": more}, enter, lambda x: x, roles._may_be_split)
    assert [x is hidden for x in entered] == [True]
    assert args[0] is mask
    assert args[1].equal(hidden * 2)
    assert args[2] is table
    assert kwargs == {"more": more}


@pytest.mark.parametrize("name", REFUSED)
def test_an_input_that_would_get_a_wrong_gradient_is_refused(name: str, ranks: list[dict[str, Any]]) -> None:
    assert all(REFUSED[name][1] in rank["refused"][name] for rank in ranks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"first": "split(hiden)"},
            r"first: split names the input hiden, .* did you mean 'hidden'\? \(it takes ",
        ),
        ({"words": "vocabulary_in(input)"}, r"words: vocabulary_in names inputs \(input\); only split, sequence, repl"),
        ({"first": "split()"}, r"first: no such role as 'split\(\)'; did you mean 'split'"),
        ({"fir*": "split(hidden)"}, r"first: two patterns name it, as split\(hidden, memory\) and as split\(hidden\)"),
        ({"first.value": "split"}, r"first\.value: split inside first, which is split too; keep one of them"),
    ],
)
def test_a_plan_whose_inputs_do_not_fit(change: dict[str, str], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assign(net(), {**PLAN, **change}, 2)
