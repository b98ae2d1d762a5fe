"""Parameters, FLOPs and activations of the model before a run. No torch here, and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipe_core import Model, ModelFacts, Part, RecipeError
from recipe_core.files.documents import read_json
from recipe_core.hooks.specs import load
from recipe_core.train.start.pretrained import job_of
from recipe_hf_finetune.model.source import RECIPE, ready
from recipe_hf_finetune.settings import SequenceClassifier

_LABELS = 2  # further ones are negligible


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Dimensions of a BERT encoder."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int = 512
    segments: int = 2
    dropout: bool = True


_BASE = EncoderSizes(layers=12, hidden=768, heads=12, intermediate=3072, vocabulary=30522)
_LARGE = EncoderSizes(layers=24, hidden=1024, heads=16, intermediate=4096, vocabulary=30522)
_PUBLISHED = {
    "bert-base-uncased": _BASE,
    "bert-base-cased": replace(_BASE, vocabulary=28996),
    "bert-large-uncased": _LARGE,
    "bert-large-cased": replace(_LARGE, vocabulary=28996),
}
"""Published under these names on the hub (Devlin and others, 2019)."""
_NAMES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "intermediate": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip


def facts(config: SequenceClassifier, sequence: int) -> ModelFacts | None:
    """Counts for one sample of ``sequence`` tokens; None if the model is not a BERT, or its config.json is not local.

    For ``recipe:NAME``, they are those of that recipe's model, whose head is slightly larger.
    """
    source = config.source
    if source is None:  # the size of the trained vocabulary depends on the text
        return None
    try:
        if source.startswith(RECIPE):
            return _of_recipe(job_of(source.removeprefix(RECIPE)).model, sequence)
        local = Path(source).exists()
        sizes = _read(ready(source)) if local else _PUBLISHED.get(source.removeprefix("google-bert/"))
    except (RecipeError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # checks.py reports the problem
    if sizes and config.dropout is not None:
        sizes = replace(sizes, dropout=config.dropout > 0)
    return bert(sizes, sequence) if sizes else None


def published(name: str) -> dict[str, int]:
    """Sizes of a model that was published under this name, as its config.json names them; empty if it is unknown."""
    sizes = _PUBLISHED.get(name.removeprefix("google-bert/"))
    return {key: getattr(sizes, field) for field, key in _NAMES.items()} if sizes else {}


def _of_recipe(model: Part[Model], sequence: int) -> ModelFacts | None:
    if not model.spec.facts:
        return None
    facts: ModelFacts = load(model.spec.facts, f"model {model.spec.name!r}")(model.config, sequence)
    return replace(facts, logits_values=_LABELS)


def _read(folder: str | None) -> EncoderSizes | None:
    if folder is None:
        return None
    content: Mapping[str, Any] = read_json(Path(folder) / "config.json")
    if content.get("model_type") != "bert":
        return None
    return EncoderSizes(
        **{field: int(content[key]) for field, key in _NAMES.items()},
        positions=int(content.get("max_position_embeddings", 512)),
        segments=int(content.get("type_vocab_size", 2)),
        dropout=bool(content.get("hidden_dropout_prob", 0.1)),
    )


def bert(sizes: EncoderSizes, sequence: int) -> ModelFacts:
    """Counts for a BERT with a pooler and two labels, as transformers computes it; h is hidden, i intermediate.

    Parameters: per block, four weights ``h x h``, two ``h x i``, their biases and two norms; outside the blocks, the
    embeddings of words, positions and segments with a norm, the pooler and the head. FLOPs: matrix products, times
    three for backward. Saved activations per token and block: inputs of the linear layers (h for query, key and value
    together, h, h, i), of GELU (i) and of two norms (2h); query, key and value (3h); two dropout masks. Attention saves
    nothing that grows with the square of the sequence, provided that PyTorch's fused attention applies its dropout, as
    on CUDA.
    """
    h, i = sizes.hidden, sizes.intermediate
    block = 4 * (h * h + h) + 2 * h * i + i + h + 4 * h
    embeddings = (sizes.vocabulary + sizes.positions + sizes.segments) * h + 2 * h
    products = 2 * sequence * (4 * h * h + 2 * h * i) + 4 * sequence * sequence * h
    # Under autocast the inputs of norms are fp32, and query, key and value each copy their input; of the encoder's
    # output, which counts among the ends, only the first token is saved.
    masks, end_masks = sequence * 2 * sizes.dropout * h, sequence * sizes.dropout * h
    mixed, mixed_ends = sequence * 4 * h, end_masks
    inside = sequence * ((8 + 2 * sizes.dropout) * h + 2 * i)
    ends = sequence * (2 + sizes.dropout) * h
    return ModelFacts(
        parameters=sizes.layers * block + embeddings + h * h + h + _LABELS * (h + 1),
        flops_per_sample=3.0 * (sizes.layers * products + 2 * (h * h + _LABELS * h)),
        activation_values=sizes.layers * inside + ends,
        recomputed_activation_values=sizes.layers * sequence * h + inside + ends,
        logits_values=_LABELS,
        vocabulary=sizes.vocabulary,
        blocks=sizes.layers,
        block_parameters=block,
        stream_values=sequence * h,
        mixed_activation_values=sizes.layers * mixed + mixed_ends,
        mixed_recomputed_values=sizes.layers * sequence * h + mixed + mixed_ends,
        dropout_values=sizes.layers * masks + end_masks,
        dropout_recomputed_values=masks + end_masks,
        dropout_mixed_values=end_masks,
        dropout_mixed_recomputed_values=end_masks,
    )
