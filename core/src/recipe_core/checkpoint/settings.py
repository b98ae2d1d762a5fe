"""Settings of the core's checkpoint formats. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HfSettings:
    """A folder for Hugging Face."""

    shard_gb: float = 5.0
    """Gigabytes (10^9 bytes) of a file of tensors at most; more are divided into several files with an index."""

    def __post_init__(self) -> None:
        if not self.shard_gb > 0:
            raise ValueError(f"shard_gb: expected more than 0, got {self.shard_gb}")
