"""Sizes of a model, its data and its optimizer, before they are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from recipe_core.errors import PluginError
from recipe_core.hooks.facts import OptimizerFacts
from recipe_core.hooks.specs import DataFacts, Dataset, IndexFacts, Model, ModelFacts, Part
from recipe_core.hooks.specs.transform import MEASURED, TransformSpec
from recipe_core.hooks.specs.wrapper import part_settings, wrapped_facts
from recipe_core.hooks.target import call, load
from recipe_core.hooks.train import Train


def data_facts(data: Part[Dataset]) -> DataFacts | None:
    """Return the facts of a dataset with its wrappers; None if it has none.

    Raises:
        RecipeError: settings or files are too wrong for any facts.
    """
    spec = data.spec
    if not spec.facts:
        return None
    facts = call(spec.facts, f"dataset {spec.name!r}", data.config)
    if facts is None and part_settings(spec.config):  # one of its parts has none
        return None
    if not isinstance(facts, DataFacts):
        raise PluginError(f"dataset {spec.name!r}: {spec.facts!r} returned {facts!r:.60}; expected a DataFacts")
    return wrapped_facts(data, facts)


class Facts:
    """Facts of the model and the dataset of a job, each computed once, at its first use.

    None stands for a contribution without facts, or one that could not be resolved.
    """

    def __init__(
        self, model: Part[Model] | None, data: Part[Dataset] | None, transforms: Sequence[Part[TransformSpec]] = ()
    ) -> None:
        self._model, self._data, self._transforms = model, data, tuple(transforms)
        self._indices: tuple[Train, IndexFacts] | None = None

    @cached_property
    def data(self) -> DataFacts | None:
        """Facts of the dataset.

        Raises:
            RecipeError: settings or files are too wrong for any facts.
        """
        return data_facts(self._data) if self._data is not None else None

    @cached_property
    def model(self) -> ModelFacts | None:
        """Facts of the transformed model at the sequence length of the samples.

        Transforms are measured on the model without values, which imports PyTorch.

        Raises:
            RecipeError: a transform does not fit the model.
        """
        if not self._transforms or self.plain_model is None or self.data is None:
            return self.plain_model
        facts: ModelFacts = load(MEASURED, "the core")(
            self._model, self._transforms, self.plain_model, self.data.sequence
        )
        return facts

    @cached_property
    def plain_model(self) -> ModelFacts | None:
        """Facts of the model without its transforms."""
        if self._model is None or not self._model.spec.facts or self.data is None:
            return None
        spec = self._model.spec
        facts = call(spec.facts, f"model {spec.name!r}", self._model.config, self.data.sequence)
        if not isinstance(facts, ModelFacts | None):
            raise PluginError(f"model {spec.name!r}: {spec.facts!r} returned {facts!r:.60}; expected a ModelFacts")
        return _masked(facts, self.data) if facts is not None and self.data.document_mask else facts

    def indices(self, train: Train) -> IndexFacts | None:
        """Return the needs of the dataset's indices in a run with these settings; None if its facts name problems.

        Raises:
            RecipeError: see :attr:`data`.
        """
        if self._data is None or not self._data.spec.indices or self.data is None or self.data.problems:
            return None
        if self._indices is None or self._indices[0] != train:
            spec = self._data.spec
            facts = call(spec.indices, f"dataset {spec.name!r}", self._data.config, train)
            if not isinstance(facts, IndexFacts):
                raise PluginError(
                    f"dataset {spec.name!r}: {spec.indices!r} returned {facts!r:.60}; expected IndexFacts"
                )
            self._indices = train, facts
        return self._indices[1]


def _masked(model: ModelFacts, data: DataFacts) -> ModelFacts:
    # Off the CPU, all layers share a mask with a byte for each pair of tokens: a fourth of an fp32 value.
    mask = data.sequence**2 // 4
    return replace(
        model,
        flops_per_sample=model.flops_per_sample - model.attention_flops * (1 - data.attended_pairs),
        activation_values=model.activation_values + mask,
        recomputed_activation_values=model.recomputed_activation_values + mask,
    )


def adam_facts(config: object, train: Train, model: ModelFacts) -> OptimizerFacts:
    """Return the memory of AdamW and LAMB: both moments, and the fp32 copy of bf16 weights, if any."""
    moment = 2 if train.precision == "bf16" and train.optimizer_states == "weights" else 4
    return OptimizerFacts(bytes_per_parameter=2 * moment + 4 * (train.optimizer_states == "master"))
