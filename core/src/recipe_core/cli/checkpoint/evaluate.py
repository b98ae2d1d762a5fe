"""The command ``recipe eval``. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.checkpoint.source import source_options
from recipe_core.cli.paths import LocalPath

if TYPE_CHECKING:
    from recipe_core.checkpoint.match.trained import TrainedModel
    from recipe_core.hooks.inference import Evaluation
    from recipe_core.hooks.registry import Registry

_CORE = "recipe_core.train.metrics.validation:validate"
"""For models that name no function of their own."""


def add_eval_command(group: click.Group, debug: Callable[[Any], Any], registry: Callable[[], Registry]) -> None:
    """Add the command to ``group``; ``debug`` decorates it, ``registry`` loads the plugins."""

    @group.command("eval")
    @click.argument("sources", nargs=-1, required=True, type=LocalPath(path_type=Path), metavar="RUN|CHECKPOINT...")
    @click.option("--data", multiple=True, metavar="PATH", help="Prepared data, or a text (default: the run's own).")
    @click.option("--window", type=int, metavar="N", help="Tokens that the model sees at once.")
    @click.option("--stride", type=int, metavar="N", help="Tokens by which the window moves (default: half of it).")
    @click.option("--limit", type=int, metavar="N", help="Tokens, or samples, at most.")
    @click.option("--batch", type=int, metavar="N", help="Samples, or windows, at once.")
    @click.option("--json", "file", type=LocalPath(path_type=Path), metavar="FILE", help="Write the results there.")
    @source_options
    @debug
    def evaluate(sources: tuple[Path, ...], data: tuple[str, ...], file: Path | None, **options: Any) -> None:
        """Measure trained models.

        Each is evaluated on the validation data of its run, or on each --data. A GPT has loss, perplexity and bits per
        byte; a BERT losses and accuracies of masked words; a classifier the metrics of its task.
        """
        from recipe_core.cli.checkpoint.source import engine, model_at
        from recipe_core.files import write_text
        from recipe_core.hooks.inference import Evaluation

        shared = {name: options[name] for name in Evaluation.__dataclass_fields__ if name in options}
        settings = [Evaluation(data=path, **shared) for path in data or (None,)]
        plugins, rows = registry(), []
        with engine(options["device"]) as here:
            for source in sources:
                trained = model_at(plugins, source, here, options)
                head = {"checkpoint": str(source), "step": trained.step}
                rows += [{**head, **_measured(trained, one)} for one in settings]
                del trained  # before the next one takes its memory
        click.echo(_table(rows))
        if file is not None:
            write_text(
                file, json.dumps({"results": [_plain(row) for row in rows]}, indent=2, ensure_ascii=False) + "\n"
            )


def _measured(trained: TrainedModel, settings: Evaluation) -> Mapping[str, Any]:
    from recipe_core.cli.checkpoint.source import owner
    from recipe_core.errors import PluginError
    from recipe_core.hooks.target import blamed, load

    spec = trained.model.spec
    code = owner(spec, "evaluate") if spec.evaluate else f"model {spec.name!r}"
    function = load(spec.evaluate or _CORE, f"model {spec.name!r}")
    with blamed(code, MemoryError):
        values = function(trained, settings)
    if not isinstance(values, Mapping) or not all(isinstance(value, (int, float, str)) for value in values.values()):
        raise PluginError(f"{code} returned {values!r:.60}; expected a dict of numbers by name")
    return values


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no numbers that are not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


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
