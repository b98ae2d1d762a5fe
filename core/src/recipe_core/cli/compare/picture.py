"""Pictures as files: drawn by matplotlib, marked with what made them, never written over another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.files import atomic_file

_MARKS = {"png": "Software", "svg": "Creator", "svgz": "Creator", "pdf": "Creator", "ps": "Creator", "eps": "Creator"}
"""By what entry a picture says who made it; in other formats it does not, and is not replaced."""


def available() -> bool:
    """True if matplotlib is installed; it is not loaded."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def new_figure(path: Path, maker: str, size: tuple[float, float], hint: str = "") -> Any:
    """An empty figure of matplotlib's for :func:`save`, ``size`` in inches; ``hint`` is another way out.

    The ending of ``path`` says the format: png, svg, pdf and what else matplotlib writes.

    Raises:
        ConfigError: matplotlib is not installed, or does not write such files; or ``path`` is not of ``maker``.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"{path}: a picture needs matplotlib, which is not installed; pip install 'recipe-core[plots]'"
        ) from error
    figure = Figure(figsize=size, dpi=110, layout="constrained")  # without pyplot: no window, no global state
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise ConfigError(f"{path}: expected a name that ends in .png, or in one of .{', .'.join(sorted(known))}")
    if is_taken(path, maker):
        raise ConfigError(f"{path} exists and is no picture of `{maker}`; name another with --png{hint}")
    return figure


def save(figure: Any, path: Path, maker: str) -> None:
    """Write the figure.

    Raises:
        DiskError: ``path`` cannot be written.
    """
    kind = path.suffix.removeprefix(".")
    marks = {key: {name: maker} for key, name in _MARKS.items()}
    with atomic_file(path) as part:
        figure.savefig(part, format=kind, metadata=marks.get(kind))


def is_taken(path: Path, maker: str) -> bool:
    """True if ``path`` exists, and is no picture that says that ``maker`` made it."""
    return path.exists() and not (path.is_file() and maker.encode() in path.read_bytes())
