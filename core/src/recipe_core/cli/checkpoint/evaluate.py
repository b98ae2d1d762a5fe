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
from recipe_core.cli.options import LocalPath, debug_option, load_plugins

if TYPE_CHECKING:
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.hooks.inference import Evaluation

_VALIDATE = "recipe_core.train.metrics.validation:validate"
"""The evaluation of models without a function of their own."""
_TASKS = "recipe_core.train.metrics.harness:evaluate"


@click.command("eval")
@click.argument("sources", nargs=-1, required=True, type=LocalPath(), metavar="RUN|CHECKPOINT...")
@click.option("--data", multiple=True, metavar="PATH", help="Prepared data, or a text (default: the run's own).")
@click.option(
    "--tasks",
    multiple=True,
    type=LocalPath(),
    metavar="PATH",
    help="Tasks of lm-evaluation-harness: a .yaml file, or a folder of them.",
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
    task.
    """
    from recipe_core.cli.checkpoint import plot
    from recipe_core.cli.checkpoint.source import engine, model_at, require_exists
    from recipe_core.files import write_text
    from recipe_core.hooks.inference import Evaluation
    from recipe_core.hooks.target import call

    shared = {name: options[name] for name in Evaluation.__dataclass_fields__ if name in options}
    settings = [Evaluation(data=path, **shared) for path in data or ((None,) if not tasks else ())]
    if tasks:
        _require_tasks(tasks)
    if png is not None:
        plot.require(png)
    for source in sources:
        require_exists(source)
    plugins, rows = load_plugins(), []
    with engine(options["device"]) as started:
        for source in sources:
            trained = model_at(plugins, source, started, options)
            head = {"checkpoint": str(source), "step": trained.step}
            rows += [{**head, **_evaluate(trained, evaluation)} for evaluation in settings]
            if tasks:
                stride = None if data else shared["stride"]  # --stride is for the windows over --data
                results = call(_TASKS, "the core", trained, tasks, Evaluation(**{**shared, "stride": stride}))
                rows += [{**head, **row} for row in results]
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


def _require_tasks(paths: Sequence[Path]) -> None:
    """Check tasks before PyTorch is imported; set the Hugging Face libraries offline unless the user set the variables.

    Raises:
        ConfigError: lm-evaluation-harness is not installed, or a path does not exist.
    """
    from recipe_core.errors import ConfigError

    if find_spec("lm_eval") is None:
        raise ConfigError(
            "--tasks: tasks need lm-evaluation-harness, which is not installed; pip install 'recipe-core[eval]'"
        )
    if missing := [str(path) for path in paths if not path.exists()]:
        raise ConfigError(f"--tasks: {', '.join(missing)}: there is no such file or folder; expected tasks (.yaml)")
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
