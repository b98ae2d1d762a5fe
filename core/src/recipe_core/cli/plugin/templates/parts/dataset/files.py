"""Prepare, inspect and verify the files. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core import DataError
from recipe_core.data.prepare import Inspection, Output, file_facts, file_problems, read_manifest

from recipe_new_plugin.settings import Prepare

FILE = "text.bin"
KIND = "new_plugin_bytes"


def prepare(settings: Prepare) -> dict[str, Any]:
    """Write ``text.bin`` and ``manifest.json`` to ``settings.output``, which appears once complete."""
    paths = [Path(name).expanduser() for name in settings.inputs]
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(f"inputs: {missing[0]}: no such file")
    key = {"kind": KIND, "inputs": [str(path) for path in paths]}
    with Output(Path(settings.output).expanduser(), key, reads=paths, overwrite=settings.overwrite) as output:
        with output.writing(), (output.folder / FILE).open("wb") as file:
            for path in paths:
                file.write(path.read_bytes())
        size = (output.folder / FILE).stat().st_size
        return output.finish({"kind": KIND, "bytes": size, "files": file_facts(output.folder, [FILE])})


def example(folder: Path) -> Mapping[str, Any]:
    """Return small inputs, which `recipe plugin check` prepares twice to compare the results."""
    path = folder / "text.txt"
    path.write_text("One text, which is short.\n" * 20, encoding="utf-8")
    return {"inputs": [str(path)]}


def size_of(folder: str) -> int:
    """Return the bytes of a prepared data set."""
    return (Path(folder).expanduser() / FILE).stat().st_size


class ByteFiles:
    """The reader for `recipe inspect` and `recipe verify`."""

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a folder that :func:`prepare` made."""
        return (path / FILE).is_file()

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """Return size and beginning."""
        content = (path / FILE).read_bytes()
        return Inspection(
            kind="bytes of texts",
            facts=(("bytes", f"{len(content):,}"),),
            example=content[:80].decode(errors="replace"),
        )

    def verify(self, path: Path) -> list[str]:
        """Return the differences from the manifest."""
        try:
            return file_problems(path, read_manifest(path))
        except DataError as error:
            return [str(error)]
