"""Facts about the model before a run. No torch here, and nothing is fetched."""

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

_LABELS = 2  # more change nothing that counts


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A BERT's."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int = 512
    segments: int = 2
    dropout: bool = True


_BASE = Sizes(layers=12, hidden=768, heads=12, intermediate=3072, vocabulary=30522)
_LARGE = Sizes(layers=24, hidden=1024, heads=16, intermediate=4096, vocabulary=30522)
_PUBLISHED = {
    "bert-base-uncased": _BASE,
    "bert-base-cased": replace(_BASE, vocabulary=28996),
    "bert-large-uncased": _LARGE,
    "bert-large-cased": replace(_LARGE, vocabulary=28996),
}
"""On every hub under these names (Devlin and others, 2019)."""
_NAMES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "intermediate": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip


def facts(config: SequenceClassifier, sequence: int) -> ModelFacts | None:
    """Counts for one sample of ``sequence`` tokens; None where the model is not a BERT, or its sizes are not here.

    Of a recipe that is to be run first, they are those of its own model, whose head is a little larger.
    """
    source = config.source
    if source is None:  # the vocabulary is trained, and how many entries it gets depends on the text
        return None
    try:
        if source.startswith(RECIPE):
            return _of_recipe(job_of(source.removeprefix(RECIPE)).model, sequence)
        here = Path(source).exists()
        sizes = _read(ready(source)) if here else _PUBLISHED.get(source.removeprefix("google-bert/"))
    except (RecipeError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # checks.py tells what is wrong
    if sizes and config.dropout is not None:
        sizes = replace(sizes, dropout=config.dropout > 0)
    return bert(sizes, sequence) if sizes else None


def _of_recipe(model: Part[Model], sequence: int) -> ModelFacts | None:
    if not model.spec.facts:
        return None
    facts: ModelFacts = load(model.spec.facts, f"model {model.spec.name!r}")(model.config, sequence)
    return replace(facts, logits_values=_LABELS)


def _read(place: str | None) -> Sizes | None:
    """The sizes in the config.json of a folder, if it is a BERT's."""
    if place is None:
        return None
    content: Mapping[str, Any] = read_json(Path(place) / "config.json")
    if content.get("model_type") != "bert":
        return None
    return Sizes(
        **{ours: int(content[theirs]) for ours, theirs in _NAMES.items()},
        positions=int(content.get("max_position_embeddings", 512)),
        segments=int(content.get("type_vocab_size", 2)),
        dropout=bool(content.get("hidden_dropout_prob", 0.1)),
    )


def bert(sizes: Sizes, sequence: int) -> ModelFacts:
    """A BERT with a pooler and two labels, as transformers computes it.

    Parameters: of a block, four weights ``h x h``, two ``h x i``, their biases and two norms; beside the blocks, the
    embeddings of words, positions and segments with a norm, the pooler and the head. Operations: matrix products, times
    three for backward. Values that are kept per token and block: what each linear layer takes (h for query, key and
    value together, h, h, i), what GELU takes (i), two norms (2h), query, key and value (3h), and two masks of dropout;
    with dropout in the attention, transformers keeps nothing that grows with the square of the sequence where
    PyTorch's fused attention drops out by itself, as on CUDA.
    """
    h, i = sizes.hidden, sizes.intermediate
    block = 4 * (h * h + h) + 2 * h * i + i + h + 4 * h
    embeddings = (sizes.vocabulary + sizes.positions + sizes.segments) * h + 2 * h
    products = 2 * sequence * (4 * h * h + 2 * h * i) + 4 * sequence * sequence * h
    # Under autocast the inputs of norms are fp32, and query, key and value take copies of their own; of the encoder's
    # output, which counts among the ends, only the first token is kept.
    mixed, mixed_ends = sequence * 4 * h, sequence * sizes.dropout * h
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
    )
