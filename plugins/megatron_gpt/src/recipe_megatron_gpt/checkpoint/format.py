"""The checkpoint format ``megatron``: ``iter_<step>/mp_rank_<tensor>[_<pipeline>]/model_optim_rng.pt``.

Each file is a dict: ``args`` (an argparse.Namespace), ``checkpoint_version``, ``iteration``, ``model`` (this rank's
tensors) and ``optimizer`` (PyTorch's ``state_dict()``, in fp32 or with fp32 copies of the weights). Layers are numbered
from 0 in each pipeline stage. The file ``latest_checkpointed_iteration.txt`` names the step.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from recipe_core import NO_RUN, CheckpointError, Format, Lazy, SaveContext, Train
from recipe_core.checkpoint.adapter import matches
from recipe_core.checkpoint.io import torch_save
from recipe_core.checkpoint.io.restricted_pickle import Inert
from recipe_core.checkpoint.ranks.files import Grid, Rank, by_rank, padded_rows, require_all
from recipe_core.checkpoint.ranks.optimizer import by_name, indexed_state, master_weights
from recipe_megatron_gpt.checkpoint.names import (
    IGNORED,
    LAYER,
    flattened,
    in_legacy_order,
    legacy,
    modern,
    nested,
)
from recipe_megatron_gpt.settings import MegatronSettings

TRACKER = "latest_checkpointed_iteration.txt"
FILE = "model_optim_rng.pt"
ARGS = "args.json"
"""File name under which ``args`` pass between format and adapter."""
VERSION = 3.0
_FOLDER = re.compile(r"mp_rank_(?P<tp>\d{2,})(_(?P<pp>\d{3}))?")
_INERT = ("argparse.", "megatron.", "numpy.", "signal.", "transformer_engine.", "collections.", "pathlib.", "_io.")
"""Modules of the globals in Megatron's settings and random states; they are read, never run."""
_WORDS, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


class MegatronFormat(Format):
    """A folder that Megatron-LM loads, with one file for each tensor-parallel and pipeline rank."""

    name = "megatron"

    def __init__(self, config: MegatronSettings | None = None) -> None:
        self._config = config or MegatronSettings()
        self.grid: Grid = Grid(
            tp=self._config.tp, pp=self._config.pp, vocabulary_multiple=self._config.vocabulary_multiple
        )

    def save(self, path: Path, state: Mapping[str, Any], context: SaveContext = NO_RUN) -> None:
        """Write ``state``, a result of :func:`recipe_core.checkpoint.ranks.join.split_by_rank`, into the empty folder
        ``path``.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        progress, ranks = state.get("progress", {}), state["ranks"]
        step = int(progress.get("step") or 0)
        folder = path / f"iter_{step:07}"
        args = self._args(state.get("files", {}), progress)
        for rank in self.grid.ranks():
            model, states = self._named(ranks, rank)
            tree: dict[str, Any] = {"args": args, "checkpoint_version": VERSION, "iteration": step}
            tree["model"] = nested(model) if self._config.names == "legacy" else model
            if states is not None:
                tree["optimizer"] = indexed_state(states, model, context, step, self.name, _group_settings)
            rank_folder = folder / _folder(rank, self.grid.pp)
            rank_folder.mkdir(parents=True)
            torch_save.write_tree(rank_folder / FILE, tree)
        (path / TRACKER).write_text(str(step), encoding="utf-8")

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """The states of all ranks, with lazy tensors.

        Raises:
            CheckpointError: a file is missing or damaged, of another step or degree, or names a forbidden global.
        """
        folder = _iteration(path)
        folders = by_rank((p for p in folder.iterdir() if (p / FILE).is_file()), _FOLDER)
        if other := [p.name for p in folder.glob("mp_rank_*") if not _FOLDER.fullmatch(p.name)]:
            raise CheckpointError(f"{folder / other[0]}: experts or virtual stages, which are not read here")
        tp, pp = require_all(folders, folder)
        trees = {rank: _tree(where / FILE) for rank, where in folders.items()}
        args = {rank: _settings(tree) for rank, tree in trees.items()}
        step = _require_one(trees, args, folders, tp, pp)
        ranks = {
            rank: self._to_native(tree, args[rank], tp, folders[rank] / FILE, weights) for rank, tree in trees.items()
        }
        _number_layers(ranks, tp, pp)
        first = args[0, 0]
        samples = first.get("consumed_train_samples")
        progress = {"step": step, "consumed_samples": None if samples is None else int(samples)}
        return {"ranks": ranks, "progress": progress, "files": {ARGS: json.dumps(first)}}

    def detect(self, path: Path) -> bool:
        """True if ``path`` looks like a checkpoint of this format."""
        return (path / TRACKER).is_file() or path.name == FILE or any(path.glob(f"mp_rank_*/{FILE}"))

    def files(self, path: Path) -> list[Path]:
        """The files that are read; those that are archives have their own checksums."""
        return sorted(_iteration(path).rglob(FILE))

    def _args(self, files: Mapping[str, str], progress: Mapping[str, Any]) -> argparse.Namespace:
        # Megatron compares them with the settings of its model.
        args: dict[str, Any] = json.loads(files.get(ARGS, "{}"))
        args["orig_vocab_size"] = args.get("padded_vocab_size")
        if args["orig_vocab_size"]:
            args["padded_vocab_size"] = padded_rows(int(args["orig_vocab_size"]), self.grid)
        if (samples := progress.get("consumed_samples")) is not None:
            args["consumed_train_samples"] = int(samples)
        return argparse.Namespace(
            **args,
            tensor_model_parallel_size=self.grid.tp,
            pipeline_model_parallel_size=self.grid.pp,
            make_vocab_size_divisible_by=self._config.vocabulary_multiple,
            iteration=int(progress.get("step") or 0),
            use_mcore_models=self._config.names == "core",
        )

    def _named(self, ranks: Mapping[Rank, Any], rank: Rank) -> tuple[dict[str, Any], dict[str, Any] | None]:
        # A rank's tensors and optimizer states, with layers numbered from 0, under the configured names.
        parts = [dict(ranks[rank]["model"]), dict(ranks[rank].get("optimizer", {}))]
        if self.grid.pp > 1 and rank[1] == self.grid.pp - 1:  # the last stage holds the tied embedding too
            first = ranks[rank[0], 0]
            for part, source in zip(parts, (first["model"], first.get("optimizer", {})), strict=True):
                part |= {_OUTPUT: source[_WORDS]} if _WORDS in source else {}
        layers = [int(m[2]) for name in parts[0] if (m := LAYER.match(name))]
        begin, old = min(layers, default=0), self._config.names == "legacy"
        order = in_legacy_order(list(parts[0])) if old else list(parts[0])

        def named(name: str) -> str:
            name = LAYER.sub(lambda m: f"{m[1]}{int(m[2]) - begin}{m[3]}", name)
            return legacy(name) if old else name

        model, states = ({named(name): part[name] for name in order if name in part} for part in parts)
        return model, states if "optimizer" in ranks[rank] else None

    def _to_native(
        self, tree: Mapping[str, Any], args: Mapping[str, Any], tp: int, path: Path, weights: bool
    ) -> dict[str, Any]:
        # megatron-core's names for tensors and states
        if "model0" in tree:
            raise CheckpointError(
                f"{path}: it has several virtual pipeline stages (model0, model1), which are not read"
            )
        if not isinstance(tree.get("model"), Mapping):
            raise CheckpointError(f"{path}: it has no entry 'model' (it has: {', '.join(map(str, tree)) or 'nothing'})")
        version = float(tree.get("checkpoint_version") or 0)
        raw = {modern(name): tensor for name, tensor in flattened(tree["model"]).items()}
        heads = int(args.get("num_attention_heads") or 0) // tp
        state: dict[str, Any] = {
            "model": {name: _ordered(name, tensor, version, heads) for name, tensor in raw.items()}
        }
        optimizer = None if weights else _optimizer(tree, path)
        if optimizer is not None:
            parameters = {name: tensor for name, tensor in raw.items() if not matches(name, IGNORED)}
            states = by_name(optimizer.get("optimizer", optimizer), parameters, path)
            if fp32 := optimizer.get("fp32_from_fp16_params"):  # master weights replace those of 16 bits
                fp32 = master_weights(fp32, parameters, path)
                state["model"] |= {name: _ordered(name, tensor, version, heads) for name, tensor in fp32.items()}
            state["optimizer"] = {
                name: {kind: _ordered(name, value, version, heads) for kind, value in kinds.items()}
                for name, kinds in states.items()
            }
        return state


def _folder(rank: Rank, stages: int) -> str:
    return f"mp_rank_{rank[0]:02}" + (f"_{rank[1]:03}" if stages > 1 else "")


def _iteration(path: Path) -> Path:
    # The folder of the step: the one that contains a file or a rank's folder, the one that the tracker names, or
    # `path`.
    if path.name == FILE:
        return path.parent.parent
    if _FOLDER.fullmatch(path.name):
        return path.parent
    if not (path / TRACKER).is_file():
        inside = sorted(p for p in path.glob("iter_*") if p.is_dir()) if path.is_dir() else []
        return inside[-1] if inside else path
    text = (path / TRACKER).read_text(encoding="utf-8", errors="replace").strip()
    folder = path / (f"iter_{int(text):07}" if text.isdigit() else "release")
    if not (text.isdigit() or text == "release"):
        raise CheckpointError(f"{path / TRACKER}: expected a step or 'release', found {text[:40]!r}")
    if not folder.is_dir():
        present = ", ".join(sorted(p.name for p in path.glob("iter_*"))) or "none"
        raise CheckpointError(f"{path / TRACKER} names {folder.name}, which is not there (there are: {present})")
    return folder


def _tree(path: Path) -> dict[str, Any]:
    tree = torch_save.read_tree(path, lambda name: name.startswith(_INERT))
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: expected a dict of Megatron's, found {type(tree).__name__}")
    return tree


def _settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    # the plain values of `args`
    args = tree.get("args")
    values = args.state if isinstance(args, Inert) else vars(args) if isinstance(args, argparse.Namespace) else {}
    plain = values if isinstance(values, dict) else {}
    return {name: value for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | None)


def _require_one(
    trees: Mapping[Rank, Any], args: Mapping[Rank, Mapping[str, Any]], folders: Mapping[Rank, Path], tp: int, pp: int
) -> int:
    """The step of all files, which must belong to one checkpoint.

    Raises:
        CheckpointError: they have several steps, or other degrees of parallelism than their names say.
    """
    steps = {rank: tree.get("iteration") for rank, tree in trees.items()}
    other = next((rank for rank, step in steps.items() if step != steps[0, 0]), None)
    if other is not None:
        raise CheckpointError(
            f"{folders[other] / FILE} is of step {steps[other]}, and {folders[0, 0] / FILE} of step {steps[0, 0]}: "
            "files of two checkpoints are mixed"
        )
    _require_order(args, folders)
    names = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}
    for rank, values in args.items():
        wrong = [f"{k} {values[k]}, not {n}" for k, n in names.items() if k in values and values[k] != n]
        if wrong:
            raise CheckpointError(
                f"{folders[rank] / FILE}: it was written with {' and '.join(wrong)} as the names of the folders say; "
                "files are missing or wrongly named"
            )
    return int(steps[0, 0] or 0)


def _require_order(args: Mapping[Rank, Mapping[str, Any]], folders: Mapping[Rank, Path]) -> None:
    # Each process of Megatron writes its number: by stage, then by tensor-parallel rank. Converters write a single one.
    order = sorted(args, key=lambda rank: (rank[1], rank[0]))
    wrote = [number for rank in order if isinstance(number := args[rank].get("rank"), int)]
    if len(set(wrote)) < len(order):
        return
    for rank, number, following in zip(order, wrote, wrote[1:], strict=False):
        if number > following:
            raise CheckpointError(
                f"{folders[rank] / FILE}: process {number} wrote it, and process {following} that of the next rank: "
                "files were exchanged or renamed; give each its own name again"
            )


def _group_settings(train: Train, decay: float) -> dict[str, Any]:
    # Megatron's own, beside those of PyTorch; the factors multiply the schedule's values.
    return {
        "max_lr": train.lr,
        "min_lr": train.min_lr,
        "lr_mult": 1.0,
        "wd_mult": 1.0 if decay else 0.0,
        "is_expert_parallel": False,
        "is_decoupled_lr": False,
        "default_config": bool(decay),
    }


def _optimizer(tree: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    optimizer = tree.get("optimizer")
    if (path.parent / "distrib_optim.pt").is_file():
        raise CheckpointError(
            f"{path.parent / 'distrib_optim.pt'}: the states of Megatron's distributed optimizer are not read here; to "
            "convert the weights alone, add --drop optimizer"
        )
    if optimizer is not None and not isinstance(optimizer, Mapping):
        raise CheckpointError(
            f"{path}: its optimizer is a {type(optimizer).__name__}, not a dict of one optimizer's states"
        )
    return optimizer


def _number_layers(ranks: Mapping[Rank, dict[str, Any]], tp: int, pp: int) -> None:
    # from numbers in a stage to numbers in the whole model
    for tensor in range(tp):
        begin = 0
        for stage in range(pp):
            state = ranks[tensor, stage]
            numbers = {int(m[2]) for name in state["model"] if (m := LAYER.match(name))}
            for part in ("model", "optimizer"):
                if part in state:
                    state[part] = {_shifted(name, begin): value for name, value in state[part].items()}
            begin += len(numbers)


def _shifted(name: str, by: int) -> str:
    return LAYER.sub(lambda m: f"{m[1]}{int(m[2]) + by}{m[3]}", name)


def _ordered(name: str, value: Any, version: float, heads: int) -> Any:
    """Reorder the rows of queries, keys and values to ``[heads, 3, width]``, the order of files since version 2.

    Version 0 has ``[3, heads, width]``, version 1 ``[heads, width, 3]``.
    """
    if version >= 2 or ".linear_qkv." not in name or not isinstance(value, Lazy) or not value.shape:
        return value
    if not heads:
        raise CheckpointError(f"{name}: the file is of version {version}, and does not say num_attention_heads")
    return Lazy(value.shape, value.dtype, partial(_by_head, value, version, heads))


def _by_head(value: Lazy, version: float, heads: int) -> Tensor:
    rows = value.read()
    by_head = rows.unflatten(0, (3, heads, -1)).transpose(0, 1)
    if version != 0:
        by_head = rows.unflatten(0, (heads, -1, 3)).transpose(1, 2)
    reordered: Tensor = by_head.flatten(0, 2)
    return reordered
