"""Find the checkpoint at a path and its format, by file names. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.checkpoint.formats.build import as_format_error, build_format
from recipe_core.checkpoint.io import hub_files
from recipe_core.checkpoint.io.archive import has_checksums
from recipe_core.checkpoint.manifest import NAME, STEP, Manifest, step_of
from recipe_core.errors import CheckpointError
from recipe_core.files.documents import DocumentError, read_yaml
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import CheckpointFormat, Part

if TYPE_CHECKING:
    from recipe_core.checkpoint.formats.base import Format

_SHOWN = 3
"""Number of files that a message names; it counts the others."""
_DEEPEST = 3
"""Largest number of folders between a file of a checkpoint and its manifest."""


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint on disk and its format."""

    path: Path
    """A folder, or one file."""
    format: CheckpointFormat
    manifest: Manifest | None = None
    """None for checkpoints of other programs."""
    passed_over: tuple[str, ...] = ()
    """Newer checkpoints of the same run that are damaged, with the reason."""

    @property
    def folder(self) -> Path:
        """Folder of the checkpoint, or of its file."""
        return self.path if self.path.is_dir() else self.path.parent

    def open(self, *, weights: bool = False) -> dict[str, Any]:
        """Return its state, with lazy tensors (:mod:`recipe_core.checkpoint.lazy`).

        With ``weights``, the optimizer is omitted.

        Raises:
            CheckpointError: it is damaged.
        """
        form = self.reader()
        with as_format_error(form, "open"):
            return form.open(self.path, weights=weights)

    @cached_property
    def weights(self) -> Mapping[str, Any]:
        """Its state without the optimizer, see :meth:`open`; opened once."""
        return self.open(weights=True)

    def reader(self) -> Format:
        """Return its format with default settings, which suffice for reading."""
        return build_format(Part(self.format, self.format.config()))

    def unchecked(self) -> str:
        """Return a sentence that names the files without checksums; empty if there are none."""
        files = [] if self.manifest else self.reader().files(self.path)
        bare = [file.name for file in files if not has_checksums(file) and not hub_files.recorded(file)]
        if not bare:
            return ""
        more = f" and {len(bare) - _SHOWN:,} more" if len(bare) > _SHOWN else ""
        return (
            f"the values of {', '.join(bare[:_SHOWN])}{more}: neither the file nor a manifest has check sums of them, "
            "so that damage to them cannot be seen"
        )

    @cached_property
    def job(self) -> Mapping[str, Any]:
        """The settings of the run that wrote it, from ``job.yaml``; empty if unknown.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self.folder / "job.yaml"
        if not path.is_file():
            return {}
        try:
            sections = read_yaml(path)
        except (OSError, DocumentError) as error:
            raise CheckpointError(f"{path}: cannot be read as YAML ({error})") from error
        return sections if isinstance(sections, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of ``recipe convert``."""

    source: Path
    """A run folder, a checkpoint's folder or file."""
    target: Path
    """The folder to create."""
    to: Part[CheckpointFormat]
    """The target format with its settings."""
    format: str | None = None
    """The source's format, if its files do not determine it."""
    recipe: str | None = None
    """A recipe of the source's model, if the source does not record it."""
    drop_optimizer: bool = False
    """Omit the optimizer state."""
    weights_of: str | None = None
    """A callback whose weights are taken instead of the model's; set ``drop_optimizer`` then, too."""


def find(registry: Registry, path: Path, name: str | None = None, *, hashes: bool = True) -> StoredCheckpoint:
    """Find the checkpoint at ``path``; of a run folder or a folder of steps, the newest complete one.

    Args:
        registry: provides the formats.
        path: a folder or a file.
        name: its format; None: determined by its manifest or its file names.
        hashes: verify the hash of every file against the manifest; else only sizes.

    Raises:
        CheckpointError: there is no checkpoint, no complete one, or none of a known format.
        PluginError: the format is not installed.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such file or folder")
    passed_over: list[str] = []
    for step in reversed(steps(path)):
        manifest, problems = _manifest(step, hashes)
        if manifest is not None and not problems:
            form = registry.get("checkpoint", name or manifest.format)
            return StoredCheckpoint(path=step, format=form, manifest=manifest, passed_over=tuple(passed_over))
        passed_over.append(f"{step}: {'; '.join(problems)}")
    if passed_over:
        raise CheckpointError("\n".join([f"{path}: no checkpoint in it is whole:", *(f"  - {t}" for t in passed_over)]))
    folder = _native_folder(path)
    if folder is not None:
        manifest, problems = _manifest(folder, hashes)
        if manifest is None or problems:
            raise CheckpointError(f"{folder} is not a whole checkpoint: {'; '.join(problems)}")
        return StoredCheckpoint(
            path=path, format=registry.get("checkpoint", name or manifest.format), manifest=manifest
        )
    source = StoredCheckpoint(
        path=path, format=registry.get("checkpoint", name) if name else _known_by_files(registry, path)
    )
    files = path.iterdir() if path.is_dir() else [path]
    if hashes and (problems := hub_files.problems(file for file in sorted(files) if file.is_file())):
        raise CheckpointError("\n".join(problems))
    return source


def _native_folder(path: Path) -> Path | None:
    """Folder of the native checkpoint that ``path`` is or is inside of; None for foreign checkpoints."""
    if (path / NAME).is_file() or (path.is_dir() and STEP.fullmatch(path.name)):
        return path
    for folder in path.absolute().parents[:_DEEPEST]:
        if (folder / NAME).is_file():
            return folder
    return None


def formats_at(registry: Registry, path: Path) -> list[CheckpointFormat]:
    """Return the formats whose file patterns match ``path``."""
    known = (registry.get("checkpoint", name) for name in registry.names("checkpoint"))
    matching = [spec for spec in known if any(_matches(path, pattern) for pattern in spec.patterns)]
    refined = {spec.refines for spec in matching}
    return [spec for spec in matching if spec.name not in refined]


def steps(path: Path) -> list[Path]:
    """Return the checkpoints of a run folder or of its folder of checkpoints, newest last."""
    for folder in (path, path / "checkpoints"):
        folders = [p for p in folder.iterdir() if STEP.fullmatch(p.name)] if folder.is_dir() else []
        if folders:
            return sorted(folders, key=lambda p: step_of(p.name))
    return []


def _manifest(path: Path, hashes: bool) -> tuple[Manifest | None, list[str]]:
    try:
        manifest = Manifest.read(path)
    except CheckpointError as error:
        return None, [str(error)]
    problems = manifest.wrong_files(path)
    if hashes and not problems:
        problems = manifest.wrong_hashes(path, manifest.files)
    return manifest, problems


def _known_by_files(registry: Registry, path: Path) -> CheckpointFormat:
    matching = formats_at(registry, path)
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(spec.name for spec in matching)
        raise CheckpointError(f"{path}: it has files of several formats ({names}); say which is meant: --from FORMAT")
    raise CheckpointError("\n".join([f"{path}: no checkpoint of a known format. They are known by", *_known(registry)]))


def _known(registry: Registry) -> Iterator[str]:
    for name in registry.names("checkpoint"):
        if patterns := registry.get("checkpoint", name).patterns:
            yield f"  - {name}: {' or '.join(patterns)}"


def _matches(path: Path, pattern: str) -> bool:
    if path.is_dir():
        return any(path.glob(pattern))
    return fnmatchcase(path.name, pattern.rpartition("/")[2])
