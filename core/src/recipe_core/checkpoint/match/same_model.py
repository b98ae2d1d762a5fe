"""Compare the model of a job with what a checkpoint records of its model.

Tensors of the same names and shapes can belong to another function: with other heads, another activation or another
epsilon. Only the settings beside the tensors tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipe_core.checkpoint.formats.hf_config import CONFIG, kind_of
from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import Model, Part, load
from recipe_core.settings import fill

if TYPE_CHECKING:
    from recipe_core.checkpoint.adapter import Naming

JOB = "job.yaml"
UNRECORDED = "does not record the settings of its model: those that change no shape (heads, say) were not compared"


@dataclass(frozen=True)
class RecordedSettings:
    """Settings of a model as one file of a checkpoint has them."""

    where: str
    """The file, for messages."""
    model: str
    """Name of the model."""
    settings: Mapping[str, Any]
    """By their flat names; only those that the file says."""


def require_same(model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], setting: str) -> str:
    """Refuse a checkpoint whose recorded settings make its model compute another function.

    Args:
        model: the job's model.
        source: the checkpoint.
        files: its texts, as its format opened them.
        setting: what named it, for the message (``train.init_from``).

    Returns:
        A line for the log where the checkpoint records nothing; else nothing.

    Raises:
        CheckpointError: settings differ; one message names all of them.
    """
    recorded = list(records(model, source, files))
    if text := _differences(model, recorded, _decisive(model), "this run"):
        raise CheckpointError(f"{setting}: {source.path} {text}")
    return "" if recorded else f"{source.path} {UNRECORDED}"


def require_consistent(model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], said: str) -> None:
    """Refuse a checkpoint that records other settings than ``model`` has, among those that decide what it computes.

    ``said`` names the place of the settings of ``model``, for the message.

    Raises:
        CheckpointError: settings differ.
    """
    recorded = records(model, source, files, lenient=True)
    if text := _differences(model, list(recorded), _decisive(model), said, paste=False):
        raise CheckpointError(f"{source.path} {text}")


def records(
    model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], *, lenient: bool = False
) -> Iterator[RecordedSettings]:
    """The model settings that a checkpoint records, in its foreign settings (config.json, args) and in its job.yaml.

    A job.yaml of another model is passed over where the foreign settings are of this one; ``lenient`` also passes over
    one that cannot be understood.

    Raises:
        CheckpointError: they are of another model, or of one that ``model`` cannot be.
    """
    foreign = _foreign(model, source, files)
    if foreign:
        yield foreign
    section = source.job().get("model")
    if not isinstance(section, Mapping):
        return
    if section.get("use") == model.spec.name:
        problems: list[str] = []
        own = {name: value for name, value in section.items() if name != "use"}
        filled = fill.fill(model.spec.config, own, "model", problems)
        if filled is not None:
            yield RecordedSettings(JOB, model.spec.name, _flat(Part(model.spec, filled)))
        elif not lenient:
            raise CheckpointError(
                f"{source.folder / JOB}: it cannot be compared with this run: {'; '.join(problems)}. Install the "
                "version that wrote it; or, if you know what the weights are of, convert them: recipe convert "
                f"{source.path} FOLDER --recipe NAME"
            )
    elif not foreign:
        settings = {name: value for name, value in section.items() if name != "use"}
        yield RecordedSettings(JOB, str(section.get("use")), dict(fill.flat(settings)))


def _foreign(model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str]) -> RecordedSettings | None:
    """The settings in the texts of a foreign naming; None if they are of no model."""
    spec, naming = model.spec, source.format.naming
    target = spec.adapters.get(naming) if naming else None
    if not target or not files:
        return None
    adapter: Naming = load(target, f"model {spec.name!r}")()
    try:
        said = adapter.recorded(files, model.config)
    except CheckpointError as error:
        raise CheckpointError(f"{source.path}: {error}") from error
    if not said:
        if kind := kind_of(files):
            raise CheckpointError(
                f"{source.path}: its {CONFIG} is of a model of type {kind!r}, which is not {spec.name}"
            )
        return None
    problems: list[str] = []
    filled = fill.fill(spec.config, said, "model", problems)
    name = CONFIG if CONFIG in files else next(iter(files))
    where = name if (source.folder / name).is_file() else name.partition(".")[0]  # some stand inside another file
    if filled is None:
        raise CheckpointError("\n".join(f"{source.path}: {where}: {problem}" for problem in problems))
    whole = _flat(Part(spec, filled))
    return RecordedSettings(
        where, spec.name, {name: value for name, value in whole.items() if name.split(".")[0] in said}
    )


def _flat(model: Part[Model]) -> dict[str, Any]:
    """All settings by flat names; what follows from others is filled in."""
    resolved = load(model.spec.resolved, f"model {model.spec.name!r}") if model.spec.resolved else None
    return dict(fill.flat(fill.plain(resolved(model.config) if resolved else model.config)))


def _decisive(model: Part[Model]) -> dict[str, Any]:
    """Those settings that decide what function the model computes."""
    return {
        name: value
        for name, value in _flat(model).items()
        if not any(name == other or name.startswith(f"{other}.") for other in model.spec.free)
    }


def _differences(
    model: Part[Model], recorded: list[RecordedSettings], ours: Mapping[str, Any], said: str, *, paste: bool = True
) -> str:
    """All settings that differ, with both values, and the words that take them over; empty where none does.

    Where the model itself is another, its settings are words alone: beside those of ``model`` they say nothing.
    """
    places: dict[tuple[str, str], list[str]] = {}
    words: dict[str, Any] = {}
    for record in recorded:
        for name, value in _differing(model, record, ours):
            if name == "model" or record.model == model.spec.name:
                places.setdefault((name, _word(value)), []).append(record.where)
            words[name] = value
    if not places:
        return ""
    mine = {"model": model.spec.name, **{f"model.{name}": _word(value) for name, value in ours.items()}}
    lines = [
        f"  - {name}: {value} in its {' and '.join(where)}, {mine.get(name, 'no such setting')} in {said}"
        for (name, value), where in places.items()
    ]
    line = " ".join(f"{name}={_word(value)}" for name, value in words.items())
    advice = f"To take them over, add: {line}" if paste else "Correct the one that is wrong"
    return "\n".join(["is of a model with other settings:", *lines, advice])


def _differing(model: Part[Model], record: RecordedSettings, ours: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings of a record that are not ``ours``; of another model, its name and all that are recorded."""
    if record.model != model.spec.name:
        yield "model", record.model
    for name, value in record.settings.items():
        if record.model != model.spec.name or (name in ours and ours[name] != value):
            yield f"model.{name}", value


def _word(value: Any) -> str:
    """A value as the command line takes it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text}'" if any(letter in text for letter in " \"'[]{}*$") else text
