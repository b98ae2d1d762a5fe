"""The run folder: whose it is, and whether a run may continue in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from recipe_core.checkpoint.locate import steps
from recipe_core.data.identity import (
    TOKENIZER,
    Identity,
    differences,
    read_copy,
    recorded_identity,
    require_accepted,
    require_consistent,
    tokenizer_digest,
)
from recipe_core.engine import agreement
from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.protocol import Engine
from recipe_core.errors import ConfigError, DiskError
from recipe_core.files import aside, atomic_folder, disk_error, lock_now, write_text
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.launch.identity import identity
from recipe_core.launch.process import noted
from recipe_core.settings.fill import flat
from recipe_core.settings.job import HISTORY, IDENTITY, Job, default_of
from recipe_core.train.metrics.report import show, warn
from recipe_core.train.start.destination import LOCK, begun, require_run_folder

FIXED = ("recipe", "model", "data", "train.seed", "train.global_batch", "train.precision", "train.optimizer")
"""Settings that a run must keep when it continues: they decide what weights and states mean, and which samples come
next."""

SCHEDULE = tuple(
    f"train.{name}"
    for name in (
        "steps", "epochs", "lr", "min_lr", "schedule", "schedule_power", "warmup_steps", "warmup_ratio", "weight_decay",
        "betas", "eps", "clip",
    )
)  # fmt: skip
"""Settings that a run may change when it continues, and that change what the next steps do."""
PASSING = {"train.stop_after", "train.resume", "train.accept"}
"""Settings of one start of a run."""


def agree(out: Path, job: Job, engine: Engine) -> None:
    """See that all ranks were started alike and see one ``out``, before any memory is filled; all of them call it.

    Raises:
        ConfigError: they do not agree; or ``out`` may not be used, as :func:`claimed` says.
    """

    if engine.world_size == 1:  # which need not look for what others may have
        return

    def require_usable() -> None:
        require_own(out, job)
        if not begun(out):
            require_run_folder(out)

    for line in agreement.agree(
        engine, identity(job, engine.world_size, agreement.LIBRARIES, agreement.VARIABLES), require_usable, out
    ):
        if engine.rank == 0:
            warn(line)


@contextmanager
def claimed(out: Path, job: Job, engine: Engine) -> Iterator[Claim]:
    """Make ``out`` (rank 0), write ``job.yaml`` into it, and hold off other runs for the block; all ranks fail alike.

    Rank 0 calls :meth:`Claim.renew` of what this gives before it saves there.

    Raises:
        ConfigError: ``out`` holds a run of another model, data set or order of samples that took a step; or another
            process trains in it.
        DiskError: ``out`` cannot be written.
    """
    with ExitStack() as locks:
        claim = Claim(out, job, locks)
        on_rank_0(engine, claim.take, out)
        yield claim


class Claim:
    """Rank 0's hold on the run folder: its lock, and the notes at its start."""

    def __init__(self, out: Path, job: Job, locks: ExitStack) -> None:
        self._out, self._job, self._locks = out, job, locks
        self._lock: IO[bytes] | None = None
        self.identity: dict[str, Any] = {}
        """Identity of the data as the run last recorded it; empty until :meth:`identify` where there was no run."""
        self._history: list[str] = []
        self._done = False
        """The run has taken all its steps: what it recorded stays."""

    def take(self) -> None:
        """See :func:`claimed`."""
        out, path = self._out, self._out / "job.yaml"
        require_own(out, self._job)
        if not path.exists() or not begun(out):
            require_run_folder(out)
        self._hold()
        if path.exists() and begun(out):
            self._continue(read_job(path))  # job.yaml is written when the data is known to be the same
        else:
            write_text(path, self.text())

    def _continue(self, recorded: Mapping[str, Any]) -> None:
        """Take over what the run recorded, and tell which settings are others now."""
        self.identity = recorded_identity(recorded)
        self._history = [str(line) for line in recorded.get(HISTORY) or ()]
        step = max((int(path.name.removeprefix("step-")) for path in steps(self._out)), default=0)
        self._done = step >= self._job.train.steps
        schedule, others = changes(recorded, self._job)
        if self._done:
            more = ", and its settings stay as they are" if schedule or others else ""
            show(f"nothing is left to do: the run has taken {step:,} steps{more}; train.steps={2 * step} trains on")
            return
        for words, found in (("another schedule", schedule), ("other settings", others)):
            if found:
                show(f"continuing with {words}: {'; '.join(found)}")
        if schedule or others:
            self._history.append(f"after step {step}: {'; '.join([*schedule, *others])}")

    def identify(self, identity: Identity, *, keep_tokenizer: bool = True) -> None:
        """Compare the data and the tokenizer with those that the run recorded, then record them and copy the tokenizer.

        Raises:
            ConfigError: they differ, or contradict each other, and ``train.accept`` does not accept it.
            DiskError: the folder cannot be written.
        """
        accepted = [
            *self.identity.get("accepted", []),
            *require_same_data(self._out, self._job, self.identity, identity),
        ]
        self.identity = {**identity.record, **({"accepted": accepted} if accepted else {})}
        if self._done:
            return
        write_text(self._out / "job.yaml", self.text())
        if keep_tokenizer:
            self._keep_tokenizer(identity)

    def text(self) -> str:
        """The text of job.yaml: the settings, the identity of the data as far as it is known, and former settings."""
        more = {IDENTITY: self.identity, HISTORY: self._history}
        return self._job.as_yaml({name: value for name, value in more.items() if value})

    def _keep_tokenizer(self, identity: Identity) -> None:
        folder, digest = self._out / TOKENIZER, identity.record.get("tokenizer")
        if digest is None or tokenizer_digest(read_copy(self._out)) == digest:
            return
        if folder.exists():  # of a tokenizer that was replaced with the user's consent
            kept = aside(folder, "former")
            folder.replace(kept.with_name(kept.name[1:]))
        with atomic_folder(folder) as part:
            for name, text in identity.tokenizer.items():
                (part / name).write_text(text, encoding="utf-8")

    def renew(self) -> None:
        """Make the folder again where somebody has removed it meanwhile, so that what is saved can be continued.

        Raises:
            DiskError: another folder, or another run, stands in its place.
        """
        assert self._lock is not None
        try:
            there = os.path.samestat(os.fstat(self._lock.fileno()), (self._out / LOCK).stat())
        except FileNotFoundError:
            self._hold()
            warn(
                f"{self._out} was removed while the run trained in it: the checkpoints and metrics until now are gone. "
                "It is made again, and training goes on"
            )
            there = True
        if not there:
            raise DiskError(
                f"{self._out} was replaced while the run trained in it, and another run may train there now: nothing "
                "is saved. Give the same line again to begin anew"
            )
        if not (path := self._out / "job.yaml").exists():
            write_text(path, self.text())

    def _hold(self) -> None:
        out = self._out
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, out, "cannot be made", "give another --out") from error
        if not os.access(out, os.W_OK):
            raise DiskError(f"{out}: no permission to write; give another --out")
        try:  # two runs would spoil each other's metrics and remove each other's checkpoints
            self._lock = lock_now(out / LOCK)
        except OSError as error:
            raise disk_error(error, out, way_out="give another --out") from error
        if self._lock is None:
            raise ConfigError(f"{out}: another process trains in this folder; wait for its end, or give another --out")
        self._locks.enter_context(self._lock)
        self._locks.enter_context(noted(out))


def require_saved(out: Path, step: int) -> None:
    """Check that the last checkpoint is there when the run is about to say so.

    Raises:
        DiskError: it was removed, or all of the folder.
    """
    if step and not (path := out / "checkpoints" / f"step-{step}").is_dir():
        raise DiskError(f"{path} was removed after the last step; give the same line again to train from what is left")


def require_own(out: Path, job: Job) -> None:
    """Refuse a folder whose run took a step with other settings than ``job`` may continue it with.

    Raises:
        ConfigError: it holds such a run, or its job.yaml cannot be read.
    """
    path = out / "job.yaml"
    if path.exists() and begun(out):
        changed = [f"{key} was {old!r} and is {new!r}" for key, old, new in _changes(read_job(path), job.as_dict())]
        if changed:
            raise ConfigError(
                f"{out} holds another run: {'; '.join(changed)}. Give another --out (train.init_from={out} begins with "
                f"its weights), or the settings of {path}"
            )


def require_same_data(out: Path, job: Job, recorded: Mapping[str, Any], identity: Identity) -> list[str]:
    """Refuse other data, or another tokenizer, than the run in ``out`` recorded, and data that contradicts itself.

    Returns:
        The differences that ``train.accept`` accepts.

    Raises:
        ConfigError: there are others.
    """
    known = recorded.get("accepted", [])
    conflicts = tuple(line for line in identity.conflicts if line not in known)
    changed = differences(recorded, identity.record)
    if not changed:
        require_consistent(replace(identity, conflicts=conflicts), job.train.accept)
        return list(conflicts)
    found = [*changed, *conflicts]
    head, advice = f"{out} was trained on other data", "Restore the former data, or give another --out"
    require_accepted(found, job.train.accept, head, advice, "train.accept=")
    return found


def read_job(path: Path) -> Mapping[str, Any]:
    """The content of a job.yaml in a run folder.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        sections = read_yaml(path)
    except (OSError, DocumentError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error}); give another --out") from error
    if not isinstance(sections, Mapping):
        raise ConfigError(f"{path}: expected settings as `recipe show` prints them; give another --out")
    return sections


def changes(old: Mapping[str, Any], job: Job) -> tuple[list[str], list[str]]:
    """Settings that differ from a recorded job, in words: those of the schedule and the optimizer, and others.

    One that the version of that time did not have is none, as long as it has its default.
    """
    before, now = dict(flat(_settings(old))), dict(flat(_settings(job.as_dict())))
    schedule, others = list[str](), list[str]()
    for path in sorted({*before, *now} - PASSING):
        if before.get(path) != now.get(path) and (path in before or now[path] != default_of(job, path)):
            of_schedule = path in SCHEDULE or path.startswith(("schedule.", "optimizer."))
            (schedule if of_schedule else others).append(f"{path} was {before.get(path)} and is {now.get(path)}")
    return schedule, others


def _settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sections.items() if name not in (IDENTITY, HISTORY)}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Settings among FIXED that differ: their path, the old and the new value."""
    before, now = dict(flat(old)), dict(flat(new))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key) and any(key == f or key.startswith(f"{f}.") for f in FIXED):
            yield key, before.get(key), now.get(key)
