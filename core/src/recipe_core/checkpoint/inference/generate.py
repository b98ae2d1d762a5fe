"""``recipe generate``: continuations of prompts by a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from recipe_core.checkpoint.inference.decoder import Decoder
from recipe_core.checkpoint.inference.sampling import draw
from recipe_core.checkpoint.inference.text import Text, require_text, vocabulary_of, window_of
from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.hooks.inference import Generation

TOKENS = 200
TEMPERATURE = 0.8
TOP_K = 40
SMALL = 20_000_000
"""Parameters below which the matrix products of one token are too short for several threads."""


def generate_text(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """A function that continues prompts; see :attr:`recipe_core.Model.generate`.

    Its answers have the new ``text``, the number of new ``tokens``, their ``ids`` and ``ended``: ``end`` (the model
    ended the document), ``stop`` or ``length``.

    Raises:
        ConfigError: no tokenizer is known, or the window is too long.
        CheckpointError: the weights cannot be read.
    """
    text, window = require_text(trained, options.tokenizer, options.accept), window_of(trained, options.window)
    module: Any = trained.module
    vocabulary = vocabulary_of(trained)
    small = sum(parameter.numel() for parameter in module.parameters()) < SMALL
    if small:
        by_columns(module)

    def answer(prompt: str) -> dict[str, Any]:
        ids = text.encode(prompt, vocabulary)
        with _one_thread() if small else nullcontext():
            new, ended = continue_prompt(Decoder(module, window), ids, text, options)
        added = _added(text, ids, new)
        if ended == "stop":
            added = added[: _stop(added, options.stop)]
        return {"shown": prompt + added, "text": added, "tokens": len(new), "ids": new, "ended": ended}

    return answer


def continue_prompt(decoder: Decoder, prompt: list[int], text: Text, options: Generation) -> tuple[list[int], str]:
    """New ids after ``prompt``, and the reason of the end: ``end``, ``stop`` or ``length``.

    Ids that the tokenizer does not have (padding of the vocabulary) are excluded.
    """
    count = TOKENS if options.tokens is None else options.tokens
    temperature = TEMPERATURE if options.temperature is None else options.temperature
    top_k = TOP_K if options.top_k is None and options.top_p is None else options.top_k
    generator = torch.Generator().manual_seed(options.seed or 0)
    end, vocabulary = text.end, text.size
    new: list[int] = []
    feed = prompt
    while len(new) < count:
        logits = decoder.feed(feed)[None, :vocabulary]
        token = int(draw(logits, temperature, top_k, generator, options.top_p))
        if token == end:
            return new, "end"
        new.append(token)
        feed = [token]
        if options.stop and _stop(_added(text, prompt, new), options.stop) is not None:
            return new, "stop"
    return new, "length"


def by_columns(module: nn.Module) -> None:
    """Store fp32 matrices on a CPU by columns: a product with one token's vector then takes half the time.

    Shapes and values stay. In 16 bits it would take ten times as long instead.
    """
    for parameter in module.parameters():
        if parameter.dim() == 2 and parameter.is_cpu and parameter.dtype == torch.float32:
            parameter.data = parameter.data.t().contiguous().t()


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _added(text: Text, prompt: list[int], new: list[int]) -> str:
    # Some tokenizers decode a leading space only inside a text.
    before, whole = text.decode(prompt), text.decode([*prompt, *new])
    return whole[len(before) :] if whole.startswith(before) else text.decode(new)


def _stop(added: str, stops: tuple[str, ...]) -> int | None:
    # index of the first stop text
    return min((index for stop in stops if (index := added.find(stop)) >= 0), default=None)
