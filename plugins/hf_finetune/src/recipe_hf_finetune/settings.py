"""Settings of the model, of the data and of the training, in this order. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from recipe_core import Train, too_small
from recipe_core.hooks.train import Schedule

TaskName = Literal["", "cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
LEAST_VOCABULARY = 500
"""Smallest vocabulary that can be trained: letters, at the start of a word and inside, and some words."""


@dataclass(frozen=True, kw_only=True)
class SequenceClassifier:
    """A model of Hugging Face with a classification head."""

    source: str | None = None
    """Source of the weights: a name on the hub; a folder for ``from_pretrained``; a run folder or a checkpoint of any
    format that ``recipe convert`` reads; ``recipe:NAME``, which runs that recipe first, once per machine. null: a BERT
    of the sizes below, with random weights."""
    recipe: str | None = None
    """Recipe that describes the model in ``source``, for a checkpoint that does not record its model."""
    revision: str = "main"
    """Branch, tag or commit on the hub."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer. null: the one in the folder of the weights; with random weights, one that is
    trained on the training texts."""
    dropout: float | None = None
    """Dropout probability everywhere in the model; null: the values in its config.json."""
    layers: int = 2
    """Number of blocks; without ``source`` only."""
    hidden: int = 128
    """Hidden size; without ``source`` only."""
    heads: int = 2
    """Number of attention heads, a divisor of ``hidden``; without ``source`` only."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "layers", "hidden", "heads")
        if not problems and self.hidden % self.heads:
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            problems.append(f"dropout: expected 0 to below 1, got {self.dropout}")
        if problems:
            raise ValueError("\n".join(problems))

    def resolved(self) -> dict[str, Any]:
        """Settings that take effect: for a loaded model, all but the sizes, which its config.json has."""
        sizes = ("layers", "hidden", "heads") if self.source is not None else ()
        return {name: value for name, value in asdict(self).items() if name not in sizes}


@dataclass(frozen=True, kw_only=True)
class TextClassification:
    """Labelled sentences or sentence pairs. Without ``task`` and files: pairs of sentences from the English text that
    ships with CPython, either a sentence and its paraphrase, or two sentences about the same topic."""

    task: TaskName = ""
    """Task of GLUE, which sets columns, labels and metrics; the data come from the hub unless files are named."""
    folder: str | None = None
    """Folder of the files, under their usual names: ``train``, ``validation`` or ``dev``, ``test`` with one of the
    endings below, or Microsoft's ``msr_paraphrase_train.txt`` and ``msr_paraphrase_test.txt``."""
    train: str | None = None
    """File of training samples: .tsv, .csv, .jsonl, .json, .parquet, or Microsoft's .txt of MRPC."""
    validation: str | None = None
    """File of validation samples, for the metrics."""
    test: str | None = None
    """File of samples to predict; labels are optional."""
    columns: tuple[str, ...] = ()
    """One or two columns of text; by default those of the task, ``sentence1`` and ``sentence2``, ``sentence``, or
    ``text``."""
    label: str = ""
    """Column of the label; by default ``label``."""
    labels: tuple[str, ...] = ()
    """Labels in the order of their numbers; by default those of the task, or all in the training file, sorted."""
    max_length: int = 128
    """Maximum number of tokens per sample; longer ones are truncated."""
    pad_to_max_length: bool | None = True
    """Pad each sample to ``max_length``, so that engines which compile graphs do so once. false: pad to the longest
    sample of the batch, which is faster on other engines. null: true for engines that compile graphs."""
    pairs: int = 4000
    """Number of training pairs made from Python's text; validation has a quarter as many."""
    vocabulary: int = 4096
    """Size of the vocabulary that is trained where the model has no tokenizer."""

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
            traced: True if the engine compiles a graph for each shape.
        """
        return traced if self.pad_to_max_length is None else self.pad_to_max_length

    @property
    def embedded(self) -> bool:
        """True if the samples are made from Python's text."""
        return not (self.task or self.folder or self.train)


@dataclass(frozen=True, kw_only=True)
class FineTune(Train):
    """Settings of fine-tuning; the defaults are those of the published MRPC recipe."""

    epochs: float | None = 5.0
    """Passes over the training samples, which determine ``steps``. null: ``steps`` counts."""
    batch_per_process: int | None = 8
    """Samples per optimizer step and process: ``global_batch`` is this times the number of processes. null:
    ``global_batch`` counts, with any number of processes."""
    seeds: int = 1
    """Number of fine-tunings, with ``seed``, ``seed + 1`` and so on; the results have mean and standard deviation."""
    random_start: bool = False
    """Also fine-tune a model of the same sizes from random weights, to measure the benefit of pre-training."""
    micro_batch: int = 8
    """Samples per forward and backward pass of one process."""
    lr: float = 2e-5
    """Peak learning rate."""
    schedule: Schedule = "linear"
    """Schedule of the learning rate after the warm-up: ``constant``, or ``linear`` or ``cosine`` to 0."""
    weight_decay: float = 0.0
    """Weight decay; biases and norms have none."""
    eval_every: int = 0
    """Steps between evaluations; 0: one after each epoch. The last step is always followed by one."""
    eval_samples: int = 1_000_000
    """Samples per evaluation, taken from the start of the validation split; rounded up to whole batches of all
    ranks."""

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
        """Settings with ``global_batch``, ``eval_samples`` and ``steps`` resolved for ``world_size`` processes."""
        each = self.micro_batch * world_size
        batch = self.global_batch if self.batch_per_process is None else self.batch_per_process * world_size
        resolved = replace(self, global_batch=batch, eval_samples=-(-self.eval_samples // each) * each)
        if self.epochs is None or not train_samples or batch % each:  # the core reports a batch that does not divide
            return resolved
        steps = -int(-self.epochs * steps_per_epoch(train_samples, self.micro_batch, world_size, batch) // 1)
        return replace(resolved, steps=max(1, steps))


def settings(train: Train) -> FineTune:
    """The section ``train`` of a job of this recipe, as its own type."""
    assert isinstance(train, FineTune)
    return train


def steps_per_epoch(train_samples: int, micro_batch: int, world_size: int, global_batch: int) -> int:
    """Optimizer steps per epoch, as the Trainer counts them: each process takes every ``world_size``-th micro batch,
    the last ones are filled up, and the last step may have fewer of them."""
    micro_batches = -(-train_samples // micro_batch)
    per_process = -(-micro_batches // world_size)
    return max(1, -(-per_process // (global_batch // (micro_batch * world_size))))
