"""A model and its optimizer as one dict: names, ties, and an exact resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.state import apply_state, gather_state, state_size
from recipe_core.engine import protocol as engines
from recipe_core.engine.precision import cast
from recipe_core.engine.protocol import Engine
from recipe_core.errors import CheckpointError
from recipe_core.hooks.train import Train
from recipe_core.testing import spawn
from recipe_core.train.optim import build
from recipe_core.train.optim.adamw import AdamW


class Tied(nn.Module):
    """An embedding tied to the output, a frozen weight, a buffer, and a weight that gets no gradient."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("seen", torch.tensor(float(seed)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.frozen(torch.tanh(self.inner(self.embedding(ids)))))


LINEAR = {f"{name}.{kind}" for name in ("inner", "unused", "frozen") for kind in ("weight", "bias")}
NAMES = {"embedding.weight", "seen", *LINEAR}


def adamw(module: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    decayed, others = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.05, **settings)


def fused(module: nn.Module) -> torch.optim.Optimizer:
    return adamw(module, fused=True)


def tensor_lr(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=torch.tensor(0.05))


def momentum(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    """Train steps ``first`` to ``last - 1``; their losses."""
    losses = []
    for number in range(first, last):
        ids = torch.arange(12).reshape(3, 4) * (number + 1) % 7
        loss = nn.functional.cross_entropy(module(ids).flatten(0, 1), ids.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def bits(state: Any) -> Any:
    """Every value of a state, comparable."""
    if isinstance(state, Tensor):
        return str(state.dtype), tuple(state.shape), state.detach().reshape(-1).view(torch.uint8).tolist()
    if isinstance(state, dict):
        return {key: bits(value) for key, value in state.items()}
    return [bits(value) for value in state] if isinstance(state, list) else state


def test_names_and_ties() -> None:
    module = Tied()
    state = gather_state(module, adamw(module))
    trained = NAMES - {"frozen.weight", "frozen.bias", "seen"}
    assert state["model"].keys() == NAMES
    assert state["optimizer"]["state"].keys() == trained
    assert state["optimizer"].keys() == {"state"}
    assert state["model"]["embedding.weight"].data_ptr() == module.output.weight.data_ptr()


def test_states_have_the_order_of_the_weights_whoever_was_updated_first() -> None:
    module = Tied()
    optimizer = adamw(module)
    for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
        module.zero_grad(set_to_none=True)
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    state = gather_state(module, optimizer)
    assert list(state["optimizer"]["state"]) == [name for name in state["model"] if name in state["optimizer"]["state"]]


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


def compiled_inside(module: nn.Module) -> nn.Module:
    module.inner = torch.compile(module.inner, backend="eager")  # type: ignore[assignment]
    return module


def checkpointed_inside(module: nn.Module) -> nn.Module:
    module.output = checkpoint_wrapper(module.output)
    return module


@pytest.mark.parametrize("wrap", [compiled, compiled_in_place, compiled_inside, checkpointed_inside])
def test_names_are_free_of_wrappers(wrap: Callable[[nn.Module], nn.Module]) -> None:
    plain, module = Tied(), wrap(Tied())
    expected, state = gather_state(plain, adamw(plain)), gather_state(module, adamw(module))
    assert bits(state) == bits(expected)
    other = wrap(Tied(seed=1))
    apply_state(other, optimizer := adamw(other), expected)
    assert bits(gather_state(other, optimizer)) == bits(expected)


@pytest.mark.parametrize("make", [adamw, fused, tensor_lr, momentum])
@pytest.mark.parametrize("done", [0, 3])
def test_resume_is_exact(tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer], done: int) -> None:
    """Train, save, train on: the same bits as loading into a fresh model and optimizer and training on from there."""
    untouched = Tied()
    expected = steps(untouched, whole := make(untouched), 0, done + 2)

    module = Tied()
    steps(module, optimizer := make(module), 0, done)
    Dcp().save(tmp_path, gather_state(module, optimizer))
    assert steps(module, optimizer, done, done + 2) == expected[done:]  # saving disturbs nothing

    fresh = Tied(seed=5)
    state = gather_state(fresh, resumed := make(fresh))
    Dcp().load(tmp_path, state)
    apply_state(fresh, resumed, state)
    assert fresh.output.weight is fresh.embedding.weight
    assert steps(fresh, resumed, done, done + 2) == expected[done:]
    assert bits(gather_state(fresh, resumed)) == bits(gather_state(untouched, whole))


def test_gathering_leaves_gradients_and_learning_rates_alone() -> None:
    module = Tied()
    optimizer = adamw(module)
    before = copy.deepcopy(module.state_dict())
    module(torch.arange(3)).sum().backward()
    gradient = module.inner.weight.grad
    assert gradient is not None
    value = gradient.clone()
    gather_state(module, optimizer)
    assert module.inner.weight.grad is gradient
    assert gradient.equal(value)
    assert module.unused.weight.grad is None
    assert [g["lr"] for g in optimizer.param_groups] == [0.05, 0.05]
    assert bits(module.state_dict()) == bits(before)
    assert {s["step"].item() for s in optimizer.state.values()} == {0.0}


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bf16"},
        {"precision": "bf16", "optimizer_states": "master"},
        {"precision": "bf16", "optimizer_states": "fp32", "stochastic_rounding": True},
    ],
)
def test_our_optimizers_make_the_states_that_an_empty_step_makes(
    optimizer: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients as large as the model."""
    found = []
    for by_step in (False, True):
        module = cast(Tied(), settings.get("precision", "fp32"))
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        made = build(named, Train(optimizer=optimizer, **settings))
        with monkeypatch.context() as patch:
            if by_step:
                patch.setattr(AdamW, "make_states", lambda self, parameters: False)
            else:
                patch.setattr(type(made), "step", None)
            found.append(bits(gather_state(module, made)))
    assert found[0] == found[1]


def test_a_model_without_the_tie_does_not_fit(tmp_path: Path) -> None:
    module = Tied()
    Dcp().save(tmp_path, gather_state(module, adamw(module)))
    module.output.weight = nn.Parameter(torch.zeros(7, 4))
    with pytest.raises(CheckpointError, match=r"model\.output\.weight: not in the checkpoint"):
        Dcp().load(tmp_path, gather_state(module, adamw(module)))


def test_state_size_is_close_above_the_file_size(tmp_path: Path) -> None:
    state = {"a": torch.zeros(1000, 1000), "b": [torch.zeros(1000, dtype=torch.bfloat16), 1], "c": {"d": "x"}}
    Dcp().save(tmp_path, state)
    on_disk = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert 0.99 * state_size(state) < on_disk <= state_size(state)


def ddp(engine: Engine, path: Path) -> tuple[Any, bool]:
    """The state of a DistributedDataParallel, and whether a save and load under it are exact."""
    engine.mesh({"dp": engine.world_size})
    module = DistributedDataParallel(Tied(), find_unused_parameters=True)
    steps(module, optimizer := adamw(module), 0, 2)
    state = gather_state(module, optimizer)
    expected = bits(state)
    Dcp().save(path, state)
    steps(module, optimizer, 2, 3)
    state = gather_state(module, optimizer)
    Dcp().load(path, state)
    apply_state(module, optimizer, state)
    return expected, bits(gather_state(module, optimizer)) == expected


def rank_with_ddp(path: Path) -> tuple[Any, bool]:
    with engines.start(Train(device="cpu", timeout=300)) as engine:
        return ddp(engine, path)


def test_under_ddp_the_state_is_that_of_one_process(tmp_path: Path) -> None:
    """Both ranks see the same samples here, so that one process computes the same bits."""
    module = Tied()
    steps(module, optimizer := adamw(module), 0, 2)
    expected = bits(gather_state(module, optimizer))
    assert spawn(rank_with_ddp, 2, tmp_path) == [(expected, True)] * 2
    state = gather_state(fresh := Tied(seed=3), resumed := adamw(fresh))
    Dcp().load(tmp_path, state)
    apply_state(fresh, resumed, state)
    assert bits(gather_state(fresh, resumed)) == expected
