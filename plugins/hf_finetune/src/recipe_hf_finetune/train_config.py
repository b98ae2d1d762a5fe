"""The section ``train`` of this recipe: the core's settings, and those that follow from epochs and processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipe_core.settings import Schedule, Train, too_small


@dataclass(frozen=True, kw_only=True)
class FineTune(Train):
    """How long and how hard to fine-tune. The first settings are those of the published MRPC recipe."""

    epochs: float | None = 5.0
    """How often to go through the training samples; ``steps`` follows from it. null: as many steps as ``steps``."""
    batch_per_process: int | None = 8
    """Samples per optimizer step of each process: ``global_batch`` is this times the processes. null: ``global_batch``,
    whatever the number of processes."""
    seeds: int = 1
    """How many times to fine-tune, with ``seed``, ``seed + 1`` and so on; the results say mean and spread."""
    random_start: bool = False
    """Fine-tune a model of the same sizes from random weights too, so that one sees what the first training gave."""
    micro_batch: int = 8
    """Samples per forward and backward of one process."""
    lr: float = 2e-5
    """Peak learning rate."""
    schedule: Schedule = "linear"
    """How the learning rate goes on after the warm-up: ``constant``, ``linear`` or ``cosine``, to 0."""
    weight_decay: float = 0.0
    """Not applied to biases and norms."""
    eval_every: int = 0
    """Steps between evaluations; 0: after each epoch. The last step is always followed by one."""
    eval_samples: int = 1_000_000
    """Samples per evaluation: the first so many of the validation split, rounded up to whole batches of all ranks."""

    def __post_init__(self) -> None:
        problems = [*too_small(self, 1, "batch_per_process", "seeds")]
        if self.epochs is not None and not self.epochs > 0:
            problems.append(f"epochs: expected more than 0, got {self.epochs}")
        try:
            super().__post_init__()
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def for_run(self, world_size: int, train_samples: int | None) -> FineTune:
        """Batch and steps on ``world_size`` processes, with so many training samples."""
        each = self.micro_batch * world_size
        batch = self.global_batch if self.batch_per_process is None else self.batch_per_process * world_size
        found = replace(self, global_batch=batch, eval_samples=-(-self.eval_samples // each) * each)
        if self.epochs is None or not train_samples or batch % each:  # what does not divide is told elsewhere
            return found
        steps = -int(-self.epochs * steps_per_epoch(train_samples, self.micro_batch, world_size, batch) // 1)
        return replace(found, steps=max(1, steps))


def settings(train: Train) -> FineTune:
    """The section ``train`` of a job of this recipe, by its own type."""
    assert isinstance(train, FineTune)  # which the recipe names
    return train


def steps_per_epoch(train_samples: int, micro_batch: int, world_size: int, global_batch: int) -> int:
    """Optimizer steps in which the Trainer sees every sample once: each process takes every so-manieth micro batch, the
    last ones are filled up, and the last step may have fewer of them."""
    micro_batches = -(-train_samples // micro_batch)
    of_each = -(-micro_batches // world_size)
    return max(1, -(-of_each // (global_batch // (micro_batch * world_size))))
