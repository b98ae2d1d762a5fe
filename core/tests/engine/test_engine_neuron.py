"""Runs on a stand-in for Trainium's native device: the order of things, names, whole graphs, and 32-bit integers.

The device is made known to a whole process, so no test can have it in its own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recipe_core.engine.neuron import device as neuron
from recipe_core.engine.protocol import start
from recipe_core.errors import ConfigError
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_core.testing import spawn, toy
from recipe_core.train.metrics.curves import read_rows
from recipe_core.train.metrics.meter import Meter
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch takes no device written in Python",
)
SETTINGS = [
    "train.steps=4", "train.log_every=1", "train.eval_every=2", "train.micro_batch=2", "model.counts=true",
    "model.dropout=0.0",
]  # fmt: skip


def stand_in() -> ModuleType:
    """The device, made known to this process."""
    path = Path(__file__).with_name("neuron_stand_in.py")
    spec = importlib.util.spec_from_file_location("neuron_stand_in", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()
    return module


def train_on(device: str, folder: Path) -> list[dict[str, Any]]:
    run(checked_job(toy.registry(), "toy", [*SETTINGS, f"train.device={device}"], 1), folder)
    return [dict(row) for row in read_rows(folder / "metrics.jsonl")]


def alone(folder: str) -> dict[str, Any]:
    """Values of the tests of one process."""
    notes = stand_in().notes
    there = train_on("neuron", Path(folder) / "neuron")
    return {
        "notes": list(notes),
        "there": there,
        "here": train_on("cpu", Path(folder) / "cpu"),
        "counts": count(),
        "message": refuse(),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    (one,) = spawn(alone, 1, str(tmp_path_factory.mktemp("runs")))
    assert isinstance(one, dict)
    return one


def test_a_run_on_the_device_has_the_losses_of_the_cpu(found: dict[str, Any]) -> None:
    there, here = found["there"], found["here"]
    for key in ("step", "loss", "val_loss", "grad_norm", "lr"):
        assert [row.get(key) for row in there] == [row.get(key) for row in here]
    assert len(there) == 5
    assert all("real_tokens_per_second" in row for row in there[1:])
    assert found["notes"][-1] == "touched"


def meet() -> dict[str, Any]:
    notes = stand_in().notes
    with start(Train(device="auto", timeout=300)) as engine:
        before = list(notes)
        mesh = engine.mesh({"dp": 2, "tp": 1})
        assert mesh is not None
        group = mesh["dp"].get_group()
        return {
            "before the mesh": before,
            "device": str(engine.device),
            "any": engine.any(engine.rank == 1),
            "gather": engine.gather(engine.rank),
            "on the host": engine.mean(torch.tensor([float(engine.rank), 5e9]).double(), group).tolist(),
        }


def test_two_ranks_meet_before_the_device_is_touched() -> None:
    for one in spawn(meet, 2):
        assert one == {
            "before the mesh": ["group", "available?", "touched"],
            "device": "neuron",  # never neuron:0
            "any": True,
            "gather": [0, 1],
            "on the host": [0.5, 5e9],  # float64, which the device does not have
        }


def count() -> tuple[dict[str, Any], dict[str, Any]]:
    rows = []
    for kind in ("cpu", "neuron"):
        with start(Train(device=kind)) as engine:
            device = engine.device
            place = Run(
                device=device, mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
                train=Train(global_batch=8), cache=Path(),
            )  # fmt: skip
            meter = Meter(engine, place)
            for _ in range(3):
                values = {"loss": torch.ones(()), "real_tokens": torch.tensor(2_000_000_001)}
                meter.step({name: value.to(device) for name, value in values.items()}, torch.ones(()), 0.1, 1.0, 8)
            row = dict(meter.read().row)
            rows.append({"tokens": row["real_tokens_per_second"] / row["samples_per_second"] * 8, "loss": row["loss"]})
    return rows[0], rows[1]


def test_counts_beyond_32_bits_are_added_up_on_the_host(found: dict[str, Any]) -> None:
    cpu, device = found["counts"]
    assert cpu["tokens"] == pytest.approx(2_000_000_001, rel=1e-12)
    assert device == pytest.approx(cpu, rel=1e-12)


class Whole(nn.Module):
    """One graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()  # type: ignore[no-any-return]


class Broken(nn.Module):
    """Its graph breaks in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1


def compile_whole() -> tuple[list[str], str]:
    stand_in()
    import torch._dynamo as dynamo

    graphs: list[str] = []

    def backend(module: Any, inputs: Any, **options: Any) -> Any:
        graphs.append(f"{len(inputs)} inputs {options}")
        return module.forward

    dynamo.register_backend(backend, name="neuron")
    options = neuron.compile_options(torch.device("neuron"))
    layer = Whole()
    layer.compile(**options)
    for _ in range(3):
        layer(torch.ones(2, 4))
    broken = Broken()
    broken.compile(**options)
    try:
        broken(torch.ones(1))
    except Exception as error:
        return graphs, type(error).__name__
    return graphs, "nothing"


def test_the_model_is_compiled_as_one_graph_of_fixed_shapes() -> None:
    ((graphs, error),) = spawn(compile_whole, 1)
    assert len(graphs) == 1  # three batches of one shape
    assert error == "Unsupported"  # a break in the graph is an error, not a second graph
    assert neuron.compile_options(torch.device("cpu")) == {}


def refuse() -> str:
    torch.neuron.is_available = lambda: False  # type: ignore[attr-defined]
    try:
        with start(Train(device="neuron")):
            return "it started"
    except ConfigError as error:
        return str(error)


def test_a_device_that_cannot_be_had_is_told_with_the_way_out(found: dict[str, Any]) -> None:
    assert found["message"].startswith("train.device: no device of type 'neuron' can be had")
    assert "`recipe doctor`" in found["message"]


def test_without_the_package_the_device_is_not_known() -> None:
    with (
        pytest.raises(ConfigError, match=r"train\.device: 'neuron' is not available here"),
        start(Train(device="neuron")),
    ):
        pass
