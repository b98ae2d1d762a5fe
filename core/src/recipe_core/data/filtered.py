"""The data wrapper ``filtered``: its settings. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.hooks.train import too_small


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """Samples by how many of a tensor's values count: those that differ from ``padding``."""

    tensor: str = ""
    """The tensor, such as ``tokens``; empty: the dataset's first one."""
    padding: float = 0.0
    """The value that does not count."""
    different: bool = False
    """Count each value once, however often it occurs: a sample of one repeated token has 1."""
    least: int = 1
    """Values that a sample must have."""
    most: int | None = None
    """Values that a sample may have; null: any number."""

    def __post_init__(self) -> None:
        problems = too_small(self, 0, "least")
        if self.most is not None and self.most < self.least:
            problems.append(f"most: expected at least {self.least}, the value of least, got {self.most}")
        if problems:
            raise ValueError("\n".join(problems))
