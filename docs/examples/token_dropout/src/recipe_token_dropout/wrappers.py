"""The code of the wrappers."""

from __future__ import annotations

from torch import Tensor

from recipe_core import Batch, ConfigError, SampleGenerators, Samples, WrapperRun
from recipe_token_dropout.plugin import NoRepeats, TokenDropout


def no_repeats(config: NoRepeats, samples: Samples, run: WrapperRun) -> Samples:
    """Return the samples in which no token has too large a share."""

    def keep(batch: Batch) -> Tensor:
        tokens = batch[_name(config.tensor, batch)]
        most_frequent = tokens.mode(dim=-1, keepdim=True).values
        return (tokens == most_frequent).float().mean(dim=-1) <= config.most

    return run.filtered(samples, keep)


def token_dropout(config: TokenDropout, samples: Samples, run: WrapperRun) -> Samples:
    """Return the samples with some of their tokens replaced."""

    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        name = _name(config.tensor, batch)
        replaced = generators.rand(*batch[name].shape[1:]) < config.share
        return {**batch, name: batch[name].masked_fill(replaced, config.token)}

    return run.mapped(samples, change)


def _name(tensor: str, batch: Batch) -> str:
    name = tensor or next(iter(batch))
    if name not in batch:
        raise ConfigError(f"wrapper: the dataset has no tensor {name!r}; set tensor to one of {', '.join(batch)}")
    return name
