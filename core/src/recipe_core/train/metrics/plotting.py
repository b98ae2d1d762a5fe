"""The style of plots of metrics: colours, line styles, smoothing, axis labels. Imports matplotlib only in functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, safe for colour-blind readers; without its yellow, too faint on white."""
DASHES = ("-", "--", ":", "-.")
"""Line styles; the next one starts when all colours are used."""
FAINT = 0.25
"""Opacity of the raw curve under the smoothed one."""
_WINDOWS = 20
"""A curve of n points is smoothed over n / 20 of them."""
_LONGEST_NAME = 44
_GIB = 1 << 30


def style_of(number: int) -> tuple[str, str]:
    """Colour and dashes of line ``number``; the first 28 differ."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def window_of(count: int) -> int:
    """Window for smoothing a curve of ``count`` points; odd, and 1 if there are too few."""
    return max(1, count // _WINDOWS) | 1 if count >= 2 * _WINDOWS else 1


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average over ``window`` values, which has no lag, unlike an exponential one.

    Towards the start, where curves are steep, the window narrows to the first value; at the end, where they are flat,
    it keeps its backward half. Values that are not finite are kept, and excluded from means.
    """
    sums, counts = [0.0], [0]
    for value in values:
        finite = math.isfinite(value)
        sums.append(sums[-1] + (value if finite else 0.0))
        counts.append(counts[-1] + finite)
    smoothed = []
    for index, value in enumerate(values):
        first, last = max(0, index - window // 2), min(index + min(window // 2, index), len(values) - 1) + 1
        if window > 1 and math.isfinite(value):
            value = (sums[last] - sums[first]) / (counts[last] - counts[first])
        smoothed.append(value)
    return smoothed


def scale_of(key: str) -> tuple[str, float]:
    """The unit of a metric in plots (empty if it has none), and the factor from metrics.jsonl to it."""
    name = key.removeprefix("val_")
    if name.endswith("memory"):
        return "GiB", 1 / _GIB
    if name == "mfu" or name.endswith("accuracy"):
        return "%", 100.0
    if name.endswith("_per_second"):
        return "1/s", 1.0
    return ("s", 1.0) if name.endswith("seconds") else ("", 1.0)


def label_of(key: str) -> str:
    """Axis label: the metric and its unit."""
    name, (unit, _) = key.replace("_", " "), scale_of(key)
    if unit == "1/s":
        return f"{name.removesuffix(' per second')} (1/s)"
    return f"{name} ({unit})" if unit else name


def shortened(name: str) -> str:
    """``name``, without its middle if it is too long for a legend: both ends distinguish runs."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def draw_curve(axes: Any, points: Mapping[int, float], colour: str, dashes: str = "-", *, width: float = 1.6) -> Any:
    """Draw values by step on matplotlib's ``axes``, smoothed over a faint raw curve; return the line for the legend."""
    steps, values = list(points), list(points.values())
    window = window_of(len(values))
    if window > 1:
        axes.plot(steps, values, "-", color=colour, alpha=FAINT, linewidth=0.8)
    marker = "o" if len(values) == 1 else None  # a line of one point cannot be seen
    (line,) = axes.plot(
        steps, smooth(values, window), dashes, color=colour, linewidth=width, marker=marker, markersize=4
    )
    return line


def finish(axes: Any, title: str, label: str) -> None:
    """Add title, labels and integer ticks to matplotlib's ``axes``."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    axes.set_xlabel("step (optimizer updates)")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(figure: Any, entries: Sequence[tuple[Any, str]]) -> None:
    """Add a legend of lines and their literal names, to the right of the axes."""
    legend = figure.legend(
        [line for line, _ in entries], ["run"] * len(entries), loc="outside right upper", frameon=False, fontsize=9
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)  # a name may have $ in it, and may begin with _, which matplotlib would leave out
        text.set_text(shortened(name))
