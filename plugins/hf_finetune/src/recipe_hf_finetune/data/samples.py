"""The dataset ``text_classification`` for the core's loop: an endless order of samples that depends on the seed alone.

The recipe hf_finetune reads the examples directly, since the Trainer orders samples itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from recipe_core import Batch, Run
from recipe_core.train.seeds import mix
from recipe_hf_finetune.data import vocabulary
from recipe_hf_finetune.data.encode import encode, load_tokenizer
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.settings import TextClassification


def build(config: TextClassification, run: Run) -> ClassificationSamples:
    """Read and tokenize all splits, with a vocabulary trained on the training texts.

    Raises:
        DataError: a file is missing, damaged, or holds invalid values.
    """
    return ClassificationSamples(config, run)


class ClassificationSamples:
    """Samples of a run, see :class:`recipe_core.layouts.parallel.Samples`."""

    def __init__(self, config: TextClassification, run: Run) -> None:
        corpus = load(config, run.cache)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in vocabulary.files(config).items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            tokenizer = load_tokenizer(folder)
        self._seed = run.train.seed
        self._splits = {
            split: encode(corpus.splits[name], tokenizer, config.max_length, pad=True)
            for split, name in {"train": "train", "valid": "validation"}.items()
        }

    def read(self, split: str, start: int, count: int) -> Batch:
        """``input_ids``, ``attention_mask`` (and ``token_type_ids``) ``[count, max_length]``, ``labels`` ``[count]``.

        Training samples are shuffled anew in each epoch; validation samples keep the order of their file.
        """
        encoded = self._splits[split]
        return encoded.tensors([self._place(split, start + i, len(encoded)) for i in range(count)])

    def _place(self, split: str, number: int, size: int) -> int:
        epoch, place = divmod(number, size)
        return self._order(epoch, size)[place] if split == "train" else place

    def _order(self, epoch: int, size: int) -> list[int]:
        draw = torch.Generator().manual_seed(mix(self._seed, epoch))
        order: list[int] = torch.randperm(size, generator=draw).tolist()
        return order
