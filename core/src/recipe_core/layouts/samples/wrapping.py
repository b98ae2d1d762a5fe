"""The context of a data wrapper: the run, and samples made of a function of a batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from recipe_core.data.identity import identity_of
from recipe_core.hooks.specs import Dataset, Part
from recipe_core.hooks.specs.wrapper import nested
from recipe_core.launch.identity import code_digest
from recipe_core.layouts.parallel import Batch, Run, Samples
from recipe_core.layouts.samples.filtering import FilteredSamples
from recipe_core.layouts.samples.mapping import MappedSamples, SampleGenerators
from recipe_core.settings.fill import plain


@dataclass(frozen=True, kw_only=True)
class WrapperRun:
    """The context of a data wrapper."""

    run: Run
    part: Part[Any]
    """The wrapper, with its settings."""
    below: Part[Dataset]
    """The dataset, with the wrappers that are below this one."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.run.train.seed

    def filtered(self, samples: Samples, keep: Callable[[Batch], Tensor]) -> Samples:
        """Return the samples that ``keep`` accepts, in their order.

        ``keep(batch)`` gets tensors ``[count, ...]`` and returns a bool tensor ``[count]``. It must decide about each
        sample by itself. Sample n is the n-th that it accepts. It is found through an index of the accepted samples,
        which is built stretch by stretch as the run proceeds, once on each machine, and kept in the cache.

        Raises:
            ConfigError: while reading: ``keep`` accepts none of 65,536 samples in a row.
        """
        return FilteredSamples(samples, keep, self.part.spec, self.run.cache / "filtered", self.key)

    def mapped(self, samples: Samples, change: Callable[[Batch, SampleGenerators], Batch]) -> Samples:
        """Return samples that ``change`` makes of others.

        ``change(batch, generators)`` gets tensors ``[count, ...]`` and returns such tensors. Random numbers come from
        ``generators``, which holds a generator for each sample, seeded by the seed, the wrapper's name, the split and
        the number of the sample. So a sample is the same in every batch, on every rank and after a stop.
        """
        return MappedSamples(samples, change, f"{self.seed} {self.part.spec.name}")

    def key(self, split: str) -> str:
        """Return a digest of all that the samples below and this wrapper follow from, for files in the cache."""
        parts = [*nested(self.below), self.part]
        train = self.run.train
        requested = self.run.train_samples if split == "train" else train.eval_samples
        facts = {
            "identity": dict(identity_of(self.below).record),
            "settings": [plain(part) for part in parts],
            "code": code_digest(["recipe_core.layouts", *(part.spec.build for part in parts)]),
            "run": [split, train.seed, requested, self.run.vocabulary],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
