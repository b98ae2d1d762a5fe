"""Code of the recipe does not synchronise with the device within a fine-tuning step, between two rows of metrics."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from recipe_core.hooks.registry import load
from recipe_core.train.start.check import checked_job
from recipe_hf_finetune.run import run
from recipe_hf_finetune.trainer.fine_tuner import FineTuner


class Readers(TorchDispatchMode):
    """Records the modules that read a number from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero"):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__", "").startswith("torch"):
                frame = frame.f_back
            self.modules.append("" if frame is None else f"{frame.f_globals['__name__']}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))


def test_no_step_reads_a_number_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    readers, steps = Readers(), []
    step, end = FineTuner.training_step, FineTuner.end_step

    def training_step(self: FineTuner, *args: Any, **kwargs: Any) -> Any:
        with readers:
            return step(self, *args, **kwargs)

    def end_step(self: FineTuner) -> None:
        with readers:
            end(self)
        steps.append(self.state.global_step)

    monkeypatch.setattr(FineTuner, "training_step", training_step)
    monkeypatch.setattr(FineTuner, "end_step", end_step)
    args = ("train.steps=3", "train.log_every=100", "train.device=cpu")
    run(checked_job(load(), "hf_finetune:tiny", args, 1, tmp_path), tmp_path / "run")
    assert steps == [1, 2, 3]
    assert [reader for reader in readers.modules if reader.startswith("recipe_")] == []
