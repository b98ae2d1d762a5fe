"""The manifest of a checkpoint: its files with sizes and SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipe_core.data.digest import file_problem, unlisted, verify_digest, with_digest
from recipe_core.errors import CheckpointError
from recipe_core.files import digest, sync, write_text
from recipe_core.files.documents import read_text

NAME = "checkpoint.json"
STEP = re.compile(r"step-(0|[1-9][0-9]*)")
"""Name of a checkpoint's folder in a run."""
STRAY = "move it out of the folder"


def step_of(name: str) -> int:
    """Return N of ``step-N``, the name of a checkpoint's folder in a run."""
    return int(name.removeprefix("step-"))


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint."""

    size: int
    """Size in bytes."""
    sha256: str
    """Hexadecimal digest."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a checkpoint, written last: a checkpoint without a manifest is incomplete."""

    format: str
    """Name of the checkpoint format."""
    step: int
    """Completed optimizer steps."""
    world_size: int
    """Number of ranks that wrote it."""
    torch: str
    """PyTorch's version."""
    val_loss: float | None = None
    """Validation loss at this step, if it was evaluated."""
    time: str
    """Time of writing (ISO 8601, UTC)."""
    files: Mapping[str, FileEntry]
    """All files except the manifest, by path in the folder."""

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder`` and sync it to disk, replacing an existing one."""
        write_text(folder / NAME, self.text())

    def text(self) -> str:
        """Return its text, with a digest of it."""
        return json.dumps(with_digest(asdict(self)), indent=1) + "\n"

    @classmethod
    def of(
        cls, folder: Path, *, format: str, step: int, torch: str, world_size: int = 1, val_loss: float | None = None,
        files: Mapping[str, FileEntry] | None = None, check: Callable[[], object] = bool,
    ) -> Manifest:  # fmt: skip
        """Return the manifest of ``folder``; unless ``files`` are given, its files are synced to disk and hashed.

        ``check`` is called before each MiB, and may raise to end that.
        """
        measured = {name: measure(folder / name, check) for name in names(folder)} if files is None else files
        return cls(
            format=format, step=step, world_size=world_size, torch=torch, val_loss=val_loss,
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"), files=dict(sorted(measured.items())),
        )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest in ``folder``.

        Raises:
            CheckpointError: it is missing or damaged; the message does not name ``folder``.
        """
        try:
            return cls.parse(read_text(folder / NAME))
        except FileNotFoundError as error:
            raise CheckpointError(f"no {NAME} in it, so it was not written to its end") from error
        except OSError as error:
            raise CheckpointError(f"{NAME} cannot be read ({error.strerror or error})") from error
        except ValueError as error:  # not text
            raise CheckpointError(f"{NAME} is damaged ({type(error).__name__}: {error})") from error

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read the text of a manifest.

        Raises:
            CheckpointError: it is damaged.
        """
        try:
            plain = verify_digest(text)
            _require_known(plain)
            files = {
                name: FileEntry(size=int(e["size"]), sha256=str(e["sha256"])) for name, e in plain["files"].items()
            }
            return cls(
                format=str(plain["format"]), step=int(plain["step"]), world_size=int(plain["world_size"]),
                torch=str(plain["torch"]), time=str(plain["time"]), files=files,
                val_loss=None if plain.get("val_loss") is None else float(plain["val_loss"]),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{NAME} is damaged ({type(error).__name__}: {error})") from error

    def wrong_files(self, folder: Path) -> list[str]:
        """Return one message for each file that is missing, has another size or is not listed; no file is read."""
        problems = [(name, file_problem(folder / name, entry.size)) for name, entry in self.files.items()]
        strays = [f"{name} is not in the manifest ({STRAY})" for name in self.unlisted(folder)]
        return [*(f"{name} {problem}" for name, problem in problems if problem), *strays]

    def wrong_hashes(self, folder: Path, names: Iterable[str]) -> list[str]:
        """Return one message for each file of ``names`` whose hash differs."""
        entries = ((name, self.files[name]) for name in names)
        problems = ((name, file_problem(folder / name, entry.size, entry.sha256)) for name, entry in entries)
        return [f"{name} {problem}" for name, problem in problems if problem]

    def unlisted(self, folder: Path) -> list[str]:
        """Return the files in ``folder`` that the manifest does not list."""
        return unlisted(folder, self.files, NAME)


def _require_known(plain: Mapping[str, Any]) -> None:
    if unknown := plain.keys() - {field.name for field in fields(Manifest)}:
        raise ValueError(f"unknown entries: {', '.join(sorted(unknown))}")


def names(folder: Path) -> list[str]:
    """Return the paths of all files in ``folder`` except the manifest, largest first."""
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    sizes.pop(NAME, None)
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def measure(path: Path, check: Callable[[], object] = bool) -> FileEntry:
    """Sync ``path`` to disk and return its size and hash; see :meth:`Manifest.of`."""
    sync(path)
    return FileEntry(size=path.stat().st_size, sha256=digest(path, check))


def read_step(folder: Path) -> Manifest:
    """Read the manifest of a run's checkpoint, whose step must be the one in the folder's name.

    Raises:
        CheckpointError: as :meth:`Manifest.read`, or the step differs.
    """
    manifest = Manifest.read(folder)
    if STEP.fullmatch(folder.name) and folder.name != f"step-{manifest.step}":
        raise CheckpointError(f"{NAME} speaks of step {manifest.step}")
    return manifest


def is_ours(folder: Path) -> bool:
    """True if ``folder`` is a checkpoint of the step in its name, intact or damaged, without unlisted files."""
    try:
        return not folder.is_symlink() and set(names(folder)) <= set(read_step(folder).files)
    except (CheckpointError, OSError):
        return False
