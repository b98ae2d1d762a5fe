"""Weights that are tied by alias (``output.weight = tokens.weight``): every layout trains them as one parameter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import DataFacts, Dataset, Model, ModelFacts, Recipe, Stages, Train, Use, hookimpl, plugin
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Batch, Loss, Run
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.seeds import mix
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.preflight import division_problems

WORDS, WIDTH, LENGTH, STEPS = 16, 8, 6, 20


@dataclass(frozen=True, kw_only=True)
class Net:
    blocks: bool = False
    """Tie a matrix of the first block to one of the last, and a norm of the second to one of the third."""


@dataclass(frozen=True)
class Tokens:
    pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.mlp(self.norm(hidden))
        return output


class Tied(nn.Module):
    def __init__(self, config: Net) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS)
        self.output.weight = self.tokens.weight
        if config.blocks:
            self.blocks[3].mlp[0].weight = self.blocks[0].mlp[0].weight
            self.blocks[2].norm.weight = self.blocks[1].norm.weight

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        if hidden is None:
            hidden = self.tokens(batch["tokens"])
        for block in self.blocks:
            if block is not None:
                hidden = block(hidden)
        return hidden if self.norm is None else self.output(self.norm(hidden))

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float(name.endswith("norm.weight")), device="cpu")
        seed = mix(torch.initial_seed(), sum(name.encode()))
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu") * 0.5


def build(config: Net) -> tuple[nn.Module, Loss]:
    """On the meta device it has no values, see :meth:`Tied.initial_value`."""
    module = Tied(config)
    if not module.tokens.weight.is_meta:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(module.initial_value(name, parameter.shape))

    def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        mean = F.cross_entropy(output.flatten(0, 1).float(), batch["tokens"].roll(-1, 1).flatten())
        return {"loss": mean, "real_tokens": (batch["tokens"] > 3).sum()}

    return module, loss


class Samples:
    def read(self, split: str, start: int, count: int) -> Batch:
        rows = [
            torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(n % 64))
            for n in range(start, start + count)
        ]
        return {"tokens": torch.stack(rows)}


def samples(config: Tokens, run: Run) -> Samples:
    return Samples()


def model_facts(config: Net, sequence: int) -> ModelFacts:
    count = sum(p.numel() for p in Tied(config).parameters())
    return ModelFacts(
        parameters=count,
        flops_per_sample=1.0,
        activation_values=1,
        recomputed_activation_values=1,
        logits_values=1,
        blocks=4,
    )


def data_facts(config: Tokens) -> DataFacts:
    return DataFacts(sequence=LENGTH)


def plan(config: Net) -> Mapping[str, str]:
    return {
        "tokens": "vocabulary_in", "blocks.*.norm": "sequence", "blocks.*.mlp": "split", "blocks.*.mlp.0": "column",
        "blocks.*.mlp.2": "row", "norm": "replicated", "output": "vocabulary_out",
    }  # fmt: skip


@hookimpl
def register_models() -> Iterable[Model]:
    for name in ("tied", "deferred"):
        yield Model(
            name=name, build=f"{__name__}:build", facts=f"{__name__}:model_facts", plan=f"{__name__}:plan", config=Net,
            blocks="blocks.*", stages=Stages(first=("tokens",), last=("norm", "output")), deferred=name == "deferred",
        )  # fmt: skip


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(name="samples", build=f"{__name__}:samples", facts=f"{__name__}:data_facts", config=Tokens)


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    train = Train(steps=STEPS, global_batch=8, micro_batch=1, lr=0.02, log_every=1)
    yield Recipe(name="tied", summary="", model=Use("tied"), data=Use("samples"), train=train, variants={"tiny": {}})


def job(*words: str) -> Job:
    registry = load([("core", lambda: plugin), ("tied", lambda: sys.modules[__name__])])
    return checked_job(registry, "tied", words, int(os.environ.get("WORLD_SIZE", "1")))


def train(out: str, *words: str) -> None:
    run(job(*words), Path(out))


def curve(folder: Path, processes: int, *words: str) -> list[tuple[float, float]]:
    """Losses and gradient norms."""
    spawn(train, processes, str(folder), *words)
    return [(row["loss"], row["grad_norm"]) for row in read_rows(folder / METRICS)]


LAYOUTS = {
    "zero1": (2, ["layout=zero1"]),
    "fsdp": (2, ["layout=fsdp"]),
    "tp": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp": (2, ["layout=pp"]),
    "pp 4": (4, ["layout=pp", "layout.pp=4"]),
    "pp x ddp": (4, ["layout=pp"]),
    "pp x fsdp": (4, ["layout=pp", "layout.data=fsdp"]),
    "pp x tp": (4, ["layout=pp", "layout.tp=2"]),
}
"""Processes and words."""
BLOCKS = "model.blocks=true"


def assert_same(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> None:
    """As closely as layouts agree for other models."""
    assert len(found) == len(wanted) == STEPS
    for step, (got, expected) in enumerate(zip(found, wanted, strict=True), 1):
        assert got == pytest.approx(expected, abs=1e-5), f"step {step}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    """Results of one process: with the output tied, and with blocks tied too."""
    folder = tmp_path_factory.mktemp("alone")
    return {word: curve(folder / word, 1, word) for word in ("model.blocks=false", BLOCKS)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_and_norms_are_those_of_one_process(
    name: str, alone: dict[str, list[tuple[float, float]]], tmp_path: Path
) -> None:
    processes, words = LAYOUTS[name]
    for number, (word, wanted) in enumerate(alone.items()):
        model = "deferred" if number else "tied"  # built without values, or with
        assert_same(curve(tmp_path / word, processes, f"model={model}", word, *words), wanted)


@pytest.mark.parametrize("name", ["fsdp", "pp", "pp x ddp"])
def test_counts_of_a_loss_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    """The last stage alone computes the loss, and the first stage's rank writes the metrics."""
    shares = []
    for number, (processes, words) in enumerate([(1, ["layout=single"]), LAYOUTS[name]]):
        spawn(train, processes, str(tmp_path / str(number)), "train.stop_after=3", *words)
        rows = read_rows(tmp_path / str(number) / METRICS)
        shares.append([row["real_tokens_per_second"] / row["samples_per_second"] for row in rows])
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)
    assert len(shares[0]) == 3


@pytest.mark.parametrize(("first", "second"), [("pp", "single"), ("single", "pp"), ("pp x fsdp", "pp 4")])
def test_saved_under_one_and_resumed_under_another(
    first: str, second: str, alone: dict[str, list[tuple[float, float]]], tmp_path: Path
) -> None:
    layouts = {**LAYOUTS, "single": (1, ["layout=single"])}
    folder = tmp_path / "run"
    begun = curve(folder, layouts[first][0], BLOCKS, "train.stop_after=8", *layouts[first][1])
    assert len(begun) == 8
    assert_same(curve(folder, layouts[second][0], BLOCKS, *layouts[second][1]), alone[BLOCKS])


def tensors(folder: Path, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint."""
    state = flat(Dcp().open(folder / "checkpoints" / f"step-{step}"))
    return {name: leaf.read() for name, leaf in state if isinstance(leaf, Lazy)}


def test_a_checkpoint_has_each_tied_tensor_once_under_its_first_name(tmp_path: Path) -> None:
    """The names are those of one process; so are the values, as the learning rate is zero."""
    words = [BLOCKS, "model=deferred", "train.steps=2", "train.stop_after=1", "train.lr=0"]
    found = {}
    for name, (processes, more) in {"single": (1, ["layout=single"]), **LAYOUTS}.items():
        curve(tmp_path / name, processes, *words, *more)
        found[name] = tensors(tmp_path / name, 1)
    wanted = found.pop("single")
    assert "model.tokens.weight" in wanted
    assert not {"model.output.weight", "model.blocks.3.mlp.0.weight", "model.blocks.2.norm.weight"} & wanted.keys()
    for name, got in found.items():
        assert got.keys() == wanted.keys(), name
        assert all(got[key].equal(value) for key, value in wanted.items() if key.startswith("model.")), name


def test_stochastic_rounding_keeps_tied_weights_equal(tmp_path: Path) -> None:
    """Its random numbers follow from a parameter's name, and on the last stage that would be another."""
    words = [BLOCKS, "train.precision=bf16", "train.stochastic_rounding=true", "train.steps=4", "train.save_every=1"]
    curve(tmp_path / "one", 1, *words)
    curve(tmp_path / "two", 2, *words, "layout=pp")
    one, two = (tensors(tmp_path / name, 3)["model.tokens.weight"].float() for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=0, atol=0.02)


def test_a_tie_that_cannot_be_sequence_parallel_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks share a norm, and only one has the whole sequence."""
    plain = {pattern: role for pattern, role in plan(Net()).items() if pattern != "blocks.*.norm"}
    norms = {f"blocks.{number}.norm": "replicated" if number == 2 else "sequence" for number in range(4)}
    monkeypatch.setattr(sys.modules[__name__], "plan", lambda config: {**plain, **norms})
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["model=deferred", BLOCKS, "layout=tp", "train.micro_batch=2"]
    assert division_problems(job(*words), 2) == []
    (problem,) = division_problems(job(*words, "layout.sequence_parallel=true"), 2)
    assert problem.startswith("tensor plan: blocks.1.norm.weight and blocks.2.norm.weight are one tied parameter")
    assert "take layout.sequence_parallel=false" in problem
