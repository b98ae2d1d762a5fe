"""What is known about a model and its data before anything is built."""

from __future__ import annotations

from functools import cached_property

from recipe_core.hooks.specs import DataFacts, Dataset, Model, ModelFacts, Part, load


class Facts:
    """Asks the model and the dataset of a job what they say of themselves, each once and when it is needed.

    None stands for a contribution that says nothing of itself, or that could not be resolved.
    """

    def __init__(self, model: Part | None, data: Part | None) -> None:
        self._model, self._data = model, data

    @cached_property
    def data(self) -> DataFacts | None:
        """About the samples.

        Raises:
            RecipeError: the settings or the files are so wrong that nothing can be said.
        """
        spec = self._data.spec if self._data else None
        if self._data is None or not isinstance(spec, Dataset) or not spec.facts:
            return None
        found: DataFacts = load(spec.facts, f"dataset {spec.name!r}")(self._data.config)
        return found

    @cached_property
    def model(self) -> ModelFacts | None:
        """About the model, at the length of the samples."""
        spec = self._model.spec if self._model else None
        if self._model is None or not isinstance(spec, Model) or not spec.facts or self.data is None:
            return None
        found: ModelFacts | None = load(spec.facts, f"model {spec.name!r}")(self._model.config, self.data.sequence)
        return found
