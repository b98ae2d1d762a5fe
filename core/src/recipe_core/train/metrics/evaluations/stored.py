"""The model of a checkpoint, for ``recipe eval --tasks``."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.engine.loader import Batch, PlainLoader
from recipe_core.engine.protocol import Engine
from recipe_core.hooks.inference import Evaluation
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.train import Train
from recipe_core.layouts.built import checked_loss
from recipe_core.layouts.parallel import COUNTED, Reductions, without_counts
from recipe_core.train.metrics.evaluations.access import samples_of, undisturbed
from recipe_core.train.metrics.evaluations.measuring import Evaluations
from recipe_core.train.metrics.evaluations.model import EvaluationSamples
from recipe_core.train.metrics.evaluations.settings import other_dataset
from recipe_core.train.metrics.validation import known_data, outside_run


def measure(trained: TrainedModel, part: Part[EvaluationSpec], options: Evaluation, engine: Engine) -> dict[str, float]:
    """Measure an evaluation of a checkpoint: numbers by name."""
    access = StoredAccess(model=trained, train=trained.provenance.train or Train())
    evaluations = Evaluations()
    with undisturbed(engine, trained.module, access.train.seed):
        evaluations.build([part], access, options)
        return {
            name.removeprefix(f"{part.spec.name}/"): value
            for name, value in (evaluations.measure(engine, trained.module, access.train.seed) or {}).items()
        }


@dataclass(frozen=True, kw_only=True)
class StoredAccess:
    """The model of a checkpoint; see :class:`recipe_core.train.metrics.evaluations.model.Access`."""

    model: TrainedModel
    train: Train

    data_rank = 0
    data_ranks = 1
    together = False

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def reductions(self) -> Reductions:
        return {**COUNTED, **self.model.model.spec.metrics}

    def step(self) -> int | None:
        """Steps of the checkpoint."""
        return self.model.step

    def forward(self, batch: Batch) -> Any:
        """The output of the model."""
        return self.model.module(batch)

    def loss(self, batch: Batch) -> dict[str, float]:
        """The values of the model's own loss."""
        values = checked_loss(self.model.loss, self.model.model.spec)(self.forward(batch), batch)
        return {name: float(value) for name, value in without_counts(values, self.reductions).items()}

    def samples(self, count: int | None, split: str, settings: Mapping[str, Any], part: str) -> EvaluationSamples:
        """Samples of the dataset that the checkpoint was trained on, or of one with other settings."""
        data = other_dataset(known_data(self.model), settings, part)
        if not settings:
            self.model.require_data()
        place = PlainLoader(self.device, _unused, self.train).place
        run = outside_run(self.model, self.train)
        return samples_of(data, run, count or self.train.eval_samples, split, self.model.model.spec.takes, place)

    def trained(self, *, copied: bool) -> TrainedModel:
        """The model itself: nothing trains it."""
        return self.model

    def gather(self, value: Any) -> list[Any]:
        """The value of the only process."""
        return [value]


def _unused(start: int) -> Future[list[Batch]]:
    raise AssertionError("batches are placed one by one")
