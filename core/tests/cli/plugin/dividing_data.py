"""A plugin whose datasets keep the documents of texts: one divides, others do so wrongly or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core import Dataset, hookimpl
from recipe_core.data.prepare import (
    Output,
    PreparedPart,
    PreparePart,
    Section,
    file_facts,
    hashed,
    input_facts,
    join_files,
    merged_counts,
    merged_inputs,
)
from recipe_core.data.text import Counts, Source, find, hashed_pieces, pieces_of, records
from recipe_core.data.text_settings import TextInput

FILE, HERE = "capitals.txt", __name__


@dataclass(frozen=True)
class Capitals(TextInput):
    """Texts to capital letters."""

    output: str = ""
    """Folder to make."""


def prepare(settings: Capitals) -> dict[str, Any]:
    """All documents."""
    sources = find(settings)
    facts = input_facts([source.path for source in sources])
    with Output(Path(settings.output), {"inputs": facts}, reads=(), overwrite=False) as output:
        inputs = hashed(facts)()
        counts = write(settings, output.folder, None)
        return output.finish(manifest(counts, inputs, output.folder))


def prepare_part(kind: str, shout: bool, settings: Capitals, part: PreparePart) -> dict[str, Any]:
    """The documents of a part; with ``shout``, it writes what the whole does not."""
    sources = find(settings)
    facts, pieces = input_facts([source.path for source in sources]), pieces_of(settings, sources, part)
    with Output(Path(settings.output), {"inputs": facts, "part": str(part)}, reads=(), overwrite=False) as output:
        hashes = hashed_pieces(settings, sources, facts, part, pieces)
        counts = write(settings, output.folder, pieces)
        if shout and part.number > 1:
            (output.folder / FILE).write_text((output.folder / FILE).read_text() + "!")
        own = {"kind": kind, "part": str(part), "same": {}, "versions": {}, "settings": {"inputs": settings.inputs}}
        return output.finish({**manifest(counts, [], output.folder), **own, **hashes()})


def merge(settings: Capitals, parts: Sequence[PreparedPart]) -> dict[str, Any]:
    """All documents, from the parts."""
    with Output(Path(settings.output), {"parts": [str(part) for part in parts]}, reads=(), overwrite=False) as output:
        sections: list[Section] = []
        for part in parts:
            sections.append(Section(part, FILE, sections[-1].stop if sections else 0))
        join_files(output.folder / FILE, sections)
        return output.finish(manifest(merged_counts(parts), merged_inputs(parts), output.folder))


def write(settings: Capitals, folder: Path, pieces: Sequence[Source] | None) -> dict[str, int]:
    """Write the documents of all inputs or of ``pieces``; their number."""
    counts = Counts()
    texts = [record.text.upper() + "\n" for record in records(settings, counts, pieces)]
    (folder / FILE).write_text("".join(texts))
    return {"documents": counts.documents}


def manifest(counts: dict[str, int], inputs: Sequence[Any], folder: Path) -> dict[str, Any]:
    """The manifest of the whole."""
    return {"kind": "capitals", "counts": counts, "inputs": inputs, "files": file_facts(folder, [FILE])}


def example(folder: Path) -> dict[str, Any]:
    """Lines of JSON, and settings."""
    path = folder / "lines.jsonl"
    path.write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(30)))
    return {"inputs": [str(path)]}


part_of_capitals = partial(prepare_part, "capitals", False)
part_of_loud = partial(prepare_part, "loud", True)


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """All of them."""
    capitals = Dataset(
        name="capitals",
        build=f"{HERE}:prepare",
        prepare=f"{HERE}:prepare",
        prepare_config=Capitals,
        prepare_example=f"{HERE}:example",
        prepare_part=f"{HERE}:part_of_capitals",
        merge_parts=f"{HERE}:merge",
        summary="documents in capital letters",
    )
    yield capitals
    yield replace(capitals, name="loud", prepare_part=f"{HERE}:part_of_loud")
    yield replace(capitals, name="half", merge_parts="")
    yield replace(capitals, name="undivided", prepare_part="", merge_parts="")
