"""Golden scripts: reviewed output of ``recipe submit``, for the tests in this folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Typed = Callable[..., tuple[int, str, str]]
SCRIPTS = Path(__file__).parent / "scripts"
ARGUMENTS = ("toy", "train.global_batch=16", "train.eval_samples=16", "train.micro_batch=2")


def compare(text: str, name: str, tmp_path: Path) -> None:
    """Compare with the file in ``scripts``; RECIPE_WRITE_SCRIPTS=1 writes it."""
    text = text.replace(str(tmp_path), "/home/me")
    if os.environ.get("RECIPE_WRITE_SCRIPTS"):
        (SCRIPTS / name).write_text(text)
    assert text == (SCRIPTS / name).read_text()
