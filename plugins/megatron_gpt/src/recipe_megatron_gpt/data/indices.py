"""Needs of the indices of a run, from settings and headers alone. No torch or numpy here."""

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
"""Files of a blend: megatron-core numbers them in 16 bits."""
_HEADERS = (128, 192)
"""Bytes before the values of an array's file: NumPy fills up to a multiple of 64."""
_CHOICE, _CHOOSING = 10, 20
"""Bytes of the choice of a file in a blend, and while it is made."""
_IN_USE = 3
"""Windows of ``fast`` that the cache has of training: the first, and two around a border."""


@dataclass(frozen=True)
class _Share:
    """The part of a file that belongs to a split, and how many samples the run draws from it."""

    source: TokenFiles
    sequences: int
    tokens: int
    fraction: float
    requested: int


def index_facts(config: GptIndexed, train: Train) -> IndexFacts:
    """See :attr:`recipe_core.Dataset.indices`.

    An array is built in memory, one after the other, and then mapped from its file.
    """
    sources = parse(config.files) or [TokenFiles(Path("text"), None)]
    if len(sources) > MOST_FILES:
        return IndexFacts(problems=(f"data.files: at most {MOST_FILES:,} files can be blended, got {len(sources):,}",))
    built, kept, disk, maps = 0, 0, 0, 2 * len(sources)  # the tokens; sizes and starts
    problems, blends, there = [], set(), _cached(home() / "gpt_indexed")
    for split, requested in (("train", train.steps * train.global_batch), ("valid", _evaluated(train))):
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
        if choices and blended not in blends:  # which both splits use where their fractions agree
            blends.add(blended)
            arrays.append(("blend", choices, _CHOICE * choices, 1))
            built = max(built, _CHOOSING * choices if choices >= SMALL else 0)
        for name, entries, size, times in arrays:
            if entries < SMALL:
                kept += size
                continue
            maps += min(times, 2)
            if (lacking := times - there[name, size]) > 0:
                built, disk = max(built, size), disk + lacking * size
    return IndexFacts(
        memory=built + kept, disk=disk, files=len(sources), maps=maps, problems=tuple(problems),
        advice="set data.order=fast, whose indices are those of one epoch" if config.order == "megatron" else "",
    )  # fmt: skip


def _evaluated(train: Train) -> int:
    return train.eval_samples if train.eval_every else 0


def _shares(config: GptIndexed, sources: Sequence[TokenFiles], split: str, requested: int) -> Iterator[_Share]:
    """Each file that has tokens for the split; the embedded corpus, which may not be there yet, without its length."""
    if not config.files:
        yield _Share(sources[0], 0, 0, 1.0, requested)
        return
    found = [(source, *_lengths(config, source, split)) for source in sources]
    found = [one for one in found if one[2]]
    weights = [source.weight or float(tokens) for source, _, tokens in found]
    total = sum(weights)
    for (source, sequences, tokens), weight in zip(found, weights, strict=True):
        yield _Share(source, sequences, tokens, weight / total, ceil(requested * (weight / total)))


def _lengths(config: GptIndexed, source: TokenFiles, split: str) -> tuple[int, int]:
    """Sequences and tokens of a file in a split."""
    try:
        header = read_header(source.prefix)
    except DataError:  # which the facts tell
        return 0, 0
    part = split_ranges(header.sequences, config.split)[split]
    return len(part), header.tokens(part)[0]


def _window(config: GptIndexed, share: _Share, split: str) -> tuple[WindowSize, int]:
    """The window over a file, and how many of them the cache has at once."""
    if not share.tokens:
        return WindowSize(0, 0, share.requested if config.order == "megatron" else 0), 1
    drawn = 1  # sample: one epoch, or as many as hold one
    if config.order == "megatron" and share.source.weight is not None:
        drawn = ceil(share.requested * (1 + SURPLUS))
    elif config.order == "megatron" and len(config.files) == 1:
        drawn = share.requested
    epochs = epochs_for(drawn, share.tokens, config.sequence)
    size = WindowSize(share.sequences, epochs, samples_of(share.tokens, config.sequence, epochs))
    passed = ceil(share.requested / size.samples)
    return size, 1 if config.order == "megatron" else min(passed, _IN_USE) if split == "train" else passed


def _choices(config: GptIndexed, windows: Sequence[WindowSize], requested: int, sources: Sequence[TokenFiles]) -> int:
    """Samples after which the choice of files repeats; 0 where there is nothing to choose."""
    weighted = sources[0].weight is not None
    if len(windows) < 2 and not (windows and weighted and config.order == "megatron"):
        return 0
    if config.order == "fast":
        return PERIOD
    if not weighted:
        return min(requested, sum(window.samples for window in windows))
    total = sum(source.weight or 0.0 for source in sources)
    return sum(ceil(requested * ((source.weight or 0.0) / total)) for source in sources)


def _cached(folder: Path) -> Counter[tuple[str, int]]:
    """How many arrays of a name and so many bytes the cache has; names end in a hash that only their maker can tell."""
    found: Counter[tuple[str, int]] = Counter()
    for path in folder.glob("*.npy"):
        found.update((path.stem.rpartition("-")[0], path.stat().st_size - header) for header in _HEADERS)
    return found


def _too_long(share: _Share, size: WindowSize) -> str:
    return (
        f"{bin_path(share.source.prefix)}: data.order=megatron orders all {size.epochs:,} epochs of its "
        f"{size.sequences:,} sequences at once, {size.ordered:,} entries, and takes at most {MOST_ORDERED:,}; set "
        "data.order=fast, lower train.steps, or give more data"
    )
