"""The checkpoints of a run: their folders, and the manifest that completes each. Formats read and write the bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from recipe_core.checkpoint import manifest as manifests
from recipe_core.checkpoint.formats.base import NO_RUN, Format, SaveContext
from recipe_core.checkpoint.formats.build import as_format_error
from recipe_core.checkpoint.manifest import FileEntry, Manifest, is_ours, read_step, step_of
from recipe_core.checkpoint.remote.checkpoints import RemoteCheckpoints
from recipe_core.checkpoint.saving.folders import checkpoint_names, rename_foreign, set_aside_later, tidy
from recipe_core.checkpoint.saving.retention import Retention, Trend, recovery_advice
from recipe_core.checkpoint.state import not_finite, state_size
from recipe_core.engine import agreement
from recipe_core.engine.protocol import Ranks
from recipe_core.errors import CheckpointError, DivergedError, PluginError, RecipeError
from recipe_core.files import aside, remove, require_space, sync
from recipe_core.launch.watch.heartbeat import beat

T = TypeVar("T")
SHOWN = 5
"""Number of tensors that a message about non-finite values names; it counts the others."""


class Checkpoints:
    """The folders ``step-N`` in ``folder``. Every method is a collective.

    A checkpoint is written into a hidden folder. When all ranks are done, each hashes its share of the files, rank 0
    adds the manifest (``checkpoint.json``), and one rename gives the folder its name: a failure before that leaves
    older checkpoints unchanged. A failure on one rank is raised on all of them.

    All ranks must see the folder. Saving blocks training until the bytes are on disk: the time of ``torch.save``, an
    fsync of this rank's files, and reading them once more for SHA-256 (0.3 s for 500 MB on a core with SHA
    instructions). Only the writing step of :meth:`save` accesses the live tensors: to save in the background, copy the
    state to the host and call it in a thread.

    Args:
        folder: usually ``checkpoints`` in the run folder.
        format: reads and writes the bytes.
        engine: rank and world size of this process.
        keep: number of newest checkpoints to keep; 0 keeps all.
        keep_best: also keep the one with the lowest validation loss.
        trend: the run's losses (on rank 0); the newest checkpoint at which the loss had not risen is kept too.
        notes: additional files of each checkpoint: name and text.
        context: facts about the run, for the format.
        claim: called on rank 0 before a save, to check that the run folder still belongs to this run.
        warn: takes a message for the user (called only on rank 0).
        remote: those of the run in object storage: each checkpoint is uploaded after it is saved, and is downloaded
            where it is missing or damaged here.
    """

    def __init__(
        self, folder: Path, format: Format, engine: Ranks, keep: int, warn: Callable[[str], None] | None = None,
        *, keep_best: bool = False, notes: Mapping[str, str] | None = None, trend: Trend | None = None,
        context: SaveContext = NO_RUN, claim: Callable[[], None] = lambda: None,
        remote: RemoteCheckpoints | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.format, self.engine = folder, format, engine
        self.notes, self.context, self._claim = notes or {}, context, claim
        self.warn = warn or (lambda text: print(f"warning: {text}", file=sys.stderr, flush=True))
        self._retention = Retention(folder, keep, keep_best=keep_best, trend=trend or Trend(), warn=self.warn)
        self._damaged: set[str] = set()
        self._remote = remote
        self._removed: list[str] = []
        """Checkpoints that are removed here, and not yet in object storage."""

    def save(
        self,
        step: int,
        state: dict[str, Any],
        val_loss: float | None = None,
        writer: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write ``state`` as ``step-N``, replacing an existing one, then remove checkpoints beyond ``keep``.

        ``val_loss`` is the validation loss at this step, if it was evaluated; ``writer`` is passed on in the
        :class:`SaveContext`.

        Raises:
            DiskError: too little space, or the folder cannot be written.
            CheckpointError: ``state`` cannot be saved, or not all ranks see the folder.
            ObjectError: it is saved, and cannot be uploaded.
        """
        final, size, part = self.folder / f"step-{step}", state_size(state), None
        try:
            part = self._prepare(final, size)
            self._write(part, state, replace(self.context, writer=writer or self.context.writer))
            self._publish(part, final, self._make_manifest(part, step, val_loss))
        except Exception as error:
            if part is not None and self.engine.rank == 0:
                remove(part)  # ranks fail together, so none still writes into it
            if not isinstance(error, RecipeError):
                raise
            text = f"{final} ({size / 1e6:,.1f} MB) was not saved; older checkpoints are untouched. {error}"
            raise type(error)(text) from error
        self._upload(final)
        return final

    def _upload(self, path: Path) -> None:
        remote = self._remote
        if remote is not None:
            with beat.during("upload"):
                remote.upload(self.engine, path)
                self.on_rank_0(self._remove_remote)

    def _remove_remote(self) -> None:
        removed, self._removed = self._removed, []
        if self._remote is not None:
            self._remote.remove(removed)

    def require_finite(self, step: int, state: Mapping[str, Any]) -> None:
        """Require that ``state`` is finite before it is saved as ``step``; a collective.

        Raises:
            DivergedError: a weight or an optimizer state is not finite on one of the ranks; raised on all of them.
        """

        def check() -> None:
            if names := not_finite(state):
                more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
                raise DivergedError(f"step {step}: not finite: {', '.join(names[:SHOWN])}{more}")

        try:
            self._on_all_ranks(check)
        except DivergedError as error:
            raise DivergedError(f"{error}. Nothing was saved or removed; {self.recovery_advice(step)}") from None

    def recovery_advice(self, failed: int, trend: Trend | None = None) -> str:
        """Return advice on where to resume a run that diverged; a collective.

        Args:
            failed: the step that diverged.
            trend: the run's losses (on rank 0); by default those given to the constructor.
        """
        losses = trend or self._retention.trend
        return self.on_rank_0(lambda: recovery_advice(self.folder, self._names(), losses, failed))

    def good_step(self, trend: Trend) -> int | None:
        """Return the newest checkpointed step at which the loss had not risen, by rank 0's ``trend``; a collective."""
        return self.on_rank_0(lambda: trend.newest_good(map(step_of, self._names_after_tidying())))

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, so that the run resumes from ``step``; rename foreign folders."""

        def drop() -> None:
            for path in (self.folder / name for name in self._names() if step_of(name) > step):
                if is_ours(path):
                    hidden = aside(path)
                    path.replace(hidden)
                    remove(hidden)
                else:
                    rename_foreign(path, self.warn)
                self._removed.append(path.name)
            self._remove_remote()

        self.on_rank_0(drop)

    def return_to(self, step: int) -> bool:
        """Set aside the checkpoints of later steps, so that the run resumes from ``step``; return True if it does.

        The command that names a step is also repeated after a stop: the run then resumes from its newest checkpoint.

        Raises:
            CheckpointError: there is no checkpoint of this step.
        """

        def set_aside() -> bool:
            tidy(self.folder)
            return set_aside_later(self.folder, step, self.warn)

        return self.on_rank_0(set_aside)

    def unevaluated(self, step: int) -> bool:
        """True if ``step-N`` exists and has no validation loss."""

        def look() -> bool:
            path = self.folder / f"step-{step}"
            return path.is_dir() and Manifest.read(path).val_loss is None

        return self.on_rank_0(look)

    def evaluated(self, step: int, val_loss: float) -> None:
        """Record the validation loss of ``step-N``, measured after the save."""

        def note() -> None:
            path = self.folder / f"step-{step}"
            try:
                replace(Manifest.read(path), val_loss=val_loss).write(path)
                if self._remote is not None:
                    self._remote.update(path)
                self._prune(step)  # it may be the best one now
                self._remove_remote()
            except RecipeError as error:
                self.warn(f"{path}: the validation loss of this step could not be noted ({error})")

        self.on_rank_0(note)

    def newest(self) -> Path | None:
        """Return the intact checkpoint of the highest step; None if there is no checkpoint.

        Each rank reads its share of the bytes. Damaged checkpoints are skipped with a warning.

        Raises:
            CheckpointError: there are checkpoints, and all of them are damaged.
        """
        passed_over: list[str] = []
        for name in self.on_rank_0(self._names_after_tidying):
            path = self.folder / name
            problems = self.problems(path)
            if problems and self._remote is not None and self._remote.fetch(self.engine, path):
                problems = self.problems(path)
            self._require_no_strays(path, problems)
            if not problems:
                self._warn(passed_over, path)
                if self._remote is not None:
                    self._remote.upload(self.engine, path)  # unless it is there
                return path
            self._damaged.add(name)
            passed_over.append(f"{path}: {'; '.join(problems)}")
        if passed_over:
            raise CheckpointError(
                "\n".join(
                    [
                        "no checkpoint of this run is whole:",
                        *(f"  - {text}" for text in passed_over),
                        f"Put a whole one back, remove the damaged ones to start anew (rm -r {self.folder}/step-*), "
                        "or give another --out",
                    ]
                )
            )
        return None

    def _require_no_strays(self, path: Path, problems: list[str]) -> None:
        """Raise if the only problem of a checkpoint is foreign files: if it were skipped, a save would replace it."""

        def check() -> None:
            try:
                strays = read_step(path).unlisted(path)
            except CheckpointError:  # one of the problems
                return
            if strays and len(strays) == len(problems):
                raise CheckpointError(f"{path}: {'; '.join(problems)}")

        if problems:
            self.on_rank_0(check)

    def problems(self, path: Path) -> list[str]:
        """Return all problems of a checkpoint; every byte is read."""
        try:
            manifest = self.on_rank_0(lambda: read_step(path))
        except CheckpointError as error:
            return [str(error)]
        wrong_files = self.on_rank_0(lambda: manifest.wrong_files(path))
        if wrong_files:
            return wrong_files
        largest_first = sorted(manifest.files, key=lambda name: -manifest.files[name].size)
        portions = self._on_all_ranks(lambda: manifest.wrong_hashes(path, self._portion(largest_first)))
        return [problem for portion in portions for problem in portion]

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state`` from the checkpoint ``path``.

        Raises:
            CheckpointError: it has another format, is damaged, or does not match ``state``.
        """
        self.on_rank_0(lambda: self._require_format(path))
        self._on_all_ranks(lambda: self._call("load", path, state, self.context.group))

    def _prepare(self, final: Path, size: int) -> Path:
        def make() -> str:
            self._claim()
            tidy(self.folder)
            require_space(self.folder, size, f"the checkpoint {final.name}")
            part = aside(final)
            part.mkdir(parents=True)
            return part.name

        return self.folder / self.on_rank_0(make)

    def _write(self, part: Path, state: dict[str, Any], context: SaveContext) -> None:
        def require_shared() -> None:
            if not part.is_dir():
                raise CheckpointError(
                    f"{self.folder}: this rank does not see what rank 0 writes there; "
                    "give an --out on a file system that all machines share"
                )

        self._on_all_ranks(require_shared)
        self._on_all_ranks(lambda: self._call("save", part, state, context))
        self.on_rank_0(lambda: self._require_saved(part))
        self.on_rank_0(lambda: self._write_notes(part))

    def _require_saved(self, part: Path) -> None:
        if not self._call("detect", part):
            files = ", ".join(path.name for path in sorted(part.iterdir())[:SHOWN])
            raise PluginError(
                f"checkpoint format {self.format.name!r}: save wrote {files or 'no file'}, in which its detect finds "
                "no checkpoint, so that no run could continue from it; fix the plugin"
            )

    def _call(self, method: str, *arguments: Any) -> Any:
        with as_format_error(self.format, method):
            return getattr(self.format, method)(*arguments)

    def _write_notes(self, part: Path) -> None:
        for name, text in self.notes.items():
            (part / name).write_text(text, encoding="utf-8")

    def _make_manifest(self, part: Path, step: int, val_loss: float | None) -> Manifest:
        names = self.on_rank_0(lambda: manifests.names(part))
        portions = self._on_all_ranks(lambda: {name: manifests.measure(part / name) for name in self._portion(names)})
        files: dict[str, FileEntry] = {name: entry for portion in portions for name, entry in portion.items()}
        return Manifest.of(
            part,
            format=self.format.name,
            step=step,
            torch=torch.__version__,
            world_size=self.engine.world_size,
            val_loss=val_loss,
            files=files,
        )

    def _publish(self, part: Path, final: Path, manifest: Manifest) -> None:
        def publish() -> None:
            manifest.write(part)
            for folder in (part, *(p for p in part.rglob("*") if p.is_dir())):
                sync(folder)
            old = aside(final, "old")
            if os.path.lexists(final) and not is_ours(final):
                rename_foreign(final, self.warn)
            if final.exists():
                final.replace(old)  # a folder that is not empty cannot be replaced; tidy restores this name
            part.replace(final)
            sync(self.folder)
            sync(self.folder.parent)
            remove(old)
            self._damaged.discard(final.name)
            self._prune(manifest.step)

        self.on_rank_0(publish)

    def _prune(self, saved: int) -> None:
        self._removed += self._retention.prune(self._names(), saved, self._damaged)

    def _names(self) -> list[str]:
        return checkpoint_names(self.folder)

    def _names_after_tidying(self) -> list[str]:
        tidy(self.folder)
        return self._names()

    def _warn(self, passed_over: list[str], path: Path) -> None:
        if self.engine.rank == 0:
            for text in passed_over:
                self.warn(f"{text}. Passed over; going on from {path.name}")

    def _require_format(self, path: Path) -> None:
        if not path.exists():
            raise CheckpointError(f"{path}: there is no checkpoint of this name")
        if not self._call("detect", path):
            try:
                hint = f"it was written as {Manifest.read(path).format}"
            except CheckpointError:
                hint = "it has no manifest that says what it is"
            raise CheckpointError(
                f"{path}: not a checkpoint of format {self.format.name}; {hint}. Choose the format with checkpoint.use"
            )

    def _portion(self, names: list[str]) -> list[str]:
        # Names are sorted by size, so that shares are of similar size.
        return names[self.engine.rank :: self.engine.world_size]

    def on_rank_0(self, action: Callable[[], T]) -> T:
        """Run ``action`` on rank 0 and return its result on all ranks."""
        return agreement.on_rank_0(self.engine, action, self.folder)

    def _on_all_ranks(self, action: Callable[[], T]) -> list[T]:
        return agreement.on_all_ranks(self.engine, action, self.folder)
