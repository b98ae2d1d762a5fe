"""The checkpoint format ``neuron_bert``: ``ckpt_<step>.pt`` as Neuron's and NVIDIA's BERT scripts write and read it.

A dict of ``model`` (a state dict, tied tensors under all their names), ``optimizer`` and ``scheduler`` (PyTorch's
``state_dict()``), ``files`` (index of the next shard, then all their names) and ``epoch``. The minimal form has neither
optimizer nor scheduler. NVIDIA's has other tensor names, no scheduler, and fp32 weights in ``master params``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from recipe_bert_dp.data.samples import BertSamples
from recipe_bert_dp.model.hf import NAMES
from recipe_bert_dp.settings import NeuronBert
from recipe_core import CheckpointError, Lazy, OneFile, Samples, SaveContext, lazy
from recipe_core.checkpoint.adapter import to_foreign, to_native
from recipe_core.checkpoint.ranks.optimizer import by_name, indexed_state, parameter_groups, scheduler_state_dict

FILE = re.compile(r"ckpt_(\d+)\.pt")
RECIPE_ENTRY = "recipe"
"""Additional entry of files written here: the exact position in schedule and data. Scripts ignore it."""
_DENSE = re.compile(r"\b(intermediate|pooler|transform)\.dense\.")
"""Layers that include their activation in NVIDIA's model."""


class NeuronBertFormat(OneFile):
    """``ckpt_<step>.pt``. Resumes exactly from files written here; from files of the scripts, by their step."""

    name = "neuron_bert"
    strict_dtypes = False
    """Scripts may store other dtypes; loading casts to the run's."""

    def __init__(self, config: NeuronBert | None = None) -> None:
        self._config = config or NeuronBert()

    def file(self, state: Mapping[str, Any]) -> str:
        """File name, with the step in it."""
        return f"ckpt_{state.get('progress', {}).get('step', 0)}.pt"

    def find(self, path: Path) -> Path | None:
        """The file itself, or the one with the highest step in a folder."""
        if path.is_file():
            return path
        by_step = {int(m[1]): p for p in path.glob("ckpt_*.pt") if (m := FILE.fullmatch(p.name))}
        return by_step[max(by_step)] if by_step else None

    def detect(self, path: Path) -> bool:
        """True if the file name matches those of the scripts."""
        file = self.find(path)
        return file is not None and FILE.fullmatch(file.name) is not None

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        """Content of the file for ``state``."""
        progress = dict(state.get("progress", {}))
        step = int(progress.get("step") or 0)
        tree: dict[str, Any] = {"model": self._named(to_foreign(NAMES, state["model"], ties=True))}
        if "optimizer" in state:
            states = state["optimizer"]["state"]
            tree["optimizer"] = indexed_state(states, state["model"], context, step, self.name)
            tree["scheduler"] = scheduler_state_dict(context, step)
        epoch, index, files = self._position(progress, context.samples)
        return tree | {"files": [index, *files], "epoch": epoch, RECIPE_ENTRY: {"progress": progress}}

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        """State in the content of a file.

        Raises:
            CheckpointError: it has no model, or its optimizer does not match its model.
        """
        model = tree.get("model")
        if not isinstance(model, dict):
            entries = ", ".join(map(str, list(tree)[:8])) or "nothing"
            raise CheckpointError(
                f"{path}: it has no entry 'model'; expected a dict of model, optimizer, scheduler, files and epoch, "
                f"found {entries}"
            )
        state: dict[str, Any] = {"model": to_native(NAMES, model, path)}
        if isinstance(optimizer := tree.get("optimizer"), dict):
            state["optimizer"] = {"state": by_name(optimizer, state["model"], path)}
        in_order = [name for group in parameter_groups(state["model"]) for name in group]
        _widen(state["model"], tree.get("master params"), in_order)
        recipe_entry = tree.get(RECIPE_ENTRY)
        progress = recipe_entry.get("progress") if isinstance(recipe_entry, dict) else None
        state["progress"] = progress or {"step": _step(tree, path), "consumed_samples": None}
        return state

    def _named(self, model: dict[str, Lazy]) -> dict[str, Lazy]:
        if self._config.names == "hf":
            return model
        # NVIDIA's model has no second name for the decoder's bias.
        model = {name: tensor for name, tensor in model.items() if name != "cls.predictions.decoder.bias"}
        return {_DENSE.sub(r"\1.dense_act.", name): tensor for name, tensor in model.items()}

    def _position(self, progress: Mapping[str, Any], samples: Samples | None) -> tuple[int, int, Sequence[str]]:
        # Epoch, index of the next shard, and names of the shards. A script in its fourth shard of eight has done three
        # eighths of the epoch; a run, which mixes all eight, gets the same index after three eighths.
        files: Sequence[str] = self._config.files
        if not isinstance(samples, BertSamples):
            return 0, 0, files
        epoch, part, names = samples.position(progress.get("consumed_samples") or 0)
        files = files or names
        return epoch, int(part * len(files)), files


def _step(tree: Mapping[str, Any], path: Path) -> int:
    # The scheduler's count comes first: file names of phase 2 also count the steps of phase 1.
    scheduler = tree.get("scheduler")
    if isinstance(scheduler, dict) and isinstance(scheduler.get("last_epoch"), int):
        return int(scheduler["last_epoch"])
    match = FILE.fullmatch(path.name)
    return int(match[1]) if match else 0


def _widen(model: dict[str, Lazy], masters: Any, names: Sequence[str]) -> None:
    # Replace fp16 weights by the fp32 master weights of apex, which are in the optimizer's order.
    if not isinstance(masters, list) or len(masters) != len(names):
        return
    for name, master in zip(names, masters, strict=True):
        if isinstance(master, Lazy | Tensor) and master.shape == model[name].shape:
            model[name] = lazy(master)
