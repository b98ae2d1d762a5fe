"""``recipe prepare gpt_indexed``: texts or dumps to Megatron's token files."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from recipe_core import DataError, write_text
from recipe_core.data.prepare import Output, ProgressBar, file_facts, fitting, hashed, input_facts, ordered_map
from recipe_core.data.text import Counts, Record, Source, clean, find, records
from recipe_core.files import require_space
from recipe_core.settings.fill import plain
from recipe_megatron_gpt.data.corpus import TOKENIZER, train_tokenizer
from recipe_megatron_gpt.prepare.store import NAME, TokenStore
from recipe_megatron_gpt.prepare.worker import ChunkEncoder
from recipe_megatron_gpt.settings import TRAIN, GptPrepare
from recipe_megatron_gpt.tokenizer.encoders import EncodeMethod, choose
from recipe_megatron_gpt.tokenizer.known import KnownTokenizer, known_tokenizer, read_known_tokenizer
from recipe_megatron_gpt.tokenizer.vocabulary import end_of_document

CHUNK = 500_000
"""Characters per chunk of documents for a worker."""
_SAMPLE = 20_000
"""Characters of the input on which encoding methods are compared."""
_NOT_IN_FILES = ("output", "overwrite", "workers", "engine")
"""Settings that do not affect the bytes of the files."""
_SLOW, _FAST = 1_000_000, 100_000_000
"""Bytes of input per worker process that justify its start. The fast methods cache words, and each process fills its
own cache."""


def prepare(settings: GptPrepare) -> dict[str, Any]:
    """Make ``tokens.bin``, ``tokens.idx``, ``tokenizer.json`` and ``manifest.json`` in the folder ``settings.output``.

    The token files equal those of Megatron-LM's preprocess_data for the same documents, byte for byte. A run with the
    same settings continues an interrupted one, with the same bytes.

    Returns:
        The manifest.

    Raises:
        ConfigError: the output exists, the vocabulary has no end of a document, or gigatoken cannot be used.
        DataError: an input or the tokenizer is missing, damaged or of another kind; or a worker died.
        DiskError: there is no space left, or the output cannot be written.
    """
    sources = find(settings)
    facts = input_facts([source.path for source in sources])
    eod = settings.eod if settings.append_eod else None
    chosen = None if settings.tokenizer == TRAIN else read_known_tokenizer(Path(settings.tokenizer).expanduser(), eod)
    plain_settings = {name: value for name, value in plain(settings).items() if name not in _NOT_IN_FILES}
    key = {
        "kind": "gpt_indexed",
        **plain_settings,
        "inputs": facts,
        "tokenizer": _hash(chosen.content if chosen else TRAIN),
    }
    reads = [source.path for source in sources] + [Path(settings.tokenizer).expanduser()] * (chosen is not None)
    with Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=settings.overwrite) as output:
        hashes = hashed(facts)
        tokenizer = chosen or known_tokenizer(_trained_tokenizer(settings, sources, output), eod)
        with output.writing():
            write_text(output.folder / TOKENIZER, tokenizer.content)
        store, counts = _write_tokens(settings, sources, output, tokenizer)
        inputs = hashes()
        with output.writing():
            store.remove_parts()
            files = file_facts(output.folder, [f"{NAME}.bin", f"{NAME}.idx", TOKENIZER])
        manifest = {
            "kind": "gpt_indexed",
            "dtype": store.dtype.name,
            "vocabulary": tokenizer.size,
            "counts": counts,
            "settings": plain_settings,
            "inputs": inputs,
            "files": files,
            "versions": {name: version(name) for name in ("recipe-megatron-gpt", "tokenizers")},
        }
        return output.finish(manifest)


def _trained_tokenizer(settings: GptPrepare, sources: Sequence[Source], output: Output) -> str:
    """The content of a tokenizer.json, trained on the input or by the interrupted run."""
    path = output.folder / TOKENIZER
    if any("trained" in entry for entry in output.done):
        return path.read_text(encoding="utf-8")
    total = sum(source.size for source in sources)
    with ProgressBar("tokenizer", total) as progress:
        tokenizer = train_tokenizer(_spread(settings, sources, total, progress), settings.trained_size)
    if settings.append_eod:
        end_of_document(tokenizer, settings.eod)
    content: str = tokenizer.to_str(pretty=True)
    with output.writing():
        write_text(path, content)
        output.note({"trained": True})
    return content


def _spread(settings: GptPrepare, sources: Sequence[Source], total: int, progress: ProgressBar) -> Iterator[str]:
    # documents with `train_characters` characters in all, spread over the whole input
    characters = 0

    def selected() -> Iterator[list[Record]]:
        nonlocal characters
        for record in records(settings):
            if characters <= settings.train_characters * record.consumed / total:
                characters += len(record.text)
                yield [record]
            progress.update(record.consumed)

    workers = _workers(settings, sources, "plain") if _has_dumps(sources) else 1
    for texts in ordered_map(_clean_all, selected(), workers, _describe):
        yield from texts


def _clean_all(chunk: list[Record]) -> list[str]:
    return [text for record in chunk if (text := clean(record))]


def _write_tokens(
    settings: GptPrepare, sources: Sequence[Source], output: Output, tokenizer: KnownTokenizer
) -> tuple[TokenStore, dict[str, int]]:
    # writes what an interrupted run left, and returns the counts of all documents
    dtype = tokenizer.dtype
    store = TokenStore(output, dtype)
    complete = [entry["complete"] for entry in output.done if "complete" in entry]
    if complete:
        return store, complete[0]
    needed = _expected_bytes(sources, dtype.itemsize) - store.state.bytes
    require_space(output.final.parent, needed, "the token file, as far as it can be told before,")
    counts, total = Counts(), sum(source.size for source in sources)
    with store, ProgressBar("tokens", total) as progress:
        progress.start_at(store.state.consumed)
        rest = islice(records(settings, counts), store.state.read, None)
        first = list(_first(rest))
        samples = [(clean(record) or "")[:_SAMPLE] for record in first]
        method, note = choose(settings.engine, tokenizer.content, settings.add_special_tokens, samples)
        if note:
            print(f"recipe prepare: {note}", file=sys.stderr)
        end = b"" if tokenizer.end is None else np.array([tokenizer.end], dtype=dtype).tobytes()
        encode_chunk = ChunkEncoder(
            method, tokenizer.content, dtype.char, settings.add_special_tokens, end, settings.split_sentences
        )
        chunks = _chunks(chain(first, rest))
        for part in ordered_map(encode_chunk, chunks, _workers(settings, sources, method), _describe):
            store.add(part)
            progress.update(part.consumed)
        state = store.state
        result = {
            "documents": state.documents,
            "sequences": state.sequences,
            "tokens": state.bytes // dtype.itemsize,
            **{name: count for name, count in counts.as_dict().items() if name != "documents"},
            "empty": counts.empty + state.without_text,
        }
        if not state.bytes:
            raise DataError(f"{', '.join(settings.inputs)}: there is no text in any document; name other inputs")
        store.finish(result)
    return store, result


def _first(rest: Iterator[Record]) -> Iterator[Record]:
    # records with about _SAMPLE characters
    length = 0
    for record in rest:
        length += len(record.text) + 1  # + 1 bounds the number of empty texts
        yield record
        if length >= _SAMPLE:
            return


def _chunks(all_records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    length = 0
    for record in all_records:
        chunk.append(record)
        length += len(record.text) + 1
        if length >= CHUNK:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


def _describe(chunk: list[Record]) -> str:
    return str(chunk[0]) if len(chunk) == 1 else f"{chunk[0]} to {chunk[-1]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _has_dumps(sources: Sequence[Source]) -> bool:
    return any(source.format == "mediawiki" for source in sources)


def _workers(settings: GptPrepare, sources: Sequence[Source], method: EncodeMethod) -> int:
    # by default, as many processes as save more time than their start takes
    fast = method != "plain" and not settings.split_sentences
    worthwhile = sum(source.size / (_FAST if fast and source.format != "mediawiki" else _SLOW) for source in sources)
    packed = any(source.packing for source in sources)  # their size is known only after reading
    chunks = None if packed else 1 + sum(source.size for source in sources) // CHUNK
    return fitting(settings.workers, worthwhile, chunks)


def _expected_bytes(sources: Sequence[Source], width: int) -> int:
    """A low estimate of the bytes of the .bin file: one token per five bytes of text, as in English.

    Compressed text is assumed to expand threefold, and a third of a dump to be prose.
    """
    text = sum(
        source.size * (3 if source.packing else 1) / (3 if source.format == "mediawiki" else 1) for source in sources
    )
    return int(text * width / 5)
