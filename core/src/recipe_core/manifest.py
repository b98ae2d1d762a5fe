"""The manifest of a checkpoint: the files that it consists of, with their sizes and SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from recipe_core.errors import CheckpointError
from recipe_core.files import digest, sync, write_text

NAME = "checkpoint.json"
STEP = re.compile(r"step-(0|[1-9][0-9]*)")
"""How a run calls a checkpoint's folder."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a checkpoint."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint says about itself. It is written last, so that a checkpoint without one is not whole."""

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
    """When it was written (ISO 8601, UTC)."""
    files: Mapping[str, Entry]
    """Every file but the manifest, by its path in the folder."""

    def write(self, folder: Path) -> None:
        """Write it into ``folder``, to the disk, in place of one that is there."""
        write_text(folder / NAME, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest in ``folder``.

        Raises:
            CheckpointError: there is none, or it is damaged; the message leaves it to the caller to name ``folder``.
        """
        try:
            plain = json.loads((folder / NAME).read_text(encoding="utf-8"))
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
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{NAME} is damaged ({type(error).__name__}: {error})") from error

    def wrong_sizes(self, folder: Path) -> list[str]:
        """One message for each file that is missing or has another size: needs no reading."""
        return [problem for name, entry in self.files.items() if (problem := _wrong_size(folder / name, entry))]

    def wrong_hashes(self, folder: Path, names: Iterable[str]) -> list[str]:
        """One message for each file among ``names`` whose bytes are not those that were written."""
        return [problem for name in names if (problem := _wrong_hash(folder / name, self.files[name]))]


def _wrong_size(path: Path, entry: Entry) -> str:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror or error})"
    return f"{path.name} has {size:,} bytes instead of {entry.size:,}" if size != entry.size else ""


def _wrong_hash(path: Path, entry: Entry) -> str:
    try:
        found = digest(path)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror or error})"
    return f"{path.name} does not hold the bytes that were written (SHA-256 differs)" if found != entry.sha256 else ""


def names(folder: Path) -> list[str]:
    """Paths of all files below ``folder`` but the manifest, the largest first."""
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    sizes.pop(NAME, None)
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def measure(path: Path) -> Entry:
    """Bring ``path`` to the disk and take its size and hash."""
    sync(path)
    return Entry(size=path.stat().st_size, sha256=digest(path))
