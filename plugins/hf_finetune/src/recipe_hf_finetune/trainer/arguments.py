"""The settings of a run as transformers' TrainingArguments."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipe_core import Engine, Job
from recipe_core.engine.precision import multiplies_bf16
from recipe_core.hooks.train import warmup_steps


def prepare_environment() -> None:
    """Set the variables that transformers reads on import. Call it before."""
    # With torch_xla installed, transformers and Accelerate would take its devices whatever the run says. The one has a
    # variable against it, the other none: it looks once, when it is imported.
    os.environ["USE_TORCH_XLA"] = "0"
    with _hidden("torch_xla.core.xla_model"):
        import accelerate.utils  # noqa: F401
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Let ``module`` look not installed to those who import it meanwhile."""
    known = module in sys.modules
    imported = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]  # as importlib's documentation says
    try:
        yield
    finally:
        if known:
            sys.modules[module] = imported  # type: ignore[assignment]
        else:
            del sys.modules[module]


def training_arguments(job: Job, engine: Engine, seed: int, folder: Path) -> Any:
    """Arguments that make the Trainer do what the section ``train`` says; when to log, save and stop is left to us.

    Args:
        job: the settings; batch and steps are those of this number of processes.
        engine: device and ranks; its process group is taken over.
        seed: of this fine-tuning.
        folder: where the Trainer may write, which it does not.
    """
    from transformers import TrainingArguments

    train = job.train
    if engine.device.type != "cpu":
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(engine.device)  # the engine chose it; Accelerate would by itself
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=train.steps,
        per_device_train_batch_size=train.micro_batch,
        per_device_eval_batch_size=train.micro_batch,
        gradient_accumulation_steps=train.global_batch // (train.micro_batch * engine.world_size),
        learning_rate=train.lr,
        lr_scheduler_type=train.schedule,
        warmup_steps=warmup_steps(train),
        optim="adamw_torch",  # the only one that every device has: the default of 5.x, fused, is none for XLA
        weight_decay=train.weight_decay,
        adam_beta1=train.betas[0],
        adam_beta2=train.betas[1],
        adam_epsilon=train.eps,
        max_grad_norm=train.clip,
        bf16=train.precision == "bf16_mixed" and multiplies_bf16(engine.device.type),
        torch_compile=train.compile,
        seed=seed,
        use_cpu=engine.device.type == "cpu" or (engine.traced and engine.world_size > 1),
        dataloader_pin_memory=engine.device.type == "cuda",
        ddp_find_unused_parameters=False,
        logging_nan_inf_filter=False,  # we say so where a loss is not finite, instead of logging another
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **_checkpointing(TrainingArguments, train.activation_checkpointing),
    )
    assert arguments.device.type == engine.device.type  # asking makes it look for devices, and count them
    arguments._n_gpu = min(
        1, arguments._n_gpu
    )  # one process uses one device; else the Trainer would spread it over all
    return arguments


def _checkpointing(kind: type, wanted: bool) -> dict[str, bool]:
    """The argument that recomputes activations, under the name that this release has for it."""
    names = {field.name for field in dataclasses.fields(kind)}
    name = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    return {name: True} if wanted else {}
