"""The command ``recipe eval``. No torch here."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.checkpoint.source import source_options
from recipe_core.cli.options import LocalPath, SourcePath, debug_option, load_plugins

if TYPE_CHECKING:
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.hooks.inference import Evaluation
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Part
    from recipe_core.hooks.specs.evaluation import EvaluationSpec

_EVALUATION = "evaluation"
_MEASURE = "recipe_core.train.metrics.evaluations.stored:measure"
_VALIDATE = "recipe_core.train.metrics.validation:validate"
"""The evaluation of models without a function of their own."""
_TASKS = "recipe_core.train.metrics.harness:evaluate"


@click.command("eval")
@click.argument("sources", nargs=-1, required=True, type=SourcePath(), metavar="RUN|CHECKPOINT...")
@click.option("--data", multiple=True, metavar="PATH", help="Prepared data, or a text (default: the run's own).")
@click.option(
    "--tasks",
    multiple=True,
    type=LocalPath(),
    metavar="NAME[,NAME]|PATH",
    help="Evaluations, or tasks of lm-evaluation-harness: a .yaml file, or a folder of them.",
)
@click.option("--window", type=int, metavar="N", help="Tokens that the model sees at once.")
@click.option("--stride", type=int, metavar="N", help="Tokens by which the window moves (default: half of it).")
@click.option("--limit", type=int, metavar="N", help="Tokens, or samples, at most.")
@click.option("--batch", type=int, metavar="N", help="Samples, or windows, at once.")
@click.option("--json", "file", type=LocalPath(), metavar="FILE", help="Write the results there.")
@click.option("--png", type=LocalPath(dir_okay=False), metavar="FILE", help="Draw them there.")
@source_options
@debug_option
def evaluate(
    sources: tuple[Path, ...],
    data: tuple[str, ...],
    tasks: tuple[Path, ...],
    file: Path | None,
    png: Path | None,
    **options: Any,
) -> None:
    """Measure trained models.

    Each is evaluated on the validation data of its run, or on each --data and by each of --tasks. A GPT has loss,
    perplexity and bits per byte; a BERT losses and accuracies of masked words; a classifier the metrics of its
    task. Evaluations have the settings of the run, and those of
    arguments evaluation.NAME.setting=value.
    """
    from recipe_core.cli.checkpoint import plot
    from recipe_core.cli.checkpoint.source import engine, model_at, require_exists
    from recipe_core.files import write_text
    from recipe_core.hooks.inference import Evaluation
    from recipe_core.hooks.target import call

    shared = {name: options[name] for name in Evaluation.__dataclass_fields__ if name in options}
    settings = [Evaluation(data=path, **shared) for path in data or ((None,) if not tasks else ())]
    plugins = load_plugins()
    checkpoints, changes = _told_apart(sources)
    names, paths = _tasks(plugins, tasks)
    _require_measured(changes, names)
    if paths:
        _require_tasks(paths)
    if png is not None:
        plot.require(png)
    for source in checkpoints:
        require_exists(source)
    rows: list[Mapping[str, Any]] = []
    with engine(options["device"]) as started:
        for source in checkpoints:
            trained = model_at(plugins, source, started, options)
            head = {"checkpoint": str(source), "step": trained.step}
            rows += [{**head, **_evaluate(trained, evaluation)} for evaluation in settings]
            own = Evaluation(**{**shared, "stride": None if data else shared["stride"]})  # --stride is for --data
            for part in _evaluations(plugins, names, changes, trained):
                rows.append({**head, "data": part.spec.name, **call(_MEASURE, "the core", trained, part, own, started)})
            if paths:
                rows += [{**head, **row} for row in call(_TASKS, "the core", trained, paths, own)]
            del trained  # before the next setting takes its memory
    click.echo("\n\n".join(_table(group) for group in _by_columns(rows)))
    if file is not None:
        write_text(file, json.dumps({"results": [_plain(row) for row in rows]}, indent=2, ensure_ascii=False) + "\n")
    if png is not None:
        plot.draw(rows, png)
        click.echo(f"\npicture: {png}")


def _evaluate(trained: TrainedModel, settings: Evaluation) -> Mapping[str, Any]:
    from recipe_core.cli.checkpoint.source import owner
    from recipe_core.errors import PluginError
    from recipe_core.hooks.target import as_plugin_error, load

    if settings.data is None:
        trained.require_data(settings.accept)
    spec = trained.model.spec
    code = owner(spec, "evaluate") if spec.evaluate else f"model {spec.name!r}"
    function = load(spec.evaluate or _VALIDATE, f"model {spec.name!r}")
    with as_plugin_error(code, MemoryError):
        values = function(trained, settings)
    if not isinstance(values, Mapping) or not all(isinstance(value, (int, float, str)) for value in values.values()):
        raise PluginError(f"{code} returned {values!r:.60}; expected a dict of numbers by name")
    return values


def _told_apart(words: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The checkpoints of a command line, and settings of evaluations."""
    from recipe_core.errors import ConfigError

    changes = [str(word) for word in words if str(word).startswith(f"{_EVALUATION}.") and "=" in str(word)]
    sources = [word for word in words if str(word) not in changes]
    if not sources:
        raise ConfigError("no checkpoint is named; name a run folder or a checkpoint")
    return sources, changes


def _tasks(plugins: Registry, tasks: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """The names of evaluations, and the paths of other tasks."""
    from recipe_core.errors import ConfigError, did_you_mean

    names, paths, known = list[str](), list[Path](), plugins.names("evaluation")
    for task in tasks:
        words = [word.strip() for word in str(task).split(",")]
        unknown = [word for word in words if word not in known]
        if not unknown:
            names += words
        elif task.exists():
            paths.append(task)
        else:
            raise ConfigError(
                f"--tasks: {unknown[0]}: there is no such evaluation{did_you_mean(unknown[0], known)} (evaluations: "
                f"{', '.join(known)}), and no such file or folder of tasks (.yaml)"
            )
    return list(dict.fromkeys(names)), paths


def _require_measured(changes: Sequence[str], names: Sequence[str]) -> None:
    from recipe_core.errors import ConfigError

    for change in changes:
        name = change.split(".")[1]
        if name not in names:
            raise ConfigError(f"{change}: this evaluation is not measured; add it: --tasks {','.join([*names, name])}")


def _evaluations(
    plugins: Registry, names: Sequence[str], changes: Sequence[str], trained: TrainedModel
) -> Sequence[Part[EvaluationSpec]]:
    """The evaluations with the settings of the run and those of the command line.

    Raises:
        ConfigError: a setting is wrong, or the model cannot give what an evaluation takes.
    """
    from recipe_core.errors import ConfigError
    from recipe_core.hooks.specs import Part
    from recipe_core.hooks.train import Train
    from recipe_core.settings import fill
    from recipe_core.train.start.check.evaluations import missing, own_problems

    problems: list[str] = []
    sections = trained.provenance.sections.get(_EVALUATION)
    own = {_EVALUATION: sections if isinstance(sections, Mapping) else {}}
    merged = fill.merge(own, fill.overrides(changes, problems))[_EVALUATION]
    parts: list[Part[EvaluationSpec]] = []
    for name in names:
        spec = plugins.get("evaluation", name)
        config = fill.fill(spec.config, merged.get(name) or {}, f"{_EVALUATION}.{name}", problems)
        if config is None:
            continue
        part = Part(spec, config)
        parts.append(part)
        problems += [f"--tasks: {problem}" for problem in missing(spec, trained.model)]
        train = trained.provenance.train or Train()
        problems += [f"{_EVALUATION}.{name}: {text}" for text in own_problems(part, train, trained.model, trained.data)]
    if problems:
        raise ConfigError.of(problems)
    return parts


def _require_tasks(paths: Sequence[Path]) -> None:
    """Check tasks before PyTorch is imported; set the Hugging Face libraries offline unless the user set the variables.

    Raises:
        ConfigError: lm-evaluation-harness is not installed.
    """
    from recipe_core.errors import ConfigError

    if find_spec("lm_eval") is None:
        raise ConfigError(
            "--tasks: tasks need lm-evaluation-harness, which is not installed; pip install 'recipe-core[eval]'"
        )
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # read when the packages are imported
        os.environ.setdefault(name, "1")


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {  # JSON has no nan and no infinity
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _by_columns(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    return list(groups.values())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    numbers = [all(not isinstance(row.get(name), str) for row in rows) for name in names]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
