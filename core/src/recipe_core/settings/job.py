"""The job: a recipe with all names looked up and all settings checked. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError, RecipeError
from recipe_core.hooks.kinds import PARTS, PartKind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import (
    CheckpointFormat,
    Dataset,
    Division,
    EngineSpec,
    Layout,
    Model,
    ModelFacts,
    Part,
    Recipe,
    Spec,
    Structure,
)
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.specs.loop import OWN_LOSS, CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import DataWrapperSpec, nested
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.facts import Facts
from recipe_core.settings.field_words import UNKNOWN, as_setting, in_our_words, settings_of
from recipe_core.settings.log_format import format_problems
from recipe_core.settings.mesh import layout_division, mesh_axes
from recipe_core.settings.parts import AUTO as AUTO
from recipe_core.settings.parts import (
    changed,
    engine_section,
    listed_parts,
    part,
    take_train_settings,
    unused,
    unused_wrappers,
)
from recipe_core.settings.saved import is_file, read_file
from recipe_core.settings.schedule import Rate, build_rate
from recipe_core.settings.sections import (
    HISTORY,
    IDENTITY,
    LISTED,
    PLUGINS,
    base_sections,
    plugin_of,
    read_sections,
    split_name,
    variant_layers,
    without_unlisted,
    without_unused_defaults,
)  # fmt: skip

__all__ = ["Job", "Part", "resolve", "split_name"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The complete description of a run."""

    recipe: Recipe
    variant: str | None
    model: Part[Model]
    data: Part[Dataset]
    layout: Part[Layout]
    checkpoint: Part[CheckpointFormat]
    engine: Part[EngineSpec]
    """The engine; for ``auto``, that of this machine."""
    loss: Part[LossSpec]
    optimizer: Part[OptimizerSpec]
    schedule: Part[ScheduleSpec]
    trackers: tuple[Part[TrackerSpec], ...]
    train: Train
    processes: int
    """Processes to start by default: those of the variant, else of the recipe."""
    auto: bool = False
    """``engine=auto``: another machine may use another engine."""
    plugins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The plugins of the recipe and of each part, by kind."""
    callbacks: tuple[Part[CallbackSpec], ...] = ()
    transforms: tuple[Part[TransformSpec], ...] = ()
    evaluations: tuple[Part[EvaluationSpec], ...] = ()
    facts: Facts = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """``recipe`` or ``recipe:variant``, as a user types it."""
        return self.recipe.name if self.variant is None else f"{self.recipe.name}:{self.variant}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data from which :func:`resolve` builds the same job."""
        plain: dict[str, Any] = {"recipe": self.recipe.name}
        if self.variant is not None:
            plain["variant"] = self.variant
        for kind in PARTS:
            part: Part[Spec] = getattr(self, kind)
            settings = {name: value for name, value in fill.plain(part).items() if name != "use"}
            # Parts that the section `train` names, and the model's own loss, need a section only for their settings.
            if settings or not (kind in ("optimizer", "schedule") or part.spec.name == OWN_LOSS):
                plain[kind] = {"use": part.spec.name, **settings}
        if self.auto:
            plain["engine"] = {"use": AUTO, **changed(self.engine)}
        wrappers = [one for one in nested(self.data) if isinstance(one.spec, DataWrapperSpec)]
        of_train = [(kind, getattr(self, f"{kind}s")) for kind in LISTED]
        for name, listed in (*of_train, ("wrapper", wrappers)):
            sections = {part.spec.name: fill.plain(part.config) for part in listed}
            if any(sections.values()):
                plain[name] = {part: settings for part, settings in sections.items() if settings}
        return {**plain, "train": fill.plain(self.train)}

    def as_yaml(self, more: Mapping[str, Any] | None = None) -> str:
        """Return :meth:`as_dict` with further sections as YAML, with lists on one line."""
        import yaml

        class FlowListDumper(yaml.SafeDumper):
            pass

        FlowListDumper.add_representer(
            list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
        )
        return yaml.dump(
            {**self.as_dict(), **(more or {})}, Dumper=FlowListDumper, sort_keys=False, allow_unicode=True, width=120
        )

    def learning_rate(self) -> Rate:
        """Return the learning rate as a function of the step."""
        return build_rate(self.schedule, self.train)

    def model_facts(self) -> ModelFacts | None:
        """Return the facts of the transformed model at the sequence length of the samples; None if there are none."""
        return self.facts.model

    def structure(self) -> Structure:
        """Return the submodule names by which a layout divides the model, before its transforms."""
        return self.model.spec.structure(self.model.config)

    def axes(self, world_size: int) -> dict[str, int]:
        """Return the mesh axes; empty if the layout does not fit ``world_size`` processes."""
        try:
            return mesh_axes(self.layout, world_size)
        except (RecipeError, ValueError):
            return {}

    def division(self, world_size: int) -> tuple[Division | None, int]:
        """Return the division of the model (None if the layout has none) and the number of data-parallel ranks."""
        axes = self.axes(world_size)
        return (layout_division(self.layout, world_size) if axes else None), axes.get("dp", 1)

    def tokens_per_sample(self) -> int:
        """Return the tokens of a sample; 0 if unknown."""
        return self.facts.data.sequence if self.facts.data else 0


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A recipe with its names looked up and its settings read, as far as they are valid, and all problems.

    :meth:`job` takes further problems, so that one error names all of them.
    """

    recipe: Recipe
    variant: str | None
    parts: dict[PartKind, Part[Any]]
    """The parts whose name and settings are valid."""
    trackers: tuple[Part[TrackerSpec], ...]
    callbacks: tuple[Part[CallbackSpec], ...]
    transforms: tuple[Part[TransformSpec], ...]
    evaluations: tuple[Part[EvaluationSpec], ...]
    train: Train | None
    """None if its settings are invalid."""
    processes: int
    """See :attr:`Job.processes`."""
    auto: bool
    """See :attr:`Job.auto`."""
    facts: Facts
    plugins: Mapping[str, str]
    """See :attr:`Job.plugins`."""
    problems: list[str]

    def job(self, problems: Iterable[str] = ()) -> Job:
        """Return the job if there are no problems, the caller's ``problems`` included.

        Raises:
            ConfigError: names all of them.
        """
        every = [*self.problems, *problems]
        if every or self.train is None:
            raise ConfigError.of(dict.fromkeys(every))
        return Job(
            recipe=self.recipe,
            variant=self.variant,
            train=self.train,
            trackers=self.trackers,
            callbacks=self.callbacks,
            transforms=self.transforms,
            evaluations=self.evaluations,
            plugins=self.plugins,
            processes=self.processes,
            auto=self.auto,
            facts=self.facts,
            **self.parts,
        )


def resolve(
    registry: Registry,
    target: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    world_size: int | None = None,
) -> Job:
    """Return the job of a :func:`draft` without problems; see there for the arguments.

    Raises:
        ConfigError: the target or a setting is wrong; one error names all mistakes.
        PluginError: the recipe is unknown, or provided by two plugins.
    """
    return draft(registry, target, overrides, world_size).job()


def draft(
    registry: Registry,
    target: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    world_size: int | None = None,
) -> Draft:
    """Merge variant, file and overrides into a recipe, look up all names, and check all settings.

    Args:
        registry: of the contributions.
        target: name of a recipe, ``name:variant``, path of a YAML file, or the content of such a file.
        overrides: arguments ``section.setting=value``, or sections with settings.
        world_size: number of processes for :meth:`Train.for_run`, which derives settings; 0: :attr:`Job.processes`.
            The targets of the contributions are checked too. None: neither.

    Raises:
        ConfigError: the target cannot be read, or the recipe has no such variant.
        PluginError: the recipe is unknown, or provided by two plugins.
    """
    problems: list[str] = []
    recipe, variant, file = _target(registry, target)
    merged = base_sections(recipe)
    extra = overrides if isinstance(overrides, Mapping) else fill.overrides(overrides, problems)
    layers, processes = variant_layers(recipe, variant)
    for layer in (*layers, file, extra):
        sections = read_sections(layer, problems)
        merged = fill.merge(without_unlisted(merged, sections, recipe), sections)
    merged |= without_unused_defaults(merged, recipe)
    near = registry.owner("recipe", recipe.name)
    auto = merged["engine"]["use"] == AUTO
    merged["engine"] = engine_section(registry, merged, problems)
    for kind in ("optimizer", "schedule"):
        merged["train"] |= take_train_settings(registry, kind, merged[kind], near) | {kind: merged[kind]["use"]}
    filled = {kind: part(registry, kind, merged[kind], problems, near, merged["wrapper"]) for kind in PARTS}
    parts = {kind: part for kind, part in filled.items() if part is not None}
    problems += unused_wrappers(parts.get("data"), merged["wrapper"])
    if world_size is not None:
        problems += _code_problems(recipe)
        parts = {kind: part for kind, part in parts.items() if _has_its_code(part, problems)}
    train: Train | None = fill.fill(type(recipe.train), merged["train"], "train", problems)
    if train is not None:
        problems += format_problems(recipe, train.log_format)
    if train is not None and "optimizer" in parts:
        problems += unused(registry, parts["optimizer"].spec, train)
    listed = {kind: tuple(listed_parts(registry, kind, merged[kind], train, problems, near)) for kind in LISTED}
    for kind in LISTED if world_size is not None else ():
        if kind != "tracker":  # training continues without one
            listed[kind] = tuple(one for one in listed[kind] if _has_its_code(one, problems))
    facts = Facts(parts.get("model"), parts.get("data"), listed["transform"])
    if world_size is not None and train is not None:
        train = train.for_run(world_size or processes, _train_samples(facts))
    return Draft(
        recipe=recipe, variant=variant, parts=parts, trackers=listed["tracker"], callbacks=listed["callback"],
        transforms=listed["transform"], evaluations=listed["evaluation"], train=train, processes=processes, auto=auto,
        facts=facts,
        plugins={"recipe": near, **{kind: registry.owner(kind, part.spec.name) for kind, part in parts.items()}},
        problems=_worded(problems, registry, recipe, merged, extra),
    )  # fmt: skip


def _worded(
    problems: list[str], registry: Registry, recipe: Recipe, merged: Mapping[str, Any], extra: Mapping[str, Any]
) -> list[str]:
    """Name in each problem the setting to change: ours for a word of another tool, and the one that holds it now."""
    if any(UNKNOWN.search(problem) for problem in problems):
        known = settings_of(registry, merged, type(recipe.train))
        problems = [in_our_words(problem, extra, known, registry) for problem in problems]
    if problems:
        known = settings_of(registry, base_sections(recipe), type(recipe.train))
        problems = [as_setting(problem, known) for problem in problems]
    return problems


def _has_its_code(part: Part[Any], problems: list[str]) -> bool:
    mistakes = list(dict.fromkeys(problem for one in nested(part) for problem in _code_problems(one.spec)))
    problems += mistakes
    return not mistakes


def _code_problems(item: Any) -> list[str]:
    from recipe_core.hooks.static.resolve import target_problems  # not needed by commands that only print

    return target_problems(item)


def _train_samples(facts: Facts) -> int | None:
    try:
        return facts.data.train_samples if facts.data else None
    except RecipeError:  # reported by the check of the files
        return None


def _target(registry: Registry, target: str | Path | Mapping[str, Any]) -> tuple[Recipe, str | None, Mapping[str, Any]]:
    """Return the recipe, the variant, and the sections of the file if ``target`` is one."""
    if isinstance(target, str) and not is_file(registry, target):
        name, variant = split_name(target)
        return registry.get("recipe", name), variant, {}
    where = "job" if isinstance(target, Mapping) else str(target)
    data = dict(target if isinstance(target, Mapping) else read_file(target))
    recipe, variant = data.pop("recipe", None), data.pop("variant", None)
    recorded = data.get(PLUGINS)
    for record in (IDENTITY, HISTORY, PLUGINS):  # of the run that wrote the file; not settings
        data.pop(record, None)
    for kind in PARTS:  # a name that another plugin has since taken, too
        section, owner = data.get(kind), plugin_of(kind, recorded)
        if owner and isinstance(section, Mapping) and section.get("use") in registry.contested[kind]:
            data[kind] = {**section, "use": f"{owner}/{section['use']}"}
    if not isinstance(recipe, str):
        raise ConfigError(f"{where}: expected a line `recipe: NAME`, as `recipe show` prints it")
    name, named_variant = split_name(recipe)
    if named_variant is not None:
        raise ConfigError(
            f"{where}: recipe: expected a name, got {recipe!r}; write two lines, `recipe: {name}` and "
            f"`variant: {named_variant}`"
        )
    if variant is not None and not isinstance(variant, str):
        raise ConfigError(f"{where}: variant: expected a name, got {variant!r}")
    return registry.get("recipe", recipe, plugin_of("recipe", recorded)), variant, data


def default_of(job: Job, path: str) -> Any:
    """Return the default of the setting ``path`` as in job.yaml; None if it has none."""
    section, _, name = path.partition(".")
    part = getattr(job, section, None)
    config = getattr(part, "config", part)
    while name.count(".") > 1:  # a setting of a dataset that a setting holds: data.parts.NAME.files
        holder, entry, name = name.split(".", 2)
        inner = getattr(config, holder, None)
        config = getattr(inner.get(entry), "config", None) if isinstance(inner, Mapping) else None
    for setting in fields(config) if is_dataclass(config) else ():
        if setting.name == name and setting.default_factory is not MISSING:
            return fill.plain(setting.default_factory())
        if setting.name == name and setting.default is not MISSING:
            return fill.plain(setting.default)
    return None
