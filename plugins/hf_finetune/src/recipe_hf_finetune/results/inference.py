"""``recipe generate`` and ``recipe eval`` with a classifier: labels with probabilities, and the metrics of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from recipe_core import CheckpointError, ConfigError, Evaluation, Generation, TrainedModel
from recipe_core.checkpoint.lazy import fill
from recipe_core.files import home
from recipe_hf_finetune.data import encode
from recipe_hf_finetune.data.examples import Examples
from recipe_hf_finetune.data.splits import load
from recipe_hf_finetune.data.tasks import GLUE
from recipe_hf_finetune.model import classifier
from recipe_hf_finetune.model.adapted import adapt
from recipe_hf_finetune.results.metrics import measure
from recipe_hf_finetune.settings import SequenceClassifier, TextClassification

BATCH = 8
"""Samples per forward pass."""


def generate(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """Return a function that labels a text, or two separated by a tab; see :attr:`recipe_core.Model.generate`.

    Its answers have ``label`` and ``probabilities`` by label, or ``value`` of a regression.

    Raises:
        ConfigError: the model's folder has no tokenizer.
        CheckpointError: the model cannot be read.
    """
    options.require_only(trained.model.spec.name, "tokenizer")
    model = TrainedClassifier(trained, options)
    texts = _columns(model.data)

    def answer(prompt: str) -> dict[str, Any]:
        parts = prompt.split("\t")
        if len(parts) != (texts or len(parts)) or len(parts) > 2:
            expected = {1: "one text", 2: "two texts with a tab between them"}.get(texts or 0, "one text or two")
            raise ConfigError(f"the prompt {prompt!r:.60} has {len(parts)} texts; this model takes {expected}")
        (scores,) = model.logits(Examples(tuple([part] for part in parts), None), 1)
        if model.regression:
            return {"shown": f"{scores[0]:.4f}", "value": float(scores[0])}
        probabilities = torch.from_numpy(scores).softmax(-1).tolist()
        ranked = dict(sorted(zip(model.labels, probabilities, strict=True), key=lambda pair: -pair[1]))
        shown = "  ".join(f"{label} {probability:.1%}" for label, probability in ranked.items())
        return {"shown": shown, "label": next(iter(ranked)), "probabilities": ranked}

    return answer


def evaluate(trained: TrainedModel, options: Evaluation) -> dict[str, Any]:
    """Loss and metrics of the task on the validation samples of the run, or on a file of labelled samples; see
    :attr:`recipe_core.Model.evaluate`.

    Raises:
        ConfigError: the data is not known, or has other labels than the model.
        DataError: the data cannot be read.
    """
    options.require_only(trained.model.spec.name, "data", "limit", "batch", "tokenizer")
    model = TrainedClassifier(trained, options)
    if model.data is None:
        raise ConfigError(f"{trained.path}: it does not say what data it was trained on: --recipe NAME[:VARIANT]")
    config = model.data
    if options.data is not None:
        names = () if model.regression else model.labels
        config = replace(config, folder=None, train=options.data, validation=options.data, test=None, labels=names)
    corpus = load(config, home())
    if not model.regression and corpus.labels != model.labels:
        raise ConfigError(
            f"{options.data or 'data'}: has the labels {', '.join(corpus.labels)}, and the model in {trained.path} "
            f"{', '.join(model.labels)}"
        )
    examples = corpus.splits["validation"]
    labels = np.asarray(examples.labels)[: options.limit]
    examples = Examples(tuple(column[: options.limit] for column in examples.texts), None)
    values = measure(corpus.task, model.logits(examples, options.batch or BATCH), labels)
    return {"data": options.data or "validation", "samples": len(labels), **values}


class TrainedClassifier:
    """A trained classifier from a folder of Hugging Face, with its tokenizer."""

    def __init__(self, trained: TrainedModel, options: Generation | Evaluation) -> None:
        folder = trained.source.folder
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{trained.path}: a classifier needs Hugging Face's config.json beside its weights")
        classifier.quiet()
        config = classifier.load_config(folder, SequenceClassifier())
        self._device = trained.device
        module = classifier.pretrained_model(folder, config, seed=0)
        transforms = trained.provenance.transforms
        module = adapt(transforms, module)
        saved = trained.source.weights["model"]
        if missing := [name for name, _ in module.named_parameters() if name not in saved]:
            raise CheckpointError(
                f"{trained.path}: has no {', '.join(missing[:3])}: it is no trained classifier; fine-tune it first: "
                f"recipe run hf_finetune model.source={trained.path}"
            )
        if transforms:
            for name, parameter in module.named_parameters():
                fill(parameter, saved[name])  # transformers has read those of the model alone
        self._module = module.to(trained.device).eval()
        self._tokenizer = encode.load_tokenizer(options.tokenizer or folder)
        encode.require_vocabulary(self._tokenizer, config.vocab_size, folder)
        if config.pad_token_id is None:
            config.pad_token_id = self._tokenizer.pad_token_id
        self.labels = tuple(str(config.id2label[number]) for number in range(config.num_labels))
        self.regression = config.problem_type == "regression" or config.num_labels == 1
        data = trained.data.config if trained.data else None
        self.data = data if isinstance(data, TextClassification) else None
        self._length = self.data.max_length if self.data else int(getattr(config, "max_position_embeddings", 512))

    @torch.inference_mode()
    def logits(self, examples: Examples, batch: int) -> Any:
        """Logits as a NumPy array, fp32 ``[samples, labels]``."""
        encoded = encode.encode(examples, self._tokenizer, self._length, pad=batch > 1)
        parts = []
        for start in range(0, len(encoded), batch):
            numbers: Sequence[int] = range(start, min(start + batch, len(encoded)))
            inputs = {name: values.to(self._device) for name, values in encoded.tensors(numbers).items()}
            parts.append(self._module(**inputs).logits.float().cpu())
        return torch.cat(parts).numpy()


def _columns(data: TextClassification | None) -> int | None:
    """Number of texts per sample; None if the settings do not determine it."""
    if data is None:
        return None
    if data.embedded:
        return 2
    return len(data.columns or (GLUE[data.task].columns if data.task else ())) or None
