"""Console output of a run: a progress bar on a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from recipe_core.train.metrics.curves import Row


class Report:
    """Console output of a run.

    Args:
        visible: on rank 0 only.
        steps: of the whole schedule, for the bar.
        line: the line of a row.
        remark: what to say after a row; often nothing.
    """

    def __init__(
        self, visible: bool, steps: int, line: Callable[[Row], str], remark: Callable[[], str] = str
    ) -> None:  # fmt: skip
        self._visible, self._steps, self._line, self._remark = visible, steps, line, remark
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Report:
        if self._visible and (sys.stdout.isatty() or os.environ.get("RECIPE_TERMINAL")):
            self._bar = _progress_bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            _attempt(bar.stop)

    def say(self, text: str) -> None:
        """Show a line."""
        if not self._visible:
            return
        if self._bar is None:
            show(text)
        elif not _attempt(partial(self._bar.console.print, text, markup=False, highlight=False, soft_wrap=True)):
            self._bar = None

    def row(self, row: Row) -> None:
        """Show a row of metrics."""
        self.say("\n".join(filter(None, (self._line(row), self._remark()))))

    def advance(self, step: int) -> None:
        """Move the progress bar to ``step``."""
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task("training", total=self._steps)
        self._bar.update(self._task, completed=step)


def show(text: str) -> None:
    """Print a line. A closed terminal or pipe does not stop training."""
    _attempt(partial(print, text, flush=True))


def warn(text: str) -> None:
    """Print a warning to stderr. A closed terminal or pipe does not stop training."""
    with suppress(OSError, ValueError):
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _attempt(write: Callable[[], object]) -> bool:
    # After a failure, stdout becomes the null device, so that further output is dropped.
    try:
        write()
    except (OSError, SystemExit):  # rich ends the program when a pipe is broken
        with suppress(OSError, ValueError, AttributeError):
            null, out = os.open(os.devnull, os.O_WRONLY), sys.__stdout__
            os.dup2(null, out.fileno())  # type: ignore[union-attr]  # None where there is no stdout at all
            os.close(null)
        return False
    return True


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(force_terminal=True) if os.environ.get("RECIPE_TERMINAL") else Console()
    return Progress(*columns, console=console)


def _ends(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # First and last value of each loss and accuracy: the total loss before its parts, training before validation.

    def rank(key: str) -> tuple[bool, bool, bool, bool]:
        return "/" in key, key.removeprefix("val_") != "loss", key.endswith("accuracy"), key.startswith("val_")

    keys = [key.removeprefix("first_") for key in results if key.startswith("first_")]
    for key in sorted(keys, key=rank):
        first, last = results[f"first_{key}"], results.get(key)
        at = results.get("val_loss_step" if key.startswith("val_") or "/" in key else "loss_step")
        if first is None or (last is None and at is None):
            continue
        samples = f", of {results['eval_samples']:,} samples" if key == "val_loss" and "eval_samples" in results else ""
        known = key.endswith("loss") and first and last is not None
        change = f" ({(last - first) / first:+.1%}{samples})" if known else ""
        change += f" at step {at}" if at not in (None, results["step"]) else ""
        name = key if "/" in key else key.replace("val_", "validation ").replace("_", " ")
        ended = "not finite" if last is None else f"{last:.4f}"
        yield "training loss" if name == "loss" else name, f"{first:.4f} -> {ended}{change}"


def _speed(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    real = results.get("real_tokens_per_second")
    tokens = [f"{real:,.0f} tokens/s without padding"] if real else []
    if real and results.get("sequences_per_second"):
        tokens.insert(0, f"{results['sequences_per_second']:,.1f} sequences/s")
    elif results.get("tokens_per_second"):
        tokens.append(f"{results['tokens_per_second']:,.0f} tokens/s")
    if results.get("mfu"):
        tokens.append(f"MFU {results['mfu']:.1%}")
    if tokens:
        yield "speed", f"{', '.join(tokens)} (median)"


def summary(
    results: Mapping[str, Any], name: str, folder: str, *, address: str = "", tensorboard: bool = True,
    generates: bool = False,
) -> str:  # fmt: skip
    """The summary at the end of a run: losses, speed, files, next commands.

    ``results`` may hold ``sample`` and ``notes`` (see :attr:`recipe_core.Recipe.closing`), and ``twice``: the setting
    that makes a run twice as long, if it is not ``train.steps``. ``address``: where the run is, if ``folder`` is only
    its working folder. ``tensorboard``: the run wrote files for it; ``generates``: the model supports ``recipe
    generate``.
    """
    steps, total = results["step"], results["steps"]
    if results["stopped"] and not steps:
        head = f"{name} stopped before its first step"
    elif results["stopped"]:
        head = f"{name} stopped at step {steps} of {total} and saved"
    elif results.get("ended_by"):
        head = f"{name} ended at step {steps} of {total} by {results['ended_by']}"
    elif steps < total:
        head = f"{name} reached step {steps} of {total} (train.stop_after)"
    else:
        head = f"{name} finished {total} steps"
    facts = [*_ends(results), *_speed(results), *results.get("notes", {}).items()]
    if results.get("sample"):
        facts.append(("sample", " ".join(results["sample"].split())))
    run = address or folder
    facts.append(("files", f"{run} (metrics.jsonl, {'tensorboard/, ' * tensorboard}checkpoints/)"))
    facts += [("working folder", f"{folder} (a copy)")] if address else []
    width = max(16, *(len(label) for label, _ in facts))
    lines = ["", head, *(f"  {label:{width}} {text}" for label, text in facts), "next"]
    job = f"{folder}/job.yaml"
    if steps < total and not results.get("ended_by"):
        lines.append(f"  recipe run {run}    # continue to step {total}")
    elif steps >= total:
        longer = results.get("twice", f"train.steps={2 * total}")
        lines.append(f"  recipe run {job} {longer}    # the same, twice as long")
    if results["world_size"] == 1:
        lines.append(f"  recipe run {job} --processes 2    # the same on two processes")
    if generates and steps:
        lines.append(f"  recipe generate {run}    # the model answers prompts that you type")
    if steps:
        lines.append(f"  recipe eval {run}    # its losses on the validation data")
    page = "curves, speed and settings in a browser" if find_spec("plotly") else "a page; needs recipe-core[report]"
    lines.append(f"  recipe report {folder} --html    # {page}")
    if tensorboard:
        lines.append(f"  tensorboard --logdir {folder}/tensorboard    # curves while it runs")
    return "\n".join(lines)
