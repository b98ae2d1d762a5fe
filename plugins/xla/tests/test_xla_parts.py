"""The engine xla, as far as it can be tried on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from recipe_core import Train
from recipe_core import plugin as core
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.engine.protocol import start
from recipe_core.engine.select import engine_problems, one_process
from recipe_core.errors import CheckpointError, ConfigError, DataError
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Part
from recipe_core.layouts.parallel import Batch, Run
from recipe_core.layouts.settings import Ddp, Pp, Tp, Zero1
from recipe_core.plugin import register_layouts
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.train.feed import Feed
from recipe_core.train.optim.adam import adam_
from recipe_xla import machine, plugin
from recipe_xla.batches import StreamLoader
from recipe_xla.checkpoint.shards import pieces
from recipe_xla.collectives import HostCollectives, SingleProcessCollectives, average_gradients
from recipe_xla.layouts.spmd import Spmd
from recipe_xla.mesh import DeviceGrid, DeviceGroup, along
from recipe_xla.optim import traced_adam_

LAYOUTS = {spec.name: spec for spec in register_layouts()}


def run_of(train: Train, cache: Path, **changes: object) -> Run:
    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=train, cache=cache,
    )  # fmt: skip
    return replace(run, **changes)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_whose_numbers_are_data_is_adam(decay: float) -> None:
    torch.manual_seed(1)
    one = [
        [torch.randn(4, 3), torch.randn(5)],
        [torch.zeros(4, 3), torch.zeros(5)],
        [torch.zeros(4, 3), torch.zeros(5)],
    ]
    two = [[tensor.clone() for tensor in tensors] for tensors in one]
    for step, lr in enumerate([0.0, 1e-12, 1e-3, 3e-3], 1):
        gradients = [torch.randn(4, 3), torch.randn(5)]
        settings = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "decay": decay}
        adam_(one[0], gradients, *one[1:], step, **settings)
        traced_adam_(two[0], gradients, *two[1:], step, **settings)
        torch.testing.assert_close(two, one, rtol=2e-6, atol=1e-7)


def test_axes_of_a_grid() -> None:
    axes = {"dp": 2, "tp": 2}
    assert along(axes, "tp") == ((0, 1), (2, 3))
    assert along(axes, "dp") == ((0, 2), (1, 3))
    assert along({"pp": 2, "dp": 2, "tp": 2}, "pp") == ((0, 4), (1, 5), (2, 6), (3, 7))


def averaged(bucket: int) -> list[list[float]]:
    """Gradients of rank 0 and 1 averaged over the host."""
    with start(Train(device="cpu")) as engine:
        grid = DeviceGrid.of_processes({"dp": 2, "tp": 1}, engine.rank, timedelta(seconds=60))
        assert (grid["dp"].get_local_rank(), grid["dp"].size()) == (engine.rank, 2)
        assert (grid["tp"].get_local_rank(), grid["tp"].size()) == (0, 1)
        wide, narrow, unused = (
            nn.Parameter(torch.zeros(2, 3)),
            nn.Parameter(torch.zeros(4)),
            nn.Parameter(torch.zeros(1)),
        )
        wide.grad, narrow.grad = torch.full((2, 3), 1.0 + 2 * engine.rank), torch.arange(4.0) * (engine.rank + 1)
        average_gradients([wide, narrow, unused], HostCollectives(), grid["dp"].get_group(), bucket)
        assert unused.grad is None
        one = HostCollectives().mean(torch.ones(2) * engine.rank, grid["tp"].get_group())
        del grid  # groups are let go before the engine stops
        return [wide.grad.flatten().tolist(), narrow.grad.tolist(), one.tolist()]


@pytest.mark.parametrize("bucket", [0, 8])
def test_gradients_are_averaged_over_the_host(bucket: int) -> None:
    found = spawn(averaged, 2, bucket)
    assert [part[:2] for part in found] == [[[2.0] * 6, [0.0, 1.5, 3.0, 4.5]]] * 2
    assert [part[2] for part in found] == [[0.0, 0.0], [1.0, 1.0]]


def test_pytorchs_collectives_take_no_group_of_ours() -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        torch.distributed.all_reduce(torch.ones(1), group=DeviceGroup((0,), ((0,),), None))


class Numbers:
    """Samples whose value is their number; the validation split's are negative."""

    def __init__(self, broken_at: int | None = None) -> None:
        self.broken_at = broken_at

    def read(self, split: str, start: int, count: int) -> Batch:
        if self.broken_at is not None and start >= self.broken_at:
            raise DataError(f"sample {start} is damaged")
        numbers = torch.arange(start, start + count, dtype=torch.int32)
        return {"numbers": numbers if split == "train" else -numbers - 1}


class Ahead:
    """Takes batches ahead, as threads of a device would."""

    closed = False

    def stream(self, batches: Iterator[Batch], ahead: int) -> Iterator[Batch]:
        found = list(batches)
        return iter(found)

    def place(self, batch: Batch) -> Batch:
        return batch

    def close(self) -> None:
        self.closed = True


def test_a_stream_brings_what_the_plain_loader_would(tmp_path: Path) -> None:
    train, ahead = Train(steps=3, global_batch=8, micro_batch=2, eval_samples=8), Ahead()
    with (
        Feed(Numbers().read, run_of(train, tmp_path)) as plain,
        Feed(Numbers().read, run_of(train, tmp_path), partial(StreamLoader, ahead)) as carried,
    ):
        for step in (0, 1, 2, 1, 2):  # also one that goes back
            expected, found = plain.step(8 * step)[0], carried.step(8 * step)[0]
            assert len(found) == len(expected) == 4
            for mine, theirs in zip(found, expected, strict=True):
                assert mine["numbers"].dtype == torch.int64
                assert mine["numbers"].equal(theirs["numbers"])
        assert carried.validation(2)["numbers"].tolist() == [-3, -4]
        with pytest.raises(TypeError, match="in order"):
            carried.step(0)[0][0]
    assert ahead.closed


def test_a_damaged_sample_is_told_by_the_step_that_needs_it(tmp_path: Path) -> None:
    train = Train(steps=3, global_batch=8, micro_batch=2)
    with Feed(Numbers(broken_at=10).read, run_of(train, tmp_path), partial(StreamLoader, Ahead())) as feed:
        assert len(list(feed.step(0)[0])) == 4
        with pytest.raises(DataError, match="sample 10 is damaged"):
            list(feed.step(8)[0])


def test_one_process_reads_what_its_data_parallel_ranks_would(tmp_path: Path) -> None:
    train = Train(steps=1, global_batch=8, micro_batch=2)
    with Feed(Numbers().read, run_of(train, tmp_path, dp_size=2, local_dp_ranks=2)) as feed:
        assert [batch["numbers"].tolist() for batch in feed.step(0)[0]] == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_a_loss_of_two_ranks_samples_is_the_mean_of_theirs(tmp_path: Path) -> None:
    engine = SimpleNamespace(collectives=SingleProcessCollectives())
    run = run_of(Train(), tmp_path, local_dp_ranks=2, dp_size=2, engine=engine)

    def loss(output: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        return {"loss": (output * batch["mask"]).sum() / batch["mask"].sum()}

    output, mask = torch.tensor([1.0, 3.0, 10.0, 20.0]), torch.tensor([1.0, 1.0, 0.0, 1.0])
    found = Spmd(nn.Identity(), run, {}).loss(loss)(output, {"mask": mask})
    assert found["loss"].item() == (2.0 + 20.0) / 2  # of all at once: 8


def test_pieces_are_written_once_and_read_whole(tmp_path: Path) -> None:
    torch.manual_seed(2)
    whole = torch.randn(5, 3)
    parts = [((0, 0), whole[:3]), ((0, 0), whole[:3]), ((3, 0), whole[3:]), ((3, 0), whole[3:])]  # each on two devices
    held = pieces(whole.shape, parts, "weight")
    assert held.read().equal(whole)
    state = {"model": {"weight": held, "bias": torch.ones(2)}, "progress": {"step": 3}}
    Dcp().save(tmp_path, state)
    found = {"model": {"weight": torch.zeros(5, 3), "bias": torch.zeros(2)}, "progress": {"step": 0}}
    Dcp().load(tmp_path, found)
    assert found["model"]["weight"].equal(whole)
    assert found["progress"] == {"step": 3}
    opened = Dcp().open(tmp_path)
    assert opened["model"]["weight"].read().equal(whole)
    assert opened["model"].keys() == {"weight", "bias"}


def test_pieces_that_leave_something_out_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"weight: its shape is \[4\], and its devices hold \[2\] at \[0\]"):
        pieces(torch.Size([4]), [((0,), torch.ones(2)), ((0,), torch.ones(2))], "weight")


def part(name: str, config: object) -> Part:
    return Part(LAYOUTS[name], config)


def engine(name: str = "xla") -> Part:
    spec = load([("core", lambda: core), ("xla", lambda: plugin)]).get("engine", name)
    return Part(spec, spec.config())


def taken(*words: str) -> str:
    """The engine that a line takes on this machine."""
    return resolve(toy.registry(plugin), "toy", words).engine.spec.name


def test_which_engine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    monkeypatch.setattr(machine, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert (taken(), machine.pjrt_device({})) == ("native", "CPU")
    installed |= {"torch_xla"}
    assert taken() == "native"  # torch-xla alone is no accelerator
    assert taken("train.device=xla") == taken("train.engine=xla") == taken("engine=xla") == "xla"
    installed |= {"libneuronxla"}
    assert (taken(), machine.pjrt_device({})) == ("xla", "NEURON")
    assert taken("train.device=cpu") == taken("train.engine=native") == taken("engine=native") == "native"
    assert machine.pjrt_device({"PJRT_DEVICE": "cpu"}) == "CPU"
    assert not one_process(engine(), part("tp", Tp()))  # Neuron has a process for each core
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert one_process(engine(), part("tp", Tp()))
    assert not one_process(engine(), part("ddp", Ddp()))
    assert not one_process(engine("native"), part("tp", Tp()))


def test_the_section_of_the_engine() -> None:
    def section(*words: str) -> object:
        return resolve(toy.registry(plugin), "toy", words).as_dict()["engine"]

    assert section("train.device=cpu") == {"use": "auto"}
    assert section("engine=xla", "engine.bucket_mb=5") == {"use": "xla", "bucket_mb": 5.0}
    assert section("train.device=xla", "engine.bucket_mb=5") == {"use": "auto", "bucket_mb": 5.0}
    # What lines and files of earlier versions say.
    assert section("train.engine=xla", "train.bucket_mb=5") == {"use": "xla", "bucket_mb": 5.0}
    assert section("train.engine=native", "train.bucket_mb=25.0") == {"use": "native"}
    with pytest.raises(ConfigError, match=r"^engine\.bucket_mb: expected at least 0, got -1"):
        section("engine=xla", "engine.bucket_mb=-1")
    with pytest.raises(ConfigError, match=r"^engine: expected a line `use: NAME`"):
        resolve(toy.registry(plugin), {"recipe": "toy", "engine": {"use": ["xla"]}})
    with pytest.raises(ConfigError, match="they name two engines"):
        section("engine=xla", "train.engine=native")


def test_what_the_xla_engine_cannot_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("XLA_USE_BF16", "1")
    train = Train(device="cuda", compile=True, precision="bf16", stochastic_rounding=True)
    problems = list(engine_problems(engine(), train, part("zero1", Zero1())))
    starts = [
        "train.device: cuda",
        "train.engine: xla needs torch-xla",
        "the environment says XLA_USE_BF16",
        "train.compile:",
    ]
    starts += ["train.stochastic_rounding:", "layout: zero1 shares states out"]
    assert [any(line.startswith(start) for line in problems) for start in starts] == [True] * 6
    assert len(problems) == 6
    monkeypatch.setenv("XLA_USE_BF16", "0")
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    assert list(engine_problems(engine(), Train(), part("ddp", Ddp()))) == []
    assert next(engine_problems(engine(), Train(), part("tp", Tp()))).startswith("layout.tp: ")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert "pipeline" in next(engine_problems(engine(), Train(), part("pp", Pp())))
    split = next(engine_problems(engine(), Train(), part("tp", Tp(sequence_parallel=True))))
    assert split.startswith("layout.sequence_parallel: ")
    assert "train.device is xla" in next(engine_problems(engine("native"), Train(device="xla"), None))
