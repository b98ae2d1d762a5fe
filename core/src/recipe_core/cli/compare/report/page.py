"""The page of a report: one file of HTML with its style, its scripts and its data. No torch here."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from recipe_core.cli.compare.compare import SPEEDS, differing
from recipe_core.cli.compare.report.charts import charts, style_of
from recipe_core.cli.compare.report.markup import Html, allowed, data, joined, script, table, tag
from recipe_core.cli.compare.report.runs import ReportedRun
from recipe_core.errors import ConfigError
from recipe_core.files import write_text
from recipe_core.train.metrics.line import duration

_MAKER = "recipe report"
_MARK = f'<meta name="generator" content="{_MAKER}">'
"""By which a page says that it may be replaced."""
_SPEEDS = dict(zip(SPEEDS, ("sequences/s", "real tokens/s", "tokens/s", "MFU"), strict=True))


def write(runs: Sequence[ReportedRun], path: Path) -> None:
    """Write the page of the runs to ``path``.

    Raises:
        ConfigError: plotly is not installed, or ``path`` exists and is no such page.
        DiskError: ``path`` cannot be written.
    """
    library = plotly(path)
    if is_taken(path):
        raise ConfigError(f"{path} exists and is no page of `{_MAKER}`; name another with --out")
    write_text(path, html(runs, library))


def plotly(path: Path) -> str:
    """The script of plotly.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            f"{path}: a page needs plotly, which is not installed; pip install 'recipe-core[report]'"
        ) from error
    return str(get_plotlyjs())


def is_taken(path: Path) -> bool:
    """True if ``path`` exists, and is no page that says that :func:`write` made it."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return _MARK.encode() not in file.read(1000)


def html(runs: Sequence[ReportedRun], library: str) -> str:
    """The page. Its policy allows no network, and no script but ours and plotly's."""
    here = files("recipe_core.cli.compare.report")
    ours, style = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src "
    policy += " ".join(map(allowed, (library, ours)))
    found = charts(runs)
    known = [{"name": run.name, **style_of(number)} for number, run in enumerate(runs)]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    head = [
        Html(f'<meta charset="utf-8">{_MARK}'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{title} - recipe"),
        Html(f"<style>{style}</style>"),
    ]
    body = [
        tag("header", tag("h1", title)),
        tag("main", *_summary(runs), *_curves(runs, found), *_samples(runs), *_pictures(runs), *_settings(runs)),
        data("data", {"runs": known, "charts": found}),
        script(library),
        script(ours),
    ]
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", *head)}{tag("body", *body)}</html>\n'


def _summary(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """How each run ended, its losses and its speed."""
    losses = _known(runs, "loss", "val_loss")
    speeds = _known(runs, *SPEEDS)
    heads = ["run", "state", "step", *(key.replace("val_", "validation ") for key in losses)]
    heads += [*(_SPEEDS[key] for key in speeds), "s per step", "training", "memory", "machine"]
    yield tag("h2", "Runs")
    rows = [[*_standing(run), *_ends(run, losses), *_speed(run, speeds)] for run in runs]
    yield tag("div", table(heads, rows), class_="summary")
    notes = [f"{run.name}: {key}: {value}" for run in runs for key, value in _noted(run)]
    yield from (tag("p", note, class_="soft") for note in notes)
    yield tag("p", "Speeds and seconds per step are medians; training is the time in steps alone.", class_="soft")


def _known(runs: Sequence[ReportedRun], *keys: str) -> list[str]:
    return [key for key in keys if any(key in run.curve.columns for run in runs)]


def _standing(run: ReportedRun) -> list[object]:
    state, code, _ = run.ended
    words = joined([tag("span", state, class_=f"state {state}"), f" exit code {code}" if code else ""])
    of = f" of {run.steps:,}" if run.steps else ""
    return [run.name, words, f"{run.step:,}{of}"]


def _ends(run: ReportedRun, keys: Sequence[str]) -> Iterator[str | None]:
    """First and last value of each loss."""
    for key in keys:
        values = run.curve.values(key)
        yield f"{_number(values[min(values)])} → {_number(values[max(values)])}" if values else None


def _speed(run: ReportedRun, keys: Sequence[str]) -> Iterator[str | None]:
    """Median speeds, time, memory and machine."""
    for key in keys:
        median = run.median(key)
        yield None if median is None else f"{median:.1%}" if key == "mfu" else f"{median:,.1f}"
    each, whole = run.median("seconds"), run.training_seconds()
    yield None if each is None else f"{each:.3g}"
    yield None if whole is None else duration(whole)
    memory = [value for _, value in run.finite("peak_memory")]
    yield f"{max(memory) / (1 << 30):.2f} GiB" if memory else None
    device, size, torch = (run.results.get(key) for key in ("device", "world_size", "torch"))
    yield f"{size} process{'es' * (size != 1)} on {device}, torch {torch}" if device else None


def _noted(run: ReportedRun) -> Iterator[tuple[str, str]]:
    state, _, reason = run.ended
    if reason:
        yield state, reason
    notes = run.results.get("notes")
    if isinstance(notes, dict):
        yield from ((str(key), str(value)) for key, value in notes.items())
    yield from (("files", note) for note in run.notes)


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "not finite"


def _curves(runs: Sequence[ReportedRun], found: Sequence[dict[str, Any]]) -> Iterator[Html]:
    yield tag("h2", "Curves")
    yield tag("div", *_legend(runs), class_="runs")
    if not found:
        yield tag("p", "No step was logged.")
    figures = [_figure(number, chart) for number, chart in enumerate(found)]
    more = [figure for figure, chart in zip(figures, found, strict=True) if chart["more"]]
    yield tag("div", *figures[: len(figures) - len(more)], class_="charts", id="first")
    if more:
        summary = tag("summary", f"{len(more)} more: {', '.join(c['title'] for c in found if c['more'])}")
        yield tag("details", summary, tag("div", *more, class_="charts"), id="more")
    words = "Point at a curve for its values, drag to enlarge, double-click for all. "
    words += "Faint: as logged. Strong: the mean of the logged values around. Points: validation."
    yield tag("p", words, class_="soft")


def _legend(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """A box for each run that shows or hides it in all charts."""
    for number, run in enumerate(runs):
        style = style_of(number)
        dashes = {"solid": "none", "dash": "8 4", "dot": "2 3", "dashdot": "8 3 2 3"}[style["dash"]]
        line = Html(f'<path d="M0 5H26" stroke="{style["colour"]}" stroke-width="3" stroke-dasharray="{dashes}"/>')
        box = Html(f'<input type="checkbox" checked data-run="{number}">')
        yield tag("label", box, tag("svg", line, class_="swatch"), run.name)
    yield tag("label", Html('<input type="checkbox" id="log">'), "logarithmic", class_="scale")


def _figure(number: int, chart: dict[str, Any]) -> Html:
    notes = [tag("p", note, class_="soft") for note in chart["notes"]]
    place = Html(f'<div class="plot" data-chart="{number}"></div>')
    return tag("figure", tag("figcaption", chart["title"]), place, *notes, class_="chart" if number else "first")


def _samples(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """The text that trained models wrote."""
    texts = [(run, str(run.results["sample"])) for run in runs if run.results.get("sample")]
    if texts:
        yield tag("h2", "Text that the model wrote")
    for run, text in texts:
        yield tag("h3", f"{run.name}, step {run.step:,}")
        yield tag("pre", text)


def _pictures(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """The pictures in the run folders, as a part of the page."""
    if any(run.pictures for run in runs):
        yield tag("h2", "Pictures")
    for run in runs:
        for path in run.pictures:
            source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
            yield tag("h3", f"{run.name}: {path.name}")
            yield Html(f'<img alt="{tag("i", path.name)[3:-4]}" src="{source}">')


def _settings(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """All settings; with several runs, first those that differ."""
    names = [run.name for run in runs]
    known = [run.settings for run in runs]
    yield tag("h2", "Settings")
    if len(runs) > 1:
        rows = _rows(known, differing(known))
        found = table(["setting", *names], rows) if rows else tag("p", "The settings are equal.")
        yield tag("div", tag("h3", "Settings that differ") if rows else None, found, class_="settings")
    keys = list(dict.fromkeys(key for settings in known for key in settings))
    whole = tag("div", table(["setting", *names], _rows(known, keys)), class_="settings")
    opened = Html("<details open>") if len(runs) == 1 else Html("<details>")
    yield Html(f"{opened}{tag('summary', f'All {len(keys)} settings')}{whole}</details>")


def _rows(known: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[list[str | None]]:
    """The values of each setting; None where a run has no such setting."""
    return [[key, *(_setting(settings[key]) if key in settings else None for settings in known)] for key in keys]


def _setting(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
