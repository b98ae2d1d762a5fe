"""A test rank on the CPU whose layers are sharded by neuronx-distributed, the real one or its stand-in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import nxd_real
import nxd_stand_in
from torch import Tensor, nn

from recipe_core.engine import protocol as engines
from recipe_core.engine.native import NativeEngine
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Batch, Parallel, Run
from recipe_core.settings.job import Job
from recipe_core.train.start.check import checked_job
from recipe_xla import neuronx
from recipe_xla.collectives import HostCollectives, average_gradients
from recipe_xla.mesh import DeviceGroup

STILL = ("model.dropout=0", "model.attention_dropout=0")
RECIPES = {
    "megatron_gpt": ("model.positions=32", "data.sequence=32"),
    "bert_dp": ("model.vocabulary=1001",),  # odd: the second rank pads
}


class Host(HostCollectives):
    """Exchanges of a run whose device is the host itself."""

    def sync(self) -> None:
        pass


class HostEngine(NativeEngine):
    """The CPU as a stand-in for an XLA device, with neuronx-distributed's grid of processes."""

    collectives = Host()

    def average_gradients(self, parameters: Iterable[nn.Parameter], group: Any = None) -> None:
        average_gradients(parameters, self.collectives, group, 25 << 20)

    def mesh(self, axes: dict[str, int]) -> Any:
        return (
            neuronx.grid(axes, self.rank, timedelta(seconds=60), on_xla=False) if "tp" in axes else super().mesh(axes)
        )

    def mean(self, tensor: Tensor, group: Any = None) -> Tensor:
        if isinstance(group, DeviceGroup):
            return self.collectives.mean(tensor.detach().to(self._mean_type(tensor.dtype)), group)
        return super().mean(tensor, group)


@contextmanager
def over_nxd(real: bool) -> Iterator[None]:
    """Let tensor-parallel layouts in this rank use neuronx-distributed, or its stand-in, on the CPU."""
    (nxd_real if real else nxd_stand_in).install()
    from recipe_xla.layouts.tensor_parallel import tensor_parallel

    patched = {"side_effect": lambda module, config, run: tensor_parallel(module, run)}
    divided = mock.patch("recipe_core.layouts.divided.divided", **patched)
    started = mock.patch.object(engines, "start", side_effect=lambda *_, **__: HostEngine("cpu", 60.0))
    with divided, started:
        yield


def job_of(recipe: str, words: Sequence[str], processes: int) -> Job:
    return checked_job(load(), f"{recipe}:tiny", [*RECIPES[recipe], *STILL, *words], processes)


def built(job: Job, engine: Any) -> tuple[Parallel, Any, Run]:
    """Return the model under its layout, as a run builds it."""
    from recipe_core.train.building.build import build_parallel, build_run

    context = build_run(job, engine, None)
    model, loss = build_parallel(job, context, engine)
    return model, loss, context


def batch_of(job: Job, context: Run) -> Batch:
    samples = job.data.build(job.data.config, context)
    return {name: t if t.is_floating_point() else t.long() for name, t in samples.read("train", 0, 4).items()}
