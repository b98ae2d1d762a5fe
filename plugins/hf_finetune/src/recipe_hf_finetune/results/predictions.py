"""Predictions of a fine-tuned model for each sample, as a file and as a confusion matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import write_text
from recipe_hf_finetune.data.examples import Examples
from recipe_hf_finetune.data.splits import Corpus
from recipe_hf_finetune.results import pictures
from recipe_hf_finetune.results.metrics import confusion


def write(folder: Path, corpus: Corpus, logits: Mapping[str, NDArray[np.floating[Any]]]) -> None:
    """Write ``predictions-SPLIT.tsv`` for each split of ``logits``, and the validation split's confusion matrix.

    Raises:
        DiskError: a file cannot be written.
    """
    for split, values in logits.items():
        text = "\n".join("\t".join(fields) for fields in _lines(corpus, corpus.splits[split], values)) + "\n"
        write_text(folder / f"predictions-{split}.tsv", text)
    if corpus.labels and (labels := corpus.splits["validation"].labels) is not None:
        predicted = logits["validation"].argmax(-1)
        table = confusion(predicted, np.asarray(labels[: len(predicted)], np.int64), len(corpus.labels))
        pictures.draw_confusion(table, corpus.labels, folder / "confusion.png")


def _lines(corpus: Corpus, examples: Examples, logits: NDArray[np.floating[Any]]) -> Iterator[list[str]]:
    names = [f"text{number}" for number in range(1, len(examples.texts) + 1)]
    yield ["index", "predicted", *(["probability"] if corpus.labels else []), "label", *names]
    for number, scores in enumerate(np.asarray(logits, np.float64)):
        if corpus.labels:
            exponentials = np.exp(scores - scores.max())
            best = int(scores.argmax())
            fields = [corpus.labels[best], f"{exponentials[best] / exponentials.sum():.6f}"]
        else:
            fields = [f"{float(scores.reshape(-1)[0]):.6f}"]
        texts = [" ".join(column[number].split()) for column in examples.texts]
        yield [str(number), *fields, _label(corpus, examples, number), *texts]


def _label(corpus: Corpus, examples: Examples, number: int) -> str:
    if examples.labels is None:
        return ""
    value = examples.labels[number]
    return corpus.labels[int(value)] if corpus.labels else f"{value:g}"
