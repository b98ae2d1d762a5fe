"""A text sample for the summary at the end of a run, under any layout."""

from __future__ import annotations

from typing import Any

import torch

from recipe_core import DataError, Job, Run
from recipe_core.checkpoint.inference.sampling import sample
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.sources import parse, split_ranges
from recipe_megatron_gpt.model.gpt import GptModel
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer import text

PROMPT = "This function returns"
"""Prompt of the embedded text."""
PROMPT_TOKENS = 8
"""Length of the prompt that is taken from other texts."""
TOKENS = 60


def closing(module: GptModel, job: Job, run: Run) -> dict[str, Any]:
    """The model's continuation of a prompt, as ``{"sample": text}``; empty without a tokenizer of the data.

    The prompt is the beginning of the validation text, or :data:`PROMPT` for the embedded text. All ranks get the same
    result. If the tokenizer cannot be read, the result is ``{"sample_error": message}``, so that a finished run does
    not fail.
    """
    data = job.data.config
    if not isinstance(data, GptIndexed):
        return {}
    try:
        prompt = _prompt(data, run)
        if not prompt or max(prompt) >= module.config.vocabulary:  # without evaluation, validation text is not checked
            return {}
        generator = torch.Generator().manual_seed(job.train.seed)
        start = torch.tensor([prompt], device=run.device)
        window = module.config.positions
        tokens = sample(module, start, TOKENS, window, temperature=0.8, top_k=40, generator=generator)
        return {"sample": text.decode(data, tokens[0].tolist(), run.cache)}
    except DataError as error:
        return {"sample_error": str(error)}


def _prompt(data: GptIndexed, run: Run) -> list[int]:
    if not data.files:
        return text.encode(data, PROMPT, run.cache) or []
    if text.load(data, run.cache) is None:
        return []
    file = IndexedFile.open(parse(data.files)[0].prefix, run.cache / "gpt_indexed")
    valid = split_ranges(file.sizes.size, data.split)["valid"]
    return [int(token) for token in file.sequence(valid.start if valid else 0)[:PROMPT_TOKENS]]
