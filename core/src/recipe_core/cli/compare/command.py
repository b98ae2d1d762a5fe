"""The command ``recipe compare``. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.options import LocalPath, SourcePath, debug_option, json_option
from recipe_core.errors import ExitCode

if TYPE_CHECKING:
    from recipe_core.cli.compare.compare import Comparison

PICTURE = Path("compare.png")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=SourcePath(weights=False), metavar="RUN...")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="T",
    help="End with 1 when a run is farther from the first than this part of it (0.01 is one per cent) at any step.",
)
@click.option("--metric", default="loss", metavar="KEY", help="What to compare (default: loss).")
@click.option(
    "--png",
    type=LocalPath(dir_okay=False),
    metavar="FILE",
    help=f"Where to draw the curves (default: {PICTURE}, where matplotlib is installed; with --json, nowhere).",
)
@click.option("--no-png", is_flag=True, help="Draw nothing.")
@json_option
@click.option(
    "--write-golden",
    type=LocalPath(dir_okay=False),
    metavar="FILE",
    help="Store the losses of the first run, for train.golden=FILE.",
)
@debug_option
def compare(
    runs: tuple[Path, ...], tolerance: float | None, metric: str, png: Path | None, no_png: bool,
    as_json: bool, write_golden: Path | None,
) -> int:  # fmt: skip
    """Compare runs: losses, largest departure, speed, settings.

    RUN is a run folder, its metrics.jsonl, or a file for train.golden. The others are compared with the first, at
    the steps that both have.
    """
    from recipe_core.cli.compare import compare as comparisons
    from recipe_core.cli.compare.table import text, verdict
    from recipe_core.train.metrics.curves import read_curve

    if tolerance is not None and len(runs) == 1:
        raise click.UsageError("--tolerance needs a second run, to compare with the first")
    comparison = comparisons.compare([read_curve(run) for run in runs], metric, tolerance)
    click.echo(json.dumps(comparison.as_dict(), indent=2) if as_json else text(comparison))
    if write_golden is not None:
        steps = comparisons.write_golden(comparison.curves[0], write_golden)
        click.echo(f"\n{write_golden}: {steps:,} losses of {comparison.names[0]}, for train.golden", err=as_json)
    if not no_png and (png is not None or not as_json):
        _draw(comparison, png, quiet=as_json)
    if comparison.beyond:
        click.echo(verdict(comparison), err=True)
    return ExitCode.FINDING if comparison.beyond else ExitCode.FINISHED


def _draw(comparison: Comparison, png: Path | None, *, quiet: bool) -> None:
    from recipe_core.cli.compare import picture, plot

    path = png or PICTURE
    if png is None and not picture.available():
        click.echo(f"{path} was not drawn: pip install 'recipe-core[plots]' brings matplotlib", err=True)
        return
    if png is None and picture.is_taken(path, plot.MAKER):
        click.echo(f"{path} was not drawn: another file has this name; say --png FILE", err=True)
        return
    plot.draw(comparison, path)
    click.echo(f"\ncurves: {path}", err=quiet)
