"""A table of learning rates."""

from __future__ import annotations

import click

from recipe_core import Job, RecipeCommand, job_of, recipe_arguments

_WIDTH = 40
"""Signs of the longest bar."""


@click.command(cls=RecipeCommand)
@recipe_arguments
@click.option("--rows", type=click.IntRange(min=2), default=11, show_default=True, help="Steps to print.")
def rates(arguments: tuple[str, ...], rows: int) -> None:
    """Print the learning rates of a recipe.

    Steps are evenly spaced, from the first to the last. Settings are given as for `recipe run`.
    """
    for line in table(job_of(arguments), rows):
        click.echo(line)


def table(job: Job, rows: int) -> list[str]:
    """Return a line for each of ``rows`` steps: the step, its rate, and the rate as a bar."""
    rate = job.learning_rate()
    last = job.train.steps - 1
    steps = sorted({round(last * row / (rows - 1)) for row in range(rows)})
    values = [rate(step) for step in steps]
    longest = max(values) or 1.0
    lines = [
        f"{step + 1:>8}  {value:<9.3g}  {'#' * round(_WIDTH * value / longest)}".rstrip()
        for step, value in zip(steps, values, strict=True)
    ]
    return [f"{job.name}: {job.schedule.spec.name}, {job.train.steps} steps", f"{'step':>8}  {'rate':<9}", *lines]
