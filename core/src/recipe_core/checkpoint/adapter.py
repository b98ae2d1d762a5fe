"""Adapters between the names and shapes of a model's tensors and those of foreign checkpoints.

Ours are the names and shapes of the module's state dict. Those of a foreign naming (Hugging Face's, Megatron's) may
differ in three ways: other names; a tensor of ours that is several there, joined or transposed (a :class:`Link`); and
second names of one tensor (ties), which some formats write and others leave out.
"""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.lazy import Lazy, same_bits
from recipe_core.errors import CheckpointError

Tensors = dict[str, Lazy]


def same(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """As they are."""
    return tensors


@dataclass(frozen=True, kw_only=True)
class Link:
    """A group of our tensors that has the same values as a group of theirs, in another order."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to: Callable[[Sequence[Tensor]], Sequence[Tensor]] = same
    """Ours, in the order of ``ours``, to theirs. It computes nothing: no value may change."""
    back: Callable[[Sequence[Tensor]], Sequence[Tensor]] = same
    """The way back."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The mapping of one configured model to a foreign naming. Tensors without a link keep name and shape."""

    links: tuple[Link, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    """Foreign names of what has another foreign name already: ``{second: first}``."""
    ignored: tuple[str, ...] = ()
    """Patterns of foreign names that hold nothing to keep, such as a buffer of counted positions."""
    spelling: Callable[[str], str] = str
    """Turns older spellings of a foreign name (a prefix, ``gamma``) into the one that is meant here."""
    optional: tuple[str, ...] = ()
    """Patterns of our names that weights to begin with may lack (a head); they then stay as they were drawn."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Names and texts of what stands beside the tensors (``config.json``)."""


class Naming(ABC):
    """One model's foreign naming: what :attr:`recipe_core.Model.adapters` names, called without arguments."""

    @abstractmethod
    def adapter(self, config: Any) -> Adapter:
        """The adapter for a model of these settings."""

    @abstractmethod
    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> Mapping[str, Any] | None:
        """The settings of the model that a foreign checkpoint holds, from its texts, or from its shapes where the texts
        do not say; None where it is another model's. A ``config.json`` among the texts holds a JSON object.

        Raises:
            CheckpointError: it is this model's kind, with something that this model does not have.
        """

    def recorded(self, files: Mapping[str, str], config: Any) -> Mapping[str, Any] | None:
        """The settings that the texts record, for a comparison with ``config``.

        Override it where a setting that is written otherwise need not differ (a vocabulary with padding).
        """
        return self.settings(files, {})


def to_ours(adapter: Adapter, theirs: Mapping[str, Any], where: Path) -> Tensors:
    """Tensors under our names and in our shapes.

    What is left over, or missing, is for the caller to find out by the names of the model.

    Raises:
        CheckpointError: tensors that should be tied differ, two spellings of one name stand side by side, or an entry
            is no tensor.
    """
    named = _spelled(adapter, theirs, where)
    for second, first in adapter.ties.items():
        if second in named:
            value = named.pop(second)
            if not same_bits(named.setdefault(first, value).read(), value.read()):
                raise CheckpointError(f"{where}: {second} and {first} differ, and this model has one tensor for both")
    ours: Tensors = {}
    linked = {name: link for link in adapter.links for name in link.theirs}
    for name, tensor in named.items():
        link = linked.get(name)
        if link is None:
            ours[name] = tensor
        elif link.ours[0] not in ours and all(other in named for other in link.theirs):
            ours.update(_changed(link.back, link.ours, {other: named[other] for other in link.theirs}, where))
    return ours


def to_theirs(adapter: Adapter, ours: Mapping[str, Lazy], *, ties: bool) -> Tensors:
    """Tensors under foreign names and in foreign shapes; ``ties``: second names too."""
    theirs: Tensors = {}
    linked = {name: link for link in adapter.links for name in link.ours}
    for name, tensor in ours.items():
        link = linked.get(name)
        if link is None:
            theirs[name] = tensor
        elif link.theirs[0] not in theirs:
            theirs.update(_changed(link.to, link.theirs, {other: ours[other] for other in link.ours}))
    if ties:
        theirs.update({second: theirs[first] for second, first in adapter.ties.items() if first in theirs})
    return theirs


def matches(name: str, patterns: Sequence[str]) -> bool:
    """True if a name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _spelled(adapter: Adapter, theirs: Mapping[str, Any], where: Path) -> Tensors:
    named: Tensors = {}
    for name, value in theirs.items():
        meant = adapter.spelling(str(name))
        if matches(meant, adapter.ignored):
            continue
        if not isinstance(value, Lazy):
            raise CheckpointError(f"{where}: {name}: expected a tensor, found {type(value).__name__}")
        if meant in named:
            raise CheckpointError(f"{where}: {name}: a second tensor for {meant}")
        named[meant] = value
    return named


def _changed(
    change: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    names: Sequence[str],
    named: Mapping[str, Lazy],
    where: Path | str = "the model",
) -> Tensors:
    """Apply ``change`` to the tensors ``named``, lazily: they are read when one of the results is.

    Raises:
        CheckpointError: their shapes are not those of a model of these settings.
    """
    tensors = list(named.values())
    if change is same:
        return dict(zip(names, tensors, strict=True))
    try:
        blank = change([torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors])
    except (RuntimeError, ValueError, IndexError) as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in named.items())
        raise CheckpointError(
            f"{where}: {shapes}: of no such shape in a model of these settings ({str(error).splitlines()[0]}). Give "
            "the model the sizes that it was trained with (model.*)"
        ) from error

    def read(place: int) -> Tensor:
        return change([tensor.read() for tensor in tensors])[place]

    return {
        name: Lazy(result.shape, result.dtype, partial(read, place))
        for place, (name, result) in enumerate(zip(names, blank, strict=True))
    }
