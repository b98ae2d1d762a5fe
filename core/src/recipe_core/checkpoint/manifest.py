"""The manifest of a checkpoint: the files that it consists of, with their sizes and SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipe_core.data.sealed import file_problem, sealed, unlisted, unsealed
from recipe_core.errors import CheckpointError
from recipe_core.files import digest, sync, write_text
from recipe_core.files.documents import read_text

NAME = "checkpoint.json"
STEP = re.compile(r"step-(0|[1-9][0-9]*)")
"""The name of a checkpoint's folder in a run."""
STRAY = "move it out of the folder"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a checkpoint."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a checkpoint, written last: a checkpoint without one is not whole."""

    format: str
    """Name of the checkpoint format."""
    step: int
    """Optimizer steps done."""
    world_size: int
    """Ranks that wrote it."""
    torch: str
    """PyTorch's version."""
    val_loss: float | None = None
    """Validation loss at this step, where the run evaluated then."""
    time: str
    """Time of writing (ISO 8601, UTC)."""
    files: Mapping[str, Entry]
    """Every file but the manifest, by its path in the folder."""

    def write(self, folder: Path) -> None:
        """Write it into ``folder``, to the disk, in place of one that is there."""
        write_text(folder / NAME, json.dumps(sealed(asdict(self)), indent=1) + "\n")

    @classmethod
    def of(
        cls, folder: Path, *, format: str, step: int, torch: str, world_size: int = 1, val_loss: float | None = None,
        files: Mapping[str, Entry] | None = None,
    ) -> Manifest:  # fmt: skip
        """The manifest of what is in ``folder`` now, which is brought to the disk, unless its ``files`` are known."""
        measured = {name: measure(folder / name) for name in names(folder)} if files is None else files
        return cls(
            format=format, step=step, world_size=world_size, torch=torch, val_loss=val_loss,
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"), files=dict(sorted(measured.items())),
        )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest in ``folder``.

        Raises:
            CheckpointError: there is none, or it is damaged; the message leaves it to the caller to name ``folder``.
        """
        try:
            plain = unsealed(read_text(folder / NAME))
            _require_known(plain)
            files = {name: Entry(size=int(e["size"]), sha256=str(e["sha256"])) for name, e in plain["files"].items()}
            return cls(
                format=str(plain["format"]), step=int(plain["step"]), world_size=int(plain["world_size"]),
                torch=str(plain["torch"]), time=str(plain["time"]), files=files,
                val_loss=None if plain.get("val_loss") is None else float(plain["val_loss"]),
            )  # fmt: skip
        except FileNotFoundError as error:
            raise CheckpointError(f"no {NAME} in it, so it was not written to its end") from error
        except OSError as error:
            raise CheckpointError(f"{NAME} cannot be read ({error.strerror or error})") from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{NAME} is damaged ({type(error).__name__}: {error})") from error

    def wrong_files(self, folder: Path) -> list[str]:
        """One message for each file that is missing, has another size or is not listed: needs no reading."""
        problems = [(name, file_problem(folder / name, entry.size)) for name, entry in self.files.items()]
        strays = [f"{name} is not in the manifest ({STRAY})" for name in self.unlisted(folder)]
        return [*(f"{name} {problem}" for name, problem in problems if problem), *strays]

    def wrong_hashes(self, folder: Path, names: Iterable[str]) -> list[str]:
        """One message for each file among ``names`` whose bytes are not those that were written."""
        entries = ((name, self.files[name]) for name in names)
        problems = ((name, file_problem(folder / name, entry.size, entry.sha256)) for name, entry in entries)
        return [f"{name} {problem}" for name, problem in problems if problem]

    def unlisted(self, folder: Path) -> list[str]:
        """Files in ``folder`` that were not there when the manifest was written."""
        return unlisted(folder, self.files, NAME)


def _require_known(plain: Mapping[str, Any]) -> None:
    """Manifests without a digest have had these entries and no others."""
    if unknown := plain.keys() - {field.name for field in fields(Manifest)}:
        raise ValueError(f"unknown entries: {', '.join(sorted(unknown))}")


def names(folder: Path) -> list[str]:
    """Paths of all files below ``folder`` but the manifest, the largest first."""
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    sizes.pop(NAME, None)
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def measure(path: Path) -> Entry:
    """Bring ``path`` to the disk and take its size and hash."""
    sync(path)
    return Entry(size=path.stat().st_size, sha256=digest(path))


def read_step(folder: Path) -> Manifest:
    """The manifest of a run's checkpoint, whose step must be that of the folder's name.

    Raises:
        CheckpointError: as :meth:`Manifest.read`, or it is of another step.
    """
    manifest = Manifest.read(folder)
    if STEP.fullmatch(folder.name) and folder.name != f"step-{manifest.step}":
        raise CheckpointError(f"{NAME} speaks of step {manifest.step}")
    return manifest


def is_ours(folder: Path) -> bool:
    """True for a checkpoint of the step in its name, whole or damaged, that holds no file that we have not written."""
    try:
        return not folder.is_symlink() and set(names(folder)) <= set(read_step(folder).files)
    except (CheckpointError, OSError):
        return False
