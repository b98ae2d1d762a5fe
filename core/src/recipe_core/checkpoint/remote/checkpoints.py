"""The checkpoints of a run in object storage: uploaded, downloaded and removed.

``checkpoints/step-N/`` holds the files of a checkpoint. Its manifest, ``checkpoint.json``, is written last and commits
it; without a manifest, a checkpoint is never listed. ``upload.json``, the same manifest under another name, is there
while the files are uploaded: it lists what a killed upload left behind. ``.recipe/latest.json`` names the step that was
committed last, so that a resumed run does not depend on a list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from recipe_core.checkpoint.manifest import NAME, STEP, Manifest, is_ours, read_step, step_of
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.engine.agreement import on_all_ranks, on_rank_0
from recipe_core.engine.protocol import Ranks
from recipe_core.errors import CheckpointError, RecipeError
from recipe_core.files import aside, remove, require_space, sync

FOLDER = "checkpoints"
UPLOAD = "upload.json"
LATEST = ".recipe/latest.json"


class RemoteCheckpoints:
    """The checkpoints of ``folder``, and those of the same names below an address.

    The working folder has all of them: of those that this machine has not loaded or saved, only the manifest.

    Args:
        objects: of the run.
        folder: ``checkpoints`` in the working folder.
        claim: raises if the run no longer holds the lock; called on rank 0.
        before_commit: called on rank 0 before a manifest is written.
    """

    def __init__(
        self, objects: Objects, folder: Path, *, claim: Callable[[], None],
        before_commit: Callable[[], object] = bool,
    ) -> None:  # fmt: skip
        self._objects, self._folder, self._claim, self._before_commit = objects, folder, claim, before_commit

    def restore(self, ranks: Ranks) -> None:
        """Give the working folder the manifests of all committed checkpoints, and the files of the newest one; a
        collective.

        Raises:
            CheckpointError: the checkpoint that was committed last is not there.
        """
        newest = on_rank_0(ranks, self._restore_manifests, self._folder)
        if newest is not None:
            self.fetch(ranks, self._folder / newest)

    def _restore_manifests(self) -> str | None:
        # the newest checkpoint, if its files are missing
        self._claim()
        for name, manifest in committed(self._objects, lambda name: (self._folder / name).exists()):
            (self._folder / name).mkdir(parents=True)
            manifest.write(self._folder / name)
        names = [path.name for path in self._folder.glob("step-*") if STEP.fullmatch(path.name)]
        newest = max(names, key=step_of, default=None)
        return newest if newest is not None and _lacks_files(self._folder / newest) else None

    def fetch(self, ranks: Ranks, path: Path) -> bool:
        """Download the checkpoint of the name of ``path`` and put it there; False if none is committed.

        Each rank downloads its share of the files. A collective.
        """

        def prepare() -> tuple[str, Manifest] | None:
            manifest = read_manifest(self._objects, path.name)
            if manifest is None or (path.exists() and not is_ours(path)):
                return None
            require_space(self._folder, sum(entry.size for entry in manifest.files.values()), path.name)
            part = aside(path)
            part.mkdir(parents=True)
            return part.name, manifest

        prepared = on_rank_0(ranks, prepare, self._folder)
        if prepared is None:
            return False
        part, manifest = self._folder / prepared[0], prepared[1]

        def download() -> None:
            for name in _share(manifest, ranks):
                self._objects.download(f"{FOLDER}/{path.name}/{name}", part / name, manifest.files[name].size)
                sync(part / name)

        def publish() -> None:
            manifest.write(part)
            old = aside(path, "old")
            if path.exists():
                path.replace(old)
            part.replace(path)
            sync(self._folder)
            remove(old)

        try:
            on_all_ranks(ranks, download, self._folder)
            on_rank_0(ranks, publish, self._folder)
        except RecipeError:
            if ranks.rank == 0:
                remove(part)
            raise
        return True

    def upload(self, ranks: Ranks, path: Path) -> None:
        """Upload the checkpoint ``path``, each rank its share of the files, and commit it; a collective.

        One that is committed already is not uploaded again. When a rank fails, the others end their uploads early.

        Raises:
            RecipeError: a rank failed; the checkpoint is not committed.
        """
        failed = self._folder / f".failed-{path.name}"
        try:
            manifest, wanted = on_rank_0(ranks, lambda: self._prepare_upload(path, failed), self._folder)
            if wanted:
                on_all_ranks(ranks, lambda: self._send(path, _share(manifest, ranks), failed), self._folder)
                on_rank_0(ranks, lambda: self._commit(path.name, manifest), self._folder)
        except RecipeError as error:
            text = (
                f"{self._objects.address}/{FOLDER}/{path.name} was not uploaded; earlier checkpoints are untouched. "
                f"{error}. It is whole in {path}: the same command on this machine uploads it and goes on"
            )
            raise type(error)(text) from error
        finally:
            if ranks.rank == 0:
                remove(failed)

    def _prepare_upload(self, path: Path, failed: Path) -> tuple[Manifest, bool]:
        self._claim()
        remove(failed)
        manifest, there = read_step(path), read_manifest(self._objects, path.name)
        if there is not None and there.files == manifest.files:
            if there != manifest:
                self._write(path.name, NAME, manifest)
            self._note_latest(manifest.step)
            return manifest, False
        self._remove_unfinished(path.name)
        if there is not None:
            self.remove([path.name])
        self._write(path.name, UPLOAD, manifest)
        return manifest, True

    def _send(self, path: Path, names: Sequence[str], failed: Path) -> None:
        def check() -> None:
            if failed.exists():
                raise _PeerFailedError

        try:
            for name in names:
                self._objects.upload(f"{FOLDER}/{path.name}/{name}", path / name, check)
        except _PeerFailedError:
            return  # its own error is raised on all ranks
        except BaseException:
            failed.touch()
            raise

    def _commit(self, name: str, manifest: Manifest) -> None:
        self._before_commit()
        self._claim()
        self._write(name, NAME, manifest)
        self._note_latest(manifest.step)
        self._objects.delete(f"{FOLDER}/{name}/{UPLOAD}")

    def update(self, path: Path) -> None:
        """Write the manifest of a committed checkpoint again, which has changed; call it on rank 0."""
        if read_manifest(self._objects, path.name) is not None:
            self._claim()
            self._write(path.name, NAME, Manifest.read(path))

    def remove(self, names: Iterable[str]) -> None:
        """Remove checkpoints: first their manifests, then the files that these list; call it on rank 0.

        Other objects stay.
        """
        names = list(names)
        if not names:
            return
        self._claim()
        known = {name: manifest for name in names if (manifest := read_manifest(self._objects, name)) is not None}
        for name, manifest in known.items():
            self._write(name, UPLOAD, manifest)  # lists what is left if this is interrupted
        self._withdraw(list(known))
        for name, manifest in known.items():
            self._delete_files(name, manifest)

    def _withdraw(self, names: Sequence[str]) -> None:
        """Delete manifests; if they are of the newest checkpoint, the one before is the latest from then on."""
        if read_latest(self._objects) in names:
            left = next((manifest for name, manifest in committed(self._objects) if name not in names), None)
            if left is not None:
                self._note_latest(left.step)
            else:
                self._objects.delete(LATEST)
        for name in names:
            self._objects.delete(f"{FOLDER}/{name}/{NAME}")

    def _delete_files(self, name: str, manifest: Manifest) -> None:
        for file in manifest.files:
            self._objects.delete(f"{FOLDER}/{name}/{file}")
        self._objects.delete(f"{FOLDER}/{name}/{UPLOAD}")

    def _remove_unfinished(self, besides: str) -> None:
        # what uploads and removals that were killed have left
        for name in self._objects.folders(FOLDER):
            if name == besides or not STEP.fullmatch(name) or (self._folder / name).exists():
                continue
            manifest = read_manifest(self._objects, name, UPLOAD)
            if manifest is not None and read_manifest(self._objects, name) is None:
                self._delete_files(name, manifest)

    def _note_latest(self, step: int) -> None:
        if read_latest(self._objects) != f"step-{step}":
            self._objects.write(LATEST, json.dumps({"step": step}).encode() + b"\n")

    def _write(self, step: str, name: str, manifest: Manifest) -> None:
        self._objects.write(f"{FOLDER}/{step}/{name}", manifest.text().encode())


class _PeerFailedError(Exception):
    pass


def committed(
    objects: Objects, skip: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[str, Manifest]]:  # fmt: skip
    """Yield names and manifests of the committed checkpoints of a run, newest first, but for those to ``skip``.

    Raises:
        CheckpointError: the one that was committed last is not there.
    """
    latest = read_latest(objects)
    names = {name for name in objects.folders(FOLDER) if STEP.fullmatch(name)}
    if latest is not None:
        names.add(latest)  # a list may be older than what was written
    for name in sorted((name for name in names if not skip(name)), key=step_of, reverse=True):
        manifest = read_manifest(objects, name)
        if manifest is not None:
            yield name, manifest
        elif name == latest:
            raise CheckpointError(
                f"{objects.address}: {LATEST} says that {latest} was committed last, and its {NAME} is not there; put "
                f"it back, or delete {objects.address}/{LATEST} to go on from an earlier checkpoint"
            )


def read_manifest(objects: Objects, name: str, file: str = NAME) -> Manifest | None:
    """Read the manifest of checkpoint ``name``; None if there is none.

    Raises:
        CheckpointError: it is damaged, is of another step, or lists files outside of the checkpoint.
    """
    address = f"{objects.address}/{FOLDER}/{name}"
    content = objects.read(f"{FOLDER}/{name}/{file}")
    if content is None:
        return None
    try:
        return parse_manifest(content, name)
    except CheckpointError as error:
        raise CheckpointError(
            f"{address}: {error}; delete {address}/{file} if another checkpoint is to be used"
        ) from error


def parse_manifest(content: bytes, name: str = "") -> Manifest:
    """Read a manifest; ``name`` is that of its checkpoint, if it has a step in it.

    Raises:
        CheckpointError: it is damaged, is of another step, or lists files outside of the checkpoint.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{NAME} is damaged ({error})") from error
    manifest = Manifest.parse(text)
    if STEP.fullmatch(name) and step_of(name) != manifest.step:
        raise CheckpointError(f"{NAME} speaks of step {manifest.step}")
    for file in manifest.files:
        if PurePosixPath(file).is_absolute() or ".." in file.split("/") or "\\" in file:
            raise CheckpointError(f"{NAME} lists {file!r}, which is outside of the checkpoint")
    return manifest


def read_latest(objects: Objects) -> str | None:
    """Return the name of the checkpoint that was committed last; None if there is none.

    Raises:
        CheckpointError: the record is damaged.
    """
    content = objects.read(LATEST)
    if content is None:
        return None
    try:
        return f"step-{int(json.loads(content)['step'])}"
    except (ValueError, TypeError, KeyError) as error:
        address = f"{objects.address}/{LATEST}"
        raise CheckpointError(f"{address}: is damaged ({error}); delete it to go on from the newest listed") from error


def _lacks_files(path: Path) -> bool:
    try:
        return any(not (path / name).is_file() for name in Manifest.read(path).files)
    except CheckpointError:
        return False


def _share(manifest: Manifest, ranks: Ranks) -> list[str]:
    # sorted by size, so that shares are of similar size
    names = sorted(manifest.files, key=lambda name: (-manifest.files[name].size, name))
    return names[ranks.rank :: ranks.world_size]
