"""The checkpoints of a run: where they are, when one counts as whole, and how many stay. Formats move the bytes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch

from recipe_core.checkpoint import manifest as manifests
from recipe_core.checkpoint.manifest import STEP, Entry, Manifest
from recipe_core.checkpoint.state import not_finite, state_size
from recipe_core.checkpoint.trend import Trend
from recipe_core.errors import CheckpointError, DiskError, DivergedError, RecipeError
from recipe_core.files import aside, remove, require_space, sync

T = TypeVar("T")
SHOWN = 5
"""So many tensors that are not finite are named; the others are counted."""
_LEFT = re.compile(r"\.step-\d+\.[0-9a-f]{12}\.(part|old)")
"""How :func:`recipe_core.files.aside` calls what a save that was killed leaves."""
_NOT_OURS = f"no {manifests.NAME} in it lists all that it holds, so that it is not this run's to delete"


class Format(Protocol):
    """What a checkpoint format builds. All ranks call it together, and on a failure all of them raise.

    A format may have further attributes, which are set by whoever saves: ``group`` (a process group; it says that the
    format can save in another thread), ``train`` (the run's settings of training) and ``samples`` (its dataset).
    """

    name: str

    def save(self, path: Path, state: dict[str, Any]) -> None:
        """Write ``state`` into the empty folder ``path``; a :class:`recipe_core.checkpoint.lazy.Lazy` is read on the
        way."""

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state`` from ``path``: tensors in place, plain values replaced."""

    def open(self, path: Path, *, weights: bool = False) -> dict[str, Any]:
        """Everything in ``path``, as a state whose tensors are read when they are asked for. One process calls it.

        With ``weights`` the optimizer is left out, and what is wrong with it does not matter.
        """
        ...

    def detect(self, path: Path) -> bool:
        """Whether ``path`` is of this format, by the names of its files."""
        ...


class Ranks(Protocol):
    """What checkpoints need of an engine."""

    rank: int
    world_size: int

    def gather(self, value: T) -> list[T]:
        """``value`` of every rank, in rank order."""
        ...


class Checkpoints:
    """The folders ``step-N`` below ``folder``. All ranks call every method together.

    A checkpoint is written into a hidden folder beside its place. When every rank is done, each hashes its share of the
    files, rank 0 adds the manifest (``checkpoint.json``), and one rename gives it its name: whatever goes wrong before
    that leaves the older checkpoints as they were. A failure on one rank is raised on all of them.

    The folder must be one that all ranks see. Saving stops training until the disk has the bytes: it costs what
    ``torch.save`` and an fsync of this rank's part cost, and reading it once more for SHA-256 (0.3 s for 500 MB on a
    core with SHA instructions). Of the parts of :meth:`save` (prepare, write, seal, publish) only ``write`` touches the
    live tensors: whoever wants to save in the background copies the state to the host and runs them there.

    Args:
        folder: usually ``checkpoints`` in the run folder.
        format: moves the bytes.
        engine: this process's place among the ranks.
        keep: so many checkpoints stay, the newest; 0 keeps all.
        keep_best: the one of the lowest validation loss stays too.
        trend: the run's losses (on rank 0); the newest checkpoint at which the loss had not risen stays too.
        notes: further files of each checkpoint: name and text.
        warn: takes a message for the user (called on rank 0 alone).
    """

    def __init__(
        self, folder: Path, format: Format, engine: Ranks, keep: int, warn: Callable[[str], None] | None = None,
        *, keep_best: bool = False, notes: Mapping[str, str] | None = None, trend: Trend | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.format, self.engine, self.keep = folder, format, engine, keep
        self.keep_best, self.notes, self._trend = keep_best, notes or {}, trend or Trend()
        self.warn = warn or (lambda text: print(f"warning: {text}", file=sys.stderr, flush=True))
        self._damaged: set[str] = set()
        self._spared = ""  # what stays although it is beyond ``keep``, since the loss has risen
        self._left_alone: set[str] = set()

    def save(self, step: int, state: dict[str, Any], val_loss: float | None = None) -> Path:
        """Write ``state`` as ``step-N`` (in place of one of that step), then remove what is beyond ``keep``.

        ``val_loss`` is the validation loss at this step, where the run evaluated then.

        Raises:
            DiskError: too little space, or the folder cannot be written.
            CheckpointError: ``state`` cannot be saved, or not all ranks see the folder.
        """
        final, size, part = self.folder / f"step-{step}", state_size(state), None
        try:
            part = self._prepare(final, size)
            self._write(part, state)
            self._publish(part, final, self._seal(part, step, val_loss))
        except Exception as error:
            if part is not None and self.engine.rank == 0:
                remove(part)  # ranks fail together, so that none is still writing into it
            if not isinstance(error, RecipeError):
                raise
            text = f"{final} ({size / 1e6:,.1f} MB) was not saved; older checkpoints are untouched. {error}"
            raise type(error)(text) from error
        return final

    def require_finite(self, step: int, state: Mapping[str, Any]) -> None:
        """Call it before ``state`` is saved as that of ``step``.

        Raises:
            DivergedError: a weight or a state of the optimizer is not finite on one of the ranks; all raise the same.
        """

        def check() -> None:
            if names := not_finite(state):
                more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
                raise DivergedError(f"step {step}: not finite: {', '.join(names[:SHOWN])}{more}")

        try:
            self.together(check)
        except DivergedError as error:
            good = self.on_rank_0(lambda: self._sound(self._names()) or self._names()[:1])
            last = f"the last good checkpoint is {self.folder / good[0]}" if good else "there is no earlier checkpoint"
            raise DivergedError(
                f"{error}. Nothing was saved or removed; {last}. Lower train.lr, lengthen train.warmup_steps or set "
                "train.clip and continue with the same --out"
            ) from None

    def unevaluated(self, step: int) -> bool:
        """Whether ``step-N`` is there and was saved without a validation loss."""

        def look() -> bool:
            path = self.folder / f"step-{step}"
            return path.is_dir() and Manifest.read(path).val_loss is None

        return self.on_rank_0(look)

    def evaluated(self, step: int, val_loss: float) -> None:
        """Note the validation loss of ``step-N``, which was measured after it was saved."""

        def note() -> None:
            path = self.folder / f"step-{step}"
            try:
                replace(Manifest.read(path), val_loss=val_loss).write(path)
                self._prune(step)  # it may be the best one now
            except RecipeError as error:
                self.warn(f"{path}: the validation loss of this step could not be noted ({error})")

        self.on_rank_0(note)

    def newest(self) -> Path | None:
        """The whole checkpoint of the highest step; None where there is no checkpoint.

        Every byte of it is read, each rank a share. Damaged ones are passed over with a warning.

        Raises:
            CheckpointError: there are checkpoints, and all of them are damaged.
        """
        passed_over: list[str] = []
        for name in self.on_rank_0(self._names_after_tidying):
            path = self.folder / name
            problems = self.problems(path)
            self._require_no_strays(path, problems)
            if not problems:
                self._warn(passed_over, path)
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
        """Stop where files that nobody wrote here are all that is wrong: passed over, the folder would be replaced."""

        def check() -> None:
            try:
                strays = _read_manifest(path).unlisted(path)
            except CheckpointError:  # one of the problems
                return
            if strays and len(strays) == len(problems):
                raise CheckpointError(f"{path}: {'; '.join(problems)}")

        if problems:
            self.on_rank_0(check)

    def problems(self, path: Path) -> list[str]:
        """Everything wrong with a checkpoint, every byte read; empty for a whole one."""
        try:
            manifest = self.on_rank_0(lambda: _read_manifest(path))
        except CheckpointError as error:
            return [str(error)]
        found = self.on_rank_0(lambda: manifest.wrong_files(path))
        if found:
            return found
        largest_first = sorted(manifest.files, key=lambda name: -manifest.files[name].size)
        shares = self.together(lambda: manifest.wrong_hashes(path, self._share(largest_first)))
        return [problem for share in shares for problem in share]

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state`` from the checkpoint ``path``.

        Raises:
            CheckpointError: it is of another format, damaged, or does not fit ``state``.
        """
        self.on_rank_0(lambda: self._require_format(path))
        self.together(lambda: self.format.load(path, state))

    def _prepare(self, final: Path, size: int) -> Path:
        """An empty folder to write into; clear what a killed save left."""

        def make() -> str:
            self._tidy()
            require_space(self.folder, size, f"the checkpoint {final.name}")
            part = aside(final)
            part.mkdir(parents=True)
            return part.name

        return self.folder / self.on_rank_0(make)

    def _write(self, part: Path, state: dict[str, Any]) -> None:
        def require_shared() -> None:
            if not part.is_dir():
                raise CheckpointError(
                    f"{self.folder}: this rank does not see what rank 0 writes there; "
                    "give an --out on a file system that all machines share"
                )

        self.together(require_shared)
        self.together(lambda: self.format.save(part, state))
        self.on_rank_0(lambda: self._write_notes(part))

    def _write_notes(self, part: Path) -> None:
        for name, text in self.notes.items():
            (part / name).write_text(text, encoding="utf-8")

    def _seal(self, part: Path, step: int, val_loss: float | None) -> Manifest:
        """The manifest of what was written, once all of it is on the disk."""
        names = self.on_rank_0(lambda: manifests.names(part))
        shares = self.together(lambda: {name: manifests.measure(part / name) for name in self._share(names)})
        files: dict[str, Entry] = {name: entry for share in shares for name, entry in share.items()}
        return Manifest(
            format=self.format.name, step=step, val_loss=val_loss, world_size=self.engine.world_size,
            torch=torch.__version__,
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"), files=dict(sorted(files.items())),
        )  # fmt: skip

    def _publish(self, part: Path, final: Path, manifest: Manifest) -> None:
        def publish() -> None:
            manifest.write(part)
            for folder in (part, *(p for p in part.rglob("*") if p.is_dir())):
                sync(folder)
            old = aside(final, "old")
            if os.path.lexists(final) and not _is_ours(final):
                self._keep_aside(final)
            if final.exists():
                final.replace(old)  # a folder that is not empty cannot be replaced; _tidy knows what this name means
            part.replace(final)
            sync(self.folder)
            sync(self.folder.parent)
            remove(old)
            self._damaged.discard(final.name)
            self._prune(manifest.step)

        self.on_rank_0(publish)

    def _prune(self, saved: int) -> None:
        """Remove what is beyond ``keep``, damaged ones first.

        Checkpoints of a run whose loss has exploded do not push out the last good one.
        Steps above the one just saved are damaged ones, or of a run that went on from here before: nothing to decide
        about now; they do not count, lest they push out the checkpoint that was just written. Folders with anything in
        them that no manifest of ours lists stay.
        """
        if not self.keep:
            return
        older = [name for name in self._names() if int(name.removeprefix("step-")) <= saved]
        whole = [name for name in older if name not in self._damaged]
        best = {self._best(whole)} if self.keep_best else set()
        sound = self._sound(whole)
        for name in set(sound) - set(whole[: self.keep]):
            self._tell_spared(name)
        for name in set(older) - set(whole[: self.keep]) - best - set(sound) - self._left_alone:
            if not _is_ours(self.folder / name):
                self._left_alone.add(name)
                self.warn(f"{self.folder / name}: stays, though train.keep={self.keep}: {_NOT_OURS}")
                continue
            hidden = aside(self.folder / name)
            (self.folder / name).replace(hidden)  # so that it is never seen half removed
            remove(hidden)

    def _sound(self, names: list[str]) -> list[str]:
        """Of these checkpoints, the newest at which the loss had not risen, if there is one."""
        step = self._trend.newest_sound(int(name.removeprefix("step-")) for name in names)
        return [] if step is None else [f"step-{step}"]

    def _tell_spared(self, name: str) -> None:
        if name != self._spared:
            self._spared = name
            self.warn(f"the loss has risen far above its level since {name}; {self.folder / name} stays")

    def _keep_aside(self, path: Path) -> None:
        """Give another name to what stands where a checkpoint is to be, and is not one of ours."""
        other = aside(path, "kept")
        other = other.with_name(other.name[1:])  # for the user to see
        path.replace(other)
        self.warn(f"{path}: is called {other.name} from now on: {_NOT_OURS}")

    def _best(self, names: list[str]) -> str | None:
        """Of these checkpoints, that of the lowest validation loss; None where none was saved at an evaluation."""
        losses = {}
        for name in names:
            try:
                losses[name] = Manifest.read(self.folder / name).val_loss
            except CheckpointError:
                continue
        known = {name: loss for name, loss in losses.items() if loss is not None}
        return min(known, key=known.__getitem__, default=None)

    def _tidy(self) -> None:
        """Remove what a killed save left; put back a checkpoint that it was about to replace."""
        left = [path for path in self.folder.glob(".step-*") if _LEFT.fullmatch(path.name)]
        for part in (path for path in left if path.suffix == ".part"):
            remove(part)
        for old in (path for path in left if path.suffix == ".old"):
            final = self.folder / old.name[1:].split(".")[0]
            if final.exists():
                remove(old)
            else:
                old.replace(final)

    def _names(self) -> list[str]:
        """Folders of checkpoints, whole or not, the highest step first."""
        if not self.folder.is_dir():
            return []
        found = {int(m[1]): p.name for p in self.folder.iterdir() if (m := STEP.fullmatch(p.name)) and p.is_dir()}
        return [found[step] for step in sorted(found, reverse=True)]

    def _names_after_tidying(self) -> list[str]:
        self._tidy()
        return self._names()

    def _warn(self, passed_over: list[str], path: Path) -> None:
        if self.engine.rank == 0:
            for text in passed_over:
                self.warn(f"{text}. Passed over; going on from {path.name}")

    def _require_format(self, path: Path) -> None:
        if not path.exists():
            raise CheckpointError(f"{path}: there is no checkpoint of this name")
        if not self.format.detect(path):
            try:
                hint = f"it was written as {Manifest.read(path).format}"
            except CheckpointError:
                hint = "it has no manifest that says what it is"
            raise CheckpointError(
                f"{path}: not a checkpoint of format {self.format.name}; {hint}. Choose the format with checkpoint.use"
            )

    def _share(self, names: list[str]) -> list[str]:
        """This rank's part of ``names``, which stand largest first."""
        return names[self.engine.rank :: self.engine.world_size]

    def on_rank_0(self, action: Callable[[], T]) -> T:
        """What ``action`` gives on rank 0, on all ranks."""
        return cast("T", self.together(lambda: action() if self.engine.rank == 0 else None)[0])

    def together(self, action: Callable[[], T]) -> list[T]:
        """Run ``action`` on every rank and return what each gave; when one fails, all raise the same.

        No rank leaves before all have finished: one that went on alone would wait in its next collective for ever.
        """
        value: T | None = None
        failure: tuple[type[RecipeError], str] | None = None
        unexpected: Exception | None = None
        try:
            value = action()
        except RecipeError as error:
            failure = (type(error), str(error))
        except OSError as error:
            failure = (DiskError, f"{error.filename or self.folder}: {error.strerror or error}")
        except Exception as error:  # a mistake in a program, whose traceback this rank shows
            unexpected, failure = error, (CheckpointError, f"{type(error).__name__}: {error}")
        outcomes = self.engine.gather((value, failure))
        if unexpected is not None:
            raise unexpected
        failures = [(rank, found) for rank, (_, found) in enumerate(outcomes) if found]
        if failures:
            rank, (kind, text) = failures[0]
            raise kind(text if rank == 0 else f"rank {rank}: {text}")
        return [cast("T", value) for value, _ in outcomes]


def _is_ours(path: Path) -> bool:
    """Whether ``path`` is a checkpoint of this step, whole or damaged, with nothing in it that we have not written."""
    try:
        return not path.is_symlink() and set(manifests.names(path)) <= set(_read_manifest(path).files)
    except (CheckpointError, OSError):
        return False


def _read_manifest(path: Path) -> Manifest:
    manifest = Manifest.read(path)
    if STEP.fullmatch(path.name) and path.name != f"step-{manifest.step}":
        raise CheckpointError(f"{manifests.NAME} speaks of step {manifest.step}")
    return manifest
