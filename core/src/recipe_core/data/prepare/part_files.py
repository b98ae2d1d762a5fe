"""``recipe inspect`` and ``recipe verify`` of a part."""

from __future__ import annotations

from pathlib import Path

from recipe_core.data.prepare import Inspection
from recipe_core.data.prepare.manifest import file_problems, read_manifest
from recipe_core.data.prepare.parts import inputs_text, is_part
from recipe_core.errors import DataError


class PartFiles:
    """The files of a part; see :class:`recipe_core.data.prepare.DataFiles`."""

    def detect(self, path: Path) -> bool:
        """True if ``path`` is the folder of a part."""
        return is_part(path)

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """Read the facts from the manifest."""
        manifest = read_manifest(path)
        facts = {"all inputs": inputs_text(manifest["all_inputs"])}
        facts |= {name.replace("_", " "): f"{count:,}" for name, count in manifest["counts"].items() if count}
        return Inspection(kind=f"part {manifest['part']} of a {manifest['kind']}", facts=tuple(facts.items()))

    def verify(self, path: Path) -> list[str]:
        """Compare all files with the manifest."""
        try:
            return file_problems(path, read_manifest(path))
        except DataError as error:
            return [str(error)]
