"""``recipe eval --tasks``: a causal language model as a function of token ids."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recipe_core.checkpoint.inference.text import require_text, vocabulary_of, window_of
from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.errors import ConfigError
from recipe_core.hooks.inference import Evaluation, Scorer


def score_text(trained: TrainedModel, options: Evaluation) -> Scorer:
    """A causal language model as a :class:`recipe_core.Scorer`; see :attr:`recipe_core.Model.score`.

    Raises:
        ConfigError: an option does not apply to tasks, no tokenizer is known, or the window is too long.
        CheckpointError: the weights cannot be read.
    """
    options.require_only(trained.model.spec.name, "window", "limit", "batch", "tokenizer")
    text, window = require_text(trained, options.tokenizer, options.accept), window_of(trained, options.window)
    vocabulary, end = vocabulary_of(trained), text.end
    if end is None or end >= vocabulary:
        raise ConfigError(
            f"{text.where}: no token that ends a document is known, which stands before the first one of a text; name "
            "another tokenizer: --tokenizer PATH"
        )
    module: Any = trained.module

    def logits(ids: Tensor) -> Tensor:
        output: Tensor = module({"tokens": ids})
        return output

    return Scorer(encode=lambda string: text.encode(string, vocabulary), first=end, window=window, logits=logits)
