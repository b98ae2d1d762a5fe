"""Sizes of a model and its data, before anything is built."""

from __future__ import annotations

from functools import cached_property

from recipe_core.hooks.specs import DataFacts, Dataset, Model, ModelFacts, Part, load


class Facts:
    """Facts of the model and the dataset of a job, each computed once, at its first use.

    None stands for a contribution without facts, or one that could not be resolved.
    """

    def __init__(self, model: Part[Model] | None, data: Part[Dataset] | None) -> None:
        self._model, self._data = model, data

    @cached_property
    def data(self) -> DataFacts | None:
        """Facts of the dataset.

        Raises:
            RecipeError: settings or files are so wrong that there are none.
        """
        if self._data is None or not self._data.spec.facts:
            return None
        facts: DataFacts = load(self._data.spec.facts, f"dataset {self._data.spec.name!r}")(self._data.config)
        return facts

    @cached_property
    def model(self) -> ModelFacts | None:
        """Facts of the model at the length of the samples."""
        if self._model is None or not self._model.spec.facts or self.data is None:
            return None
        function = load(self._model.spec.facts, f"model {self._model.spec.name!r}")
        facts: ModelFacts | None = function(self._model.config, self.data.sequence)
        return facts
