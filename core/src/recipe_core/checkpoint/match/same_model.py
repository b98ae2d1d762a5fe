"""Compare the model of a job with the model settings that a checkpoint records.

Tensors with the same names and shapes can belong to another function: with other heads, another activation or another
epsilon. Only the recorded settings show the difference.
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
    """Settings of a model as recorded in one file of a checkpoint."""

    where: str
    """The file, for messages."""
    model: str
    """Name of the model."""
    settings: Mapping[str, Any]
    """By flat names; only those in the file."""


def require_same(model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], setting: str) -> str:
    """Refuse a checkpoint whose recorded settings describe a different function than the job's model.

    Args:
        model: the job's model.
        source: the checkpoint.
        files: its texts, as its format opened them.
        setting: the setting that named the checkpoint, for the message (``train.init_from``).

    Returns:
        A line for the log if the checkpoint records no settings; else an empty text.

    Raises:
        CheckpointError: settings differ; one message lists all of them.
    """
    recorded = list(records(model, source, files))
    if text := _differences(model, recorded, _decisive(model), "this run"):
        raise CheckpointError(f"{setting}: {source.path} {text}")
    return "" if recorded else f"{source.path} {UNRECORDED}"


def require_consistent(model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], origin: str) -> None:
    """Refuse a checkpoint whose recorded settings differ from those of ``model`` in what the model computes.

    ``origin`` names the source of the settings of ``model``, for the message.

    Raises:
        CheckpointError: settings differ.
    """
    recorded = records(model, source, files, lenient=True)
    if text := _differences(model, list(recorded), _decisive(model), origin, paste=False):
        raise CheckpointError(f"{source.path} {text}")


def records(
    model: Part[Model], source: StoredCheckpoint, files: Mapping[str, str], *, lenient: bool = False
) -> Iterator[RecordedSettings]:
    """Yield the model settings that a checkpoint records, in foreign settings (config.json, args) and in job.yaml.

    A job.yaml of another model is skipped if the foreign settings are of this model; ``lenient`` also skips one with
    invalid settings.

    Raises:
        CheckpointError: they are of another model, or of a variant that ``model`` does not support.
    """
    foreign = _foreign(model, source, files)
    if foreign:
        yield foreign
    section = source.job.get("model")
    if not isinstance(section, Mapping):
        return
    if section.get("use") == model.spec.name:
        problems: list[str] = []
        settings = {name: value for name, value in section.items() if name != "use"}
        filled = fill.fill(model.spec.config, settings, "model", problems)
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
    spec, naming = model.spec, source.format.naming
    target = spec.adapters.get(naming) if naming else None
    if not target or not files:
        return None
    adapter: Naming = load(target, f"model {spec.name!r}")()
    try:
        recorded = adapter.recorded(files, model.config)
    except CheckpointError as error:
        raise CheckpointError(f"{source.path}: {error}") from error
    if not recorded:
        if kind := kind_of(files):
            raise CheckpointError(
                f"{source.path}: its {CONFIG} is of a model of type {kind!r}, which is not {spec.name}"
            )
        return None
    problems: list[str] = []
    filled = fill.fill(spec.config, recorded, "model", problems)
    name = CONFIG if CONFIG in files else next(iter(files))
    where = name if (source.folder / name).is_file() else name.partition(".")[0]  # some are inside another file
    if filled is None:
        raise CheckpointError("\n".join(f"{source.path}: {where}: {problem}" for problem in problems))
    whole = _flat(Part(spec, filled))
    return RecordedSettings(
        where, spec.name, {name: value for name, value in whole.items() if name.split(".")[0] in recorded}
    )


def _flat(model: Part[Model]) -> dict[str, Any]:
    """All settings by flat names, with derived settings filled in."""
    resolved = load(model.spec.resolved, f"model {model.spec.name!r}") if model.spec.resolved else None
    return dict(fill.flat(fill.plain(resolved(model.config) if resolved else model.config)))


def _decisive(model: Part[Model]) -> dict[str, Any]:
    return {
        name: value
        for name, value in _flat(model).items()
        if not any(name == free or name.startswith(f"{free}.") for free in model.spec.free)
    }


def _differences(
    model: Part[Model],
    recorded: list[RecordedSettings],
    expected: Mapping[str, Any],
    origin: str,
    *,
    paste: bool = True,
) -> str:
    """List all settings that differ, with both values and the arguments that adopt them; empty if none differ.

    If the model itself differs, its settings appear only as arguments: they do not compare with those of ``model``.
    """
    places: dict[tuple[str, str], list[str]] = {}
    arguments: dict[str, Any] = {}
    for record in recorded:
        for name, value in _differing(model, record, expected):
            if name == "model" or record.model == model.spec.name:
                places.setdefault((name, _quoted(value)), []).append(record.where)
            arguments[name] = value
    if not places:
        return ""
    mine = {"model": model.spec.name, **{f"model.{name}": _quoted(value) for name, value in expected.items()}}
    lines = [
        f"  - {name}: {value} in its {' and '.join(where)}, {mine.get(name, 'no such setting')} in {origin}"
        for (name, value), where in places.items()
    ]
    line = " ".join(f"{name}={_quoted(value)}" for name, value in arguments.items())
    advice = f"To take them over, add: {line}" if paste else "Correct the one that is wrong"
    return "\n".join(["is of a model with other settings:", *lines, advice])


def _differing(model: Part[Model], record: RecordedSettings, expected: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a record that differ from ``expected``; of another model, its name and all settings."""
    if record.model != model.spec.name:
        yield "model", record.model
    for name, value in record.settings.items():
        if record.model != model.spec.name or (name in expected and expected[name] != value):
            yield f"model.{name}", value


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text}'" if any(letter in text for letter in " \"'[]{}*$") else text
