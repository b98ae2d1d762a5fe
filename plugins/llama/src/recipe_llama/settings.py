"""Settings of the model. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from recipe_core import too_small

Rope = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Bias = Literal["none", "qkv", "all"]


@dataclass(frozen=True, kw_only=True)
class Llama:
    """A decoder-only transformer as Llama 2 and 3, Qwen 2.5 and 3, Mistral and SmolLM have it."""

    layers: int = 4
    """Number of transformer blocks, each with attention and an MLP."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 4
    """Attention heads of the queries."""
    kv_heads: int = 2
    """Heads of keys and values, each shared by ``heads / kv_heads`` heads of the queries."""
    head_dim: int | None = None
    """Width of a head; null: ``hidden / heads``."""
    mlp: int = 688
    """Width of the MLP, between its matrices."""
    positions: int = 256
    """Longest sequence that the rotary positions are made for (``max_position_embeddings``); ``linear``, ``dynamic``
    and ``yarn`` extend it by ``rope_factor``."""
    vocabulary: int = 8192
    """Rows of the token embedding; pad it to a multiple of 128 for speed."""
    norm_eps: float = 1e-5
    """Added to the mean square in each norm."""
    qk_norm: bool = False
    """Normalise each head of queries and keys, as in Qwen 3."""
    attention_bias: Bias = "none"
    """Biases of the attention: ``qkv``, as in Qwen 2.5, or ``all``, of its output too."""
    tied: bool = False
    """Use the token embedding as the output matrix."""
    window: int | None = None
    """Last tokens that a token attends to, itself included; null: all."""
    window_from: int = 0
    """First block, from 0, whose attention has the window."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_type: Rope = "default"
    """Scaling of the rotary frequencies for sequences longer than in training: ``linear`` (all alike), ``dynamic`` (the
    base, by the length of the sequence or of each document), ``llama3`` (low frequencies, Llama 3.1), ``yarn`` (low
    ones, and the attention's temperature)."""
    rope_factor: float = 1.0
    """Factor by which the scaling extends the sequence."""
    rope_original_positions: int | None = None
    """Longest sequence before ``llama3`` or ``yarn`` extended it; null: ``positions``."""
    rope_low_freq_factor: float = 1.0
    """Of ``llama3``: wavelengths above ``rope_original_positions`` divided by it are scaled in full."""
    rope_high_freq_factor: float = 4.0
    """Of ``llama3``: wavelengths below ``rope_original_positions`` divided by it stay."""
    rope_beta_fast: float = 32.0
    """Of ``yarn``: frequencies with more turns than this in ``rope_original_positions`` stay."""
    rope_beta_slow: float = 1.0
    """Of ``yarn``: frequencies with fewer turns are scaled in full."""
    rope_attention_factor: float | None = None
    """Of ``yarn``: multiplies sines and cosines; null: ``0.1 ln(rope_factor) + 1``."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "mlp", "positions", "vocabulary")
        problems = too_small(self, 1, *sizes) + too_small(self, 0, "window_from")
        problems += [
            f"{name}: expected at least 1, got {value}"
            for name in ("head_dim", "window", "rope_original_positions")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        problems += [
            f"{name}: expected more than 0, got {value}"
            for name in ("norm_eps", "rope_low_freq_factor", "rope_beta_slow", "rope_attention_factor", "init_std")
            if (value := getattr(self, name)) is not None and not value > 0
        ]
        for name, least in (("rope_theta", 1.0), ("rope_high_freq_factor", self.rope_low_freq_factor)):
            if not getattr(self, name) > least:
                problems.append(f"{name}: expected more than {least:g}, got {getattr(self, name)}")
        if not self.rope_factor >= 1:
            problems.append(f"rope_factor: expected at least 1, got {self.rope_factor}")
        if not self.rope_beta_fast > self.rope_beta_slow:
            problems.append(f"rope_beta_fast: expected more than rope_beta_slow, got {self.rope_beta_fast}")
        if problems := problems or self._misfits():
            raise ValueError("\n".join(problems))

    def _misfits(self) -> list[str]:
        problems = []
        if self.head_dim is None and self.hidden % self.heads:
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads; set head_dim")
        elif self.head_width % 2:
            problems.append(f"head_dim: expected an even width, since positions turn pairs, got {self.head_width}")
        elif self.head_width == 2 and self.rope_type == "dynamic":
            problems.append("rope_type: dynamic needs heads wider than 2, got head_dim 2")
        if self.heads % self.kv_heads:
            problems.append(f"heads: {self.heads} does not divide into {self.kv_heads} groups (kv_heads)")
        if self.rope_type == "default" and self.rope_factor != 1:
            problems.append(f"rope_factor: {self.rope_factor:g} has no effect with rope_type=default; name a scaling")
        return problems

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def original_positions(self) -> int:
        """Longest sequence before the scaling."""
        return self.rope_original_positions or self.positions

    @property
    def longest(self) -> int:
        """Longest sequence that the model takes."""
        return max(self.positions, int(self.original_positions * self.rope_factor))

    def resolved(self) -> Mapping[str, Any]:
        """The settings with derived values, as a config.json has them."""
        windowed = self.window is not None and self.window_from < self.layers
        return {
            **asdict(self),
            "head_dim": self.head_width,
            "rope_original_positions": self.original_positions,
            "window": self.window if windowed else None,
            "window_from": self.window_from if windowed else 0,
        }

    def window_of(self, block: int) -> int | None:
        """The window of the attention in ``block``; None: it attends to all tokens."""
        return self.window if block >= self.window_from else None
