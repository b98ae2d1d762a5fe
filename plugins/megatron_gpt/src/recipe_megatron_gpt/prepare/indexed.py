"""``recipe prepare gpt_indexed``: texts or dumps to Megatron's token files."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from recipe_core import DataError, write_text
from recipe_core.checkpoint.inference.tokenizer import end_of_document
from recipe_core.data.filters import FilterChain, dropped_by, require_kept
from recipe_core.data.prepare import (
    Output,
    PreparePart,
    ProgressBar,
    file_facts,
    fitting,
    hashed,
    input_facts,
    ordered_map,
)
from recipe_core.data.text import Counts, Record, Source, clean, find, records
from recipe_core.files import require_space
from recipe_core.settings.fill import plain
from recipe_megatron_gpt.data.corpus import TOKENIZER, train_tokenizer
from recipe_megatron_gpt.prepare.store import NAME, TokenStore
from recipe_megatron_gpt.prepare.worker import ChunkEncoder
from recipe_megatron_gpt.settings import TRAIN, GptPrepare
from recipe_megatron_gpt.tokenizer.encoders import EncodeMethod, choose
from recipe_megatron_gpt.tokenizer.known import KnownTokenizer, known_tokenizer, read_known_tokenizer

KIND = "gpt_indexed"
FILES = (f"{NAME}.bin", f"{NAME}.idx", TOKENIZER)
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
    work = Preparation.of(settings)
    with work.output() as output:
        hashes = hashed(work.facts)
        tokenizer = work.tokenizer or known_tokenizer(_trained_tokenizer(work, output), work.end)
        with output.writing():
            write_text(output.folder / TOKENIZER, tokenizer.content)
        store, complete = write_tokens(work, work.sources, output, tokenizer)
        inputs = hashes()
        with output.writing():
            store.remove_parts()
            files = file_facts(output.folder, FILES)
        filters = work.filters.entries(complete["filters"])
        counts = complete["complete"]
        return output.finish(manifest_of(store.dtype, tokenizer.size, counts, work.plain, inputs, files, filters))


@dataclass(frozen=True)
class Preparation:
    """A preparation before its work: its inputs, tokenizer and settings."""

    settings: GptPrepare
    sources: list[Source]
    facts: list[dict[str, Any]]
    """Of the inputs, by ``input_facts``."""
    tokenizer: KnownTokenizer | None
    """None: it is trained on the input."""
    plain: dict[str, Any]
    """The settings that affect the bytes of the files."""
    filters: FilterChain

    @classmethod
    def of(cls, settings: GptPrepare) -> Preparation:
        """Find the inputs and read the tokenizer.

        Raises:
            ConfigError: the vocabulary has no end of a document, or a filter cannot be used.
            DataError: an input or the tokenizer is missing, damaged or of another kind.
        """
        sources = find(settings)
        end, path = settings.eod if settings.append_eod else None, Path(settings.tokenizer).expanduser()
        tokenizer = None if settings.tokenizer == TRAIN else read_known_tokenizer(path, end)
        settings_of_files = {name: value for name, value in plain(settings).items() if name not in _NOT_IN_FILES}
        facts = input_facts([s.path for s in sources])
        return cls(settings, sources, facts, tokenizer, settings_of_files, FilterChain.of(settings))

    @property
    def end(self) -> str | None:
        """The token that ends a document."""
        return self.settings.eod if self.settings.append_eod else None

    def output(self, part: PreparePart | None = None) -> Output:
        """Return the output folder, for the whole preparation or one part of it."""
        settings, chosen = self.settings, self.tokenizer
        key = {
            "kind": KIND,
            **self.plain,
            "inputs": self.facts,
            "tokenizer": hash_of(chosen.content if chosen else TRAIN),
            **self.filters.identity,
            **({"part": str(part)} if part else {}),
        }
        reads = [source.path for source in self.sources] + [Path(settings.tokenizer).expanduser()] * (
            chosen is not None
        )
        return Output(Path(settings.output).expanduser(), key, reads=reads, overwrite=settings.overwrite)


def manifest_of(
    dtype: np.dtype[Any], vocabulary: int, counts: Mapping[str, int], plain_settings: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]], files: Mapping[str, Any], filters: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the manifest of a data set."""
    return {
        "kind": KIND,
        "dtype": dtype.name,
        "vocabulary": vocabulary,
        "counts": counts,
        **filters,
        "settings": plain_settings,
        "inputs": inputs,
        "files": files,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that determine the bytes."""
    return {name: version(name) for name in ("recipe-megatron-gpt", "tokenizers")}


def _trained_tokenizer(work: Preparation, output: Output) -> str:
    """The content of a tokenizer.json, trained on the input or by the interrupted run."""
    path = output.folder / TOKENIZER
    if any("trained" in entry for entry in output.done):
        return path.read_text(encoding="utf-8")
    settings, total = work.settings, sum(source.size for source in work.sources)
    with ProgressBar("tokenizer", total) as progress:
        tokenizer = train_tokenizer(_spread(work, total, progress), settings.trained_size)
    if settings.append_eod:
        end_of_document(tokenizer, settings.eod)
    content: str = tokenizer.to_str(pretty=True)
    with output.writing():
        write_text(path, content)
        output.note({"trained": True})
    return content


def _spread(work: Preparation, total: int, progress: ProgressBar) -> Iterator[str]:
    # documents with `train_characters` characters in all, spread over the whole input
    settings, characters = work.settings, 0

    def selected() -> Iterator[list[Record]]:
        nonlocal characters
        for record in records(settings):
            if characters <= settings.train_characters * record.consumed / total:
                characters += len(record.text)
                yield [record]
            progress.update(record.consumed)

    workers = _workers(settings, work.sources, "plain") if _has_dumps(work.sources) or work.filters else 1
    for texts in ordered_map(_CleanAll(work.filters), selected(), workers, _describe):
        yield from texts


@dataclass(frozen=True)
class _CleanAll:
    """The function of a worker process that reads texts for a tokenizer: those that the filters keep."""

    filters: FilterChain

    def __call__(self, chunk: list[Record]) -> list[str]:
        counts = self.filters.new_counts()
        texts = [(record, text) for record in chunk if (text := clean(record))]
        return [kept for record, text in texts if (kept := self.filters.apply(record, text, counts))]


def write_tokens(
    work: Preparation,
    sources: Sequence[Source],
    output: Output,
    tokenizer: KnownTokenizer,
    part: PreparePart | None = None,
) -> tuple[TokenStore, dict[str, Any]]:
    """Write the tokens that an interrupted run has not, of all inputs or of the pieces ``sources`` of a part.

    Returns:
        The files, and the last entry of the journal: ``complete``, the counts of all documents, ``filters``, what each
        filter did, ``replaced_in_pieces`` and ``documents_in_pieces``.

    Raises:
        DataError: an input is damaged or of another kind, or there is no text outside of a part.
        DiskError: there is no space left, or the output cannot be written.
    """
    settings, dtype = work.settings, tokenizer.dtype
    store = TokenStore(output, dtype, index=part is None)
    if complete := [entry for entry in output.done if "complete" in entry]:
        return store, complete[0]
    needed = _expected_bytes(sources, dtype.itemsize) - store.state.bytes
    require_space(output.final.parent, needed, "the token file, as far as it can be told before,")
    counts, total = Counts(), sum(source.bytes for source in sources)
    with store, ProgressBar("tokens", total) as progress:
        progress.start_at(store.state.consumed)
        rest = islice(records(settings, counts, sources if part else None), store.state.read, None)
        if first := list(_first(rest)):
            method = _method(settings, tokenizer, first)
            end = b"" if tokenizer.end is None else np.array([tokenizer.end], dtype=dtype).tobytes()
            encode_chunk = ChunkEncoder(
                method, tokenizer.content, dtype.char, settings.add_special_tokens, end, settings.split_sentences,
                work.filters,
            )  # fmt: skip
            chunks = _chunks(chain(first, rest))
            for encoded in ordered_map(encode_chunk, chunks, _workers(settings, sources, method), _describe):
                store.add(encoded)
                progress.update(encoded.consumed)
        state = store.state
        result = {
            "documents": state.documents,
            "sequences": state.sequences,
            "tokens": state.bytes // dtype.itemsize,
            **{name: count for name, count in counts.as_dict().items() if name != "documents"},
            "empty": counts.empty + state.without_text,
            **({"dropped": dropped_by(state.filters)} if work.filters else {}),
        }
        if not part:
            require_kept(work.filters.entries(state.filters), settings.inputs)
            if not state.bytes:
                raise no_text(settings)
        entry = {
            "complete": result,
            "filters": state.filters,
            "replaced_in_pieces": counts.replaced_in_pieces,
            "documents_in_pieces": counts.documents_in_pieces,
        }
        store.finish(entry)
    return store, entry


def no_text(settings: GptPrepare) -> DataError:
    """Return the error of inputs without text."""
    return DataError(f"{', '.join(settings.inputs)}: there is no text in any document; name other inputs")


def _method(settings: GptPrepare, tokenizer: KnownTokenizer, first: Sequence[Record]) -> EncodeMethod:
    samples = [(clean(record) or "")[:_SAMPLE] for record in first]
    method, note = choose(settings.engine, tokenizer.content, settings.add_special_tokens, samples)
    if note:
        print(f"recipe prepare: {note}", file=sys.stderr)
    return method


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


def hash_of(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _has_dumps(sources: Sequence[Source]) -> bool:
    return any(source.format == "mediawiki" for source in sources)


def _workers(settings: GptPrepare, sources: Sequence[Source], method: EncodeMethod) -> int:
    # by default, as many processes as save more time than their start takes
    fast = method != "plain" and not settings.split_sentences and not settings.filters
    worthwhile = sum(source.bytes / (_FAST if fast and source.format != "mediawiki" else _SLOW) for source in sources)
    packed = any(source.packing or source.has_columns for source in sources)  # their size is known only after reading
    chunks = None if packed else 1 + sum(source.bytes for source in sources) // CHUNK
    return fitting(settings.workers, worthwhile, chunks)


def _expected_bytes(sources: Sequence[Source], width: int) -> int:
    """A low estimate of the bytes of the .bin file: one token per five bytes of text, as in English.

    Compressed text is assumed to expand threefold, and a third of a dump to be prose.
    """
    text = sum(
        source.bytes * (3 if source.packing else 1) / (3 if source.format == "mediawiki" else 1) for source in sources
    )
    return int(text * width / 5)
