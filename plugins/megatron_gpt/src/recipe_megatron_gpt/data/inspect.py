"""``recipe inspect`` and ``recipe verify`` for token files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import DataError
from recipe_core.checkpoint.inference.tokenizer import read_vocabulary, size
from recipe_core.data.prepare import Inspection
from recipe_core.files.objects.copies import local_file
from recipe_megatron_gpt.data.corpus import TOKENIZER
from recipe_megatron_gpt.data.header import Place, bin_path, idx_path
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.remote.manifest import hashes_missing, manifest_of, problems_in
from recipe_megatron_gpt.data.sources import prefixes_of

_EXAMPLE = 120
"""Tokens of the example text."""
_BLOCK = 1 << 24
"""Tokens per block of the check of ids."""


class TokenData:
    """Megatron's token files, see :class:`recipe_core.data.prepare.DataFiles`; also in object storage."""

    objects = True

    def detect(self, path: Place) -> bool:
        """True if ``path`` is a token file, the prefix of a pair, or a folder with pairs."""
        prefix = prefixes_of(path)[0]
        return _exists(idx_path(prefix)) or (path.suffix != "" and _exists(bin_path(prefix)))

    def inspect(self, path: Place, tokenizer: Path | None) -> Inspection:
        """Sizes from the .idx files, those of a folder together, and the start of the first document as text.

        Raises:
            DataError: the files are damaged, or there is no such tokenizer.
        """
        files = [IndexedFile.open(prefix, access="sequential") for prefix in prefixes_of(path)]
        per_document = np.concatenate([np.diff(_token_ends(file)) for file in files])
        types = ", ".join(sorted({file.tokens.dtype.name for file in files}))
        facts = [
            *([("pairs of files", f"{len(files):,}")] if len(files) > 1 else []),
            ("documents", f"{per_document.size:,}"),
            ("sequences", f"{sum(file.sizes.size for file in files):,}"),
            ("tokens", f"{per_document.sum():,}"),
            ("token type", f"{types}, {sum(file.tokens.nbytes for file in files) / 1e6:,.1f} MB"),
        ]
        if per_document.size:
            low, middle, high = per_document.min(), np.median(per_document), per_document.max()
            facts.append(("tokens per document", f"{low:,} to {high:,}, median {middle:,.0f}"))
        manifest = manifest_of(files[0].prefix.parent)
        if "settings" in manifest:
            facts.append(("made from", ", ".join(item["path"] for item in manifest["inputs"])))
        return Inspection(
            kind="Megatron token files",
            facts=tuple(facts),
            lengths=_histogram(per_document),
            example=_example(files[0], tokenizer),
        )

    def verify(self, path: Place) -> list[str]:
        """All problems of the files; reads them completely."""
        prefixes, files = prefixes_of(path), []
        problems: list[str] = []
        for prefix in prefixes:
            try:
                files.append(IndexedFile.open(prefix, access="sequential"))
                problems += _length_problems(files[-1])
            except DataError as error:
                problems.append(str(error))
        try:
            manifest = manifest_of(prefixes[0].parent)
            limit = _vocabulary(prefixes[0])
        except DataError as error:
            return [*problems, str(error)]
        if len(files) == len(prefixes):  # what cannot be opened differs from its hash, too
            problems += problems_in(prefixes[0].parent, manifest)
        for file in files:
            problems += _id_problems(file, limit)
            if bin_path(file.prefix).name in manifest.get("files", {}):
                problems += _count_problems(file, manifest)
        return problems

    def unchecked(self, path: Place) -> str:
        """A message if there are no hashes; else empty."""
        return hashes_missing(prefixes_of(path)[0].parent)


def _exists(place: Place) -> bool:
    return place.is_file() if isinstance(place, Path) else place.exists()


def _token_ends(file: IndexedFile) -> NDArray[np.int64]:
    # tokens before each document, and in all: [documents + 1]
    before = np.concatenate(([0], np.cumsum(file.sizes, dtype=np.int64)))
    ends: NDArray[np.int64] = before[np.asarray(file.documents)]
    return ends


def _histogram(lengths: NDArray[np.int64]) -> tuple[tuple[str, int], ...]:
    # each range is twice as wide as the one before
    if not lengths.size:
        return ()
    # The number of bits: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, ...
    bits = np.frexp(lengths.astype(np.float64))[1]
    counts = np.bincount(bits)
    labels = ["0", "1", *(f"{1 << (b - 1):,}-{(1 << b) - 1:,}" for b in range(2, counts.size))]
    return tuple((label, int(count)) for label, count in list(zip(labels, counts, strict=False))[int(bits.min()) :])


def _example(file: IndexedFile, tokenizer: Path | None) -> str | None:
    used = tokenizer or local_file(file.prefix.with_name(TOKENIZER))
    if used is None:
        return None
    vocabulary = read_vocabulary(used)
    ids = file.read(0, _EXAMPLE).tolist()
    text: str = vocabulary.decode(ids, skip_special_tokens=False)
    return text + (" ..." if file.tokens.size > _EXAMPLE else "")


def _vocabulary(prefix: Place) -> int | None:
    # None without a tokenizer next to the files
    path = local_file(prefix.with_name(TOKENIZER))
    return None if path is None else size(read_vocabulary(path))


def _length_problems(file: IndexedFile) -> Iterator[str]:
    # Too few tokens, and other problems of the .idx file, are found when it is opened.
    total = int(file.sizes.sum(dtype=np.int64))
    if total < file.tokens.size:
        yield (
            f"{bin_path(file.prefix)}: holds {file.tokens.size:,} tokens, of which {idx_path(file.prefix).name} knows "
            f"only {total:,}"
        )


def _id_problems(file: IndexedFile, limit: int | None) -> Iterator[str]:
    for start in range(0, file.tokens.size, _BLOCK):
        block = file.read(start, start + _BLOCK)
        outside = np.flatnonzero((block < 0) | (block >= (limit or np.iinfo(np.int32).max)))
        if outside.size:
            at = start + int(outside[0])
            document = file.document_of(int(np.searchsorted(file.starts, at, side="right")) - 1)
            expected = "0 or more" if limit is None else f"below {limit:,}, the size of the vocabulary in {TOKENIZER}"
            yield (
                f"{bin_path(file.prefix)}: token {at:,} (in document {document:,}) is {block[at - start]}; expected "
                f"{expected}"
            )
            return


def _count_problems(file: IndexedFile, manifest: dict[str, Any]) -> Iterator[str]:
    counts = {
        "documents": file.documents.size - 1,
        "sequences": file.sizes.size,
        "tokens": int(file.sizes.sum(dtype=np.int64)),
    }
    for name, count in counts.items():
        recorded = manifest.get("counts", {}).get(name, count)
        if recorded != count:
            yield f"{file.prefix.parent / 'manifest.json'}: says {recorded:,} {name}; there are {count:,}"
