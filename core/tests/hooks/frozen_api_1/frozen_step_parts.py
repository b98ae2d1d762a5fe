"""The code behind frozen_step.py. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from frozen_step import Descent, Diary, Making, Scaled, Stored
from torch import Tensor

from recipe_core import Batch, DataError, Loss, Run, TrackedRun, Trainable
from recipe_core.data.prepare import Output


def descent(config: Descent, trainable: Trainable) -> torch.optim.Optimizer:
    return torch.optim.SGD(trainable.groups(), lr=1.0, momentum=config.momentum)


class Writer:
    def __init__(self, config: Diary, run: TrackedRun) -> None:
        self.path = run.folder / config.name
        self.path.write_text(f"{run.name} after {run.since}\n", encoding="utf-8")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{step} {' '.join(sorted(values))}\n")

    def close(self) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("closed\n")


def scaled(config: Scaled, own: Loss) -> Loss:
    def loss(output: Any, batch: Batch) -> Mapping[str, Tensor]:
        values = own(output, batch)
        return {**values, "loss": values["loss"] * config.factor}

    return loss


def prepare(settings: Making) -> dict[str, Any]:
    with Output(Path(settings.output), {"count": settings.count}, reads=(), overwrite=False) as output:
        path = output.folder / "numbers.txt"
        path.write_text(" ".join(map(str, range(settings.count))), encoding="utf-8")
        return output.finish({"kind": "frozen_stored", "count": settings.count})


class FileNumbers:
    def __init__(self, config: Stored) -> None:
        path = Path(config.folder) / "numbers.txt"
        if not path.is_file():
            raise DataError(f"{path}: no such file; make it with recipe prepare frozen_stored")
        self.numbers = torch.tensor([int(word) for word in path.read_text(encoding="utf-8").split()])
        self.sequence = config.sequence

    def read(self, split: str, start: int, count: int) -> Batch:
        places = torch.arange(start, start + count)[:, None] + torch.arange(self.sequence + 1)
        ids = self.numbers[places % len(self.numbers)] % 12
        return {"ids": ids[:, :-1], "next": ids[:, 1:]}


def read(config: Stored, run: Run) -> FileNumbers:
    return FileNumbers(config)
