"""The command ``recipe report``. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.options import LocalPath, SourcePath, debug_option, load_plugins

if TYPE_CHECKING:
    pass

PAGE = Path("report.html")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=SourcePath(weights=False), metavar="RUN...")
@click.option("--html", is_flag=True, help="A page for a browser; the same without this word.")
@click.option(
    "--out",
    type=LocalPath(dir_okay=False),
    default=PAGE,
    metavar="FILE",
    help=f"The page (default: {PAGE}).",
)
@debug_option
def report(runs: tuple[Path, ...], html: bool, out: Path) -> None:
    """Write runs as a page for a browser.

    It has the curves of all runs over each other, how each ended, speed, settings and what the model wrote, in one
    file that needs no network. RUN is a run folder, or that of several runs of `recipe submit --array`. On the
    terminal, `recipe compare` and `recipe status` show the same.
    """
    from recipe_core.cli.cluster.status import runs_in
    from recipe_core.cli.compare.report import page
    from recipe_core.cli.compare.report.runs import read_runs

    reported = read_runs(load_plugins(), [folder for run in runs for folder in runs_in(run)])
    for run in reported:
        for note in run.notes:
            click.echo(f"recipe report: {note}", err=True)
    page.write(reported, out)
    count = f"{len(reported)} run{'s' * (len(reported) > 1)}"
    click.echo(f"{out}: {count}, {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
