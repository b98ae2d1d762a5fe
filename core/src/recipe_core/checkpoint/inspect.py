"""``recipe inspect`` and ``recipe verify`` for checkpoints of any format and for run folders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_core.checkpoint import manifest as manifests
from recipe_core.checkpoint.io import archive
from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.locate import StoredCheckpoint, find, formats_at, steps
from recipe_core.checkpoint.manifest import STEP, Manifest
from recipe_core.checkpoint.match.mismatch import described
from recipe_core.data.prepare import Inspection
from recipe_core.errors import CheckpointError, PluginError
from recipe_core.hooks.registry import Registry, load
from recipe_core.settings.fill import flat

Row = tuple[str, str]


class CheckpointFiles:
    """Inspects and verifies a checkpoint, or all checkpoints in a run folder or its ``checkpoints``.

    Args:
        registry: provides the formats; by default the installed ones.
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry or load()

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a checkpoint or a folder of checkpoints, complete or not."""
        native = (path / manifests.NAME).is_file() or STEP.fullmatch(path.name) is not None or bool(steps(path))
        return native or bool(formats_at(self._registry, path))

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """Describe the contents of a checkpoint, or of the newest one in a folder.

        Raises:
            CheckpointError: it is incomplete, or its contents cannot be read.
        """
        folders = steps(path)
        source = find(self._registry, folders[-1] if folders else path, hashes=False)
        state = source.open()
        step = source.manifest.step if source.manifest else state.get("progress", {}).get("step")
        facts = [
            ("checkpoint", str(source.path)),
            *([("others here", ", ".join(p.name for p in folders[:-1]))] if folders[:-1] else []),
            ("format", source.format.name),
            *([("step", f"{step:,}" if isinstance(step, int) else str(step))] if step is not None else []),
            *_manifest_rows(source.manifest),
            *([("not checked", unchecked)] if (unchecked := source.unchecked()) else []),
            *([("not checked", "the bytes of its files; `recipe verify` compares them")] if source.manifest else []),
            *_contents(state),
        ]
        return Inspection(kind="checkpoint", facts=tuple(facts))

    def verify(self, path: Path) -> list[str]:
        """Return all problems of the checkpoint, or of all checkpoints in the folder; every byte is read."""
        checkpoints = steps(path) or [path]
        if (
            len(checkpoints) == 1
            and not (checkpoints[0] / manifests.NAME).is_file()
            and not STEP.fullmatch(checkpoints[0].name)
        ):
            return [f"{path}: {text}" for text in _foreign_problems(find(self._registry, path))]
        return [f"{step}: {text}" for step in checkpoints for text in self._problems(step)]

    def _problems(self, path: Path) -> list[str]:
        if problems := _damage(path):
            return problems
        try:
            source = find(self._registry, path, hashes=False)
        except PluginError:  # the bytes are intact; only the missing plugin can interpret them
            return []
        return self._contradictions(source) or _not_finite(source)

    def _contradictions(self, source: StoredCheckpoint) -> list[str]:
        """Differences in format and step between the manifest and the files."""
        manifest = source.manifest
        assert manifest is not None  # find() requires one for native checkpoints
        by_files = [spec.name for spec in formats_at(self._registry, source.path)]
        if by_files and manifest.format not in by_files:
            return [f"{manifests.NAME} says format {manifest.format}, and its files are of {' or '.join(by_files)}"]
        try:
            step = source.open().get("progress", {}).get("step")
        except CheckpointError as error:
            return [str(error)]
        if isinstance(step, int) and step != manifest.step:
            return [f"{manifests.NAME} says step {manifest.step}, and its files are of step {step}"]
        return []

    def unchecked(self, path: Path) -> str:
        """Return a sentence that names the files without checksums; empty if there are none."""
        return "" if steps(path) else find(self._registry, path, hashes=False).unchecked()


def _manifest_rows(manifest: Manifest | None) -> Iterator[Row]:
    if manifest is None:
        return
    size = sum(entry.size for entry in manifest.files.values())
    if manifest.val_loss is not None:
        yield "validation loss", f"{manifest.val_loss:.4f}"
    yield "written", f"{manifest.time} by {manifest.world_size} process(es), PyTorch {manifest.torch}"
    yield "files", f"{len(manifest.files)}, {size / 1e6:,.1f} MB"


def _damage(path: Path) -> list[str]:
    try:
        manifest = manifests.read_step(path)
    except CheckpointError as error:
        return [str(error)]
    return manifest.wrong_files(path) or manifest.wrong_hashes(path, manifest.files)


def _foreign_problems(source: StoredCheckpoint) -> list[str]:
    archives = ((file, text) for file in source.reader().files(source.path) for text in archive.damage(file))
    damage = [f"{file.parent.relative_to(source.folder) / text}" for file, text in archives]
    return damage or _not_finite(source)


def _not_finite(source: StoredCheckpoint) -> list[str]:
    """Weights and optimizer states with NaN or infinities.

    If the optimizer state tells which weights are trained, other tensors do not count: a mask may be infinite.
    """
    problems = []
    try:
        state = source.open()
        trained = state.get("optimizer", {}).get("state", {})
        untrained = {f"model.{name}" for name in state.get("model", {}) if name not in trained}
        skipped = untrained if len(untrained) < len(state.get("model", {})) else set()
        for name, leaf in flat(state):
            floats = isinstance(leaf, Lazy) and leaf.dtype.is_floating_point and name not in skipped
            if floats and not leaf.read().isfinite().all():
                problems.append(f"{name} holds values that are no finite numbers")
    except CheckpointError as error:
        problems.append(str(error))
    return problems


def _contents(state: dict[str, Any]) -> list[Row]:
    """Number of values per part of the state, and the model's tensors; with one file per rank, those of the first."""
    rows = []
    ranks = state.get("ranks", {})
    if ranks:
        tp, pp = (1 + max(rank[axis] for rank in ranks) for axis in (0, 1))
        rows.append(("ranks", f"{len(ranks)}: tensor parallel {tp}, pipeline {pp}"))
    for part in ("model", "optimizer") if ranks else ():
        parts = (rank.get(part, rank.get("indexed", {}).get("state", {})) for rank in ranks.values())
        leaves = [leaf for values in parts if values for _, leaf in flat(values)]
        rows.append((part, _counted(leaves)))
    for part, value in state.items():
        if part == "files":
            rows.append(("texts", ", ".join(value) or "none"))
        elif part != "ranks":
            rows.append((part, _counted([leaf for _, leaf in flat({part: value})])))
    model = ranks[min(ranks)]["model"] if ranks else state.get("model", {})
    tensors = {key: leaf for key, leaf in flat(model) if isinstance(leaf, Lazy)}
    return rows + [(f"  {key}", described(leaf)) for key, leaf in sorted(tensors.items())]


def _counted(leaves: list[Any]) -> str:
    sizes = [math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, Lazy)]
    return f"{len(sizes):,} tensors of {sum(sizes):,} values, {len(leaves) - len(sizes):,} plain values"
