"""Whose tensors a checkpoint holds: the model, its settings, and as much of the run as is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.checkpoint.locate import Source
from recipe_core.errors import CheckpointError, ConfigError, RecipeError
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import CheckpointFormat, Model, Part, load
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.job import MOVED, part, resolve

if TYPE_CHECKING:
    from recipe_core.checkpoint.adapter import Adapter, Naming
    from recipe_core.checkpoint.ranks.cuts import Shape


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is known about the run that a checkpoint is of."""

    model: Part | None = None
    data: Part | None = None
    train: Train | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    """The settings as ``job.yaml`` has them."""
    guessed: str = ""
    """What was not said and had to be concluded, in words for the user."""

    def adapter(self, naming: str, where: Path) -> Adapter:
        """How the model stands in a foreign naming.

        Raises:
            CheckpointError: the model is not known, or has no such adapter.
        """
        if self.model is None:
            raise CheckpointError(
                f"{where}: it does not say which model it holds, and names of tensors have to be changed; name a "
                "recipe of this model: --recipe NAME[:VARIANT]"
            )
        spec = self.model.spec
        assert isinstance(spec, Model)
        target = spec.adapters.get(naming)
        if not target:
            known = ", ".join(spec.adapters) or "none"
            raise CheckpointError(
                f"{where}: model {spec.name!r} has no adapter for the naming {naming!r} (it has: {known})"
            )
        return _naming(spec, target).adapter(self.model.config)

    def ours(self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path) -> dict[str, Any]:
        """A state as a format opened it, under the names of the module.

        Raises:
            CheckpointError: it has no model, or its names need an adapter that there is not.
        """
        from recipe_core.checkpoint.adapter import to_ours

        if spec.ranks:
            from recipe_core.checkpoint.ranks.join import joined

            return joined(state, self.shape(where), self.names(spec, where), where, pads=spec.pads)
        if not isinstance(state.get("model"), dict):
            raise CheckpointError(f"{where}: it holds no model (its parts: {', '.join(map(str, state)) or 'none'})")
        if not spec.naming:
            return dict(state)
        return {**state, "model": to_ours(self.adapter(spec.naming, where), state["model"], where)}

    def left_out(self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path) -> list[str]:
        """What of a state as a format opened it :meth:`ours` leaves out, in words for the user."""
        from recipe_core.checkpoint.match.mismatch import SHOWN
        from recipe_core.checkpoint.ranks.join import foreign_buffers

        if not spec.ranks or self.model is None:
            return []
        names = foreign_buffers(state, self.shape(where), self.names(spec, where))
        kind = "buffers" if len(names) > 1 else "a buffer"
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        return [f"{', '.join(names[:SHOWN])}{more}: {kind} that {self.model.spec.name} does not have"] if names else []

    def theirs(self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path, grid: Any = None) -> dict[str, Any]:
        """The same as the format ``spec`` saves it; ``grid`` says for which ranks, where it has a file for each."""
        from recipe_core.checkpoint.adapter import to_theirs

        adapter = self.names(spec, where)
        if spec.ranks:
            from recipe_core.checkpoint.ranks.join import divided

            return {**divided(state, self.shape(where), adapter, grid), "files": {**adapter.files}}
        if not spec.naming:
            return dict(state)
        files = {**adapter.files, **self.tokenizer(), **state.get("files", {})}
        return {**state, "model": to_theirs(adapter, state["model"], ties=False), "files": files}

    def names(self, spec: CheckpointFormat, where: Path) -> Adapter:
        """The adapter for the names of a format; one that changes nothing where it has the module's own."""
        from recipe_core.checkpoint.adapter import Adapter

        return self.adapter(spec.naming, where) if spec.naming else Adapter()

    def shape(self, where: Path) -> Shape:
        """What the model is made of, and where it is cut.

        Raises:
            CheckpointError: the model is not known, or has no tensor plan.
        """
        from recipe_core.checkpoint.ranks.cuts import Shape

        if self.model is None:
            raise CheckpointError(
                f"{where}: it does not say which model it holds, and without it nobody knows how tensors are divided "
                "over the ranks; name a recipe of this model: --recipe NAME[:VARIANT]"
            )
        return Shape(self.model)

    def epoch(self, progress: Mapping[str, Any]) -> int:
        """Full rounds over the training data; 0 where its size is not known, or the data is gone."""
        target, consumed = getattr(self.data.spec, "facts", "") if self.data else "", progress.get("consumed_samples")
        if self.data is None or not target or not consumed:
            return 0
        try:
            samples = load(target, f"dataset {self.data.spec.name!r}")(self.data.config).train_samples
        except RecipeError:
            return 0
        return int(consumed) // samples if samples else 0

    def tokenizer(self) -> dict[str, str]:
        """Names and texts of the tokenizer's files, where the dataset knows them and they are still there."""
        target = getattr(self.data.spec, "tokenizer", "") if self.data else ""
        if self.data is None or not target:
            return {}
        try:
            return dict(load(target, f"dataset {self.data.spec.name!r}")(self.data.config))
        except RecipeError:  # the data of a run may be gone when its weights are converted
            return {}


def origin_of(registry: Registry, source: Source, state: Mapping[str, Any], recipe: str | None = None) -> Origin:
    """What ``recipe`` says, or ``job.yaml`` in the checkpoint, or the texts and shapes of a checkpoint of others.

    Raises:
        RecipeError: the recipe is unknown, or what was written cannot be understood.
    """
    if recipe is not None:
        job = resolve(registry, recipe)
        return Origin(model=job.model, data=job.data, train=job.train, sections=job.as_dict())
    sections = source.job()
    if sections:
        return _of_sections(registry, sections, source.folder)
    return _concluded(registry, source, state)


def _of_sections(registry: Registry, sections: Mapping[str, Any], folder: Path) -> Origin:
    problems: list[str] = []
    given = {name: found for name, found in sections.items() if isinstance(found, Mapping)}
    model = part(registry, "model", given.get("model", {}), problems)
    if problems:
        raise ConfigError("\n".join([f"{folder / 'job.yaml'}: {problem}" for problem in problems]))
    # What is not needed for the names may be of plugins that are not installed here.
    data = part(registry, "data", given["data"], []) if "data" in given else None
    settings = {name: value for name, value in given.get("train", {}).items() if name not in MOVED}
    train = fill.fill(Train, settings, "train", []) if "train" in given else None
    return Origin(model=model, data=data, train=train, sections=sections)


def _concluded(registry: Registry, source: Source, state: Mapping[str, Any]) -> Origin:
    """From what stands in the checkpoint itself; nothing where no model, or more than one, knows it as its own."""
    files: Mapping[str, str] = state.get("files", {})
    # What one rank holds has no shapes of the whole; such files say themselves what they are of, or nobody knows.
    shapes = {name: tensor.shape for name, tensor in state.get("model", {}).items() if hasattr(tensor, "shape")}
    found = []
    for name in registry.names("model"):
        spec = registry.claims["model"][name][0].item
        if not isinstance(spec, Model) or source.format.model not in ("", name):
            continue
        for naming, target in spec.adapters.items():
            if naming != (source.format.naming or naming):
                continue
            try:
                said = _naming(spec, target).settings(files, shapes)
            except CheckpointError as error:
                raise CheckpointError(f"{source.path}: {error}") from error
            if said:
                found.append((name, said))
                break
    if len(found) != 1:
        return Origin()
    name, settings = found[0]
    problems: list[str] = []
    model = part(registry, "model", {"use": name, **settings}, problems)
    if problems or model is None:
        raise ConfigError("\n".join([f"{source.path}: {problem}" for problem in problems]))
    words = ", ".join(f"{key}={value}" for key, value in settings.items())
    where = f"its {next(iter(files))}" if files else "the shapes of its tensors"
    return Origin(
        model=model,
        sections={"model": {"use": name, **fill.plain(model.config)}},
        guessed=f"{name} by {where}: {words}",
    )


def _naming(spec: Model, target: str) -> Naming:
    found: Naming = load(target, f"model {spec.name!r}")()
    return found
