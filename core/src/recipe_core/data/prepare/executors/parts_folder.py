"""The folder ``OUTPUT.parts`` beside the output of a preparation: its parts, their logs, and their progress."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recipe_core.data.prepare.manifest import LOCK, NAME, remove_set
from recipe_core.data.prepare.output import clear_up
from recipe_core.data.prepare.part import PreparePart
from recipe_core.data.prepare.parts import read_part
from recipe_core.errors import ConfigError
from recipe_core.files import lock_now, write_text
from recipe_core.files.documents import DocumentError, read_json

_MARKER = "preparation.json"
"""File by which a folder is known to be ours."""
_TAIL = 8192
"""Bytes at the end of a log in which its last lines are searched."""


class PartsFolder:
    """The folder of the parts of ``output``: ``K-of-N`` for each part, and ``logs``.

    Nothing in it is deleted but what this class and ``recipe prepare`` have written.
    """

    def __init__(self, output: Path, kind: str, settings: Mapping[str, Any], count: int) -> None:
        # Path.resolve would follow links, which must stay links.
        self.output, self.kind, self.settings = Path(os.path.abspath(output)), kind, settings  # noqa: PTH100
        self.path = self.output.with_name(f"{self.output.name}.parts")
        self.parts = [PreparePart(number, count) for number in range(1, count + 1)]
        self.executor = self.path / "executor"
        """Folder for files of the executor."""
        self._logs = self.path / "logs"

    def part(self, part: PreparePart) -> Path:
        """Return the folder of a part."""
        return self.path / _name(part)

    def log(self, part: PreparePart) -> Path:
        """Return the log of a part."""
        return self._logs / f"{_name(part)}.log"

    def progress(self, part: PreparePart) -> Path:
        """Return the file of :func:`recipe_core.data.prepare.progress.report_to` of a part."""
        return self._logs / f"{_name(part)}.progress"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, or continue in it; no other process can do so meanwhile.

        After an error before any part was started, it is removed.

        Raises:
            ConfigError: it is not ours, was begun for another preparation, or another process works in it.
            OSError: it cannot be written.
        """
        if not self._begun():
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / _MARKER, json.dumps({"kind": self.kind, "parts": len(self.parts)}) + "\n")
        for folder in (self._logs, self.executor):
            folder.mkdir(exist_ok=True)
        lock = lock_now(self.path / LOCK)
        if lock is None:
            raise ConfigError(f"{self.path}: another process prepares these parts at the moment; wait for it")
        with lock:
            try:
                yield
            except BaseException:
                if not any(self._logs.iterdir()) and not any(map(self.is_complete, self.parts)):
                    self.remove()
                raise

    def _begun(self) -> bool:
        if not os.path.lexists(self.path) or (self.path.is_dir() and not any(self.path.iterdir())):
            return False
        try:
            begun = {} if self.path.is_symlink() else read_json(self.path / _MARKER)
            kind, count = begun["kind"], begun["parts"]
        except (OSError, DocumentError, LookupError, TypeError):
            raise ConfigError(
                f"{self.path}: the parts are made in this folder, which is there already and not ours (it has no "
                f"{_MARKER}); move it away, or name another output"
            ) from None
        if (kind, count) != (self.kind, len(self.parts)):
            raise ConfigError(
                f"{self.path}: holds parts of {kind} with --parts {count}, not of {self.kind} with --parts "
                f"{len(self.parts)}; go on with those, or remove the folder"
            )
        return True

    def missing(self) -> list[PreparePart]:
        """Return the parts that are not complete.

        Raises:
            ConfigError: a complete one has other settings.
            DataError: a complete one is damaged.
        """
        return [part for part in self.parts if not self.is_complete(part)]

    def is_complete(self, part: PreparePart) -> bool:
        """True if the folder of a part holds all of it; see :meth:`missing` for errors."""
        folder = self.part(part)
        if not (folder / NAME).is_file():
            return False
        manifest = read_part(folder).manifest
        facts = {"part": (manifest["part"], str(part))} | {
            name: (value, json.loads(json.dumps(self.settings[name])))
            for name, value in manifest["settings"].items()
            if name in self.settings
        }
        for name, (value, wanted) in facts.items():
            if value != wanted:
                raise ConfigError(
                    f"{folder}: was prepared with {name}={value}, and not with {wanted}; give the same settings, or "
                    f"remove {self.path}"
                )
        return True

    def last_lines(self, part: PreparePart, count: int = 3) -> list[str]:
        """Return the last lines of the log of a part."""
        try:
            with self.log(part).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.strip()][-count:]

    def warnings(self, part: PreparePart) -> list[str]:
        """Return the lines of a log that warn."""
        try:
            lines = self.log(part).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.startswith("recipe: warning: ")]

    def remove(self) -> list[str]:
        """Delete the parts and their logs; return the names of what others have written, which stays."""
        for part in self.parts:
            if (self.part(part) / NAME).is_file():
                clear_up(self.part(part))
                remove_set(self.part(part))
            for file in (self.log(part), self.progress(part)):
                file.unlink(missing_ok=True)
        for folder in (self._logs, self.executor):
            with suppress(OSError):  # not empty
                folder.rmdir()
        left = sorted(path.name for path in self.path.iterdir() if path.name not in (_MARKER, LOCK))
        if not left:
            for name in (LOCK, _MARKER):  # the marker last: the next run recognises the folder by it
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
        return left


def _name(part: PreparePart) -> str:
    return f"{part.number}-of-{part.count}"
