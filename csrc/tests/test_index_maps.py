"""Memory maps whose file is cut while they are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recipe_index

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there")
COUNT = 1 << 16
"""Tokens, which fill several pages of any system."""


def gather(tokens: Any) -> Any:
    """One sample of all tokens."""
    starts, sizes = np.zeros(1, np.int64), np.array([COUNT], np.int32)
    order, which = np.zeros(1, np.int32), np.zeros(1, np.int64)
    samples = np.array([[0, 0], [0, COUNT - 1]], np.int32)
    return recipe_index.gather(tokens, starts, sizes, order, samples, which, COUNT - 1, COUNT)


def test_reading_a_file_that_was_cut_is_an_error(tmp_path: Path) -> None:
    """It is one each time, and what is whole is read as before."""
    path = tmp_path / "tokens.bin"
    np.arange(COUNT, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, np.uint16, "r")
    os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(OSError, match="a memory-mapped file was cut while it was read, or its disk failed"):
            gather(tokens)
        with pytest.raises(OSError, match="memory-mapped"):
            recipe_index.parse_idx(tokens.view(np.uint8))
    np.arange(COUNT, dtype=np.uint16).tofile(path)
    assert np.array_equal(gather(np.memmap(path, np.uint16, "r"))[0], np.arange(COUNT))


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="the handler of a sanitizer ends the process in its own way")
@pytest.mark.parametrize("handler", ["enable", "disable"])
@pytest.mark.parametrize("first", ["handler", "gather"])
def test_the_signal_ends_a_process_that_reads_such_a_file_otherwise(tmp_path: Path, handler: str, first: str) -> None:
    """Whichever of Python's handler and ours was set first, that of Python speaks where it is enabled, and once."""
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "tokens.bin"), handler, first]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGBUS, ended.stderr
    assert ended.stderr.count("Bus error") == (handler == "enable")


PROGRAM = f"""
import faulthandler, os, sys
import numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_index_maps import COUNT, gather

path, handler, first = sys.argv[1:]
np.arange(COUNT, dtype=np.uint16).tofile(path)
tokens = np.memmap(path, np.uint16, "r")
steps = {{"handler": lambda: getattr(faulthandler, handler)(), "gather": lambda: gather(tokens)}}
steps.pop(first)()
for step in steps.values():
    step()
os.truncate(path, 0)
try:
    gather(tokens)
except OSError:
    tokens[-1] + 1
"""
