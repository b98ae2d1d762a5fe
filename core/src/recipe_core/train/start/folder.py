"""The run folder: its lock, its record of the run, and the check that a run may continue in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from recipe_core.checkpoint.locate import find, steps
from recipe_core.checkpoint.manifest import step_of
from recipe_core.data.identity import (
    PHASES,
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
from recipe_core.engine.protocol import Ranks
from recipe_core.errors import CheckpointError, ConfigError, DiskError
from recipe_core.files import aside, atomic_folder, disk_error, lock_now, write_text
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.files.named import split_weights
from recipe_core.files.objects import is_address
from recipe_core.hooks.registry import load
from recipe_core.launch.identity import identity
from recipe_core.launch.process import noted
from recipe_core.settings.fill import flat
from recipe_core.settings.job import Job, default_of
from recipe_core.settings.saved import plugin_record
from recipe_core.settings.sections import HISTORY, IDENTITY, PLUGINS, plugin_of, without_records
from recipe_core.train.metrics.report import show, warn
from recipe_core.train.start.destination import LOCK, begun, require_run_folder
from recipe_core.train.start.resume import consumed_samples

FIXED = (
    "recipe",
    "model",
    "data",
    "train.seed",
    "train.global_batch",
    "train.precision",
    "train.optimizer",
    "train.transforms",
    "transform",
)
"""Settings that a continued run must keep: they determine the meaning of weights and states, and the next samples."""

SCHEDULE = tuple(
    f"train.{name}"
    for name in (
        "steps", "epochs", "lr", "min_lr", "schedule", "schedule_power", "warmup_steps", "warmup_ratio", "weight_decay",
        "betas", "eps", "clip",
    )
)  # fmt: skip
"""Settings that a continued run may change, with an effect on the next steps."""
PASSING = {"train.stop_after", "train.resume", "train.accept"}
"""Settings of a single start of a run."""


def agree(out: Path, job: Job, ranks: Ranks) -> None:
    """Check that all ranks have the same settings and see the same ``out``, before memory is allocated; a collective.

    Raises:
        ConfigError: they do not; or ``out`` may not be used, see :func:`open_run_folder`.
    """

    if ranks.world_size == 1:
        return

    def require_usable() -> None:
        require_same_run(out, job)
        if not begun(out):
            require_run_folder(out)

    for line in agreement.agree(
        ranks, identity(job, ranks.world_size, agreement.LIBRARIES, agreement.VARIABLES), require_usable, out
    ):
        if ranks.rank == 0:
            warn(line)


@contextmanager
def open_run_folder(out: Path, job: Job, ranks: Ranks) -> Iterator[RunFolder]:
    """Create and lock ``out`` on rank 0, and write ``job.yaml`` into it; an error is raised on all ranks.

    Rank 0 calls :meth:`RunFolder.restore` before it saves there.

    Raises:
        ConfigError: ``out`` holds a run of another model, data set or order of samples that took a step; or another
            process trains in it.
        DiskError: ``out`` cannot be written.
    """
    with ExitStack() as locks:
        run_folder = RunFolder(out, job, locks)
        on_rank_0(ranks, run_folder.open, out)
        yield run_folder


class RunFolder:
    """The run folder on rank 0: its lock, and the record of the run."""

    def __init__(self, out: Path, job: Job, locks: ExitStack) -> None:
        self._out, self._job, self._locks = out, job, locks
        self._lock: IO[bytes] | None = None
        self.identity: dict[str, Any] = {}
        """Recorded identity of the data; empty before :meth:`identify` in a new run."""
        self._history: list[str] = []
        self._done = False
        """The run has taken all its steps: its record does not change."""

    def open(self) -> None:
        """Create and lock the folder, and write ``job.yaml``; see :func:`open_run_folder`."""
        out, path = self._out, self._out / "job.yaml"
        require_same_run(out, self._job)
        if not path.exists() or not begun(out):
            require_run_folder(out)
        self._lock_folder()
        if path.exists() and begun(out):
            self._continue(read_job(path))  # `identify` writes job.yaml, after comparing the data
        else:
            write_text(path, self.text())

    def _continue(self, recorded: Mapping[str, Any]) -> None:
        self.identity = recorded_identity(recorded)
        self._history = [str(line) for line in recorded.get(HISTORY) or ()]
        step = max((step_of(path.name) for path in steps(self._out)), default=0)
        self._done = step >= self._job.train.steps
        schedule, other = changes(recorded, self._job)
        if self._done:
            more = ", and its settings stay as they are" if schedule or other else ""
            show(f"nothing is left to do: the run has taken {step:,} steps{more}; train.steps={2 * step} trains on")
            return
        for kind, changed in (("another schedule", schedule), ("other settings", other)):
            if changed:
                show(f"continuing with {kind}: {'; '.join(changed)}")
        if schedule or other:
            self._history.append(f"after step {step}: {'; '.join([*schedule, *other])}")

    def identify(self, identity: Identity, *, keep_tokenizer: bool = True) -> None:
        """Compare data and tokenizer with the record of the run, record them, and copy the tokenizer.

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
        """The text of job.yaml: settings, identity of the data if it is known, history of settings, plugins."""
        more = {IDENTITY: self.identity, HISTORY: self._history, PLUGINS: plugin_record(self._job)}
        return self._job.as_yaml({name: value for name, value in more.items() if value})

    def _keep_tokenizer(self, identity: Identity) -> None:
        folder, digest = self._out / TOKENIZER, identity.record.get("tokenizer")
        if digest is None or tokenizer_digest(read_copy(self._out)) == digest:
            return
        if folder.exists():  # a tokenizer that the user agreed to replace
            backup = aside(folder, "former")
            folder.replace(backup.with_name(backup.name[1:]))
        with atomic_folder(folder) as part:
            for name, text in identity.tokenizer.items():
                (part / name).write_text(text, encoding="utf-8")

    def restore(self) -> None:
        """Create the folder again if it was removed, so that the run can continue from what it saves.

        Raises:
            DiskError: another folder, or another run, replaced it.
        """
        assert self._lock is not None
        try:
            same = os.path.samestat(os.fstat(self._lock.fileno()), (self._out / LOCK).stat())
        except FileNotFoundError:
            self._lock_folder()
            warn(
                f"{self._out} was removed while the run trained in it: the checkpoints and metrics until now are gone. "
                "It is made again, and training goes on"
            )
            same = True
        if not same:
            raise DiskError(
                f"{self._out} was replaced while the run trained in it, and another run may train there now: nothing "
                "is saved. Give the same line again to begin anew"
            )
        if not (path := self._out / "job.yaml").exists():
            write_text(path, self.text())

    def _lock_folder(self) -> None:
        out = self._out
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, out, "cannot be made", "give another --out") from error
        if not os.access(out, os.W_OK):
            raise DiskError(f"{out}: no permission to write; give another --out")
        try:  # two runs would overwrite each other's metrics and remove each other's checkpoints
            self._lock = lock_now(out / LOCK)
        except OSError as error:
            raise disk_error(error, out, remedy="give another --out") from error
        if self._lock is None:
            raise ConfigError(f"{out}: another process trains in this folder; wait for its end, or give another --out")
        self._locks.enter_context(self._lock)
        self._locks.enter_context(noted(out))


def require_saved(out: Path, step: int) -> None:
    """Check that the last checkpoint exists, before the run reports its end.

    Raises:
        DiskError: it, or the whole folder, was removed.
    """
    if step and not (path := out / "checkpoints" / f"step-{step}").is_dir():
        raise DiskError(f"{path} was removed after the last step; give the same line again to train from what is left")


def require_same_run(out: Path, job: Job) -> None:
    """Refuse a folder with a run that ``job`` may not continue, because FIXED settings differ.

    Raises:
        ConfigError: they differ, or job.yaml cannot be read.
    """
    path = out / "job.yaml"
    if path.exists() and begun(out):
        fixed = _fixed_changes(read_job(path), job)
        changed = [f"{key} was {old!r} and is {new!r}" for key, old, new in fixed]
        if changed:
            raise ConfigError(
                f"{out} holds another run: {'; '.join(changed)}. Give another --out (train.init_from={out} begins with "
                f"its weights), or the settings of {path}"
            )


def require_same_data(out: Path, job: Job, recorded: Mapping[str, Any], identity: Identity) -> list[str]:
    """Refuse data or a tokenizer that differs from the record of the run in ``out``, and data with conflicts.

    Returns:
        The differences that ``train.accept`` accepts.

    Raises:
        ConfigError: there are differences that it does not accept.
    """
    known = recorded.get("accepted", [])
    conflicts = tuple(line for line in identity.conflicts if line not in known)
    has_phases = PHASES in recorded or PHASES in identity.record
    changed = differences(recorded, identity.record, consumed=_consumed_samples(out, job) if has_phases else None)
    if not changed:
        require_consistent(replace(identity, conflicts=conflicts), job.train.accept)
        return list(conflicts)
    problems = [*changed, *conflicts]
    head, advice = f"{out} was trained on other data", "Restore the former data, or give another --out"
    require_accepted(problems, job.train.accept, head, advice, "train.accept=")
    return problems


def _consumed_samples(out: Path, job: Job) -> int | None:
    # at the checkpoint that the run continues from; None if none is whole
    step = job.train.resume_step
    if not steps(out):
        return 0
    try:
        source = find(load(), out if step is None else out / "checkpoints" / f"step-{step}", hashes=False)
        return consumed_samples(source, job.train.global_batch)
    except CheckpointError:  # reported when it is loaded
        return None


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
    """Settings that differ from a recorded job, as messages: those of schedule and optimizer, and others.

    A setting that the record lacks counts only if it differs from its default.
    """
    before, now = dict(flat(without_records(old))), dict(flat(without_records(job.as_dict())))
    schedule, other = list[str](), list[str]()
    for path in sorted({*before, *now} - PASSING):
        if before.get(path) != now.get(path) and (path in before or now[path] != default_of(job, path)):
            of_schedule = path in SCHEDULE or path.startswith(("schedule.", "optimizer."))
            (schedule if of_schedule else other).append(f"{path} was {before.get(path)} and is {now.get(path)}")
    return schedule, other


def _in_storage(*values: Any) -> bool:
    texts = [text for value in values if isinstance(value, (list, tuple)) for text in value if isinstance(text, str)]
    return any(is_address(named.text) for named in split_weights(texts))


def _fixed_changes(old: Mapping[str, Any], job: Job) -> Iterator[tuple[str, Any, Any]]:
    # path, old and new value
    for kind in ("recipe", "model", "data"):
        recorded, owner = plugin_of(kind, old.get(PLUGINS)), job.plugins.get(kind, "")
        if recorded and owner and recorded != owner:
            yield f"the plugin of its {kind}", recorded, owner
    none: dict[str, Any] = {"train.transforms": []}  # which runs of earlier versions do not record
    before, now = ({**none, **dict(flat(without_records(sections)))} for sections in (old, job.as_dict()))
    free = () if job.data.wrappers else {f"data.{name}" for name in job.data.spec.free}  # their identity is compared
    for key in sorted({*before, *now} - {*free}):
        if key not in before and now[key] == default_of(job, key):  # of a run of an earlier version
            continue
        compared = key.startswith("data.") and recorded_identity(old).get("content")
        if compared and _in_storage(before.get(key), now.get(key)):
            continue  # maybe the same data, in object storage before or now: its identity is compared
        if before.get(key) != now.get(key) and any(key == f or key.startswith(f"{f}.") for f in FIXED):
            yield key, before.get(key), now.get(key)
