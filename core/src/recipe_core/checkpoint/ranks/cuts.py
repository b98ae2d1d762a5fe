"""Partition of a model's tensors under tensor parallelism, from its tensor plan."""

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
    """How one tensor is sharded across the tensor-parallel ranks."""

    dim: int
    vocabulary: bool
    """True if it is sharded along the vocabulary, which some formats pad."""


class Shape:
    """Tensors, pipeline stages and partitions of a model, built on the meta device, without values.

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
        """Second names of tied parameters: ``{second: first}``."""
        state = module.state_dict()
        self.tensors: dict[str, Tensor] = {n: t for n, t in state.items() if n not in self.ties}
        """Meta tensors by name, as in a state; tied ones appear once."""
        self._order = list(state)
        self.partitions = dict(_partitions(module, structure.plan))
        """Partitions by tensor name; tensors without one are whole on every rank."""
        self._divisible = load(spec.facts, f"model {spec.name!r}")(part.config, 1).divisible if spec.facts else {}
        self._after = dict(structure.stages.between) if structure.stages is not None else {}
        self._block = (
            re.compile(re.escape(structure.blocks).replace(r"\*", r"(\d+)") + r"\.") if structure.blocks else None
        )

    @cached_property
    def blocks(self) -> int:
        """Number of blocks; 0 if unknown."""
        return len({number for name in self.tensors if (number := self._block_number(name)) is not None})

    def stage(self, name: str, stages: int) -> int:
        """Return the pipeline stage, of ``stages``, that holds the tensor ``name``.

        Blocks are spread evenly; tensors before them are in the first stage, tensors after them in the last, and those
        between two blocks where the model's stages say.
        """
        block = next((block for module, block in self._after.items() if name.startswith(f"{module}.")), "")
        number = self._block_number(f"{block}." if block else name)
        if number is not None:
            return number * stages // self.blocks
        first_block = next(
            (place for place, other in enumerate(self._order) if self._block_number(other) is not None), 0
        )
        return 0 if self._order.index(name) < first_block else stages - 1

    def require_divisible(self, tp: int, pp: int, *, pads: bool) -> None:
        """Require degrees that divide the model's sizes; ``pads``: the vocabulary is padded.

        Raises:
            CheckpointError: a degree does not.
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

    def _block_number(self, name: str) -> int | None:
        match = self._block.match(name) if self._block else None
        return int(match[1]) if match else None


def _partitions(module: nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[str, Partition]]:
    """Partitions by the first name of each parameter; any of its tied names may have the role."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(parameter, name)
        owner, _, kind = name.rpartition(".")
        role = next((role for pattern, role in plan.items() if _matches(owner, pattern)), "")
        dim = BY_ROLE.get(role, {}).get(kind)
        if dim is not None:
            yield first[parameter], Partition(dim, role.startswith("vocabulary"))


def _matches(name: str, pattern: str) -> bool:
    """True if a pattern matches a submodule's name; each star stands for one level."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
