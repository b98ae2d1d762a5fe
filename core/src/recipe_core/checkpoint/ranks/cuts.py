"""Partitions of a model's tensors under tensor parallelism, from its tensor plan, to divide and join checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn

from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import Model, Part, load
from recipe_core.layouts.tensor_parallel.plan import BY_ROLE
from recipe_core.layouts.ties import ties


@dataclass(frozen=True)
class Partition:
    """The division of one tensor over the tensor-parallel ranks."""

    dim: int
    vocabulary: bool
    """Along the vocabulary, which some formats pad."""


class Shape:
    """The tensors of a model, its pipeline stages and partitions; built on the meta device, without values.

    Raises:
        CheckpointError: the model has no tensor plan.
    """

    def __init__(self, part: Part[Model]) -> None:
        spec = part.spec
        structure = spec.structure(part.config)
        if not structure.plan:
            raise CheckpointError(
                f"model {spec.name!r} has no tensor plan, so that it is not known how its tensors are divided; choose "
                "a format that holds whole tensors (dcp, single)"
            )
        with torch.device("meta"):
            module, _ = part.build(part.config)
        self.ties = ties(module)
        """Further names of tied parameters, with the first one."""
        every = module.state_dict()
        self.tensors: dict[str, Tensor] = {n: t for n, t in every.items() if n not in self.ties}
        """Names and meta tensors, tied ones once, as a state has them."""
        self._order = list(every)
        self.partitions = dict(_partitions(module, structure.plan))
        """By name, for tensors that are divided; the others are whole on every rank."""
        self._divisible = load(spec.facts, f"model {spec.name!r}")(part.config, 1).divisible if spec.facts else {}
        self._block = (
            re.compile(re.escape(structure.blocks).replace(r"\*", r"(\d+)") + r"\.") if structure.blocks else None
        )

    @cached_property
    def blocks(self) -> int:
        """Number of blocks; 0 if they are not known."""
        return len({number for name in self.tensors if (number := self._number(name)) is not None})

    def stage(self, name: str, stages: int) -> int:
        """The pipeline stage, of ``stages``, that has the tensor ``name``.

        Each has as many blocks; what is before them is in the first stage, what comes after in the last.
        """
        number = self._number(name)
        if number is not None:
            return number * stages // self.blocks
        first_block = next((place for place, other in enumerate(self._order) if self._number(other) is not None), 0)
        return 0 if self._order.index(name) < first_block else stages - 1

    def require_divisible(self, tp: int, pp: int, *, pads: bool) -> None:
        """Refuse degrees that do not divide the model; ``pads``: the vocabulary is padded.

        Raises:
            CheckpointError: one does not.
        """
        if pp > 1 and (not self.blocks or self.blocks % pp):
            raise CheckpointError(f"pp={pp} does not divide the model's {self.blocks} blocks; choose another degree")
        for setting, count in self._divisible.items():
            if count % tp:
                raise CheckpointError(f"tp={tp} does not divide {setting}, which is {count:,}; choose another degree")
        for name, partition in self.partitions.items():
            size = self.tensors[name].shape[partition.dim]
            if size % tp and not (partition.vocabulary and pads):
                whole = list(self.tensors[name].shape)
                raise CheckpointError(
                    f"tp={tp} does not divide dimension {partition.dim} of {name}, which is {size:,} (shape {whole}); "
                    "choose another degree"
                )

    def _number(self, name: str) -> int | None:
        """The number of the block that a tensor is in."""
        found = self._block.match(name) if self._block else None
        return int(found[1]) if found else None


def _partitions(module: nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[str, Partition]]:
    """Partitions by the first name of each parameter; a tied one is divided as any of its names says."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(parameter, name)
        owner, _, kind = name.rpartition(".")
        role = next((role for pattern, role in plan.items() if _same(owner, pattern)), "")
        dim = BY_ROLE.get(role, {}).get(kind)
        if dim is not None:
            yield first[parameter], Partition(dim, role.startswith("vocabulary"))


def _same(name: str, pattern: str) -> bool:
    """True if a pattern, whose stars stand for one level each, matches a submodule's name."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
