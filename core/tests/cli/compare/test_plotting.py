"""Pictures of metrics: the contents of a figure, read from its objects."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.compare.compare import compare
from recipe_core.train.metrics import plotting
from recipe_core.train.metrics.curves import METRICS, read_curve

NOISE = random.Random(0)


def make_run(folder: Path, name: str, steps: int, **more: float) -> Path:
    """A run folder with a noisy falling loss."""
    rows = [{"step": s, "loss": 4 + 3 / s + NOISE.gauss(0, 0.1), **more} for s in range(1, steps + 1)]
    rows[-1]["val_loss"] = 4.25
    (folder / name).mkdir()
    (folder / name / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def drawn(*runs: Path, metric: str = "loss") -> Any:
    """The figure of ``recipe compare``."""
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    from recipe_core.cli.compare.plot import fill

    fill(figure, compare([read_curve(run) for run in runs], metric))
    return figure


def test_a_smoothed_line_lies_over_the_faint_raw_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", 200)
    (axes,) = drawn(run).axes
    raw, smooth, validation = axes.lines
    losses = list(read_curve(run).values().values())
    assert list(raw.get_xdata()) == list(smooth.get_xdata()) == list(range(1, 201))
    assert list(raw.get_ydata()) == losses
    assert (raw.get_alpha(), smooth.get_alpha()) == (plotting.FAINT, None)
    window = plotting.window_of(200)
    assert window == 11
    assert smooth.get_ydata()[100] == pytest.approx(math.fsum(losses[95:106]) / 11)
    assert (list(validation.get_xdata()), list(validation.get_ydata())) == ([200], [4.25])
    assert "(mean of up to 11 logged steps over faint raw values)" in axes.get_title("left")


def test_title_labels_whole_steps_and_a_legend_outside(tmp_path: Path) -> None:
    names = ["_hidden", "a $x$ b", "c" * 60 + "-end"]
    figure = drawn(*(make_run(tmp_path, name, 3) for name in names))
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_title("left") == "Loss of 3 runs"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step (optimizer updates)", "loss")
    figure.draw_without_rendering()
    assert all(tick == int(tick) for tick in axes.get_xticks())
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[::2] == ["_hidden", "a $x$ b", plotting.shortened(names[2])]
    assert texts[1] == "   validation, 4.25 at the end"
    assert not any(text.get_parse_math() for text in legend.get_texts())
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


def test_runs_differ_by_colour_and_dashes() -> None:
    assert len({plotting.style_of(number) for number in range(28)}) == 28
    assert plotting.COLOURS[:2] == ("#0072B2", "#D55E00")


@pytest.mark.parametrize(
    ("metric", "value", "label", "shown"),
    [
        ("peak_memory", 3 << 30, "peak memory (GiB)", 3.0),
        ("mfu", 0.25, "mfu (%)", 25.0),
        ("tokens_per_second", 7.5, "tokens (1/s)", 7.5),
        ("seconds", 0.5, "seconds (s)", 0.5),
    ],
)
def test_axes_have_units(tmp_path: Path, metric: str, value: float, label: str, shown: float) -> None:
    (axes,) = drawn(make_run(tmp_path, "a", 3, **{metric: value}), metric=metric).axes
    assert axes.get_ylabel() == label
    assert list(axes.lines[0].get_ydata()) == [shown] * 3


def test_smoothing_keeps_gaps_and_the_first_value() -> None:
    values = [8.0, 4.0, math.nan, 2.0, 3.0, math.inf, 1.0]
    smoothed = plotting.smooth(values, 3)
    assert smoothed[0] == 8.0
    assert smoothed[1] == 6.0
    assert math.isnan(smoothed[2])
    assert smoothed[3:5] == [2.5, 2.5]
    assert smoothed[5:] == [math.inf, 1.0]
    assert plotting.smooth(values[:2], 1) == values[:2]
