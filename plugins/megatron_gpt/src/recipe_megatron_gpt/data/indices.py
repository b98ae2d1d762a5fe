"""Memory and disk that the indices of a run need, from settings and headers alone. No torch or numpy here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from recipe_core import DataError, IndexFacts, Train
from recipe_core.files import home
from recipe_megatron_gpt.data.header import bin_path, read_header
from recipe_megatron_gpt.data.lengths import (
    MOST_ORDERED,
    PERIOD,
    SMALL,
    SURPLUS,
    WindowSize,
    epochs_for,
    samples_of,
)
from recipe_megatron_gpt.data.sources import TokenFiles, parse, split_ranges
from recipe_megatron_gpt.settings import GptIndexed

MOST_FILES = (1 << 15) - 1
"""Most files of a blend: megatron-core numbers them with 16 bits."""
_HEADERS = (128, 192)
"""Sizes of NumPy's file header in bytes: it is padded to a multiple of 64."""
_CHOICE, _CHOOSING = 10, 20
"""Bytes per sample of a blend's choice of files, and of its construction."""
_IN_USE = 3
"""Windows of ``fast`` in the cache during training: the first, and two around a boundary."""


@dataclass(frozen=True)
class _Share:
    """The part of a file that belongs to a split, and the number of samples that the run draws from it."""

    source: TokenFiles
    sequences: int
    tokens: int
    fraction: float
    requested: int


def index_facts(config: GptIndexed, train: Train) -> IndexFacts:
    """See :attr:`recipe_core.Dataset.indices`.

    Arrays are built in memory, one at a time, and then mapped from their files.
    """
    sources = parse(config.files) or [TokenFiles(Path("text"), None)]
    if len(sources) > MOST_FILES:
        return IndexFacts(problems=(f"data.files: at most {MOST_FILES:,} files can be blended, got {len(sources):,}",))
    built, kept, disk, maps = 0, 0, 0, 2 * len(sources)  # the tokens; sizes and starts
    problems, blends, cached = [], set(), _cached_arrays(home() / "gpt_indexed")
    eval_samples = train.eval_samples if train.eval_every else 0
    for split, requested in (("train", train.steps * train.global_batch), ("valid", eval_samples)):
        shares = list(_shares(config, sources, split, requested)) if requested else []
        windows = [(share, *_window(config, share, split)) for share in shares]
        problems += [_too_long(share, size) for share, size, _ in windows if size.ordered > MOST_ORDERED]
        arrays = [
            (f"{share.source.prefix.name}-{split}-{name}", *size_of, times)
            for share, size, times in windows
            for name, size_of in size.arrays.items()
        ]
        choices = _choices(config, [size for _, size, _ in windows], requested, sources)
        by_samples = config.order == "megatron" and sources[0].weight is None
        blended = choices, tuple(size.samples if by_samples else share.fraction for share, size, _ in windows)
        if choices and blended not in blends:  # both splits share it if their fractions agree
            blends.add(blended)
            arrays.append(("blend", choices, _CHOICE * choices, 1))
            built = max(built, _CHOOSING * choices if choices >= SMALL else 0)
        for name, entries, size, times in arrays:
            if entries < SMALL:
                kept += size
                continue
            maps += min(times, 2)
            if (missing := times - cached[name, size]) > 0:
                built, disk = max(built, size), disk + missing * size
    return IndexFacts(
        memory=built + kept, disk=disk, files=len(sources), maps=maps, problems=tuple(problems),
        advice="set data.order=fast, whose indices are those of one epoch" if config.order == "megatron" else "",
    )  # fmt: skip


def _shares(config: GptIndexed, sources: Sequence[TokenFiles], split: str, requested: int) -> Iterator[_Share]:
    # files with tokens for the split; the embedded corpus, which may not exist yet, without its length
    if not config.files:
        yield _Share(sources[0], 0, 0, 1.0, requested)
        return
    lengths = [(source, *_lengths(config, source, split)) for source in sources]
    lengths = [entry for entry in lengths if entry[2]]
    weights = [source.weight or float(tokens) for source, _, tokens in lengths]
    total = sum(weights)
    for (source, sequences, tokens), weight in zip(lengths, weights, strict=True):
        yield _Share(source, sequences, tokens, weight / total, ceil(requested * (weight / total)))


def _lengths(config: GptIndexed, source: TokenFiles, split: str) -> tuple[int, int]:
    try:
        header = read_header(source.prefix)
    except DataError:  # reported with the facts
        return 0, 0
    part = split_ranges(header.sequences, config.split)[split]
    return len(part), header.tokens(part)[0]


def _window(config: GptIndexed, share: _Share, split: str) -> tuple[WindowSize, int]:
    # the window over a file, and the number of them in the cache at once
    if not share.tokens:
        return WindowSize(0, 0, share.requested if config.order == "megatron" else 0), 1
    drawn = 1  # sample: one epoch, or as many as contain one
    if config.order == "megatron" and share.source.weight is not None:
        drawn = ceil(share.requested * (1 + SURPLUS))
    elif config.order == "megatron" and len(config.files) == 1:
        drawn = share.requested
    epochs = epochs_for(drawn, share.tokens, config.sequence)
    size = WindowSize(share.sequences, epochs, samples_of(share.tokens, config.sequence, epochs))
    passed = ceil(share.requested / size.samples)
    return size, 1 if config.order == "megatron" else min(passed, _IN_USE) if split == "train" else passed


def _choices(config: GptIndexed, windows: Sequence[WindowSize], requested: int, sources: Sequence[TokenFiles]) -> int:
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


def _cached_arrays(folder: Path) -> Counter[tuple[str, int]]:
    # Counts arrays by name and bytes. Their hashes are not known here.
    counts: Counter[tuple[str, int]] = Counter()
    for path in folder.glob("*.npy"):
        counts.update((path.stem.rpartition("-")[0], path.stat().st_size - header) for header in _HEADERS)
    return counts


def _too_long(share: _Share, size: WindowSize) -> str:
    return (
        f"{bin_path(share.source.prefix)}: data.order=megatron orders all {size.epochs:,} epochs of its "
        f"{size.sequences:,} sequences at once, {size.ordered:,} entries, and takes at most {MOST_ORDERED:,}; set "
        "data.order=fast, lower train.steps, or give more data"
    )
