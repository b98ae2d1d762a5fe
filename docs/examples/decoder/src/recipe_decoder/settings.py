"""The settings of the model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core import too_small


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only transformer as Llama has it."""

    layers: int = 4
    """Transformer blocks, each attention and an MLP."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Heads of the queries; ``hidden`` divides by them."""
    kv_heads: int = 4
    """Heads of keys and values, each for ``heads / kv_heads`` heads of the queries."""
    mlp: int = 688
    """Width of the MLP."""
    positions: int = 256
    """Longest sequence."""
    vocabulary: int = 8192
    """Rows of the token embedding."""
    theta: float = 10000.0
    """Base of the rotary angles."""
    norm_eps: float = 1e-5
    """Added to the mean square in each norm."""
    tied: bool = False
    """Use the token embedding as the output matrix."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "mlp", "positions", "vocabulary")
        problems = too_small(self, 1, *sizes)
        if not problems and self.hidden % (2 * self.heads):
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads of even width")
        if not problems and self.heads % self.kv_heads:
            problems.append(f"heads: {self.heads} does not divide into {self.kv_heads} groups (kv_heads)")
        problems += [
            f"{name}: expected more than 0, got {getattr(self, name)}"
            for name in ("theta", "norm_eps", "init_std")
            if not getattr(self, name) > 0
        ]
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads
