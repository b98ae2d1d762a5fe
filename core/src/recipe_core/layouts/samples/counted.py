"""The data wrapper ``filtered``: a filter by the number of values of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from recipe_core.data.filtered import Filtered
from recipe_core.errors import ConfigError
from recipe_core.layouts.parallel import Batch, Samples
from recipe_core.layouts.samples.wrapping import WrapperRun


def build(config: Filtered, samples: Samples, run: WrapperRun) -> Samples:
    """Return the samples with enough values."""
    most = float("inf") if config.most is None else config.most

    def keep(batch: Batch) -> Tensor:
        counts = counted(_tensor(config, batch).flatten(1), config.padding, different=config.different)
        return (counts >= config.least) & (counts <= most)

    return run.filtered(samples, keep)


def counted(values: Tensor, padding: float, *, different: bool) -> Tensor:
    """Return how many of ``values`` [count, n] are not ``padding``; ``different``: each value of a sample once."""
    counts = values != padding
    if different:
        values = values.sort(dim=-1).values
        first = torch.ones_like(values[:, :1], dtype=torch.bool)
        counts = (values != padding) & torch.cat([first, values[:, 1:] != values[:, :-1]], dim=-1)
    return counts.sum(-1)


def _tensor(config: Filtered, batch: Batch) -> Tensor:
    name = config.tensor or next(iter(batch))
    if name not in batch:
        raise ConfigError(
            f"wrapper.filtered.tensor: expected one of the dataset's tensors ({', '.join(batch)}), got {name!r}"
        )
    return batch[name].unsqueeze(-1) if batch[name].dim() == 1 else batch[name]
