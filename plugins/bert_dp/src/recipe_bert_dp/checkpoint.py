"""The checkpoint format ``neuron_bert``: ``ckpt_<step>.pt`` as Neuron's and NVIDIA's BERT scripts write and read it.

A dict of ``model`` (a state dict, tied tensors under all their names), ``optimizer`` and ``scheduler`` (what PyTorch's
``state_dict()`` gives), ``files`` (which of the shards is next, then their names) and ``epoch``. The minimal form has
neither optimizer nor scheduler. NVIDIA's has names of its own, no scheduler, and fp32 weights in ``master params``.
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
from recipe_core.checkpoint.adapter import to_ours, to_theirs
from recipe_core.checkpoint.ranks.optimizer import by_name, groups_of, indexed_state, scheduled

FILE = re.compile(r"ckpt_(\d+)\.pt")
OURS = "recipe"
"""A further entry of the files that we write: the exact position in schedule and data. Scripts pass it over."""
_DENSE = re.compile(r"\b(intermediate|pooler|transform)\.dense\.")
"""Layers that are one with their activation in NVIDIA's model."""


class NeuronBertFormat(OneFile):
    """``ckpt_<step>.pt``. A run that saves in it resumes exactly; files of the scripts are continued by their step."""

    name = "neuron_bert"
    strict_dtypes = False
    """Scripts keep weights and states in other widths; the run's count."""

    def __init__(self, config: NeuronBert | None = None) -> None:
        self._config = config or NeuronBert()

    def file(self, state: Mapping[str, Any]) -> str:
        """It has the step in its name."""
        return f"ckpt_{state.get('progress', {}).get('step', 0)}.pt"

    def find(self, path: Path) -> Path | None:
        """The file itself, or the one of the highest step in a folder."""
        if path.is_file():
            return path
        by_step = {int(m[1]): p for p in path.glob("ckpt_*.pt") if (m := FILE.fullmatch(p.name))}
        return by_step[max(by_step)] if by_step else None

    def detect(self, path: Path) -> bool:
        """True if its name is one that the scripts write."""
        file = self.find(path)
        return file is not None and FILE.fullmatch(file.name) is not None

    def encode(self, state: Mapping[str, Any], context: SaveContext) -> dict[str, Any]:
        """The content of the file for ``state``."""
        progress = dict(state.get("progress", {}))
        step = int(progress.get("step") or 0)
        tree: dict[str, Any] = {"model": self._named(to_theirs(NAMES, state["model"], ties=True))}
        if "optimizer" in state:
            states = state["optimizer"]["state"]
            tree["optimizer"] = indexed_state(states, state["model"], context, step, self.name)
            tree["scheduler"] = scheduled(context, step)
        epoch, index, files = self._position(progress, context.samples)
        return tree | {"files": [index, *files], "epoch": epoch, OURS: {"progress": progress}}

    def decode(self, tree: dict[str, Any], path: Path) -> dict[str, Any]:
        """The state that a file stands for.

        Raises:
            CheckpointError: it has no model, or its optimizer does not belong to its model.
        """
        model = tree.get("model")
        if not isinstance(model, dict):
            found = ", ".join(map(str, list(tree)[:8])) or "nothing"
            raise CheckpointError(
                f"{path}: it has no entry 'model'; expected a dict of model, optimizer, scheduler, files and epoch, "
                f"found {found}"
            )
        state: dict[str, Any] = {"model": to_ours(NAMES, model, path)}
        if isinstance(optimizer := tree.get("optimizer"), dict):
            state["optimizer"] = {"state": by_name(optimizer, state["model"], path)}
        in_order = [name for group in groups_of(state["model"]) for name in group]
        _widen(state["model"], tree.get("master params"), in_order)
        ours = tree.get(OURS)
        known = ours.get("progress") if isinstance(ours, dict) else None
        state["progress"] = known or {"step": _step(tree, path), "consumed_samples": None}
        return state

    def _named(self, model: dict[str, Lazy]) -> dict[str, Lazy]:
        """With NVIDIA's names where these are asked for; its model ties no second bias."""
        if self._config.names == "hf":
            return model
        model = {name: tensor for name, tensor in model.items() if name != "cls.predictions.decoder.bias"}
        return {_DENSE.sub(r"\1.dense_act.", name): tensor for name, tensor in model.items()}

    def _position(self, progress: Mapping[str, Any], samples: Samples | None) -> tuple[int, int, Sequence[str]]:
        """Epoch, number of the next shard, and the shards' names, as far as they are known.

        A script in its fourth shard of eight has done three eighths of the epoch; a run that mixes all eight and has
        done as much gets the same number.
        """
        files: Sequence[str] = self._config.files
        if not isinstance(samples, BertSamples):
            return 0, 0, files
        epoch, part, names = samples.position(progress.get("consumed_samples") or 0)
        files = files or names
        return epoch, int(part * len(files)), files


def _step(tree: Mapping[str, Any], path: Path) -> int:
    """Steps of the schedule so far: the scheduler's count, since a file of phase 2 has phase 1's in its name too."""
    scheduler = tree.get("scheduler")
    if isinstance(scheduler, dict) and isinstance(scheduler.get("last_epoch"), int):
        return int(scheduler["last_epoch"])
    named = FILE.fullmatch(path.name)
    return int(named[1]) if named else 0


def _widen(model: dict[str, Lazy], masters: Any, names: Sequence[str]) -> None:
    """Put the fp32 weights that apex keeps beside fp16 ones, in the optimizer's order, in the place of the latter."""
    if not isinstance(masters, list) or len(masters) != len(names):
        return
    for name, master in zip(names, masters, strict=True):
        if isinstance(master, Lazy | Tensor) and master.shape == model[name].shape:
            model[name] = lazy(master)
