"""The identity of token files, for comparison when a run continues. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from recipe_core import DataError, DataIdentity
from recipe_core.data.identity import identity_of_files, tokenizer_digest
from recipe_core.files import home
from recipe_core.files.documents import read_text
from recipe_core.files.objects.copies import local_file
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.header import Place, bin_path, idx_path, read_header
from recipe_megatron_gpt.data.sources import PhaseFiles, TokenFiles, distinct, phases_of
from recipe_megatron_gpt.settings import GptIndexed


def identity(config: GptIndexed) -> DataIdentity:
    """Digests of the token files, and the settings that decide the order of samples; see :class:`DataIdentity`.

    Raises:
        DataError: a file is missing, or has another size than its manifest lists.
    """
    phases = phases_of(config, home())
    files = distinct(phases)
    numbers = {key: number for number, key in enumerate(files)}
    order = {"sequence": config.sequence, "split": config.split, "order": config.order}
    order |= {"document_mask": config.document_mask, "rows": config.rows}
    try:
        first, *later = (_identity(phase, numbers) for phase in phases)
    except DataError:
        for source in files.values():
            read_header(source.prefix)  # its error says more about a missing file
        raise
    return replace(
        first,
        order={**order, **first.order},
        conflicts=tuple(_conflicts(files.values())),
        phases={phase.at: one for phase, one in zip(phases[1:], later, strict=True)},
    )


def _identity(phase: PhaseFiles, numbers: Mapping[str, int]) -> DataIdentity:
    sources = phase.sources
    order: dict[str, Any] = {}
    if any(source.weight is not None for source in sources):
        order["weights"] = [source.weight for source in sources]
    elif sources[1:]:
        order["weights"] = "by tokens"
    if phase.at:  # which of them continue from earlier phases
        order["numbers"] = _ranges([numbers[source.key] for source in sources])
    return identity_of_files([path(source.prefix) for source in sources for path in (bin_path, idx_path)], order)


def _ranges(numbers: Sequence[int]) -> str:
    # 0, 1, 2, 5: "0-2, 5"
    runs = (list(run) for _, run in groupby(enumerate(numbers), lambda place: place[1] - place[0]))
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if run[1:] else f"{run[0][1]}" for run in runs)


def _conflicts(sources: Collection[TokenFiles]) -> list[str]:
    # files of a blend that were encoded by different tokenizers, so that an id means different texts
    paths: dict[Place, Place] = {source.prefix: source.prefix.with_name(corpus.TOKENIZER) for source in sources}
    files = {path: local_file(path) for path in dict.fromkeys(paths.values())}
    tokenizers = {prefix: file for prefix, path in paths.items() if (file := files[path]) is not None}
    digests = {path: _digest(path) for path in dict.fromkeys(tokenizers.values())}
    first = next(iter(tokenizers), None)
    if first is None:
        return []
    expected = digests[tokenizers[first]]
    return [
        f"{first} and {prefix} were encoded by different tokenizers ({expected:.12}, {digests[path]:.12})"
        for prefix, path in tokenizers.items()
        if digests[path] != expected
    ]


def _digest(path: Path) -> str:
    return tokenizer_digest({corpus.TOKENIZER: read_text(path)})
