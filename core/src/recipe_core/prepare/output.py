"""The output of a preparation: made in a side folder that an interrupted run leaves for the next one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError, DataError
from recipe_core.files import sync, write_text


class Output:
    """A folder ``final`` that appears when it is complete.

    Until then its files stand in ``.NAME.part`` beside it, with a journal of what is done. A run with the same
    ``settings`` (plain data; inputs with their sizes and times among them) continues there; one with others starts anew.

    Raises:
        ConfigError: ``final`` exists and ``overwrite`` is false.
    """

    def __init__(self, final: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        self.final, self.overwrite = final, overwrite
        if final.exists() and not overwrite:
            raise ConfigError(f"output: {final} exists; name another folder, or set overwrite=true to replace it")
        self.folder = final.with_name(f".{final.name}.part")
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self._journal = self.folder / "journal.jsonl"
        self.entries: list[dict[str, Any]] = self._read()
        if not self.entries:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self.note({"key": self.key})

    def _read(self) -> list[dict[str, Any]]:
        """Entries of an earlier run of the same settings, the unfinished last line dropped."""
        entries = []
        for line in self._journal.read_text().splitlines() if self._journal.exists() else ():
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                break
        if not entries or entries[0].get("key") != self.key:
            return []
        # what follows a torn line must not be appended to it
        write_text(self._journal, "".join(json.dumps(e) + "\n" for e in entries))
        return entries

    @property
    def done(self) -> list[dict[str, Any]]:
        """What :meth:`note` recorded, in this run and the one it continues."""
        return self.entries[1:]

    def note(self, entry: dict[str, Any]) -> None:
        """Record, for good, that a part is complete; its files must be on the disk before (``files.sync``)."""
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        sync(self._journal)
        if entry not in self.entries[-1:]:
            self.entries.append(entry)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write ``manifest.json`` and give the folder its final name."""
        write_text(self.folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        self._journal.unlink()
        for path in self.folder.rglob("*"):
            sync(path)
        if self.final.exists():
            if not self.overwrite:
                raise ConfigError(f"output: {self.final} appeared meanwhile; name another folder")
            old = self.final.with_name(f".{self.final.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            self.final.rename(old)
            self.folder.rename(self.final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.folder.rename(self.final)
        sync(self.final.parent)


def input_facts(paths: list[Path]) -> list[dict[str, Any]]:
    """Name, size and time of change of every input: what a continued run compares."""
    return [{"path": str(p), "bytes": p.stat().st_size, "changed": p.stat().st_mtime_ns} for p in paths]


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces.

    Raises:
        DataError: it cannot be read.
    """
    total = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                total.update(piece)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return total.hexdigest()
