"""Modules between the blocks of a pipeline: they may change the shape that passes on, and every layout trains them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import DataFacts, Dataset, Model, ModelFacts, Part, Recipe, Stages, Train, Use, hookimpl, plugin
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.ranks.cuts import Shape
from recipe_core.errors import PluginError
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Batch, Loss, Run
from recipe_core.layouts.pipeline.pipeline import Pipeline
from recipe_core.layouts.pipeline.stages import cut_stage
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS, NARROW, WIDE, LENGTH, STEPS = 16, 8, 12, 8, 6


@dataclass(frozen=True)
class Settings:
    pass


class Net(nn.Module):
    """Two encoder blocks, a bridge that joins pairs of positions, and two wider decoder blocks with a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, NARROW)
        self.encoder = nn.ModuleList(_block(NARROW) for _ in range(2))
        self.bridge = nn.Linear(2 * NARROW, WIDE)
        self.decoder = nn.ModuleList(_block(WIDE) for _ in range(2))
        self.middle = nn.LayerNorm(WIDE)
        self.output = nn.Linear(WIDE, WORDS)

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        if hidden is None:
            hidden = self.tokens(batch["tokens"])
        for block in self.encoder:
            hidden = hidden if block is None else hidden + block(hidden)
        if self.bridge is not None:
            hidden = self.bridge(hidden.unflatten(1, (-1, 2)).flatten(2))
        for number, block in enumerate(self.decoder):
            hidden = hidden if block is None else hidden + block(hidden)
            if number == 0 and self.middle is not None:
                hidden = self.middle(hidden)
        return hidden if self.output is None else self.output(hidden)


def _block(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    return {"loss": F.cross_entropy(output.flatten(0, 1).float(), batch["tokens"][:, ::2].flatten())}


def build(config: Settings) -> tuple[nn.Module, Loss]:
    return Net(), loss


class Samples:
    def read(self, split: str, start: int, count: int) -> Batch:
        rows = [
            torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(n % 64))
            for n in range(start, start + count)
        ]
        return {"tokens": torch.stack(rows)}


def samples(config: Settings, run: Run) -> Samples:
    return Samples()


def model_facts(config: Settings, sequence: int) -> ModelFacts:
    return ModelFacts(
        parameters=sum(p.numel() for p in Net().parameters()), flops_per_sample=1.0, activation_values=1,
        recomputed_activation_values=1, logits_values=1, blocks=4,
    )  # fmt: skip


def data_facts(config: Settings) -> DataFacts:
    return DataFacts(sequence=LENGTH)


def plan(config: Settings) -> Mapping[str, str]:
    return dict.fromkeys(("tokens", "encoder.*", "bridge", "decoder.*", "middle", "output"), "replicated")


STAGES = Stages(first=("tokens",), last=("output",), between={"bridge": "encoder.1", "middle": "decoder.0"})
MODEL = Model(
    name="bridged", build=f"{__name__}:build", facts=f"{__name__}:model_facts", plan=f"{__name__}:plan",
    config=Settings, blocks="*coder.*", stages=STAGES,
)  # fmt: skip


@hookimpl
def register_models() -> Iterable[Model]:
    yield MODEL


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    yield Dataset(name="samples", build=f"{__name__}:samples", facts=f"{__name__}:data_facts", config=Settings)


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    train = Train(steps=STEPS, global_batch=8, micro_batch=1, lr=0.02, log_every=1, eval_every=2, eval_samples=8)
    yield Recipe(name="bridged", summary="", model=Use("bridged"), data=Use("samples"), train=train)


def job(*words: str) -> Job:
    registry = load([("core", lambda: plugin), ("bridged", lambda: sys.modules[__name__])])
    return checked_job(registry, "bridged", words, int(os.environ.get("WORLD_SIZE", "1")))


def train(cases: Mapping[str, tuple[str, ...]]) -> None:
    """One run after another in the same processes."""
    store = os.environ.get("RECIPE_STORE")
    for number, (out, words) in enumerate(cases.items()):
        if store is not None:
            os.environ["RECIPE_STORE"] = f"{store}-{number}"
        run(job(*words), Path(out))


def curve(folder: Path) -> list[tuple[float, float]]:
    """Losses, gradient norms, and losses of evaluations."""
    rows = read_rows(folder / METRICS)
    return [(row["step"], row[key]) for key in ("loss", "grad_norm", "val_loss") for row in rows if key in row]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one, two and four processes; two are begun under one layout and continued under another."""
    folder = tmp_path_factory.mktemp("runs")
    half = "train.stop_after=3"
    spawn(train, 1, {str(folder / "single"): (), str(folder / "single to pp"): (half,)})
    spawn(train, 2, {
        str(folder / "pp"): ("layout=pp",), str(folder / "pp to single"): ("layout=pp", half),
        str(folder / "single to pp"): ("layout=pp",),
    })  # fmt: skip
    fsdp = str(folder / "pp x fsdp")
    spawn(train, 4, {str(folder / "pp 4"): ("layout=pp", "layout.pp=4"), fsdp: ("layout=pp", "layout.data=fsdp")})
    spawn(train, 1, {str(folder / "pp to single"): ()})
    return folder


@pytest.mark.parametrize("name", ["pp", "pp 4", "pp x fsdp", "single to pp", "pp to single"])
def test_losses_and_gradients_are_those_of_one_process(name: str, runs: Path) -> None:
    found, wanted = curve(runs / name), curve(runs / "single")
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert len(wanted) == 2 * STEPS + 4  # an evaluation before the first step, too
    assert [value for _, value in found] == pytest.approx([value for _, value in wanted], abs=1e-5)


def tensors(folder: Path) -> dict[str, Tensor]:
    state = flat(Dcp().open(folder / "checkpoints" / f"step-{STEPS}"))
    return {name: leaf.read() for name, leaf in state if isinstance(leaf, Lazy)}


@pytest.mark.parametrize("name", ["pp", "pp 4", "pp x fsdp"])
def test_checkpoints_hold_the_same_tensors(name: str, runs: Path) -> None:
    found, wanted = tensors(runs / name), tensors(runs / "single")
    assert found.keys() == wanted.keys()
    assert {"model.bridge.weight", "model.middle.bias"} <= found.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4, msg=key)


def test_a_module_belongs_to_the_stage_of_the_block_that_it_follows() -> None:
    assert [_held(index, 2) for index in range(2)] == [
        {"tokens", "encoder.0", "encoder.1", "bridge"}, {"decoder.0", "middle", "decoder.1", "output"},
    ]  # fmt: skip
    assert [_held(index, 4) for index in range(4)] == [
        {"tokens", "encoder.0"}, {"encoder.1", "bridge"}, {"decoder.0", "middle"}, {"decoder.1", "output"},
    ]  # fmt: skip
    assert len(_held(0, 1)) == 8


def _held(index: int, count: int) -> set[str]:
    net = Net()
    assert cut_stage(net, MODEL.structure(Settings()), index, count) == []
    parts = (name.split(".") for name, _ in net.named_parameters())
    return {".".join(part[: 2 if "coder" in part[0] else 1]) for part in parts}


def test_formats_with_a_file_for_each_stage_place_it_too() -> None:
    """The order of the names alone would place it with the last block."""
    model = Model(
        name="chain", build=f"{__name__}:chain", plan=f"{__name__}:chain_plan", config=Settings, blocks="blocks.*",
        stages=Stages(first=(), last=("bridge2",), between={"bridge": "blocks.1"}),
    )  # fmt: skip
    shape = Shape(Part(model, Settings()))
    names = ("blocks.1", "bridge", "blocks.2", "bridge2")
    assert [shape.stage(f"{name}.weight", 2) for name in names] == [0, 0, 1, 1]


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
        self.bridge, self.bridge2 = nn.Linear(2, 2), nn.Linear(2, 2)


def chain(config: Settings) -> tuple[nn.Module, Loss]:
    return Chain(), loss


def chain_plan(config: Settings) -> Mapping[str, str]:
    return dict.fromkeys(("blocks.*", "bridge", "bridge2"), "replicated")


def test_a_discarded_step_passes_on_tensors_of_the_right_shape() -> None:
    stage = object.__new__(Pipeline)
    stage.module, stage.tp, stage.device, stage.index, stage.last = nn.Module(), None, torch.device("cpu"), 1, False
    batch = {"tokens": torch.zeros(1, LENGTH)}
    sizes = [torch.Size(size) for size in ((1, LENGTH, NARROW), (1, LENGTH // 2, WIDE))]
    stage._metas = {stage._batch_key(batch): [(size, torch.bfloat16) for size in sizes]}
    hidden = torch.ones(sizes[0], dtype=torch.bfloat16, requires_grad=True)
    output = stage.placeholder_output(hidden, batch)
    assert (output.shape, output.dtype) == (sizes[1], torch.bfloat16)
    output.sum().backward()
    assert hidden.grad is not None


@pytest.mark.parametrize(
    ("between", "message"),
    [
        ({"brige": "encoder.1"}, "model 'bridged': its stages name brige, and it has no such submodule"),
        (
            {"bridge": "encoder.2", "middle": "decoder.0"},
            "model 'bridged': its stages put bridge after encoder.2, which is none of its blocks; did you mean "
            "'encoder.1'? (*coder.*)",
        ),
        (
            {"bridge": "encoder.1", "middle": "decoder.0", "encoder.1.0": "encoder.0"},
            "model 'bridged': its stages put encoder.1.0 between blocks, and it is, is in, or contains the block "
            "encoder.1; a stage holds whole blocks anyway",
        ),
        ({"bridge": "encoder.1"}, "model 'bridged': no stage of a pipeline holds middle.weight, middle.bias"),
        (
            ("bridge", "middle"),
            "model 'bridged': between of its stages is ('bridge', 'middle'); expected {submodule: block that it "
            "follows}",
        ),
    ],
)
def test_mistakes_of_a_declaration(between: Mapping[str, str], message: str) -> None:
    model = replace(MODEL, stages=replace(STAGES, between=between))
    with pytest.raises(PluginError) as caught:
        cut_stage(Net(), model.structure(Settings()), 0, 2)
    assert str(caught.value) == message
