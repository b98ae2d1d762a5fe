"""A model under transformers' Trainer, with the settings of one of our runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe_core.hooks.train import Train


def train(folder: Path, model: Any, rows: Any, steps: int, settings: Train, **others: Any) -> Any:
    """Train ``model`` on the dataset ``rows`` for ``steps`` steps; return the Trainer.

    The seconds of each step, from its batch to its update, go to ``folder``/metrics.jsonl; ``others`` are arguments of
    TrainingArguments.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from recipe_core.engine.precision import multiplies_bf16

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, *arguments: object, **settings: object) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *arguments: object, **settings: object) -> None:
            row = {"seconds": time.perf_counter() - self.began}
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    folder.mkdir(parents=True)
    arguments = {
        "output_dir": str(folder / "trainer"), "per_device_train_batch_size": settings.micro_batch, "max_steps": steps,
        "gradient_accumulation_steps": settings.global_batch // settings.micro_batch, "learning_rate": settings.lr,
        "max_grad_norm": settings.clip, "use_cpu": True, "optim": "adamw_torch_fused", "logging_strategy": "no",
        "bf16": settings.precision == "bf16_mixed" and multiplies_bf16("cpu"), "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, **others,
    }  # fmt: skip
    trainer = Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=rows, callbacks=[Clock()])
    trainer.train()
    return trainer
