"""``recipe prepare gpt_indexed ... part=K/N``, and how its parts become one data set.

A document's tokens depend on nothing but the document, so the files of the parts follow each other in the merged ones;
only the ends of documents, counted in sequences, are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from recipe_core import ConfigError, write_text
from recipe_core.data.filters import merged_filters, require_kept
from recipe_core.data.prepare import (
    Output,
    PreparedPart,
    PreparePart,
    Section,
    file_facts,
    join_files,
    merged_counts,
    merged_inputs,
)
from recipe_core.data.text import hashed_pieces, pieces_of, require_encoding
from recipe_core.files import require_space
from recipe_megatron_gpt.data.corpus import TOKENIZER
from recipe_megatron_gpt.prepare.indexed import (
    FILES,
    KIND,
    Preparation,
    hash_of,
    manifest_of,
    no_text,
    versions,
    write_tokens,
)
from recipe_megatron_gpt.prepare.store import DOCUMENTS, NAME, SIZES, write_index
from recipe_megatron_gpt.settings import TRAIN, GptPrepare

_BIN, _SIZES, _DOCUMENTS = f"{NAME}.bin", f"{NAME}{SIZES}", f"{NAME}{DOCUMENTS}"


def prepare_part(settings: GptPrepare, part: PreparePart) -> dict[str, Any]:
    """Make the tokens of a part in the folder ``settings.output``; returns its manifest.

    It continues an interrupted run with the same settings, with the same bytes.

    Raises:
        ConfigError: as by ``prepare``, or the tokenizer is to be trained.
        DataError, DiskError: as by ``prepare``; a part may be empty.
    """
    if settings.tokenizer == TRAIN:
        raise ConfigError(
            "tokenizer: part= needs a tokenizer that exists, as each part would train another; train it first "
            "(`recipe prepare gpt_indexed inputs=SAMPLE output=sample`), and set tokenizer=sample/tokenizer.json for "
            "every part"
        )
    work = Preparation.of(settings)
    tokenizer = work.tokenizer
    assert tokenizer is not None
    pieces = pieces_of(settings, work.sources, part)
    with work.output(part) as output:
        hashes = hashed_pieces(settings, work.sources, work.facts, part, pieces)
        with output.writing():
            write_text(output.folder / TOKENIZER, tokenizer.content)
        store, complete = write_tokens(work, pieces, output, tokenizer, part)
        inputs = hashes()
        with output.writing():
            files = file_facts(output.folder, [_BIN, _SIZES, _DOCUMENTS, TOKENIZER])
        return output.finish(
            {
                "kind": KIND,
                "part": str(part),
                "same": {
                    "dtype": store.dtype.name,
                    "vocabulary": tokenizer.size,
                    "tokenizer.json": hash_of(tokenizer.content),
                    **work.filters.identity,
                },
                "counts": complete["complete"],
                **work.filters.entries(complete["filters"]),
                "replaced_in_pieces": complete["replaced_in_pieces"],
                "documents_in_pieces": complete["documents_in_pieces"],
                "settings": work.plain,
                **inputs,
                "files": files,
                "versions": versions(),
            }
        )


def merge(settings: GptPrepare, parts: Sequence[PreparedPart]) -> dict[str, Any]:
    """Join all parts into the data set that one process makes, byte for byte, in ``settings.output``.

    Returns:
        Its manifest.

    Raises:
        ConfigError: the output exists.
        DataError: a part is damaged, no document has text, or a file has another encoding.
        DiskError: there is no space left, or the output cannot be written.
    """
    require_encoding(settings, parts)
    counts, same, filters = merged_counts(parts), parts[0].manifest["same"], merged_filters(parts)
    require_kept(filters, settings.inputs)
    if not counts["tokens"]:
        raise no_text(settings)
    dtype = np.dtype(same["dtype"])
    key = {"merge": KIND, "parts": [[str(part), part.manifest["files"]] for part in parts]}
    reads = [part.folder for part in parts]
    with Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=False) as output:
        needed = sum(part.size(name) for part in parts for name in (_BIN, _SIZES, _SIZES, _DOCUMENTS, _DOCUMENTS))
        require_space(output.final.parent, needed + 8 * counts["sequences"], "the merged files")
        with output.writing():
            for part in parts:
                content = part.read(TOKENIZER)
            (output.folder / TOKENIZER).write_bytes(content)
            prefix = output.folder / NAME
            join_files(output.folder / _BIN, _following(parts, _BIN))
            join_files(output.folder / _SIZES, _following(parts, _SIZES))
            join_files(output.folder / _DOCUMENTS, _ends(parts))
            write_index(prefix, dtype)
            for ending in (SIZES, DOCUMENTS):
                prefix.with_suffix(ending).unlink()
            files = file_facts(output.folder, FILES)
        inputs, plain = merged_inputs(parts), parts[0].manifest["settings"]
        return output.finish(manifest_of(dtype, same["vocabulary"], counts, plain, inputs, files, filters))


def _following(parts: Sequence[PreparedPart], name: str) -> list[Section]:
    sizes = [part.size(name) for part in parts]
    return [Section(part, name, at) for part, at in zip(parts, accumulate([0, *sizes]), strict=False)]


def _ends(parts: Sequence[PreparedPart]) -> list[Section]:
    # each file begins with a zero, which the merged one has once
    sections, at, sequences = [], 0, 0
    for number, part in enumerate(parts):
        sections.append(Section(part, _DOCUMENTS, at, 8 * (number > 0), _moved(sequences)))
        at = sections[-1].stop
        sequences += part.counts["sequences"]
    return sections


def _moved(by: int) -> Callable[[bytes], bytes]:
    return partial(_add, np.int64(by))


def _add(by: np.int64, block: bytes) -> bytes:
    return (np.frombuffer(block, dtype=np.int64) + by).tobytes()
