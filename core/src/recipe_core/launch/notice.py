"""Notices of what happens in the first seconds, for somebody who watches; scripts and further ranks see none."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def notice(text: str) -> None:
    """Say on standard error that ``text`` begins, where a terminal shows it, and on the first rank alone."""
    if os.environ.get("RANK", "0") == "0" and (sys.stderr.isatty() or os.environ.get("RECIPE_TERMINAL")):
        with suppress(OSError, ValueError):
            print(f"{text} ...", file=sys.stderr, flush=True)
