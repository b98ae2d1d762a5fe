"""Tensor parallelism by neuronx-distributed's layers, against the whole model, on two processes.

Uses the real package in its CPU mode where its source is available (``nxd_real.py``), and everywhere a stand-in with
the same behaviour (``nxd_stand_in.py``).
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import nxd_real
import nxd_stand_in
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from neuron_on_host import RECIPES, batch_of, built, job_of, over_nxd
from torch import Tensor, nn

from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.formats.dcp_metadata import TensorStorageMetadata, read_metadata
from recipe_core.checkpoint.lazy import lazy
from recipe_core.engine import protocol as engines
from recipe_core.layouts.parallel import Batch, Parallel
from recipe_core.testing import spawn
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.run import run
from recipe_xla import neuronx


def compared(recipe: str, real: bool) -> dict[str, Any]:
    """Take one step of a sharded and of a whole model; return the differences of all results of the step."""
    from recipe_core.train import optim

    with over_nxd(real), engines.start(job_of(recipe, (), 1).train) as engine:
        job = job_of(recipe, ["layout=tp", "train.optimizer=lamb", "train.precision=fp32"], 2)
        model, loss, context = built(job, engine)
        torch.manual_seed(job.train.seed)
        whole, _ = job.model.build(job.model.config)
        dense, batch = Parallel(whole), batch_of(job, context)

        def micro(module: nn.Module, batch: Batch, number: int) -> Any:
            return loss(module(batch), batch)

        def apart(found: Any, wanted: Any) -> float:
            """The largest difference between whole tensors and shares of them, by name."""
            every = model.with_placeholders({name: t.detach() for name, t in found.items()})
            assert every.keys() == wanted.keys()
            values = {name: lazy(t).read() for name, t in every.items()}
            return max(float((values[name] - wanted[name].detach()).abs().max()) for name in wanted)

        named, expected = dict(model.named_parameters()), dict(dense.named_parameters())
        result: dict[str, Any] = {"begin": apart(named, expected), "sizes": (model.size(), dense.size())}
        optimizers = [optim.build(m.named_parameters(), job.train, m.shard_groups) for m in (model, dense)]
        values = [m.backward([batch, batch], micro) for m in (model, dense)]
        result["values"] = max(abs(float(values[0][name] - values[1][name])) for name in values[1])
        result["gradients"] = apart({n: p.grad for n, p in named.items()}, {n: p.grad for n, p in expected.items()})
        norms = [float(m.norm()) for m in (model, dense)]
        grads = importlib.import_module("neuronx_distributed.parallel_layers.grads")
        norms.append(float(grads.get_grad_norm(list(named.values()))))
        result["norms"] = max(norms) / min(norms) - 1
        for m in (model, dense):
            m.clip(0.01)
        result["clipped"] = apart({n: p.grad for n, p in named.items()}, {n: p.grad for n, p in expected.items()})
        for optimizer in optimizers:
            optim.set_learning_rate(optimizer, 1e-2)
            optimizer.step()
        result["step"] = apart(named, expected)
        after = [m.evaluate(batch, micro) for m in (model, dense)]
        result["after"] = max(abs(float(after[0][name] - after[1][name])) for name in after[1])
        with model.inference() as module:
            given = loss(module.eval()(batch), batch)["loss"].detach()
        result["inference"] = abs(float(given - after[1]["loss"]))
        del context
        return result | layers_compared()


def layers_compared() -> dict[str, float]:
    """Use the layers as our models do not: two dimensions, bf16, ignored labels, whole logits."""
    rank, found = dist.get_rank(), {}
    torch.manual_seed(7)
    dense, x = nn.Linear(6, 8), torch.randn(5, 6)
    mine = copy.deepcopy(dense)
    for name, parameter in mine.named_parameters():
        setattr(mine, name, nn.Parameter(parameter.detach().chunk(2)[rank].clone()))
    layer = neuronx.column(mine)
    for wide in (True, False):
        given = x.clone().requires_grad_(), x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=not wide):
            own, whole = layer(given[0]), dense(given[1])
        assert own.dtype == whole.dtype == (torch.float32 if wide else torch.bfloat16)
        found[f"{own.dtype}"] = apart_by(own, whole.chunk(2, -1)[rank]) / (1 if wide else 1e5)  # of 8 bits
        layer.zero_grad()
        dense.zero_grad()
        own.sum().backward()
        whole.sum().backward()
        assert given[0].grad is not None
        found[f"{own.dtype} bias"] = apart_by(layer.bias.grad, dense.bias.grad.chunk(2)[rank])  # type: ignore[union-attr,operator,arg-type]
        found[f"{own.dtype} input"] = apart_by(given[0].grad, given[1].grad) / (1 if wide else 1e5)
    assert layer.weight.grad.dtype == torch.float32  # type: ignore[union-attr]

    table, ids = nn.Embedding(7, 4, padding_idx=0), torch.tensor([[0, 3, 6], [3, 0, 1]])
    table.weight.data[0] = 1.0  # as a row has that is the output's too
    mine_in = nn.Embedding(7, 4, padding_idx=0)
    mine_in.weight = nn.Parameter(F.pad(table.weight.detach(), (0, 0, 0, 1)).chunk(2)[rank].clone())
    embedding = neuronx.embedding(mine_in, 8)
    own, whole = embedding(ids), table(ids)
    own.square().sum().backward()
    whole.square().sum().backward()
    assert table.weight.grad is not None
    found["embedding"] = apart_by(own, whole)
    found["its gradient"] = apart_by(mine_in.weight.grad, F.pad(table.weight.grad, (0, 0, 0, 1)).chunk(2)[rank])

    words, hidden = 7, torch.randn(2, 3, 6)  # of which the second rank fills up one
    output, labels = nn.Linear(6, words), torch.tensor([[0, -100, 6], [3, 4, -1]])
    weight, bias = (
        F.pad(p.detach(), (*[0, 0] * (p.ndim - 1), 0, 1)).chunk(2)[rank].clone().requires_grad_()
        for p in output.parameters()
    )
    head, given = neuronx.VocabularyHead(words), (hidden.clone().requires_grad_(), hidden.clone().requires_grad_())
    losses, hits = head.losses_and_hits(given[0], weight, labels, bias, with_hits=True)
    logits = output(given[1])
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=-1), ignore_index=-1, reduction="none")
    losses.sum().backward()
    wanted.sum().backward()
    found["losses"], found["their gradient"] = (
        apart_by(losses.flatten(), wanted),
        apart_by(given[0].grad, given[1].grad),
    )
    assert hits.equal(logits.argmax(-1) == labels)
    found["logits"] = apart_by(head.logits(hidden, weight, bias), output(hidden))
    return found


def apart_by(one: Tensor | None, two: Tensor | None) -> float:
    assert one is not None
    assert two is not None
    return float((one.detach() - two.detach()).abs().max())


def require_close(found: list[dict[str, Any]]) -> None:
    for result in found:
        ours, theirs = result.pop("sizes")
        assert ours == theirs
        assert result.pop("begin") == 0
        assert max(result.values()) < 1e-6, result


EVERY = ["train.steps=5", "train.save_every=2", "train.eval_every=4", "train.keep=0"]
"""The last step is left out, and with it the closing text."""


def in_turn(recipe: str, cases: list[tuple[str, str, Sequence[str]]], folder: str) -> None:
    """Body of one process, for all of ``cases`` (name, who shards the model, arguments); rank 0 runs those of one."""
    met = dict(os.environ)
    for number, (name, by, words) in enumerate(cases):
        os.environ.update({**met, "RECIPE_STORE": f"{met.get('RECIPE_STORE')}-{number}"})
        if by == "single":
            if met["RANK"] != "0":
                continue
            os.environ.update(WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        every = [*EVERY, f"train.stop_after={2 if 'resume' in words[-1] else 4}"]
        with over_nxd(False) if by == "nxd" else nullcontext():
            run(job_of(recipe, [*every, *words], int(os.environ["WORLD_SIZE"])), Path(folder, name))
        if len(cases) > 1:
            from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # not in every release

            _clear_sharding_prop_cache()  # or DTensor uses meshes of this run, whose groups are destroyed


def step_and_runs(recipe: str, cases: list[tuple[str, str, Sequence[str]]], folder: str) -> dict[str, Any]:
    store = os.environ["RECIPE_STORE"]
    os.environ["RECIPE_STORE"] = f"{store}-step"
    found = compared(recipe, real=False)
    os.environ["RECIPE_STORE"] = store
    in_turn(recipe, cases, folder)
    return found


def require_same_rows(found: list[Row], wanted: list[Row], steps: Sequence[int], within: float = 1e-6) -> None:
    for key in ("loss", "grad_norm", "val_loss"):
        got, expected = ({row["step"]: row[key] for row in rows if key in row} for rows in (found, wanted))
        some = {step: value for step, value in expected.items() if step in steps}
        assert got == pytest.approx(some, abs=within, rel=within), key


def entries(path: Path) -> dict[str, Any]:
    """Return all entries of a checkpoint: shape, type, and offset and size of each part."""
    return {
        name: entry if not isinstance(entry, TensorStorageMetadata)
        else (entry.size, entry.properties.dtype, {(chunk.offsets, chunk.sizes) for chunk in entry.chunks})
        for name, entry in read_metadata(path).state_dict_metadata.items()
    }  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_and_checkpoints(recipe: str, tmp_path: Path) -> None:
    """Compare one step: loss, gradients, norm, clipping, LAMB's update (by norms of whole tensors), evaluation.

    Then the losses of one process, and of runs that resume from each other's checkpoints, natively and here.
    """
    saved = {name: str(tmp_path / name / "checkpoints/step-2") for name in ("whole", "teams")}
    from_whole, from_teams = (["layout=tp", f"train.resume={saved[name]}"] for name in saved)
    cases = [
        ("whole", "single", ["layout=single"]), ("teams", "nxd", ["layout=tp"]),
        ("teams from whole", "nxd", from_whole), ("tp from teams", "DTensor", from_teams),
        ("whole from teams", "single", ["layout=single", from_teams[1]]),
    ]  # fmt: skip
    require_close(spawn(step_and_runs, 2, recipe, cases, str(tmp_path)))
    found = {path.name: read_rows(path / METRICS) for path in tmp_path.iterdir()}
    assert [row["step"] for row in found["teams"]] == [0, 1, 2, 3, 4]
    require_same_rows(found["teams"], found["whole"], range(5))
    for name in ("teams from whole", "tp from teams", "whole from teams"):
        assert [row["step"] for row in found[name]] == [3, 4]
        require_same_rows(found[name], found["whole"], [3, 4])
    last = [entries(tmp_path / name / "checkpoints/step-4") for name in ("teams", "tp from teams")]
    assert last[0] == last[1]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_teams(recipe: str, tmp_path: Path) -> None:
    """Groups of two processes each; and a run that starts from another's weights with wider copies of its own."""
    begins = ["layout=tp", f"train.init_from={tmp_path / 'whole'}"]
    kept = ["train.precision=bf16", "train.optimizer_states=master", *begins]
    cases = [
        ("whole", "single", ["layout=single"]), ("teams", "nxd", ["layout=tp"]),
        ("teams begin", "nxd", begins), ("tp begins", "DTensor", begins), ("teams keep", "nxd", kept),
    ]  # fmt: skip
    spawn(in_turn, 4, recipe, cases, str(tmp_path))
    found = {path.name: read_rows(path / METRICS) for path in tmp_path.iterdir()}
    require_same_rows(found["teams"], found["whole"], range(5))
    require_same_rows(found["teams begin"], found["tp begins"], range(5))
    masters = Dcp().open(tmp_path / "teams keep/checkpoints/step-2")["optimizer"]["state"]
    assert all("master" in kept for kept in masters.values())


def on_xla(recipe: str, folder: str) -> None:
    """Run two processes, each with an XLA device of its own as on Neuron, and resume one from the other's save."""
    from recipe_xla import engine, machine  # the first asks PJRT for its device: a CPU

    assert engine
    nxd_stand_in.install()
    met = dict(os.environ)
    saved = str(Path(folder, "native", "checkpoints/step-2"))
    words = ["layout=tp", "train.engine=xla", *EVERY]
    neuron = mock.patch.object(machine, "pjrt_device", return_value="NEURON")
    with neuron, mock.patch.object(machine, "_nxd_problems", return_value=()):
        for number, (name, more) in enumerate(
            [("teams", ["train.stop_after=4"]), ("teams from native", ["train.stop_after=2", f"train.resume={saved}"])]
        ):
            os.environ["RECIPE_STORE"] = f"{met['RECIPE_STORE']}-{number}"
            run(job_of(recipe, [*words, *more], 2), Path(folder, name))


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="needs torch-xla")
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param("megatron_gpt", marks=pytest.mark.xla),
        pytest.param("bert_dp", marks=pytest.mark.long),  # two minutes, most of them of the compiler's
    ],
)
def test_on_xla_devices(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's groups along with those of the host, shards on the devices; saves from and for native runs."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    spawn(in_turn, 2, recipe, [("native", "DTensor", ["layout=tp"])], str(tmp_path))
    spawn(on_xla, 2, recipe, str(tmp_path))
    saved = f"train.resume={tmp_path / 'teams/checkpoints/step-2'}"
    spawn(in_turn, 2, recipe, [("native from teams", "DTensor", ["layout=tp", saved])], str(tmp_path))
    found = {path.name: read_rows(path / METRICS) for path in tmp_path.iterdir()}
    for name in ("teams", "teams from native", "native from teams"):
        steps = [row["step"] for row in found[name]]
        assert steps == ([0, 1, 2, 3, 4] if name == "teams" else [3, 4])
        require_same_rows(found[name], found["native"], steps, within=1e-5)
    # Unlike on Neuron, exchanges over the host split the graphs; still, no new ones appear after some steps.
    compiled = [row["graphs_compiled"] for row in found["teams"] if row["step"] >= 3]  # after the first save
    assert len(set(compiled)) == 1, compiled


@pytest.mark.peer
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_the_real_package(recipe: str) -> None:
    """In its CPU mode, over gloo."""
    if reason := nxd_real.missing():
        pytest.skip(reason)
    require_close(spawn(compared, 2, recipe, True))
