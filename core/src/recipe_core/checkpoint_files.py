"""What ``recipe inspect`` and ``recipe verify`` say of checkpoints and run folders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from recipe_core import manifest as manifests
from recipe_core.checkpoint import STEP
from recipe_core.errors import CheckpointError
from recipe_core.lazy import Lazy, flat
from recipe_core.manifest import Manifest
from recipe_core.mismatch import described
from recipe_core.prepare import Inspection


class CheckpointFiles:
    """A checkpoint; or a run folder or its ``checkpoints``, for all that are in it."""

    def detect(self, path: Path) -> bool:
        """Whether there is a checkpoint, or a folder of them, whole or not."""
        return (path / manifests.NAME).is_file() or STEP.fullmatch(path.name) is not None or bool(_within(path))

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """What a checkpoint holds; of a folder of several, the newest.

        Raises:
            CheckpointError: it has no manifest, or its contents cannot be read.
        """
        inside = _within(path)
        chosen = inside[-1] if inside else path
        manifest = Manifest.read(chosen)
        size = sum(entry.size for entry in manifest.files.values())
        facts = [
            ("checkpoint", str(chosen)),
            *([("others here", ", ".join(p.name for p in inside[:-1]))] if inside[:-1] else []),
            ("format", manifest.format),
            ("step", f"{manifest.step:,}"),
            *([("validation loss", f"{manifest.val_loss:.4f}")] if manifest.val_loss is not None else []),
            ("written", f"{manifest.time} by {manifest.world_size} process(es), PyTorch {manifest.torch}"),
            ("files", f"{len(manifest.files)}, {size / 1e6:,.1f} MB"),
            *_contents(chosen, manifest.format),
        ]
        return Inspection(kind="checkpoint", facts=tuple(facts))

    def verify(self, path: Path) -> list[str]:
        """Everything wrong with the checkpoint, or with all in the folder; every byte is read."""
        return [f"{found}: {text}" for found in _within(path) or [path] for text in _problems(found)]


def _within(path: Path) -> list[Path]:
    """The checkpoints of a run folder or of its folder of checkpoints, by step."""
    for folder in (path, path / "checkpoints"):
        found = [p for p in folder.iterdir() if STEP.fullmatch(p.name)] if folder.is_dir() else []
        if found:
            return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))
    return []


def _problems(path: Path) -> list[str]:
    try:
        manifest = Manifest.read(path)
    except CheckpointError as error:
        return [str(error)]
    unknown = [f"{name} is not in the manifest" for name in manifests.names(path) if name not in manifest.files]
    return [*(manifest.wrong_sizes(path) or manifest.wrong_hashes(path, manifest.files)), *unknown]


def _contents(path: Path, name: str) -> list[tuple[str, str]]:
    """Values per part of the state, and every tensor of the model."""
    from recipe_core.registry import load

    form = load().get("checkpoint", name)
    state: dict[str, Any] = form.load()(form.config()).open(path)
    rows = []
    for part, value in state.items():
        leaves = [leaf for _, leaf in flat({part: value})]
        sizes = [math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, Lazy)]
        plain = len(leaves) - len(sizes)
        rows.append((part, f"{len(sizes):,} tensors of {sum(sizes):,} values, {plain:,} plain values"))
    tensors = {key: leaf for key, leaf in flat(state.get("model", {})) if isinstance(leaf, Lazy)}
    return rows + [(f"  {key}", described(leaf)) for key, leaf in sorted(tensors.items())]
