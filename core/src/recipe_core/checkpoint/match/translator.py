"""Conversion of a model's states between its own tensor names and those of checkpoint formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.adapter import Adapter, Naming, to_foreign, to_native
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.locate import StoredCheckpoint
from recipe_core.checkpoint.match.mismatch import SHOWN
from recipe_core.checkpoint.ranks.cuts import Shape
from recipe_core.checkpoint.ranks.files import Grid
from recipe_core.checkpoint.ranks.join import foreign_buffers, join_ranks, split_by_rank
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import CheckpointFormat, Model, Part, load


@dataclass(frozen=True, eq=False)
class Translator:
    """Converts states of one model; the model's structure is built once, when it is first needed.

    Its methods take ``where``, the path of the checkpoint, for messages.
    """

    model: Part[Model] | None
    """None if it is unknown: states that need no conversion still pass."""
    unknown: str = ""
    """The reason why the model is unknown."""
    own: Adapter | None = None
    """The adapter for all namings, instead of the model's."""

    def to_native(self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path) -> dict[str, Any]:
        """Convert a state, as a format opened it, to the names of the module.

        Raises:
            CheckpointError: it has no model, or the adapter for its names is missing.
        """
        if spec.ranks:
            return join_ranks(state, self._shape(where), self._adapter(spec, where), where, pads=spec.pads)
        if not isinstance(state.get("model"), dict):
            raise CheckpointError(f"{where}: it holds no model (its parts: {', '.join(map(str, state)) or 'none'})")
        if not spec.naming:
            return dict(state)
        return {**state, "model": to_native(self.adapter(spec.naming, where), state["model"], where)}

    def to_foreign(
        self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path, grid: Grid | None = None
    ) -> dict[str, Any]:
        """Convert a native state to the form that ``spec`` saves; ``grid`` is for formats with one file per rank."""
        adapter = self._adapter(spec, where)
        if spec.ranks:
            return {**split_by_rank(state, self._shape(where), adapter, grid or Grid()), "files": {**adapter.files}}
        if not spec.naming:
            return dict(state)
        files = {**adapter.files, **state.get("files", {})}
        return {**state, "model": to_foreign(adapter, state["model"], ties=False), "files": files}

    def weights(self, source: StoredCheckpoint, opened: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights of a state that ``source`` opened, under the names of the module; for a bf16 model, the
        fp32 master weights if the optimizer state has them.

        Raises:
            CheckpointError: see :meth:`to_native`.
        """
        tensors: dict[str, Any] = self.to_native(opened, source.format, source.path)["model"]
        if not any(isinstance(tensor, Lazy) and tensor.dtype.itemsize < 4 for tensor in tensors.values()):
            return tensors
        try:
            optimizer = self.to_native(source.open(), source.format, source.path).get("optimizer", {}).get("state", {})
        except CheckpointError:  # the optimizer is not needed
            return tensors
        masters = {name: states["master"] for name, states in optimizer.items() if "master" in states}
        return {name: masters.get(name, tensor) for name, tensor in tensors.items()}

    def left_out(self, state: Mapping[str, Any], spec: CheckpointFormat, where: Path) -> list[str]:
        """Describe the tensors of an opened state that :meth:`to_native` drops."""
        if not spec.ranks or self.model is None:
            return []
        names = foreign_buffers(state, self._shape(where), self._adapter(spec, where))
        kind = "buffers" if len(names) > 1 else "a buffer"
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        return [f"{', '.join(names[:SHOWN])}{more}: {kind} that {self.model.spec.name} does not have"] if names else []

    def adapter(self, naming: str, where: Path) -> Adapter:
        """Return the adapter between the model and a foreign naming.

        Raises:
            CheckpointError: the model is unknown, or has no such adapter.
        """
        if self.own is not None:
            return self.own
        if self.model is None:
            raise CheckpointError(
                f"{where}: {self.unknown}, and names of tensors have to be changed; name a recipe of this model: "
                "--recipe NAME[:VARIANT]"
            )
        spec = self.model.spec
        target = spec.adapters.get(naming)
        if not target:
            known = ", ".join(spec.adapters) or "none"
            raise CheckpointError(
                f"{where}: model {spec.name!r} has no adapter for the naming {naming!r} (it has: {known})"
            )
        return naming_of(spec, target).adapter(self.model.config)

    def _adapter(self, spec: CheckpointFormat, where: Path) -> Adapter:
        # An identity adapter if the format uses the module's names.
        return self.adapter(spec.naming, where) if spec.naming else Adapter()

    def _shape(self, where: Path) -> Shape:
        if self.model is None:
            raise CheckpointError(
                f"{where}: {self.unknown}, and without it nobody knows how tensors are divided over the ranks; name a "
                "recipe of this model: --recipe NAME[:VARIANT]"
            )
        return self._known_shape

    @cached_property
    def _known_shape(self) -> Shape:
        assert self.model is not None
        return Shape(self.model)


def naming_of(spec: Model, target: str) -> Naming:
    """Return the naming that ``spec`` declares as ``"package.module:name"``."""
    naming: Naming = load(target, f"model {spec.name!r}")()
    return naming
