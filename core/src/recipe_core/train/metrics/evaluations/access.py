"""The model of a run, under its layout, and whole copies of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.checkpoint.match.provenance import Provenance
from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.checkpoint.state import weights
from recipe_core.engine import precision
from recipe_core.engine.dtensor import is_dtensor
from recipe_core.engine.loader import Batch
from recipe_core.hooks.specs import Dataset, Part
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.layouts.parallel import Loss, Parallel, Run, without_counts
from recipe_core.layouts.samples.build import build_samples, checked_read
from recipe_core.layouts.transformed import build_transformed
from recipe_core.train.metrics.evaluations.model import EvaluationSamples
from recipe_core.train.metrics.evaluations.settings import other_dataset

if TYPE_CHECKING:
    from recipe_core.engine.protocol import Engine
    from recipe_core.settings.job import Job
    from recipe_core.train.feed import Feed
    from recipe_core.train.start.resume import TrainingProgress


@dataclass(frozen=True, kw_only=True)
class RunAccess:
    """The model of a run; see :class:`recipe_core.train.metrics.evaluations.model.Access`."""

    job: Job
    folder: Path
    engine: Engine
    run: Run
    parallel: Parallel
    loss_function: Loss
    feed: Feed
    progress: TrainingProgress

    @property
    def device(self) -> torch.device:
        return self.run.device

    @property
    def data_rank(self) -> int:
        return self.run.dp_rank

    @property
    def data_ranks(self) -> int:
        return self.run.dp_size

    @property
    def together(self) -> bool:
        return self.run.dp_size > 1 and self.parallel.forwards_together

    @property
    def reductions(self) -> Any:
        return self.parallel.reductions

    def step(self) -> int:
        """Steps that are done."""
        return self.progress.step

    def forward(self, batch: Batch) -> Any:
        """The output of the model; all ranks call it together."""
        with self._evaluating(), self.parallel.inference() as module, self._autocast():
            return module(batch)

    def loss(self, batch: Batch) -> dict[str, float]:
        """The values of the loss, as in a validation."""

        def micro(module: nn.Module, batch: Batch, number: int) -> Mapping[str, Tensor]:
            with self._autocast():
                return self.loss_function(module(batch), batch)

        values = without_counts(self.parallel.evaluate(batch, micro), self.parallel.reductions)
        stacked = self.engine.read(self.engine.stack_on_host(list(values.values())))
        return dict(zip(values, stacked.tolist(), strict=True))

    def samples(self, count: int | None, split: str, settings: Mapping[str, Any], part: str) -> EvaluationSamples:
        """Samples of the run's dataset, read by its reading thread, or of one with other settings."""
        train = self.run.train
        wanted, size = count or train.eval_samples, train.micro_batch
        known = self.run.train_samples if split == "train" else train.eval_samples
        if not settings and not part and wanted <= known:
            return EvaluationSamples(count=wanted, size=size, take=lambda start, n: self.feed.samples(split, start, n))
        data = other_dataset(self.job.data, settings, part)
        return samples_of(data, self.run, wanted, split, self.job.model.spec.takes, self.feed.place)

    def trained(self, *, copied: bool) -> TrainedModel:
        """The model for the functions that score and generate: itself, or a whole copy."""
        job = self.job
        return RunningModel(
            source=_RunFolder(path=self.folder, format=job.checkpoint.spec),
            provenance=Provenance(
                model=job.model, data=job.data, transforms=job.transforms, train=job.train, sections=job.as_dict()
            ),
            model=job.model, device=self.device, steps=self.step,
            made=self._copy if copied else lambda: (_LiveModule(self), self.loss_function),
        )  # fmt: skip

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank."""
        return self.engine.gather(value)

    @torch.no_grad()
    def _copy(self) -> tuple[nn.Module, Loss]:
        # Functions that generate may store weights in another order, and call parts of the module.
        with torch.device(self.device):
            module, loss = build_transformed(self.job.model, self.job.transforms)
        module.to(self.device)
        own = weights(self.parallel.module)
        for name, tensor in weights(module).items():
            value: Any = own[name]
            tensor.copy_(value.full_tensor() if is_dtensor(value) else value)
        return module.eval(), loss

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = self.parallel.module.training
        self.parallel.module.eval()
        try:
            yield
        finally:
            self.parallel.module.train(was_training)

    def _autocast(self) -> Any:
        return precision.autocast(self.engine.autocast_device, self.run.train.precision)


def samples_of(
    data: Part[Dataset], run: Run, count: int, split: str, takes: tuple[str, ...], place: Callable[[Batch], Batch]
) -> EvaluationSamples:
    """Build the first ``count`` samples of a split of ``data``."""
    train = replace(run.train, eval_every=1, eval_samples=count)
    read = checked_read(build_samples(data, replace(run, train=train)), outermost(data), takes)
    return EvaluationSamples(
        count=count, size=train.micro_batch, take=lambda start, number: place(read(split, start, number))
    )


@contextmanager
def undisturbed(engine: Engine, module: nn.Module, seed: int) -> Iterator[None]:
    """Seed all generators; restore them, the modes of submodules and the gradients afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    states = random.getstate(), np.random.get_state()
    try:
        with engine.fork_rng(seed), torch.no_grad():
            random.seed(seed)
            np.random.seed(seed % (1 << 32))
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for part, mode in modes:
            part.training = mode
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


@dataclass(frozen=True, kw_only=True, eq=False)
class RunningModel(TrainedModel):
    """The model of a run, for functions that take one of a checkpoint."""

    steps: Callable[[], int | None]
    made: Callable[[], tuple[nn.Module, Loss]]

    @property
    def step(self) -> int | None:
        """Steps that are done."""
        return self.steps()

    @cached_property
    def _built(self) -> tuple[nn.Module, Loss]:
        return self.made()


class _RunFolder(StoredCheckpoint):
    """A run folder, which need not hold a checkpoint yet."""

    @cached_property
    def weights(self) -> Mapping[str, Any]:
        """None: the weights are those in memory."""
        return {}

    @cached_property
    def job(self) -> Mapping[str, Any]:
        """See :class:`Provenance`."""
        return {}


class _LiveModule(nn.Module):
    """The model of a run as one module, whose forward pass all ranks call together."""

    def __init__(self, access: RunAccess) -> None:
        super().__init__()
        self._access = [access]  # in a list, so that its parameters are not this module's

    def forward(self, batch: Batch) -> Any:
        """See :meth:`RunAccess.forward`."""
        return self._access[0].forward(batch)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._access[0].parallel.module, name)
