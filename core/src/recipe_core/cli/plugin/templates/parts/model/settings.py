"""Settings of the model and the data: `recipe run new_plugin model.layers=6`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core import too_small


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only transformer."""

    layers: int = 4
    """Blocks, each attention and an MLP."""
    hidden: int = 128
    """Width of the residual stream; the MLP is four times as wide."""
    heads: int = 4
    """Attention heads; ``hidden`` divides by them."""
    positions: int = 128
    """Longest sequence."""
    vocabulary: int = 64
    """Token ids are below this."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        problems = too_small(self, 1, "layers", "hidden", "heads", "positions", "vocabulary")
        if self.heads > 0 and self.hidden % self.heads:
            problems.append(f"hidden: {self.hidden} does not divide into {self.heads} heads")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Sequences that go up by a constant step."""

    sequence: int = 64
    """Tokens of a sample."""
    vocabulary: int = 64
    """Number of values; counting wraps around."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 2, "sequence", "vocabulary"):
            raise ValueError("\n".join(problems))
