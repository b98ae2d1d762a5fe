"""The transforms of a checkpoint's run: as it records them, compared with a run's, and merged into the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.errors import CheckpointError, ConfigError, PluginError
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings import fill
from recipe_core.settings.parts import listed_parts

Transforms = Sequence[Part[TransformSpec]]


def recorded_transforms(registry: Registry, sections: Mapping[str, Any], folder: Path) -> Transforms:
    """Return the transforms of a run from the sections of its job.yaml, which is in ``folder``.

    Raises:
        ConfigError: a transform is unknown, or its settings are invalid.
    """
    train, own = sections.get("train"), sections.get("transform")
    names = train.get("transforms") if isinstance(train, Mapping) else None
    problems: list[str] = []
    named = Train(transforms=tuple(names or ()))
    transforms = tuple(listed_parts(registry, "transform", own if isinstance(own, Mapping) else {}, named, problems))
    if problems:
        raise ConfigError("\n".join(f"{folder / 'job.yaml'}: {problem}" for problem in problems))
    return transforms


def without_transforms(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a job.yaml without transforms, for weights into which they are merged."""
    plain = {name: section for name, section in sections.items() if name != "transform"}
    if isinstance(train := plain.get("train"), Mapping):
        plain["train"] = {name: value for name, value in train.items() if name != "transforms"}
    return plain


def require_same_transforms(transforms: Transforms, source: StoredCheckpoint, registry: Registry) -> None:
    """Refuse to resume from a checkpoint of a run with other transforms; one without job.yaml passes.

    Raises:
        CheckpointError: they differ in more than what is free to change.
    """
    if not source.job:
        return
    recorded = recorded_transforms(registry, source.job, source.folder)
    before, now = _described(recorded), _described(transforms)
    if before != now:
        raise CheckpointError(
            f"train.resume: {source.path} was trained with {before or 'no transforms'}, and this run has "
            f"{now or 'none'}; give the same, or begin with its weights: train.init_from={source.path}"
        )


def adds_the_same(transforms: Transforms, recorded: Transforms) -> bool:
    """True if both add the same weights, with the same meaning."""
    before, now = ([part for part in parts if part.spec.merge] for parts in (recorded, transforms))
    return _described(before) == _described(now)


def merged(transforms: Transforms, weights: Mapping[str, Lazy]) -> dict[str, Lazy]:
    """Return the weights of the model alone, from those with ``transforms``, the last of which is merged first.

    Raises:
        PluginError: ``merge`` of a transform fails.
    """
    plain = dict(weights)
    for part in reversed(transforms):
        if part.spec.merge:
            answer = call(part.spec.merge, f"transform {part.spec.name!r}", part.config, plain)
            if not isinstance(answer, Mapping) or not all(isinstance(leaf, Lazy) for leaf in answer.values()):
                raise PluginError(
                    f"transform {part.spec.name!r}: {part.spec.merge!r} returned {type(answer).__name__}; expected a "
                    "dict of recipe_core.Lazy by name"
                )
            plain = dict(answer)
    return plain


def _described(transforms: Transforms) -> str:
    return " ".join(text for part in transforms for text in _words(part))


def _words(part: Part[TransformSpec]) -> Iterator[str]:
    yield part.spec.name
    settings = [(name, value) for name, value in fill.flat(fill.plain(part.config)) if name not in part.spec.free]
    if settings:
        yield f"({', '.join(f'{name}={value}' for name, value in settings)})"
