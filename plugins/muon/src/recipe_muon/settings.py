"""Settings of Muon, its memory, and the settings of a run that it does not support. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recipe_core import Layout, Model, ModelFacts, OptimizerFacts, Part, Train, too_small


@dataclass(frozen=True, kw_only=True)
class MuonSettings:
    """Settings of Muon; those of its AdamW are in the section ``train``."""

    momentum: float = 0.95
    """Fraction of the moving mean of the gradients that each step keeps."""
    nesterov: bool = True
    """Nesterov's momentum: orthogonalise the mean that the next step would have."""
    iterations: int = 5
    """Newton-Schulz iterations."""
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    """Coefficients of the quintic polynomial of each iteration."""
    min_norm: float = 1e-7
    """Smallest norm by which an update is divided."""
    compute: Literal["bf16", "fp32"] = "bf16"
    """Precision of the iterations. ``bf16`` is fast on accelerators; ``fp32`` makes layouts agree to rounding."""
    adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Scale of an update by the shape of its matrix. ``match_rms_adamw``: as large as AdamW's, so that both take one
    learning rate (0.2 sqrt(larger side)). ``original``: sqrt(rows / columns), at least 1."""
    adamw_lr_ratio: float = 1.0
    """Learning rate of AdamW, as a multiple of Muon's (``train.lr``)."""
    matrices: tuple[str, ...] = ()
    """Patterns of the names of the parameters that Muon trains, where these are not the matrices of the model's blocks;
    a star stands for any text (``encoder.*.weight``)."""

    def __post_init__(self) -> None:
        problems = [*too_small(self, 1, "iterations"), *too_small(self, 0, "adamw_lr_ratio")]
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum: expected a number from 0 to below 1, got {self.momentum}")
        if not self.min_norm > 0:
            problems.append(f"min_norm: expected more than 0, got {self.min_norm}")
        if problems:
            raise ValueError("\n".join(problems))


def facts(config: MuonSettings, train: Train, model: ModelFacts) -> OptimizerFacts:
    """One moment for matrices in the blocks, two for others; all parameters of a block count as matrices."""
    width = 2 if train.precision == "bf16" else 4
    in_blocks = model.blocks * model.block_parameters / model.parameters
    return OptimizerFacts(bytes_per_parameter=width * (2 - in_blocks))


def problems(
    config: MuonSettings, train: Train, layout: Part[Layout] | None, model: Part[Model] | None
) -> Iterator[str]:
    """Settings that Muon does not support."""
    if layout is not None and getattr(layout.config, "cpu_offload", False):
        yield (
            "layout.cpu_offload: optimizer=muon gathers whole matrices on the device, and these are in the host's "
            "memory; set it to false, or take another optimizer"
        )
    if model is not None and not model.spec.blocks and not config.matrices:
        yield (
            f"optimizer.matrices: model {model.spec.name} names no blocks whose matrices muon could train; name the "
            "parameters: optimizer.matrices=PATTERN,..."
        )
