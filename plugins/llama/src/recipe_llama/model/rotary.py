"""Rotary positions (Su and others, 2021), and scalings of their frequencies for longer sequences."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recipe_core import document_positions
from recipe_llama.settings import Llama


def rotation(config: Llama, positions: Tensor, length: int | Tensor) -> Tensor:
    """Cosines and sines of the angles at ``positions`` of a sequence of ``length``.

    Args:
        positions: int64 ``[..., tokens]``.
        length: of all, or int64 ``[..., tokens]``, of the sequence of each.

    Returns:
        fp32 ``[2, ..., tokens, head_dim / 2]``.
    """
    angles = positions.float().unsqueeze(-1) * frequencies(config, length, positions.device)
    return torch.stack([angles.cos(), angles.sin()]) * attention_factor(config)


def document_rotation(config: Llama, ids: Tensor) -> Tensor:
    """The :func:`rotation` of each token in its document, for all heads: fp32 ``[2, batch, 1, length, head_dim / 2]``.

    ``ids``: ``document_ids``, int64 ``[batch, length]``. Nothing here synchronises with a device.
    """
    before, after = document_positions(ids), document_positions(ids.flip(1)).flip(1)
    return rotation(config, before, before + 1 + after).unsqueeze(2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs ``(i, i + head_dim / 2)`` of ``x``, ``[batch, heads, length, head_dim]``, by their angles."""
    cos, sin = rotation.to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def frequencies(config: Llama, length: int | Tensor, device: torch.device) -> Tensor:
    """Radians per position, fp32 ``[head_dim / 2]``; only ``dynamic`` depends on ``length``, which may be a tensor:
    ``[*length.shape, head_dim / 2]``."""
    width, theta = config.head_width, _stretched(config, length) if config.rope_type == "dynamic" else config.rope_theta
    plain = 1 / theta ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    if config.rope_type == "linear":
        return plain / config.rope_factor
    if config.rope_type == "llama3":
        return _mixed(plain, _llama3_share(plain, config), config.rope_factor)
    if config.rope_type == "yarn":
        return _mixed(plain, _yarn_share(plain, config), config.rope_factor)
    return plain


def attention_factor(config: Llama) -> float:
    """Factor of queries and keys: YaRN's temperature of the attention (Peng and others, 2023, equation 22)."""
    if config.rope_type != "yarn":
        return 1.0
    given = config.rope_attention_factor
    return 0.1 * math.log(config.rope_factor) + 1 if given is None else given


def _stretched(config: Llama, length: int | Tensor) -> float | Tensor:
    """The base for a sequence of ``length`` tokens ("dynamic NTK"): the lowest frequency is scaled in full, the highest
    not at all. Up to ``positions`` tokens it stays."""
    factor, width = config.rope_factor, config.head_width
    if isinstance(length, Tensor):
        length = length.clamp(min=config.positions).unsqueeze(-1)
    else:
        length = max(length, config.positions)
    scale = factor * length / config.positions - (factor - 1)
    stretched: float | Tensor = config.rope_theta * scale ** (width / (width - 2))
    return stretched


def _mixed(plain: Tensor, kept: Tensor, factor: float) -> Tensor:
    """Frequencies of which the shares ``kept`` stay, and the rest is divided by ``factor``."""
    return plain * kept + plain / factor * (1 - kept)


def _llama3_share(plain: Tensor, config: Llama) -> Tensor:
    """Llama 3.1: linear in the turns that a frequency makes in the original length."""
    turns = config.original_positions * plain / (2 * math.pi)
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _yarn_share(plain: Tensor, config: Llama) -> Tensor:
    """YaRN (Peng and others, 2023): linear in the index of a frequency, between the whole indices of those that make
    ``rope_beta_fast`` and ``rope_beta_slow`` turns in the original length."""

    def index(turns: float) -> float:
        ratio = math.log(config.original_positions / (turns * 2 * math.pi)) / math.log(config.rope_theta)
        return config.head_width / 2 * ratio

    first = max(math.floor(index(config.rope_beta_fast)), 0)
    last = min(math.ceil(index(config.rope_beta_slow)), config.head_width - 1)
    places = torch.arange(len(plain), device=plain.device, dtype=torch.float32)
    return 1 - ((places - first) / max(last - first, 0.001)).clamp(0, 1)
