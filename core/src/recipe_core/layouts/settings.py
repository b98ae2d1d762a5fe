"""Settings of the core's layouts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core.hooks.specs import Division, LayoutSettings
from recipe_core.hooks.train import too_small

Data = Literal["ddp", "zero1", "fsdp"]


@dataclass(frozen=True)
class SingleProcess(LayoutSettings):
    """One process."""

    def axes(self, world_size: int) -> dict[str, int]:
        """A mesh of one rank.

        Raises:
            ValueError: there are more.
        """
        if world_size > 1:
            raise ValueError(f"single runs in one process, and this run has {world_size}; choose layout=ddp")
        return {"dp": 1}


@dataclass(frozen=True)
class Ddp(LayoutSettings):
    """Every rank holds the whole model and its part of each global batch."""


class Divided(LayoutSettings):
    """Base of the layouts that shard the model; each subclass declares which of these attributes are settings."""

    cpu_offload: bool = False
    reduce_each_micro_batch: bool = True

    def axes(self, world_size: int) -> dict[str, int]:
        """The mesh, outermost axis first: ``pp`` (stages), ``dp`` (samples), ``tp`` (layers of neighbouring ranks).

        Raises:
            ValueError: the degrees do not divide the number of processes.
        """
        degrees = {name: degree for name, degree in (("pp", self.pp), ("tp", self.tp)) if degree > 1}
        each = self.pp * self.tp
        if world_size % each:
            text = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
            raise ValueError(
                f"{text} takes a multiple of {each} processes, and this run has {world_size}; start as many "
                "(--processes), or choose other degrees"
            )
        pipeline = {"pp": self.pp} if self.pp > 1 else {}
        return {**pipeline, "dp": world_size // each, **({"tp": self.tp} if self.tp > 1 else {})}

    def division(self, world_size: int) -> Division:
        """The share of the whole model that one process holds."""
        ranks = self.axes(world_size)["dp"]
        return Division(
            pipeline=self.pp,
            tensor=self.tp,
            sequence=self.sequence_parallel,
            weights=ranks if self.data == "fsdp" else 1,
            gradients=ranks if self.data == "fsdp" and self.reduce_each_micro_batch else 1,
            optimizer=ranks if self.data != "ddp" else 1,
            on_host=self.cpu_offload and self.data == "fsdp",
        )


def _require_degrees(layout: Divided) -> None:
    if problems := too_small(layout, 1, "pp", "tp"):
        raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class Zero1(Divided):
    """Every rank computes with all weights and keeps a shard of the optimizer states."""

    data = "zero1"


@dataclass(frozen=True, kw_only=True)
class Fsdp(Divided):
    """Every rank keeps a shard of weights, gradients and optimizer states; weights are gathered block by block."""

    data = "fsdp"
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer states in the host's memory; each block's weights are copied to the device
    for its computation, and the optimizer steps on the host."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter gradients after each micro batch and keep a shard of them; ``false``: once per step, which
    communicates less and keeps whole gradients until then."""


@dataclass(frozen=True, kw_only=True)
class Tp(Divided):
    """Each layer is sharded over a tensor-parallel group of neighbouring ranks, as the model's tensor plan says; the
    groups are data parallel."""

    tp: int = 2
    """Ranks in a tensor-parallel group."""
    sequence_parallel: bool = False
    """Split the activations between the sharded matrices (norms, dropout, residuals) along the sequence: less memory
    for the same communication. The length of the samples must divide by ``tp``."""
    data: Data = "ddp"
    """Across the groups: copies (``ddp``), optimizer states sharded (``zero1``) or everything sharded (``fsdp``)."""
    cpu_offload: bool = False
    """See the layout fsdp; with ``data=fsdp`` only."""
    reduce_each_micro_batch: bool = True
    """See the layout fsdp; with ``data=fsdp`` only."""

    def __post_init__(self) -> None:
        _require_degrees(self)


@dataclass(frozen=True, kw_only=True)
class Pp(Divided):
    """Each stage holds consecutive blocks of the model, and micro batches pass through the stages (1F1B); a stage may
    be a tensor-parallel group."""

    pp: int = 2
    """Pipeline stages. A step needs at least as many micro batches on each data-parallel rank."""
    tp: int = 1
    """Ranks in the tensor-parallel group of a stage."""
    sequence_parallel: bool = False
    """See the layout tp."""
    data: Data = "ddp"
    """See the layout tp."""

    def __post_init__(self) -> None:
        _require_degrees(self)
