"""Memory and disk that the indices of a run need, from settings and headers alone. No torch or numpy here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from recipe_core import DataError, IndexFacts, Train
from recipe_core.files import home
from recipe_megatron_gpt.data.arrays.lengths import (
    MOST_ORDERED,
    PERIOD,
    SMALL,
    SURPLUS,
    PackedSize,
    WindowSize,
    epochs_for,
    samples_of,
)
from recipe_megatron_gpt.data.header import bin_path, read_header
from recipe_megatron_gpt.data.sources import PhaseFiles, TokenFiles, distinct, phases_of, split_ranges
from recipe_megatron_gpt.settings import GptIndexed

MOST_FILES = (1 << 15) - 1
"""Most files of a blend: megatron-core numbers them with 16 bits."""
_HEADERS = (128, 192)
"""Sizes of NumPy's file header in bytes: it is padded to a multiple of 64."""
_CHOICE, _CHOOSING = 10, 20
"""Bytes per sample of a blend's choice of files, and of its construction."""
_PACKING = 6
"""Bytes to pack rows, for each byte of the pieces."""
_IN_USE = 3
"""Windows of ``fast`` in the cache during training: the first, and two around a boundary."""


_EMBEDDED = TokenFiles(Path("text"), None)
"""Stands for the embedded corpus, which may not exist yet."""
Drawn = list[tuple[list[TokenFiles], int]]
"""The files of each phase, and the number of samples that a split draws from them."""


@dataclass(frozen=True)
class _Share:
    """The part of a file that belongs to a split, and the number of samples that the run draws from it."""

    source: TokenFiles
    sequences: int
    tokens: int
    fraction: float
    requested: int
    alone: bool
    """It is the only file."""


def index_facts(config: GptIndexed, train: Train) -> IndexFacts:
    """See :attr:`recipe_core.Dataset.indices`.

    Arrays are built in memory, one at a time, and then mapped from their files.
    """
    phases = phases_of(config)
    if not config.files:
        phases[0].sources.append(_EMBEDDED)
    files, most = len(distinct(phases)), max(len(phase.sources) for phase in phases)
    if most > MOST_FILES:
        return IndexFacts(problems=(f"data.files: at most {MOST_FILES:,} files can be blended, got {most:,}",))
    built, kept, disk, maps = 0, 0, 0, 2 * files  # the tokens; sizes and starts
    problems, blends, cached = [], set[Any](), _cached_arrays(home() / "gpt_indexed")
    for split, drawn in _drawn(phases, train).items():
        shares = [list(_shares(config, sources, split, requested)) for sources, requested in drawn]
        windows = [(share, *_window(config, share, split)) for share in _together(shares)]
        problems += [_too_long(share, size) for share, size, _ in windows if size.ordered > MOST_ORDERED]
        arrays = [
            (f"{share.source.prefix.name}-{split}-{name}", *size_of, 1 if name in ("pieces", "rows") else times)
            for share, size, times in windows
            for name, size_of in size.arrays.items()
        ]
        for blended in _blends(config, drawn, shares, split):
            if blended not in blends:  # both splits share it if their fractions agree
                blends.add(blended)
                choices = blended[0]
                arrays.append(("blend", choices, _CHOICE * choices, 1))
                built = max(built, _CHOOSING * choices if choices >= SMALL else 0)
        for name, entries, size, times in arrays:
            if entries < SMALL:
                kept += size
                continue
            maps += min(times, 2)
            if (missing := times - cached[name, None if config.rows == "packed" else size]) > 0:
                needed = size * (_PACKING if name.endswith("-pieces") else 1)
                built, disk = max(built, needed), disk + missing * size
    return IndexFacts(
        memory=built + kept, disk=disk, files=files, maps=maps, problems=tuple(problems),
        advice="set data.order=fast, whose indices are those of one epoch" if config.order == "megatron" else "",
    )  # fmt: skip


def _drawn(phases: Sequence[PhaseFiles], train: Train) -> dict[str, Drawn]:
    total = train.steps * train.global_batch
    ends = [*(phase.at for phase in phases[1:]), total]
    lengths = [max(0, min(end, total) - phase.at) for phase, end in zip(phases, ends, strict=True)]
    eval_samples = train.eval_samples if train.eval_every else 0
    return {
        "train": [(phase.sources, length) for phase, length in zip(phases, lengths, strict=True)],
        "valid": [(phases[0].sources, eval_samples)] if eval_samples else [],
    }


def _together(phases: Sequence[Sequence[_Share]]) -> list[_Share]:
    # each file once, with the samples that all phases draw from it
    together: dict[str, _Share] = {}
    for share in (share for shares in phases for share in shares):
        before = together.get(share.source.key)
        together[share.source.key] = replace(share, requested=share.requested + (before.requested if before else 0))
    return list(together.values())


def _blends(
    config: GptIndexed, drawn: Drawn, phases: Sequence[Sequence[_Share]], split: str
) -> Iterator[tuple[int, tuple[float, ...]]]:
    # length and fractions of each choice of files
    for (sources, requested), shares in zip(drawn, phases, strict=True):
        sizes = [_window(config, share, split)[0] for share in shares]
        by_samples = config.order == "megatron" and sources[0].weight is None
        if choices := _choices(config, sizes, requested, sources):
            fractions = [share.fraction for share in shares]
            yield choices, tuple(float(size.samples) for size in sizes) if by_samples else tuple(fractions)


def _shares(config: GptIndexed, sources: Sequence[TokenFiles], split: str, requested: int) -> Iterator[_Share]:
    # files with tokens for the split; the embedded corpus without its length
    if _EMBEDDED in sources:
        yield _Share(_EMBEDDED, 0, 0, 1.0, requested, alone=True)
        return
    lengths = [(source, *_lengths(config, source, split)) for source in sources]
    lengths = [entry for entry in lengths if entry[2]]
    weights = [source.weight or float(tokens) for source, _, tokens in lengths]
    total = sum(weights)
    for (source, sequences, tokens), weight in zip(lengths, weights, strict=True):
        drawn = ceil(requested * (weight / total))
        yield _Share(source, sequences, tokens, weight / total, drawn, alone=len(sources) == 1)


def _lengths(config: GptIndexed, source: TokenFiles, split: str) -> tuple[int, int]:
    try:
        header = read_header(source.prefix)
    except DataError:  # reported with the facts
        return 0, 0
    part = split_ranges(header.sequences, config.split)[split]
    return len(part), header.tokens(part)[0]


def _window(config: GptIndexed, share: _Share, split: str) -> tuple[WindowSize | PackedSize, int]:
    # the window over a file, and the number of them in the cache at once
    if config.rows == "packed":
        rows = PackedSize(share.sequences, share.tokens, config.sequence)
        passed = ceil(share.requested / rows.samples)
        return rows, min(passed, _IN_USE) if split == "train" else passed
    if not share.tokens:
        return WindowSize(0, 0, share.requested if config.order == "megatron" else 0), 1
    drawn = 1  # sample: one epoch, or as many as contain one
    if config.order == "megatron" and share.source.weight is not None:
        drawn = ceil(share.requested * (1 + SURPLUS))
    elif config.order == "megatron" and share.alone:
        drawn = share.requested
    epochs = epochs_for(drawn, share.tokens, config.sequence)
    size = WindowSize(share.sequences, epochs, samples_of(share.tokens, config.sequence, epochs))
    passed = max(1, ceil(share.requested / size.samples))
    return size, 1 if config.order == "megatron" else min(passed, _IN_USE) if split == "train" else passed


def _choices(
    config: GptIndexed, windows: Sequence[WindowSize | PackedSize], requested: int, sources: Sequence[TokenFiles]
) -> int:
    # samples after which the choice of files repeats; 0 without a blend
    weighted = sources[0].weight is not None
    if len(windows) < 2 and not (windows and weighted and config.order == "megatron"):
        return 0
    if config.order == "fast":
        return PERIOD
    if not weighted:
        return min(requested, sum(window.samples for window in windows))
    total = sum(source.weight or 0.0 for source in sources)
    return sum(ceil(requested * ((source.weight or 0.0) / total)) for source in sources)


def _cached_arrays(folder: Path) -> Counter[tuple[str, int | None]]:
    # Counts arrays by name and bytes, and by name alone. Their hashes are not known here.
    counts: Counter[tuple[str, int | None]] = Counter()
    for path in folder.glob("*.npy"):
        name = path.stem.rpartition("-")[0]
        counts.update((name, path.stat().st_size - header) for header in _HEADERS)
        counts[name, None] += 1
    return counts


def _too_long(share: _Share, size: WindowSize | PackedSize) -> str:
    return (
        f"{bin_path(share.source.prefix)}: data.order=megatron orders all {size.epochs:,} epochs of its "
        f"{size.sequences:,} sequences at once, {size.ordered:,} entries, and takes at most {MOST_ORDERED:,}; set "
        "data.order=fast, lower train.steps, or give more data"
    )
