"""Load a trained model from a checkpoint of any format and layout, for inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.checkpoint.lazy import fill
from recipe_core.checkpoint.locate import StoredCheckpoint, find
from recipe_core.checkpoint.match.mismatch import mismatch
from recipe_core.checkpoint.match.provenance import Provenance, provenance_of
from recipe_core.checkpoint.match.same_model import require_consistent
from recipe_core.checkpoint.state import weights
from recipe_core.data.identity import differences, identity_of, require_accepted, tokenizer_digest
from recipe_core.errors import CheckpointError
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Dataset, Model, Part
from recipe_core.layouts.materialise import initial_value
from recipe_core.layouts.parallel import Loss
from recipe_core.layouts.ties import replace
from recipe_core.layouts.transformed import build_transformed


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A checkpoint for inference: its model, its data if known, and the device to compute on."""

    source: StoredCheckpoint
    provenance: Provenance
    model: Part[Model]
    """The model with the settings that the checkpoint records."""
    device: torch.device
    """Device on which :attr:`module` is."""
    datasets: tuple[Dataset, ...] = ()
    """Installed datasets, which may read the data of a command; empty in a run."""

    @property
    def path(self) -> Path:
        """Path of the checkpoint: a folder or a file."""
        return self.source.path

    @property
    def step(self) -> int | None:
        """Optimizer step of the checkpoint; None if unknown."""
        return self.source.manifest.step if self.source.manifest else None

    @property
    def data(self) -> Part[Dataset] | None:
        """The dataset that it was trained on, with its settings; None if unknown."""
        return self.provenance.data

    @property
    def sequence(self) -> int | None:
        """Tokens in a training sample; None if unknown."""
        facts = self.provenance.data_facts()
        return facts.sequence if facts else None

    @cached_property
    def module(self) -> nn.Module:
        """The module on :attr:`device`, with the weights of the checkpoint, in evaluation mode.

        Weights have the module's own dtype, usually fp32.

        Raises:
            CheckpointError: a tensor is missing, damaged, or has another shape.
        """
        return self._built[0]

    @property
    def loss(self) -> Loss:
        """The loss that the model's ``build`` returned."""
        return self._built[1]

    def tokenizer(self) -> Mapping[str, str]:
        """Return names and texts of the tokenizer's files, from the run's copy, its data or the checkpoint.

        Empty if unknown. A tokenizer that differs from the recorded one is never returned.
        """
        return {**self.source.weights.get("files", {}), **self.provenance.tokenizer()}

    def require_tokenizer(self, texts: Mapping[str, str], where: str, accept: str | None = None) -> None:
        """Require the tokenizer that the model was trained with, if both are known.

        Args:
            texts: names and texts of the tokenizer's files.
            where: its origin, for the message.
            accept: the code of a difference that the user accepts.

        Raises:
            ConfigError: the digests differ.
        """
        changes = differences(self.provenance.identity, {"tokenizer": tokenizer_digest(texts)}, ["tokenizer"])
        head = f"{where}: its tokenizer is not the one that {self.path} was trained with"
        require_accepted(changes, accept, head, "Give data and tokenizer of the model", "--accept ")

    def require_data(self, accept: str | None = None) -> None:
        """Require the data that the run recorded, if its own data is read again.

        Raises:
            ConfigError: the data differ.
            RecipeError: a file of the data is missing or damaged.
        """
        if self.data is None or not self.provenance.identity:
            return
        names = ("content", "manifest", "order")  # the run's tokenizer need not be the dataset's
        changes = differences(self.provenance.identity, identity_of(self.data, {}).record, names)
        head = f"{self.path}: the data of its run is not what it was trained on"
        require_accepted(changes, accept, head, "Restore the former data, or name other data: --data PATH", "--accept ")

    @cached_property
    def _built(self) -> tuple[nn.Module, Loss]:
        saved = self.provenance.translator.weights(self.source, self.source.weights)
        with torch.device("meta" if self.model.spec.deferred else self.device):
            module, loss = build_transformed(self.model, self.provenance.transforms)
        advice = f"Name a recipe of its model: --recipe NAME[:VARIANT] (now: {self.model.spec.name})"
        if text := mismatch(saved, weights(module), advice, dtypes=False):
            raise CheckpointError(f"{self.path} {text.replace('this run', 'the model', 1)}")
        if self.model.spec.deferred:
            _make_room(module, self.device)
        module.to(self.device)
        wanted = weights(module)
        for name, tensor in wanted.items():
            fill(tensor, saved[name])
        if self.model.spec.deferred:
            _fill_buffers(module, {tensor.data_ptr() for tensor in wanted.values()})
        return module.eval(), loss


def _make_room(module: nn.Module, device: torch.device) -> None:
    """Move a module without values to ``device``, as ``to_empty`` does, without its half a second of imports."""
    new: dict[Tensor, Tensor] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        room = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        new[tensor] = nn.Parameter(room, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else room
    replace(module, new)


@torch.no_grad()
def _fill_buffers(module: Any, done: set[int]) -> None:
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.data_ptr() not in done:
            tensor.copy_(initial_value(module, name, tensor.shape))


def trained_model(
    registry: Registry, path: Path, device: torch.device, form: str | None = None, recipe: str | None = None
) -> TrainedModel:
    """Find the checkpoint at ``path`` and its model, and verify all checksums that it has.

    Args:
        registry: provides the formats and models.
        path: a run folder (its newest complete checkpoint is used), or a checkpoint's folder or file.
        device: device of the module.
        form: name of its format, if its files do not determine it.
        recipe: a recipe of its model, if the checkpoint does not record it.

    Raises:
        CheckpointError: there is no complete checkpoint, or its model is unknown.
        ConfigError: its recorded model settings are invalid.
    """
    source = find(registry, path, form)
    provenance = provenance_of(registry, source, source.weights, recipe)
    if provenance.model is None:
        raise CheckpointError(
            f"{source.path}: {provenance.unknown}; name a recipe of this model: --recipe NAME[:VARIANT]"
        )
    origin = f"--recipe {recipe}" if recipe else "its job.yaml"
    require_consistent(provenance.model, source, source.weights.get("files", {}), origin)
    datasets = tuple(registry.get("data", name) for name in registry.names("data"))
    return TrainedModel(source=source, provenance=provenance, model=provenance.model, device=device, datasets=datasets)
