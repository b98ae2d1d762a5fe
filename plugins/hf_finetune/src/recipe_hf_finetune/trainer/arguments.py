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
    """Set the environment variables that transformers reads on import; call it before importing transformers."""
    # With torch_xla installed, transformers and Accelerate use its devices regardless of train.engine. transformers has
    # a variable against it; Accelerate checks once, when it is imported.
    os.environ["USE_TORCH_XLA"] = "0"
    with _hidden("torch_xla.core.xla_model"):
        import accelerate.utils  # noqa: F401
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Make ``module`` appear to be not installed."""
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
    """TrainingArguments for the section ``train``, with the Trainer's own logging, evaluating and saving switched off.

    Args:
        job: settings, with batch and steps resolved for this number of processes.
        engine: device and ranks; the Trainer uses its process group.
        seed: of this fine-tuning.
        folder: required by the Trainer, which writes nothing there.
    """
    from transformers import TrainingArguments

    train = job.train
    if engine.device.type != "cpu":
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(engine.device)  # Accelerate would choose one itself
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=train.steps,
        per_device_train_batch_size=train.micro_batch,
        per_device_eval_batch_size=train.micro_batch,
        gradient_accumulation_steps=train.global_batch // (train.micro_batch * engine.world_size),
        learning_rate=train.lr,
        lr_scheduler_type=train.schedule,
        warmup_steps=warmup_steps(train),
        optim="adamw_torch_fused" if engine.device.type == "cuda" else "adamw_torch",  # which exists everywhere
        weight_decay=train.weight_decay,
        adam_beta1=train.betas[0],
        adam_beta2=train.betas[1],
        adam_epsilon=train.eps,
        max_grad_norm=train.clip,
        bf16=train.precision == "bf16_mixed" and multiplies_bf16(engine.device.type),
        torch_compile=bool(train.compile),
        seed=seed,
        use_cpu=engine.device.type == "cpu" or (engine.traced and engine.world_size > 1),
        dataloader_pin_memory=engine.device.type == "cuda",
        ddp_find_unused_parameters=False,
        logging_nan_inf_filter=False,  # the core reports a loss that is not finite
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **_checkpointing(TrainingArguments, train.activation_checkpointing),
    )
    assert arguments.device.type == engine.device.type  # reading .device makes it detect and count devices
    arguments._n_gpu = min(1, arguments._n_gpu)  # or the Trainer wraps the model in DataParallel over all devices
    return arguments


def _checkpointing(arguments_class: type, enabled: bool) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(arguments_class)}
    # The argument's name depends on the release of transformers.
    name = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    # Of the two implementations, older releases take the one that has no gradients if the first weights are frozen.
    settings = {f"{name}_kwargs": {"use_reentrant": False}} if f"{name}_kwargs" in names else {}
    return {name: True, **settings} if enabled else {}
