"""The commands of a page, and how its tests type them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path


def commands(text: str) -> list[str]:
    """Return the lines of the blocks of bash in ``text``, continued ones as one."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def type_command(line: str, folder: Path, *more: str, **environment: str) -> str:
    """Run ``line``, a command of recipe or python, with the words ``more`` in ``folder``; return its standard output.

    It must end with 0.
    """
    program, *words = shlex.split(line)
    start = {"recipe": [sys.executable, "-m", "recipe_core.cli"], "python": [sys.executable]}[program]
    done = subprocess.run(
        [*start, *words, *more], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout
