"""``recipe generate``: what a GPT adds to prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recipe_core import Generation, TrainedModel
from recipe_megatron_gpt.inference.decoder import Decoder
from recipe_megatron_gpt.inference.sampling import draw
from recipe_megatron_gpt.inference.tokens import Text, require_text, window_of

TOKENS = 200
TEMPERATURE = 0.8
TOP_K = 40
SMALL = 20_000_000
"""Parameters of a model below which one thread generates."""


def generate(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """A function that continues prompts; see :attr:`recipe_core.Model.generate`.

    Its answers have ``text`` (what was added), ``tokens`` (how many), their ``ids`` and ``ended``: ``end`` (the model
    ended the document), ``stop`` or ``length``.

    Raises:
        ConfigError: no tokenizer is known, or the window is too long.
        CheckpointError: the weights cannot be read.
    """
    text, window = require_text(trained, options.tokenizer, options.accept), window_of(trained, options.window)
    module: Any = trained.module

    def answer(prompt: str) -> dict[str, Any]:
        ids = text.encode(prompt, trained.model.config.vocabulary)
        with _few_threads(module):
            new, ended = continued(Decoder(module, window), ids, text, options)
        added = _added(text, ids, new)
        if ended == "stop":
            added = added[: _stop(added, options.stop)]
        return {"shown": prompt + added, "text": added, "tokens": len(new), "ids": new, "ended": ended}

    return answer


def continued(decoder: Decoder, prompt: list[int], text: Text, options: Generation) -> tuple[list[int], str]:
    """The ids that the model adds to ``prompt``, and why it ended.

    Ids that the tokenizer does not have (padding of the vocabulary) are never taken.
    """
    count = TOKENS if options.tokens is None else options.tokens
    temperature = TEMPERATURE if options.temperature is None else options.temperature
    top_k = TOP_K if options.top_k is None and options.top_p is None else options.top_k
    generator = torch.Generator().manual_seed(options.seed or 0)
    end, known = text.end, text.size
    new: list[int] = []
    feed = prompt
    while len(new) < count:
        logits = decoder.feed(feed)[None, :known]
        token = int(draw(logits, temperature, top_k, generator, options.top_p))
        if token == end:
            return new, "end"
        new.append(token)
        feed = [token]
        if options.stop and _stop(_added(text, prompt, new), options.stop) is not None:
            return new, "stop"
    return new, "length"


@contextmanager
def _few_threads(module: torch.nn.Module) -> Iterator[None]:
    """One thread for a small model: the products of one token are so short that threads cost more than they give."""
    threads = torch.get_num_threads()
    if sum(parameter.numel() for parameter in module.parameters()) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _added(text: Text, prompt: list[int], new: list[int]) -> str:
    """The text of ``new``, with the space before it that some tokenizers only write inside of a text."""
    before, whole = text.decode(prompt), text.decode([*prompt, *new])
    return whole[len(before) :] if whole.startswith(before) else text.decode(new)


def _stop(added: str, stops: tuple[str, ...]) -> int | None:
    """The place of the first of ``stops``; None where there is none."""
    return min((place for one in stops if (place := added.find(one)) >= 0), default=None)
