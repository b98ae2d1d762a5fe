"""Models of Hugging Face with a classification head: built from sizes, or loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core import Batch, CheckpointError, ConfigError
from recipe_core.checkpoint.formats.hf import CONFIG
from recipe_core.checkpoint.match.translator import naming_of
from recipe_core.train.start.pretrained import job_of
from recipe_hf_finetune.data.splits import Corpus
from recipe_hf_finetune.model.facts import published
from recipe_hf_finetune.model.source import RECIPE, ready
from recipe_hf_finetune.settings import SequenceClassifier

_DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout",
    "seq_classif_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
)  # fmt: skip
"""Names of dropout settings in config.json."""
_FREE = (*_DROPOUTS, "architectures", "dtype", "torch_dtype", "initializer_range", "transformers_version", "use_cache")
"""Settings that may differ between a checkpoint and the run that continues from it."""


def build(config: SequenceClassifier) -> tuple[nn.Module, Any]:
    """A BERT with random weights, two labels and 32,768 embeddings, enough for any trained vocabulary; for the core's
    loop.

    Raises:
        ConfigError: ``source`` is set; only the recipe hf_finetune loads models.
    """
    if config.source is not None:
        raise ConfigError("model.source: is read by the recipe hf_finetune alone; set it to null, or run that recipe")
    return blank(config), loss


def blank(config: SequenceClassifier) -> nn.Module:
    """The model that ``config`` describes, with random weights; called under ``torch.device("meta")``, without values.

    Raises:
        ConfigError: its sizes are not known before the run.
    """
    described = random_config(config, 1 << 15, 512) if config.source is None else described_config(config)
    return _taking_batches(random_model(described, None))


def _taking_batches(model: nn.Module) -> nn.Module:
    # A subclass rather than a module around it: the tensors keep the names that transformers gives them.
    base: Any = type(model)

    def forward(self: nn.Module, batch: Batch) -> Tensor:
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        logits: Tensor = base.forward(self, **inputs).logits
        return logits

    model.__class__ = type(base.__name__, (base,), {"__module__": base.__module__, "forward": forward})
    return model


def loss(output: Tensor, batch: Batch) -> Mapping[str, Tensor]:
    """Cross entropy and accuracy."""
    return {
        "loss": nn.functional.cross_entropy(output, batch["labels"]),
        "accuracy": (output.argmax(-1) == batch["labels"]).float().mean(),
    }


def random_config(config: SequenceClassifier, vocabulary: int, positions: int) -> Any:
    """The configuration of a BERT with the sizes in ``config``."""
    from transformers import BertConfig

    dropout = 0.1 if config.dropout is None else config.dropout
    return BertConfig(
        vocab_size=vocabulary, hidden_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, intermediate_size=4 * config.hidden, max_position_embeddings=positions,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip


def described_config(config: SequenceClassifier) -> Any:
    """The configuration of the model that ``config.source`` describes, as far as it is known without a download.

    Raises:
        ConfigError: it is not known before the run.
    """
    from transformers import AutoConfig

    source = str(config.source)
    if source.startswith(RECIPE):
        model = job_of(source.removeprefix(RECIPE)).model
        if target := model.spec.adapters.get("hf"):
            texts = naming_of(model.spec, target).adapter(model.config).files
            return AutoConfig.for_model(**json.loads(texts[CONFIG]))
    elif content := published(source):
        return AutoConfig.for_model("bert", **content)
    elif (Path(source) / CONFIG).is_file() or Path(ready(source) or "").is_dir():
        return load_config(source if (Path(source) / CONFIG).is_file() else str(ready(source)), config)
    raise ConfigError(f"model.source: {source}: the sizes of its model are not known before the run")


def load_config(place: str | Path, config: SequenceClassifier) -> Any:
    """Load the configuration from a folder or, by name, from the hub.

    Raises:
        ConfigError: there is none, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    try:
        loaded = AutoConfig.from_pretrained(str(place), revision=config.revision)
    except Exception as error:  # OSError, ValueError, KeyError: what is missing, in transformers' words
        text = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"model.source: {place}: no model can be had ({text}); name a folder with config.json and the weights, a "
            "run folder or a checkpoint; on a machine without network, copy the model's files there first"
        ) from error
    for name in _DROPOUTS if config.dropout is not None else ():
        if getattr(loaded, name, None) is not None:
            setattr(loaded, name, config.dropout)
    return loaded


def require_same(path: Path, config: Any) -> None:
    """Refuse a checkpoint whose config.json describes another function than ``config``.

    Raises:
        CheckpointError: settings differ (one message lists all), or the file cannot be read.
    """
    try:
        saved = type(config).from_pretrained(str(path)).to_dict()
    except Exception as error:  # OSError, ValueError, KeyError: what is missing, in transformers' words
        raise CheckpointError(
            f"{path / 'config.json'}: cannot be read ({' '.join(str(error).split())[:300]})"
        ) from error
    current = config.to_dict()
    differing = [
        f"  - {name}: {saved.get(name)} there, {current.get(name)} in this run"
        for name in sorted({*saved, *current})
        if not (name.startswith("_") or name in _FREE) and saved.get(name) != current.get(name)
    ]
    if differing:
        text = "\n".join([f"{path} is of a model with other settings:", *differing])
        raise CheckpointError(f"{text}\nTake the settings model.* and data.* of its job.yaml")


def with_labels(config: Any, corpus: Corpus) -> Any:
    """Set number and names of labels in ``config``, and return it; a regression has one label."""
    names = corpus.labels or ("value",)
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = "regression" if corpus.task.regression else "single_label_classification"
    return config


def random_model(config: Any, seed: int | None) -> nn.Module:
    """Build the model of ``config`` with random weights, drawn with ``seed``; None keeps torch's generator."""
    from transformers import AutoModelForSequenceClassification, set_seed

    if seed is not None:
        set_seed(seed)
    module: nn.Module = AutoModelForSequenceClassification.from_config(config)
    return module


def pretrained_model(place: str | Path, config: Any, seed: int, revision: str = "main") -> nn.Module:
    """Load a model in fp32 from a folder or, by name, from the hub; a missing head is drawn with ``seed``.

    Raises:
        CheckpointError: the weights are missing, damaged, or not of the sizes in the configuration.
    """
    from transformers import AutoModelForSequenceClassification, set_seed

    set_seed(seed)
    try:
        module: nn.Module = AutoModelForSequenceClassification.from_pretrained(
            str(place), config=config, revision=revision, torch_dtype=torch.float32
        )
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"model.source: {place}: its weights cannot be loaded ({text}); copy the files again, or name another model"
        ) from error
    return module


def quiet() -> None:
    """Silence transformers: it would warn about the head without weights, which is intended here."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
