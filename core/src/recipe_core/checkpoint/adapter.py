"""Adapters between native tensor names and shapes and those of foreign checkpoints.

Native names and shapes are those of the module's state dict. A foreign naming (Hugging Face's, Megatron's) may differ
in three ways: other names; tensors that are split, joined or transposed (a :class:`Link`); and second names of one
tensor (ties), which some formats write and others omit.
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
    """Return the tensors unchanged."""
    return tensors


@dataclass(frozen=True, kw_only=True)
class Link:
    """A group of native tensors with the same values as a group of foreign tensors, in another order."""

    ours: tuple[str, ...]
    """Native names."""
    theirs: tuple[str, ...]
    """Foreign names."""
    to: Callable[[Sequence[Tensor]], Sequence[Tensor]] = same
    """Converts native tensors, in the order of ``ours``, to foreign ones. It rearranges values and changes none."""
    back: Callable[[Sequence[Tensor]], Sequence[Tensor]] = same
    """Inverse of ``to``."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The mapping between one configured model and a foreign naming. Tensors without a link keep name and shape."""

    links: tuple[Link, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    """Second foreign names of tied tensors: ``{second: first}``."""
    ignored: tuple[str, ...] = ()
    """Patterns of foreign names to drop, such as a buffer of position ids."""
    spelling: Callable[[str], str] = str
    """Converts an older spelling of a foreign name (a prefix, ``gamma``) to the one that the links use."""
    optional: tuple[str, ...] = ()
    """Patterns of native names that initial weights may lack (a head); such tensors keep their initial values."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Names and texts of files stored with the tensors (``config.json``)."""


class Naming(ABC):
    """Foreign naming of one model; :attr:`recipe_core.Model.adapters` names subclasses, created without arguments."""

    @abstractmethod
    def adapter(self, config: Any) -> Adapter:
        """Return the adapter for a model with these settings."""

    @abstractmethod
    def settings(self, files: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> Mapping[str, Any] | None:
        """Return the settings of the model in a foreign checkpoint, from its texts, or from its shapes if the texts
        lack them; None if it is another model. A ``config.json`` among the texts holds a JSON object.

        Raises:
            CheckpointError: it is of this model's kind, with a feature that this model does not support.
        """

    def recorded(self, files: Mapping[str, str], config: Any) -> Mapping[str, Any] | None:
        """Return the settings that the texts record, for a comparison with ``config``.

        Override it if a setting may be recorded with another value (a vocabulary with padding).
        """
        return self.settings(files, {})

    def of_folder(self, config: Any, folder: Path) -> Any:
        """Return the settings of the model whose checkpoint is in ``folder``; by default ``config``, which it records.

        Override it for a model whose sizes are not in its settings, but in a file beside its weights.
        """
        return config


def to_native(adapter: Adapter, foreign: Mapping[str, Any], where: Path) -> Tensors:
    """Convert tensors to native names and shapes.

    The caller compares the names with the model's to find missing or unknown tensors.

    Raises:
        CheckpointError: tied tensors differ, a name occurs in two spellings, or an entry is not a tensor.
    """
    named = _canonical(adapter, foreign, where)
    for second, first in adapter.ties.items():
        if second in named:
            value = named.pop(second)
            if not same_bits(named.setdefault(first, value).read(), value.read()):
                raise CheckpointError(f"{where}: {second} and {first} differ, and this model has one tensor for both")
    native: Tensors = {}
    linked = {name: link for link in adapter.links for name in link.theirs}
    for name, tensor in named.items():
        link = linked.get(name)
        if link is None:
            native[name] = tensor
        elif link.ours[0] not in native and all(source in named for source in link.theirs):
            native.update(_apply(link.back, link.ours, {source: named[source] for source in link.theirs}, where))
    return native


def to_foreign(adapter: Adapter, native: Mapping[str, Lazy], *, ties: bool) -> Tensors:
    """Convert tensors to foreign names and shapes; ``ties`` adds the second names of tied tensors."""
    foreign: Tensors = {}
    linked = {name: link for link in adapter.links for name in link.ours}
    for name, tensor in native.items():
        link = linked.get(name)
        if link is None:
            foreign[name] = tensor
        elif link.theirs[0] not in foreign:
            foreign.update(_apply(link.to, link.theirs, {source: native[source] for source in link.ours}))
    if ties:
        foreign.update({second: foreign[first] for second, first in adapter.ties.items() if first in foreign})
    return foreign


def matches(name: str, patterns: Sequence[str]) -> bool:
    """True if ``name`` matches one of the shell patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _canonical(adapter: Adapter, foreign: Mapping[str, Any], where: Path) -> Tensors:
    named: Tensors = {}
    for name, value in foreign.items():
        canonical = adapter.spelling(str(name))
        if matches(canonical, adapter.ignored):
            continue
        if not isinstance(value, Lazy):
            raise CheckpointError(f"{where}: {name}: expected a tensor, found {type(value).__name__}")
        if canonical in named:
            raise CheckpointError(f"{where}: {name}: a second tensor for {canonical}")
        named[canonical] = value
    return named


def _apply(
    change: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    names: Sequence[str],
    named: Mapping[str, Lazy],
    where: Path | str = "the model",
) -> Tensors:
    """Apply ``change`` to the tensors ``named`` lazily: they are read when a result is read.

    Raises:
        CheckpointError: their shapes do not match the model's settings.
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
