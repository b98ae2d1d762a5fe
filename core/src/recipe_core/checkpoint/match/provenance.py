"""Provenance of a checkpoint: its model, the model's settings, and what is known of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.formats.hf_config import CONFIG, kind_of
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.checkpoint.manifest import STEP
from recipe_core.checkpoint.match.transforms import Transforms, recorded_transforms
from recipe_core.checkpoint.match.translator import Translator, naming_of
from recipe_core.data.identity import read_copy, recorded_identity, tokenizer_digest
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import DataFacts, Dataset, Model, Part, load
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.facts import data_facts
from recipe_core.settings.job import resolve
from recipe_core.settings.parts import MOVED, part
from recipe_core.settings.schedule import Rate, build_rate


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The known parts of the run that wrote a checkpoint."""

    model: Part[Model] | None = None
    data: Part[Dataset] | None = None
    transforms: Transforms = ()
    """Transforms of the model, as the run's ``train.transforms`` lists them."""
    train: Train | None = None
    rate: Rate | None = None
    """Learning rate of each step."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """The settings as in ``job.yaml``."""
    guessed: str = ""
    """Note for the user on what was inferred from tensors or texts; empty if everything was recorded."""
    unknown: str = "it does not say which model it holds"
    """The reason why the model is unknown, for messages."""
    folder: Path | None = None
    """Folder of the checkpoint; None if its job.yaml is unknown."""

    @cached_property
    def translator(self) -> Translator:
        """Converts states of the model between its names and those of formats."""
        return Translator(self.model, self.unknown)

    def epoch(self, progress: Mapping[str, Any]) -> int:
        """Return the number of full passes over the training data; 0 if its size is unknown or the data is missing."""
        consumed = int(progress.get("consumed_samples") or 0)
        facts = self.data_facts() if consumed else None
        return consumed // facts.train_samples if facts and facts.train_samples else 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """Recorded identity of the data and the tokenizer; empty if unknown."""
        return recorded_identity(self.sections)

    def tokenizer(self) -> dict[str, str]:
        """Return names and texts of the tokenizer's files, from the copy in the run folder or from the dataset.

        Empty if there are none, or only those of a tokenizer that differs from the recorded one.
        """
        return next(iter(self._tokenizers()), {})

    def missing_tokenizer(self) -> str:
        """Return a sentence why a recorded tokenizer is not available; empty if it is, or if none is recorded."""
        recorded = self.identity.get("tokenizer")
        if not recorded or self.tokenizer():
            return ""
        run = "its run folder" if self.folder is None else str(self.folder.parent.parent)
        texts = self._from_dataset(lambda dataset: dataset.tokenizer)
        reason = "the data has another one now" if texts else "none is there"
        return f"it was trained with the tokenizer {recorded[:12]}, {run} holds no copy of it, and {reason}"

    def _tokenizers(self) -> Iterator[dict[str, str]]:
        """Texts of the tokenizers with the recorded digest, or of all if none is recorded."""
        recorded = self.identity.get("tokenizer")
        copy = (
            read_copy(self.folder.parent.parent) if self.folder is not None and STEP.fullmatch(self.folder.name) else {}
        )
        if copy and recorded in (None, tokenizer_digest(copy)):
            yield copy
        texts = dict(self._from_dataset(lambda dataset: dataset.tokenizer) or {})
        if texts and recorded in (None, tokenizer_digest(texts)):
            yield texts

    def data_facts(self) -> DataFacts | None:
        """Return the facts of the data; None if it is unknown or missing."""
        try:
            return data_facts(self.data) if self.data else None
        except RecipeError:  # the data of a run may be missing when its weights are converted
            return None

    def _from_dataset(self, target: Callable[[Dataset], str]) -> Any:
        """Result of a function that the dataset names; None if it names none, or the data is missing."""
        spec = self.data.spec if self.data else None
        if self.data is None or not isinstance(spec, Dataset) or not target(spec):
            return None
        try:
            return load(target(spec), f"dataset {spec.name!r}")(self.data.config)
        except RecipeError:  # the data of a run may be missing when its weights are converted
            return None


def provenance_of(
    registry: Registry, source: StoredCheckpoint, state: Mapping[str, Any], recipe: str | None = None
) -> Provenance:
    """Determine the provenance from ``recipe``, from the checkpoint's ``job.yaml``, or from its texts and shapes.

    Raises:
        RecipeError: the recipe is unknown, or the recorded settings are invalid.
    """
    if recipe is not None:
        job = resolve(registry, recipe)
        rate = job.learning_rate()
        return Provenance(
            model=job.model,
            transforms=job.transforms,
            data=job.data,
            train=job.train,
            rate=rate,
            sections=job.as_dict(),
        )
    sections = source.job
    if sections:
        return _of_sections(registry, sections, source)
    return _inferred(registry, source, state)


def _of_sections(registry: Registry, sections: Mapping[str, Any], source: StoredCheckpoint) -> Provenance:
    problems: list[str] = []
    folder = source.folder
    parts = {name: section for name, section in sections.items() if isinstance(section, Mapping)}
    model = part(registry, "model", parts.get("model", {}), problems)
    if problems:
        raise ConfigError("\n".join([f"{folder / 'job.yaml'}: {problem}" for problem in problems]))
    if model is not None and (target := model.spec.adapters.get(source.format.naming)):
        model = replace(model, config=naming_of(model.spec, target).of_folder(model.config, folder))
    # Data and schedule are not needed for the names, and their plugins may be missing here.
    data = part(registry, "data", parts["data"], [], wrapper=parts.get("wrapper")) if "data" in parts else None
    settings = {name: value for name, value in parts.get("train", {}).items() if name not in MOVED}
    transforms = recorded_transforms(registry, sections, folder)
    train = fill.fill(Train, settings, "train", []) if "train" in parts else None
    named = parts.get("schedule") or {"use": train.schedule if train else None}
    schedule = part(registry, "schedule", named, [])
    rate = build_rate(schedule, train) if schedule is not None and train is not None else None
    return Provenance(
        model=model, transforms=transforms, data=data, train=train, rate=rate, sections=sections, folder=folder
    )


def _inferred(registry: Registry, source: StoredCheckpoint, state: Mapping[str, Any]) -> Provenance:
    """Infer the provenance from texts and shapes; empty unless exactly one model recognises them."""
    files: Mapping[str, str] = state.get("files", {})
    # Shards do not have the shapes of whole tensors: rank files must record their model.
    shapes = {name: tensor.shape for name, tensor in state.get("model", {}).items() if isinstance(tensor, Lazy)}
    candidates, readers, refused = [], list[str](), list[CheckpointError]()
    for name in registry.names("model"):
        spec = registry.registrations["model"][name].item
        if not isinstance(spec, Model) or source.format.model not in ("", name):
            continue
        for naming, target in spec.adapters.items():
            if naming != (source.format.naming or naming):
                continue
            readers.append(name)
            try:
                recognised = naming_of(spec, target).settings(files, shapes)
            except CheckpointError as error:
                refused.append(error)
                continue
            if recognised:
                candidates.append((name, recognised))
                break
    if not candidates and refused:
        raise CheckpointError("\n".join(f"{source.path}: {error}" for error in refused)) from refused[0]
    if not candidates and (kind := kind_of(files)):
        return Provenance(
            unknown=f"its {CONFIG} is of a model of type {kind!r}, which no installed model is (such folders are read "
            f"by: {', '.join(readers) or 'none'})"
        )
    if len(candidates) > 1:  # the model of a family before one that is like it
        candidates = [found for found in candidates if found[0] == kind_of(files)] or candidates
    if len(candidates) != 1:
        names = ", ".join(name for name, _ in candidates)
        return Provenance(unknown=f"several models read it ({names})") if candidates else Provenance()
    name, settings = candidates[0]
    problems: list[str] = []
    model = part(registry, "model", {"use": name, **settings}, problems)
    if problems or model is None:
        raise ConfigError("\n".join([f"{source.path}: {problem}" for problem in problems]))
    summary = ", ".join(f"{key}={value}" for key, value in settings.items())
    where = f"its {next(iter(files))}" if files else "the shapes of its tensors"
    return Provenance(
        model=model,
        sections={"model": {"use": name, **fill.plain(model.config)}},
        guessed=f"{name} by {where}: {summary}",
    )
