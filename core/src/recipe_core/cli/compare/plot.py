"""Curves of runs as a picture; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.cli.compare.compare import Comparison
from recipe_core.errors import ConfigError
from recipe_core.files import atomic_file

_MAKER = "recipe compare"
_MARKS = {"png": "Software", "svg": "Creator", "svgz": "Creator", "pdf": "Creator", "ps": "Creator", "eps": "Creator"}
"""By what entry a picture says who made it; in other formats it does not, and is not replaced."""


def available() -> bool:
    """True if matplotlib is installed; it is not loaded."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def draw(found: Comparison, path: Path) -> None:
    """Draw the metric of every run over its steps, as lines, and its counterpart in validation, as points, to ``path``.

    The ending of ``path`` says the format: png, svg, pdf and what else matplotlib writes.

    Raises:
        ConfigError: matplotlib is not installed, or does not write such files; or ``path`` exists and is not ours.
        DiskError: ``path`` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"{path}: a picture needs matplotlib, which is not installed; pip install 'recipe-core[plots]'"
        ) from error
    figure = Figure(figsize=(7, 4), dpi=110, layout="tight")  # without pyplot: no window, no global state
    _fill(figure.add_subplot(), found)
    known = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".")
    if kind not in known:
        raise ConfigError(f"{path}: expected a name that ends in .png, or in one of .{', .'.join(sorted(known))}")
    if is_taken(path):
        raise ConfigError(
            f"{path} exists and is no picture of `recipe compare`; name another with --png, or say --no-png"
        )
    marks = {key: {name: _MAKER} for key, name in _MARKS.items()}
    with atomic_file(path) as part:
        figure.savefig(part, format=kind, metadata=marks.get(kind))


def is_taken(path: Path) -> bool:
    """True if ``path`` exists, and is no picture that says that :func:`draw` made it."""
    return path.exists() and not (path.is_file() and _MAKER.encode() in path.read_bytes())


def _fill(axes: Any, found: Comparison) -> None:
    for number, (name, curve) in enumerate(zip(found.names, found.curves, strict=True)):
        colour, width = f"C{number % 10}", 1.3 if number else 2.6  # the first shines through where others cover it
        training = curve.values(found.metric)
        axes.plot(list(training), list(training.values()), "-", color=colour, linewidth=width, label=name)
        if validation := curve.values(f"val_{found.metric}"):
            last = validation[max(validation)]
            label = f"{name}, validation: {last:.3f} at the end"
            axes.plot(
                list(validation), list(validation.values()), "o--", color=colour, markersize=4, linewidth=1, label=label
            )
    axes.set_xlabel("step")
    axes.set_ylabel(found.metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
