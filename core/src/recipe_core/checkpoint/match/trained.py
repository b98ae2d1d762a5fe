"""A trained model from a checkpoint of any format and layout, for inference: no optimizer, no training state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
from recipe_core.layouts.built import build_model
from recipe_core.layouts.parallel import Loss


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A checkpoint that is used: its model, its data as far as they are known, and the device to compute on."""

    source: StoredCheckpoint
    provenance: Provenance
    model: Part[Model]
    """The model with the settings that the checkpoint records."""
    device: torch.device
    """Device on which :attr:`module` is."""

    @property
    def path(self) -> Path:
        """The checkpoint: a folder, or one file."""
        return self.source.path

    @property
    def step(self) -> int | None:
        """The step at which it was saved; None where it does not say."""
        return self.source.manifest.step if self.source.manifest else None

    @property
    def data(self) -> Part[Dataset] | None:
        """The dataset that it was trained on, with its settings; None where it is not known."""
        return self.provenance.data

    @cached_property
    def module(self) -> nn.Module:
        """The module on :attr:`device`, with the weights of the checkpoint, in evaluation mode.

        Weights have the module's own width, which is mostly fp32.

        Raises:
            CheckpointError: a tensor is missing, damaged, or of another shape.
        """
        return self._built[0]

    @property
    def loss(self) -> Loss:
        """The loss that the model's ``build`` returned."""
        return self._built[1]

    def tokenizer(self) -> Mapping[str, str]:
        """Names and texts of the tokenizer's files: the run's copy, those of its data, or those beside its tensors.

        Empty where none is known. Another tokenizer than the one that the run recorded is never given.
        """
        return {**self._opened.get("files", {}), **self.provenance.tokenizer()}

    def require_tokenizer(self, texts: Mapping[str, str], where: str, accept: str | None = None) -> None:
        """Refuse another tokenizer than the one that the model was trained with, where both are known.

        Args:
            texts: names and texts of its files.
            where: what it belongs to, for the message.
            accept: the word of the difference that the user accepts.

        Raises:
            ConfigError: the digests differ.
        """
        found = differences(self.provenance.identity, {"tokenizer": tokenizer_digest(texts)}, ["tokenizer"])
        head = f"{where}: its tokenizer is not the one that {self.path} was trained with"
        require_accepted(found, accept, head, "Give data and tokenizer of the model", "--accept ")

    def require_data(self, accept: str | None = None) -> None:
        """Refuse other data than the run recorded, where its own data is to be read again.

        Raises:
            ConfigError: they differ.
            RecipeError: a file of the data is missing or damaged.
        """
        if self.data is None or not self.provenance.identity:
            return
        names = ("content", "manifest", "order")  # the run's tokenizer need not be the dataset's
        found = differences(self.provenance.identity, identity_of(self.data, {}).record, names)
        head = f"{self.path}: the data of its run is not what it was trained on"
        require_accepted(found, accept, head, "Restore the former data, or name other data: --data PATH", "--accept ")

    @cached_property
    def _opened(self) -> dict[str, Any]:
        return self.source.open(weights=True)

    @cached_property
    def _built(self) -> tuple[nn.Module, Loss]:
        saved = self.provenance.weights(self.source, self._opened)
        with torch.device("meta" if self.model.spec.deferred else self.device):
            module, loss = build_model(self.model)
        advice = f"Name a recipe of its model: --recipe NAME[:VARIANT] (now: {self.model.spec.name})"
        if text := mismatch(saved, weights(module), advice, dtypes=False):
            raise CheckpointError(f"{self.path} {text.replace('this run', 'the model', 1)}")
        if self.model.spec.deferred:
            module.to_empty(device=self.device)
        module.to(self.device)
        wanted = weights(module)
        for name, tensor in wanted.items():
            fill(tensor, saved[name])
        if self.model.spec.deferred:
            _fill_rest(module, {tensor.data_ptr() for tensor in wanted.values()})
        return module.eval(), loss


@torch.no_grad()
def _fill_rest(module: Any, done: set[int]) -> None:
    """Give buffers that no checkpoint holds their values."""
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.data_ptr() not in done:
            tensor.copy_(module.initial_value(name, tensor.shape))


def trained_model(
    registry: Registry, path: Path, device: torch.device, form: str | None = None, recipe: str | None = None
) -> TrainedModel:
    """Find the checkpoint at ``path`` and its model; every byte is compared with the check sums that there are.

    Args:
        registry: the formats and models that there are.
        path: a run folder (its newest whole checkpoint is taken), or a checkpoint's folder or file.
        device: where the module is built.
        form: name of its format, where its files do not tell.
        recipe: a recipe of its model, where it does not tell.

    Raises:
        CheckpointError: there is no whole checkpoint, or its model is not known.
        ConfigError: what it records of its model cannot be understood.
    """
    source = find(registry, path, form)
    opened = source.open(weights=True)
    provenance = provenance_of(registry, source, opened, recipe)
    if provenance.model is None:
        raise CheckpointError(
            f"{source.path}: {provenance.unknown}; name a recipe of this model: --recipe NAME[:VARIANT]"
        )
    said = f"--recipe {recipe}" if recipe else "its job.yaml"
    require_consistent(provenance.model, source, opened.get("files", {}), said)
    return TrainedModel(source=source, provenance=provenance, model=provenance.model, device=device)
