"""Settings of the model, of the data, and of the training, in this order. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from recipe_core import Train, too_small
from recipe_core.hooks.train import Schedule

TaskName = Literal["", "cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
LEAST_VOCABULARY = 500
"""Entries that a trained vocabulary has room for: letters, alone and inside words, and some words."""


@dataclass(frozen=True, kw_only=True)
class SequenceClassifier:
    """A model of Hugging Face's with a head for classification."""

    source: str | None = None
    """Where its weights come from: a name on the hub; a folder for ``from_pretrained``; a run folder or a checkpoint of
    any format that ``recipe convert`` reads; ``recipe:NAME``, which runs that recipe first, once per machine. null:
    random weights of a BERT of the sizes below."""
    recipe: str | None = None
    """A recipe of the model in ``source``, where a checkpoint does not tell which model it holds."""
    revision: str = "main"
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer; null: the one beside the weights, and for random weights one that is trained on
    the training texts."""
    dropout: float | None = None
    """Everywhere in the model; null: as its config.json says."""
    layers: int = 2
    """Blocks, without ``source``."""
    hidden: int = 128
    """Width of what goes from block to block, without ``source``."""
    heads: int = 2
    """Attention heads, without ``source``; ``hidden`` divides by them."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "layers", "hidden", "heads")
        if not problems and self.hidden % self.heads:
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            problems.append(f"dropout: expected 0 to below 1, got {self.dropout}")
        if problems:
            raise ValueError("\n".join(problems))

    def resolved(self) -> dict[str, Any]:
        """All settings that count: of a model that is loaded, its config.json says the sizes."""
        sizes = ("layers", "hidden", "heads") if self.source is not None else ()
        return {name: value for name, value in asdict(self).items() if name not in sizes}


@dataclass(frozen=True, kw_only=True)
class TextClassification:
    """Labelled sentences, or pairs of sentences. Without ``task`` and files: pairs of sentences made of the English
    text that CPython carries, where one says the same as the other in other words, or something else about the same
    matter."""

    task: TaskName = ""
    """A task of GLUE, which says columns, labels and metrics; its data come from the hub unless files are named."""
    folder: str | None = None
    """Where the files are, under their usual names: ``train``, ``validation`` or ``dev``, ``test`` with one of the
    endings below, or Microsoft's ``msr_paraphrase_train.txt`` and ``msr_paraphrase_test.txt``."""
    train: str | None = None
    """File of training samples: .tsv, .csv, .jsonl, .json, .parquet, or Microsoft's .txt of MRPC."""
    validation: str | None = None
    """File of the samples that metrics are measured on."""
    test: str | None = None
    """File of samples to predict; it need not have labels."""
    columns: tuple[str, ...] = ()
    """One column of text or two; unless given, those of the task, ``sentence1`` and ``sentence2``, ``sentence``, or
    ``text``."""
    label: str = ""
    """Column of the label; unless given, ``label``."""
    labels: tuple[str, ...] = ()
    """Labels in the order of their numbers; unless given, those of the task, or all in the training file, sorted."""
    max_length: int = 128
    """Tokens of a sample at most; the rest is cut off."""
    pad_to_max_length: bool | None = True
    """Pad each sample to ``max_length``, so that devices which compile do so once; false: to the longest of its batch,
    which is faster on others. null: as suits the engine."""
    pairs: int = 4000
    """Training pairs that are made of Python's text; a quarter as many for validation."""
    vocabulary: int = 4096
    """Entries of the vocabulary that is trained where the model brings no tokenizer."""

    def __post_init__(self) -> None:
        problems = [*too_small(self, 8, "max_length", "pairs"), *too_small(self, LEAST_VOCABULARY, "vocabulary")]
        if len(self.columns) > 2:
            problems.append(f"columns: expected one or two, got {list(self.columns)}")
        if len(self.labels) == 1 or len(set(self.labels)) != len(self.labels):
            problems.append(f"labels: expected two or more different ones, got {list(self.labels)}")
        if self.folder and (self.train or self.validation or self.test):
            problems.append("folder: files are named too (train, validation, test); give one of the two")
        if (self.validation or self.test) and not self.train:
            problems.append("train: validation or test samples are named, and no training samples; name their file")
        if self.train and not self.validation:
            problems.append("validation: expected a file, for metrics are measured on samples that were not trained on")
        if problems:
            raise ValueError("\n".join(problems))

    def pads(self, traced: bool) -> bool:
        """True if each sample is padded to ``max_length``.

        Args:
            traced: the engine compiles a graph for each shape.
        """
        return traced if self.pad_to_max_length is None else self.pad_to_max_length

    @property
    def embedded(self) -> bool:
        """True if the samples are made of Python's text."""
        return not (self.task or self.folder or self.train)


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
        resolved = replace(self, global_batch=batch, eval_samples=-(-self.eval_samples // each) * each)
        if self.epochs is None or not train_samples or batch % each:  # what does not divide is told elsewhere
            return resolved
        steps = -int(-self.epochs * steps_per_epoch(train_samples, self.micro_batch, world_size, batch) // 1)
        return replace(resolved, steps=max(1, steps))


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
