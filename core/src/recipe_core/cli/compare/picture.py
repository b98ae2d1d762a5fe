"""Picture files of matplotlib, marked with the command that made them; other files are never overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.files import atomic_file

_MARKS = {"png": "Software", "svg": "Creator", "svgz": "Creator", "pdf": "Creator", "ps": "Creator", "eps": "Creator"}
"""Metadata key for the maker, by format; files of other formats carry no mark and are not replaced."""


def available() -> bool:
    """True if matplotlib is installed; it is not imported."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def new_figure(path: Path, maker: str, size: tuple[float, float], hint: str = "") -> Any:
    """Return an empty matplotlib figure for :func:`save`.

    Args:
        path: file to write; its suffix is the format: png, svg, pdf or another of matplotlib's.
        maker: the command, as marked in the file.
        size: inches.
        hint: another remedy, for the message.

    Raises:
        ConfigError: matplotlib is not installed, cannot write the format, or ``path`` is a file of another maker.
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
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=marks.get(kind))


def is_taken(path: Path, maker: str) -> bool:
    """True if ``path`` exists and is not a picture of ``maker``."""
    return path.exists() and not (path.is_file() and maker.encode() in path.read_bytes())
