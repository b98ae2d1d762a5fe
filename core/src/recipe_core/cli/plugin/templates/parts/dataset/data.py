"""The samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from recipe_core import Batch, DataError, Run

from recipe_new_plugin.files import FILE
from recipe_new_plugin.settings import Texts


class Windows:
    """Windows of the text, at random positions that depend on seed, split and sample number only.

    The last tenth is for validation. The file is memory-mapped: only the windows are loaded.
    """

    def __init__(self, config: Texts, seed: int) -> None:
        content = _content(config)
        least = config.sequence + 1
        first = max(len(content) * 9 // 10, least)
        self.parts = {"train": content[:first], "valid": content[-max(len(content) - first, least) :]}
        self.length, self.seed = config.sequence, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """Return ``tokens`` and ``labels``, shifted by one: ``[count, sequence]``."""
        part, rows = self.parts[split], []
        for number in range(start, start + count):
            random = np.random.default_rng([self.seed, split == "valid", number])
            first = random.integers(len(part) - self.length)
            rows.append(part[first : first + self.length + 1])
        tokens = torch.from_numpy(np.stack(rows))
        return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


def _content(config: Texts) -> np.ndarray:
    if not config.folder:
        text = " ".join(f"{number} times {number} is {number * number}." for number in range(1000))
        return np.frombuffer(text.encode(), np.uint8)
    path = Path(config.folder).expanduser() / FILE
    if not path.is_file():
        raise DataError(f"data.folder: {path}: no such file; make it: recipe prepare new_plugin_bytes")
    content = np.memmap(path, np.uint8, "r")
    if len(content) <= config.sequence:
        raise DataError(f"data.sequence: expected less than the {len(content)} bytes of {path}, got {config.sequence}")
    return content


def build(config: Texts, run: Run) -> Windows:
    """Return an endless stream of samples; the core divides it among the ranks."""
    return Windows(config, run.train.seed)
