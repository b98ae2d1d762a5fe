"""Progress notices of the first seconds, for a terminal; scripts and ranks other than 0 print none."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

_BEGAN = time.monotonic()
"""This module is among the first that a command imports."""


def notice(text: str) -> None:
    """Print ``text`` and the seconds so far to standard error if a terminal shows it, on rank 0 only."""
    if os.environ.get("RANK", "0") == "0" and (sys.stderr.isatty() or os.environ.get("RECIPE_TERMINAL")):
        with suppress(OSError, ValueError):
            print(f"{time.monotonic() - _BEGAN:5.1f} s  {text} ...", file=sys.stderr, flush=True)
