"""The page of a report: one file of HTML with its style, its scripts and its data. No torch here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from recipe_core.cli.compare.compare import SPEEDS, differing, number_text, speed_text
from recipe_core.cli.compare.report.charts import charts, style_of
from recipe_core.cli.compare.report.markup import Html, csp_source, data, joined, script, table, tag
from recipe_core.cli.compare.report.runs import ReportedRun
from recipe_core.errors import ConfigError
from recipe_core.files import write_text
from recipe_core.train.metrics.line import duration

_MAKER = "recipe report"
_MARK = f'<meta name="generator" content="{_MAKER}">'
"""Mark of a page of ours, which may be overwritten."""


def write(runs: Sequence[ReportedRun], path: Path) -> None:
    """Write the page of the runs to ``path``.

    Raises:
        ConfigError: plotly is not installed, or ``path`` exists and is not a page of ours.
        DiskError: ``path`` cannot be written.
    """
    library = plotly(path)
    if is_taken(path):
        raise ConfigError(f"{path} exists and is no page of `{_MAKER}`; name another with --out")
    write_text(path, html(runs, library))


def plotly(path: Path) -> str:
    """Return the source of plotly.js.

    Raises:
        ConfigError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            f"{path}: a page needs plotly, which is not installed; pip install 'recipe-core[report]'"
        ) from error
    return str(get_plotlyjs())


def is_taken(path: Path) -> bool:
    """True if ``path`` exists and is not a page of :func:`write`."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return _MARK.encode() not in file.read(1000)


def html(runs: Sequence[ReportedRun], library: str) -> str:
    """Return the page. Its Content-Security-Policy allows no network, and only our script and plotly's."""
    here = files("recipe_core.cli.compare.report")
    page_script, style = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src "
    policy += " ".join(map(csp_source, (library, page_script)))
    all_charts = charts(runs)
    legend = [{"name": run.name, **style_of(number)} for number, run in enumerate(runs)]
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
        tag("main", *_summary(runs), *_curves(runs, all_charts), *_samples(runs), *_pictures(runs), *_settings(runs)),
        data("data", {"runs": legend, "charts": all_charts}),
        script(library),
        script(page_script),
    ]
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", *head)}{tag("body", *body)}</html>\n'


def _summary(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    losses = _logged_keys(runs, "loss", "val_loss")
    speeds = _logged_keys(runs, *SPEEDS)
    heads = ["run", "state", "step", *(key.replace("val_", "validation ") for key in losses)]
    heads += [*(SPEEDS[key] for key in speeds), "s per step", "training", "memory", "machine"]
    yield tag("h2", "Runs")
    rows = [[*_status_cells(run), *_ends(run, losses), *_speed(run, speeds)] for run in runs]
    yield tag("div", table(heads, rows), class_="summary")
    notes = [f"{run.name}: {key}: {value}" for run in runs for key, value in _run_notes(run)]
    yield from (tag("p", note, class_="soft") for note in notes)
    yield tag("p", "Speeds and seconds per step are medians; training is the time in steps alone.", class_="soft")


def _logged_keys(runs: Sequence[ReportedRun], *keys: str) -> list[str]:
    return [key for key in keys if any(key in run.curve.columns for run in runs)]


def _status_cells(run: ReportedRun) -> list[object]:
    state, code, _ = run.ended
    state_cell = joined([tag("span", state, class_=f"state {state}"), f" exit code {code}" if code else ""])
    of = f" of {run.steps:,}" if run.steps else ""
    return [run.name, state_cell, f"{run.step:,}{of}"]


def _ends(run: ReportedRun, keys: Sequence[str]) -> Iterator[str | None]:
    for key in keys:
        values = run.curve.values(key)
        yield f"{number_text(values[min(values)])} → {number_text(values[max(values)])}" if values else None


def _speed(run: ReportedRun, keys: Sequence[str]) -> Iterator[str | None]:
    for key in keys:
        median = run.median(key)
        yield None if median is None else speed_text(key, median)
    each, total = run.median("seconds"), run.training_seconds()
    yield None if each is None else f"{each:.3g}"
    yield None if total is None else duration(total)
    memory = [value for _, value in run.finite("peak_memory")]
    yield f"{max(memory) / (1 << 30):.2f} GiB" if memory else None
    device, size, torch = (run.results.get(key) for key in ("device", "world_size", "torch"))
    yield f"{size} process{'es' * (size != 1)} on {device}, torch {torch}" if device else None


def _run_notes(run: ReportedRun) -> Iterator[tuple[str, str]]:
    state, _, reason = run.ended
    if reason:
        yield state, reason
    notes = run.results.get("notes")
    if isinstance(notes, dict):
        yield from ((str(key), str(value)) for key, value in notes.items())
    yield from (("files", note) for note in run.notes)


def _curves(runs: Sequence[ReportedRun], all_charts: Sequence[dict[str, Any]]) -> Iterator[Html]:
    yield tag("h2", "Curves")
    yield tag("div", *_legend(runs), class_="runs")
    if not all_charts:
        yield tag("p", "No step was logged.")
    figures = [_figure(number, chart) for number, chart in enumerate(all_charts)]
    more = [figure for figure, chart in zip(figures, all_charts, strict=True) if chart["more"]]
    yield tag("div", *figures[: len(figures) - len(more)], class_="charts", id="first")
    if more:
        summary = tag("summary", f"{len(more)} more: {', '.join(c['title'] for c in all_charts if c['more'])}")
        yield tag("details", summary, tag("div", *more, class_="charts"), id="more")
    hint = "Point at a curve for its values, drag to enlarge, double-click for all. "
    hint += "Faint: as logged. Strong: the mean of the logged values around. Points: validation."
    yield tag("p", hint, class_="soft")


def _legend(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    """Checkboxes that show or hide a run in all charts."""
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
    texts = [(run, str(run.results["sample"])) for run in runs if run.results.get("sample")]
    if texts:
        yield tag("h2", "Text that the model wrote")
    for run, text in texts:
        yield tag("h3", f"{run.name}, step {run.step:,}")
        yield tag("pre", text)


def _pictures(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    if any(run.pictures for run in runs):
        yield tag("h2", "Pictures")
    for run in runs:
        for path in run.pictures:
            source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
            yield tag("h3", f"{run.name}: {path.name}")
            yield Html(f'<img alt="{tag("i", path.name)[3:-4]}" src="{source}">')


def _settings(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    names = [run.name for run in runs]
    settings = [run.settings for run in runs]
    yield tag("h2", "Settings")
    if len(runs) > 1:
        rows = _rows(settings, differing(settings))
        differences = table(["setting", *names], rows) if rows else tag("p", "The settings are equal.")
        yield tag("div", tag("h3", "Settings that differ") if rows else None, differences, class_="settings")
    keys = list(dict.fromkeys(key for run_settings in settings for key in run_settings))
    whole = tag("div", table(["setting", *names], _rows(settings, keys)), class_="settings")
    opened = Html("<details open>") if len(runs) == 1 else Html("<details>")
    yield Html(f"{opened}{tag('summary', f'All {len(keys)} settings')}{whole}</details>")


def _rows(settings: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[list[str | None]]:
    return [[key, *(_setting(run[key]) if key in run else None for run in settings)] for key in keys]


def _setting(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
