"""Parts of ``recipe prepare bert_hdf5``.

A part holds the tokens of its documents. Pairs take their second segment from any document, and samples are dealt to
shards over all of them, so the merge joins the tokens and then makes pairs and shards as one process does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from recipe_bert_dp.data.vocabulary import Vocabulary
from recipe_bert_dp.prepare.hdf5 import KIND, WORK, plain, write_set
from recipe_bert_dp.prepare.store import DOCUMENTS, SENTENCES, TOKENS
from recipe_bert_dp.prepare.tokens import write_store
from recipe_bert_dp.prepare.workers import fitting
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.data.filters import FilterChain, merged_filters
from recipe_core.data.prepare import (
    Output,
    PreparedPart,
    PreparePart,
    Section,
    file_facts,
    input_facts,
    join_files,
    merged_counts,
    merged_inputs,
    sha256,
)
from recipe_core.data.text import find, hashed_pieces, pieces_of, require_encoding
from recipe_core.files import require_space

_VOCABULARY = "vocab.txt"


def prepare_part(settings: PrepareHdf5, part: PreparePart) -> dict[str, Any]:
    """Write the tokens of a part's documents into the folder ``settings.output``; returns its manifest.

    Raises:
        ConfigError, DataError, DiskError: as by ``prepare``; a part may be empty.
    """
    vocabulary = Vocabulary.read(Path(settings.vocabulary).expanduser(), settings.lowercase)
    sources = find(settings)
    facts = input_facts([source.path for source in sources])
    pieces, filters = pieces_of(settings, sources, part), FilterChain.of(settings)
    key = {
        "kind": KIND, **plain(settings), "vocabulary": sha256(vocabulary.path), "inputs": facts, "part": str(part),
        **filters.identity,
    }  # fmt: skip
    reads = [*(source.path for source in sources), vocabulary.path]
    with Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=settings.overwrite) as output:
        hashes = hashed_pieces(settings, sources, facts, part, pieces)
        workers = fitting(settings.workers, sum(piece.bytes for piece in pieces))
        entry = write_store(settings, vocabulary, output, output.folder, workers, filters, pieces)
        inputs = hashes()
        with output.writing():
            shutil.copyfile(vocabulary.path, output.folder / _VOCABULARY)
            files = file_facts(output.folder, [TOKENS, SENTENCES, DOCUMENTS, _VOCABULARY])
        return output.finish(
            {
                "kind": KIND,
                "part": str(part),
                "same": {"vocab.txt": key["vocabulary"], **filters.identity},
                "settings": plain(settings),
                "counts": entry["counts"],
                **filters.entries(entry["filters"]),
                "replaced_in_pieces": entry["replaced_in_pieces"],
                "documents_in_pieces": entry["documents_in_pieces"],
                **inputs,
                "files": files,
                "versions": {"recipe-bert-dp": version("recipe-bert-dp")},
            }
        )


def merge(settings: PrepareHdf5, parts: Sequence[PreparedPart]) -> dict[str, Any]:
    """Write the shards that one process makes, byte for byte, into the folder ``settings.output``.

    An interrupted merge of the same parts continues.

    Returns:
        The manifest.

    Raises:
        ConfigError: the output exists.
        DataError: a part is damaged, or there are too few documents.
        DiskError: no space is left.
    """
    require_encoding(settings, parts)
    counts = merged_counts(parts)
    for part in parts:
        part.read(_VOCABULARY)
    vocabulary = Vocabulary.read(parts[0].folder / _VOCABULARY, settings.lowercase)
    key = {"merge": KIND, "parts": [[str(part), part.manifest["files"]] for part in parts]}
    reads = [part.folder for part in parts]
    with Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=False) as output:
        if not any(entry["stage"] == "joined" for entry in output.done):
            names = (TOKENS, SENTENCES, DOCUMENTS)
            require_space(output.final.parent, sum(part.size(name) for part in parts for name in names), "the tokens")
            with output.writing():
                (output.folder / WORK).mkdir(exist_ok=True)
                _join(parts, output.folder / WORK)
                output.note({"stage": "joined"})
        return write_set(settings, vocabulary, output, counts, lambda: merged_inputs(parts), merged_filters(parts))


def _join(parts: Sequence[PreparedPart], folder: Path) -> None:
    sections: dict[str, list[Section]] = {TOKENS: [], SENTENCES: [], DOCUMENTS: []}
    moves = {TOKENS: "", SENTENCES: "tokens", DOCUMENTS: "sentences"}
    for name, counted in moves.items():
        at = before = 0
        for part in parts:
            # files of starts begin with a zero, which the joined one has once
            skip = 8 if counted and at else 0
            section = Section(part, name, at, skip, _moved(before)) if counted else Section(part, name, at)
            sections[name].append(section)
            at, before = section.stop, before + (part.counts[counted] if counted else 0)
        join_files(folder / name, sections[name])


def _moved(by: int) -> Callable[[bytes], bytes]:
    return lambda block: (np.frombuffer(block, np.int64) + by).tobytes()
