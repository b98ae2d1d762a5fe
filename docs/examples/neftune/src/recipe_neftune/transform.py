"""NEFTune (Jain et al. 2023, section 2)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from recipe_core import ConfigError, Structure, did_you_mean
from recipe_neftune.plugin import Noise


def add_noise(config: Noise, module: nn.Module, structure: Structure) -> nn.Module:
    """Have an embedding of the model add noise to its output, in place; its parameters stay as they are."""
    embeddings = {name: part for name, part in module.named_modules() if isinstance(part, nn.Embedding)}
    if not embeddings:
        raise ConfigError("train.transforms: the model has no embedding, to which neftune could add noise")
    name = config.module or next(iter(embeddings))
    if name not in embeddings:
        raise ConfigError(
            f"transform.neftune.module: the model has no embedding {name!r}{did_you_mean(name, embeddings)} (there "
            f"are: {', '.join(embeddings)})"
        )
    embeddings[name].register_forward_hook(partial(_noisy, config.alpha))
    return module


def _noisy(alpha: float, module: nn.Module, inputs: tuple[Tensor], embedded: Tensor) -> Tensor | None:
    """Add noise to ``embedded`` [batch, sequence, width] of the ids [batch, sequence]; None: it stays as it is."""
    if not module.training:
        return None
    # The length is that of the ids: under sequence parallelism, this rank has a part of the embedded sequence.
    bound = alpha / math.sqrt(inputs[0].shape[-1] * embedded.shape[-1])
    # From the default generator, which the loop seeds for each micro batch: a resumed run draws the same noise.
    return embedded + torch.empty_like(embedded).uniform_(-bound, bound)
